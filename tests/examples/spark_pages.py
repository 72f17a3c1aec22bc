"""Runs blocks of pages in one process with one Spark session.

    python spark_pages.py PAGE...

Each page starts in an empty directory, with the files of `write_inputs`, flights.parquet, the
variables `spark`, `tidelog` and `SparkSession`, and brokers of its own. The first failure ends the
process; the traceback names the page and the block.
"""

import ast
import io
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.examples.blocks import ALL, Block, commands, replace, running_brokers, write_inputs
from tests.spark.drivers import open_session

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Page(NamedTuple):
    """Requirements of a page's blocks.

    Attributes:
        before: Commands that run before the first block.
        instead: Replacements in the blocks, by number. `HERE` is the page's directory.
        brokers: Number of brokers.
        after: Python that checks the results.
        numbers: Numbers of the blocks; None for all blocks of the page.
    """

    before: str = ""
    instead: Mapping[int, Mapping[str, str]] = {}
    brokers: int = 0
    after: str = ""
    numbers: tuple[int, ...] | None = None


_KEPT: Final = "--config retention.ms=-1"
_LOAD: Final = "--from flights.csv --key tailnum --time departure --zone America/New_York"
_FLIGHTS: Final = f"""
tidelog create flights -p 2 {_KEPT}
tidelog produce flights {_LOAD}
"""
_STORE: Final = {"s3://logs/east": "file://HERE/data"}
# Records that producers have sent to both clusters.
_ORDERS: Final = "".join(
    f"""
tidelog create orders {_KEPT} -b {cluster}:9092
tidelog produce orders {_LOAD} -b {cluster}:9092
"""
    for cluster in ("east", "west")
)
_COUNTS: Final = """
counts = stream.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
"""

# Pages whose blocks take a second or two each.
SHORT: Final[Mapping[str, Page]] = {
    "deploy.md": Page(instead={1: {"/opt/tidelog/bin/python": sys.executable}}, numbers=(1,)),
    "objects.md": Page(
        before=_FLIGHTS, instead={2: {"s3://bucket/logs": "file://HERE/data"}}, numbers=(2,)
    ),
    "spark.md": Page(
        before=f"""
{_FLIGHTS}
tidelog create counts {_KEPT}
tidelog create copy -p 2 {_KEPT} -b broker:9092
""",
        instead={
            1: {"/data/logs": "HERE/data"},
            3: {"/data/logs": "HERE/data"},
            4: {"/data/logs": "HERE/data"},
            5: {"/data/": "HERE/"},
            7: {"/data/checkpoints": "HERE/checkpoints", "/data/logs": "HERE/data"},
            8: {
                "def changed": f"{_COUNTS}def changed",
                "/data/checkpoints": "HERE/checkpoints",
                "/data/logs": "HERE/data",
            },
        },
        brokers=1,
        after="""
assert spark.read.parquet("lake/flights").count() == 12
# The record of INSERT is outside of the time range of the batch query.
assert spark.read.parquet("lake/flights-stream").count() == 25
with tidelog.open("data") as log:
    assert log.count("copy") == 12 + 25  # 12 records from the batch write, 25 from the query
    assert log.count("counts") == 25
with tidelog.connect("broker:9092") as cluster:
    assert cluster.count("copy") == 12
""",
    ),
    "tables.md": Page(
        before=_FLIGHTS.replace(" flights ", " aircraft ")
        + f"tidelog create aircraft {_KEPT} -b broker:9092\n"
        + f"tidelog produce aircraft {_LOAD} -b broker:9092\n",
        instead={4: {"s3://bucket/logs": "file://HERE/data"}},
        brokers=1,
        numbers=(3, 4),
    ),
}
# Pages with jobs, which take longer.
LONG: Final[Mapping[str, Page]] = {
    "audit.md": Page(
        before=f"""
{_FLIGHTS}
{_ORDERS}
tidelog spark mirror kafka://east:9092 orders --to data --checkpoint m --create
tidelog rewind -b broker:9092 --group loader --topic orders --to latest --execute
""",
        instead={1: {"/shared/orders": "HERE/state", "s3://backup/data": "file://HERE/data"}},
        brokers=2,
    ),
    "failover.md": Page(
        before=f"""
tidelog create orders {_KEPT} -b east:9092
tidelog produce orders {_LOAD} -b east:9092
tidelog rewind -b east:9092 --group billing --topic orders --to earliest --execute
tidelog spark mirror kafka://east:9092 orders --to kafka://west:9092 --checkpoint m --create
""",
        instead={2: {"/var/lib/m": "HERE/m"}},
        brokers=2,
        numbers=(2,),
    ),
    "jobs.md": Page(
        before=f"""
tidelog create flights -p 4 -b broker:9092 {_KEPT}
tidelog create storm -p 4 -b broker:9092 {_KEPT}
tidelog create orders --config cleanup.policy=compact
tidelog produce orders {_LOAD}
tidelog rewind -b broker:9092 --group loader --topic storm --to earliest --execute
tidelog rewind -b broker:9092 --group loader --topic flights --to earliest --execute
tidelog follow broker:9092 --data standby --once
""",
        instead={
            6: _STORE,
            7: _STORE,
            10: {"/var/cache/zones": "HERE/zones"},
        },
        brokers=1,
    ),
    "late_data.ipynb": Page(before=_FLIGHTS, instead={1: _STORE, 2: _STORE}),
    "mirror.md": Page(
        before=f"""
{_FLIGHTS}
tidelog create orders -b east:9092 {_KEPT}
tidelog produce orders -b east:9092 {_LOAD}
tidelog create bills -b east:9092 {_KEPT}
tidelog create orders -b north:9092 {_KEPT}
tidelog produce orders -b north:9092 {_LOAD}
tidelog create shop.a -b east:9092 {_KEPT}
tidelog create shop.test -b east:9092 {_KEPT}
tidelog rewind -b east:9092 --group billing --topic orders --to earliest --execute
""",
        instead={
            1: {" --continuous": "", "/var/lib/m": "HERE/m", **_STORE},
            2: {"/var/lib/all": "HERE/all"},
        },
        brokers=3,
    ),
}
PAGES: Final[Mapping[str, Page]] = {**SHORT, **LONG}


def blocks_of(name: str) -> list[Block]:
    """Return the blocks of a page that run in the session."""
    numbers = PAGES[name].numbers
    return [
        one
        for one in ALL.values()
        if one.page == name and (numbers is None or one.number in numbers)
    ]


def _run_commands(place: str, text: str) -> None:
    """Run tidelog's commands in this process, so that they use this process's Spark session."""
    for line in text.replace("\\\n", " ").splitlines():
        assert not line or line.startswith("tidelog "), f"{place}: {line}"
    for words in commands(text):
        errors = io.StringIO()
        code = run(words, Surroundings(stdout=io.StringIO(), stderr=errors))
        assert code == 0, f"{place}: tidelog {words} exited with {code}: {errors.getvalue()}"


def _run_python(place: str, text: str, scope: dict[str, object]) -> None:
    """Execute Python; read the rows of each DataFrame that no variable keeps."""
    from pyspark.sql import DataFrame

    for node in ast.parse(text, place).body:
        if isinstance(node, ast.Expr):
            value = eval(compile(ast.Expression(node.value), place, "eval"), scope)
            if isinstance(value, DataFrame):
                value.collect()
        else:
            exec(compile(ast.Module([node], []), place, "exec"), scope)


def _run_block(block: Block, text: str, scope: dict[str, object], spark: "SparkSession") -> None:
    place = f"{block.page}, block {block.number}"
    if block.language == "sh":
        _run_commands(place, text)
    elif block.language == "sql":
        for query in filter(str.strip, text.split(";")):
            spark.sql(query).collect()
    else:
        _run_python(place, text, scope)
        for stream in spark.streams.active:
            stream.processAllAvailable()
            stream.stop()


def _run_page(name: str, spark: "SparkSession") -> None:
    from pyarrow import csv, parquet
    from pyspark.sql import SparkSession

    page, here = PAGES[name], Path.cwd()
    write_inputs(here)
    parquet.write_table(csv.read_csv("flights.csv"), "flights.parquet")
    scope: dict[str, object] = {"spark": spark, "tidelog": tidelog, "SparkSession": SparkSession}
    with running_brokers(page.brokers) as servers:

        def filled(text: str) -> str:
            for old, new in {**servers, "HERE": str(here)}.items():
                text = text.replace(old, new)
            return text

        _run_commands(f"{name}, before", filled(page.before))
        for block in blocks_of(name):
            text = replace(block.text, page.instead.get(block.number, {}))
            _run_block(block, filled(text), scope, spark)
        _run_python(f"{name}, after", filled(page.after), scope)
    for path in here.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def main(names: list[str]) -> None:
    """Run pages in the current directory, and print the time that each one took."""
    os.environ["TIDELOG_DATA"] = "data"
    spark = open_session("local[2]")
    for name in names:
        before = time.monotonic()
        _run_page(name, spark)
        print(f"{name}: {time.monotonic() - before:.1f} s", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
