"""`count` and `read` with a range of append times and a range of timestamps, and with both clocks.

The records' create times are out of order, so no range on one clock is a range on the other.
"""

from itertools import pairwise, product

import pytest
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.errors import InvalidRequest
from tidelog.remote.cluster import Cluster
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
        # An open side includes timestamps before 1970.
        scan = log.scan("flights", start=NOW, clock="append", timestamps=f"..{NOW}")
        assert scan.requested_range.timestamps == (INT64_MIN, NOW)
        with pytest.raises(InvalidRequest, match="timestamps starts at 5 ms, after its end, 2 ms"):
            log.count("flights", start=0, clock="append", timestamps=(5, 2))
        for during, clock in (("-6h", "record"), (None, "append")):
            with pytest.raises(InvalidRequest, match="a second range beside a range of append"):
                log.scan("flights", during=during, clock=clock, timestamps="..-1h")


def test_the_sentence_names_both_ranges(hours: Cli, place: tuple[str, ...]) -> None:
    """`count` prints how many records arrived in an hour but were created before that hour."""
    ranges = ("--during", _text((4, 5)), *APPEND, "--timestamps", _text((None, 4)))
    assert hours.ok("count", "flights:0", *ranges, *place).lines == [
        "flights:0 has 1 record in this range of append times and this range of timestamps"
    ]


@pytest.mark.parametrize("words", [(), ("--by", "hour"), ("--by", "key"), ("--repeated",)])
def test_records_without_a_timestamp_are_named_by_each_count(
    hours: Cli, place: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ranges = ("--from", str(NOW), *APPEND, "--timestamps", "..now")
    result = hours.ok("count", "flights", *ranges, *words, *place)
    assert (
        result.err.count("at least 2 records have no timestamp and are not counted in any range")
        == 1
    )


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


def test_hours_are_counted_on_both_clocks(hours: Cli, place: tuple[str, ...]) -> None:
    # NOW is 13 min 20 s after a full hour, so the range begins within an hour.
    words = ("count", "flights", "--by", "hour", "--clock", "both", *place)
    during = ("--during", _text((0, 3)))
    result = hours.ok(*words, *during)
    verdict, heading, *rows = result.lines
    assert verdict == (
        "flights has 4 records in this range of timestamps and 3 in this range of append times, in"
        " 4 hours"
    )
    headings = "START (UTC) RECORDS BY TIMESTAMP RECORDS BY APPEND TIME"
    assert " ".join(heading.split()) == headings
    assert [row.split()[-2:] for row in rows] == [["1", "1"], ["2", "1"], ["1", "1"], ["0", "0"]]
    for kind in ("json", "csv"):
        assert verdict in hours.ok(*words, *during, "-o", kind).err
    found = hours.ok(*words, *during, "-o", "json").objects
    first = next(iter(found))
    assert list(first) == [
        *("topic", "partition", "start", "start_ms", "end", "end_ms"),
        *("records_by_timestamp", "records_by_append_time"),
    ]
    for clock, name in (("record", "timestamp"), ("append", "append_time")):
        single = ("count", "flights", "--by", "hour", "--clock", clock, *during, *place)
        alone = hours.ok(*single, "-o", "json").objects
        assert [row[f"records_by_{name}"] for row in found] == [row["records"] for row in alone]
        assert [row["end_ms"] for row in found] == [row["end_ms"] for row in alone]
    assert hours.ok(*words, *during, "-o", "csv").lines[0] == ",".join(first)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("unit", ["hour", "day"])
def test_an_open_range_has_all_units_of_both_clocks(
    hours: Cli, place: tuple[str, ...], sides: Sides, unit: str
) -> None:
    options = ("--during", _text(sides), "--by", unit, "-o", "json", *place)
    found = hours.ok("count", "flights", "--clock", "both", *options).objects
    for clock, name in (("record", "timestamp"), ("append", "append_time")):
        alone = hours.ok("count", "flights", "--clock", clock, *options).objects
        counts = {row["end_ms"]: row[f"records_by_{name}"] for row in found}
        expected = {row["end_ms"]: row["records"] for row in alone}
        assert counts == dict.fromkeys(counts, 0) | expected
    assert all(one["end_ms"] == two["start_ms"] for one, two in pairwise(found))


def test_hours_without_records_are_one_row_only_if_both_clocks_have_none(hours: Cli) -> None:
    during = ("--during", _text((-9, 40)))
    lines = hours.ok("count", "flights", "--by", "hour", "--clock", "both", *during).lines
    assert sum("... " in line for line in lines) == 0
    during = ("--during", _text((-9, 60)))
    lines = hours.ok("count", "flights", "--by", "hour", "--clock", "both", *during).lines
    (row,) = (line for line in lines if "hours without records" in line)
    assert row.split()[-2:] == ["0", "0"]


def test_brokers_without_append_times_still_have_the_counts_by_timestamp(
    hours: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "search_append_times", lambda *_: {})
    words = ("count", "flights", "--during", _text((0, 3)))
    with tidelog.broker(str(hours.data)) as broker:
        both = (*words, "--clock", "both", "--bootstrap", broker.bootstrap_servers)
        whole = hours.ok(*both)
        objects = hours.ok(*both, "-o", "json").objects
        by_hour = hours.ok(*both, "--by", "hour")
        hour_objects = hours.ok(*both, "--by", "hour", "-o", "json").objects
        alone = hours.run(
            *words, "--clock", "append", "--bootstrap", broker.bootstrap_servers, "--by", "hour"
        )
    assert alone.code == 3
    sentence = "flights has 4 records in this range of timestamps, in"
    assert whole.lines[0] == f"{sentence} 2 partitions"
    assert whole.lines[1].split() == ["PARTITION", "RECORDS", "CLOCK"]
    assert {row["clock"] for row in objects} == {"record"}
    assert by_hour.lines[0] == f"{sentence} 4 hours"
    assert by_hour.lines[2].split()[-2:] == ["1", "-"]
    assert [row["records_by_append_time"] for row in hour_objects] == [None] * 4
    for result in (whole, by_hour):
        note = "note: no counts on the append clock: clock='append': flights has"
        assert result.err.count(note) == 1


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
        (
            ("count", "flights", "--clock", "both", "--by", "day"),
            "--clock both gives two counts of",
        ),
        (("count", "flights", "--clock", "both", "--by", "key"), "leave --by key out"),
        (("count", "flights", "--clock", "both", "--repeated"), "leave --repeated out"),
    ],
)
def test_other_combinations_are_refused_with_advice(
    flights: Cli, words: tuple[str, ...], reason: str
) -> None:
    result = flights.run(*words)
    assert result.code == 3
    assert reason in result.err.replace("\n", " ")
