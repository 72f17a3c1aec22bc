"""Commands and snippets of the documentation are valid, and run or have a reason not to."""

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest
from markdown_it import MarkdownIt
from pyarrow import parquet
from tests.worlds.spark.settings import QUICK_JVM

import tidelog
from tidelog.cli.app import app
from tidelog.cli.surroundings import Surroundings
from tidelog.config import BrokerConfig
from tidelog.config.files import read_properties
from tidelog.env import os_env

ROOT: Final = Path(__file__).parents[2]
_SPARK: Final = "needs a Spark session; tests/spark run these calls"
_CLUSTERS: Final = "needs two clusters; tests/unit/cli and tests/spark run these commands"


class Block(NamedTuple):
    """A block of code of a page, numbered from 1 in the page."""

    page: str
    number: int
    language: str
    text: str


class Setting(NamedTuple):
    """Requirements of a block: commands to run before it, replacements in its text, a broker."""

    before: str = ""
    instead: Mapping[str, str] = {}
    with_broker: bool = False


# Languages of blocks that run or have a reason not to.
_CODE: Final = {"sh", "python", "sql"}
# Languages of other blocks: output and diagrams (text), and files. Tests in tests/tidy check "hex".
_NOT_CODE: Final = {"text", "hex", "json", "properties", "dockerfile"}
# The beginning of a line in a block without a stated language, and the block's language.
_BEGINNINGS: Final = {"tidelog ": "sh", ">>> ": "pycon"}


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield all blocks of a page; the language of a block is empty if it is unknown."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    code = [one for one in tokens if one.type in {"fence", "code_block"}]
    for number, token in enumerate(code, 1):
        lines = token.content.split("\n")
        languages = [
            language
            for beginning, language in _BEGINNINGS.items()
            if any(line.startswith(beginning) for line in lines)
        ]
        stated = token.info.split()[:1] or languages[:1] or [""]
        yield Block(page, number, stated[0], token.content)


def pages() -> Iterator[Path]:
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield ROOT / "ARCHITECTURE.md"
    yield ROOT / "CONTRIBUTING.md"
    yield ROOT / "SECURITY.md"


EVERY: Final = [
    one for path in pages() for one in blocks(path.name, path.read_text(encoding="utf-8"))
]
ALL: Final = {(one.page, one.number): one for one in EVERY if one.language in _CODE}

_FLIGHTS: Final = (
    "tidelog create flights -p 2; tidelog produce flights --from flights.csv --key tailnum"
    " --time departure --zone America/New_York\n"
)
_AIRCRAFT: Final = _FLIGHTS.replace(" flights", " aircraft").replace("aircraft.csv", "flights.csv")
_REMOTE: Final = "export TIDELOG_BOOTSTRAP=broker:9092; unset TIDELOG_DATA\n"
_GROUPS: Final = (
    _REMOTE
    + _FLIGHTS
    + "for g in planes loader; do tidelog rewind -b broker:9092 --group $g --topic flights"
    + " --to earliest --execute; done\n"
)
_BROKER: Final = {
    "broker:9092": "BOOTSTRAP",
    "localhost:9092": "BOOTSTRAP",
    "127.0.0.1:9092": "BOOTSTRAP",
}

# Runs a block that is a file of pytest.
_PYTEST: Final = """

if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))
"""

# Log files of another program: a topic's segments, without indexes and without tidelog's files.
_FOREIGN: Final = (
    _FLIGHTS
    + "cp -r data foreign; rm foreign/*.* foreign/*checkpoint\n"
    + "find foreign/flights-? -type f ! -name '*.log' -delete; ls foreign foreign/*\n"
)

RUN: Final[Mapping[tuple[str, int], Setting]] = {
    ("README.md", 1): Setting(_FOREIGN, {"/var/lib/kafka/data": "foreign"}),
    ("cli.md", 1): Setting(),
    ("cli.md", 2): Setting(),
    ("cli.md", 3): Setting(_FLIGHTS),
    ("clusters.md", 1): Setting("", {" --follow": ""}, with_broker=True),
    ("clusters.md", 2): Setting(_GROUPS, with_broker=True),
    ("clusters.md", 3): Setting(_GROUPS, with_broker=True),
    ("compaction.md", 1): Setting(),
    ("connect.md", 1): Setting(with_broker=True),
    ("connect.md", 2): Setting(_REMOTE + "tidelog create flights\n", with_broker=True),
    ("control.md", 1): Setting("", {"/data/logs": "data"}),
    ("control.md", 2): Setting("", {"/data/logs": "data"}),
    ("deploy.md", 8): Setting(),
    ("erase.md", 1): Setting(
        "tidelog create orders; tidelog produce orders --key 42 --key-as int64 --value x\n"
    ),
    ("follow.md", 1): Setting(
        _REMOTE + _FLIGHTS,
        {"standby            # until Ctrl-C": "standby --once"},
        with_broker=True,
    ),
    ("notebooks.md", 2): Setting(_FLIGHTS),
    ("security.md", 2): Setting(),
    ("serve.md", 2): Setting(),
    ("serve.md", 3): Setting(instead={"    consumer.close()": f"    consumer.close()\n{_PYTEST}"}),
    ("tables.md", 1): Setting(_AIRCRAFT),
    ("tables.md", 2): Setting(_AIRCRAFT),
    ("tiers.md", 1): Setting(_FLIGHTS, {"s3://bucket/logs": "file://$PWD/store"}),
    ("transactions.md", 1): Setting(_REMOTE + "tidelog create payments\n", with_broker=True),
}
NOT_RUN: Final[Mapping[str, str]] = {
    "audit.md": _CLUSTERS,
    "durability.md": "needs a failed disk; tests/unit/server has one",
    "failover.md": _CLUSTERS,
    "jobs.md": _SPARK,
    "mirror.md": _CLUSTERS,
    "spark.md": "in one session, by test_blocks_of_the_page_on_spark",
}
NOT_RUN_BLOCKS: Final[Mapping[tuple[str, int], str]] = {
    ("CONTRIBUTING.md", 1): "runs whole suites of tests, and a benchmark",
    ("CONTRIBUTING.md", 2): "installs the newest packages from a package index",
    ("CONTRIBUTING.md", 3): "needs Python 3.13; runs the core of the tests",
    ("clusters.md", 4): "watches until Ctrl-C; tests/corpus/scenes/lag.txt has all of its options",
    ("deploy.md", 1): "needs a cluster of Spark; tests/spark/test_cluster.py starts one",
    ("deploy.md", 2): "installs packages; tests/spark/test_cluster.py sends such an archive",
    ("deploy.md", 3): "installs packages from a package index",
    ("deploy.md", 4): "needs an archive; tests/spark/test_cluster.py sends one to a cluster",
    ("deploy.md", 5): "needs a standalone cluster; tests/spark/test_cluster.py starts one",
    ("deploy.md", 6): "needs YARN",
    ("follow.md", 2): "needs a running follower; tests/unit/cli has one",
    ("generations.md", 1): "TOPIC stands for a name",
    ("generations.md", 5): "TOPIC stands for a name",
    ("metrics.md", 1): "serves until Ctrl-C; tests/server does so",
    ("objects.md", 1): "needs an S3 server; tests/peers/test_object_store.py starts one",
    ("objects.md", 2): "needs an S3 server; tests/peers/test_object_store.py starts one",
    ("objects.md", 3): "needs an S3 server of the reader's own",
    ("notebooks.md", 1): "installs packages; tests/examples/test_notebooks.py runs the notebooks",
    ("protocol.md", 1): "an excerpt of src/tidelog/protocol/messages/list_offsets.py",
    (
        "quotas.md",
        1,
    ): "has commands of Kafka's tools; tests/peers/test_quota_answers.py sets quotas",
    ("serve.md", 1): "serves until Ctrl-C; tests/server does so",
    ("tables.md", 3): _SPARK,
    ("tables.md", 4): _SPARK,
    ("testing.md", 1): "runs all benchmarks; tests/unit/bench/test_harness.py runs the harness",
    ("tiers.md", 4): "needs an S3 server of the reader's own",
}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each tidelog command of a shell text."""
    for line in text.replace("\\\n", " ").split("\n"):
        words = shlex.split(line, comments=True)
        while "tidelog" in words:
            words = words[words.index("tidelog") + 1 :]
            ends = [
                at for at, word in enumerate(words) if word in {"|", ">", "<", "||", "&&", "&", ";"}
            ]
            yield words[: ends[0]] if ends else words
            words = words[ends[0] :] if ends else []


def parse(words: list[str]) -> None:
    """Parse a command without running it; raises ClickException for unknown names and values."""
    context, command = click.Context(app, info_name="tidelog", obj=Surroundings(env=os_env())), app
    found: click.Command = command
    while isinstance(found, click.Group):
        name, found_or_none, words = found.resolve_command(context, words)
        assert found_or_none is not None
        found = found_or_none
        if isinstance(found, click.Group):
            context = click.Context(found, info_name=name, parent=context)
    found.make_context(found.name, words, parent=context)


@pytest.mark.parametrize(
    "block",
    [one for one in ALL.values() if one.language == "sh"],
    ids=lambda one: f"{one.page}-{one.number}",
)
def test_commands_are_valid(block: Block) -> None:
    for words in commands(block.text):
        parse(words)


@pytest.mark.parametrize(
    "block",
    [one for one in ALL.values() if one.language == "python"],
    ids=lambda one: f"{one.page}-{one.number}",
)
def test_python_is_valid(block: Block) -> None:
    compile(block.text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    "block",
    [one for one in EVERY if one.language == "properties"],
    ids=lambda one: f"{one.page}-{one.number}",
)
def test_broker_settings_are_valid(block: Block) -> None:
    config, notes = BrokerConfig.parse(read_properties(block.page, block.text).texts)
    assert config != BrokerConfig.parse({})[0]
    assert notes == []


def without_language(found: Iterable[Block]) -> list[str]:
    """Name the blocks whose language is neither one of the known languages nor clear."""
    known = {*_CODE, *_NOT_CODE, *_BEGINNINGS.values()}
    return [f"{one.page} block {one.number}" for one in found if one.language not in known]


def test_each_block_has_a_language_and_output_is_named_text() -> None:
    assert without_language(EVERY) == []


def test_a_block_without_a_language_is_found() -> None:
    page = "a\n\n    pip install x\n\n```\nb\n```\n\n    tidelog topics\n\n```text\nb\n```\n"
    assert without_language(blocks("a.md", page)) == ["a.md block 1", "a.md block 2"]


def test_an_unknown_option_is_found() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        parse(["read", "flights", "--frm", "-6h"])


def test_each_block_runs_or_has_a_reason_not_to() -> None:
    known = {*RUN, *NOT_RUN_BLOCKS}
    assert [key for key in ALL if key not in known and key[0] not in NOT_RUN] == []
    assert known <= set(ALL)


@pytest.mark.parametrize("key", RUN, ids=lambda key: f"{key[0]}-{key[1]}")
def test_block(key: tuple[str, int], tmp_path: Path) -> None:
    block, setting = ALL[key], RUN[key]
    rows = [f"N{number},2013-02-08T{number:02}:30-05:00,IAH" for number in range(24)]
    (tmp_path / "flights.csv").write_text("\n".join(["tailnum,departure,dest", *rows, ""]))
    (tmp_path / "notes.tsv").write_text("N1\tengine checked\n")
    text = block.text
    for old, new in setting.instead.items():
        assert old in text, old
        text = text.replace(old, new)
    if setting.with_broker:
        with tidelog.broker() as broker:
            servers = dict.fromkeys(_BROKER, broker.bootstrap_servers)
            _run(block.language, setting.before, text, tmp_path, servers)
    else:
        _run(block.language, setting.before, text, tmp_path, {})


def _run(language: str, before: str, text: str, folder: Path, servers: Mapping[str, str]) -> None:
    for name, address in servers.items():
        before, text = before.replace(name, address), text.replace(name, address)
    if language == "python":
        if "async with" in text:
            lines = "".join(f"    {line}\n" for line in text.split("\n"))
            text = f"import asyncio\nasync def main():\n{lines}asyncio.run(main())\n"
        (folder / "block.py").write_text(f"import tidelog\n{text}")
        text = f"{shlex.quote(sys.executable)} block.py"
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", f"{before}\n{text}"],
        cwd=folder,
        env={**os.environ, "PATH": here, "TIDELOG_DATA": "data", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


# Ends the streams of a block.
_END: Final = "for q in spark.streams.active:\n    q.processAllAvailable()\n    q.stop()\n"
_COUNTS: Final = """
spark.conf.set("spark.sql.shuffle.partitions", 2)
counts = stream.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
"""


@pytest.mark.spark
def test_blocks_of_the_page_on_spark(tmp_path: Path) -> None:
    on_page = [one for one in ALL.values() if one.page == "spark.md"]
    script = ""
    for block in on_page:
        if block.language == "sql":
            queries = filter(str.strip, block.text.split(";"))
            script += "".join(f"spark.sql({query.strip()!r}).collect()\n" for query in queries)
        else:
            script += (_COUNTS if "counts" in block.text else "") + block.text + _END
    data = tmp_path / "data"
    for folder in ("checkpoints", "lake"):
        script = script.replace(f"/data/{folder}", str(tmp_path / folder))
    script = script.replace("/data/logs", str(data)).replace("local[*]", "local[2]")
    with tidelog.open(data, writable=True) as log:
        for topic in ("flights", "copy", "counts"):
            log.create_topic(topic)
        log.append("flights", [tidelog.NewRecord(key=b"N1", value=b"x", timestamp=1360350000000)])
    with tidelog.broker() as broker:
        with tidelog.connect(broker.bootstrap_servers) as cluster:
            # The record's timestamp is in 2013: with default retention, the broker would delete the
            # record after half a minute.
            cluster.create_topic("copy", config={"retention.ms": "-1"})
        servers = {"broker:9092": broker.bootstrap_servers}
        _run(
            "python", f"export JDK_JAVA_OPTIONS={shlex.quote(QUICK_JVM)}", script, tmp_path, servers
        )
        with tidelog.connect(broker.bootstrap_servers) as cluster:
            assert cluster.count("copy") == 1
    # The record of INSERT is outside of the time range of the batch query.
    rows = {"flights": 1, "flights-stream": 2}
    for folder, count in rows.items():
        assert parquet.read_table(tmp_path / "lake" / folder).num_rows == count
    with tidelog.open(data) as log:
        assert log.count("copy") == 1 + 2  # one record from the batch write, two from the query
        assert log.count("counts") == 2
