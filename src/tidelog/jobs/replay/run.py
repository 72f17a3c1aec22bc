"""One run of a replay: starts or resumes the replay, writes its chunks, and keeps its journal.

This module has the loop over chunks (`Replay`), and the journal file (`Journal`, `Progress`) with
the request, the remaining offsets, and the chunk that is being written. `chunks` divides offsets
into chunks and limits the rate. `targets` writes the chunks.

Invariants: a chunk is added to the journal before the target receives the chunk, and is removed
from the journal after the target has written it. If the journal contains a chunk, a restart writes
the chunk again, with the same offsets and the same number. A target that already has a chunk with
this number skips the repeated chunk, or replaces its chunk with the repeated one. The journal is
replaced atomically and durably, and locked while a job uses it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
    Self,
    TypeVar,
    Unpack,
)

from tidelog.amounts import plural
from tidelog.arguments import choice
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest
from tidelog.jobs.chunks import (
    CHUNK_RECORDS,
    Pacer,
    Rate,
    Spans,
    as_json,
    chunk_budget,
    from_json,
    offsets_options,
    take,
    thinned,
    total,
    wait_seconds,
)
from tidelog.jobs.options import check_sink_options, point_ms, takes_options
from tidelog.jobs.place_topics import (
    describe,
    find_or_plan,
    make_target,
    new_target,
    rollback_of_topics,
)
from tidelog.jobs.progress_file import Json, ProgressFile, locked
from tidelog.jobs.replay.options import ReplayOptions, ReplayPartitions
from tidelog.jobs.replay.targets import (
    CONSOLE,
    CONSOLE_RECORDS,
    Chunk,
    ConsoleTarget,
    ForeignChunk,
    ParquetTarget,
    Print,
    ReplayTarget,
    TopicTarget,
    parquet_path,
    parse_target,
)
from tidelog.jobs.source_ranges import Question, Times, find, load_left
from tidelog.jobs.target_check import ExpectedWrite, Finding, ensure_keeps
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.parts import NOBODY, Listener
from tidelog.spark.places import Place
from tidelog.spark.session import check_shared_places, described
from tidelog.types import ClockName, IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidelog.jobs.target_check import Target


PROGRESS_FILE: Final = ProgressFile(job="a replay", version=1)
_COUNTS: Final = ("number", "records", "size_bytes")
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a replay, as stored in the journal.

    Attributes:
        job_id: Id of the replay at the target, as 32 hexadecimal digits.
        question: Values of the options that define the replay, by option. A restart must have the
            same values.
        times: Start and end of the range in ms, None for an open side. Relative times such as `-6h`
            are converted to ms once, at the first start.
        keeps_partitions: Whether records keep the numbers of their partitions, as determined by the
            first start.
        planned: All offsets of the replay, as planned by the first start.
        left: Offsets that are not written yet, except the offsets in `chunk`.
        chunk: Offsets of the chunk that is being written; empty if no chunk is being written.
        number: Index of the chunk that is being written or, if no chunk is being written, of the
            next chunk. The first chunk has index 0.
        records: Number of records written, except the records in `chunk`.
        size_bytes: Number of bytes in the keys and values of these records.
    """

    job_id: str
    question: Mapping[str, str]
    times: tuple[int | None, int | None] = (None, None)
    keeps_partitions: bool = False
    planned: Spans = ()
    left: Spans = ()
    chunk: Spans = ()
    number: int = 0
    records: int = 0
    size_bytes: int = 0

    @property
    def is_done(self) -> bool:
        """Whether no offset is left to write."""
        return not self.left and not self.chunk

    def ensure_same_request(self, question: Mapping[str, str]) -> None:
        """Raise InvalidRequest if `question` differs from the request of the first start."""
        for name in sorted(self.question.keys() | question.keys()):
            before, now = self.question.get(name, ""), question.get(name, "")
            if before != now:
                raise InvalidRequest(
                    f"the progress file belongs to a replay with {name} {before or 'left out'!r},"
                    f" not {now or 'left out'!r}; give the same value, or another progress file"
                )


def _fields(progress: Progress) -> dict[str, object]:
    return {
        "job_id": progress.job_id,
        "question": dict(progress.question),
        "times": list(progress.times),
        "keeps_partitions": progress.keeps_partitions,
        "planned": as_json(progress.planned),
        "left": as_json(progress.left),
        "chunk": as_json(progress.chunk),
        **{name: getattr(progress, name) for name in _COUNTS},
    }


def _progress(fields: Mapping[str, Json]) -> Progress:
    return Progress(
        job_id=_checked(fields["job_id"], str),
        question={_checked(k, str): _checked(v, str) for k, v in fields["question"].items()},
        times=_journal_times(fields["times"]),
        keeps_partitions=_checked(fields["keeps_partitions"], bool),
        planned=from_json(fields["planned"]),
        left=from_json(fields["left"]),
        chunk=from_json(fields["chunk"]),
        **{name: _checked(fields[name], int) for name in _COUNTS},
    )


def _checked(value: object, kind: type[_Kind]) -> _Kind:
    # A bool is an int for isinstance, but is not valid here.
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:80]!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def _journal_times(value: object) -> tuple[int | None, int | None]:
    match value:
        case [None | int() as start, None | int() as end]:
            return start, end
    raise ValueError(f"times are {str(value)[:80]!r}")


@dataclass(slots=True)
class Journal:
    """Journal of one replay, in a file or, without a path, only in memory.

    Attributes:
        progress: State in the journal; None if the replay was never started.
    """

    env: Env
    path: str | None = None
    progress: Progress | None = field(default=None)

    @classmethod
    @contextmanager
    def open(cls, env: Env, path: str | None) -> Iterator[Self]:
        """Open and lock the journal at a path for the duration of the block.

        Args:
            env: Access to files.
            path: Path of the file; None for a journal in memory.

        Raises:
            DirectoryLocked: Another process has locked the journal.
            CorruptFile, UnsupportedVersion: The journal can't be read.
        """
        if path is None:
            yield cls(env)
            return
        with locked(env, f"{path}.lock", f"{path}: another job uses this progress file"):
            yield cls(env, path, PROGRESS_FILE.read(env.files, path, _progress))

    def save(self, progress: Progress) -> None:
        """Replace the state in the journal durably; raises OSError."""
        self.progress = progress
        if self.path is not None:
            PROGRESS_FILE.write(self.env.files, self.path, _fields(progress))


_COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp", "offset")

# Maximum number of tasks among which the rows of a chunk are divided for sorting.
_TASKS_MAX: Final = 64

# Largest time in ms that Spark can read, because Spark's times are 64 bits of microseconds.
_SPARK_MS_MAX: Final = (2**63 - 1) // 1000


class _Written(NamedTuple):
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """Outcome of a replay.

    Attributes:
        question: The request, with relative times resolved.
        to: Target of the records: a place, `parquet:PATH` or `console`.
        to_topic: Topic at the target.
        planned: All offsets of the replay.
        records: Number of records that this run and earlier runs of the replay have written.
        size_bytes: Number of bytes in the keys and values of these records.
        chunks: Number of chunks that this run and earlier runs of the replay have written.
        seconds: Duration of this run in seconds.
        was_resumed: Whether an earlier run had started the replay.
        findings: Findings of the target's checks.
    """

    question: Question
    to: Place | str
    to_topic: str
    planned: Spans
    records: int
    size_bytes: int
    chunks: int
    seconds: float
    was_resumed: bool
    findings: tuple[Finding, ...] = ()


class Replay:
    """One run of a replay. Life cycle: create -> check_target (optional) -> run.

    Attributes:
        source: Directory or cluster with the topic.
    """

    @takes_options(ReplayOptions)
    def __init__(  # noqa: PLR0913 - tests replace some arguments
        self,
        source: Place,
        topic: str,
        *,
        range_text: str | None = None,
        listener: Listener = NOBODY,
        show: Print = print,
        env: Env | None = None,
        wait: Callable[[float], None] = wait_seconds,
        **options: Unpack[ReplayOptions],
    ) -> None:
        """Parse and check the options.

        Args:
            source: Directory or cluster with the topic.
            topic: Name of the topic.
            range_text: The range as the user wrote it, if `start` and `end` were parsed from one
                text. A restart must have the same text.
            listener: Receives the progress.
            show: Function that prints a line, for the target `console`.
            env: Files and clock of the driver; None for the machine's files and clock.
            wait: Function that waits for a number of seconds.
            **options: Options, see `ReplayOptions`.

        Raises:
            InvalidRequest: An option is invalid, or options contradict each other.
        """
        self.source, self._topic = source, topic
        self._to, self._to_topic = parse_target(options["to"]), options["to_topic"] or topic
        rate = options["rate"]
        self._rate = Rate.parse(rate) if isinstance(rate, str) else rate
        self._new = new_target(options["create"], options["config"])
        self._options = options
        self._range_text = range_text
        self._listener = listener
        self._show = show
        self._env = env or os_env()
        self._wait = wait
        self._findings: tuple[Finding, ...] = ()
        self._is_new = False  # whether the target has to be created
        self._load = ExpectedWrite()  # the expected records of the last check
        self._check_options()

    def _check_options(self) -> None:
        check_sink_options("sink", self._options["sink"])
        if self._to == CONSOLE and self._options["progress"] is not None:
            raise InvalidRequest("a replay to a console can't be resumed: leave out progress")
        is_same = self._to == self.source and self._to_topic == self._topic
        if is_same and not self._options["force"]:
            raise InvalidRequest(
                f"{self._topic} would be replayed into itself: give another target topic, or"
                " --force (force=True)"
            )

    def check_target(self) -> None:
        """Check that the target's topic exists or can be created; changes nothing.

        Raises:
            InvalidRequest, UnknownTopic, ConfigError: The topic or its settings are invalid.
        """
        if isinstance(self._to, Place):
            find_or_plan(self._to, self._to_topic, self._new, env=self._env)

    def run(self, spark: "SparkSession") -> ReplayOutcome:
        """Write all remaining records; raises the errors of `tidelog.spark.replay`."""
        began_ms = self._env.clock.monotonic_ms()
        check_shared_places(spark, [p for p in (self.source, self._to) if isinstance(p, Place)])
        with (
            Journal.open(self._env, self._options["progress"]) as journal,
            described(spark, "replay", [self._topic]),
        ):
            earlier = journal.progress
            progress = self._begin() if earlier is None else self._resume(earlier)
            self._make_target()
            question = self._question(progress.times)
            progress = self._write_all(spark, journal, question, progress)
        return ReplayOutcome(
            question=question,
            to=self._to,
            to_topic=self._to_topic,
            planned=progress.planned,
            records=progress.records,
            size_bytes=progress.size_bytes,
            chunks=progress.number,
            seconds=(self._env.clock.monotonic_ms() - began_ms) / 1000,
            was_resumed=earlier is not None,
            findings=self._findings,
        )

    # -- planning ----------------------------------------------------------------------------

    def _begin(self) -> Progress:
        """Plan the offsets to read, check the target, and return the state of a new replay."""
        now_ms = self._env.clock.now_ms()
        times = _times(self._options["start"], self._options["end"], now_ms)
        facts = find(self._question(times), env=self._env)
        target = self._target()
        keeps = _keeps(self._options["partitions"], facts.partitions, target)
        if target is not None:
            self._check(target, facts.load(keeps_partitions=keeps), now_ms)
        spans = facts.spans if self._is_cut else thinned(facts.spans, 1)
        job_id = f"{self._env.random.getrandbits(128):032x}"
        return Progress(
            job_id=job_id,
            question=self._requested(),
            times=times,
            keeps_partitions=keeps,
            planned=spans,
            left=spans,
        )

    def _resume(self, earlier: Progress) -> Progress:
        """Check the request, and check the target for the remaining offsets; return the state."""
        earlier.ensure_same_request(self._requested())
        if earlier.is_done:
            self._listener.note("an earlier run has written all records; nothing to do")
            return earlier
        done = total(earlier.planned) - total(earlier.left) - total(earlier.chunk)
        self._listener.note(
            f"continuing after {done:,} of {plural(total(earlier.planned), 'offset')}"
        )
        target = self._target()
        if target is not None:
            spans = (*earlier.chunk, *earlier.left)
            load = load_left(self._question(earlier.times), spans, env=self._env)
            self._check(target, load, self._env.clock.now_ms())
        return earlier

    def _requested(self) -> dict[str, str]:
        """Return the values that must be the same in a restart."""
        options = self._options
        return {
            "source": str(self.source),
            "topic": self._topic,
            "to": str(self._to),
            "to_topic": options["to_topic"] or "",
            "range": self._range_text or f"{_text(options['start'])}..{_text(options['end'])}",
            "clock": str(options["clock"]),
            "isolation": self._question((None, None)).isolation.name.lower(),
            "partitions": str(options["partitions"] or ""),
            "sink": json.dumps(sorted((options["sink"] or {}).items())),
        }

    def _question(self, times: Times) -> Question:
        return Question(
            place=self.source,
            topic=self._topic,
            times=times,
            clock=choice(ClockName, self._options["clock"], "clock"),
            isolation=choice(IsolationLevel, self._options["isolation"], "isolation"),
        )

    def _target(self) -> "Target | None":
        """Return the target topic; None for Parquet or a console."""
        if not isinstance(self._to, Place):
            return None
        target, self._is_new = find_or_plan(self._to, self._to_topic, self._new, env=self._env)
        return target

    def _make_target(self) -> None:
        """Create the target topic if it is missing. Call this method after all checks."""
        to, topic, new = self._to, self._to_topic, self._new
        if self._is_new and new is not None and isinstance(to, Place):
            make_target(to, topic, new, self._env, self._listener)
            with rollback_of_topics(to, [topic], self._env):
                # The topic is checked again, because a broker adds its defaults to the settings of
                # a created topic.
                target = describe(to, topic, env=self._env)
                self._check(target, self._load, self._env.clock.now_ms())

    def _check(self, target: "Target", load: ExpectedWrite, now_ms: int) -> None:
        self._load = load
        force, listener = self._options["force"], self._listener
        self._findings = ensure_keeps(target, load, now_ms, force=force, listener=listener)

    @property
    def _is_cut(self) -> bool:
        """Whether the replay runs in several chunks.

        A replay has several chunks if it has a rate or a journal, or if the target is a cluster or
        a console.
        """
        is_broker = isinstance(self._to, Place) and self._to.is_broker
        has_progress = bool(self._options["progress"])
        return bool(self._rate) or has_progress or is_broker or self._to == CONSOLE

    # -- writing -----------------------------------------------------------------------------

    def _write_all(
        self, spark: "SparkSession", journal: Journal, question: Question, progress: Progress
    ) -> Progress:
        target = self._writer(progress)
        pacer = Pacer(self._rate, self._env.clock, self._wait)
        planned = total(progress.planned)
        # If the journal has a chunk, an earlier run may have written this chunk to the target.
        is_doubtful = bool(progress.chunk)
        while not progress.is_done:
            before = progress
            if not progress.chunk:
                chunk, left = take(progress.left, self._budget(progress))
                progress = replace(progress, chunk=chunk, left=left)
            # A transform may fail here, so the journal does not have the chunk yet.
            rows = self._rows(spark, target, question, progress)
            pacer.hold()
            if progress is not before:
                journal.save(progress)
            try:
                written = self._write(target, rows, progress, is_doubtful=is_doubtful)
            except ForeignChunk:
                journal.save(before)  # otherwise the next run would take the folder for its own
                raise
            pacer.note(*written)
            progress = replace(
                progress,
                chunk=(),
                number=progress.number + 1,
                records=progress.records + written.records,
                size_bytes=progress.size_bytes + written.size_bytes,
            )
            is_doubtful = False
            self._listener.at(planned - total(progress.left), planned)
        journal.save(progress)
        return progress

    def _budget(self, progress: Progress) -> int:
        """Return the approximate number of offsets for the next chunk."""
        if not self._is_cut:
            return total(progress.left)
        budget = chunk_budget(self._rate, progress.records, progress.size_bytes)
        return min(budget, CONSOLE_RECORDS if self._to == CONSOLE else CHUNK_RECORDS)

    def _writer(self, progress: Progress) -> ReplayTarget:
        if isinstance(self._to, Place):
            return TopicTarget(
                place=self._to,
                topic=self._to_topic,
                keeps_partitions=progress.keeps_partitions,
                options=self._options["sink"] or {},
            )
        if self._to == CONSOLE:
            return ConsoleTarget(self._show)
        return ParquetTarget(parquet_path(self._to))

    def _rows(
        self, spark: "SparkSession", target: ReplayTarget, question: Question, progress: Progress
    ) -> "DataFrame":
        """Return the rows of the journal's chunk, which are not read yet."""
        rows = _read_chunk(spark, question, progress.chunk, target.columns)
        if (transform := self._options["transform"]) is not None:
            rows = transform(rows)
        return target.arrange(rows, min(len(progress.chunk), _TASKS_MAX))

    def _write(
        self, target: ReplayTarget, rows: "DataFrame", progress: Progress, *, is_doubtful: bool
    ) -> _Written:
        """Read and write the journal's chunk; return the count of records and of bytes."""
        from pyspark.sql import Observation

        observation = Observation()
        target.write(
            Chunk(
                # The last step before the write counts the rows, because Spark runs this step in
                # every write. A row is counted once, even if a task is repeated.
                rows=rows.observe(observation, *_amounts(rows.columns)),
                job_id=progress.job_id,
                number=progress.number,
                may_be_there=is_doubtful,
            )
        )
        amounts = observation.get
        return _Written(int(amounts["records"]), int(amounts["size_bytes"] or 0))


def _read_chunk(
    spark: "SparkSession", question: Question, spans: Spans, columns: tuple[str, ...]
) -> "DataFrame":
    """Return the records of a chunk that are in the time range."""
    is_appended = question.clock is ClockName.APPEND and not question.place.is_broker
    clock = "appendTimestamp" if is_appended else "timestamp"
    named = dict.fromkeys((*_COLUMNS, *columns, clock))
    options = {
        **question.options(),
        **offsets_options(spans),
        "columns": ",".join(named),
    }
    rows = spark.read.format("tidelog").options(**options).load()
    for condition in _conditions(clock, question.times):
        rows = rows.where(condition)
    return rows if "appendTimestamp" in columns else rows.drop("appendTimestamp")


def _times(start: int | str | None, end: int | str | None, now_ms: int) -> Times:
    """Return the range in ms; raises InvalidTime, or InvalidRequest if the range is empty."""
    start_ms, end_ms = point_ms(start, now_ms), point_ms(end, now_ms)
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise InvalidRequest(
            f"empty time range {start} to {end}: the end must be later than the start"
        )
    return start_ms, end_ms


def _text(side: int | str | None) -> str:
    return "" if side is None else str(side)


def _keeps(requested: str | None, partitions: int, target: "Target | None") -> bool:
    """Return whether records keep the numbers of their partitions."""
    if requested is not None or target is None:
        return requested != ReplayPartitions.KEY
    return partitions == target.partitions


def _amounts(columns: list[str]) -> "list[Column]":
    """Return two columns: the count of written rows, and of the bytes in their keys and values."""
    from pyspark.sql import functions as f

    size = f.lit(0).cast("long")
    for name in ("key", "value"):
        if name in columns:
            size += f.coalesce(f.octet_length(name), f.lit(0))
    return [f.count(f.lit(1)).alias("records"), f.sum(size).alias("size_bytes")]


def _conditions(clock: str, times: Times) -> "list[Column]":
    """Return the conditions for records in the range; records without a time never meet them."""
    from pyspark.sql import functions as f

    if times == (None, None):
        return []
    start_ms, end_ms = max(times[0] or 0, 0), times[1]
    conditions = [f.col(clock) >= f.timestamp_millis(f.lit(min(start_ms, _SPARK_MS_MAX)))]
    if end_ms is not None and end_ms < _SPARK_MS_MAX:
        conditions.append(f.col(clock) < f.timestamp_millis(f.lit(end_ms)))
    return conditions
