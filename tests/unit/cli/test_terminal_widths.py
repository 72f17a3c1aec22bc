"""No line of a table is wider than a terminal of 40, 80 or 120 columns, even with hostile keys."""

import pytest
from rich.cells import cell_len
from tests.worlds.command_line import NOW, Cli

from tidelog.storage import log_files
from tidelog.types import Header, NewRecord

HOUR = 3_600_000
KEYS = [b"N14228", b"", None, "日本語🛫".encode(), b"\x1b[2J", b"\xff" * 32, b"k" * 1_500]


@pytest.fixture
def world(cli: Cli) -> Cli:
    """Create topics with hostile keys, compaction and a long name, and damage an index."""
    cli.ok("create", "flights", "--partitions", "2", "--config", "retention.ms=-1")
    cli.ok("create", f"topic.{'with-a-long-name.' * 8}", "--config", "retention.ms=-1")
    options = ("cleanup.policy=compact", "internal.segment.bytes=4000", "segment.ms=1000")
    cli.ok("create", "planes", *(word for one in options for word in ("--config", one)))
    for number, key in enumerate(KEYS):
        value = f'{{"flight": {number}, "remarks": "{"late " * number}"}}'.encode()
        record = NewRecord(
            key=key, value=value, timestamp=NOW - number * HOUR, headers=(Header("h", b"v"),)
        )
        cli.append(record, partition=number % 2)
        cli.append(NewRecord(key=key or b"k", value=value, timestamp=NOW), topic="planes")
        cli.clock.advance(60_001)
    return cli


COMMANDS = [
    "topics",
    "describe flights",
    "describe planes --zone America/New_York",
    "config flights --all",
    "offsets flights --at -6h --clock append",
    "offsets flights --at latest",
    "count flights --from -2d",
    "read flights",
    "read flights --clock append --zone Asia/Kolkata",
    "read planes --table",
    "diff planes --from -1h",
    "latency flights",
    "latency flights --late",
    "why planes",
    "why flights",
    "retain --dry-run",
    "doctor",
    "compact --plan",
    "tier --status",
]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal(world: Cli, command: str, width: int) -> None:
    (world.data / "planes-0" / log_files.log_file_name(0)).with_suffix(".index").write_bytes(
        b"xxxxx"
    )
    world.variables["COLUMNS"] = f"{width}"
    result = world.run(*command.split())
    assert "Traceback" not in result.err
    assert result.out or "retain" in command or command == "doctor", result.err
    lines = result.out.split("\n")
    print(result.out)
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("command", COMMANDS)
def test_wide_shows_every_column(world: Cli, command: str) -> None:
    world.variables["COLUMNS"] = "40"
    assert "not shown" not in world.run(*command.split(), "--wide").out
