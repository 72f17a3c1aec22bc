"""A cell that Spark can't represent is an error, or null with mode=permissive."""

import pytest

import tidelog
from tidelog.errors import InvalidRequest, InvalidTimestamp, SerdeError, TidelogError
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.pushdown import NO_LIMITS
from tidelog.types import INT64_MAX

NANOSECONDS = 1_700_000_000_000_000_000
GOOD = b"\0\0\0\0\0\0\0\7"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write ten good records to each of three partitions, and a bad one to partition 1."""
    path = str(tmp_path_factory.mktemp("log"))
    with tidelog.open(path, writable=True) as directory:
        config = {"message.timestamp.after.max.ms": str(INT64_MAX)}
        directory.create_topic("t", partitions=3, config=config)
        for number in range(3):
            rows = [tidelog.NewRecord(key=GOOD, value=b"{}", timestamp=n) for n in range(10)]
            directory.append("t", rows, partition=number)
        odd = tidelog.NewRecord(key=b"bad", value=b"{broken", timestamp=NANOSECONDS)
        directory.append("t", [odd], partition=1)
    return path


def rows(root: str, **options: str) -> list[dict[str, object]]:
    read = read_source_options({"path": root, "subscribe": "t", **options})
    with open_backend(read, read.columns) as backend:
        tasks = backend.plan_batch(NO_LIMITS).tasks
    return [row for task in tasks for batch in task.read() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("options", "kind", "column"),
    [
        ({}, InvalidTimestamp, "timestamp"),
        ({"columns": "value,timestamp"}, InvalidTimestamp, "timestamp"),
        ({"columns": "value", "valueAs": "json"}, SerdeError, "value"),
        ({"columns": "key", "keyAs": "int64"}, SerdeError, "key"),
        ({"columns": "key", "keyAs": "uuid"}, SerdeError, "key"),
    ],
)
def test_the_error_names_partition_and_offset(
    root: str, options: dict[str, str], kind: type[TidelogError], column: str
) -> None:
    with pytest.raises(kind) as caught:
        rows(root, **options)
    place = "t-0 offset 0" if options.get("keyAs") == "uuid" else "t-1 offset 10"
    assert f"{place} (column {column}):" in str(caught.value)


def test_permissive_shows_the_other_cells_and_the_reason(root: str) -> None:
    found = rows(root, mode="permissive", keyAs="int64", valueAs="json")
    assert len(found) == 31
    (odd,) = [row for row in found if row["_corrupt_record"] is not None]
    assert (odd["key"], odd["value"], odd["timestamp"]) == (None, None, None)
    assert (odd["topic"], odd["partition"], odd["offset"]) == ("t", 1, 10)
    reasons = str(odd["_corrupt_record"]).split("; t-1 offset 10 ")
    assert [reason.split(":")[0] for reason in reasons[1:]] == [
        "(column value)",
        "(column timestamp)",
    ]
    assert reasons[0].startswith("t-1 offset 10 (column key):")
    assert {row["key"] for row in found if row is not odd} == {7}


def test_permissive_needs_no_other_column(root: str) -> None:
    found = rows(root, mode="permissive", valueAs="json", columns="_corrupt_record,value")
    assert [list(row) for row in found] == [["_corrupt_record", "value"]] * 31
    assert sum(row["value"] is None for row in found) == 1


@pytest.mark.parametrize("columns", ["offset", "_corrupt_record", "key", "value,key"])
def test_a_corrupt_record_is_marked_with_any_columns(root: str, columns: str) -> None:
    found = rows(root, mode="permissive", keyAs="int64", valueAs="json", columns=columns)
    (odd,) = [row for row in found if row["_corrupt_record"] is not None]
    assert "(column key):" in str(odd["_corrupt_record"])
    assert "(column value):" in str(odd["_corrupt_record"])
    assert set(odd) == {*columns.split(","), "_corrupt_record"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "dropMalformed"}, "would drop records without notice"),
        ({"mode": "lax"}, "option mode=lax: must be one of failfast, permissive"),
        ({"columns": "value,_corrupt_record"}, "applies only with the option mode=permissive"),
    ],
)
def test_other_modes_are_refused(root: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        rows(root, **options)
