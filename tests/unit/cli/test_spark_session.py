"""What commands on Spark share, without Spark: places, settings, progress, help."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.cli.main import run
from tidelog.cli.problems import UsageProblem
from tidelog.cli.spark_session import JobProgress, _words, losses_told, pairs, read_place
from tidelog.cli.surroundings import Surroundings
from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest
from tidelog.spark.jobs.checks import Effect, Finding, Target, TargetLoses


def test_pairs() -> None:
    assert pairs(("a=1", "b=x=y", "c="), "--conf") == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageProblem, match="--conf 'a': write KEY=VALUE"):
        pairs(("a",), "--conf")


def test_a_place_with_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=elsewhere:1\nsecurity.protocol = SSL\n")
    place = read_place(Surroundings(), "kafka://one:1", command_config=str(file))
    assert place.options() == {
        "kafka.bootstrap.servers": "one:1",
        "kafka.security.protocol": "SSL",
    }
    stored = read_place(Surroundings(), "s3://bucket", store=("endpoint=e",))
    assert stored.options() == {"path": "s3://bucket", "store.endpoint": "e"}
    with pytest.raises(InvalidRequest, match="a directory takes no client settings"):
        read_place(Surroundings(), "data", command_config=str(file))
    file.write_bytes(b"a=\xff")
    with pytest.raises(UsageProblem, match="not UTF-8"):
        read_place(Surroundings(), "kafka://one:1", command_config=str(file))


def test_progress_without_a_terminal_is_a_line_for_each_tenth() -> None:
    err = io.StringIO()
    progress = JobProgress(Surroundings(stderr=err), "replaying")
    for done in range(0, 101, 7):
        progress.at(done, 100)
    progress.note("done")
    lines = err.getvalue().splitlines()
    assert lines[0] == "tidelog: replaying: 14 of 100 offsets"
    assert len(lines) == 10
    assert lines[-1] == "tidelog: done"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "\nAn error occurred while calling o9.save.\n: x.SparkException: no",
            "x.SparkException: no",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03\nmore",
            "[PATH_NOT_FOUND]",
        ),
        ("", "no reason given"),
    ],
)
def test_sparks_words(text: str, words: str) -> None:
    assert _words(text).startswith(f"Spark: {words}")
    ours = f"{text}\ntidelog.errors.DirectoryLocked: data: taken\n at java"
    assert _words(ours) == "data: taken"


def test_losses_are_told_line_by_line() -> None:
    err = io.StringIO()
    target = Target(place="data", topic="t", partitions=1, config=TopicConfig())
    findings = [
        Finding(effect=Effect.REFUSED, setting="a=1", text="one"),
        Finding(effect=Effect.NOTE, setting="b=2", text="two"),
    ]

    def lose() -> None:
        raise TargetLoses(target, findings)

    with losses_told(Surroundings(stderr=err)) as told:
        lose()
    assert told.code == 2
    assert err.getvalue().splitlines()[:2] == [
        "tidelog: refused: a=1: one",
        "tidelog: note: b=2: two",
    ]


@pytest.mark.parametrize("name", [(), ("replay",), ("bootstrap",)])
def test_help_has_examples(name: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", *name, "--help"], Surroundings()) == 0
    assert "tidelog spark " in capsys.readouterr().out.partition("Examples:")[2]


def test_help_loads_no_spark() -> None:
    program = (
        "import sys; from tidelog.cli.main import run; from tidelog.cli.surroundings import"
        " Surroundings; run(['spark', 'replay', '--help'], Surroundings()); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"pyspark", "pyarrow", "numpy", "rich", "tidelog.storage.log_dir"}
