"""`tidelog produce` reads the output of `tidelog read` back to the same records, in each format."""

import json
import struct
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet
from tests.core import examples
from tests.worlds.command_line import NOW, Cli

from tidelog.amounts import plural
from tidelog.directory import Directory
from tidelog.types import Header, NewRecord

FORMATS = ("json", "csv", "arrow", "parquet")
ANY_FUTURE = "message.timestamp.after.max.ms=9223372036854775807"
COLUMNS = ("--key", "key", "--value", "value", "--headers", "headers")

ODD_TEXTS = [
    "",
    "null",
    "None",
    "-",
    '""',
    "\\N",
    "a,b",
    "\r",
    "\n",
    "\r\n",
    "\0",
    " x ",
    "{}",
    "/wA=",
]
texts = st.sampled_from(ODD_TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
utf8 = st.none() | texts.map(str.encode)
binary = utf8 | st.binary(max_size=8) | st.just(b"\xff\x00")
times = st.integers(0, NOW)


def record_lists(contents: st.SearchStrategy[bytes | None]) -> st.SearchStrategy[list[NewRecord]]:
    """Return a strategy of records with headers, whose names may repeat."""
    headers = st.lists(st.builds(Header, texts, contents), max_size=3).map(tuple)
    one = st.builds(NewRecord, key=contents, value=contents, timestamp=times, headers=headers)
    return st.lists(one, min_size=1, max_size=5)


def typed(pack: str, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[bytes | None]:
    return st.none() | numbers.map(lambda number: struct.pack(pack, number))


int64 = typed(">q", st.integers(-(2**63), 2**63 - 1))
int32 = typed(">i", st.integers(-(2**31), 2**31 - 1))
double = typed(">d", st.floats(allow_nan=False) | st.just(float("nan")))
uuids = st.none() | st.uuids().map(lambda one: str(one).encode())
plain_json = st.recursive(
    st.booleans() | st.integers() | texts,
    lambda more: st.lists(more) | st.dictionaries(texts, more),
)
json_texts = st.none() | plain_json.map(
    lambda one: json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode()
)
FORMS = {
    "string": utf8,
    "int32": int32,
    "int64": int64,
    "double": double,
    "uuid": uuids,
    "json": json_texts,
}


def round_trip(given: list[NewRecord], kind: str, *forms: str, time: str | None = None) -> None:
    """Append, read, produce into another topic, and compare."""
    time = time or ("timestamp_ms" if kind in {"json", "csv"} else "timestamp")
    with TemporaryDirectory() as place:
        cli = Cli(Path(place) / "data")
        for topic in ("first", "second"):
            cli.ok("create", topic, "--config", "retention.ms=-1", "--config", ANY_FUTURE)
        cli.append(*given, topic="first")
        written = cli.ok("read", "first", "-o", kind, *forms).raw
        file = Path(place) / f"rows.{kind}"
        file.write_bytes(written)
        produced = cli.ok(
            "produce", "second", "--from", str(file), *COLUMNS, "--time", time, *forms
        )
        assert f"appended {plural(len(given), 'record')}" in produced.out
        with Directory.open(str(cli.data), env=cli.env) as directory:
            found = [
                NewRecord(
                    key=one.key, value=one.value, timestamp=one.timestamp, headers=one.headers
                )
                for _, one in directory.records("second")
            ]
    assert found == given


BYTES = ("--key-as", "bytes", "--value-as", "bytes", "--headers-as", "bytes")
THE_NULLS = [
    NewRecord(key=content, value=content, timestamp=0, headers=(Header("", content),))
    for content in (None, b"", b"null", b'""')
]


@pytest.mark.parametrize("kind", FORMATS)
@given(given=record_lists(binary))
@example(given=THE_NULLS)
@examples(25)
def test_any_bytes_are_read_back_as_bytes(kind: str, given: list[NewRecord]) -> None:
    round_trip(given, kind, *BYTES)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@given(given=record_lists(binary))
@example(given=THE_NULLS)
@examples(25)
def test_any_bytes_are_read_back_from_binary_columns(kind: str, given: list[NewRecord]) -> None:
    round_trip(given, kind)


@pytest.mark.parametrize("kind", ["json", "csv"])
@given(given=record_lists(utf8))
@example(given=THE_NULLS)
@examples(25)
def test_text_is_read_back_without_options(kind: str, given: list[NewRecord]) -> None:
    round_trip(given, kind)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@examples(10)
def test_each_form_is_read_back(kind: str, form: str, data: st.DataObject) -> None:
    given = data.draw(record_lists(FORMS[form]))
    options = ("--key-as", form, "--value-as", form, "--headers-as", form)
    round_trip(given, kind, *options)


@pytest.mark.parametrize("kind", FORMATS)
@given(seed=st.integers(0, 100))
@examples(5)
def test_the_create_time_can_be_chosen(kind: str, seed: int) -> None:
    random = Random(seed)
    given = [NewRecord(key=b"k", value=b"v", timestamp=random.randrange(NOW)) for _ in range(3)]
    time = "create_time_ms" if kind in {"json", "csv"} else "createTimestamp"
    round_trip(given, kind, time=time)


@given(keys=st.lists(texts | st.none(), min_size=1, max_size=5))
@example(keys=["", None, "null"])
@examples(25)
def test_text_columns_of_parquet_tell_empty_from_null(keys: list[str | None]) -> None:
    with TemporaryDirectory() as place:
        cli = Cli(Path(place) / "data")
        cli.ok("create", "flights")
        file = Path(place) / "rows.parquet"
        parquet.write_table(pa.table({"k": pa.array(keys, pa.string())}), file)
        cli.ok("produce", "flights", "--from", str(file), "--key", "k", "--value", "k")
        rows = cli.ok("read", "flights", "-o", "json").objects
    assert [(row["key"], row["value"]) for row in rows] == [(key, key) for key in keys]


@pytest.mark.parametrize("kind", FORMATS)
def test_times_that_python_has_not(kind: str) -> None:
    last = 253_402_300_799_999  # the end of the year 9999
    given = [NewRecord(value=b"v", timestamp=last + later) for later in (0, 1, 2**43)]
    round_trip(given, kind)
