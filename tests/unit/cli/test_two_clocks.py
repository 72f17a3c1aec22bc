"""`count` and `read` with a range of append times and a range of timestamps, and with both clocks.

The records' create times are out of order, so no range on one clock is a range on the other.
"""

from itertools import product

import pytest
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.errors import InvalidRequest
from tidelog.types import INT64_MAX, INT64_MIN

HOUR = 3_600_000
# Create times in hours after NOW by partition; None for no timestamp. Record `number` of partition
# `p` is appended 2 * number + p hours after NOW.
CREATED: tuple[tuple[int | None, ...], ...] = ((0, -3, 2, None, 9, 1), (3, 1, -8, None, 5, 11))
APPEND = ("--clock", "append")
Sides = tuple[int | None, int | None]
# Each side of a range in hours after NOW, None for an open side.
SIDES: tuple[Sides, ...] = ((None, 4), (2, 9), (5, None))


@pytest.fixture(params=["one segment", "small segments"])
def hours(request: pytest.FixtureRequest, cli: Cli) -> Cli:
    """Append twelve records to two partitions; small segments have zone maps."""
    settings = ["--config", "retention.ms=-1"]
    settings += ["--config", f"message.timestamp.after.max.ms={24 * HOUR}"]
    if request.param == "small segments":
        settings += ["--config", "internal.segment.bytes=220"]
    cli.ok("create", "flights", "--partitions", "2", *settings)
    for number, partition in product(range(6), range(2)):
        cli.clock.set(NOW + _appended(partition, number) * HOUR)
        created = CREATED[partition][number]
        time = -1 if created is None else NOW + created * HOUR
        cli.append(at(time, b"k%d" % (number % 2), b"v" * 30), partition=partition)
    cli.clock.set(NOW + 12 * HOUR)
    return cli


def _appended(partition: int, number: int) -> int:
    return number * 2 + partition


def _is_in(hour: int | None, sides: Sides) -> bool:
    start, end = sides
    return hour is not None and (start is None or start <= hour) and (end is None or hour < end)


def _chosen(appended: Sides, created: Sides) -> list[tuple[int, int]]:
    """Return partition and offset of the records in both ranges."""
    return [
        (partition, number)
        for partition, hours in enumerate(CREATED)
        for number, hour in enumerate(hours)
        if _is_in(_appended(partition, number), appended) and _is_in(hour, created)
    ]


def _text(sides: Sides) -> str:
    return "..".join("" if side is None else str(NOW + side * HOUR) for side in sides)


def test_both_ranges_select_the_records(hours: Cli, place: tuple[str, ...]) -> None:
    for appended, created in product(SIDES, SIDES):
        ranges = ("--during", _text(appended), *APPEND, "--timestamps", _text(created))
        chosen = _chosen(appended, created)
        counted = hours.ok("count", "flights", "-o", "json", *ranges, *place).objects
        assert [row["records"] for row in counted] == [
            sum(partition == number for partition, _ in chosen) for number in range(2)
        ]
        read = hours.ok("read", "flights", "-o", "json", *ranges, *place).objects
        assert [(row["partition"], row["offset"]) for row in read] == chosen
        words = ("--order", "time", "-o", "json")
        ordered = hours.ok("read", "flights", *words, *ranges, *place).objects
        assert [(row["partition"], row["offset"]) for row in ordered] == sorted(
            chosen, key=lambda one: _appended(*one)
        )
        by_hour = hours.ok("count", "flights", "--by", "hour", "-o", "json", *ranges, *place)
        assert sum(int(str(row["records"])) for row in by_hour.objects) == len(chosen)


def test_a_read_by_columns_and_with_a_condition_selects_the_same(
    hours: Cli, place: tuple[str, ...]
) -> None:
    for appended, created in product(SIDES, SIDES):
        ranges = ("--during", _text(appended), *APPEND, "--timestamps", _text(created))
        rows = hours.ok("read", "flights", "--key", "k1", "-o", "json", *ranges, *place).objects
        assert [(row["partition"], row["offset"]) for row in rows] == [
            (partition, number) for partition, number in _chosen(appended, created) if number % 2
        ]


def test_the_library_selects_the_same(hours: Cli, place: tuple[str, ...]) -> None:
    option, where = place
    with tidelog.open(where) if option == "--data" else tidelog.connect(where) as log:
        for appended, created in product(SIDES, SIDES):
            scan = log.scan(
                "flights", during=_text(appended), clock="append", timestamps=_text(created)
            )
            table = scan.to_table()
            pairs = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
            assert list(pairs) == _chosen(appended, created)
            assert log.count(
                "flights", during=_text(appended), clock="append", timestamps=_text(created)
            ) == len(_chosen(appended, created))
        scan = log.scan("flights", start=NOW, clock="append", timestamps=f"..{NOW}")
        shown = scan._repr_html_()
        assert "append time 2023-11-14 22:13:20 to open UTC, timestamp open to 2023-11-14" in shown
        whole = (INT64_MIN, INT64_MAX)
        assert log.count("flights", start=0, clock="append", timestamps=whole) == 10
        # Timestamps before 1970 are not lost at an open side.
        scan = log.scan("flights", start=NOW, clock="append", timestamps=f"..{NOW}")
        assert scan.requested_range.timestamps == (INT64_MIN, NOW)
        with pytest.raises(InvalidRequest, match="timestamps starts at 5 ms, after its end, 2 ms"):
            log.count("flights", start=0, clock="append", timestamps=(5, 2))
        for during, clock in (("-6h", "record"), (None, "append")):
            with pytest.raises(InvalidRequest, match="a second range beside a range of append"):
                log.scan("flights", during=during, clock=clock, timestamps="..-1h")


def test_the_sentence_names_both_ranges(hours: Cli, place: tuple[str, ...]) -> None:
    """Print how many records arrived in an hour and were created before it."""
    ranges = ("--during", _text((4, 5)), *APPEND, "--timestamps", _text((None, 4)))
    assert hours.ok("count", "flights:0", *ranges, *place).lines == [
        "flights:0 has 1 record in this range of append times and this range of timestamps"
    ]
    result = hours.ok("count", "flights", "--from", str(NOW), *APPEND, "--timestamps", "..now")
    assert "at least 2 records have no timestamp and are not counted in any range" in result.err


def test_both_clocks_are_counted_by_one_command(hours: Cli, place: tuple[str, ...]) -> None:
    during = ("--during", _text((2, 6)), "--clock", "both")
    result = hours.ok("count", "flights", *during, *place)
    assert result.lines[0] == (
        "flights has 3 records in this range of timestamps and 4 in this range of append times, in"
        " 2 partitions"
    )
    rows = [line.split() for line in result.lines[1:]]
    assert rows == [
        ["PARTITION", "RECORDS", "CLOCK"],
        ["0", "1", "record"],
        ["1", "2", "record"],
        ["total", "3", "record"],
        ["0", "2", "append"],
        ["1", "2", "append"],
        ["total", "4", "append"],
    ]
    found = hours.ok("count", "flights", *during, "-o", "json", *place).objects
    assert [(row["clock"], row["partition"], row["records"]) for row in found] == [
        ("record", 0, 1),
        ("record", 1, 2),
        ("append", 0, 2),
        ("append", 1, 2),
    ]
    one = hours.ok("count", "flights:1", *during, *place)
    assert one.lines == [
        "flights:1 has 2 records in this range of timestamps and 2 in this range of append times"
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("count", "flights", "--timestamps", "..now", "--during", "-6h"), "add --clock append"),
        (
            ("count", "flights", "--from", "-1h", "--timestamps", "..now", "--clock", "both"),
            "add --clock append",
        ),
        (("count", "flights", "--timestamps", "..now", *APPEND), "add --during RANGE, or use"),
        (("read", "flights", "--timestamps", "..now"), "add --clock append, or use --during"),
        (("read", "flights", "--timestamps", "..now", "--table"), "not apply with --table"),
        (("count", "flights", "--clock", "both"), "--clock both gives two counts of a range; add"),
        (("count", "flights", "--clock", "both", "--by", "day"), "leave --by day out"),
        (("count", "flights", "--clock", "both", "--repeated"), "leave --repeated out"),
    ],
)
def test_other_combinations_are_refused_with_advice(
    flights: Cli, words: tuple[str, ...], reason: str
) -> None:
    result = flights.run(*words)
    assert result.code == 3
    assert reason in result.err.replace("\n", " ")
