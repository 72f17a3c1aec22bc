"""The bar of `count_progress` appears only on a terminal, after a second."""

import io

import pytest
from tests.worlds.command_line import NOW, Cli, at

from tidelog.cli.surroundings import Surroundings, count_progress
from tidelog.env import Env, ManualClock, OsFileSystem


class _Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "seconds", "is_shown"), [(True, 2, True), (True, 0, False), (False, 2, False)]
)
def test_a_long_loop_shows_a_bar(*, is_terminal: bool, seconds: int, is_shown: bool) -> None:
    clock, stderr = ManualClock(NOW), _Stream(is_terminal=is_terminal)
    surroundings = Surroundings(env=Env(files=OsFileSystem(), clock=clock), stderr=stderr)
    with count_progress(surroundings, "checking topics", 3) as show:
        for done in range(3):
            show(done)
            clock.advance(seconds * 1000)
    assert ("checking topics" in stderr.getvalue()) == is_shown


def test_a_dry_run_of_retention_does_not_need_the_lock(cli: Cli) -> None:
    from tidelog.directory import Directory

    cli.ok("create", "flights", "--config", "retention.ms=1000")
    cli.append(at(NOW))
    cli.clock.advance(5_000)
    with Directory.open(str(cli.data), writable=True, env=cli.env):
        lines = cli.ok("retain", "--dry-run").lines
        assert cli.run("retain", "--yes").code == 1
    assert lines == cli.ok("retain", "--dry-run").lines
