"""`offsets` finds the offsets of times on both clocks."""

import pytest
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.cli.surroundings import ExitCode
from tidelog.remote.cluster import Cluster
from tidelog.types import ClockName

HOUR = 3_600_000


@pytest.fixture
def two(cli: Cli) -> Cli:
    """Create two partitions; the first has two records, created 3 h and 1 h before their append."""
    cli.ok("create", "flights", "-p", "2")
    cli.append(at(NOW - 3 * HOUR))
    cli.clock.advance(HOUR)
    cli.append(at(NOW))
    return cli


@pytest.mark.parametrize(
    ("arguments", "offset", "time_ms"),
    [
        (("--at", str(NOW - 3 * HOUR)), 0, NOW - 3 * HOUR),
        (("--at", str(NOW - 3 * HOUR + 1)), 1, NOW),
        (("--at", "-2h"), 1, NOW),
        (("--at", "2023-11-14 22:13:20", "--zone", "UTC"), 1, NOW),
        (("--at", str(NOW), "--clock", "append"), 0, NOW),
        (("--at", str(NOW + 1), "--clock", "append"), 1, NOW + HOUR),
        (("--at", "max"), 1, NOW),
        (("--at", "earliest"), 0, NOW - 3 * HOUR),
        (("--at", "earliest", "--clock", "append"), 0, NOW),
        (("--at", "latest"), 2, None),
    ],
)
def test_offsets_prints_the_first_offset_at_or_after_the_time(
    two: Cli, arguments: tuple[str, ...], offset: int, time_ms: int | None
) -> None:
    first, second = two.ok("offsets", "flights", "-o", "json", *arguments).objects
    assert (first["partition"], first["offset"], first["time_ms"]) == (0, offset, time_ms)
    is_end = arguments[1] in {"earliest", "latest"}
    assert (second["partition"], second["offset"]) == (1, 0 if is_end else None)


def test_partitions_without_a_result_are_reported(two: Cli) -> None:
    result = two.ok("offsets", "flights", "--at", "now")
    assert result.lines[0] == "2 of 2 partitions have no record at or after now"
    assert result.lines[2].split() == ["0", "-", "-"]


@pytest.mark.parametrize("clock", ["record", "append"])
def test_a_table_names_the_clock_and_the_log_file(cli: Cli, clock: str) -> None:
    cli.ok("create", "flights", "--config", "internal.segment.bytes=90")
    for number in range(3):
        cli.clock.set(NOW + number)
        cli.append(at(NOW + number))
    words = ("offsets", "flights", "--clock", clock, "--at")
    heading, _ = cli.ok(*words, str(NOW + 1)).lines[:2]
    assert f"{ClockName(clock).time_name.upper()} (UTC)" in heading
    assert "LEADER EPOCH" not in heading
    heading, row, *_ = cli.ok(*words, str(NOW + 1), "--wide").lines
    assert "SEGMENT FILE" in heading
    assert f"{cli.data}/flights-0/{1:020}.log" in row.split()
    latest = cli.ok(*words, "latest", "--wide").lines[1].split()
    assert latest[:6] == ["flights", "0", "3", "-", "-", "-"]
    (fields,) = cli.ok(*words, str(NOW + 1), "-o", "json").objects
    assert "segment_file" not in fields


def test_a_brokers_offsets_have_no_log_file(two: Cli) -> None:
    with tidelog.broker(str(two.data)) as broker:
        place = ("--bootstrap", broker.bootstrap_servers)
        heading = two.ok("offsets", "flights", "--at", "earliest", *place).lines[0]
    assert heading.split() == ["PARTITION", "OFFSET", "TIMESTAMP", "(UTC)"]


@pytest.mark.parametrize("is_broker", [False, True])
def test_max_on_the_append_clock_is_the_last_appended_record(two: Cli, is_broker: bool) -> None:
    words = ("offsets", "flights", "--at", "max", "--clock", "append", "-o", "json")
    if is_broker:
        with tidelog.broker(str(two.data)) as broker:
            result = two.ok(*words, "--bootstrap", broker.bootstrap_servers)
    else:
        result = two.ok(*words)
    found = [(row["offset"], row["time_ms"]) for row in result.objects]
    assert found == [(1, NOW + HOUR), (None, None)]


def test_records_without_an_append_time_are_reported(two: Cli) -> None:
    two.data.joinpath("flights-0", "00000000000000000000.appendtime").unlink()
    result = two.ok("offsets", "flights", "--at", "-2h", "--clock", "append", "-o", "json")
    assert [row["without_time"] for row in result.objects] == [2, 0]
    assert "the append time of 2 records before these offsets is unknown" in result.err
    result = two.ok("offsets", "flights", "--at", "-2h", "-o", "json")
    assert "without_time" not in result.objects[0]


def test_a_table_counts_records_without_an_append_time_only_if_there_are_any(two: Cli) -> None:
    by_append = ("offsets", "flights", "--at", "-2h", "--clock", "append")
    assert "WITHOUT" not in two.ok(*by_append).out
    assert "WITHOUT APPEND TIME" in two.ok(*by_append, "--wide").out
    assert two.ok(*by_append, "-o", "csv").lines[0].endswith(",without_time")
    with tidelog.broker(str(two.data)) as broker:
        result = two.ok(*by_append, "--bootstrap", broker.bootstrap_servers)
    assert "WITHOUT" not in result.out
    two.data.joinpath("flights-0", "00000000000000000000.appendtime").unlink()
    _verdict, heading, *rows = two.ok(*by_append).lines
    assert heading.endswith("  WITHOUT APPEND TIME")
    assert [row.split()[-1] for row in rows] == ["2", "0"]


def test_both_clocks_of_a_time_are_shown_by_one_command(two: Cli) -> None:
    both = ("offsets", "flights", "--at", str(NOW), "--clock", "both")
    *verdicts, heading, first, second, third, fourth = two.ok(*both).lines
    assert verdicts == [
        f"1 of 2 partitions has no record at or after {NOW} on the {clock} clock"
        for clock in ("record", "append")
    ]
    assert heading.split() == ["PARTITION", "CLOCK", "OFFSET", "TIME", "(UTC)"]
    assert first.split() == ["0", "record", "1", "2023-11-14", "22:13:20"]
    assert second.split() == ["0", "append", "0", "2023-11-14", "22:13:20"]
    assert [third.split(), fourth.split()] == [["1", "record", "-", "-"], ["1", "append", "-", "-"]]
    objects = two.ok(*both, "-o", "json").objects
    for clock in ("record", "append"):
        single = two.ok("offsets", "flights", "--at", str(NOW), "--clock", clock, "-o", "json")
        of_both = [one for one in objects if one["clock"] == clock]
        assert of_both == [{"clock": clock, "without_time": None} | one for one in single.objects]
    with tidelog.broker(str(two.data)) as broker:
        remote = two.ok(*both, "--bootstrap", broker.bootstrap_servers)
    assert remote.lines == two.ok(*both).lines


def test_brokers_without_append_times_still_have_the_offsets_on_the_record_clock(
    two: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "search_append_times", lambda *_: {})
    words = ("offsets", "flights", "--at", str(NOW))
    with tidelog.broker(str(two.data)) as broker:
        place = ("--bootstrap", broker.bootstrap_servers)
        alone = two.run(*words, *place, "--clock", "append")
        table = two.ok(*words, *place, "--clock", "both")
        objects = two.ok(*words, *place, "--clock", "both", "-o", "json").objects
    assert alone.code == ExitCode.USAGE
    note = (
        "note: no offsets on the append clock: clock='append': flights has message.timestamp.type"
    )
    assert table.err.count(note) == 1
    assert [line.split() for line in table.lines[-3:]] == [
        ["PARTITION", "CLOCK", "OFFSET", "TIME", "(UTC)"],
        ["0", "record", "1", "2023-11-14", "22:13:20"],
        ["1", "record", "-", "-"],
    ]
    of_both = two.ok(*words, "--clock", "both", "-o", "json").objects
    assert objects == [one for one in of_both if one["clock"] == "record"]


@pytest.mark.parametrize(
    ("at", "hits", "empty"),
    [
        ("earliest", [(0, NOW - 3 * HOUR), (0, NOW)], (0, None)),
        ("latest", [(2, None), (2, None)], (0, None)),
        ("max", [(1, NOW), (1, NOW + HOUR)], (None, None)),
    ],
)
def test_the_first_and_the_last_record_have_their_times_on_both_clocks(
    two: Cli, at: str, hits: list[tuple[int, int | None]], empty: tuple[int | None, None]
) -> None:
    words = ("offsets", "flights", "--at", at, "--clock", "both", "-o", "json")
    with tidelog.broker(str(two.data)) as broker:
        remote = two.ok(*words, "--bootstrap", broker.bootstrap_servers).objects
    objects = two.ok(*words).objects
    for rows in (objects, remote):
        assert [row["clock"] for row in rows] == ["record", "append"] * 2
        assert [(row["offset"], row["time_ms"]) for row in rows] == [*hits, empty, empty]


def test_the_first_offset_has_no_time_if_its_record_is_gone(cli: Cli) -> None:
    cli.ok("create", "flights", "--config", "cleanup.policy=compact")
    cli.append(at(NOW, b"k"), at(NOW + 1, b"k"))
    cli.ok("compact", "flights", "--roll")
    first = ("offsets", "flights", "--at", "earliest", "-o", "json")
    (row,) = cli.ok(*first).objects
    assert (row["offset"], row["time_ms"]) == (0, None)


def test_records_without_an_append_time_are_reported_beside_both_clocks(two: Cli) -> None:
    two.data.joinpath("flights-0", "00000000000000000000.appendtime").unlink()
    result = two.ok("offsets", "flights", "--at", "-2h", "--clock", "both")
    assert [line.split()[-1] for line in result.lines[-4:]] == ["-", "2", "-", "0"]
    assert "2 records before these offsets on the append clock is unknown" in result.err


@pytest.mark.parametrize(
    "words", [("--during", "2023-11-14Z"), ("--from", "2023-11-14Z", "--to", "2023-11-15Z")]
)
def test_a_count_in_a_range_is_not_called_the_topics(two: Cli, words: tuple[str, ...]) -> None:
    verdict = two.ok("count", "flights:0", *words).out.splitlines()[0]
    assert verdict == "flights:0 has 2 records in this range of timestamps"


def test_a_broker_that_checks_no_acls_refers_to_its_setting() -> None:
    from tidelog.cli.surroundings import describe
    from tidelog.errors import ClusterFailure

    failure = ClusterFailure("b:1", "add ACLs", "SECURITY_DISABLED", error_code=54)
    assert "authorizer.class.name" in describe(failure).hint


def test_a_time_without_a_zone_names_the_option(two: Cli) -> None:
    assert "--zone" in two.run("count", "flights", "--during", "yesterday").err


@pytest.mark.parametrize("at", ["max", str(NOW)])
def test_a_lookup_by_time_refuses_read_committed(flights: Cli, at: str) -> None:
    committed = ("--isolation", "read_committed")
    result = flights.run("offsets", "flights", "--at", at, *committed)
    assert result.code == 3
    assert "--isolation read_committed is only for --at latest" in result.err
    flights.ok("offsets", "flights", "--at", "earliest", *committed)
