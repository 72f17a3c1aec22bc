"""Shared parts of the commands on Spark: early checks, places, session, progress, reports.

Spark takes 15 seconds and more to start. A typing error, a topic that is not there, a directory
that can't be written or a cluster that can't be reached is told before (`check_before`); the job
checks the same again, since much may change meanwhile.
"""

import errno
import os
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from tidelog.cli import output, times
from tidelog.cli.options import Format, SparkAccess, pairs
from tidelog.cli.output import Cell, Column, Kind
from tidelog.cli.surroundings import (
    USAGE,
    ExitCode,
    Refused,
    Surroundings,
    UsageProblem,
    read_settings_text,
)
from tidelog.errors import InvalidTime, MissingDependency, TidelogError
from tidelog.report import Plot, Report, Table, plot_by_hour, write_report
from tidelog.spark.places import Place
from tidelog.spark.session import LOCAL, SessionOptions, our_words, start
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID


_LOOK_SECONDS: Final = 0.25


_WORDS_SHOWN: Final = 400


def read_place(
    surroundings: Surroundings,
    text: str,
    *,
    command_config: str | None = None,
    store: tuple[str, ...] = (),
) -> Place:
    """The place that an argument names, with its settings.

    Raises:
        UsageProblem, InvalidRequest: No place, or settings that can't be read or don't belong.
    """
    from tidelog.remote.client_settings import read_properties

    client = {}
    if command_config is not None:
        client = read_properties(read_settings_text(surroundings, command_config))
        client.pop("bootstrap.servers", None)
    return Place.parse(text, client=client, store=pairs(store, "--store-option"))


def needs_spark() -> None:
    """Raise MissingDependency where pyspark is not installed; before a job that imports it."""
    try:
        import pyspark  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingDependency("Spark is missing; `pip install 'tidelog[spark]'`") from error


@contextmanager
def open_session(
    surroundings: Surroundings, access: SparkAccess, *, name: str, zone: str | None = None
) -> Iterator["SparkSession"]:
    """A session until the block ends; a process that has one already keeps it.

    Args:
        surroundings: Where is said that Spark starts, which takes seconds.
        access: Which Spark.
        name: What Spark's pages call the job.
        zone: Where times without a zone are meant; UTC where None.

    Raises:
        MissingDependency: pyspark is not installed.
        Refused: Spark can't be started, or fails; the text has its words, or ours where a task of
            ours has failed.
    """
    needs_spark()
    from pyspark.sql import SparkSession

    with spark_errors():
        running = SparkSession.getActiveSession()
        if running is not None:
            yield running
            return
        options = SessionOptions(
            master=access.master,
            name=f"tidelog {name}",
            time_zone=zone or "UTC",
            conf=pairs(access.conf, "--conf"),
        )
        # Spark's workers still write there while they end.
        with tempfile.TemporaryDirectory(prefix="tidelog-spark-", ignore_cleanup_errors=True) as at:
            session = _started(surroundings, options, Path(at))
            try:
                yield session
            finally:
                session.stop()


def _started(surroundings: Surroundings, options: SessionOptions, folder: Path) -> "SparkSession":
    began_ms = surroundings.env.clock.monotonic_ms()
    where = options.master or LOCAL
    # What the jobs use of Arrow does not touch pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    try:
        with spinner(surroundings, f"starting Spark at {where}"):
            session = start(options, folder)
    except TidelogError:
        raise
    except Exception as error:
        with suppress(OSError):
            words = (folder / "spark.log").read_text(encoding="utf-8", errors="replace").strip()
            raise Refused(f"Spark at {where} did not start: {words[-_WORDS_SHOWN:]}") from error
        raise
    seconds = (surroundings.env.clock.monotonic_ms() - began_ms) / 1000
    surroundings.say(f"Spark {session.version} is up at {where} after {seconds:.1f} s")
    return session


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn what Spark raises into Refused: our own words where an error of ours is the cause."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise _problem(str(error)) from error
    except Exception as error:
        # What no Spark class wraps comes from py4j, which only classic sessions have.
        if not type(error).__module__.startswith("py4j."):
            raise
        raise _problem(str(error)) from error


def _problem(text: str) -> Refused | UsageProblem:
    """What a message of Spark's comes to; the exit code is that of the same error elsewhere."""
    ours = our_words(text)
    is_usage = ours is not None and ours[0] in {kind.__name__ for kind in (InvalidTime, *USAGE)}
    return (UsageProblem if is_usage else Refused)(_words(text))


def _words(text: str) -> str:
    ours = our_words(text)
    if ours is not None:
        return ours[1]
    said = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    # What py4j puts first names a method of Java, which helps nobody.
    told = [line for line in said if not line.startswith("An error occurred while calling")]
    first = (told or said or ["no reason given"])[0]
    return f"Spark: {first[:_WORDS_SHOWN]}"


@dataclass(slots=True)
class Told:
    """The exit code of a command that checks its target first."""

    code: ExitCode = ExitCode.OK


@contextmanager
def losses_told(surroundings: Surroundings) -> Iterator[Told]:
    """Say what a target would lose, each on a line; the code is 2 then and nothing was written."""
    from tidelog.jobs.target_check import TargetLoses, lines

    told = Told()
    try:
        yield told
    except TargetLoses as error:
        for line in lines(error.findings):
            surroundings.say(line)
        surroundings.say("nothing was written; change the topic's settings, or --force it")
        told.code = ExitCode.FINDINGS


@contextmanager
def spinner(surroundings: Surroundings, title: str) -> Iterator[None]:
    """Something that turns on a terminal while the block runs; nothing elsewhere."""
    if not surroundings.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(file=surroundings.stderr).status(title):
        yield


class JobProgress:
    """Shows how a job comes on: bars on a terminal, lines elsewhere. A `Listener`.

    A bar counts what the job has done. Below it another one counts Spark's tasks, where the session
    can be asked (classic); with Spark Connect something turns instead.
    """

    def __init__(self, surroundings: Surroundings, title: str, *, unit: str = "offsets") -> None:
        self._surroundings = surroundings
        self._title = title
        self._unit = unit
        self._bars: Progress | None = None
        self._main: TaskID | None = None
        self._last_tenth = 0

    @contextmanager
    def shown(self, spark: "SparkSession") -> Iterator["JobProgress"]:
        """Show it until the block ends."""
        if not self._surroundings.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.progress import Progress

        console = Console(file=self._surroundings.stderr)
        with Progress(console=console, transient=True) as bars:
            self._bars = bars
            self._main = bars.add_task(self._title, total=None)
            stop = threading.Event()
            watch = threading.Thread(
                target=_watch_tasks, args=(spark, bars, stop), name="spark-progress", daemon=True
            )
            watch.start()
            try:
                yield self
            finally:
                stop.set()
                watch.join()
                self._bars = None

    def note(self, text: str) -> None:
        """One line for people, on stderr."""
        if self._bars is not None:
            self._bars.console.print(f"tidelog: {text}", markup=False, highlight=False)
        else:
            self._surroundings.say(text)

    def at(self, done: int, planned: int) -> None:
        """So much of so much is done; away from terminals each tenth is said."""
        if self._bars is not None and self._main is not None:
            self._bars.update(self._main, completed=done, total=planned)
            return
        tenth = 10 * done // max(planned, 1)
        if tenth > self._last_tenth:
            self._last_tenth = tenth
            self._surroundings.say(f"{self._title}: {done:,} of {planned:,} {self._unit}")


def _watch_tasks(spark: "SparkSession", bars: "Progress", stop: threading.Event) -> None:
    """Count the tasks of what runs; returns at once where a session has nothing to ask."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # noqa: BLE001 - Spark Connect has no such thing, and says so by many classes
        return
    task = bars.add_task("tasks of Spark", total=None, visible=False)
    while not stop.wait(_LOOK_SECONDS):
        done = total = 0
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        bars.update(task, completed=done, total=total or None, visible=bool(total))


def print_summary(
    surroundings: Surroundings,
    columns: Sequence[Column],
    row: Sequence[Cell],
    kind: Format,
    *,
    zone: str | None = None,
) -> None:
    """Write one row: a line for each column in a table, else as all rows are written."""
    if kind is not Format.TABLE:
        output.print_rows(surroundings, columns, [row], kind, zone=zone)
        return
    cells = [
        [column.name, cell_text(column, cell, zone)] for column, cell in summary_pairs(columns, row)
    ]
    output.print_rows(surroundings, [output.text("what"), output.text("value")], cells, kind)


def summary_pairs(columns: Sequence[Column], row: Sequence[Cell]) -> list[tuple[Column, Cell]]:
    """Columns with their cells."""
    return list(zip(columns, row, strict=True))


def cell_text(column: Column, cell: Cell, zone: str | None = None) -> str:
    """A cell for people."""
    if column.kind is Kind.TIME:
        return times.shown(cell if isinstance(cell, int) else None, zone)
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,}"
    if isinstance(cell, list | tuple):
        return "; ".join(str(one) for one in cell) or "-"
    return str(cell)


def report_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str,
    zone: str | None = None,
) -> Table:
    """Rows as a table of a report."""
    cells = [
        [cell_text(column, cell, zone) for column, cell in summary_pairs(columns, row)]
        for row in rows
    ]
    return Table([column.name.replace("_", " ") for column in columns], cells, title)


def summary_table(
    columns: Sequence[Column], row: Sequence[Cell], *, zone: str | None = None
) -> Table:
    """One row as a table of two columns of a report."""
    cells = [
        [column.name.replace("_", " "), cell_text(column, cell, zone)]
        for column, cell in summary_pairs(columns, row)
    ]
    return Table(["what", "value"], cells, "Summary")


def clock_plots(
    by_clock: Mapping[str, Mapping[int, int]], title: str, *, zone: str | None = None
) -> list[Plot]:
    """A plot of records by hour for each clock; each has an axis of its own.

    Args:
        by_clock: `record` and `append` -> hour since the epoch -> records.
        title: With `{}` for the clock. What was made years before it was appended would leave no
            hour to see on a common axis.
        zone: Of the times at the axis; UTC where None.
    """
    return [
        plot_by_hour(
            {"": {"records": dict(hours)}}, "records", title=title.format(clock), zone=zone
        )
        for clock, hours in sorted(by_clock.items(), reverse=True)
    ]


def save_report(surroundings: Surroundings, path: str, report: Report) -> None:
    """Write a report and say where it is; raises Refused where it can't be written."""
    try:
        write_report(path, report)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}; all else is done") from error
    surroundings.say(f"report: {path}")


@dataclass(frozen=True, slots=True)
class Use:
    """How a job uses a place.

    Attributes:
        place: The place.
        topics: Topics and partitions that must be there.
        writes: Whether the job writes there.
    """

    place: Place
    topics: tuple[str | TopicPartition, ...] = ()
    writes: bool = False


def check_before(surroundings: Surroundings, uses: Iterable[Use], *files: str | None) -> None:
    """Look at the places and files of a job.

    Args:
        surroundings: Files and clock.
        uses: The places.
        files: Files that the job writes at its end, None for none.

    Raises:
        InvalidRequest: There is no such directory.
        UnknownTopic: A topic or partition is not there.
        UsageProblem: A file to be written that is a directory.
        OSError: A directory can't be read or written; a file's folder is not there.
        ClusterFailure, NotAuthorized, MissingDependency: The cluster refuses, or can't be reached.
    """
    from tidelog.storage.directory.topic_registry import unknown_topic

    for file in files:
        if file is not None:
            _check_file(surroundings, file)
    for use in uses:
        there = topics_at(surroundings, use.place)
        for topic in use.topics:
            name, partition = topic, None
            if isinstance(topic, TopicPartition):
                name, partition = topic.topic, topic.partition
            if name not in there:
                raise unknown_topic(str(name), there)
            if partition is not None and partition >= there[str(name)]:
                count = there[str(name)]
                error = unknown_topic(f"{name}:{partition}", ())
                error.add_note(f"{name} has partitions 0 to {count - 1}")
                raise error
        if use.writes and not use.place.is_broker:
            _check_writable(use.place.address)


def topics_at(surroundings: Surroundings, place: Place) -> dict[str, int]:
    """The topics of a place, with their numbers of partitions; errors as `check_before`."""
    from tidelog.objects import env_for

    if place.is_broker:
        from tidelog.jobs.target_check import open_cluster

        with open_cluster(place) as cluster:
            return dict(cluster.topics())
    from tidelog.storage.directory.log_dir import LogDir

    env = env_for(place.address, surroundings.env, place.store)
    with LogDir.open(place.address, env=env) as log_dir:
        return {name: info.partitions for name, info in log_dir.topics().items()}


def _check_writable(path: str) -> None:
    if "://" not in path and not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _check_file(surroundings: Surroundings, path: str) -> None:
    files, folder = surroundings.env.files, str(PurePath(path).parent)
    if files.exists(path) and files.stat(path).is_dir:
        raise UsageProblem(f"{path}: a directory, no file to write to")
    if not files.exists(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    _check_writable(folder)
