"""`bootstrap`: builds segments from a table in parallel, and adds them to a topic in one commit.

This module has the public function `bootstrap`, the class of one run, and functions that look up
what a job has already written. The directory stores the offsets of each commit.

1. The settings of the existing topic, or of the topic to create, are checked against the table
   (`target_check`). Then a missing topic is created.
2. Rows are converted to records (`columns`). If the order is `time` or `key`, records with a key
   are then assigned to partitions as by Kafka's clients, and records without a key by a hash of the
   value. Across all tasks, the records are sorted by partition, then by time or key. If the order
   is `none`, this module neither assigns nor sorts the records.
3. Each task stages finished segments next to the partitions. The driver attaches all segments in
   one commit, so offsets are contiguous in each partition, in the order of the rows.

Invariants: the commit contains the job's id. So a job that is killed at any moment and started
again with the same id adds the table exactly once. Before the commit, no record is visible.

Source: KIP-33, use case 2.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.amounts import plural, verb
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest
from tidelog.jobs.bootstrap.columns import (
    RecordColumns,
    TableFacts,
    table_facts,
    to_records,
    with_partitions,
)
from tidelog.jobs.bootstrap.options import BootstrapOptions, Order
from tidelog.jobs.options import check_sink_options, takes_options
from tidelog.jobs.place_topics import find_or_plan, make_target, new_target, rollback_of_topics
from tidelog.jobs.target_check import ExpectedWrite, Finding, ensure_keeps, thresholds
from tidelog.lazy_dataclass import dataclass
from tidelog.spark.parts import NOBODY, Listener
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import check_shared_places, described
from tidelog.storage import commits
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.staging import drop_staging
from tidelog.timespec import format_ms
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tidelog.jobs.target_check import Target
    from tidelog.storage.segment.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """Records that a bootstrap has loaded into one partition.

    Attributes:
        partition: Number of the partition.
        first_offset: First loaded offset, inclusive.
        end_offset: End of the loaded offsets, exclusive.
        size_bytes: Total size in bytes of the log files with loaded records. Files that were
            deleted since the commit are not included.
        segments: Number of the log files whose sizes are added up in `size_bytes`.
        append_ms: Append time in ms of all loaded records, -1 if the topic has no append clock.
    """

    partition: int
    first_offset: int
    end_offset: int
    size_bytes: int
    segments: int
    append_ms: int

    @property
    def records(self) -> int:
        """Number of loaded records, which is the number of loaded offsets."""
        return self.end_offset - self.first_offset


def written_before(path: str, topic: str, writer: str, *, env: Env) -> int | None:
    """Return the time of a writer's last commit to a topic; None if the writer has no commit."""
    if not env.files.exists(path):
        return None
    mark = commits.find_topic_mark(commits.read_marks(env.files, path), writer, topic, 0)
    return None if mark is None else mark.committed_ms


def written_now(path: str, topic: str, writer: str, *, env: Env) -> tuple[PartitionResult, ...]:
    """Return one result per partition of a writer's last commit; empty if there is no commit."""
    mark = commits.find_topic_mark(commits.read_marks(env.files, path), writer, topic, 0)
    if mark is None:
        return ()
    with LogDir.open(path, env=env) as log_dir:
        return tuple(
            _result(log_dir.reader(topic, number).segments, number, first, end, append_ms)
            for name, number, first, end, append_ms in mark.ranges
            if name == topic
        )


def _result(
    segments: "Sequence[Segment]", number: int, first: int, end: int, append_ms: int
) -> PartitionResult:
    loaded = [segment for segment in segments if first <= segment.base_offset < end]
    return PartitionResult(
        partition=number,
        first_offset=first,
        end_offset=end,
        size_bytes=sum(segment.size_bytes for segment in loaded),
        segments=len(loaded),
        append_ms=append_ms,
    )


_ID_MAX: Final = 200

# Value of the sink's option `txnVersion`. All jobs can use the same value, because each job commits
# under a writer name of its own.
_VERSION: Final = 0

_SUMMARY: Final = (
    "topic string, partition int, first_offset long, end_offset long, records long,"
    " size_bytes long, segments int, append_ms long"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOutcome:
    """Outcome of a bootstrap.

    Attributes:
        job_id: Id of the job. The directory stores a writer's name with each commit; this name
            contains the id.
        partitions: Outcome for each partition.
        facts: Counts of the table; None if the table was not counted.
        seconds: Duration of the run in seconds.
        was_done: Whether an earlier run had already loaded the whole table.
        findings: Findings of the target's check.
    """

    job_id: str
    partitions: tuple[PartitionResult, ...]
    facts: TableFacts | None
    seconds: float
    was_done: bool
    findings: tuple[Finding, ...] = ()

    @property
    def records(self) -> int:
        """Number of loaded records."""
        return sum(one.records for one in self.partitions)


@takes_options(BootstrapOptions)
def bootstrap(
    spark: "SparkSession", table: "DataFrame", topic: str, **options: Unpack[BootstrapOptions]
) -> "DataFrame":
    """Load a table into a topic of a directory in one commit; return a row per partition.

    Args:
        spark: The session.
        table: Any DataFrame, for example from Parquet, CSV or JDBC.
        topic: Name of the topic.
        **options: Options, see `BootstrapOptions`.

    Raises:
        TargetLoses: The target would refuse or lose records; nothing was written.
        InvalidRequest, UnknownTopic, ConfigError: An option, the topic or its settings are invalid;
            nothing was written.
        DirectoryLocked: Another process has locked the directory and does not attach segments.
    """
    outcome = Bootstrap(topic, **options).run(table)
    return spark.createDataFrame(list(partition_rows(topic, outcome)), _SUMMARY)


def partition_rows(topic: str, outcome: BootstrapOutcome) -> Iterator[tuple[str | int, ...]]:
    """Yield the rows of the summary, one row for each partition."""
    for one in outcome.partitions:
        yield (
            topic,
            one.partition,
            one.first_offset,
            one.end_offset,
            one.records,
            one.size_bytes,
            one.segments,
            one.append_ms,
        )


class Bootstrap:
    """One run of a bootstrap. Life cycle: create -> run."""

    @takes_options(BootstrapOptions)
    def __init__(
        self,
        topic: str,
        *,
        listener: Listener = NOBODY,
        env: Env | None = None,
        **options: Unpack[BootstrapOptions],
    ) -> None:
        """Parse and check the options.

        Args:
            topic: Name of the topic.
            listener: Receives the progress.
            env: Files and clock of the directory; None for the machine's files and clock.
            **options: Options, see `BootstrapOptions`.

        Raises:
            InvalidRequest: An option is invalid, or options contradict each other.
        """
        self._topic, self._to = topic, as_place(options["to"])
        self._columns = RecordColumns(
            key=options["key"],
            time=options["time"],
            value=options["value"],
            headers=options["headers"],
            partition=options["partition"],
        )
        self._options = options
        self._listener = listener
        self._env = env or os_env()
        _check_options(self._to, options)
        self._new = new_target(options["create"], options["config"])
        self._job_id = options["job_id"] or f"{self._env.random.getrandbits(128):032x}"

    def run(self, table: "DataFrame") -> BootstrapOutcome:
        """Load the table; raises the errors of `bootstrap`."""
        began_ms = self._env.clock.monotonic_ms()
        to, topic, transform = self._to.address, self._topic, self._options["transform"]
        done = written_before(to, topic, self._writer, env=self._env)
        facts: TableFacts | None = None
        findings: tuple[Finding, ...] = ()
        if done is not None:
            self._listener.note(
                f"job {self._job_id} loaded its table before, at {format_ms(done)};"
                " nothing was written"
            )
            self._clear()
        else:
            check_shared_places(table.sparkSession, [self._to])
            transformed = table if transform is None else transform(table)
            records = to_records(transformed, self._columns)
            target, is_new = find_or_plan(self._to, topic, self._new, env=self._env)
            with described(table.sparkSession, "bootstrap", [topic]):
                facts, findings = self._check(target, records)
                self._write_to(target, records, is_new=is_new)
        partitions = written_now(to, topic, self._writer, env=self._env)
        return BootstrapOutcome(
            job_id=self._job_id,
            partitions=partitions,
            facts=facts,
            seconds=(self._env.clock.monotonic_ms() - began_ms) / 1000,
            was_done=done is not None,
            findings=findings,
        )

    def check_target(self) -> None:
        """Check that the topic exists or can be created, without changing anything.

        Raises:
            InvalidRequest, UnknownTopic, ConfigError: The topic or its settings are invalid.
        """
        find_or_plan(self._to, self._topic, self._new, env=self._env)

    @property
    def _app_id(self) -> str:
        return f"bootstrap-{self._job_id}"

    @property
    def _writer(self) -> str:
        """Name under which the directory stores the job's commit."""
        return f"app/{self._app_id}"

    def _clear(self) -> None:
        """Remove the files that earlier runs of this job have staged but not committed."""
        from tidelog.spark.directory_sink import numbered_commit_id

        drop_staging(
            self._env.files,
            self._to.address,
            prefix=numbered_commit_id(self._app_id, _VERSION, self._topic),
            older_than_ms=INT64_MAX,
        )

    def _check(
        self, target: "Target", records: "DataFrame"
    ) -> tuple[TableFacts | None, tuple[Finding, ...]]:
        """Check the target's settings against the table; return the counts and the findings."""
        now_ms = self._env.clock.now_ms()
        facts: TableFacts | None = None
        load = ExpectedWrite(has_times=self._columns.time is not None)
        if self._options["counts"]:
            self._listener.note("counting keys and times of the table")
            facts, last = table_facts(records, thresholds(target.config, now_ms))
            load = facts.load(last + 1 or None)
        force, listener = self._options["force"], self._listener
        findings = ensure_keeps(target, load, now_ms, force=force, listener=listener)
        self._report(target, facts)
        return facts, findings

    def _report(self, target: "Target", facts: TableFacts | None) -> None:
        """Report to the listener: a topic that is not empty, and rows without a create time."""
        if target.end_offset:
            self._listener.note(f"{target} already has records: the table is appended after them")
        if facts is not None and facts.without_time and self._columns.time is not None:
            count = facts.without_time
            rows = f"{plural(count, 'row')} without a create time {verb(count, 'gets', 'get')}"
            self._listener.note(f"{rows} the time of the commit")

    def _write_to(self, target: "Target", records: "DataFrame", *, is_new: bool) -> None:
        """Create the topic if it is new, and write the records.

        If the write fails, and the new topic never had a record, delete the new topic.
        """
        to, topic, new = self._to, self._topic, self._new
        if is_new and new is not None:
            make_target(to, topic, new, self._env, self._listener)
        with rollback_of_topics(to, [topic] if is_new else [], self._env):
            self._write(records, target.partitions)

    def _write(self, records: "DataFrame", partitions: int) -> None:
        options = self._options
        order = options["order"] or (Order.NONE if self._columns.time is None else Order.TIME)
        rows = ordered(records, partitions, order, options["tasks"])
        sink = {
            **self._to.options(),
            **(options["sink"] or {}),
            "topic": self._topic,
            "txnAppId": self._app_id,
            "txnVersion": str(_VERSION),
        }
        self._listener.note("building segments")
        rows.write.format("tidelog").mode("append").options(**sink).save()


def ordered(records: "DataFrame", partitions: int, order: str, tasks: int | None) -> "DataFrame":
    """Return the records, sorted across all tasks in the requested order.

    The sink attaches segments in the order of the tasks, so the log of a partition has this order.

    Args:
        records: Result of `to_records`.
        partitions: Number of the topic's partitions.
        order: An `Order`.
        tasks: Number of tasks; None if Spark chooses the number.
    """
    if order == Order.NONE:
        return records if tasks is None else records.repartition(tasks)
    columns = {Order.TIME: ("timestamp", "key"), Order.KEY: ("key", "timestamp")}[Order(order)]
    by = ["partition", *(name for name in columns if name in records.columns)]
    numbered = with_partitions(records, partitions)
    if tasks is None:
        return numbered.repartitionByRange(*by).sortWithinPartitions(*by)
    return numbered.repartitionByRange(tasks, *by).sortWithinPartitions(*by)


def _check_options(to: Place, options: BootstrapOptions) -> None:
    check_sink_options("sink", options["sink"])
    if to.is_broker or "://" in to.address:
        raise InvalidRequest(
            f"{to}: a table can only be loaded into a local directory; for brokers use"
            ' df.write.format("tidelog"), or load a directory and `replay` it to them'
        )
    for order, name in ((Order.TIME, options["time"]), (Order.KEY, options["key"])):
        if options["order"] == order and name is None:
            raise InvalidRequest(f"order '{order}' needs a column for the {order}")
    job_id = options["job_id"]
    if job_id is not None and not 0 < len(job_id) <= _ID_MAX:
        raise InvalidRequest(f"a job id must have 1 to {_ID_MAX} characters")
