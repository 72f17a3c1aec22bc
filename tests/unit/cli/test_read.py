"""`read` returns exactly the requested records in all formats."""

import io
import sys
from shutil import rmtree

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.worlds.command_line import NOW, Cli, at

from tidelog.directory import Directory
from tidelog.record.builder import build_batch
from tidelog.types import Header, NewRecord

HOUR = 3_600_000


@pytest.fixture
def hours(flights: Cli) -> Cli:
    """Append ten records, an hour apart; create times are out of order, and two are missing."""
    for number, created in enumerate([0, 5, 2, -1, 9, 3, 3, 8, -1, 4]):
        flights.clock.set(NOW + number * HOUR)
        time = -1 if created < 0 else NOW - 10 * HOUR + created * HOUR
        flights.append(at(time, b"k%d" % number, b"v%d" % number))
    return flights


def offsets(cli: Cli, *arguments: str) -> list[object]:
    return [row["offset"] for row in cli.ok("read", "flights", "-o", "json", *arguments).objects]


def test_a_range_of_record_time_contains_exactly_the_records_inside(hours: Cli) -> None:
    bounds = ("--from", str(NOW - 8 * HOUR), "--to", str(NOW - 5 * HOUR))
    result = hours.ok("read", "flights", "-o", "json", *bounds)
    assert [row["offset"] for row in result.objects] == [2, 5, 6, 9]
    assert result.err == "note: 2 records have no timestamp and were left out\n"


def test_a_range_of_append_time_contains_exactly_the_records_inside(hours: Cli) -> None:
    bounds = ("--from", str(NOW + 2 * HOUR), "--to", str(NOW + 5 * HOUR))
    assert offsets(hours, "--clock", "append", *bounds) == [2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--offset", "3..6"), [3, 4, 5]),
        (("--offset", "8.."), [8, 9]),
        (("--offset", "..2"), [0, 1]),
        (("--offset", "..0"), []),
        (("--offset", "0..0"), []),
        (("--offset", "7"), [7]),
        (("--offset", "50.."), []),
        (("--limit", "2"), [0, 1]),
        (("--limit", "0"), []),
        (("--from", f"{NOW - HOUR}"), [4]),
        (("--from", f"{NOW - 8 * HOUR}..{NOW - 7 * HOUR}"), [2]),
        (("--from", "-1h..", "--clock", "append"), [8, 9]),
    ],
)
def test_offsets_limits_and_ranges(
    hours: Cli, arguments: tuple[str, ...], expected: list[int]
) -> None:
    assert offsets(hours, *arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("-n", "3"), "3 records; more may follow"),
        (("-n", "10"), None),
        (("-n", "2", "--offset", "3..5"), None),
        (("-n", "3", "--order", "time"), "3 records; more follow"),
        (
            ("-n", "5", "--order", "time"),
            "5 records; more follow, some with the same time as the last shown record",
        ),
        (("-n", "8", "--order", "time"), None),
        (("--tail", "3"), None),
        (("-n", "3", "-o", "json"), None),
    ],
)
def test_a_note_says_that_the_limit_ended_the_reading(
    flights: Cli, arguments: tuple[str, ...], more: str | None
) -> None:
    for created in (0, 1, 2, 3, 4, 4, 6, 7):
        flights.append(at(NOW + created))
    flights.append(at(-1), at(-1))
    err = flights.ok("read", "flights", *arguments).err
    notes = [line for line in err.splitlines() if "--limit" in line]
    note = f"note: --limit ended the reading after {more}"
    assert notes == ([] if more is None else [note])


@pytest.mark.parametrize(
    ("arguments", "is_hinted"),
    [
        (("-n", "2"), True),
        (("-n", "2", "--order", "offset"), False),
        (("-n", "2", "--order", "time"), False),
        (("-n", "2", "--partition", "0"), False),
        (("-n", "2", "-o", "json"), False),
        (("-n", "9"), False),
    ],
)
def test_a_limit_over_several_partitions_names_the_order_by_time(
    cli: Cli, arguments: tuple[str, ...], is_hinted: bool
) -> None:
    cli.ok("create", "flights", "--partitions", "2")
    for partition in (0, 1):
        cli.append(at(NOW), at(NOW), partition=partition)
    err = cli.ok("read", "flights", *arguments).err
    assert err.count("hint: the records are in order of partition; --order time") == is_hinted


@pytest.mark.parametrize("order", ["offset", "time"])
def test_a_terminal_shows_the_first_records_of_a_whole_topic(cli: Cli, order: str) -> None:
    cli.ok("create", "flights", "--partitions", "3")
    for partition in range(3):
        cli.append(*[at(NOW + number) for number in range(60)], partition=partition)
    words = ("read", "flights", "--order", order)
    assert len(cli.ok(*words).lines) == 181
    cli.on_terminal = True
    result = cli.ok(*words)
    assert sum(line.endswith(" v") for line in result.lines) == 100
    assert result.err.splitlines() == [
        "note: a terminal shows only the first 100 records; more follow, at most 80",
        "hint: `| less` or `> FILE` gets all records; --limit N and --tail N choose how many",
    ]
    selections = [
        *(("--offset", "0.."), ("--from", str(NOW)), ("--to", str(NOW + 999))),
        *(("--contains", "v"), ("-o", "json"), ("--limit", "1000")),
    ]
    for selection in selections:
        result = cli.ok(*words, *selection)
        assert sum(line.endswith((" v", "}")) for line in result.lines) == 180, selection
        assert "not shown" not in result.err


def test_a_terminal_shows_a_short_topic_without_a_note(cli: Cli) -> None:
    cli.ok("create", "flights")
    cli.append(*[at(NOW + number) for number in range(100)])
    cli.on_terminal = True
    result = cli.ok("read", "flights")
    assert sum(line.endswith(" v") for line in result.lines) == 100
    assert result.err == ""


@pytest.mark.parametrize(
    ("order", "note"),
    [
        ("offset", ""),
        ("time", "note: a terminal shows only the first 100 records; more may follow, at most 1\n"),
    ],
)
def test_a_transaction_marker_is_no_record_that_a_terminal_leaves_out(
    cli: Cli, order: str, note: str
) -> None:
    cli.ok("create", "flights")
    with Directory.open(str(cli.data), writable=True, env=cli.env) as directory:
        log = directory.log("flights", 0)
        batch = build_batch(
            [at(NOW + number) for number in range(100)],
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append_batches(batch)
        log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=True)
    cli.on_terminal = True
    result = cli.ok("read", "flights", "--order", order)
    assert sum(line.endswith(" v") for line in result.lines) == 100
    assert result.err.partition("hint: ")[0] == note


def test_a_note_says_once_that_values_are_cut(flights: Cli) -> None:
    flights.append(*(at(NOW, value=b"v" * 100) for _ in range(3)))
    result = flights.ok("read", "flights")
    assert result.err == "note: cut: value; --wide shows it\n"
    assert flights.ok("read", "flights", "--wide").err == ""
    assert flights.ok("read", "flights", "-o", "csv").err == ""


def test_a_partition_without_files_is_no_empty_partition(flights: Cli) -> None:
    flights.ok("partitions", "flights", "--to", "2")
    flights.append(at(NOW), partition=1)
    rmtree(flights.data / "flights-0")
    result = flights.run("read", "flights:0")
    files = f"flights:0 has no files in {flights.data}; partitions with files: 1"
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: {files}\n")


@pytest.mark.parametrize("command", ["read", "why", "describe", "latency", "count --clock append"])
def test_damage_of_a_sidecar_is_printed_once(
    flights: Cli, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    flights.append(*(at(NOW) for _ in range(3)))
    (path,) = (flights.data / "flights-0").glob("*.appendtime")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    verb, *options = command.split()
    times = ("--from", "-1h") if verb == "count" else ()
    err = flights.ok(verb, "flights", *options, *times).err
    assert [line.startswith("note: ") for line in err.splitlines() if path.name in line] == [True]
    assert path.name not in capfd.readouterr().err


def test_arrow_output_has_the_same_records(hours: Cli) -> None:
    bounds = ("--from", str(NOW - 8 * HOUR), "--to", str(NOW - 5 * HOUR))
    result = hours.ok("read", "flights", "-o", "arrow", *bounds)
    table = pa.ipc.open_stream(io.BytesIO(result.raw)).read_all()
    assert table["offset"].to_pylist() == [2, 5, 6, 9]
    assert table["value"].to_pylist() == [b"v2", b"v5", b"v6", b"v9"]
    assert "2 records have no time" in result.err


def test_arrow_output_accepts_a_limit_and_refuses_a_terminal(hours: Cli) -> None:
    result = hours.ok("read", "flights", "-o", "arrow", "--limit", "3")
    assert pa.ipc.open_stream(io.BytesIO(result.raw)).read_all().num_rows == 3
    hours.on_terminal = True
    refused = hours.run("read", "flights", "-o", "arrow")
    assert refused.code == 3
    assert "not for terminals" in refused.err


def test_partitions_follow_each_other_and_one_can_be_chosen(cli: Cli) -> None:
    cli.ok("create", "flights", "-p", "3")
    for partition in (2, 0):
        cli.append(at(NOW, value=b"%d" % partition), partition=partition)
    rows = cli.ok("read", "flights", "-o", "json").objects
    assert [(row["partition"], row["value"]) for row in rows] == [(0, "0"), (2, "2")]
    chosen = cli.ok("read", "flights", "--partition", "2", "-o", "json").objects
    assert [row["partition"] for row in chosen] == [2]
    refused = cli.run("read", "flights", "--partition", "3")
    assert refused.code == 1
    assert "partitions 0 to 2, not 3" in refused.err


def test_the_table_has_each_time_once_and_the_zone_in_the_heading(flights: Cli) -> None:
    flights.append(at(NOW - 1, b"key", b"value"))
    heading, row = flights.ok("read", "flights").lines
    names = "PARTITION OFFSET TIMESTAMP (UTC) APPEND TIME (UTC) KEY VALUE"
    assert heading.split() == names.split()
    times = ["2023-11-14 22:13:19.999", "2023-11-14 22:13:20"]
    assert row.split() == ["0", "0", *" ".join(times).split(), "key", "value"]


def test_a_table_cuts_long_values_unless_wide_and_escapes_control_characters(flights: Cli) -> None:
    flights.append(at(NOW, b"\x1b[2J", b"x" * 100))
    row = flights.ok("read", "flights").lines[1]
    assert "\\x1b[2J" in row
    assert "\x1b" not in row
    assert row.endswith("x…")
    assert "x" * 100 in flights.ok("read", "flights", "--wide").out


def headed(*headers: tuple[str, bytes | None]) -> NewRecord:
    return NewRecord(
        timestamp=NOW, key=b"k", value=b"v" * 9, headers=tuple(Header(*one) for one in headers)
    )


def test_a_table_shows_headers_if_a_record_has_some(flights: Cli) -> None:
    flights.append(at(NOW))
    assert "HEADERS" not in flights.ok("read", "flights").out
    assert flights.ok("read", "flights", "--wide").lines[0].split()[-1] == "HEADERS"
    flights.append(headed(("by", b"ten"), ("by", None), ("", b"\x1b[2J"), ("x\n", b"")))
    heading, first, second = flights.ok("read", "flights").lines
    assert heading.split()[-2:] == ["VALUE", "HEADERS"]
    assert first.split()[-2:] == ["v", "-"]
    assert second.endswith("  by=ten, by=(null), =\\x1b[2J, x\\n=(empty)")
    assert flights.ok("read", "flights", "--table").lines[1].split()[-1] == "x\\n=(empty)"


def test_a_table_shows_header_values_as_the_chosen_type(flights: Cli) -> None:
    flights.append(headed(("n", (7).to_bytes(4, "big")), ("t", b"text")))
    row = flights.ok("read", "flights", "--headers-as", "int32").lines[1]
    assert row.endswith("  n=7, t=1952807028")
    flights.append(headed(("n", b"\xff")))
    assert flights.ok("read", "flights").lines[2].endswith('  n={"base64": "/w=="}')


def test_a_table_cuts_long_headers_and_says_so(flights: Cli) -> None:
    flights.append(headed(("by", b"x" * 100)))
    result = flights.ok("read", "flights")
    assert result.lines[1].endswith("xx…")
    assert result.err == "note: cut: headers; --wide shows it\n"
    assert "x" * 100 in flights.ok("read", "flights", "--wide").out


def test_a_narrow_table_names_the_headers_that_it_does_not_show(flights: Cli) -> None:
    flights.append(*(headed(("by", b"ten")) for _ in range(2)))
    flights.variables = {"COLUMNS": "50"}
    lines = flights.ok("read", "flights").lines
    assert "HEADERS" not in lines[0] + lines[1]
    assert lines[-1] == "not shown: append time, headers; --wide shows them"
    assert flights.ok("read", "flights", "--wide").lines[1].endswith("  by=ten")


def test_a_table_that_follows_adds_the_headers_with_the_first_record_that_has_some(
    flights: Cli,
) -> None:
    flights.append(at(NOW))

    more = iter([headed(("by", b"ten"))])

    def wait(_seconds: float) -> None:
        if (record := next(more, None)) is None:
            raise KeyboardInterrupt
        flights.append(record)

    flights.wait = wait
    lines = flights.ok("read", "flights", "--follow").lines
    assert [line.split()[-1] for line in lines] == ["VALUE", "v", "HEADERS", "by=ten"]


def test_csv_has_a_heading_and_empty_cells_for_null(flights: Cli) -> None:
    flights.append(NewRecord(value=None, timestamp=-1))
    heading, row = flights.ok("read", "flights", "-o", "csv").lines
    names = "topic,partition,offset,timestamp,timestamp_ms,append_time,append_time_ms,"
    assert heading.startswith(names)
    assert row.startswith("flights,0,0,,,2023-11-14T22:13:20.000Z,1700000000000,,,,")


@pytest.mark.parametrize(
    ("key_type", "shown"),
    [
        ("int64", 7),
        ("bytes", {"base64": "AAAAAAAAAAc="}),
        ("auto", "\0" * 7 + "\x07"),
    ],
)
def test_keys_by_the_name_of_their_type(flights: Cli, key_type: str, shown: object) -> None:
    flights.append(at(NOW, (7).to_bytes(8, "big")))
    (row,) = flights.ok("read", "flights", "-o", "json", "--key-type", key_type).objects
    assert row["key"] == shown


@pytest.mark.parametrize("output", ["json", "csv"])
@pytest.mark.parametrize(
    ("part", "encoding", "data"),
    [
        ("key", "auto", b"\xff\x00"),
        ("value", "auto", b"\xff\x00"),
        ("headers", "auto", b"\xff\x00"),
        ("key", "int32", b"12345678"),
        ("value", "double", bytes.fromhex("7ff8000000000001")),
        ("value", "uuid", b"123E4567-e89b-42d3-a456-426614174000"),
        ("value", "json", b"null"),
        ("value", "json", b"NaN"),
    ],
)
def test_machine_readable_rows_refuse_bytes_that_the_encoding_cannot_represent(
    flights: Cli, part: str, encoding: str, data: bytes, output: str
) -> None:
    headers = (Header("h", data),) if part == "headers" else ()
    parts = {part: data} if part != "headers" else {}
    flights.append(at(NOW, None, None), NewRecord(timestamp=NOW, headers=headers, **parts))
    result = flights.run("read", "flights", "-o", output, f"--{part}-as", encoding)
    assert result.code == 1
    assert f"flights-0 offset 1: {part}: " in result.err
    assert f"--{part}-as bytes writes the {part} of every record as base64" in result.err


def test_a_table_for_people_shows_bytes_of_another_form_as_base64(flights: Cli) -> None:
    flights.append(at(NOW, b"\xff\x00", b"v"))
    row = flights.ok("read", "flights").lines[1]
    assert '{"base64": "/wA="}' in row


def test_values_that_are_json(flights: Cli) -> None:
    flights.append(at(NOW, None, b'{"a": [1]}'))
    (row,) = flights.ok("read", "flights", "-o", "json", "--value-type", "json").objects
    assert row["value"] == {"a": [1]}


def test_numbers_of_json_keep_all_digits_and_any_exponent(flights: Cli) -> None:
    flights.append(at(NOW, None, b'{"a": 1e999, "b": 0.12345678901234567890}'))
    read = flights.ok("read", "flights", "-o", "json", "--value-as", "json")
    assert '"value": {"a": 1e999, "b": 0.12345678901234567890}' in read.out


def test_times_are_printed_in_the_requested_zone(flights: Cli) -> None:
    flights.append(at(NOW))
    (row,) = flights.ok("read", "flights", "-o", "json", "--zone", "Asia/Tokyo").objects
    assert (row["timestamp"], row["timestamp_ms"]) == ("2023-11-15T07:13:20.000+09:00", NOW)


def test_isolation_leaves_out_an_open_transaction(flights: Cli) -> None:
    with Directory.open(str(flights.data), writable=True, env=flights.env) as directory:
        batch = build_batch(
            [at(NOW)], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
        )
        directory.log("flights", 0).append_batches(batch)
    assert offsets(flights) == [0]
    assert offsets(flights, "--isolation", "read_committed") == []
    for bounds in ("0..1", "..1", "0..9"):
        for order in ((), ("--order", "time")):
            read = ("--offset", bounds, *order)
            assert offsets(flights, *read, "--isolation", "read_committed") == []
            assert offsets(flights, *read) == [0]
    assert offsets(flights, "--tail", "1", "--isolation", "read_committed") == []
    assert offsets(flights, "--tail", "1") == [0]
    latest = ("offsets", "flights", "--at", "latest", "-o", "json")
    assert flights.ok(*latest).objects[0]["offset"] == 1
    assert flights.ok(*latest, "--isolation", "read_committed").objects[0]["offset"] == 0


class Appender:
    """Appends a value in each of the first waits of `read --follow`, then simulates Ctrl-C."""

    def __init__(self, cli: Cli, values: list[bytes]) -> None:
        self._cli = cli
        self._values = iter(values)
        self.waited: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        value = next(self._values, None)
        if value is None:
            raise KeyboardInterrupt
        self._cli.append(at(NOW, None, value))


def test_follow_shows_new_records_and_succeeds_on_ctrl_c(flights: Cli) -> None:
    flights.append(at(NOW, None, b"old"))
    flights.wait = appender = Appender(flights, [b"new", b"newer"])
    rows = flights.ok("read", "flights", "--follow", "-o", "json").objects
    assert [(row["offset"], row["value"]) for row in rows] == [(0, "old"), (1, "new"), (2, "newer")]
    assert len(appender.waited) == 3
    assert min(appender.waited) > 0.05


def test_follow_ends_at_its_limit(flights: Cli) -> None:
    flights.wait = Appender(flights, [b"a", b"b", b"c"])
    rows = flights.ok("read", "flights", "--follow", "--limit", "2", "-o", "json").objects
    assert [row["value"] for row in rows] == ["a", "b"]


def test_follow_ends_at_the_end_of_its_offsets(flights: Cli) -> None:
    flights.append(at(NOW, None, b"old"))
    flights.wait = appender = Appender(flights, [b"a", b"b", b"c"])
    rows = flights.ok("read", "flights", "--follow", "--offset", "1..3", "-o", "json").objects
    assert [(row["offset"], row["value"]) for row in rows] == [(1, "a"), (2, "b")]
    assert len(appender.waited) == 2
    rows = flights.ok("read", "flights", "--follow", "--offset", "..1", "-o", "json").objects
    assert [row["value"] for row in rows] == ["old"]
    assert len(appender.waited) == 2


def test_follow_accepts_a_range_without_an_end(flights: Cli) -> None:
    flights.wait = Appender(flights, [b"a"])
    rows = flights.ok("read", "flights", "--follow", "--from", "-1h..", "-o", "json").objects
    assert [row["value"] for row in rows] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--follow", "--to", "now"), "leave --to and --during out"),
        (("--follow", "--from", "-2h..-1h"), "--from -2h..-1h: --follow has no end; leave the end"),
        (("--follow", "--from", "..now"), "--from ..now: --follow has no end; leave the end"),
        (("--follow", "-o", "arrow"), "table, json and csv"),
        (("--offset", "a..b"), "write A..B"),
        (("--offset", "5..3"), "the end is before the start"),
        (("--from", "2013-02-08 12:00"), "the time zone is missing"),
        (("--from", "-1h..now", "--to", "now"), "is a range already"),
        (("--from", "now", "--to", "-1h"), "empty range"),
        (("--limit", "-1"), "--limit"),
    ],
)
def test_invalid_arguments_are_refused(
    flights: Cli, arguments: tuple[str, ...], message: str
) -> None:
    flights.wait = Appender(flights, [])
    result = flights.run("read", "flights", *arguments)
    assert result.code == 3
    assert message in result.err
    assert result.err.count("error: ") == 1


def test_a_damaged_batch_is_named_and_the_records_before_it_are_shown(cli: Cli) -> None:
    cli.ok("create", "flights", "-c", "internal.segment.bytes=150")
    for number in range(3):
        cli.append(at(NOW, value=b"%d" % number * 40))
    _, second, _ = sorted(cli.data.glob("flights-0/*.log"))
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    result = cli.run("read", "flights", "-o", "json")
    assert [row["offset"] for row in result.objects] == [0]
    assert result.code == 1
    assert result.err.startswith(f"error: {second}, position 0, offset 1: CRC-32C is ")
    doctor = f"`tidelog doctor flights:0 --data {cli.data}`"
    assert result.err.endswith(f"\nhint: {doctor} lists the damage and what to do\n")


@pytest.mark.parametrize("kind", ["json", "arrow"])
def test_a_batch_whose_damaged_header_ends_before_the_range_hides_no_records(
    cli: Cli, kind: str
) -> None:
    cli.ok("create", "flights")
    cli.append(at(NOW))
    cli.append(*(at(NOW + number) for number in range(1, 5)))
    (file,) = cli.data.glob("flights-0/*.log")
    data = bytearray(file.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    last_offset_delta = slice(second + 23, second + 27)
    assert int.from_bytes(data[last_offset_delta], "big") == 3
    data[last_offset_delta] = bytes(4)
    file.write_bytes(data)
    result = cli.run("read", "flights", "--offset", "3..", "-o", kind)
    assert (result.code, result.err.count("error: ")) == (1, 1)


class TestOneDamagedPartition:
    @pytest.fixture
    def damaged(self, cli: Cli) -> Cli:
        """Append three records to each of three partitions; damage partition 1's second record."""
        cli.ok("create", "flights", "-p", "3", "-c", "internal.segment.bytes=150")
        for number in range(3):
            for partition in range(3):
                value = b'{"n": %d, "fill": "%s"}' % (number, b"x" * 40)
                cli.append(at(NOW + 10 * number + partition, value=value), partition=partition)
        _, second, _ = sorted(cli.data.glob("flights-1/*.log"))
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
        return cli

    @pytest.mark.parametrize("conditions", [(), ("--match", "fill=" + "x" * 40), ("-n", "50")])
    def test_the_others_are_read(self, damaged: Cli, conditions: tuple[str, ...]) -> None:
        result = damaged.run("read", "flights", "-o", "json", *conditions)
        rows = [(row["partition"], row["offset"]) for row in result.objects]
        assert rows == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2)]
        assert result.code == 1
        assert result.err.count("error: ") == 1
        assert "offset 1: CRC-32C is" in result.err
        assert "note: flights-1: records from the damage on were left out\n" in result.err

    @pytest.mark.parametrize("order", ["offset", "time"])
    def test_a_terminal_states_that_records_are_not_shown(
        self, damaged: Cli, order: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules["tidelog.cli.read"], "TERMINAL_RECORDS", 5)
        damaged.on_terminal = True
        result = damaged.run("read", "flights", "--order", order)
        assert result.code == 1
        assert "offset 1: CRC-32C is" in result.err
        note = "note: a terminal shows only the first 5 records; more follow, at most "
        assert note in result.err

    def test_columns_have_the_others(self, damaged: Cli) -> None:
        result = damaged.run("read", "flights", "-o", "parquet")
        table = parquet.read_table(io.BytesIO(result.raw))
        assert table["partition"].to_pylist() == [0, 0, 0, 1, 2, 2, 2]
        assert result.code == 1

    @pytest.mark.parametrize("kind", ["json", "csv", "arrow", "parquet"])
    def test_a_limit_that_ends_before_the_damage_is_complete(self, damaged: Cli, kind: str) -> None:
        damaged.ok("read", "flights", "-o", kind, "-n", "4")

    @pytest.mark.parametrize("conditions", [(), ("--contains", "xxx")])
    def test_the_order_of_time_has_the_others(
        self, damaged: Cli, conditions: tuple[str, ...]
    ) -> None:
        ordered = damaged.run("read", "flights", "-o", "json", "--order", "time", *conditions)
        places = [(row["partition"], row["offset"]) for row in ordered.objects]
        assert places == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (2, 2)]
        assert (ordered.code, ordered.err.count("error: ")) == (1, 1)

    def test_offsets_from_the_end_are_read_in_the_other_partitions(self, damaged: Cli) -> None:
        result = damaged.run("read", "flights", "-o", "json", "--offset", "-1..")
        assert [row["partition"] for row in result.objects if row["offset"] != 1] == [0, 2]
        assert result.code == 1

    def test_a_range_that_ends_before_the_damage_is_complete(self, damaged: Cli) -> None:
        result = damaged.ok("read", "flights", "-o", "json", "--offset", "..1")
        assert [row["partition"] for row in result.objects] == [0, 1, 2]

    def test_a_count_over_a_damaged_batch_is_an_error(self, damaged: Cli) -> None:
        for file in damaged.data.glob("*/*.zones"):
            file.unlink()
        result = damaged.run("count", "flights", "--from", str(NOW + 1))
        assert (result.code, result.out) == (1, "")
