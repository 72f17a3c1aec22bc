"""Dry runs change nothing on disk, also if a partition's directory is missing."""

from pathlib import Path
from shutil import rmtree

import pytest
from tests.worlds.command_line import Cli, at

_DAY = 86_400_000


@pytest.fixture
def damaged(cli: Cli, tmp_path: Path) -> Cli:
    """Create a compacted and tiered topic with finished segments; remove one of its partitions."""
    settings = ("cleanup.policy=compact", f"retention.ms={_DAY}", "segment.ms=1")
    cli.ok("create", "t", "--partitions", "3", *(f"--config={one}" for one in settings))
    cli.ok("create", "u", "--partitions", "3", *(f"--config={one}" for one in settings[1:]))
    for _ in range(3):
        for topic in ("t", "u"):
            cli.append(at(cli.clock.now_ms(), b"a", b"1"), topic=topic)
        cli.clock.advance(_DAY)
    cli.ok("tier", "u:0", "--to", (tmp_path / "store").as_uri())
    for topic in ("t", "u"):
        rmtree(cli.data / f"{topic}-1")
    return cli


def _files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return each path below a folder, with its time of modification and its content."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.parametrize(
    "command",
    [
        "retain --dry-run",
        "retain t --dry-run --show segments",
        "compact --plan",
        "compact t --plan --show segments",
        "tier --dry-run",
        "tier u --dry-run",
        "tier --status",
        "tier --verify",
        "tier --collect --dry-run",
        "tier u --collect --dry-run",
        "erase t --key a",
        "delete-records t --before now",
        "config t",
        "why t",
        "doctor",
    ],
)
def test_a_dry_run_changes_no_file(damaged: Cli, tmp_path: Path, command: str) -> None:
    before = _files(tmp_path)
    result = damaged.run(*command.split())
    assert result.code in (0, 1), result.err
    assert _files(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        "compact {} --plan",
        "compact {} --plan --show segments",
        "compact {}",
        "tier {} --dry-run",
        "tier {} --status --show partitions",
        "tier {} --verify",
        "tier {}",
    ],
)
def test_a_partition_without_files_is_noted_and_left_out(damaged: Cli, command: str) -> None:
    topic = "t" if "compact" in command else "u"
    note = f"note: {damaged.data}: {topic}: partition 1 is listed in tidelog-topics.json, but has"
    for target in (topic, ""):
        result = damaged.ok(*command.format(target).split(), "-o", "json")
        assert note in result.err
        assert all(row.get("partition", 0) != 1 for row in result.objects)
    result = damaged.run(*command.format(f"{topic}:1").split())
    assert result.code == 1
    assert f"{topic}:1 has no files in {damaged.data}; partitions with files: 0, 2" in result.err
    assert not (damaged.data / f"{topic}-1").exists()


@pytest.mark.parametrize("options", [("--yes",), ("--dry-run",)])
def test_a_retention_creates_no_missing_partition(damaged: Cli, options: tuple[str, ...]) -> None:
    for target in (("u",), ()):
        result = damaged.ok("retain", *target, *options)
        note = "u: partition 1 is listed in tidelog-topics.json, but has no directory"
        assert result.err.count(f"note: {damaged.data}: {note}") == 1
        assert not (damaged.data / "u-1").exists()


def test_a_retention_that_is_not_confirmed_creates_no_partition(cli: Cli) -> None:
    cli.ok("create", "t", "--partitions", "2", f"--config=retention.ms={_DAY}")
    cli.ok("config", "t", "--set", "segment.ms=1")
    for _ in range(3):
        cli.append(at(cli.clock.now_ms()), topic="t", partition=0)
        cli.clock.advance(_DAY)
    rmtree(cli.data / "t-1")
    cli.asked = True
    assert "delete 2 segments" in cli.run("retain", stdin=b"n\n").err
    assert not (cli.data / "t-1").exists()


def test_a_dry_run_of_collect_works_without_local_log_files(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "u", "--config=segment.ms=1")
    for _ in range(3):
        cli.append(at(cli.clock.now_ms(), b"a", b"1"), topic="u")
        cli.clock.advance(_DAY)
    cli.ok("tier", "u", "--to", (tmp_path / "store").as_uri(), "--roll")
    for path in (cli.data / "u-0").glob("0*"):
        path.unlink()
    before = _files(tmp_path)
    result = cli.run("tier", "u:0", "--collect", "--dry-run")
    assert result.code == 0, result.err
    assert _files(tmp_path) == before
