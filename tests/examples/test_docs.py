"""Commands and snippets of the documentation are valid; tests run them, or state why not."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest
from tests.examples import spark_pages
from tests.examples.blocks import (
    ALL,
    EVERY,
    PAGES,
    ROOT,
    Block,
    blocks,
    commands,
    phrases,
    replace,
    running_brokers,
    without_language,
    write_inputs,
)
from tests.spark.drivers import with_tests
from tests.worlds.command_words import parse
from tests.worlds.kafka.home import KafkaHome

from tidelog.cli.app import app
from tidelog.cli.surroundings import Surroundings
from tidelog.config import BrokerConfig
from tidelog.config.files import read_properties
from tidelog.env import os_env

LINE_MAX: Final = 100
_BRACKETS: Final = str.maketrans("[]", "  ")


class Setting(NamedTuple):
    """Requirements of a block: commands to run before it, replacements in its text, brokers."""

    before: str = ""
    instead: Mapping[str, str] = {}
    brokers: int = 0


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
# Creates a topic on each of two clusters, and a consumer group on the first one.
_PAIR: Final = """
for cluster in east:9092 west:9092; do
    tidelog create orders -b $cluster
    tidelog produce orders -b $cluster --key k --value v
done
tidelog rewind -b east:9092 --group billing --topic orders --to latest --execute
"""
# Stops a broker when it has printed its first line.
_SERVE: Final = """
tidelog() {
    [ "$1" = serve ] || { command tidelog "$@"; return; }
    command tidelog "$@" --listen 127.0.0.1:0 > served &
    until [ -s served ]; do kill -0 $!; sleep 0.05; done
    kill $!
    wait $!
    grep -q '^listening on 127.0.0.1:[0-9]*, data in ' served
}
"""
# Starts a broker and takes a partition offline: a write fails, because the broker's largest
# allowed file size is 0 meanwhile.
_FAILED_DISK: Final = """
tidelog serve --data data --listen 127.0.0.1:0 > served 2> >(cat > log) &
trap "kill $!; wait $!" EXIT
until [ -s served ]; do kill -0 $!; sleep 0.05; done
address=$(sed 's/.* on \\(.*\\), data .*/\\1/' served)
tidelog create flights -b "$address"
tidelog produce flights -b "$address" --value x
prlimit --pid $! --fsize=0:unlimited
until grep -q 'flights-0 is offline' log; do
    tidelog produce flights -b "$address" --value x --timeout 2s && exit 1
done
prlimit --pid $! --fsize=unlimited:unlimited
"""
_FOLLOW: Final = """
follow() {
    command tidelog follow broker:9092 --data standby > followed &
    until [ "$(command tidelog standby status --data standby -o json | grep -c '"lag": *0')" = 2 ]
    do kill -0 $!; sleep 0.05; done
}
follow
"""
_AGAIN: Final = "follow; tidelog standby promote --data standby"
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
    ("docs/README.md", 1): Setting(_FOREIGN, {"/var/lib/kafka/data": "foreign"}),
    ("cli.md", 1): Setting(),
    ("cli.md", 2): Setting(),
    ("cli.md", 3): Setting(_FLIGHTS),
    ("clocks.md", 1): Setting(_FLIGHTS),
    ("clocks.md", 2): Setting(_FLIGHTS),
    ("clocks.md", 3): Setting(_FLIGHTS),
    ("clusters.md", 1): Setting("", {" --follow": ""}, brokers=1),
    ("clusters.md", 2): Setting(_GROUPS, brokers=1),
    ("clusters.md", 3): Setting(_GROUPS, brokers=1),
    ("clusters.md", 4): Setting(
        _GROUPS + "page-on-call() { :; }\n",
        {"--watch --every 2s": "--watch --every 1ms --samples 2"},
        brokers=1,
    ),
    ("compaction.md", 1): Setting(),
    ("connect.md", 1): Setting(brokers=1),
    ("connect.md", 2): Setting(_REMOTE + "tidelog create flights\n", brokers=1),
    ("control.md", 1): Setting("", {"/data/logs": "data"}),
    ("control.md", 2): Setting("", {"/data/logs": "data"}),
    ("deploy.md", 8): Setting(),
    ("durability.md", 1): Setting(
        _FAILED_DISK,
        {
            "# all": "| grep 'flights-0: reopened'  # all",
            "flights:0 --data data": "flights:0 --data data 2>&1 | grep 'no partition was offline'",
        },
    ),
    ("erase.md", 1): Setting(
        "tidelog create orders; tidelog produce orders --key 42 --key-as int64 --value x\n"
    ),
    ("follow.md", 1): Setting(
        _REMOTE + _FLIGHTS,
        {"standby            # until Ctrl-C": "standby --once"},
        brokers=1,
    ),
    # Measuring the latency would need a thousand records that arrive during the measurement.
    ("failover.md", 1): Setting(_PAIR, {"--sample-for 5m": "--max-latency 2m"}, brokers=2),
    ("follow.md", 2): Setting(
        _REMOTE + _FLIGHTS + _SERVE + _FOLLOW,
        {"tidelog standby promote --data standby --": f"{_AGAIN} --"},
        brokers=1,
    ),
    ("generations.md", 1): Setting(_FLIGHTS, {"TOPIC": "flights"}),
    ("generations.md", 5): Setting(
        "tidelog create flights --config cleanup.policy=compact\n", {"TOPIC": "flights"}
    ),
    ("metrics.md", 1): Setting(_SERVE, {"127.0.0.1:9404": "127.0.0.1:0"}),
    ("notebooks.md", 2): Setting(_FLIGHTS),
    ("objects.md", 1): Setting(
        _FLIGHTS + 'aws() { cp -r "$3" "${4#file://}"; }\n',
        {"s3://bucket/logs": "file://$PWD/store", "/data/logs": "data"},
    ),
    ("ranges.md", 1): Setting(_FLIGHTS),
    ("security.md", 2): Setting(),
    ("serve.md", 1): Setting(_SERVE),
    ("serve.md", 3): Setting(),
    ("serve.md", 4): Setting(instead={"    consumer.close()": f"    consumer.close()\n{_PYTEST}"}),
    ("tables.md", 1): Setting(_AIRCRAFT),
    ("tables.md", 2): Setting(_AIRCRAFT),
    ("tiers.md", 1): Setting(_FLIGHTS, {"s3://bucket/logs": "file://$PWD/store"}),
    ("transactions.md", 1): Setting(_REMOTE + "tidelog create payments\n", brokers=1),
}
NOT_RUN: Final[Mapping[tuple[str, int], str]] = {
    ("README.md", 1): "installs packages from a package index; runs the demo, and tests",
    ("CONTRIBUTING.md", 1): "runs whole suites of tests, and a benchmark",
    ("CONTRIBUTING.md", 2): "installs the newest packages from a package index",
    ("CONTRIBUTING.md", 3): "needs Python 3.13; runs the core of the tests",
    ("deploy.md", 2): "installs packages; tests/spark/test_cluster.py sends such an archive",
    ("deploy.md", 3): "installs packages from a package index",
    ("deploy.md", 4): "needs an archive; tests/spark/test_cluster.py sends one to a cluster",
    ("deploy.md", 5): "needs a standalone cluster; tests/spark/test_cluster.py starts one",
    ("deploy.md", 6): "needs YARN",
    ("notebooks.md", 1): "installs packages; tests/examples/test_notebooks.py runs the notebooks",
    ("objects.md", 3): "runs tests, with an S3 server of the reader's own",
    ("testing.md", 1): "runs all benchmarks; tests/unit/bench/test_harness.py runs the harness",
    ("tiers.md", 4): "runs tests, with an S3 server of the reader's own",
}
# Blocks that tests/unit/test_readme.py runs.
WITH_OUTPUTS: Final = {("README.md", number) for number in (2, 4, 6)}
# Blocks of Python that are parts of our own modules.
EXCERPTS: Final[Mapping[tuple[str, int], str]] = {
    ("protocol.md", 1): "src/tidelog/protocol/messages/list_offsets.py",
}
# Blocks with commands of Kafka's tools, which need Kafka's jars.
WITH_KAFKA: Final = {("quotas.md", 1)}


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


def test_each_block_has_a_language_and_output_is_named_text() -> None:
    assert without_language(EVERY) == []


def test_a_block_without_a_language_is_found() -> None:
    page = "a\n\n    pip install x\n\n```\nb\n```\n\n    tidelog topics\n\n```text\nb\n```\n"
    assert without_language(blocks("a.md", page)) == ["a.md block 1", "a.md block 2"]


def test_an_unknown_option_is_found() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        parse(["read", "flights", "--frm", "-6h"])


def unknown_name(phrase: str) -> str | None:
    """Return the first word of a phrase that is neither a command nor an option of it.

    `A|B` stands for one of several commands; options may be in brackets.
    """
    context = click.Context(app, info_name="tidelog", obj=Surroundings(env=os_env()))
    found: click.Command = app
    for word in phrase.translate(_BRACKETS).split()[1:]:
        if isinstance(found, click.Group) and not word.startswith("-"):
            if not re.fullmatch("[a-z|-]+", word):
                return None  # a placeholder
            names = word.split("|")
            if not set(names) <= set(found.commands):
                return word
            _, inner, _ = found.resolve_command(context, names)
            assert inner is not None
            found = inner
        elif word.startswith("--") and word.partition("=")[0] not in _options(found):
            return word
    return None


def _options(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_name_existing_commands_and_options(page: str) -> None:
    named = [one for one in phrases(PAGES[page]) if one.startswith("tidelog ")]
    assert [(one, unknown_name(one)) for one in named if unknown_name(one)] == []


def test_an_unknown_name_in_a_sentence_is_found() -> None:
    assert list(phrases("a `tidelog reed` b\n\n| `tidelog read --frm` |\n|---|\n")) == [
        "tidelog reed",
        "tidelog read --frm",
    ]
    assert unknown_name("tidelog reed") == "reed"
    assert unknown_name("tidelog spark mirrow") == "mirrow"
    assert unknown_name("tidelog read --frm -6h") == "--frm"
    assert unknown_name("tidelog read flights --from -6h -o json") is None
    assert unknown_name("tidelog spark NAME --any") is None
    assert unknown_name("tidelog groups list|delete --bootstrap HOST:PORT [--wide]") is None
    assert unknown_name("tidelog groups list|remove") == "list|remove"


def test_each_block_runs_or_has_a_reason_not_to() -> None:
    in_session = {
        (one.page, one.number) for name in spark_pages.PAGES for one in spark_pages.blocks_of(name)
    }
    lists: tuple[Iterable[tuple[str, int]], ...]
    lists = (in_session, RUN, NOT_RUN, EXCERPTS, WITH_KAFKA, WITH_OUTPUTS)
    assert sorted(key for keys in lists for key in keys) == sorted(ALL)


def test_no_line_of_a_block_is_longer_than_a_line_of_code() -> None:
    lines = [(one.page, one.number, line) for one in EVERY for line in one.text.split("\n")]
    assert [line for line in lines if len(line[-1]) > LINE_MAX] == []


@pytest.mark.parametrize("key", EXCERPTS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_an_excerpt_is_in_its_module(key: tuple[str, int]) -> None:
    assert f"\n\n{ALL[key].text}" in (ROOT / EXCERPTS[key]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "block",
    [one for one in ALL.values() if "./run " in one.text],
    ids=lambda one: f"{one.page}-{one.number}",
)
def test_calls_of_run_name_existing_commands_tests_and_benchmarks(block: Block) -> None:
    known = re.findall(r"^([a-z]+)\)", (ROOT / "run").read_text(encoding="utf-8"), re.MULTILINE)
    for command, *words in commands(block.text, "./run"):
        assert command in known
        for word in words:
            if "/" in word:
                assert (ROOT / word).exists(), word
        if command == "bench" and words and not words[0].startswith("-"):
            assert (ROOT / "bench" / f"{words[0]}.py").exists(), words


@pytest.mark.parametrize("key", RUN, ids=lambda key: f"{key[0]}-{key[1]}")
def test_block(key: tuple[str, int], tmp_path: Path) -> None:
    block, setting = ALL[key], RUN[key]
    write_inputs(tmp_path)
    text = replace(block.text, setting.instead)
    with running_brokers(setting.brokers) as servers:
        _run(block.language, setting.before, text, tmp_path, servers)


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


@pytest.mark.kafka
@pytest.mark.parametrize("key", WITH_KAFKA, ids=lambda key: f"{key[0]}-{key[1]}")
def test_block_with_kafkas_tools(
    key: tuple[str, int], kafka_jars: KafkaHome, tmp_path: Path
) -> None:
    java = shlex.join(kafka_jars.java_command("kafka.admin.ConfigCommand"))
    with running_brokers(1) as servers:
        tool = f'kafka-configs.sh() {{ {java} "$@"; }}\n'
        shown = (
            'test "$(tidelog quotas list --bootstrap localhost:9092 -o csv | grep -c 1048576)" = 2'
        )
        _run("sh", tool, f"{ALL[key].text}{shown}\n", tmp_path, servers)


@pytest.mark.spark
@pytest.mark.parametrize("pages", [spark_pages.SHORT, spark_pages.LONG], ids=["short", "long"])
def test_blocks_in_one_session(pages: Mapping[str, spark_pages.Page], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, spark_pages.__file__, *pages],
        cwd=tmp_path,
        env=with_tests(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
