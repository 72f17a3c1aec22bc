"""`compact`: compaction of topics in a directory, including tiers, by tasks of Spark.

After this job, a log has the same records as after a run of the broker's cleaner. But this job
rewrites segments in parallel.

The driver holds the directory's lock from the first inspection of a log to the last replacement of
segments. For each partition, the driver creates a cleaning job and divides it into parts, one for
each task. Each task reads all segments whose keys the job maps, and makes a map from each key to
the key's last offset. All tasks use the same seed, so they make the same map. With this map, a task
rewrites its own groups of segments. So the result has exactly the records that a single cleaner
would keep. After the last task has ended, the driver replaces the old segments by the new ones,
group by group and each group in one step. If the driver is killed, the next run starts again from
the cleaner's checkpoint. New segments that are already in place stay in place.

If a broker has locked the directory, the broker creates the job and later replaces the old
segments. The driver sends two requests through the broker's control channel: `lend` returns a job,
and `take_back` hands the result to the broker. The tasks write `.cleaned` files next to the
partition's segments.

A job is divided among tasks only if two conditions hold: its segments are known to have no records
of transactions, and the latest record of a key is the record with the highest offset, not with the
highest version. Otherwise, one task does the whole job. A job with transactions is not divided,
because whether a transaction's marker is kept depends on earlier records of the log.
`SparkWorker.clean` describes why a job with versions is not divided. Workers must be able to open
the directory under the same path as the driver.

If a partition has a tier, the driver also changes the tier's manifest. A task reads its part of the
log from the store, cleans it in a temporary folder on its machine, and copies the result to the
store under random names, which are different in each attempt. Objects that no task has reported to
the driver are orphans, which `tidelog tier --collect` removes. Parts run in rounds, oldest offsets
first. The objects of a round are added to the manifest before the next round begins. So after a
kill, the tier is compacted up to the last complete round, and the next run continues after it.
Tasks need access to the store. They read the partition's manifest from the directory.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.env import Env, OsFileSystem, os_env
from tidelog.errors import CleaningFailed, DirectoryLocked, InvalidRequest
from tidelog.jobs.compact.options import CompactOptions
from tidelog.jobs.options import takes_options
from tidelog.lazy_dataclass import dataclass
from tidelog.objects.object_files import env_for
from tidelog.scan.plan import absent_errors, list_partitions
from tidelog.spark.parts import NOBODY, Listener, parallelism, run_parts
from tidelog.spark.session import described, our_words
from tidelog.storage import files, log_files
from tidelog.storage.compaction.cleaner import CleaningReport, clean, clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.job import CleaningJob, CleaningResult, parts_of, together
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.tier.manifest import decode_row, encode_row
from tidelog.storage.tier.remote_segment import RemoteSegment
from tidelog.storage.tier_manager.tier_compaction import (
    Rewritten,
    TierCleaner,
    Workplace,
    compact_tier,
)
from tidelog.storage.tier_manager.tier_store import PartitionTier
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.control.client import ControlClient
    from tidelog.env import File, FileStat
    from tidelog.storage.compaction.eligibility import CleaningDecision
    from tidelog.storage.log.log_reader import LogView


_REWRITTEN: Final = "rewritten string"

# A round has this number of parts for each task that can run in parallel. A round ends when its
# slowest part has ended, and until then other tasks are idle. With more parts in a round, this idle
# time is a smaller share of the round's time.
_ROUND: Final = 4

# Minimum number of parts in a round. It is needed because a Spark Connect client can't read the
# number of parallel tasks.
_ROUND_MIN: Final = 64


@dataclass(frozen=True, slots=True)
class TierTasks:
    """Runs compaction jobs of tiers in Spark tasks; implements `TierWorker`.

    Attributes:
        spark: The session.
        directory: The directory of topics.
        store: Settings of the object store.
        part_bytes: Approximate maximum number of bytes of log that a task rewrites.
    """

    spark: "SparkSession"
    directory: str
    store: Mapping[str, str]
    part_bytes: int

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        """Rewrite the job's segments; see `TierWorker`.

        Raises:
            CleaningFailed: A task failed after its retries; the message has the task's error.
        """
        is_divisible = _is_plain(job, segments) and not job.rules.has_versions
        parts = [
            _encode(part, segments)
            for part in parts_of(job, self.part_bytes if is_divisible else None)
        ]
        at_once = max(_ROUND * parallelism(self.spark), _ROUND_MIN)
        work = partial(tier_part, self.directory, dict(self.store))
        for start in range(0, len(parts), at_once):
            with failing_with_our_words(job):
                rows = run_parts(self.spark, parts[start : start + at_once], work, _REWRITTEN)
            for row in rows:
                yield Rewritten.from_json(str(row["rewritten"]))


def _is_plain(job: CleaningJob, segments: Mapping[int, RemoteSegment]) -> bool:
    """Return whether the job's segments have no records of transactions."""
    totals = [segments[source.base_offset].row.total for source in job.sources]
    return not any(total.is_transactional or total.control_records for total in totals)


def _encode(part: CleaningJob, segments: Mapping[int, RemoteSegment]) -> str:
    """Return a part of a job as JSON, with the manifest's rows of the part's source segments.

    The JSON includes the manifest's rows, because they may be removed from the manifest before the
    task runs.
    """
    rows = [encode_row(segments[source.base_offset].row) for source in part.sources]
    return json.dumps([part.to_json(), rows])


@contextmanager
def failing_with_our_words(job: CleaningJob) -> Iterator[None]:
    """If the block fails with a task's TidelogError, raise CleaningFailed with its message."""
    try:
        yield
    except Exception as error:
        words = our_words(str(error))
        if words is None:
            raise
        raise CleaningFailed(f"{job.topic}-{job.partition}: {words[1]}") from error


def tier_part(directory: str, store: Mapping[str, str], part: str) -> tuple[object, ...]:
    """Rewrite a part of a tier's compaction job, in a Spark task; implements `Work`.

    Args:
        directory: The directory of topics.
        store: Settings of the object store.
        part: A JSON list: a job, and the manifest's rows of its segments.
    """
    text, rows = json.loads(part)
    job, env = CleaningJob.from_json(text), env_for(directory, None, store)
    with (
        LogDir.open(directory, env=env) as log_dir,
        TemporaryDirectory(prefix="tidelog-compact-") as folder,
    ):
        name = TopicPartition(job.topic, job.partition)
        log = log_dir.reader(name.topic, name.partition)
        view = log.tier
        if view is None:
            raise CleaningFailed(f"{directory}: on this worker, {name} has no tier")
        cleaner = TierCleaner(
            workplace=Workplace(log, folder),
            tier=PartitionTier(log_dir.tier_files.store(view.record.url), view.record.folder),
            tier_files=log_dir.tier_files,
            draw_uid=lambda: f"{env.random.getrandbits(128):032x}",
        )
        segments = [view.segment(decode_row(row)) for row in rows]
        rewritten = cleaner.rewritten(job, {each.base_offset: each for each in segments})
    return (rewritten.to_json(),)


SCHEMA: Final = (
    "topic string, partition int, passes int, segments_before bigint, segments_after bigint,"
    " records_before bigint, records_after bigint, bytes_before bigint, bytes_after bigint,"
    " bytes_read bigint, bytes_written bigint, cleaned_to bigint, reason string, stopped string"
)

_CLEANED: Final = "cleaned string, attempt string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Result of a compaction.

    Attributes:
        partitions: One row for each partition; see `SCHEMA`.
        reports: The same results as objects.
    """

    partitions: "DataFrame"
    reports: Sequence[CleaningReport]


@takes_options(CompactOptions)
def compact(
    spark: "SparkSession",
    directory: str,
    topics: Sequence[str | TopicPartition] | None = None,
    **options: Unpack[CompactOptions],
) -> Compaction:
    """Clean finished segments as the topics' settings define: keep only each key's last record.

    Args:
        spark: The session. Its workers must be able to open the path `directory`.
        directory: A directory of topics. If a broker has locked the directory, the broker creates
            the cleaning jobs, and Spark tasks run them.
        topics: Topics or partitions; None for all compacted topics.
        **options: Options, see `CompactOptions`.

    Raises:
        DirectoryLocked: Another process has locked the directory, and either that process doesn't
            support `lend`, or `accept_lost_times` is set. Nothing was changed.
        UnknownTopic, InvalidRequest: A topic does not exist or is not compacted; a topic of a
            running broker has a tier; or the directory is in an object store.
        CleaningFailed, CorruptData, StorageFailure, TierConflict: Cleaning failed, in the directory
            or in a tier. Segments that have already replaced old segments stay in place.
    """
    reports = run(spark, directory, topics, **options)
    return Compaction(
        partitions=spark.createDataFrame(list(map(row_of, reports)), SCHEMA), reports=reports
    )


@takes_options(CompactOptions)
def run(
    spark: "SparkSession",
    directory: str,
    topics: Sequence[str | TopicPartition] | None = None,
    **options: Unpack[CompactOptions],
) -> list[CleaningReport]:
    """Run a compaction like `compact`, but return the reports without a DataFrame."""
    part_bytes, roll, listener = options["part_bytes"], options["roll"], options["listener"]
    store = options["store"]
    check_directory(directory)
    cleaning = CleanerOptions(
        is_asked=not options["if_due"],
        accepts_lost_times=options["accept_lost_times"],
        dedupe_buffer_bytes=options["dedupe_buffer_bytes"],
    )
    reports = []
    try:
        env = env_for(directory, None, store)
        with LogDir.open(directory, env=env, options=LogDirOptions(writable=True)) as log_dir:
            names = names_of(log_dir, topics, listener)
            for number, name in enumerate(names):
                log = log_dir.log(name.topic, name.partition)
                if roll:
                    log.roll(RollReason.REQUEST)
                log.flush()  # a record is removed only after the later record of its key is durable
                with described(spark, "compact", [name]):
                    if log.tier is None:
                        worker = SparkWorker(spark, log, part_bytes)
                        reports.append(clean_partition(log_dir, name, worker, cleaning))
                    else:
                        tasks = TierTasks(spark, directory, store or {}, part_bytes)
                        reports.append(compact_tier(log_dir, name, cleaning, tasks))
                listener.at(number + 1, len(names))
    except DirectoryLocked:
        holder = None if cleaning.accepts_lost_times else lender(directory)
        if holder is None:
            raise
        with LogDir.open(directory) as readers:
            names = names_of(readers, topics, listener)
        with holder:
            for number, name in enumerate(names):
                borrowed = BrokerPartition(
                    spark, holder, directory, name, part_bytes, cleaning, roll=roll
                )
                with described(spark, "compact", [name]):
                    reports.append(clean(borrowed, is_asked=cleaning.is_asked))
                listener.at(number + 1, len(names))
    return reports


def lender(directory: str) -> "ControlClient | None":
    """Return a client of the directory's broker; None without a broker that supports `lend`."""
    from tidelog.control.client import find_holder

    holder = find_holder(directory)
    if holder is not None and not holder.supports("lend"):
        holder.close()
        return None
    return holder


class BrokerPartition:
    """Partition of a running broker; the broker creates cleaning jobs and applies the results.

    Implements `CleaningTarget`.
    """

    goes_on = True

    def __init__(  # noqa: PLR0913 - what tasks and the broker need
        self,
        spark: "SparkSession",
        holder: "ControlClient",
        directory: str,
        name: TopicPartition,
        part_bytes: int,
        options: CleanerOptions,
        *,
        roll: bool,
    ) -> None:
        self.name = name
        self._spark = spark
        self._holder = holder
        self._directory = directory
        self._part_bytes = part_bytes
        self._options = options
        self._must_roll = roll

    def inspect(self, *, is_asked: bool) -> "tuple[CleaningDecision, CleaningJob | None]":
        """Return the broker's decision on whether to clean, and the job, None if nothing is due."""
        from tidelog.control.verbs import compact_arguments, read_lent

        request = compact_arguments(self.name, roll=self._must_roll, is_asked=is_asked)
        self._must_roll = False  # finish (roll) the active segment only before the first pass
        return read_lent(self._holder.call("lend", request))

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Clean in Spark tasks, and request that the broker replaces the old segments.

        Raises:
            CleaningAborted: The broker no longer accepts the result of this job. The caller may
                request another job.
            CleaningFailed: A task failed after its retries.
        """
        from tidelog.control.verbs import take_back

        cleaned = self._clean(job)
        self._holder.call("take_back", take_back(job, cleaned))
        return cleaned

    def _clean(self, job: CleaningJob) -> CleaningResult:
        """Run the job in Spark tasks.

        The tasks open the directory under this process's path. The paths in `job` are the broker's,
        which may differ from this process's path.
        """
        partition_path = f"{self._directory}/{files.partition_dir_name(self.name)}"
        rules = replace(job.rules, dedupe_buffer_bytes=self._options.dedupe_buffer_bytes)
        with LogDir.open(self._directory) as log_dir:
            log = log_dir.reader(self.name.topic, self.name.partition)
            worker = SparkWorker(self._spark, log, self._part_bytes)
            return worker.clean(replace(job, directory=partition_path, rules=rules))


def check_directory(directory: str) -> None:
    """Raise InvalidRequest if the directory is in an object store."""
    if "://" in directory:
        raise InvalidRequest(f"{directory}: object stores are read, not written to")


def check_topics(
    directory: str, topics: Sequence[str | TopicPartition] | None, store: Mapping[str, str]
) -> None:
    """Check that topics exist and are compacted; raises UnknownTopic, InvalidRequest."""
    with LogDir.open(directory, env=env_for(directory, None, store)) as log_dir:
        names_of(log_dir, topics)


def names_of(
    log_dir: LogDir,
    topics: Sequence[str | TopicPartition] | None,
    listener: Listener = NOBODY,
) -> list[TopicPartition]:
    """Return the partitions of the topics (None: all compacted topics), sorted.

    Partitions that the topics file lists, but that have no directory, are left out; `listener` gets
    a note about them.

    Raises:
        UnknownTopic: A topic does not exist.
        InvalidRequest: A topic is not compacted.
    """
    if topics is None:
        topics = [name for name, info in log_dir.topics().items() if info.config.is_compacted]
    for item in topics:
        topic = item.topic if isinstance(item, TopicPartition) else item
        info = log_dir.topic(topic)
        if not info.config.is_compacted:
            data = shlex.quote(log_dir.path)
            raise InvalidRequest(
                f"{topic} is not a compacted topic; `tidelog config {topic} --data {data}"
                " --set cleanup.policy=compact` makes it one"
            )
    for error in absent_errors(log_dir, topics):
        listener.note(f"{error}; `tidelog doctor` shows what to do")
    return list_partitions(log_dir, topics)


def row_of(report: CleaningReport) -> tuple[object, ...]:
    """Return a report as a row of `SCHEMA`."""
    return (
        report.name.topic,
        report.name.partition,
        report.passes,
        report.segments_before,
        report.segments_after,
        report.records_before,
        report.records_after,
        report.bytes_before,
        report.bytes_after,
        report.bytes_read,
        report.bytes_written,
        report.cleaned_to,
        report.decision.reason,
        report.stopped,
    )


# -- parts of a job -------------------------------------------------------------------------------


class SparkWorker:
    """Runs cleaning jobs in Spark tasks; implements the cleaner's `Worker`."""

    def __init__(self, spark: "SparkSession", log: "LogView", part_bytes: int) -> None:
        self._spark, self._log, self._part_bytes = spark, log, part_bytes

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Clean the job's segments; see `Worker`.

        Raises:
            CleaningFailed: A task failed after its retries; the message has the task's error.
        """
        # The head is the part of the log that was not cleaned yet; the tail is the part before it.
        # If versions decide which record of a key is the latest, a record of the tail may have a
        # higher version than a record of the head. Then the record of the head must be removed. So
        # a task that rewrites a part of the head would have to compare this part with the whole
        # tail.
        is_divisible = _is_plain_partition(self._log, job) and not job.rules.has_versions
        limit = self._part_bytes if is_divisible else None
        parts = [part.to_json() for part in parts_of(job, limit)]
        with failing_with_our_words(job):
            rows = run_parts(self._spark, parts, clean_part, _CLEANED)
        results = [CleaningResult.from_json(str(row["cleaned"])) for row in rows]
        for row, one in zip(rows, results, strict=True):
            _rename_files(job, one, str(row["attempt"]))
        os_env().files.sync_dir(job.directory)
        return together(results)


def _is_plain_partition(log: "LogView", job: CleaningJob) -> bool:
    """Return whether zone maps prove that the job's segments have no records of transactions."""
    bases = {source.base_offset for source in job.sources}
    zones = [s.zones for s in log.segments if s.base_offset in bases]
    return len(zones) == len(bases) and not any(
        one is None or one.total.is_transactional or one.total.control_records for one in zones
    )


# -- in the workers -------------------------------------------------------------------------------


class AttemptFiles(OsFileSystem):
    """The machine's file system, except that `NAME.cleaned` means the file `NAME.ATTEMPT.cleaned`.

    Spark may start a second attempt of a task while the first attempt still writes. So each attempt
    uses its own file names. The driver renames the files of the attempt whose result it has
    received (`_rename_files`). When the directory is next opened for writing, the files of all
    other attempts are removed.
    """

    def __init__(self, attempt: str) -> None:
        super().__init__()
        self._attempt = attempt

    def _named(self, path: str) -> str:
        if not path.endswith(log_files.CLEANED_SUFFIX):
            return path
        return attempt_path(path, self._attempt)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> "File":
        """Open a file; see `FileSystem`."""
        return super().open(self._named(path), write=write, create=create)

    def map(self, path: str, size: int | None = None) -> memoryview:
        """Map a file; see `FileSystem`."""
        return super().map(self._named(path), size)

    def stat(self, path: str) -> "FileStat":
        """Return the stat of a file; see `FileSystem`."""
        return super().stat(self._named(path))

    def exists(self, path: str) -> bool:
        """Return whether a file exists; see `FileSystem`."""
        return super().exists(self._named(path))

    def remove(self, path: str) -> None:
        """Remove a file; see `FileSystem`."""
        super().remove(self._named(path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file; see `FileSystem`."""
        super().rename(self._named(source), self._named(target))

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set a file's modification time; see `FileSystem`."""
        super().set_mtime(self._named(path), mtime_ms)


def attempt_path(path: str, attempt: str) -> str:
    """Return the path of an attempt's `.cleaned` file."""
    stem = path.removesuffix(log_files.CLEANED_SUFFIX)
    return f"{stem}.{attempt}{log_files.CLEANED_SUFFIX}"


def clean_part(part: str) -> tuple[object, ...]:
    """Clean a part of a job, in a Spark task; `part` is a job as JSON. Implements `Work`."""
    from tidelog.storage.compaction.worker import clean

    env = os_env()
    attempt = f"{env.random.getrandbits(64):016x}"
    own = Env(files=AttemptFiles(attempt), clock=env.clock, random=env.random)
    return clean(CleaningJob.from_json(part), own).to_json(), attempt


def _rename_files(job: CleaningJob, cleaned: CleaningResult, attempt: str) -> None:
    """Rename an attempt's files to the names that the swap expects."""
    disk = os_env().files
    for group in cleaned.groups:
        for suffix in group.suffixes:
            name = log_files.file_name(group.base_offset, suffix)
            path = f"{job.directory}/{name}{log_files.CLEANED_SUFFIX}"
            disk.rename(attempt_path(path, attempt), path)
