"""With `--check` and `--once`, `produce` appends no row twice if a failed load is run again."""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.worlds.command_line import Cli, Result

import tidelog
from tidelog.errors import InvalidRequest, MessageTooLarge
from tidelog.types import Header, NewRecord

ROWS = [b'{"k": "a", "v": 1}', b'{"k": "b", "v": 2}', b'{"k": null, "v": 3}', b'{"k": "a", "v": 4}']
COLUMNS = ("-f", "json", "--key", "k", "--value", "v")


def load(cli: Cli, rows: list[bytes], *more: str, name: str = "-") -> Result:
    if name != "-":
        Path(name).write_bytes(b"\n".join(rows))
    options = ("produce", "flights", "--from", name, *COLUMNS, *more)
    return cli.run(*options, stdin=b"\n".join(rows))


def values(cli: Cli) -> Counter[object]:
    return Counter(row["value"] for row in cli.ok("read", "flights", "-o", "json").objects)


@pytest.fixture
def flights(cli: Cli) -> Cli:
    cli.ok("create", "flights", "--partitions", "3")
    return cli


@pytest.mark.parametrize("is_file", [False, True])
def test_check_reads_the_whole_input_before_anything_is_appended(
    flights: Cli, tmp_path: Path, is_file: bool
) -> None:
    name = str(tmp_path / "rows.json") if is_file else "-"
    result = load(flights, [*ROWS, b"{"], "--check", name=name)
    assert result.code == 1
    assert "line 5: not JSON" in result.err
    assert "nothing was appended" in result.err
    assert values(flights) == {}
    assert load(flights, ROWS, "--check", name=name).code == 0
    assert values(flights) == Counter("1234")


def test_check_reads_rows_of_a_named_pipe_twice(flights: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "rows.json"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"\n".join(ROWS),))
    writer.start()
    result = flights.run("produce", "flights", "--from", str(pipe), *COLUMNS, "--check")
    writer.join()
    assert (result.code, values(flights)) == (0, Counter("1234")), result.err


def test_a_load_by_name_reports_rows_that_retention_will_delete(flights: Cli) -> None:
    flights.ok("config", "flights", "--set", "retention.ms=1000")
    old = (*COLUMNS, "--time", "t", "--once", "mine")
    rows = [b'{"k": "a", "v": 1, "t": 1000}', b'{"k": "b", "v": 2}']
    first = flights.run("produce", "flights", "--from", "-", *old, stdin=b"\n".join(rows[:1]))
    assert "note: 1 appended record is older than the topic's retention.ms" in first.err
    rows[1] = b'{"k": "b", "v": 2, "t": null}'
    again = flights.run("produce", "flights", "--from", "-", *old, stdin=b"\n".join(rows))
    assert (again.code, "older than" in again.err) == (0, False)


def test_a_failed_load_that_is_run_again_appends_no_row_twice(flights: Cli) -> None:
    failed = load(flights, [*ROWS[:2], b"{"], "--once", "mine")
    assert failed.code == 1
    assert "line 3: not JSON" in failed.err
    assert "nothing was appended" in failed.err
    assert load(flights, ROWS, "--once", "mine").code == 0
    assert values(flights) == Counter("1234")
    again = load(flights, ROWS, "--once", "mine")
    assert again.code == 0
    assert "4 rows of mine were appended by an earlier run and left out" in again.err
    assert "appended 0 records" in again.out
    assert values(flights) == Counter("1234")


def test_rows_that_a_source_has_gained_are_appended(flights: Cli) -> None:
    load(flights, ROWS[:2], "--once", "mine")
    result = load(flights, ROWS, "--once", "mine")
    assert "appended 2 records" in result.out
    assert values(flights) == Counter("1234")


def test_names_and_topics_count_by_themselves(flights: Cli) -> None:
    load(flights, ROWS, "--once", "mine")
    load(flights, ROWS, "--once", "other")
    assert values(flights) == Counter("1234" * 2)
    flights.ok("create", "second")
    options = ("--from", "-", "--once", "mine", *COLUMNS)
    flights.ok("produce", "second", *options, stdin=b"\n".join(ROWS))
    assert len(flights.ok("read", "second", "-o", "json").objects) == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:2], "flights already has 4 rows of source 'mine', but this input has only 2"),
        (
            [ROWS[1], ROWS[0], *ROWS[2:]],
            "the first 4 rows differ from those that flights already has",
        ),
    ],
)
def test_another_source_under_the_same_name_is_refused(
    flights: Cli, rows: list[bytes], message: str
) -> None:
    load(flights, ROWS, "--once", "mine")
    result = load(flights, rows, "--once", "mine")
    assert result.code == 3
    assert message in result.err
    assert values(flights) == Counter("1234")


def test_a_refused_record_leaves_nothing_and_no_file(flights: Cli) -> None:
    flights.ok("config", "flights", "--set", "cleanup.policy=compact")
    result = load(flights, ROWS, "--once", "mine")
    assert result.code == 1
    assert values(flights) == {}
    assert not list(flights.data.rglob("*.staging*"))
    flights.ok("config", "flights", "--set", "cleanup.policy=delete")
    assert load(flights, ROWS, "--once", "mine").code == 0
    assert values(flights) == Counter("1234")


@pytest.mark.parametrize("name", ["", "x" * 300, "a\nb"])
def test_a_name_that_cannot_be_kept_is_refused(flights: Cli, name: str) -> None:
    result = load(flights, ROWS, "--once", name)
    assert result.code == 3
    assert "1 to 200 printable characters" in result.err


parts = st.none() | st.binary(max_size=4)
records = st.lists(
    st.builds(
        NewRecord,
        key=parts,
        value=parts,
        timestamp=st.none() | st.integers(0, 9),
        headers=st.lists(st.builds(Header, st.text(max_size=2), parts), max_size=2).map(tuple),
    ),
    max_size=20,
)


@given(rows=records, cuts=st.lists(st.integers(0, 20), max_size=4))
@examples(20)
def test_loads_of_growing_prefixes_append_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[NewRecord], cuts: list[int]
) -> None:
    cli = Cli(tmp_path_factory.mktemp("once") / "data")
    cli.ok("create", "flights", "--partitions", "2")
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as log:
        for cut in [*sorted(cuts), len(rows), len(rows)]:
            log.load_once("flights", rows[: max(cut, 0)], source="mine", batch_bytes=64)
            if cut > len(rows):
                break
        found = Counter((one.key, one.value, one.headers) for _, one in log.records("flights"))
    assert found == Counter((one.key, one.value, one.headers) for one in rows)


def test_the_library_refuses_other_rows(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.ok("create", "flights")
    with tidelog.open(str(cli.data), writable=True, env=cli.env) as log:
        log.load_once("flights", [NewRecord(value=b"1")], source="mine", codec="zstd")
        with pytest.raises(InvalidRequest, match="the first row differs from the one that"):
            log.load_once("flights", [NewRecord(value=b"2")], source="mine")


def test_records_beyond_the_decompression_limit_are_refused(tmp_path: Path) -> None:
    row = NewRecord(value=bytes(129 << 20))
    with tidelog.open(tmp_path / "data", writable=True) as log:
        log.create_topic("flights")
        with pytest.raises(MessageTooLarge, match="bytes of records to compress"):
            log.load_once("flights", [row], source="mine", codec="zstd")
        assert log.count("flights") == 0
