"""A bootstrap writes every row once, in order, in one commit; a replay reads by create time."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.worlds.directories.topics import held

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.jobs.bootstrap.columns import RecordColumns, to_records, with_partitions
from tidelog.jobs.bootstrap.job import Bootstrap, bootstrap
from tidelog.jobs.replay.job import replay
from tidelog.jobs.target_check import TargetLoses
from tidelog.record.partitioner import partition_of
from tidelog.record.record import Record
from tidelog.spark.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.jobs.bootstrap.options import BootstrapOptions

DAY = 86_400_000
# A table of ten days, long past: KIP-33's second use case.
T0 = 1_360_281_600_000
ROWS = 4_000
STEP = 10 * DAY // ROWS
PARTITIONS = 3
SETTINGS = {"retention.ms": "-1", "internal.segment.bytes": "40000"}


@pytest.fixture(scope="module")
def table(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> "DataFrame":
    """A table with unordered rows, from several files; each eleventh row has no key."""
    path = str(tmp_path_factory.mktemp("table") / "orders.parquet")
    made = spark.range(0, ROWS, 1, 4).selectExpr(
        "id",
        "if(id % 11 = 0, null, concat('plane', id % 50)) as plane",
        f"timestamp_millis({T0} + ((id * 1619) % {ROWS}) * {STEP}) as made",
        "map('n', cast(id as string)) as tags",
    )
    made.write.parquet(path)
    return spark.read.parquet(path)


def row_of(record: Record) -> dict[str, object]:
    found: dict[str, object] = json.loads(record.value or b"")
    return found


def test_three_days_back_by_create_time(
    spark: "SparkSession", table: "DataFrame", tmp_path: Path
) -> None:
    """Use case 2 of KIP-33: load a table, then replay its last three days in order of time."""
    data = str(tmp_path / "data")
    told = bootstrap(
        spark,
        table,
        "orders",
        to=data,
        key="plane",
        time="made",
        headers="tags",
        create=PARTITIONS,
        config=SETTINGS,
        tasks=4,
    ).collect()
    partitions = held(data, "orders")
    check_every_row(partitions)
    assert [(row["first_offset"], row["end_offset"]) for row in told] == [
        (0, len(part)) for part in partitions
    ]
    with Directory.open(data) as directory:
        for row in told:
            reader = directory.partition("orders", row["partition"])
            ends = (row["first_offset"], row["end_offset"] - 1)
            assert [reader.append_time_of(at) for at in ends] == [row["append_ms"]] * 2
    assert sum(row["segments"] for row in told) > PARTITIONS
    end = T0 + 10 * DAY
    (summary,) = replay(
        spark, data, "orders", to=f"parquet:{tmp_path / 'days'}", start=end - 3 * DAY, end=end
    ).collect()
    days = spark.read.parquet(str(tmp_path / "days"))
    expected = [r for part in partitions for r in part if (r.timestamp or 0) >= end - 3 * DAY]
    assert summary["records"] == days.count() == len(expected) == 3 * ROWS // 10
    found = days.selectExpr("partition", "offset", "unix_millis(timestamp)").collect()
    assert Counter(map(tuple, found)) == Counter(
        (number, r.offset, r.timestamp)
        for number, part in enumerate(partitions)
        for r in part
        if (r.timestamp or 0) >= end - 3 * DAY
    )
    # The replayed records are the last ones of each partition; the offsets before are not read.
    assert summary["offsets"] < ROWS // 2


def check_every_row(partitions: list[list[Record]]) -> None:
    """Assert that each row is in its key's partition once, in order, with its time."""
    ids = [row_of(record)["id"] for part in partitions for record in part]
    assert sorted(ids, key=str) == sorted(range(ROWS), key=str)
    for number, part in enumerate(partitions):
        times = [record.timestamp for record in part]
        assert times == sorted(times, key=lambda ms: ms or 0)
        assert [record.offset for record in part] == list(range(len(part)))
        for record in part:
            row = row_of(record)
            assert record.timestamp == T0 + (int(str(row["id"])) * 1619) % ROWS * STEP
            assert [(h.key, h.value) for h in record.headers] == [("n", str(row["id"]).encode())]
            if record.key is None:
                assert row["plane"] is None
            else:
                assert record.key.decode() == row["plane"]
                assert partition_of(record.key, PARTITIONS) == number


def test_a_job_loads_its_table_once(
    spark: "SparkSession", table: "DataFrame", tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    notes: list[str] = []
    clock = ManualClock(T0 + 10 * DAY)

    class Listener:
        def note(self, text: str) -> None:
            notes.append(text)
            clock.advance(1_500)

        def at(self, done: int, planned: int) -> None:
            pass

    options: BootstrapOptions = {
        "to": Place(data),
        "key": "plane",
        "time": "made",
        "order": "key",
        "job_id": "orders of 2013",
        "create": PARTITIONS,
        "config": SETTINGS,
    }
    env = Env(clock=clock)
    first = Bootstrap("orders", **options, listener=Listener(), env=env).run(table)
    assert first.seconds == 1.5 * len(notes) > 0
    again = Bootstrap("orders", **options, listener=Listener(), env=env).run(table)
    assert not first.was_done
    assert again.was_done
    assert again.partitions == first.partitions
    assert "loaded its table before" in notes[-1]
    partitions = held(data, "orders")
    assert sum(map(len, partitions)) == first.records == ROWS
    for part in partitions:
        keys = [(record.key or b"", record.timestamp or 0) for record in part]
        assert keys == sorted(keys)


def test_the_target_is_held_against_the_table(
    spark: "SparkSession", table: "DataFrame", tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    now = T0 + 10 * DAY
    config = {"retention.ms": str(3 * DAY), "cleanup.policy": "compact,delete"}
    job = Bootstrap(
        "orders",
        to=Place(data),
        key="plane",
        time="made",
        create=PARTITIONS,
        config=config,
        env=Env(clock=ManualClock(now)),
    )
    with pytest.raises(TargetLoses) as caught:
        job.run(table)
    told = {f.effect.value: f.records.records for f in caught.value.findings if f.records}
    assert told == {"refused": len(range(0, ROWS, 11)), "deleted at once": 7 * ROWS // 10}
    assert not Path(data).exists()  # a refused job leaves nothing


def test_columns(spark: "SparkSession") -> None:
    made = spark.sql(
        "select 5 as `a.b`, 1360281600123 as ms, date'2013-02-08' as day, named_struct('x', null)"
        " as part, array(named_struct('key', 'k', 'value', 'v')) as pairs, 1.5 as half"
    )

    def record(**named: str) -> tuple[object, ...]:
        row = to_records(made, RecordColumns(**named)).collect()[0]
        return tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row)

    value = record()[0]
    assert isinstance(value, bytes)
    assert json.loads(value)["part"] == {"x": None}
    assert record(value="a.b", key="part") == (b"5", b'{"x":null}')
    assert record(value="half", headers="pairs")[1] == [("k", bytearray(b"v"))]
    times = to_records(made, RecordColumns(value="a.b", time="ms"))
    assert times.selectExpr("unix_millis(timestamp)").collect()[0][0] == 1360281600123
    days = to_records(made, RecordColumns(value="a.b", time="day"))
    assert days.selectExpr("unix_millis(timestamp)").collect()[0][0] == T0
    with pytest.raises(InvalidRequest, match=r"no column 'day2'; did you mean day\?"):
        to_records(made, RecordColumns(time="day2"))
    with pytest.raises(InvalidRequest, match="column half is decimal"):
        to_records(made, RecordColumns(time="half"))
    with pytest.raises(InvalidRequest, match="headers must be a map"):
        to_records(made, RecordColumns(headers="day"))


def test_rows_without_a_key_have_the_same_partition_in_each_attempt(spark: "SparkSession") -> None:
    made = spark.range(0, 60, 1, 2).selectExpr("id", "cast(null as string) as plane")
    chosen = [
        with_partitions(to_records(rows, RecordColumns(key="plane")), PARTITIONS).collect()
        for rows in (made, made.repartition(5))
    ]
    first, again = ({bytes(row["value"]): row["partition"] for row in rows} for rows in chosen)
    assert first == again
    assert set(first.values()) == set(range(PARTITIONS))
