"""`produce` writes rows of files as records."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import BinaryIO

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.faults.hooked import HookedDisk
from tests.worlds.command_line import NOW, Cli
from tests.worlds.waiting import until_equal

import tidelog
from tidelog.cli import inputs
from tidelog.env import ManualClock

CSV = b'tail,due,extra\nN1,2013-02-08 12:00,"{""a"": ""b""}"\n,2013-02-08 13:00,\n'


def run_produce(cli: Cli, data: bytes, *arguments: str, name: str = "-") -> None:
    cli.ok("produce", "flights", "--from", name, *arguments, stdin=data)


def read(cli: Cli) -> list[dict[str, object]]:
    return cli.ok("read", "flights", "-o", "json").objects


def test_lines_are_values_without_their_line_ends(flights: Cli) -> None:
    run_produce(flights, b"one\r\ntwo\n\nthree")
    assert [row["value"] for row in read(flights)] == ["one", "two", "", "three"]
    assert {row["timestamp_ms"] for row in read(flights)} == {NOW}
    assert {row["key"] for row in read(flights)} == {None}


def test_csv_rows_become_json_with_key_time_and_headers(flights: Cli) -> None:
    options = ("--format", "csv", "--key", "tail", "--time", "due", "--headers", "extra")
    run_produce(flights, CSV, *options, "--zone", "America/New_York")
    first, second = read(flights)
    assert (first["key"], first["timestamp"]) == ("N1", "2013-02-08T17:00:00.000Z")
    assert first["headers"] == [["a", "b"]]
    assert json.loads(str(first["value"]))["due"] == "2013-02-08 12:00"
    assert (second["key"], second["headers"]) == (None, [])


def test_byte_order_marks_of_joined_json_lines_are_skipped(flights: Cli) -> None:
    run_produce(flights, b'\xef\xbb\xbf{"n": 1}\r\n\xef\xbb\xbf{"n": 2}\n', "--format", "json")
    assert [row["value"] for row in read(flights)] == ['{"n": 1}', '{"n": 2}']


def test_json_lines_are_kept_byte_for_byte(flights: Cli) -> None:
    line = b'{"n": 1.50, "t": 1360342800000, "k": {"deep": 1}}'
    run_produce(flights, line + b"\n\n", "-f", "json", "--key", "k", "--time", "t")
    (row,) = read(flights)
    assert row["value"] == line.decode()
    assert row["key"] == '{"deep":1}'
    assert row["timestamp_ms"] == 1_360_342_800_000


def test_one_column_can_be_the_value_and_null_is_null(flights: Cli) -> None:
    run_produce(
        flights, b'{"v":"text"}\n{"v":null}\n{"v":""}\n{"v":7}', "-f", "json", "--value", "v"
    )
    assert [row["value"] for row in read(flights)] == ["text", None, "", "7"]


def test_a_row_without_a_time_gets_the_clock(flights: Cli) -> None:
    run_produce(flights, b'{"t":null}\n{"t":""}\n{"t":0}', "-f", "json", "--time", "t")
    assert [row["timestamp_ms"] for row in read(flights)] == [NOW, NOW, 0]


def test_parquet_keeps_types(flights: Cli, tmp_path: Path) -> None:
    due = pa.array([1_360_342_800_000, None], pa.timestamp("ms", "UTC"))
    headers = pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string()))
    rows = pa.table({"key": [b"\xff", b"k"], "due": due, "n": [1, 2], "h": headers})
    parquet.write_table(rows, tmp_path / "rows.parquet")
    name = str(tmp_path / "rows.parquet")
    run_produce(flights, b"", "--key", "key", "--time", "due", "--headers", "h", name=name)
    first, second = flights.ok("read", "flights", "-o", "json", "--key-as", "bytes").objects
    assert first["key"] == {"base64": "/w=="}
    assert (first["timestamp_ms"], second["timestamp_ms"]) == (1_360_342_800_000, NOW)
    assert first["headers"] == [["a", "1"]]
    assert json.loads(str(first["value"]))["n"] == 1


# Program that runs the command line as if pandas were not installed.
WITHOUT_PANDAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from tidelog.cli.app import main
sys.exit(main())
"""


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_in_nanoseconds_need_no_pandas(
    flights: Cli, tmp_path: Path, zone: str | None
) -> None:
    due = pa.array([1_360_342_800_123_456_789], pa.timestamp("ns", zone))
    name = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"v": ["a"], "due": due}), name)

    def load(*columns: str) -> subprocess.CompletedProcess[str]:
        options = (
            "flights",
            "--data",
            str(flights.data),
            "--from",
            name,
            "--zone",
            "UTC",
            *columns,
        )
        command = [sys.executable, "-c", WITHOUT_PANDAS, "produce", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert load("--value", "v", "--time", "due").returncode == 0
    assert [row["timestamp_ms"] for row in read(flights)] == [1_360_342_800_123]
    whole = load("--time", "due")
    assert whole.returncode == 1
    assert whole.stderr.startswith(f"error: {name} row 1: due: timestamp[ns")
    assert "can't be read: Nanosecond" in whole.stderr


def test_the_format_follows_the_files_name(flights: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b\n1,2\n")
    run_produce(flights, b"", name=str(path))
    assert [row["value"] for row in read(flights)] == ['{"a":"1","b":"2"}']


def test_the_result_has_partition_and_offsets_of_the_records(cli: Cli) -> None:
    cli.ok("create", "flights", "-p", "3")
    result = cli.ok(
        "produce", "flights", "--from", "-", "--partition", "2", "-o", "json", stdin=b"a\nb\n"
    )
    (row,) = result.objects
    assert (row["partition"], row["records"], row["first"], row["last"]) == (2, 2, 0, 1)
    assert row["append_time_ms"] == NOW
    assert result.err == "appended 2 records to flights\n"
    table = cli.ok("produce", "flights", "--from", "-", "--partition", "2", stdin=b"c\n")
    assert table.lines[0] == "appended 1 record to flights"
    assert table.err == ""


def test_a_codec_compresses_batches(flights: Cli) -> None:
    run_produce(flights, b"a\n" * 1_000, "--codec", "zstd")
    log = next(flights.data.glob("flights-0/*.log"))
    (batch,) = flights.ok("dump", str(log), "-o", "json").objects
    assert (batch["codec"], batch["records"]) == ("zstd", 1_000)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (b"{}\nnull\n", ("-f", "json"), "line 2: null, but each line must be a JSON object"),
        (b"{}\ntrue\n", ("-f", "json"), "line 2: true, but each line must be a JSON object"),
        (
            b"{}\n1.5\n",
            ("-f", "json"),
            "line 2: a number, but each line must be a JSON object",
        ),
        (b'{}\n"a"\n', ("-f", "json"), "line 2: text, but each line must be a JSON object"),
        (b"{}\n[1]\n", ("-f", "json"), "line 2: a list, but each line must be a JSON object"),
        (b"{}\n{\n", ("-f", "json"), "stdin line 2: not JSON"),
        (
            b'{"a":1}\n{"b":1}\n',
            ("-f", "json", "--key", "a"),
            "line 2: no column 'a'; the columns are b",
        ),
        (b"a,b\n1,2\n1\n", ("-f", "csv"), "stdin line 3: 1 cell, but"),
        (
            b"a,b\n1,2\n1,2,3\n",
            ("-f", "csv"),
            "line 3: 3 cells, but the heading has 2 columns",
        ),
        (b"a\n1\n\xff\n", ("-f", "csv"), "stdin line 3: not UTF-8: byte 0xff"),
        (
            b"a\n" + b"x\r\n" * 20_000 + b"\xe4\r\n",
            ("-f", "csv", "--check"),
            "stdin line 20002: not UTF-8: byte 0xe4",
        ),
        (b'a,b\n1,2\n3,"4\n5,6\n', ("-f", "csv"), "stdin line 3: not CSV: unexpected end"),
        (b'{}\n{"a":"\xff"}\n', ("-f", "json"), "line 2: not JSON: byte 6 is not UTF-8"),
        ('{"a":1}'.encode("utf-16"), ("-f", "json"), "line 1: not JSON: byte 0 is not UTF-8"),
        (b'{"t":0}\n{"t":"soon"}', ("-f", "json", "--time", "t"), "line 2: t: 'soon': not a time"),
        (b'{"t":0}\n{"t":[]}', ("-f", "json", "--time", "t"), "which is not a time"),
        (b'{"t":0}\n{"t":1.5}', ("-f", "json", "--time", "t"), "must be a whole number of ms"),
        (b'{"h":{}}\n{"h":3}', ("-f", "json", "--headers", "h"), "an object of header names"),
        (
            b'{"h":{}}\n{"h":"by=ten"}',
            ("-f", "json", "--headers", "h"),
            """h: 'by=ten' is not JSON; give an object of header names and values, such as {"by""",
        ),
    ],
)
def test_a_bad_row_is_named_and_the_rows_before_it_stay(
    flights: Cli, data: bytes, arguments: tuple[str, ...], message: str
) -> None:
    result = flights.run("produce", "flights", "--from", "-", *arguments, stdin=data)
    assert result.code == 1
    assert message in result.err
    taken = len(read(flights))
    counted = "1 row before it was" if taken == 1 else "nothing was"
    assert f"{counted} appended" in result.err
    assert taken == (0 if "not UTF-8:" in message or "line 1:" in message else 1)


REFUSED = b"""k,t,v
a,2023-11-14 09:00,1
b,2023-11-14 10:00,2
%b
c,2023-11-14 11:00,4
"""


@pytest.mark.parametrize(
    ("setting", "row", "message"),
    [
        ("cleanup.policy=compact", b",,3", "no key, but the topic is compacted"),
        (
            "message.timestamp.before.max.ms=7d",
            b"x,2023-11-01 00:00,3",
            (
                "create time 2023-11-01 00:00:00 UTC is before 2023-11-07 22:13:20 UTC, which is"
                " the topic's limit now (message.timestamp.before.max.ms=7d)"
            ),
        ),
        (
            "message.timestamp.after.max.ms=1h",
            b"x,2023-11-15 22:00,3",
            (
                "create time 2023-11-15 22:00:00 UTC is after 2023-11-14 23:13:20 UTC, which is the"
                " topic's limit now (message.timestamp.after.max.ms=1h)"
            ),
        ),
        (
            "max.message.bytes=300",
            b"x,," + b"3" * 400,
            "a batch of 496 bytes, but max.message.bytes is 300",
        ),
    ],
)
@pytest.mark.parametrize("extra", [(), ("--check",), ("--once", "mine")])
def test_a_row_that_breaks_a_rule_of_the_topic_is_named_and_the_rows_before_it_stay(
    cli: Cli, setting: str, row: bytes, message: str, extra: tuple[str, ...]
) -> None:
    cli.ok("create", "flights", "--partitions", "3", "--config", "retention.ms=-1")
    cli.ok("config", "flights", "--set", setting)
    options = ("-f", "csv", "--key", "k", "--time", "t", "--zone", "UTC", *extra)
    result = cli.run("produce", "flights", "--from", "-", *options, stdin=REFUSED % row)
    assert result.code == 1
    before = 0 if extra else 2
    counted = f"{before} rows before it were" if before else "nothing was"
    assert result.err.startswith("error: stdin line 4: ")
    assert f": {message}" in result.err
    assert f"; {counted} appended" in result.err
    assert len(read(cli)) == before


def test_rows_that_an_earlier_run_has_loaded_are_not_checked_again(flights: Cli) -> None:
    columns = ("-f", "json", "--key", "k", "--time", "t", "--once", "mine")
    rows = [b'{"k": "a", "t": 1000}', b'{"k": "b", "t": "now"}']
    run_produce(flights, rows[0], *columns)
    flights.ok("config", "flights", "--set", "message.timestamp.before.max.ms=7d")
    run_produce(flights, b"\n".join(rows), *columns, "--check")
    assert [row["key"] for row in read(flights)] == ["a", "b"]


def test_a_row_that_breaks_a_rule_of_a_brokers_topic_is_named(cli: Cli) -> None:
    cli.ok("create", "flights", "--partitions", "3", "--config", "cleanup.policy=compact")
    with tidelog.broker(str(cli.data)) as broker:
        place = ("--bootstrap", broker.bootstrap_servers)
        options = ("-f", "json", "--key", "k", "--time", "t", *place)
        for row, message in (
            (b'{"k": null, "t": null}', "no key, but the topic is compacted"),
            (b'{"k": "b", "t": 0}', "the client library would replace it"),
            (b'{"k": "b", "t": "now", "v": "%s"}' % (b"x" * 1_050_000), "max.message.bytes"),
        ):
            data = b'{"k": "a", "t": null}\n' + row
            result = cli.run("produce", "flights", "--from", "-", *options, stdin=data)
            assert "error: stdin line 2: " in result.err
            assert message in result.err
            assert "; 1 row before it was appended" in result.err
        cli.ok("config", "flights", "--set", "compression.type=gzip", *place)
        long = b'{"k": "b", "t": "now", "v": "%s"}' % (b"x" * 1_050_000)
        result = cli.run("produce", "flights", "--from", "-", *options, stdin=long)
        assert "error: stdin line 1: a batch of " in result.err
        missing = ("--key", "k", "--value", "v", "--partition", "7", *place)
        err = cli.run("produce", "flights", *missing).err
        assert err.startswith("error: topic flights has partitions 0 to 2, not 7\n")


def test_batches_fit_into_the_largest_message_of_the_topic(flights: Cli) -> None:
    flights.ok("config", "flights", "--set", "max.message.bytes=300")
    lines = b"\n".join(b"%d" % number for number in range(500))
    run_produce(flights, lines)
    run_produce(flights, lines, "--once", "mine", "--codec", "gzip")
    assert len(read(flights)) == 1_000


@pytest.mark.parametrize("options", [(), ("--check",), ("--once", "mine")])
def test_a_record_is_compressed_by_the_topics_codec_before_its_size_is_checked(
    flights: Cli, options: tuple[str, ...]
) -> None:
    flights.ok(
        "config", "flights", "--set", "max.message.bytes=300", "--set", "compression.type=gzip"
    )
    run_produce(flights, b"a" * 5000, *options)
    assert len(read(flights)) == 1


def test_lines_have_no_columns(flights: Cli) -> None:
    result = flights.run("produce", "flights", "--from", "-", "--key", "a", stdin=b"x")
    assert result.code == 3
    assert "--format json, csv, arrow or parquet" in result.err


def test_a_missing_file_is_one_line(flights: Cli) -> None:
    result = flights.run("produce", "flights", "--from", "nowhere.csv")
    assert result.code == 3
    assert result.err == "error: nowhere.csv: No such file or directory\n"


def test_an_unknown_topic_is_reported_before_the_file_is_read(flights: Cli) -> None:
    result = flights.run("produce", "flight", "--from", "-", stdin=b"x")
    assert result.code == 1
    assert "did you mean flights?" in result.err
    assert f"hint: `tidelog topics --data {flights.data}` lists topics" in result.err


def test_a_clock_that_ran_ahead_needs_accept_clock(flights: Cli) -> None:
    flights.clock.advance(7_200_000)
    run_produce(flights, b"one")
    flights.clock.jump(NOW)
    refused = flights.run("produce", "flights", "--from", "-", stdin=b"two")
    assert refused.code == 1
    assert "--accept-clock" in refused.err
    run_produce(flights, b"three", "--accept-clock")
    assert [row["value"] for row in read(flights)] == ["one", "three"]
    assert {row["append_time_ms"] for row in read(flights)} == {NOW + 7_200_000}


def test_rows_that_are_more_than_a_segment_are_appended_in_pieces(flights: Cli) -> None:
    flights.ok("create", "small", "--config", "segment.bytes=1048576")
    rows = b"".join(b"%d" % (n % 10) + b"x" * 100_000 + b"\n" for n in range(25))
    result = flights.ok("produce", "small", "--from", "-", stdin=rows)
    assert "appended 25 records" in result.out
    found = flights.ok("read", "small", "-o", "json").objects
    assert [str(row["value"])[0] for row in found] == [str(n % 10) for n in range(25)]


def test_a_csv_cell_may_be_long(flights: Cli) -> None:
    run_produce(
        flights, b"k,v\n%s,1\n" % (b"k" * 200_000), "-f", "csv", "--key", "k", "--value", "v"
    )
    (row,) = read(flights)
    assert len(str(row["key"])) == 200_000


# -- one record, and lines with keys ---------------------------------------------------------------


def pairs(cli: Cli) -> list[tuple[object, object]]:
    return [(row["key"], row["value"]) for row in read(cli)]


def test_one_record_is_typed_as_arguments(flights: Cli) -> None:
    headers = '{"source": "shell"}'
    typed = ("--key", "N1", "--value", "late", "--time", "2013-02-08T12:00Z", "--headers", headers)
    result = flights.ok("produce", "flights", *typed)
    assert result.lines[0] == "appended 1 record to flights"
    (row,) = read(flights)
    assert (row["key"], row["value"], row["headers"]) == ("N1", "late", [["source", "shell"]])
    assert row["timestamp"] == "2013-02-08T12:00:00.000Z"


def test_an_error_about_typed_headers_shows_valid_ones(flights: Cli) -> None:
    typed = ("produce", "flights", "--value", "late", "--headers")
    example = """--headers '{"by": "ten"}'\n"""
    for text, reason in (
        ("by=ten", "'by=ten' is not JSON; give an object of header names and values, such as "),
        (
            '{"by": ten}',
            """'{"by": ten}' is not JSON (Expecting value: line 1 column 8 (char 7))""",
        ),
        ("7", "must be an object of header names and values, or a list of [name, value]; "),
    ):
        result = flights.run(*typed, text)
        assert result.code == 1
        assert result.err.startswith(f"error: arguments: --headers: {reason}")
        assert result.err.endswith(example)
    flights.ok(*typed, '{"by": "ten"}')


def test_no_append_times_are_shown_if_a_broker_reports_none(cli: Cli) -> None:
    cli.ok("create", "flights")
    assert "APPEND TIME" in cli.ok("produce", "flights", "--value", "v").out
    with tidelog.broker(str(cli.data)) as broker:
        by_broker = ("produce", "flights", "--value", "v", "--bootstrap", broker.bootstrap_servers)
        assert cli.ok(*by_broker).lines == [
            "appended 1 record to flights",
            "PARTITION  RECORDS  FIRST  LAST",
            "        0        1      1     1",
        ]
        (row,) = cli.ok(*by_broker, "-o", "json").objects
    assert row["append_time"] is None


def test_typed_key_and_value_have_encodings_and_may_be_empty(flights: Cli) -> None:
    flights.ok("produce", "flights", "--key", "7", "--key-as", "int64", "--value", "")
    rows = flights.ok("read", "flights", "-o", "json", "--key-as", "int64").objects
    assert [(row["key"], row["value"]) for row in rows] == [(7, "")]
    refused = flights.run("produce", "flights", "--key", "x", "--key-as", "int64", "--value", "v")
    assert refused.code == 1
    assert refused.err.startswith("error: arguments: --key: 'x' can't be read as int64:")


@pytest.mark.parametrize("key", ["k", ""])
def test_a_pipe_gives_a_value_a_line_and_all_have_the_typed_key(flights: Cli, key: str) -> None:
    flights.ok("produce", "flights", "--key", key, stdin=b"one\n\xff\n")
    rows = flights.ok("read", "flights", "-o", "json", "--value-as", "bytes").objects
    assert [row["key"] for row in rows] == [key, key]
    assert [row["value"] for row in rows] == [{"base64": "b25l"}, {"base64": "/w=="}]


@pytest.mark.parametrize("source", [(), ("--from", "-")])
def test_a_separator_ends_the_key_of_a_line(flights: Cli, source: tuple[str, ...]) -> None:
    lines = b"a:1\nb:2:3\n:4\nc:\n"
    flights.ok("produce", "flights", *source, "--key-separator", ":", stdin=lines)
    assert pairs(flights) == [("a", "1"), ("b", "2:3"), ("", "4"), ("c", "")]


def test_a_line_without_the_separator_is_named(flights: Cli) -> None:
    result = flights.run("produce", "flights", "--key-separator", "::", stdin=b"a::1\nb:2\n")
    assert result.code == 1
    assert result.err == (
        "error: stdin line 2: no '::' after the key; 1 row before it was appended, and is"
        " appended again if the command is repeated; --check finds invalid rows before anything is"
        " appended\n"
    )
    assert pairs(flights) == [("a", "1")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--value", "v", "--key-separator", ":"), "--key-separator applies only to lines"),
        (("--key", "k", "--key-separator", ":"), "leave it or --key out"),
        (("--key-separator", ""), "--key-separator must have at least one character"),
        (
            ("--format", "json", "--key", "k"),
            "--format json needs an input; add --from FILE or --from -",
        ),
        (("--from", "-", "-f", "json", "--key-separator", ":"), "for json give --key COL"),
        (("--value", "v", "--infer"), "--infer applies only to CSV whose whole rows"),
        (("--from", "-", "-f", "csv", "--infer", "--value", "a"), "--infer applies only to CSV"),
        (("--value", "v", "--key-as", "int64"), "--key-as int64 needs"),
    ],
)
def test_contradicting_options_are_usage_errors(
    flights: Cli, arguments: tuple[str, ...], text: str
) -> None:
    result = flights.run("produce", "flights", *arguments, stdin=b"a\n")
    assert result.code == 3
    assert text in result.err
    assert read(flights) == []


ROWS = b'n,code,note\n1,007,a\n-2.50,1e3,"1,000"\n,+1,""\n'


def test_numbers_of_csv_become_text_with_a_note(flights: Cli) -> None:
    result = flights.ok("produce", "flights", "--from", "-", "-f", "csv", stdin=ROWS)
    assert read(flights)[0]["value"] == '{"n":"1","code":"007","note":"a"}'
    assert result.lines[0] == "appended 3 records to flights"
    assert result.err == (
        "note: numbers were written as text, first at stdin line 2, column n;"
        " --infer writes them as numbers\n"
    )


def test_infer_keeps_numbers_of_csv_digit_for_digit(flights: Cli) -> None:
    result = flights.ok("produce", "flights", "--from", "-", "-f", "csv", "--infer", stdin=ROWS)
    assert [row["value"] for row in read(flights)] == [
        '{"n":1,"code":"007","note":"a"}',
        '{"n":-2.50,"code":1e3,"note":"1,000"}',
        '{"n":null,"code":"+1","note":""}',
    ]
    assert (result.lines[0], result.err) == ("appended 3 records to flights", "")


LONG = "0.1234567890123456789"


@pytest.mark.parametrize("form", [(), ("--value-as", "json")])
@pytest.mark.parametrize("value", [LONG, "1e400", f'{{"p":[{LONG}]}}', '{"a":1,"a":2}'])
def test_json_values_keep_all_digits_and_repeated_names(
    flights: Cli, value: str, form: tuple[str, ...]
) -> None:
    row = f'{{"v":{value}}}\n'.encode()
    run_produce(flights, row, "--format", "json", "--value", "v", *form)
    (found,) = read(flights)
    assert found["value"] == value
    for kind in ("json", "csv"):
        out = flights.ok("read", "flights", "-o", kind, "--value-as", "json").out
        assert value.replace(":", ": ").replace(",", ", ") in out.replace('""', '"')
    assert (
        value.replace(":", ": ").replace(",", ", ")
        in flights.ok("read", "flights", "--value-as", "json").out
    )


def test_a_value_that_is_nested_slightly_too_deeply_is_refused(
    flights: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's recursion limit counts callers too: a parsed value may be too deep to be written."""

    def write(*_: object, **__: object) -> str:
        raise RecursionError("too deep")

    monkeypatch.setattr("tidelog.cli.inputs.text_of", write)
    options = ("--from", "-", "--format", "json", "--value", "v")
    refused = flights.run("produce", "flights", *options, stdin=b'{"v":[1]}\n')
    assert refused.code == 1
    assert "error: stdin line 1: v: too deep" in refused.err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"k":' + "[" * 5000 + "]" * 5000 + "}", "not JSON: nested too deeply"),
        (r'{"k":"ab\ud800"}', r"k: character 2 is '\ud800', half of a surrogate pair"),
        (r'{"k":["\ud800"]}', r"k: character 2 is '\ud800', half of a surrogate pair"),
    ],
)
def test_json_that_no_record_can_hold_is_refused(flights: Cli, row: str, message: str) -> None:
    options = ("--from", "-", "--format", "json", "--key", "k")
    refused = flights.run("produce", "flights", *options, stdin=row.encode())
    assert refused.code == 1
    assert refused.err.startswith(f"error: stdin line 1: {message}")


@pytest.mark.parametrize("form", [(), ("--key-as", "auto")])
def test_typed_bytes_that_are_not_utf_8_are_stored(flights: Cli, form: tuple[str, ...]) -> None:
    flights.ok("produce", "flights", "--key", "a\udcff", "--value", "\udcfe", *form)
    as_bytes = ("--key-as", "bytes", "--value-as", "bytes", "-o", "json")
    (found,) = flights.ok("read", "flights", *as_bytes).objects
    assert (found["key"], found["value"]) == ({"base64": "Yf8="}, {"base64": "/g=="})
    assert "Yf8=" in flights.ok("read", "flights", "--key", "a\udcff").out


def test_headers_of_an_object_may_repeat(flights: Cli) -> None:
    row = b'{"v":"x","h":{"a":"1","b":"2","a":"3"}}\n'
    run_produce(flights, row, "--format", "json", "--value", "v", "--headers", "h")
    flights.ok("produce", "flights", "--value", "x", "--headers", '{"a":"1","b":"2","a":"3"}')
    pairs = [["a", "1"], ["b", "2"], ["a", "3"]]
    assert [found["headers"] for found in read(flights)] == [pairs, pairs]


@pytest.mark.parametrize(
    ("kind", "data", "columns", "problem"),
    [
        ("csv", b"a,b,a\n1,2,3\n", (), "stdin: column 'a' occurs more than once"),
        ("csv", b"a,,\n1,2,3\n", (), "stdin: column '' occurs more than once"),
        ("csv", b"a,b,a\n1,2,3\n", ("--value", "a"), "stdin: column 'a' occurs more than once"),
        (
            "json",
            b'{"a":1}\n{"a":1,"a":2}\n',
            ("--value", "a"),
            "stdin line 2: 'a' occurs more than once",
        ),
        ("json", b'{"a":NaN}\n', ("--value", "a"), "stdin line 1: not JSON: NaN is not valid JSON"),
        (
            "json",
            b'{"a":{"base64":"AAEC","base64":"/w=="}}\n',
            ("--value", "a", "--value-as", "bytes"),
            'stdin line 1: a: \'{"base64": "AAEC", "base64": "/w=="}\' can\'t be read as bytes',
        ),
    ],
)
def test_columns_that_would_be_lost_are_refused(
    flights: Cli, kind: str, data: bytes, columns: tuple[str, ...], problem: str
) -> None:
    refused = flights.run(
        "produce", "flights", "--from", "-", "--format", kind, *columns, stdin=data
    )
    assert refused.code != 0
    assert f"error: {problem}" in refused.err


def test_repeated_columns_that_are_not_read_are_no_problem(flights: Cli) -> None:
    run_produce(flights, b"a,b,a\n1,2,3\n", "--format", "csv", "--value", "b")
    run_produce(flights, b'{"a":1,"b":"x","a":2}\n', "--format", "json", "--value", "b")
    assert [found["value"] for found in read(flights)] == ["2", "x"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_of_a_table_that_json_lacks_are_refused(
    flights: Cli, tmp_path: Path, kind: str
) -> None:
    def load(table: pa.Table, *columns: str) -> str:
        name = str(tmp_path / f"rows.{kind}")
        if kind == "parquet":
            parquet.write_table(table, name)
        else:
            with pa.ipc.new_file(name, table.schema) as file:
                file.write_table(table)
        return flights.run("produce", "flights", "--from", name, *columns).err

    numbers = pa.table({"n": [1.5, float("nan")]})
    assert "row 2: " in load(numbers)
    assert "row 2: n: " in load(numbers, "--value", "n")
    same = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert "column 'a' occurs more than once" in load(same)
    assert "column 'a' occurs more than once" in load(same, "--value", "a")


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.duration("ns")])
def test_nanoseconds_that_python_lacks_are_refused(
    flights: Cli, tmp_path: Path, kind: pa.DataType
) -> None:
    name = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"t": pa.array([1_234_567_000], kind)}), name)
    run_produce(flights, b"", name=name)
    assert "1.234567" in str(read(flights)[0]["value"])
    parquet.write_table(pa.table({"t": pa.array([1_234_567_891], kind)}), name)
    refused = flights.run("produce", "flights", "--from", name)
    assert refused.code == 1
    assert f"row 1: t: {kind} 1234567891 can't be read: " in refused.err
    assert len(read(flights)) == 1


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, -719_163], pa.date32()),
        pa.array([0, 10**17], pa.timestamp("ms")),
        pa.array([0, 10**18], pa.duration("s")),
        pa.array([[0], [10**17]], pa.list_(pa.timestamp("ms"))),
    ],
    ids=["date", "timestamp", "duration", "list"],
)
def test_a_time_that_python_lacks_is_named_by_row_and_column(
    flights: Cli, tmp_path: Path, column: "pa.Array[pa.Scalar[pa.DataType]]"
) -> None:
    name = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"a": [1, 2], "t": column}), name)
    refused = flights.run("produce", "flights", "--from", name)
    assert refused.code == 1
    kind = str(column.type).split("<")[0]
    assert refused.err.startswith(f"error: {name} row 2: t: {kind}")


@pytest.mark.parametrize(
    ("form", "cell"),
    [("int64", '"1_0"'), ("double", '"1_0"'), ("double", "1e400"), ("double", '"1e400"')],
)
def test_numbers_that_the_form_lacks_are_refused(flights: Cli, form: str, cell: str) -> None:
    row = f'{{"k":{cell},"v":"x"}}\n'.encode()
    options = ("--format", "json", "--key", "k", "--value", "v", "--key-as", form)
    refused = flights.run("produce", "flights", "--from", "-", *options, stdin=row)
    assert refused.code == 1
    assert "stdin line 1: k: " in refused.err


@pytest.mark.parametrize(
    "header", ['{"key":"a","val":"2"}', '{"key":"a","key":"b","value":"2"}', '{"key":"a"}']
)
def test_headers_in_another_form_are_refused(flights: Cli, header: str) -> None:
    row = f'{{"v":"x","h":[{header}]}}\n'.encode()
    options = ("--format", "json", "--value", "v", "--headers", "h")
    refused = flights.run("produce", "flights", "--from", "-", *options, stdin=row)
    assert refused.code == 1
    assert "must be an object of header names and values" in refused.err


def test_csv_without_numbers_has_no_note(flights: Cli) -> None:
    result = flights.ok("produce", "flights", "--from", "-", "-f", "csv", stdin=b"a\nx\n")
    assert (result.lines[0], result.err) == ("appended 1 record to flights", "")


class TestOpenPipe:
    """Rows of a pipe are appended while the pipe stays open."""

    @pytest.mark.parametrize("kind", ["lines", "json"])
    def test_rows_are_appended_when_the_pipe_pauses(self, flights: Cli, kind: str) -> None:
        with running_produce(flights, "--from", "-", "--format", kind) as stdin:
            for number in range(3):
                stdin.write(b"%d\n" % number if kind == "lines" else b'{"n":%d}\n' % number)
                stdin.flush()
                until_equal(number + 1, lambda: count(flights))
            stdin.write(b'{"n":3}')
        assert len(read(flights)) == 4

    def test_a_line_that_has_not_ended_does_not_delay_the_lines_before_it(
        self, flights: Cli
    ) -> None:
        with running_produce(flights) as stdin:
            stdin.write(b"one\ntwo\nth")
            stdin.flush()
            until_equal(2, lambda: count(flights))
            stdin.write(b"ree")
        assert [row["value"] for row in read(flights)] == ["one", "two", "three"]

    def test_a_line_that_begins_during_the_wait_does_not_end_it(self) -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "wb", buffering=0) as stdin:
            live, clock = inputs.LiveInput(pipe.fileno()), ManualClock(NOW)
            now_ms = clock.monotonic_ms()
            stdin.write(b"one\n")
            assert live.readline() == b"one\n"
            stdin.write(b"tw")
            assert live.pauses(clock, now_ms)
            stdin.write(b"o\nthree\nfour")
            assert not live.pauses(clock, now_ms)
            assert live.readline() == b"two\n"
            assert not live.pauses(clock, now_ms)
            assert live.readline() == b"three\n"
            assert live.pauses(clock, now_ms)
            stdin.close()
            assert not live.pauses(clock, now_ms)
            assert live.read() == b"four"
            assert not live.pauses(clock, now_ms)

    def test_a_long_line_that_keeps_growing_does_not_delay_the_lines_before_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = 0

        def read(_descriptor: int, size: int) -> bytes:
            nonlocal reads
            reads += 1
            assert reads < 10, "the wait does not end"
            return b"." * size

        with Path(os.devnull).open("rb") as always_ready:
            live, clock = inputs.LiveInput(always_ready.fileno()), ManualClock(NOW)
            monkeypatch.setattr(os, "read", read)
            assert live.pauses(clock, clock.monotonic_ms())

    def test_blank_lines_between_rows_of_json_do_not_delay_the_rows(self, flights: Cli) -> None:
        with running_produce(flights, "--from", "-", "--format", "json") as stdin:
            for number in range(3):
                stdin.write(b'\n{"n":%d}\n \r\n\n' % number)
                stdin.flush()
                until_equal(number + 1, lambda: count(flights))
        values = [str(row["value"]) for row in read(flights)]
        assert [json.loads(value) for value in values] == [{"n": number} for number in range(3)]

    def test_blank_lines_are_no_rows_of_json(self) -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "wb", buffering=0) as stdin:
            live, clock = inputs.LiveInput(pipe.fileno()), ManualClock(NOW)
            live.skips_blank_lines = True
            now_ms = clock.monotonic_ms()
            for pieces, pauses in (
                ((b"\n", b" \r\n"), True),
                ((b"\n\t{", b"}"), True),
                ((b"\n",), False),
            ):
                for piece in pieces:
                    stdin.write(piece)
                    assert live.pauses(clock, now_ms) is pauses
            assert b"".join(live.readline() for _ in range(4)) == b"\n \r\n\n\t{}\n"

    def test_rows_of_a_named_pipe_are_appended_while_it_stays_open(
        self, flights: Cli, tmp_path: Path
    ) -> None:
        pipe = tmp_path / "rows.json"
        os.mkfifo(pipe)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(flights.ok, "produce", "flights", "--from", str(pipe))
            with pipe.open("wb", buffering=0) as writer:
                for number in range(2):
                    writer.write(b"{}\n")
                    until_equal(number + 1, lambda: count(flights))
            assert running.result().lines[0] == "appended 2 records to flights"

    def test_rows_of_csv_do_not_wait_for_a_pause_of_the_pipe(
        self, flights: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def pauses(*_: object) -> bool:
            raise AssertionError("rows of CSV were read ahead, so the pipe has no more input")

        monkeypatch.setattr(inputs.LiveInput, "pauses", pauses)
        pipe = tmp_path / "rows.csv"
        os.mkfifo(pipe)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(flights.ok, "produce", "flights", "--from", str(pipe))
            pipe.write_bytes(b"n\n1\n2\n")
            assert running.result().lines[0] == "appended 2 records to flights"

    @pytest.mark.parametrize("options", [(), ("--check",), ("--format", "csv")])
    def test_a_pipe_that_another_process_made_non_blocking_is_waited_for(
        self, flights: Cli, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        stdin = os.fdopen(writer, "wb")

        def write_and_select(
            reads: list[int], writes: list[int], errors: list[int], wait_s: float | None = None
        ) -> tuple[list[int], list[int], list[int]]:
            if not stdin.closed:
                stdin.write(b"one\ntwo\nthree\n")
                stdin.close()
            return select(reads, writes, errors, wait_s)

        monkeypatch.setattr(inputs, "select", write_and_select)
        with stdin, os.fdopen(reader, "rb") as flights.stdin:
            result = flights.ok("produce", "flights", "--from", "-", *options)
        rows = 2 if "csv" in options else 3
        assert result.lines[0] == f"appended {rows} records to flights"

    def test_lines_that_arrive_together_are_one_batch(self, flights: Cli) -> None:
        with running_produce(flights) as stdin:
            stdin.write(b"row\n" * 100)
        (log,) = flights.data.glob("flights-0/*.log")
        (batch,) = flights.ok("dump", str(log), "-o", "json").objects
        assert batch["records"] == 100

    def test_an_interrupt_states_how_many_rows_were_appended(self, flights: Cli) -> None:
        class InterruptedInput(io.BytesIO):
            def __next__(self) -> bytes:
                if line := self.readline():
                    return line
                raise KeyboardInterrupt

        flights.stdin = InterruptedInput(b"row\n" * 5_001)
        result = flights.run("produce", "flights")
        assert (result.code, result.err) == (
            130,
            "interrupted; at least 5,000 rows were appended\n",
        )
        assert len(read(flights)) == 5_000
        flights.stdin = InterruptedInput(b"row\n")
        result = flights.run("produce", "flights", "--once", "mine")
        again = "run the command again to append the remaining rows, each only once"
        assert (result.code, result.err) == (130, f"interrupted; {again}\n")
        assert len(read(flights)) == 5_000


def test_parquet_in_a_named_pipe_is_refused(flights: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "rows.parquet"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(flights.run, "produce", "flights", "--from", str(pipe))
        pipe.open("wb").close()
        result = running.result()
    assert (result.code, result.err) == (
        3,
        "error: Parquet can't be read from a pipe; give --from FILE\n",
    )


@contextmanager
def running_produce(cli: Cli, *arguments: str) -> Iterator[BinaryIO]:
    """Run `produce` on a pipe in a thread; close the pipe at the end of the `with` block."""
    reader, writer = os.pipe()
    cli.stdin = os.fdopen(reader, "rb")
    with ThreadPoolExecutor(1) as pool, cli.stdin:
        running = pool.submit(cli.ok, "produce", "flights", *arguments)
        with os.fdopen(writer, "wb") as stdin:
            yield stdin
        running.result()
    cli.stdin = None


def count(cli: Cli) -> int:
    """Return the number of records; `produce` may be running."""
    return len(Cli(cli.data).ok("read", "flights", "-o", "json").objects)


@pytest.mark.parametrize(
    ("call", "file", "note"),
    [
        ("pwrite", "flights-1/00000000000000000000.log", "note: 2 records of the call were append"),
        ("sync", "flights-0/00000000000000000000.log", "note: 5 records were appended before this"),
        ("rename", "flights-0/segment-notes.tmp", "note: 5 records were appended before this"),
    ],
)
def test_after_a_disk_failure_the_number_of_appended_rows_is_stated(
    cli: Cli, call: str, file: str, note: str
) -> None:
    cli.ok("create", "flights", "--partitions", "2")

    def fail(name: str, path: str) -> None:
        if name == call and path.endswith(file):
            raise OSError(errno.ENOSPC, "the disk is full")

    broken = Cli(cli.data, files=HookedDisk(fail))
    keys = b"".join(b"%d:v\n" % number for number in range(5))
    result = broken.run("produce", "flights", "--key-separator", ":", stdin=keys)
    assert result.code == 1
    assert note in result.err.replace("despite this error, ", "")
    is_within_append = call == "pwrite"
    partly = "note: some of the rows from stdin line 1 on may be in the log"
    assert (partly in result.err) == is_within_append
    (stated,) = re.findall(r"note: .*?(\d) records", result.err)
    assert len(read(cli)) == int(stated)


def test_after_a_failed_open_no_note_claims_that_rows_are_in_the_log(cli: Cli) -> None:
    cli.ok("create", "flights")

    def fail(name: str, path: str) -> None:
        if name == "open" and path.endswith("flights-0/00000000000000000000.log"):
            raise OSError(errno.EIO, "the disk is broken")

    result = Cli(cli.data, files=HookedDisk(fail)).run("produce", "flights", "--value", "v")
    assert result.code == 1
    assert "the disk is broken" in result.err
    assert "may be in the log" not in result.err
    assert read(cli) == []


def test_a_failed_close_does_not_hide_an_invalid_row(flights: Cli) -> None:
    def fail(name: str, path: str) -> None:
        if name == "sync" and path.endswith(".log"):
            raise OSError(errno.ENOSPC, "the disk is full")

    broken = Cli(flights.data, files=HookedDisk(fail))
    result = broken.run("produce", "flights", "-f", "json", "--from", "-", stdin=b"{}\n{")
    assert result.code == 1
    assert "sync failed: the disk is full" in result.err
    assert "note: before this failure: stdin line 2: not JSON" in result.err
    assert "1 row before it was appended" in result.err


@pytest.mark.parametrize("time", ["1700000000000.00000000001", "1e-400"])
def test_a_json_time_with_a_small_part_of_a_ms_is_refused_with_its_place(
    flights: Cli, time: str
) -> None:
    data = f'{{"t":{time}}}'.encode()
    refused = flights.run(
        "produce", "flights", "--from", "-", "-f", "json", "--time", "t", stdin=data
    )
    assert refused.code != 0
    assert f"stdin line 1: t is {time}, must be a whole number" in refused.err
    run_produce(flights, b'{"t":1700000000000.00}\n{"t":-0}', "-f", "json", "--time", "t")
    assert [row["timestamp_ms"] for row in read(flights)] == [1_700_000_000_000, 0]
