"""`tidelog spark bootstrap` and `replay` from the command line: output, exit codes, reports."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CSV = """id,plane,made
0,N1,2013-02-08T12:00:00Z
1,N2,2013-02-08T12:30:00Z
2,N1,2013-02-08T13:10:00Z
3,,2013-02-09T00:00:00Z
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


def tidelog(*arguments: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    code = run([str(one) for one in arguments], Surroundings(stdout=out, stderr=err))
    return Result(code, out.getvalue(), err.getvalue())


def load(folder: Path, *more: str) -> Result:
    table = folder / "flights.csv"
    if not table.exists():
        table.write_text(CSV)
    columns = ("--key", "plane", "--time", "made")
    given = ("--to", folder / "data", *columns, "--create", 2, "-o", "json")
    return tidelog("spark", "bootstrap", table, "flights", *given, *more)


def test_a_table_is_loaded_and_a_range_is_replayed(spark: "SparkSession", tmp_path: Path) -> None:
    page, data = tmp_path / "loaded.html", tmp_path / "data"
    loaded = load(tmp_path, "--config", "retention.ms=-1", "--report", str(page))
    assert loaded.code == 0, loaded.err
    assert sum(int(str(row["records"])) for row in loaded.objects) == 4
    assert "4 records were loaded in" in page.read_text()
    again = load(tmp_path, "--config", "retention.ms=-1")
    assert again.code == 0
    assert again.objects == loaded.objects
    assert "loaded its table before" in again.err

    with Directory.open(str(tmp_path / "copy"), writable=True) as directory:
        directory.create_topic("flights", partitions=2, config={"retention.ms": "-1"})
    page = tmp_path / "replayed.html"
    day = ("--from", "2013-02-08..+1d", "--zone", "UTC")
    to = ("--to", tmp_path / "copy", "--report", page, "-o", "json")
    replayed = tidelog("spark", "replay", data, "flights", *day, *to)
    assert replayed.code == 0, replayed.err
    (summary,) = replayed.objects
    assert summary["records"] == 3
    assert summary["start_ms"] == 1_360_281_600_000
    text = page.read_text()
    assert "02-08 12:00" in text
    assert "3 records of flights were written to" in text

    shown = tidelog(
        "spark", "replay", data, "flights", "--from", "2013-02-09T00:00Z..", "--to", "console"
    )
    assert [row["timestamp"] for row in shown.objects] == ["2013-02-09 00:00:00"]
    assert json.loads(str(shown.objects[0]["value"])) == {
        "id": 3,
        "plane": None,
        "made": "2013-02-09T00:00:00.000Z",
    }


def test_a_target_that_would_lose_records_is_exit_code_2(
    spark: "SparkSession", tmp_path: Path
) -> None:
    refused = load(tmp_path)
    assert refused.code == 2
    assert refused.out == ""
    loss = "loss: flights: retention.ms=604800000: 4 records created before"
    assert loss in refused.err
    hint = "repeat the command with --config retention.ms=-1, or use --force"
    assert f" would refuse or lose records, so nothing was written\nhint: {hint}\n" in refused.err
    forced = load(tmp_path, "--force")
    assert forced.code == 0
    assert sum(int(str(row["records"])) for row in forced.objects) == 4


def test_a_table_of_a_database_is_loaded(spark: "SparkSession", tmp_path: Path) -> None:
    """The table is in Derby, a database that is part of Spark."""
    virtual_machine = spark.sparkContext._jvm
    assert virtual_machine is not None
    log = str(tmp_path / "derby.log")
    virtual_machine.java.lang.System.setProperty("derby.stream.error.file", log)
    url = f"jdbc:derby:{tmp_path / 'shop'};create=true"
    orders = spark.range(0, 50, 1, 2).selectExpr("id", "timestamp_millis(id * 1000) as made")
    orders.write.jdbc(url, "orders")
    given = ("--to", tmp_path / "data", "--key", "id", "--time", "made", "--create", 1)
    more = ("--option", "dbtable=orders", "--config", "retention.ms=-1", "-o", "json")
    loaded = tidelog("spark", "bootstrap", url, "orders", *given, *more)
    assert loaded.code == 0, loaded.err
    with Directory.open(str(tmp_path / "data")) as directory:
        records = list(directory.partition("orders", 0).records())
    assert [(r.key, r.timestamp) for r in records] == [
        (str(n).encode(), n * 1000) for n in range(50)
    ]


def test_usage(spark: "SparkSession", tmp_path: Path) -> None:
    unknown = tidelog("spark", "bootstrap", tmp_path / "rows", "t", "--to", tmp_path)
    assert unknown.code == 3
    assert "give --format, one of parquet, csv" in unknown.err
    missing = tidelog("spark", "replay", tmp_path / "none", "t", "--to", "console")
    assert missing.code == 3
    assert "Traceback" not in missing.err
    tidelog("create", "t", "--data", tmp_path / "log")
    gone = tidelog("spark", "bootstrap", tmp_path / "gone.parquet", "t", "--to", tmp_path / "log")
    assert gone.code == 3
    assert gone.err.endswith("gone.parquet: No such file or directory\n")
    assert len(gone.err.splitlines()) == 1
