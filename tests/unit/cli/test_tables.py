"""`read --table`, `diff`, and serializers of keys and values by name."""

import io
import struct
from shutil import rmtree

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.worlds.command_line import NOW, Cli, at

import tidelog
from tidelog.cli.surroundings import ExitCode
from tidelog.errors import MissingFile, StorageFailure
from tidelog.record.partitioner import partition_of
from tidelog.scan.source import DirectoryRecords
from tidelog.scan.table_rules import Doubt, by_reason
from tidelog.storage import files, log_files, text_files
from tidelog.types import TopicPartition


def append_two_keys(cli: Cli) -> None:
    """Append two keys, overwrite one, delete the other, and append a record without a key.

    Create times are 1 ms apart, from NOW - 100 ms on.
    """
    for number, (key, value) in enumerate(
        [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (None, b"4")]
    ):
        cli.append(at(NOW - 100 + number, key, value))
        cli.clock.advance(10)


def test_a_table_shows_the_record_of_each_key(flights: Cli) -> None:
    append_two_keys(flights)
    rows = flights.ok("read", "flights", "--table", "-o", "json").objects
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [("a", "3", 2)]


def test_a_table_as_of_a_time_has_the_records_of_that_time(flights: Cli) -> None:
    append_two_keys(flights)
    result = flights.ok("read", "flights", "--table", "--at", str(NOW - 99), "-o", "json")
    assert [(row["key"], row["value"]) for row in result.objects] == [("a", "1"), ("b", "2")]
    by_append = ("--clock", "append", "--at", str(NOW + 20))
    rows = flights.ok("read", "flights", "--table", *by_append, "-o", "json").objects
    assert [(row["key"], row["offset"]) for row in rows] == [("b", 1), ("a", 2)]


def test_records_without_a_key_are_reported_as_left_out(flights: Cli) -> None:
    append_two_keys(flights)
    assert "1 record has no key and was left out" in flights.ok("read", "flights", "--table").err


def test_an_empty_table_is_reported(flights: Cli) -> None:
    read = ("read", "flights", "--table")
    assert flights.ok(*read).err == "0 keys; the table of flights is empty\n"
    append_two_keys(flights)
    as_of = "as of 2023-11-14 22:13:19.800 (UTC, record clock)"
    early = flights.ok(*read, "--at", str(NOW - 200), "-o", "json").err
    assert f"0 keys; the table of flights {as_of} is empty\n" in early
    none = flights.ok(*read, "--contains", "x").err
    assert "0 keys; no record in the table of flights meets the conditions\n" in none
    assert "0 keys" not in flights.ok(*read).err
    assert "0 keys" not in flights.ok(*read, "--limit", "0").err


def test_a_limit_ends_the_table(flights: Cli) -> None:
    append_two_keys(flights)
    options = ("--table", "--at", str(NOW - 99), "--limit", "1")
    assert len(flights.ok("read", "flights", *options, "-o", "json").objects) == 1


def test_a_terminal_shows_the_first_keys_of_a_table(flights: Cli) -> None:
    flights.append(*[at(NOW, b"%d" % number) for number in range(100)], at(NOW))
    flights.on_terminal = True
    read = ("read", "flights", "--table")
    assert flights.ok(*read).err == "note: 1 record has no key and was left out\n"
    flights.append(*[at(NOW, b"%d" % number) for number in range(100, 120)])
    result = flights.ok(*read)
    assert sum(line.endswith(" v") for line in result.lines) == 100
    assert result.err.splitlines() == [
        "note: a terminal shows only the first 100 keys; more follow",
        "hint: `| less` or `> FILE` gets all keys; --limit N chooses how many",
    ]
    for selection in (("-o", "json"), ("--limit", "500"), ("--contains", "v")):
        result = flights.ok(*read, *selection)
        assert sum(line.endswith((" v", "}")) for line in result.lines) == 120, selection
        assert "a terminal shows" not in result.err


def test_a_table_can_be_written_as_arrow(flights: Cli) -> None:
    append_two_keys(flights)
    raw = flights.ok("read", "flights", "--table", "-o", "arrow").raw
    assert pa.ipc.open_stream(raw).read_all()["offset"].to_pylist() == [2]


def test_a_diff_names_added_changed_and_deleted_keys(flights: Cli) -> None:
    append_two_keys(flights)
    result = flights.ok("diff", "flights", "--from", str(NOW - 99), "-o", "json")
    found = {row["key"]: (row["change"], row["before"], row["after"]) for row in result.objects}
    assert found == {"a": ("changed", "1", "3"), "b": ("deleted", "2", None)}
    assert result.err.startswith(
        "2 keys of flights: 0 added, 1 changed, 1 deleted; from the table as of 2023-11-14"
        " 22:13:19.901 to all records (UTC, record clock, times inclusive)\n"
    )
    span = ("--from", str(NOW - 200), "--to", str(NOW - 99))
    rows = flights.ok("diff", "flights", *span, "-o", "json").objects
    assert [(row["key"], row["change"]) for row in rows] == [("a", "added"), ("b", "added")]


def test_a_limited_diff_counts_all_changed_keys(flights: Cli) -> None:
    append_two_keys(flights)
    diff = ("diff", "flights", "--from", str(NOW - 99))
    whole = flights.ok(*diff, "-o", "json")
    assert len(whole.objects) == 2
    limited = flights.ok(*diff, "-n", "1", "-o", "json")
    assert limited.objects == whole.objects[:1]
    assert limited.err == whole.err
    summary = flights.ok(*diff, "--limit", "0")
    assert summary.lines == whole.err.splitlines()[:1]
    assert "hint" not in summary.err
    raw = flights.ok(*diff, "-n", "1", "-o", "arrow").raw
    assert pa.ipc.open_stream(raw).read_all().num_rows == 1


def test_a_diff_of_one_key_shows_only_this_key(flights: Cli) -> None:
    append_two_keys(flights)
    start = ("--from", str(NOW - 99))
    result = flights.ok("diff", "flights", *start, "--key", "b", "-o", "json")
    assert [(row["key"], row["change"]) for row in result.objects] == [("b", "deleted")]
    assert result.err.startswith("1 key of flights: 0 added, 0 changed, 1 deleted;")
    raw = flights.ok(
        "diff", "flights", *start, "--key", "YQ==", "--key-as", "bytes", "-o", "arrow"
    ).raw
    assert pa.ipc.open_stream(raw).read_all()["key"].to_pylist() == [b"a"]
    nothing = flights.ok("diff", "flights", *start, "--key", "c").err
    assert nothing.startswith(
        "0 differences: key c of flights has the same value in both tables, or is in neither;"
    )


def test_a_diff_counts_the_records_without_a_key_that_it_does_not_compare(flights: Cli) -> None:
    append_two_keys(flights)
    note = "note: 1 record up to the later time has no key and is not compared\n"
    assert note in flights.ok("diff", "flights", "--from", str(NOW - 99)).err
    assert "no key" not in flights.ok("diff", "flights", "--from", str(NOW - 99), "--key", "a").err


def test_a_diff_is_not_called_exact_if_records_have_no_time(flights: Cli) -> None:
    append_two_keys(flights)
    (flights.data / "flights-0" / f"{0:020d}.appendtime").unlink()
    end = "; from the table as of"
    lacking = "records have no known append time"
    for key, of in (((), "of keys"), (("--key", "a"), "of key a")):
        span = ("--from", "2001Z", "--clock", "append", "--inexact", "mark")
        found = flights.ok("diff", "flights", *span, "--to", "2002Z", *key).err
        assert found.startswith(f"0 known differences {of} of flights, but {lacking}{end}")
        changed = flights.ok("diff", "flights", *span, *key).err
        assert f"; not exact, because {lacking}{end}" in changed


def test_a_value_of_a_diff_that_is_no_text_is_named_with_its_place(flights: Cli) -> None:
    flights.append(at(NOW, b"k", b"v"))
    flights.append(at(NOW + 9, b"k", b"\xff"))
    diff = ("diff", "flights", "--from", str(NOW), "-o", "json")
    result = flights.run(*diff)
    assert result.code == 1
    assert "error: flights-0 offset 1: value: 1 byte can't be read as string" in result.err
    assert "--value-as bytes writes the value of every record as base64" in result.err
    assert '"/w=="' in flights.ok(*diff, "--value-as", "bytes").out


def test_a_diff_shows_where_two_long_values_differ(flights: Cli) -> None:
    start = "[" + '"same",1,' * 30
    values = [start + f'"delay",{delay},"origin","JFK"]' for delay in (12, 15)]
    flights.append(*(at(NOW + n, b"a", value.encode()) for n, value in enumerate(values)))
    table = flights.ok("diff", "flights", "--from", str(NOW)).out
    assert all(f'…,"delay",{delay}' in table for delay in (12, 15))
    hint = "hint: `--key KEY` shows the changed fields of one key; `--wide` shows whole values\n"
    assert flights.ok("diff", "flights", "--from", str(NOW)).err.endswith(hint)
    for more in (("--key", "a"), ("--wide",), ("-o", "json")):
        assert hint not in flights.ok("diff", "flights", "--from", str(NOW), *more).err
    wide = flights.ok("diff", "flights", "--from", str(NOW), "--wide").out
    assert all(value in wide for value in values)
    (row,) = flights.ok("diff", "flights", "--from", str(NOW), "-o", "json").objects
    assert [row["before"], row["after"]] == values


@pytest.mark.parametrize(("equal", "is_cut"), [(15, False), (20, False), (21, True)])
def test_a_diff_cuts_only_a_long_equal_start(flights: Cli, equal: int, is_cut: bool) -> None:
    values = ["x" * equal + end for end in ("MIA", "IAH")]
    flights.append(*(at(NOW + n, b"a", value.encode()) for n, value in enumerate(values)))
    table = flights.ok("diff", "flights", "--from", str(NOW)).out
    assert all((value in table) != is_cut for value in values)


def test_a_diff_shows_the_changed_fields_of_two_json_objects(flights: Cli) -> None:
    long = "x" * 40
    changes = {
        b"a": (b'{"f": 7, "delay": 118, "dest": "MIA"}', b'{"f":7,"delay":-1,"dest":"IAH"}'),
        b"b": (b'{"at": {"gate": "A1", "n": 1}, "old": 0}', b'{"at": {"gate": "B7", "n": 1}}'),
        b"c": (b'{"t": "%sMIA"}' % long.encode(), b'{"t": "%sIAH"}' % long.encode()),
        b"d": (b'{"t": true}', b'{"t": 1}'),
        b"e": (b'{"t": 1}', b"[1]"),
    }
    for n in range(2):
        flights.append(*(at(NOW + n, key, values[n]) for key, values in changes.items()))
    diff = ("diff", "flights", "--from", str(NOW))
    rows = [" ".join(line.split()[3:-6]) for line in flights.ok(*diff).lines[1:]]
    assert rows == [
        "delay 118, dest MIA delay -1, dest IAH",
        "at.gate A1, old 0 at.gate B7, old (missing)",
        "t …xxxxxxxxxxMIA t …xxxxxxxxxxIAH",
        '{"t": true} {"t": 1}',
        '{"t": 1} [1]',
    ]
    assert '{"f":7,"delay":-1,"dest":"IAH"}' in flights.ok(*diff, "--wide").out
    flights.variables = {"COLUMNS": "60"}
    assert flights.ok(*diff).lines[-1] == "cut: before, after; --wide shows them"


def test_a_diff_tells_different_fields_with_equal_texts_apart(flights: Cli) -> None:
    changes = {
        b"a": (b'{"n": "5", "same": 1}', b'{"n": 5, "same": 1}'),
        b"b": (b'{"n": "(missing)", "o": 1}', b'{"o": 2}'),
        b"c": (b'{"n": {"x": 1, "y": [{"p": 1}]}, "o": 1}', b'{"n":{"y":[{"p":1}],"x":1},"o":2}'),
        b"d": (b"\xff\x00", b"\xff\x01"),
        b"e": (b'{"n":0.10000000000000000555,"o":1}', b'{"n":0.1000000000000000055,"o":2}'),
        b"f": (b'{"n":{"m":1,"m":2},"o":1}', b'{"n":{"m":2},"o":2}'),
        b"g": (b'{"n":1e400,"n":1}', b'{"n":2}'),
    }
    for n in range(2):
        flights.append(*(at(NOW + n, key, values[n]) for key, values in changes.items()))
    diff = ("diff", "flights", "--from", str(NOW))
    rows = [" ".join(line.split()[3:-6]) for line in flights.ok(*diff).lines[1:]]
    assert rows == [
        'n "5" n 5',
        'n "(missing)", o 1 n (missing), o 2',
        "o 1 o 2",
        '{"base64": "/wA="} {"base64": "/wE="}',
        "n 0.10000000000000000555, o 1 n 0.1000000000000000055, o 2",
        'n {"m": 1, "m": 2}, o 1 n {"m": 2}, o 2',
        '{"n":1e400,"n":1} {"n":2}',
    ]
    lines = flights.ok(*diff, "--key", "a").lines
    assert lines[-1].split() == ["0", "value.n", '"5"', "5"]
    assert [line.split()[1] for line in flights.ok(*diff, "--key", "c").lines[3:]] == ["value.o"]


def test_a_diff_shows_objects_that_are_nested_as_deeply_as_python_can_parse(flights: Cli) -> None:
    depths = range(900, 1000, 5)
    for n in range(2):
        values = (b'{"a":' * depth + b"%d" % n + b"}" * depth for depth in depths)
        keyed = zip(depths, values, strict=True)
        flights.append(*(at(NOW + n, b"%d" % depth, value) for depth, value in keyed))
    diff = ("diff", "flights", "--from", str(NOW))
    assert len(flights.ok(*diff).lines) == len(depths) + 1
    for depth in depths:
        assert flights.ok(*diff, "--key", str(depth)).lines[-1].split()[1].startswith("value")


def test_a_diff_tells_values_with_equal_texts_apart(flights: Cli) -> None:
    flights.append(at(NOW, b"a", b'"5"'))
    flights.append(at(NOW + 1, b"a", b"5"))
    lines = flights.ok("diff", "flights", "--from", str(NOW), "--value-as", "json").lines
    assert lines[1].split()[3:5] == ['"5"', "5"]


def test_a_diff_of_one_key_shows_only_changed_fields(flights: Cli) -> None:
    one = b'{"tail": "N1", "seats": 95, "at": {"gate": "A1", "field": "EWR"}, "old": 0}'
    other = b'{"tail": "N1", "seats": 110, "at": {"gate": "B7", "field": "EWR"}, "new": null}'
    flights.append(at(NOW - 99, b"a", one), at(NOW - 98, b"b", b"1"))
    flights.append(at(NOW - 50, b"a", other), at(NOW - 49, b"b", b"2"))
    diff = ("diff", "flights", "--from", str(NOW - 98), "--key")
    lines = flights.ok(*diff, "a").lines
    assert [" ".join(line.split()) for line in lines] == [
        "PARTITION FIELD BEFORE AFTER",
        "0 offset 0 2",
        "0 timestamp (UTC) 2023-11-14 22:13:19.901 2023-11-14 22:13:19.950",
        "0 value.seats 95 110",
        "0 value.at.gate A1 B7",
        "0 value.old 0 (missing)",
        "0 value.new (missing) (null)",
    ]
    assert flights.ok(*diff, "b").lines[-1].split() == ["0", "value", "1", "2"]
    assert flights.ok(*diff, "a", "--wide").lines[0].split()[:2] == ["TOPIC", "CHANGE"]
    added = flights.ok("diff", "flights", "--from", str(NOW - 200), "--key", "b").lines
    assert added[1].split() == ["0", "offset", "-", "3"]
    assert added[-1].split() == ["0", "value", "(null)", "2"]


def test_a_diff_of_one_key_distinguishes_true_and_1_and_shows_deep_objects(flights: Cli) -> None:
    depth = 500
    one = b'{"a": true, "n": ' + b'{"n": ' * depth + b"1" + b"}" * depth + b"}"
    other = one.replace(b"true", b"1").replace(b"1}", b"2}")
    flights.append(at(NOW - 99, b"a", one), at(NOW - 50, b"a", other))
    result = flights.ok("diff", "flights", "--from", str(NOW - 98), "--key", "a")
    changed, deep = (line.split() for line in result.lines[3:])
    assert changed == ["0", "value.a", "true", "1"]
    assert deep[1].startswith("value.n.n.n.")


def test_an_empty_diff_is_one_sentence(flights: Cli) -> None:
    append_two_keys(flights)
    result = flights.ok("diff", "flights", "--from", str(NOW))
    assert result.out == ""
    assert result.err.startswith(
        "0 differences: no key of flights was added, changed or deleted; from the table as of"
    )
    csv = flights.ok("diff", "flights", "--from", str(NOW), "-o", "csv")
    assert [line.partition(",")[0] for line in csv.lines] == ["topic"]


def test_a_diff_during_a_range_shows_the_changes_of_its_records(flights: Cli) -> None:
    append_two_keys(flights)
    ranges = {
        f"{NOW - 100}..{NOW - 98}": [("a", "added", "1"), ("b", "added", "2")],
        f"{NOW - 99}..{NOW - 98}": [("b", "added", "2")],
        f"{NOW - 98}..": [("a", "changed", "3"), ("b", "deleted", None)],
        "2023-11-14Z": [("a", "added", "3")],
    }
    for during, changes in ranges.items():
        result = flights.ok("diff", "flights", "--during", during, "-o", "json")
        rows = [(row["key"], row["change"], row["after"]) for row in result.objects]
        assert rows == changes
    in_tokyo = ("--during", "2023-11-15", "--zone", "Asia/Tokyo", "-o", "csv")
    assert flights.ok("diff", "flights", *in_tokyo).err.startswith(
        "1 key of flights: 1 added, 0 changed, 0 deleted; from the table before 2023-11-15 00:00:00"
        " to the table before 2023-11-16 00:00:00 (Asia/Tokyo, record clock, times exclusive)\n"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "give the earlier time with --from, or both times with --during"),
        (("--during", "2013Z", "--from", "-1d"), "leave --from and --to out"),
        (("--during", "2013Z", "--to", "now"), "leave --from and --to out"),
        (("--during", "..2013-02-08Z"), "has no start; write START..END"),
        (("--during", "2013"), "the time zone is missing"),
    ],
)
def test_a_diff_needs_one_start(flights: Cli, options: tuple[str, ...], reason: str) -> None:
    result = flights.run("diff", "flights", *options)
    assert (result.code, reason in result.err) == (ExitCode.USAGE, True)


def test_a_diff_the_wrong_way_round_is_refused(flights: Cli) -> None:
    append_two_keys(flights)
    span = ("--from", str(NOW), "--to", str(NOW - 99))
    result = flights.run("diff", "flights", *span)
    assert result.code == ExitCode.USAGE
    assert "the second time must not be before the first" in result.err
    zoned = flights.run("diff", "flights", *span, "--zone", "America/New_York").err
    assert "a diff from 2023-11-14 17:13:20 America/New_York to 2023-11-14 17:13:19.901" in zoned


def delete_starts(cli: Cli, starts: dict[int, int]) -> None:
    """Set the log starts of partitions of `flights`, as retention does."""
    log_starts = {TopicPartition("flights", number): start for number, start in starts.items()}
    checkpoint = text_files.encode_offset_checkpoint(log_starts)
    (cli.data / files.LOG_START_CHECKPOINT_FILE).write_bytes(checkpoint)


def test_a_past_that_was_deleted_is_refused_or_marked(flights: Cli) -> None:
    append_two_keys(flights)
    delete_starts(flights, {0: 1})
    past = ("read", "flights", "--table", "--at", str(NOW - 99))
    refused = flights.run(*past)
    assert refused.code == 1
    assert "records below offset 1 were deleted" in refused.err
    assert "the table as of 2023-11-14 22:13:19.901 UTC exactly" in refused.err
    zoned = flights.run(*past[:-1], "2023-11-14 17:13:19.901 America/New_York").err
    assert "the table as of 2023-11-14 17:13:19.901 America/New_York exactly" in zoned
    marked = flights.ok(*past, "--inexact", "mark", "-o", "json")
    assert [row["key"] for row in marked.objects] == ["b"]
    assert "not exact: flights-0: records below offset 1" in marked.err
    assert flights.ok("read", "flights", "--table", "-o", "json").err.count("not exact") == 0
    marked_diff = ("diff", "flights", "--from", str(NOW - 99), "--inexact", "mark")
    assert "1 deleted; not exact, because records are missing;" in flights.ok(*marked_diff).err
    nothing = flights.ok(*marked_diff, "--key", "c").err
    assert nothing.startswith("0 known differences of key c of flights, but records are missing;")


@pytest.fixture
def spread(cli: Cli) -> Cli:
    """Append ten keys twice to five partitions; delete the first record of all but partition 3."""
    cli.ok("create", "flights", "--partitions", "5", "--config", "retention.ms=-1")
    for turn in range(2):
        for number in range(10):
            key = b"k%d" % number
            cli.append(at(NOW + turn, key, b"%d" % turn), partition=partition_of(key, 5))
    delete_starts(cli, {0: 1, 1: 1, 2: 1, 4: 1})
    return cli


DELETED = "were deleted (retention, DeleteRecords), possibly all"


def test_a_refusal_groups_partitions_by_reason(spread: Cli) -> None:
    past = ("diff", "flights", "--from", str(NOW))
    refused = spread.run(*past)
    expected = f"exactly: flights, partitions 0-2, 4: records below offset 1 {DELETED}"
    assert (refused.code, expected in refused.err) == (1, True)
    delete_starts(spread, {0: 1, 1: 2, 2: 1, 4: 1})
    expected = f"flights, partitions 0-2, 4: records at the start {DELETED}"
    assert f"exactly: {expected}" in spread.run(*past).err
    marked = spread.ok(*past, "--inexact", "mark", "-o", "csv").err
    assert [line for line in marked.splitlines() if line.startswith(f"note: not exact: {expected}")]


def test_tables_with_one_reason_are_exact_from_the_latest_of_their_times_on() -> None:
    doubts = [
        Doubt(TopicPartition("t", number), f"erased; exact from {ms}", ms, "erased")
        for number, ms in ((7, 1), (2, 3), (1, 2), (3, 3))
    ]
    doubts.append(Doubt(TopicPartition("t", 1), "other"))
    assert by_reason(doubts) == ["t, partitions 1-3, 7: erased; exact from 3", "t-1: other"]


def test_a_diff_of_one_key_is_refused_only_for_partitions_of_this_key(spread: Cli) -> None:
    past = ("diff", "flights", "--from", str(NOW), "-o", "json", "--key")
    found = spread.ok(*past, "k2")
    assert [(row["partition"], row["change"]) for row in found.objects] == [(3, "changed")]
    assert "1 key of flights: 0 added, 1 changed, 0 deleted; from the table" in found.err
    outside = "not exact if key k2 was ever outside flights-3: flights, partitions 0-2, 4"
    assert f"note: {outside}: records below offset 1" in found.err
    refused = spread.run(*past, "k3")
    assert (refused.code, "exactly: flights-1: records below offset 1" in refused.err) == (1, True)
    spread.append(at(NOW + 2, b"k2", b"stray"), partition=0)
    refused = spread.run(*past, "k2")
    assert (refused.code, "exactly: flights-0: records below offset 1" in refused.err) == (1, True)
    marked = spread.ok(*past, "k2", "--inexact", "mark")
    assert [row["partition"] for row in marked.objects] == [0, 3]
    assert "note: not exact: flights, partitions 0-2, 4: records below" in marked.err


@pytest.mark.parametrize(("left", "named"), [((1, 4), "1, 4"), ((1, 2), "1-2"), ((0, 1, 2), "0-2")])
def test_a_diff_of_one_key_is_refused_for_all_partitions_if_their_number_is_unknown(
    spread: Cli, left: tuple[int, ...], named: str
) -> None:
    # like a copy of the directory of one Kafka broker, which has only some of the partitions
    for number in {*range(5)} - {*left}:
        rmtree(spread.data / f"flights-{number}")
    (spread.data / files.TOPICS_FILE).unlink()
    key = next(f"x{n}" for n in range(99) if partition_of(b"x%d" % n, len(left)) == 1)
    refused = spread.run("diff", "flights", "--from", str(NOW), "--key", key)
    assert (refused.code, f"exactly: flights, partitions {named}: rec" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "--from", "-1h"), "--from does not apply with --table"),
        (("--table", "--follow"), "--follow does not apply with --table; leave it out"),
        (
            ("--table", "--isolation", "read_committed"),
            "--isolation does not apply with --table, which reads",
        ),
        (("--at", "-1h"), "--at applies only with --table"),
        (("--inexact", "mark"), "--inexact applies only with --table"),
    ],
)
def test_options_that_have_no_meaning_are_refused(
    flights: Cli, options: tuple[str, ...], message: str
) -> None:
    result = flights.run("read", "flights", *options)
    assert result.code == 3
    assert message in result.err


# -- serializers by name -------------------------------------------------------------------------

UUID = "123e4567-e89b-42d3-a456-426614174000"
WRITTEN = [
    ("string", "N14228", b"N14228", "N14228"),
    ("int32", "-7", struct.pack(">i", -7), -7),
    ("int64", "42", struct.pack(">q", 42), 42),
    ("double", "1.5", struct.pack(">d", 1.5), 1.5),
    ("uuid", UUID, UUID.encode(), UUID),
    ("json", '"""x"""', b'"x"', "x"),
    ("json", "7", b"7", 7),
    ("bytes", "AQI=", b"\x01\x02", {"base64": "AQI="}),
]


@pytest.mark.parametrize(("encoding", "text", "data", "shown"), WRITTEN)
def test_keys_are_written_and_read_by_name(
    flights: Cli, encoding: str, text: str, data: bytes, shown: object
) -> None:
    stdin = f"id,v\n{text},1\n".encode()
    options = ("--from", "-", "--format", "csv", "--key", "id", "--key-as", encoding)
    flights.ok("produce", "flights", *options, stdin=stdin)
    raw = flights.ok("read", "flights", "-o", "arrow").raw
    assert pa.ipc.open_stream(raw).read_all()["key"].to_pylist() == [data]
    (row,) = flights.ok("read", "flights", "-o", "json", "--key-as", encoding).objects
    assert row["key"] == shown
    (same,) = flights.ok("read", "flights", "--table", "-o", "json", "--key-as", encoding).objects
    assert same["key"] == shown


def test_values_of_lines_and_columns_are_written_by_name(flights: Cli) -> None:
    flights.ok("produce", "flights", "--from", "-", "--value-as", "int64", stdin=b"5\n6\n")
    options = ("--from", "-", "--format", "json", "--value", "n", "--value-as", "int32")
    flights.ok("produce", "flights", *options, stdin=b'{"n": 7}\n{"n": null}\n')
    rows = flights.ok("read", "flights", "-o", "arrow").raw
    values = pa.ipc.open_stream(rows).read_all()["value"].to_pylist()
    assert values == [struct.pack(">q", 5), struct.pack(">q", 6), struct.pack(">i", 7), None]


@pytest.mark.parametrize(
    ("options", "stdin", "message"),
    [
        (
            ("--format", "csv", "--key", "id", "--key-as", "int32"),
            b"id\nx\n",
            "'x' can't be read as int32: must be a whole number",
        ),
        (
            ("--format", "json", "--key", "id", "--key-as", "string"),
            b'{"id": 4}\n',
            "can't be written as string",
        ),
        (
            ("--value-as", "uuid"),
            b"x\n",
            "line 1: --value: 'x' can't be read as uuid: must be a UUID, such as 6ba7b810-",
        ),
        (("--value-as", "double"), b"x\n", "'x' can't be read as double: must be a number"),
        (
            ("--value-as", "bytes"),
            b"x\n",
            "'x' can't be read as bytes: must be base64, such as AAEC",
        ),
        (("--key-as", "int32"), b"x\n", "--key-as int32 needs the column"),
        (("--format", "csv", "--value-as", "int32"), b"id\n1\n", "a row is JSON"),
    ],
)
def test_values_that_a_serializer_cannot_encode_are_refused(
    flights: Cli, options: tuple[str, ...], stdin: bytes, message: str
) -> None:
    result = flights.run("produce", "flights", "--from", "-", *options, stdin=stdin)
    assert result.code != 0
    assert message in result.err


def test_a_dump_shows_keys_by_name(flights: Cli) -> None:
    flights.append(at(NOW, struct.pack(">q", 9), b"v"))
    path = str(flights.data / "flights-0" / log_files.log_file_name(0))
    (row,) = flights.ok("dump", path, "--deep", "--key-as", "int64", "-o", "json").objects
    assert row["key"] == 9
    refused = flights.run("dump", path, "--key-as", "int64")
    assert "--key-as applies only with --deep" in refused.err


def test_keys_of_a_lost_partition_are_no_unchanged_keys(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "2")
    cli.append(at(NOW, b"a", b"1"), partition=0)
    cli.append(at(NOW, b"b", b"2"), partition=1)
    rmtree(cli.data / "flights-1")
    for command in (
        ["diff", "--from", "-1h"],
        ["read", "--table"],
        ["read", "--table", "--at", "0"],
    ):
        verb, *options = command
        result = cli.run(verb, "flights", *options)
        assert (result.code, result.out) == (ExitCode.ERROR, "")
        assert "flights-1: listed in tidelog-topics.json, but without a directory" in result.err
        marked = cli.ok(verb, "flights", *options, "--inexact", "mark")
        assert "note: not exact: flights-1: listed in tidelog-topics.json" in marked.err
    home = partition_of(b"a", 2)
    rmtree(cli.data / "flights-0")
    result = cli.run("diff", "flights", "--from", "-1h", "--key", "a")
    assert (result.code, result.out) == (ExitCode.ERROR, "")
    assert f"flights-{home}: listed in tidelog-topics.json" in result.err


@pytest.mark.parametrize("options", [(), ("--by", "day")])
def test_records_of_a_lost_partition_are_not_counted_as_zero(
    cli: Cli, options: tuple[str, ...]
) -> None:
    cli.ok("create", "flights", "--partitions", "4")
    for lost in (1, 2):
        rmtree(cli.data / f"flights-{lost}")
    result = cli.run("count", "flights", *options)
    assert (result.code, result.out) == (ExitCode.ERROR, "")
    lost_text = "partitions 1-2 are listed in tidelog-topics.json, but have no directory"
    assert f"reading flights failed: {lost_text}" in result.err
    assert cli.run("count", "flights:1", *options).code is ExitCode.ERROR
    with pytest.raises(MissingFile, match="partitions 1-2 are listed"):
        tidelog.open(cli.data).count("flights")


def test_a_read_prints_the_other_partitions_and_fails_for_a_lost_one(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "2")
    cli.append(at(NOW, b"a", b"1"), partition=0)
    rmtree(cli.data / "flights-1")
    for options in ((), ("--tail", "5"), ("--order", "time")):
        result = cli.run("read", "flights", "-o", "json", *options)
        assert (result.code, len(result.objects)) == (ExitCode.ERROR, 1)
        assert result.err.count("partition 1 is listed in tidelog-topics.json") == 1
    rmtree(cli.data / "flights-0")
    result = cli.run("read", "flights")
    assert result.code is ExitCode.ERROR
    assert "is empty" not in result.err


def test_the_list_of_topics_names_lost_partitions(cli: Cli) -> None:
    for number in range(5):
        cli.ok("create", f"t{number}", "--partitions", "2")
        rmtree(cli.data / f"t{number}-1")
    cli.ok("create", "whole")
    result = cli.ok("topics")
    listed = "partition 1 is listed in tidelog-topics.json, but has no directory"
    what = f"`tidelog doctor --data {cli.data}` shows what to do"
    assert result.err.splitlines() == [
        *(f"note: {cli.data}: t{number}: {listed}; {what}" for number in range(3)),
        f"note: {cli.data}: partitions of 2 more topics have no directory, either",
    ]


@pytest.mark.parametrize("command", ["offsets --at earliest", "latency", "describe", "why"])
def test_a_note_names_lost_partitions(cli: Cli, command: str) -> None:
    cli.ok("create", "flights", "--partitions", "3")
    rmtree(cli.data / "flights-1")
    verb, *options = command.split()
    err = cli.ok(verb, "flights", *options).err
    listed = "partition 1 is listed in tidelog-topics.json, but has no directory"
    what = f"`tidelog doctor --data {cli.data}` shows what to do"
    note = f"note: {cli.data}: flights: {listed}; {what}\n"
    assert err.count(note) == 1
    rows = cli.ok(verb, "flights", *options, "-o", "csv").out
    assert not any(line.startswith(("1,", "flights,1,")) for line in rows.splitlines())
    assert cli.run(verb, "flights:1", *options).code is ExitCode.ERROR


class TestOneDamagedPartition:
    """Keys a0 to a3, each in a partition of its own, were changed; partition 1 lost the change."""

    @pytest.fixture
    def damaged(self, cli: Cli) -> Cli:
        cli.ok("create", "flights", "--partitions", "4", "-c", "internal.segment.bytes=150")
        for number in range(3):
            for partition in range(4):
                value = b"%d" % number * 40
                cli.append(at(NOW + number, b"a%d" % partition, value), partition=partition)
        _, second, _ = sorted(cli.data.glob("flights-1/*.log"))
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
        return cli

    @pytest.mark.parametrize(
        "command", [("read", "--table"), ("diff", "--from", str(NOW)), ("diff", "--during", "..")]
    )
    @pytest.mark.parametrize("kind", ["json", "csv", "table", "parquet"])
    def test_the_others_are_complete(
        self, damaged: Cli, command: tuple[str, ...], kind: str
    ) -> None:
        verb, *options = command
        if "--during" in options:
            options[-1] = f"{NOW + 1}..{NOW + 3}"
        result = damaged.run(verb, "flights", *options, "-o", kind)
        if kind == "parquet":
            assert parquet.read_table(io.BytesIO(result.raw))["partition"].to_pylist() == [0, 2, 3]
        else:
            assert [key for key in ("a0", "a1", "a2", "a3") if key in result.out] == [
                "a0",
                "a2",
                "a3",
            ]
        assert result.code == ExitCode.ERROR
        assert result.err.count("error: ") == 1
        assert (
            ", position 0, offset 1: CRC-32C is"
            in result.err.partition("error: ")[2].split("\n")[0]
        )
        assert (
            f"\nhint: `tidelog doctor flights:1 --data {damaged.data}` lists the damage and what to"
            " do\nnote: flights-1: its rows were left out, because they depend on all of its"
            " records\n"
        ) in result.err
        assert "is empty" not in result.err
        if verb == "diff" and kind != "parquet":
            assert (
                "3 keys of flights: 0 added, 3 changed, 0 deleted; not exact, because" in result.err
            )
            assert "; not exact, because flights-1 was left out; from " in result.err

    def test_a_table_before_the_damage_is_complete(self, damaged: Cli) -> None:
        rows = damaged.ok("read", "flights", "--table", "--at", str(NOW), "-o", "json").objects
        assert [row["partition"] for row in rows] == [0, 1, 2, 3]

    def test_a_limit_that_ends_before_the_damage_is_complete(self, damaged: Cli) -> None:
        damaged.ok("read", "flights", "--table", "--limit", "1")

    def test_no_verdict_claims_that_nothing_is_there(self, damaged: Cli) -> None:
        table = damaged.run("read", "flights", "--table", "--key", "none")
        assert (table.code, "0 keys" in table.err) == (ExitCode.ERROR, False)
        diff = damaged.run("diff", "flights", "--from", str(NOW), "--key", "none")
        assert diff.code == ExitCode.ERROR
        assert diff.err.startswith(
            "0 known differences of key none of flights, but flights-1 was left out; from "
        )

    @pytest.mark.parametrize("options", [("--table",), ()])
    def test_the_damaged_partition_alone_is_one_error(
        self, damaged: Cli, options: tuple[str, ...]
    ) -> None:
        verb = ("read",) if options else ("diff", "--from", str(NOW))
        result = damaged.run(verb[0], "flights:1", *verb[1:], *options, "-o", "json")
        assert (result.code, result.out) == (ExitCode.ERROR, "")
        assert len(result.err.splitlines()) == 2  # the error and its hint

    def test_damage_that_the_plan_finds_hides_no_other_partition(
        self, damaged: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        splits = DirectoryRecords.table_splits

        def table_splits(
            self: DirectoryRecords, names: list[TopicPartition], *rest: object
        ) -> object:
            if any(name.partition == 2 for name in names):
                raise StorageFailure("flights-2", "read", "input/output error")
            return splits(self, names, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(DirectoryRecords, "table_splits", table_splits)
        result = damaged.run("diff", "flights", "--from", str(NOW), "-o", "json")
        assert [row["partition"] for row in result.objects] == [0, 3]
        assert (result.code, result.err.count("error: ")) == (ExitCode.ERROR, 2)
        assert "not exact, because 2 partitions were left out" in result.err

    @pytest.mark.parametrize("by", ["week", "key"])
    def test_a_count_without_a_partition_would_be_wrong(self, damaged: Cli, by: str) -> None:
        result = damaged.run("count", "flights", "--by", by)
        assert (result.code, result.out) == (ExitCode.ERROR, "")
        assert f"error: {damaged.data}/flights-1/" in result.err
        assert ", offset 1: CRC-32C is" in result.err
        assert f"hint: `tidelog doctor flights:1 --data {damaged.data}` lists" in result.err


class TestUnreadableTierRecord:
    """Three partitions; the tier record of partition 1 is damaged."""

    @pytest.fixture
    def damaged(self, cli: Cli) -> Cli:
        cli.ok("create", "flights", "--partitions", "3")
        for number in range(2):
            for partition in range(3):
                record = at(NOW + number, b"a%d" % partition, b"%d" % number)
                cli.append(record, partition=partition)
        (cli.data / "flights-1" / "tidelog-tier.json").write_text("{")
        return cli

    @pytest.mark.parametrize(
        "command",
        [("read", "--table"), ("read", "--table", "--at", "now"), ("diff", "--from", str(NOW))],
    )
    def test_it_is_reported_once(self, damaged: Cli, command: tuple[str, ...]) -> None:
        verb, *options = command
        result = damaged.run(verb, "flights", *options, "-o", "json")
        assert [row["partition"] for row in result.objects] == [0, 2]
        assert (result.code, result.err.count("error: ")) == (ExitCode.ERROR, 1)
        assert result.err.count("tidelog-tier.json") == 1
        assert "note: flights-1: its rows were left out" in result.err
        plain = damaged.run("read", "flights", "-o", "json")
        assert [row["partition"] for row in plain.objects] == [0, 0, 2, 2]
        assert (plain.code, plain.err.count("tidelog-tier.json")) == (ExitCode.ERROR, 1)
        assert "note: flights-1: its records were left out\n" in plain.err
        alone = damaged.run("read", "flights:1")
        assert (alone.code, alone.out, alone.err.count("error: ")) == (ExitCode.ERROR, "", 1)
        if verb == "diff":
            assert result.err.startswith("2 keys of flights: 0 added, 2 changed, 0 deleted; not")
            assert "not exact, because flights-1 was left out; from " in result.err


class TestDamagedAppendTimes:
    """Four partitions; the first append time of partitions 1 and 2 is damaged."""

    @pytest.fixture
    def damaged(self, cli: Cli) -> Cli:
        cli.ok("create", "flights", "--partitions", "4", "-c", "internal.segment.bytes=250")
        for number in range(3):
            cli.clock.advance(1_000)
            for partition in range(4):
                record = at(NOW + number, b"a%d" % partition, b"%d" % number * 40)
                cli.append(record, partition=partition)
        for partition in (1, 2):
            folder = cli.data / f"flights-{partition}"
            path = min(folder.glob("*.appendtime"))
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            for zones in folder.glob("*.zones"):
                zones.unlink()
        return cli

    @pytest.mark.parametrize(
        "command", [("read", "--table", "--at", str(NOW + 2_500)), ("diff", "--from", str(NOW))]
    )
    def test_the_other_partitions_are_complete(
        self, damaged: Cli, command: tuple[str, ...]
    ) -> None:
        verb, *options = command
        how = ("--clock", "append", "--zone", "Europe/Zurich")
        result = damaged.run(verb, "flights", *options, *how, "-o", "json")
        assert [row["partition"] for row in result.objects] == [0, 3]
        assert (result.code, result.err.count("error: ")) == (ExitCode.ERROR, 1)
        (error,) = (line for line in result.err.splitlines() if line.startswith("error: "))
        assert "flights-1: 1 record has no known append time, and may belong to" in error
        assert "Europe/Zurich exactly" in error
        assert error.endswith("or allow an inexact table (--inexact mark)")
        assert "note: flights-1: its rows were left out" in result.err
        assert "note: flights-2: its rows were left out, because the table is not exact" in (
            result.err
        )
        if verb == "diff":
            assert "not exact, because 2 partitions were left out; from " in result.err
        marked = damaged.ok(verb, "flights", *options, *how, "--inexact", "mark", "-o", "json")
        assert [row["partition"] for row in marked.objects] == [0, 1, 2, 3]
