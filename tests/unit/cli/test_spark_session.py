"""Code that Spark commands share: places, settings, progress, help. No test starts Spark."""

import io
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import Progress

import tidelog
from tidelog.cli import output
from tidelog.cli.app import run
from tidelog.cli.jobs import session as spark_session
from tidelog.cli.jobs.session import (
    JobProgress,
    _watch_tasks,
    _words,
    losses_reported,
    open_session,
    read_place,
    report_table,
)
from tidelog.cli.options import SparkAccess, pairs
from tidelog.cli.surroundings import (
    ExitCode,
    Interrupted,
    InvalidInput,
    Surroundings,
    UsageProblem,
)
from tidelog.config import TopicConfig
from tidelog.errors import InvalidRequest
from tidelog.jobs.target_check import Effect, Finding, Target, TargetLoses
from tidelog.spark.session import SessionOptions


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
    stored = read_place(Surroundings(), "s3://bucket", store={"endpoint": "e"})
    assert stored.options() == {"path": "s3://bucket", "store.endpoint": "e"}
    with pytest.raises(InvalidRequest, match="client settings apply only to brokers"):
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
    assert lines[0] == "replaying: 14 of 100 offsets"
    assert len(lines) == 10
    assert lines[-1] == "done"


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
def test_an_error_of_spark_is_shortened_to_its_message(text: str, words: str) -> None:
    assert _words(text).startswith(f"Spark: {words}")
    ours = f"{text}\ntidelog.errors.DirectoryLocked: data: taken\n at java"
    assert _words(ours) == "data: taken"


class Tty(io.StringIO):
    """Stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class FakeSpark:
    """A classic session with two stages, of which one has just ended."""

    version = "4.9"

    def __init__(self) -> None:
        stages = {1: None, 2: SimpleNamespace(numCompletedTasks=3, numTasks=8)}
        tracker = SimpleNamespace(
            getActiveStageIds=lambda: list(stages), getStageInfo=stages.__getitem__
        )
        self.sparkContext = SimpleNamespace(statusTracker=lambda: tracker)
        self.stops: list[str] = []

    def stop(self) -> None:
        self.stops.append("stopped")


class Looks(threading.Event):
    """Event for a watch. `wait` returns at once: False in the first `count` calls, then True."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def test_tasks_are_counted_on_a_terminal() -> None:
    bars = Progress(console=Console(file=Tty()))
    _watch_tasks(cast("SparkSession", FakeSpark()), bars, Looks(2))
    (task,) = bars.tasks
    assert (task.completed, task.total, task.visible) == (3, 8, True)


def test_a_session_that_has_no_tasks_to_count_is_no_error() -> None:
    bars = Progress(console=Console(file=Tty()))
    _watch_tasks(cast("SparkSession", object()), bars, Looks(2))
    assert bars.tasks == []


def test_progress_on_a_terminal() -> None:
    err = Tty()
    progress = JobProgress(Surroundings(stderr=err), "replaying")
    with progress.shown(cast("SparkSession", FakeSpark())):
        progress.at(5, 10)
        progress.note("half of [it]")
    assert "replaying" in err.getvalue()
    assert "half of [it]" in err.getvalue()


def test_a_started_session_is_announced_and_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, err = FakeSpark(), io.StringIO()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(spark_session, "start", lambda _options, _folder: spark)
    with open_session(Surroundings(stderr=err), SparkAccess(), name="replay") as session:
        assert session is cast("SparkSession", spark)
        assert spark.stops == []
    assert spark.stops == ["stopped"]
    starting, started = err.getvalue().splitlines()
    assert starting == "starting Spark at local[*]"
    assert started.startswith("Spark 4.9 is up at local[*] after ")


def test_an_existing_session_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: spark)
    with open_session(Surroundings(stderr=io.StringIO()), SparkAccess(), name="replay"):
        pass
    assert spark.stops == []


def test_a_spark_that_does_not_start_is_reported_in_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_options: SessionOptions, folder: Path) -> None:
        (folder / "spark.log").write_text("spark: ERROR Could not parse Master URL\n")
        raise RuntimeError("Java gateway process exited")

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(spark_session, "start", fail)
    opening = open_session(
        Surroundings(stderr=io.StringIO()), SparkAccess(master="x://y"), name="replay"
    )
    told = "Spark at x://y did not start: spark: ERROR Could not parse Master URL"
    with pytest.raises(InvalidInput, match=re.escape(told)), opening:
        pass


def test_losses_are_reported_line_by_line() -> None:
    err = io.StringIO()
    target = Target(place="data", topic="t", partitions=1, config=TopicConfig())
    findings = [
        Finding(effect=Effect.REFUSED, setting="a=1", text="one"),
        Finding(effect=Effect.NOTE, setting="b=2", text="two"),
    ]

    def lose() -> None:
        raise TargetLoses(target, findings)

    with losses_reported(Surroundings(stderr=err)) as told:
        lose()
    assert told.code == 2
    assert err.getvalue().splitlines()[:2] == [
        "loss: a=1: one",
        "note: b=2: two",
    ]


LOSSES = (
    Finding(effect=Effect.DELETED, setting="a=1", text="one", remedy="retention.ms=-1"),
    Finding(effect=Effect.REFUSED, setting="b=2", text="two", remedy="x=9"),
    Finding(effect=Effect.NOTE, setting="c=3", text="three"),
)
CREATED = {"retention.ms": "1000", "cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("place", "created_with", "has_config", "hint"),
    [
        (
            "my data",
            None,
            True,
            (
                "`tidelog config t --data 'my data' --set retention.ms=-1 --set x=9` keeps these"
                " records"
            ),
        ),
        (
            "kafka://west:9092",
            None,
            False,
            (
                "`tidelog config t --bootstrap west:9092 --command-config client.properties"
                " --set retention.ms=-1 --set x=9` keeps these records"
            ),
        ),
        (
            "data",
            CREATED,
            False,
            (
                "`tidelog create t --data data --partitions 3 --config retention.ms=-1"
                " --config cleanup.policy=compact,delete --config x=9` creates a topic that keeps"
                " these records; then run the job again"
            ),
        ),
        ("data", CREATED, True, "repeat the command with --config retention.ms=-1 --config x=9"),
    ],
)
def test_a_hint_is_the_command_that_keeps_all_records(
    place: str, created_with: dict[str, str] | None, has_config: bool, hint: str
) -> None:
    err = io.StringIO()
    target = Target(
        place=place, topic="t", partitions=3, config=TopicConfig(), created_with=created_with
    )
    error = TargetLoses(target, LOSSES)
    error.add_note("topic t had been created")

    def lose() -> None:
        raise error

    surroundings = Surroundings(stderr=err)
    with losses_reported(surroundings, "client.properties", has_config=has_config):
        lose()
    assert err.getvalue().splitlines()[3:] == [
        "note: topic t had been created",
        f"error: {target} would refuse or lose records, so nothing was written",
        f"hint: {hint}, or use --force",
    ]


def test_sigterm_while_spark_starts_ends_it_with_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def terminated(_options: SessionOptions, _folder: Path) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(spark_session, "start", terminated)
    before = signal.getsignal(signal.SIGTERM)
    opening = open_session(Surroundings(stderr=io.StringIO()), SparkAccess(), name="mirror")
    with pytest.raises(Interrupted, match="nothing was changed"), opening:
        pass
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", [(), ("replay",), ("bootstrap",)])
def test_help_has_examples(name: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", *name, "--help"], Surroundings()) == 0
    assert "tidelog spark " in capsys.readouterr().out.partition("Examples:")[2]


@pytest.mark.parametrize("arguments", ["bootstrap t.parquet t --to d", "replay d t --to console"])
def test_without_spark_the_extra_is_named(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").touch()
    with tidelog.open(str(tmp_path / "d"), writable=True) as log:
        log.create_topic("t", partitions=1)
    program = (
        "import sys\nfor name in ('numpy', 'pyarrow', 'pyspark'): sys.modules[name] = None\n"
        "from tidelog.cli.app import run\nfrom tidelog.cli.surroundings import Surroundings\n"
        "sys.exit(run(sys.argv[1:], Surroundings()))"
    )
    command = [sys.executable, "-c", program, "spark", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "error: Spark is missing; `pip install 'tidelog[spark]'`\n",
    )


@pytest.mark.parametrize("option", ["--progress", "--report"])
def test_a_file_that_cannot_be_written_is_named_before_spark_starts(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(tmp_path / name) for name in ("source", "target")]
    for place in places:
        with tidelog.open(place, writable=True) as log:
            log.create_topic("t", partitions=1)
    missing = str(tmp_path / "none" / "file")
    command = ["spark", "replay", places[0], "t", "--to", places[1], option, missing]
    assert run(command, Surroundings()) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert str(tmp_path / "none") in told
    assert "Spark" not in told


def test_help_loads_no_spark() -> None:
    program = (
        "import sys; from tidelog.cli.app import run; from tidelog.cli.surroundings import"
        " Surroundings; run(['spark', 'replay', '--help'], Surroundings()); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"pyspark", "pyarrow", "numpy", "rich", "tidelog.storage.directory.log_dir"}


def test_a_page_leaves_out_minor_columns_of_a_wide_table() -> None:
    many = output.columns(
        "group",
        output.minor(output.number(*(f"n{number}" for number in range(9)))),
        output.detail("exact"),
        output.count("records"),
    )
    row = ["loader", *range(9), True, 1200]
    table = report_table(many, [row], whole="-o csv", title="Partitions")
    assert (table.columns, table.rows) == (["group", "records"], [["loader", "1,200"]])
    page = table.html()
    assert "Not shown: n0, n1, n2, n3, n4, n5, n6, n7, n8, exact;" in page
    few = report_table(many[:5], [row[:5]], title="Partitions")
    assert few.columns == ["group", "n0", "n1", "n2", "n3"]
    assert "Not shown" not in few.html()
