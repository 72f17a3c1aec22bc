"""Shared parts of the commands on Spark: early checks, places, session, progress, reports.

Spark takes five seconds or more to start. Therefore `check_before` finds errors such as a missing
topic, a directory that is not writable or an unreachable cluster before Spark starts. The job
repeats these checks, because the places may have changed in the meantime.
"""

import errno
import os
import shlex
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from tidelog.amounts import rate_text
from tidelog.cli import output
from tidelog.cli.options import SparkAccess
from tidelog.cli.output import Column, Row, cell_text
from tidelog.cli.places import parse_choice
from tidelog.cli.surroundings import (
    USAGE,
    ExitCode,
    InvalidInput,
    Surroundings,
    UsageProblem,
    interrupted_as,
    interrupted_by_sigterm,
    read_settings_text,
)
from tidelog.errors import InvalidTime, MissingDependency, TidelogError, unknown_partition
from tidelog.html_cells import visible
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import (
    Align,
    Items,
    Provenance,
    Report,
    Section,
    Table,
    plot_by_hour,
    without_secrets,
    write_report,
)
from tidelog.plots import Numbers, Plot, Series, Unit
from tidelog.spark.places import BROKER_SCHEME, SERVER, Place
from tidelog.spark.session import LOCAL, SessionOptions, our_words, start
from tidelog.timespec import time_text
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

    from tidelog.jobs.target_check import Finding, TargetLoses


_POLL_SECONDS: Final = 0.25
_TEXT_MAX: Final = 400


def read_place(
    surroundings: Surroundings,
    text: str,
    *,
    command_config: str | None = None,
    store: Mapping[str, str] | None = None,
) -> Place:
    """Parse an argument that names a place; add settings for the place's client or store.

    Raises:
        UsageProblem, InvalidRequest: The text is not a valid place, the settings can't be read, or
            the settings don't apply to this kind of place; or the text is HOST:PORT, and there is
            no directory of this name.
        ConfigError: A line of the settings is invalid.
    """
    from tidelog.config.files import read_properties

    is_server = all(map(SERVER.fullmatch, text.split(",")))
    if is_server and not surroundings.env.files.exists(text):
        raise UsageProblem(f"{text}: no such directory; for brokers, write {BROKER_SCHEME}{text}")
    client = {}
    if command_config is not None:
        content = read_settings_text(surroundings, command_config)
        client = read_properties(command_config, content).texts
        client.pop("bootstrap.servers", None)
    return Place.parse(text, client=client, store=store or {})


def read_targets(texts: tuple[str, ...]) -> list[str | TopicPartition] | None:
    """Parse arguments to topics and partitions; None without arguments; raises UsageProblem."""
    return [parse_choice(text) for text in texts] or None


def needs_spark() -> None:
    """Raise MissingDependency if pyspark is not installed; called before importing a job."""
    try:
        import pyspark  # noqa: F401 - only to check that it is installed
    except ImportError as error:
        raise MissingDependency("Spark is missing; `pip install 'tidelog[spark]'`") from error


@contextmanager
def open_session(
    surroundings: Surroundings,
    access: SparkAccess,
    progress: "JobProgress | None" = None,
    *,
    name: str,
    zone: str | None = None,
) -> Iterator["SparkSession"]:
    """Open a Spark session until the block ends; an active session is used instead and stays open.

    Args:
        surroundings: Its stderr reports the start of Spark, which takes seconds.
        access: Spark master and settings of a new session.
        progress: Progress to show until the block ends.
        name: Name of the job in Spark's UI.
        zone: Time zone of a new session; UTC if None.

    Raises:
        MissingDependency: pyspark is not installed.
        InvalidInput, UsageProblem: Spark can't be started, or fails. The text is that of the
            TidelogError that made Spark fail or, if there is none, Spark's own text.
    """
    needs_spark()
    from pyspark.sql import SparkSession

    with spark_errors():
        running = SparkSession.getActiveSession()
        if running is not None:
            with progress.shown(running) if progress else nullcontext():
                yield running
            return
        options = SessionOptions(
            master=access.master,
            name=f"tidelog {name}",
            time_zone=zone or "UTC",
            conf=access.conf,
        )
        # Spark's workers may still write to this folder while they exit.
        with tempfile.TemporaryDirectory(prefix="tidelog-spark-", ignore_cleanup_errors=True) as at:
            session = _started(surroundings, options, Path(at))
            try:
                with progress.shown(session) if progress else nullcontext():
                    yield session
            finally:
                session.stop()


def _started(surroundings: Surroundings, options: SessionOptions, folder: Path) -> "SparkSession":
    began_ms = surroundings.env.clock.monotonic_ms()
    where = options.master or LOCAL
    # The jobs use Arrow without pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    try:
        with (
            spinner(surroundings, f"starting Spark at {where}"),
            interrupted_as("nothing was changed"),
            interrupted_by_sigterm(),
        ):
            session = start(options, folder)
    except TidelogError:
        raise
    except Exception as error:
        with suppress(OSError):
            words = (folder / "spark.log").read_text(encoding="utf-8", errors="replace").strip()
            raise InvalidInput(f"Spark at {where} did not start: {words[-_TEXT_MAX:]}") from error
        raise
    seconds = (surroundings.env.clock.monotonic_ms() - began_ms) / 1000
    surroundings.say(f"Spark {session.version} is up at {where} after {seconds:.1f} s")
    return session


@contextmanager
def spark_errors() -> Iterator[None]:
    """Convert Spark's errors to InvalidInput or UsageProblem.

    The text of the new error is that of the TidelogError that made Spark fail or, if there is none,
    Spark's own text.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise _problem(str(error)) from error
    except Exception as error:
        # In classic sessions, errors that are not of Spark's classes come from py4j.
        if not type(error).__module__.startswith("py4j."):
            raise
        raise _problem(str(error)) from error


def _problem(text: str) -> InvalidInput | UsageProblem:
    """Return an error with a text made from Spark's message.

    The error's class gives the command the same exit code as the error that caused the message.
    """
    ours = our_words(text)
    is_usage = ours is not None and ours[0] in {kind.__name__ for kind in (InvalidTime, *USAGE)}
    return (UsageProblem if is_usage else InvalidInput)(_words(text))


def _words(text: str) -> str:
    ours = our_words(text)
    if ours is not None:
        return ours[1]
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    # The first line of a py4j error names a Java method, which doesn't help a user.
    own_lines = [line for line in lines if not line.startswith("An error occurred while calling")]
    first = (own_lines or lines or ["no reason given"])[0]
    return f"Spark: {first[:_TEXT_MAX]}"


@dataclass(slots=True)
class CheckExit:
    """Exit code of a command that checks its target first; FINDINGS if the target loses records."""

    code: ExitCode = ExitCode.OK


@contextmanager
def losses_reported(
    surroundings: Surroundings, command_config: str | None = None, *, has_config: bool = False
) -> Iterator[CheckExit]:
    """Convert TargetLoses, raised in the block, to messages and exit code 2.

    The messages list each loss in a line, state that nothing was written, and explain how to keep
    all records.

    Args:
        surroundings: Streams.
        command_config: File of client settings for the target; None without one.
        has_config: Whether the command has the option --config for a topic that it creates.
    """
    from tidelog.jobs.target_check import TargetLoses, lines

    losses = CheckExit()
    try:
        yield losses
    except TargetLoses as error:
        for line in lines(error.findings):
            surroundings.say(line)
        for note in getattr(error, "__notes__", ()):
            surroundings.note(note)
        hint = _keeping(error, command_config, has_config=has_config)
        surroundings.fail(
            f"{error.target} would refuse or lose records, so nothing was written",
            f"{hint}, or use --force",
        )
        losses.code = ExitCode.FINDINGS


def _keeping(error: "TargetLoses", command_config: str | None, *, has_config: bool) -> str:
    """Return a text that says how to change the target's settings so that it keeps all records."""
    target = error.target
    losses = [finding for finding in error.findings if finding.is_loss]
    if not all(finding.remedy for finding in losses):
        return "change the topic's settings"
    settings = dict(finding.remedy.split("=", 1) for finding in losses)
    if target.created_with is not None and has_config:
        return f"repeat the command with{_option_words('--config', settings)}"
    bootstrap = target.place.removeprefix("kafka://")
    where = {"--data": target.place}
    if bootstrap != target.place:
        where = {"--bootstrap": bootstrap, "--command-config": command_config or ""}
    access = "".join(f" {name} {shlex.quote(text)}" for name, text in where.items() if text)
    if target.created_with is None:
        command = f"tidelog config {target.topic}{access}{_option_words('--set', settings)}"
        return f"`{command}` keeps these records"
    command = (
        f"tidelog create {target.topic}{access} --partitions {target.partitions}"
        f"{_option_words('--config', {**target.created_with, **settings})}"
    )
    return f"`{command}` creates a topic that keeps these records; then run the job again"


def _option_words(option: str, settings: Mapping[str, str]) -> str:
    """Return settings as options of a command."""
    texts = (shlex.quote(f"{name}={text}") for name, text in settings.items())
    return "".join(f" {option} {text}" for text in texts)


@contextmanager
def spinner(surroundings: Surroundings, title: str) -> Iterator[None]:
    """Show a title with a spinner while the block runs; print the title if there is no terminal."""
    if not surroundings.stderr.isatty():
        surroundings.say(title)
        yield
        return
    from rich.console import Console

    with Console(file=surroundings.stderr).status(title):
        yield


class JobProgress:
    """`Listener` that shows the progress of a job: as bars on a terminal, else as lines.

    One bar counts the job's own units. In a classic session, a second bar below counts Spark's
    tasks; Spark Connect does not report tasks.
    """

    def __init__(self, surroundings: Surroundings, title: str, *, unit: str = "offsets") -> None:
        self._surroundings = surroundings
        self._title = title
        self._unit = unit
        self._bars: Progress | None = None
        self._main: TaskID | None = None
        self._began_ms = 0
        self._last_tenth = 0

    @contextmanager
    def shown(self, spark: "SparkSession") -> Iterator["JobProgress"]:
        """Show the progress until the block ends."""
        if not self._surroundings.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(file=self._surroundings.stderr)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bars:
            self._bars, self._began_ms = bars, self._surroundings.env.clock.monotonic_ms()
            self._main = bars.add_task(self._title, total=None, amount="")
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
        """Print one line on stderr."""
        if self._bars is not None:
            self._bars.console.print(visible(text), markup=False, highlight=False)
        else:
            self._surroundings.say(text)

    def at(self, done: int, planned: int) -> None:
        """Update the bars; without a terminal, print a line whenever another tenth is done."""
        if self._bars is not None and self._main is not None:
            seconds = (self._surroundings.env.clock.monotonic_ms() - self._began_ms) / 1000
            amount = f"{done:,} of {planned:,}, {rate_text(done, seconds, self._unit)}"
            self._bars.update(self._main, completed=done, total=planned, amount=amount)
            return
        tenth = 10 * done // max(planned, 1)
        if tenth > self._last_tenth:
            self._last_tenth = tenth
            self._surroundings.say(f"{self._title}: {done:,} of {planned:,} {self._unit}")


def _watch_tasks(spark: "SparkSession", bars: "Progress", stop: threading.Event) -> None:
    """Show how many tasks of running stages are completed, if the session reports tasks."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # noqa: BLE001 - Spark Connect has no tracker, and raises various classes
        return
    task = bars.add_task("tasks of Spark", total=None, visible=False, amount="")
    while not stop.wait(_POLL_SECONDS):
        done = total = 0
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        amount = f"{done:,} of {total:,}"
        bars.update(task, completed=done, total=total or None, visible=bool(total), amount=amount)


def _align(column: Column) -> Align:
    if column.kind is output.Kind.TIME:
        return Align.TIME
    return Align.TEXT if column.kind.is_left else Align.NUMBER


# Maximum number of columns of a report's table; if there are more, minor columns are left out.
_COLUMNS_MAX: Final = 10


def report_table(
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    title: str,
    zone: str | None = None,
    whole: str = "-o csv",
    nothing: str = "No rows.",
) -> Table:
    """Return rows as a table of a report.

    Args:
        columns: The columns. Amounts are shown in a fitting unit, such as MB.
        rows: The rows.
        title: Title above the table.
        zone: Zone of times; UTC if None.
        whole: Options with which the command prints all rows.
        nothing: Sentence to show instead of a table without rows.
    """
    indexes = [at for at, column in enumerate(columns) if not column.is_detail]
    if len(indexes) > _COLUMNS_MAX:
        indexes = [at for at in indexes if not columns[at].is_minor]
    of_table = [columns[at] for at in indexes]
    return Table(
        [column.words_with(zone) for column in of_table],
        [_texts(of_table, [row[at] for at in indexes], zone) for row in rows],
        title,
        [_align(column) for column in of_table],
        whole,
        nothing,
        [column.words for at, column in enumerate(columns) if at not in indexes],
    )


def summary_table(columns: Sequence[Column], row: Row, *, zone: str | None = None) -> Table:
    """Return one row as a table of a report, with a line for each column."""
    names = [column.words_with(zone) for column in columns]
    cells = list(map(list, zip(names, _texts(columns, row, zone), strict=True)))
    return Table(["what", "value"], cells, "Summary", [Align.TEXT, Align.TEXT])


def _texts(columns: Sequence[Column], row: Row, zone: str | None) -> list[str]:
    return [cell_text(column, cell, zone) for column, cell in zip(columns, row, strict=True)]


def origin(
    surroundings: Surroundings,
    places: Mapping[str, str],
    *,
    start: object = None,
    end: object = None,
    zone: str | None = None,
) -> Provenance:
    """Return the origin of a report: places, range, command and time.

    Args:
        surroundings: Clock and command line.
        places: Maps a label such as `From` to a place or table, as the user named it.
        start: First ms of the range, None without a limit.
        end: End of the range in ms, exclusive; None without a limit.
        zone: Zone of the page's times; UTC if None.
    """
    command = shlex.join(["tidelog", *without_secrets(surroundings.arguments)])
    return Provenance(
        time=f"{time_text(surroundings.env.clock.now_ms(), zone)} {zone or 'UTC'}",
        version=version("tidelog"),
        command=command if surroundings.arguments else "",
        locations={name: without_secrets([place])[0] for name, place in places.items()},
        span=span_text(start, end, zone),
        zone=zone or "UTC",
    )


def span_text(start: object, end: object, zone: str | None) -> str:
    """Return a time range as words; empty if it has neither a start nor an end."""
    first, last = (time_text(ms, zone).removesuffix(" 00:00:00") for ms in (start, end))
    sides = ("" if start is None else f"from {first}", "" if end is None else f"to before {last}")
    return " ".join(part for part in sides if part)


def clock_plots(
    by_clock: Mapping[str, Mapping[int, int]], title: str, *, zone: str | None = None
) -> Plot:
    """Return a plot of records by hour with a panel for each clock.

    Args:
        by_clock: For the clocks `record` and `append`, the number of records by hour since the
            epoch.
        title: Title of both panels; `{step}` in it becomes the length of a step.
        zone: Zone of the times at the axis; UTC if None.
    """
    panels = {
        ClockName(clock).time_name: {"records": {hour: float(n) for hour, n in hours.items()}}
        for clock, hours in sorted(by_clock.items(), reverse=True)
    }
    return plot_by_hour(panels, "records", title=title, zone=zone)


def numbers_plot(
    y_title: str,
    values: Mapping[int, float],
    x_title: str,
    title: str,
    *,
    unit: Unit = Unit.COUNT,
    is_stacked: bool = True,
) -> Plot:
    """Return a plot of a value for each integer, such as a partition or the index of a batch."""
    return Plot(
        panels={"": [Series(y_title, dict(values))]},
        y_title=y_title,
        axis=Numbers(title=x_title),
        unit=unit,
        is_stacked=is_stacked,
        title=title,
    )


def findings_section(findings: "Sequence[Finding]") -> list[Section]:
    """Return a section that lists effects of the target's settings; empty without findings."""
    from tidelog.jobs.target_check import lines

    return [Items(lines(findings), "Effects of the target's settings")] if findings else []


def save_report(
    surroundings: Surroundings, path: str, report: Report, provenance: Provenance
) -> None:
    """Write a report with its origin, and print its path.

    Raises:
        InvalidInput: The report can't be written.
    """
    try:
        write_report(path, replace(report, origin=provenance))
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.strerror or error}; the job itself has finished"
        ) from error
    surroundings.say(f"report: {path}")


@dataclass(frozen=True, slots=True)
class Use:
    """Use of a place by a job.

    Attributes:
        place: The place.
        topics: Topics and partitions that must exist.
        writes: Whether the job writes there.
        creates: Whether the job creates the place's directory if it is missing. False: the job
            creates it only with --create. None: the job never creates it.
    """

    place: Place
    topics: tuple[str | TopicPartition, ...] = ()
    writes: bool = False
    creates: bool | None = None


def check_before(surroundings: Surroundings, uses: Iterable[Use], *files: str | None) -> None:
    """Check the places and files of a job.

    Args:
        surroundings: Files and clock.
        uses: The places.
        files: Files that the job writes at its end; None values are ignored.

    Raises:
        InvalidRequest: A place's directory does not exist.
        UnknownTopic: A topic or partition does not exist.
        UsageProblem: A file to write is a directory, or a directory to write needs --create.
        OSError: A directory can't be read or written, or a file's folder does not exist.
        ClusterFailure, NotAuthorized: A cluster can't be reached, or refuses a request.
        MissingDependency: A package for the cluster or the object store is not installed.
    """
    from tidelog.jobs.place_topics import partition_counts
    from tidelog.storage.directory.topic_registry import unknown_topic

    for file in files:
        if file is not None:
            _check_file(surroundings, file)
    for use in uses:
        if _is_to_be_created(surroundings, use):
            continue
        topics = partition_counts(use.place, surroundings.env)
        for topic in use.topics:
            name, partition = topic, None
            if isinstance(topic, TopicPartition):
                name, partition = topic.topic, topic.partition
            if name not in topics:
                raise unknown_topic(str(name), topics)
            if partition is not None and partition >= topics[str(name)]:
                raise unknown_partition(str(name), topics[str(name)], partition)
        if use.writes and not use.place.is_broker:
            _check_writable(use.place.address)


def _is_to_be_created(surroundings: Surroundings, use: Use) -> bool:
    """Whether the place is a missing directory that the job will create.

    Raises:
        UsageProblem: The job creates the missing directory only with --create.
        PermissionError: The folder of the missing directory is not writable.
    """
    path = use.place.address.rstrip("/")
    is_local = not use.place.is_broker and "://" not in path
    if use.creates is None or not is_local or surroundings.env.files.exists(path):
        return False
    if not use.creates:
        raise UsageProblem(f"{path}: no such directory; --create creates it")
    _check_writable(str(PurePath(path).parent))
    return True


def _check_writable(path: str) -> None:
    if "://" not in path and not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _check_file(surroundings: Surroundings, path: str) -> None:
    files, folder = surroundings.env.files, str(PurePath(path).parent)
    if files.exists(path) and files.stat(path).is_dir:
        raise UsageProblem(f"{path} is a directory; give a file")
    if not files.exists(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    _check_writable(folder)
