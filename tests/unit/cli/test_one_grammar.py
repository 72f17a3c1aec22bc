"""One grammar parses all times, and refuses invalid times with the same messages."""

from typing import TYPE_CHECKING

import pytest
from tests.worlds.command_line import NOW, Cli, at

from tidelog.directory import Directory
from tidelog.errors import InvalidTime
from tidelog.spark.options import read_source_options
from tidelog.timespec import parse_point

if TYPE_CHECKING:
    from collections.abc import Callable

AMBIGUOUS = "2013-11-03 01:30 America/New_York"
SKIPPED = "2013-03-10 02:30 America/New_York"
SECONDS, MICROS, NANOS = "1360342800", "1360342800000000", "1360342800000000000"
REFUSED = (AMBIGUOUS, SKIPPED, SECONDS, MICROS, NANOS, "2013-02-08 12:00", "6h", "yesterday")
CLUSTER = ("--bootstrap", "127.0.0.1:1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "offsets": ("offsets", "flights", "--at"),
    "read --from": ("read", "flights", "--from"),
    "read --to": ("read", "flights", "--to"),
    "count": ("count", "flights", "--from"),
    "latency": ("latency", "flights", "--from"),
    "rewind": ("rewind", "--group", "g", *CLUSTER, "--to"),
    "failover": (
        "failover",
        "--group",
        "g",
        "--from",
        "127.0.0.1:1",
        "--to",
        "127.0.0.1:2",
        "--at",
    ),
}


def reason(text: str) -> str:
    """Return the message with which the grammar refuses a text."""
    with pytest.raises(InvalidTime) as refused:
        parse_point(text, now_ms=NOW)
    return refused.value.reason


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_in_the_grammars_words(cli: Cli, command: str, text: str) -> None:
    cli.ok("create", "flights")
    result = cli.run(*COMMANDS[command], text)
    assert result.code in {1, 3}
    assert reason(text) in result.err


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_a_spark_option_refuses_in_the_grammars_words(option: str, text: str) -> None:
    with pytest.raises(InvalidTime) as refused:
        read_source_options({"path": "/data", "subscribe": "t", option: text})
    assert reason(text) in refused.value.reason


@pytest.mark.parametrize("text", REFUSED)
def test_the_library_refuses_in_the_grammars_words(cli: Cli, text: str) -> None:
    cli.ok("create", "flights")
    with Directory.open(str(cli.data), env=cli.env) as directory:
        calls: tuple[Callable[[], object], ...] = (
            lambda: directory.point(text),
            lambda: directory.offsets_at("flights", text),
            lambda: directory.range(f"{text}.."),
        )
        for call in calls:
            with pytest.raises(InvalidTime) as refused:
                call()
            assert reason(text) in refused.value.reason


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (str(NOW), 1),
        (f"@{NOW}", 1),
        (f"@{NOW // 1000}", 1),
        (f"{NOW // 1000}s", 1),
        (f"{NOW}000us", 1),
        ("now", 1),
        ("-6h", 0),
        ("@-6h", 0),
        ("P1D", 0),
        ("2023-11-14T22:13:20Z", 1),
        ("2023-11-14 17:13:20 America/New_York", 1),
    ],
)
def test_all_forms_lead_to_the_same_record(cli: Cli, text: str, offset: int) -> None:
    cli.ok("create", "flights")
    cli.append(at(NOW - 1), at(NOW))
    assert cli.ok("offsets", "flights", "-o", "json", "--at", text).objects[0]["offset"] == offset
    read = cli.ok("read", "flights", "-o", "json", "--from", text).objects
    assert [record["offset"] for record in read] == list(range(offset, 2))


def test_rpks_points_may_stand_on_both_sides(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(at(NOW - 1), at(NOW), at(NOW + 1_000))
    sides = ("--from", "@2023-11-14T22:13:20Z", "--to", f"@{NOW + 1_000}")
    read = cli.ok("read", "flights", "-o", "json", *sides).objects
    assert [record["offset"] for record in read] == [1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{NOW - 1}..{NOW}", [0]),
        (f"{NOW}..{NOW + 1}", [1]),
        (f"{NOW - 1}..+2ms", [0, 1]),
        (f"@{NOW - 1}:{NOW}", [0]),
        (f"@{NOW - 1}:1ms", [0]),
        (f"@{NOW - 1}..@{NOW}", [0]),
        (f"@{NOW}:end", [1]),
        (f"..{NOW}", [0]),
        ("2023-11-14 UTC", [0, 1]),
    ],
)
def test_ends_of_ranges_are_exact(cli: Cli, text: str, found: list[int]) -> None:
    cli.ok("create", "flights")
    cli.append(at(NOW - 1), at(NOW))
    assert cli.ok("count", "flights", "--from", text, "-o", "json").objects[0]["records"] == len(
        found
    )
    read = cli.ok("read", "flights", "-o", "json", "--from", text).objects
    assert [record["offset"] for record in read] == found
