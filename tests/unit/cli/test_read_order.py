"""`read` by time, from the end, and by key and value, for a directory and a cluster."""

import io
import json

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.cli import records
from tidelog.errors import InvalidRequest, UnknownTopic
from tidelog.record.record import Record
from tidelog.scan.time_order import WINDOW_LEAST
from tidelog.types import TopicPartition

HOUR = 3_600_000
# Create times in hours by partition, -1 for none. Each hour one record is appended, to the
# partitions in turn.
CREATED = ([0, 5, 2, -1, 9], [3, 3, 8, -1, 4])


@pytest.fixture
def hours(cli: Cli) -> Cli:
    """Append ten records to two partitions; create times are out of order, and two are missing."""
    cli.ok("create", "flights", "--partitions", "2", "--config", "retention.ms=-1")
    for partition, created in enumerate(CREATED):
        for number, hour in enumerate(created):
            cli.clock.set(NOW + (number * 2 + partition) * HOUR)
            time = -1 if hour < 0 else NOW - 10 * HOUR + hour * HOUR
            value = json.dumps({"hour": hour, "at": {"gate": f"g{number}"}}).encode()
            cli.append(at(time, b"k%d" % (number % 2), value), partition=partition)
        cli.clock.set(NOW)
    cli.clock.set(NOW + 12 * HOUR)
    return cli


def read(cli: Cli, place: tuple[str, ...], *arguments: str) -> list[tuple[object, object]]:
    rows = cli.ok("read", "flights", "-o", "json", *arguments, *place).objects
    return [(row["partition"], row["offset"]) for row in rows]


BY_RECORD = [(0, 0), (0, 2), (1, 0), (1, 1), (1, 4), (0, 1), (1, 2), (0, 4)]
BY_APPEND = [(partition, number) for number in range(5) for partition in range(2)]


def test_order_is_that_of_the_clock_over_all_partitions(hours: Cli, place: tuple[str, ...]) -> None:
    assert read(hours, place, "--order", "time") == BY_RECORD
    assert read(hours, place, "--order", "time", "--clock", "append") == BY_APPEND
    assert read(hours, place, "--order", "time", "--limit", "3") == BY_RECORD[:3]
    since = ("--from", str(NOW - 8 * HOUR), "--to", str(NOW - 5 * HOUR))
    assert read(hours, place, "--order", "time", *since) == BY_RECORD[1:5]


def test_tail_is_the_end_of_the_order(hours: Cli, place: tuple[str, ...]) -> None:
    assert read(hours, place, "--tail", "3") == BY_RECORD[-3:]
    assert read(hours, place, "--tail", "3", "--clock", "append") == BY_APPEND[-3:]
    assert read(hours, place, "--tail", "99") == BY_RECORD
    assert read(hours, place, "--tail", "0") == []
    assert read(hours, place, "--tail", "1", "--partition", "1") == [(1, 2)]
    assert read(hours, place, "--tail", "2", "--to", str(NOW - 5 * HOUR)) == BY_RECORD[3:5]


def test_rounded_append_times_may_be_before_the_start_of_the_range(cli: Cli) -> None:
    """Stored append times are rounded down, so the first record's time is before the start."""
    step = ("--config", "tidelog.append.time.granularity.ms=1000")
    cli.ok("create", "flights", "--config", "retention.ms=-1", *step)
    cli.clock.set(NOW + 300)
    cli.append(*(at(NOW) for _ in range(2 * WINDOW_LEAST)))
    range_of_times = ("--clock", "append", "--from", str(NOW + 200), "--order", "time")
    with tidelog.broker(str(cli.data)) as broker:
        for place in ("--data", str(cli.data)), ("--bootstrap", broker.bootstrap_servers):
            first = read(cli, place, *range_of_times, "--limit", "3")
            assert first == [(0, 0), (0, 1), (0, 2)]


def places(found: list[tuple[TopicPartition, Record]]) -> list[tuple[object, object]]:
    assert all(record.append_timestamp is not None for _, record in found)
    return [(name.partition, record.offset) for name, record in found]


def test_the_library_has_the_same_tail(hours: Cli, place: tuple[str, ...]) -> None:
    option, where = place
    with tidelog.open(where) if option == "--data" else tidelog.connect(where) as log:
        assert places(log.tail("flights", 3)) == BY_RECORD[-3:]
        assert places(log.tail("flights", 3, clock="append")) == BY_APPEND[-3:]
        assert places(log.tail("flights", 99)) == BY_RECORD
        assert log.tail("flights", 0) == []
        assert places(log.tail(TopicPartition("flights", 1), 1)) == [(1, 2)]
        assert places(log.tail("flights", 2, end=NOW - 5 * HOUR)) == BY_RECORD[3:5]
        during = f"{NOW - 8 * HOUR}..{NOW - 5 * HOUR}"
        assert places(log.tail("flights", 2, during=during)) == BY_RECORD[3:5]
        for key in ("k1", b"k1"):
            assert places(log.tail("flights", 2, key=key)) == [(1, 1), (0, 1)]
        with pytest.raises(InvalidRequest, match="count must be 0 or more, got -1"):
            log.tail("flights", -1)
        with pytest.raises(InvalidRequest, match="key can't be encoded as UTF-8"):
            log.tail("flights", 1, key="\udcff")
        with pytest.raises(UnknownTopic):
            log.tail("none", 1)


def test_records_without_a_time_are_left_out_and_counted(
    hours: Cli, place: tuple[str, ...]
) -> None:
    result = hours.ok("read", "flights", "--order", "time", *place)
    assert result.err == "note: 2 records have no timestamp and were left out\n"


@pytest.mark.parametrize(
    ("text", "offsets"),
    [("-2..", [3, 4]), ("-4..-2", [1, 2]), ("..-3", [0, 1]), ("1..-1", [1, 2, 3]), ("-9..", None)],
)
def test_offsets_from_the_end_count_records(
    hours: Cli, place: tuple[str, ...], text: str, offsets: list[int] | None
) -> None:
    expected = range(5) if offsets is None else offsets
    answer = read(hours, place, "--offset", text)
    assert answer == [(partition, offset) for partition in range(2) for offset in expected]


@pytest.mark.parametrize("columns", [True, False])
def test_key_text_and_field_select_records(
    hours: Cli, place: tuple[str, ...], columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.read.has_arrow", lambda: columns and records.has_arrow())
    assert read(hours, place, "--key", "k1") == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert read(hours, place, "--key", "k1", "--tail", "2") == [(1, 1), (0, 1)]
    assert read(hours, place, "--contains", "g4") == [(0, 4), (1, 4)]
    assert read(hours, place, "--match", "hour=3.0") == [(1, 0), (1, 1)]
    both = ("--match", "at.gate=g1", "--match", "hour=3", "--order", "time", "--limit", "5")
    assert read(hours, place, *both) == [(1, 1)]


def test_arguments_that_are_no_utf8_stand_for_their_bytes(flights: Cli) -> None:
    flights.append(at(NOW, b"\xff", b"one"), at(NOW, b"k", b"two\xfe"))
    options = ("-o", "json", "--key-as", "bytes", "--value-as", "bytes")
    (row,) = flights.ok("read", "flights", "--contains", "o\udcfe", *options).objects
    assert row["offset"] == 1
    assert "one" in flights.ok("read", "flights", "--key", "\udcff").out


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_columns_have_the_same_records_in_the_same_order(
    hours: Cli, place: tuple[str, ...], kind: str
) -> None:
    def table(*arguments: str) -> list[tuple[object, object]]:
        result = hours.ok("read", "flights", "-o", kind, *arguments, *place)
        data = io.BytesIO(result.raw)
        rows = (
            parquet.read_table(data) if kind == "parquet" else pa.ipc.open_stream(data).read_all()
        )
        return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))

    assert table("--order", "time") == BY_RECORD
    assert table("--tail", "3", "--clock", "append") == BY_APPEND[-3:]
    assert table("--key", "k1") == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert table("--offset", "-1..") == [(0, 4), (1, 4)]


def test_without_a_match_the_newest_time_is_reported(hours: Cli, place: tuple[str, ...]) -> None:
    late = ("--from", str(NOW + 100 * HOUR))
    said = hours.ok("read", "flights", *late, *place).err
    assert (
        "0 records; the newest record of flights is of 2023-11-14 21:13:20 UTC (record clock)\n"
        in said
    )
    said = hours.ok("read", "flights", *late, "--clock", "append", *place).err
    assert (
        "0 records; the newest record of flights is of 2023-11-15 07:13:20 UTC (append clock)"
        in said
    )
    said = hours.ok("read", "flights", "--key", "nobody", *late, "-o", "csv", *place).err
    assert "0 records; the newest record of flights is of" in said


def test_without_a_match_of_all_records_the_conditions_are_reported(
    hours: Cli, place: tuple[str, ...]
) -> None:
    read = ("read", "flights", "--key", "nobody")
    assert "0 records of flights match --key nobody\n" in hours.ok(*read, *place).err
    said = hours.ok(*read, "--contains", "x", "--match", "a=1", "--match", "b=2", *place).err
    conditions = "--key nobody and --contains x and --match a=1 and --match b=2"
    assert f"0 records of flights match {conditions}\n" in said


def test_without_a_match_deleted_offsets_are_reported(hours: Cli, place: tuple[str, ...]) -> None:
    early = ("read", "flights", "--offset", "0..2")
    hours.ok("delete-records", "flights:0", "--offset", "3", "--yes", *place)
    which = f" (`tidelog why flights --data {hours.data}` shows which)"
    which = "" if "--bootstrap" in place else which
    note = (
        f"earlier offsets were deleted by retention or delete-records{which}: flights-0 starts at"
        " offset 3"
    )
    times = (("record", ""), ("append", ", whose append time is 2023-11-15 04:13:20 UTC"))
    for clock, time in times:
        said = hours.ok(*early, "--partition", "0", "--clock", clock, *place).err
        assert said.endswith(f"note: {note}{time}\n"), "it has no timestamp"


@pytest.mark.parametrize("by", [(), ("--by", "hour")])
def test_a_count_of_records_without_a_time_may_be_too_small(
    hours: Cli, place: tuple[str, ...], by: tuple[str, ...]
) -> None:
    since = ("--from", str(NOW - 8 * HOUR))
    said = hours.ok("count", "flights", *since, *by, *place).err
    assert "at least 2 records have no timestamp" in said
    said = hours.ok("count", "flights", "--by", "hour", *place).err
    assert said.startswith("2 records have no timestamp")


def test_a_damaged_first_record_leaves_only_its_time_out_of_a_note(cli: Cli) -> None:
    cli.ok("create", "flights", "--config", "internal.segment.bytes=2000")
    for number in range(12):
        cli.append(at(NOW + number, value=b"%02d" % number * 150))
    cli.ok("delete-records", "flights:0", "--offset", "2", "--yes")
    first = cli.data / "flights-0" / f"{0:020}.log"
    data = bytearray(first.read_bytes())
    damaged = data.index(b"02" * 150)
    data[damaged] ^= 1
    first.write_bytes(data)
    said = cli.ok("read", "flights", "--from", str(NOW + 100 * HOUR)).err
    assert said.endswith(": flights-0 starts at offset 2\n")


@pytest.mark.parametrize("order", ["offset", "time"])
def test_a_read_of_lost_offsets_fails(cli: Cli, order: str) -> None:
    cli.ok("create", "flights", "--config", "segment.ms=1")
    for number in range(4):
        cli.append(at(NOW + number))
        cli.clock.advance(1_000)
    (cli.data / "flights-0" / f"{1:020}.log").write_bytes(b"")
    result = cli.run("read", "flights", "--order", order, "-o", "json")
    assert (result.code, "error: flights-0: offset 1: " in result.err) == (1, True)
    assert "`tidelog read TOPIC --offset A..B --data" in result.err
    rest = cli.ok("read", "flights", "--order", order, "--offset", "2..", "-o", "json").objects
    assert [row["offset"] for row in rest] == [2, 3]


def test_a_limit_before_damage_reads_no_further_record(cli: Cli) -> None:
    cli.ok("create", "flights", "--config", "segment.ms=1", "--config", "retention.ms=-1")
    for values in ((b"good",) * WINDOW_LEAST, (b"later",), (b"last",)):
        cli.append(*(at(cli.clock.now_ms(), value=value) for value in values))
        cli.clock.advance(1_000)
    damaged = cli.data / "flights-0" / f"{WINDOW_LEAST:020}.log"
    damaged.write_bytes(damaged.read_bytes().replace(b"later", b"LATER"))
    ordered = ("read", "flights", "--order", "time", "--limit")
    exact = cli.ok(*ordered, f"{WINDOW_LEAST}")
    assert exact.out.count("good") == WINDOW_LEAST
    ended = f"--limit ended the reading after {WINDOW_LEAST} records"
    assert exact.err == f"note: {ended}; more may follow\n"
    assert cli.run(*ordered, f"{WINDOW_LEAST + 1}").code == 1


def test_damage_before_an_empty_range_leaves_only_the_newest_time_out_of_a_note(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "2")
    for value in (b"first", b"last"):
        cli.append(at(NOW, value=value), partition=0)
    log = cli.data / "flights-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes().replace(b"first", b"worst"))
    result = cli.ok("read", "flights", "--offset", "2..")
    assert "0 records; the time of the newest record of flights is unknown: " in result.err
    assert "CRC-32C" in result.err


def test_an_offset_from_the_end_with_a_condition_refers_to_tail(
    hours: Cli, place: tuple[str, ...]
) -> None:
    last = ("read", "flights", "--offset", "-1..", "--key", "k1")
    assert "--tail N counts those that match" in hours.ok(*last, *place).err
    found = ("read", "flights", "--tail", "1", "--key", "k1")
    assert "--tail" not in hours.ok(*found, *place).err


@pytest.mark.parametrize(("clock", "hidden"), [("record", "append time"), ("append", "timestamp")])
def test_a_narrow_table_keeps_the_time_of_its_clock(hours: Cli, clock: str, hidden: str) -> None:
    hours.append(at(NOW + 11 * HOUR + 1, b"k" * 20, b"v" * 60), partition=0)
    narrow = ("read", "flights", "--tail", "1", "--clock", clock)
    hours.variables["COLUMNS"] = "70"
    assert "09:13:20.001  10:13:20  kkk" in hours.ok(*narrow).out
    hours.variables["COLUMNS"] = "60"
    text = hours.ok(*narrow).out
    assert f"not shown: {hidden}; cut: key, value; --wide" in text


def test_an_empty_topic_is_called_empty(flights: Cli) -> None:
    assert flights.ok("read", "flights").err == "0 records; flights is empty\n"
    assert flights.ok("read", "flights", "--tail", "3").err.endswith("flights is empty\n")
    flights.append(at(NOW), at(NOW))
    asked = flights.ok("read", "flights:0", "--offset", "5..").err
    assert asked == "0 records; flights:0 has offsets 0 to 1\n"
    flights.clock.advance(1)
    flights.ok("delete-records", "flights", "--before", "now", "--yes")
    gone = f"hint: `tidelog why flights --data {flights.data}` shows why its records are gone"
    assert flights.ok("read", "flights").err.splitlines()[-1] == gone


def test_tail_with_follow_continues_with_new_records(hours: Cli) -> None:
    appended: list[bool] = []

    def wait(_seconds: float) -> None:
        if appended:
            raise KeyboardInterrupt
        appended.append(True)
        hours.append(at(NOW - 20 * HOUR, b"new"), partition=1)

    hours.wait = wait
    result = hours.ok("read", "flights", "--tail", "2", "--follow", "-o", "json")
    rows = [(row["partition"], row["offset"]) for row in result.objects]
    assert rows == [*BY_RECORD[-2:], (1, 5)]


def test_time_spans_are_those_of_the_records(hours: Cli, place: tuple[str, ...]) -> None:
    is_cluster = place[0] == "--bootstrap"
    log = tidelog.connect(place[1]) if is_cluster else tidelog.open(place[1])
    with log:
        names = [tidelog.TopicPartition("flights", number) for number in range(2)]
        appended = log.time_spans("flights", clock="append")
        assert appended == {
            name: (NOW + number * HOUR, NOW + (8 + number) * HOUR)
            for number, name in enumerate(names)
        }
        created = log.time_spans("flights")
        starts = (None, None) if is_cluster else (NOW - 10 * HOUR, NOW - 7 * HOUR)
        ends = (NOW - HOUR, NOW - 2 * HOUR)
        assert created == dict(zip(names, zip(starts, ends, strict=True), strict=True))


def test_a_table_can_be_filtered_by_conditions(hours: Cli) -> None:
    rows = hours.ok("read", "flights", "--table", "--key", "k1", "-o", "json").objects
    assert {row["key"] for row in rows} == {"k1"}


def test_stamps_are_append_times_of_a_topic_without_others(cli: Cli) -> None:
    stamped = ("message.timestamp.type=LogAppendTime", "tidelog.append.time.enable=false")
    settings = (word for one in (*stamped, "retention.ms=-1") for word in ("--config", one))
    cli.ok("create", "flights", *settings)
    cli.append(at(NOW), at(NOW))
    cli.clock.advance(HOUR)
    cli.append(at(NOW))
    late = ("--clock", "append", "--from", str(NOW + 2 * HOUR))
    said = cli.ok("read", "flights", *late).err
    assert (
        "0 records; the newest record of flights is of 2023-11-14 23:13:20 UTC (append clock)"
        in said
    )
    with tidelog.open(str(cli.data)) as log:
        (span,) = log.time_spans("flights", clock="append").values()
    assert span == (NOW, NOW + HOUR)
