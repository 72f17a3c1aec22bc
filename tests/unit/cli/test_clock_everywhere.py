"""Commands, calls and Spark options for times let users choose the clock.

docs/clocks.md lists the commands without this choice, with the reason.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidelog.cli.app import app
from tidelog.directory import Directory
from tidelog.scan import plan
from tidelog.spark.options import read_source_options
from tidelog.storage.log.log_reader import LogView
from tidelog.types import ClockName

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "clocks.md").read_text()
WITH_CLOCK = {"offsets", "read", "count", "diff", "rewind", "delete-records"}
# Names of options whose value is a time of records.
TIME_OPTIONS = {"--at", "--from", "--to"}


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.resolve_command(context, [name])[1]
        assert command is not None
        yield name, command


def options(command: click.Command) -> dict[str, click.Parameter]:
    return {name: found for found in command.params for name in found.opts}


def without_choice() -> set[str]:
    """Return the commands without a choice of clock: those in the last table of docs/clocks.md."""
    table = PAGE.rpartition("| command | clock |")[2]
    first_cells = re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`tidelog ([\w-]+)`", cell)}


def test_every_command_that_selects_by_time_has_a_clock_or_a_reason_for_none() -> None:
    found = {name for name, command in commands() if "--clock" in options(command)}
    assert found == WITH_CLOCK
    timed = {name for name, command in commands() if TIME_OPTIONS & options(command).keys()}
    assert timed - found <= without_choice()
    assert not found & without_choice()


def test_each_command_accepts_both_clocks_and_has_the_record_clock_by_default() -> None:
    for name, command in commands():
        if name not in WITH_CLOCK:
            continue
        clock = options(command)["--clock"]
        assert isinstance(clock.type, click.Choice)
        more = {"both"} if name in ("offsets", "count") else set()
        assert set(clock.type.choices) == {each.value for each in ClockName} | more
        assert clock.default == "record", name


def test_the_page_names_the_commands_that_have_one() -> None:
    row = next(line for line in PAGE.splitlines() if "--clock record" in line)
    assert set(re.findall(r"`tidelog ([\w-]+)`", row)) == WITH_CLOCK


@pytest.mark.parametrize(
    "call",
    [
        Directory.offsets_for_times,
        Directory.offsets_at,
        Directory.read,
        Directory.count,
        LogView.offset_for_time,
        plan,
    ],
)
def test_the_library_has_a_keyword_argument_clock(call: object) -> None:
    assert callable(call)
    clock = inspect.signature(call).parameters["clock"]
    assert clock.kind is inspect.Parameter.KEYWORD_ONLY
    assert clock.default == ClockName.RECORD


@pytest.mark.parametrize("clock", list(ClockName))
def test_spark_accepts_both_clocks(clock: ClockName) -> None:
    given = {"path": "/data", "subscribe": "t", "clock": clock.value}
    assert read_source_options(given).clock is clock
