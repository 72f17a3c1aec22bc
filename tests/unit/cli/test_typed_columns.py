"""`read` and `diff` as Arrow and Parquet: columns have the types of `--key-as` and `--value-as`."""

import io
import math
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.worlds.command_line import NOW, Cli

from tidelog.types import Header, NewRecord

UUID_TEXT = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
CONTENTS = {
    "string": (pa.string(), "é".encode(), "é"),
    "int32": (pa.int32(), struct.pack(">i", -7), -7),
    "int64": (pa.int64(), struct.pack(">q", 2**40), 2**40),
    "double": (pa.float64(), struct.pack(">d", 1.5), 1.5),
    "json": (pa.string(), b'{"a":[1,null]}', '{"a": [1, null]}'),
    "uuid": (pa.string(), UUID_TEXT.encode(), UUID_TEXT),
    "bytes": (pa.binary(), b"\xff", b"\xff"),
    "auto": (pa.binary(), b"\xff", b"\xff"),
}


def table_of(raw: bytes, kind: str) -> pa.Table:
    if kind == "parquet":
        return parquet.read_table(io.BytesIO(raw))
    return pa.ipc.open_stream(io.BytesIO(raw)).read_all()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("form", CONTENTS)
@pytest.mark.parametrize("order", [(), ("--order", "time"), ("--table",)])
def test_columns_have_the_type_of_the_option(
    cli: Cli, kind: str, form: str, order: tuple[str, ...]
) -> None:
    arrow_type, data, content = CONTENTS[form]
    cli.ok("create", "flights")
    headers = (Header("h", data), Header("none", None))
    cli.append(
        NewRecord(key=data, value=data, timestamp=NOW, headers=headers),
        NewRecord(key=b"" if form in ("string", "bytes", "auto") else data, timestamp=NOW)
        if not order
        else NewRecord(key=data, value=data, timestamp=NOW, headers=headers),
    )
    forms = ("--key-as", form, "--value-as", form, "--headers-as", form)
    table = table_of(cli.ok("read", "flights", "-o", kind, *forms, *order).raw, kind)
    assert table.schema.field("key").type == arrow_type
    assert table.schema.field("value").type == arrow_type
    assert table["key"].to_pylist()[0] == content
    assert table["value"].to_pylist()[0] == content
    assert table["headers"].to_pylist()[0] == [
        {"key": "h", "value": content},
        {"key": "none", "value": None},
    ]
    if not order:
        assert table["value"].to_pylist()[1] is None


def test_infinity_and_nan_are_numbers(cli: Cli) -> None:
    cli.ok("create", "flights")
    numbers = (math.inf, -math.inf, math.nan)
    cli.append(*(NewRecord(value=struct.pack(">d", one), timestamp=NOW) for one in numbers))
    raw = cli.ok("read", "flights", "-o", "parquet", "--value-as", "double").raw
    assert repr(table_of(raw, "parquet")["value"].to_pylist()) == "[inf, -inf, nan]"


@pytest.mark.parametrize(
    ("form", "data"),
    [("int32", b"N14228"), ("string", b"\xff"), ("uuid", b"x"), ("json", b"{"), ("json", b"null")],
)
@pytest.mark.parametrize("name", ["key", "value", "headers"])
def test_bytes_that_the_type_cannot_represent_are_refused_as_in_csv(
    cli: Cli, form: str, data: bytes, name: str
) -> None:
    cli.ok("create", "flights")
    good = CONTENTS[form][1]
    cli.append(
        NewRecord(key=good, value=good, timestamp=NOW, headers=(Header("h", good),)),
        NewRecord(
            key=data if name == "key" else good,
            value=data if name == "value" else good,
            timestamp=NOW,
            headers=(Header("h", data if name == "headers" else good),),
        ),
    )
    option = ("--key-as", form, "--value-as", form, "--headers-as", form)
    csv = cli.run("read", "flights", "-o", "csv", *option)
    for kind in ("arrow", "parquet"):
        result = cli.run("read", "flights", "-o", kind, *option)
        assert (result.code, result.err) == (csv.code, csv.err)
    assert csv.code == 1
    assert f"flights-0 offset 1: {name}: " in csv.err
    assert cli.run("read", "flights", "-o", "parquet", *option, "--limit", "1").code == 0


def test_diff_has_the_types_of_the_options(cli: Cli) -> None:
    cli.ok("create", "flights")
    for number in (1, 2):
        value = struct.pack(">q", number)
        cli.append(NewRecord(key=b"k", value=value, timestamp=NOW + number))
    command = ("diff", "flights", "--from", str(NOW + 1), "-o", "parquet")
    table = table_of(cli.ok(*command, "--key-as", "string", "--value-as", "int64").raw, "parquet")
    rows = table.select(["key", "before", "after"]).to_pylist()
    assert rows == [{"key": "k", "before": 1, "after": 2}]
    json_error = cli.run(*command[:-1], "json", "--value-as", "int32")
    refused = cli.run(*command, "--value-as", "int32")
    assert (refused.code, refused.err) == (1, json_error.err)
    assert "flights-0 offset 0: value: " in refused.err


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_json_columns_that_another_tool_wrote_are_read_back(
    cli: Cli, kind: str, tmp_path: Path
) -> None:
    """The file's columns have no metadata, because other tools drop the metadata."""
    cli.ok("create", "flights")
    cli.ok("create", "copy")
    texts = (b'{"a":[1,null]}', b'"ZRH"', b"12", b'"12"')
    given = [
        NewRecord(key=one, value=one, timestamp=NOW, headers=(Header("h", one), Header("n", None)))
        for one in texts
    ]
    cli.append(*given)
    forms = ("--key-as", "json", "--value-as", "json", "--headers-as", "json")
    table = table_of(cli.ok("read", "flights", "-o", kind, *forms).raw, kind)
    table = pa.Table.from_arrays(table.columns, names=table.column_names)
    file = str(tmp_path / f"rows.{kind}")
    if kind == "parquet":
        parquet.write_table(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)
    columns = ("--key", "key", "--value", "value", "--headers", "headers", "--time", "timestamp")
    cli.ok("produce", "copy", "--from", file, *columns, *forms)
    rows = cli.ok("read", "copy", "-o", "json", *forms).objects
    assert [row["key"] for row in rows] == [{"a": [1, None]}, "ZRH", 12, "12"]
    assert [row["value"] for row in rows] == [row["key"] for row in rows]
    assert [row["headers"] for row in rows] == [[["h", row["key"]], ["n", None]] for row in rows]


def test_text_of_parquet_that_is_not_json_is_refused_as_json(cli: Cli, tmp_path: Path) -> None:
    cli.ok("create", "flights")
    file = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"v": ["1", "ZRH"]}), file)
    result = cli.run("produce", "flights", "--from", file, "--value", "v", "--value-as", "json")
    assert result.code == 1
    assert "row 2: v: 'ZRH' can't be read as json" in result.err
