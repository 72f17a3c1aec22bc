"""`Directory`: local primitives, log, exclusive.

The library's front door: a directory of topics, by name, for people who write programs.

`Directory` adds to `storage.LogDir` what works on whole topics: appends that choose partitions,
lookups and reads over all partitions, Arrow in and out, time as people write it. It owns no format
and no file. Arrow, numpy and numba are imported by the calls that need them.

Life cycle: `tidelog.open` -> calls -> close, best by `with`. One thread changes a directory.

Appending to a directory of topics: records, tables, and sources whose rows come once.

The part of `tidelog.Directory` that writes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike, fspath
from typing import TYPE_CHECKING, Self
from uuid import UUID

from tidelog.arguments import codec_of, level_of, reads_arguments
from tidelog.closing import Closing
from tidelog.config import ConfigNote
from tidelog.env import Env
from tidelog.errors import InvalidRequest, TopicExists
from tidelog.objects import env_for, local_path
from tidelog.record.builder import BATCH_BYTES
from tidelog.record.partitioner import Partitioner
from tidelog.record.record import Record
from tidelog.storage.directory.dir_state import LogDirOptions
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.append import AppendResult
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogReader, unknown_times_note
from tidelog.timespec import OPEN_END, OPEN_START, parse_point, parse_range
from tidelog.types import (
    ClockName,
    Codec,
    Compression,
    Isolation,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    RecordCount,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.frames import Scan, TopicChoice
    from tidelog.keyed import Diff, Table
    from tidelog.scan import ScanStats
    from tidelog.storage.directory.numbered_loads import Loaded
    from tidelog.storage.directory.topic_retention import DueSegment


@reads_arguments()
class Appending(Closing):
    """A directory of topics that records are appended to."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._partitioners: dict[str, Partitioner] = {}

    def append(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> dict[int, AppendResult]:
        """Append records; what each partition that got some answered.

        Records go where Kafka's clients would send them: by murmur2 of the key; those without a
        key to one partition that is drawn anew for each call. Within a partition all are appended
        or none; across partitions each stands for itself.

        Args:
            topic: Its name.
            records: Keys, values, create times (the clock's where they have none), headers.
            partition: The partition for them all; chosen by key where None.
            codec: Compression, unless the topic's `compression.type` says another.
            batch_bytes: Where a batch is closed, before compression.

        Raises:
            UnknownTopic, ReadOnly, and what `Log.append` raises.
        """
        groups = self._by_partition(topic, records, partition)
        return {
            number: self._log_dir.log(topic, number).append(
                group, codec=codec_of(codec), batch_bytes=batch_bytes
            )
            for number, group in groups.items()
        }

    def load_once(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        source: str,
        partition: int | None = None,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> "Loaded":
        """Append the rows of a source that a topic doesn't have yet, all together or none.

        Args:
            topic: Its name.
            records: All rows of the source, from the first one; those that were loaded before
                under the source's name are passed over.
            source: Its name.
            partition: The partition for them all; chosen by key where None.
            codec: Compression, unless the topic's `compression.type` says another.
            batch_bytes: Where a batch is closed, before compression.

        Raises:
            InvalidRequest: The first rows are not those that were loaded under this name.
            UnknownTopic, ReadOnly, and what `Log.append` raises: Nothing was appended.
        """
        from tidelog.storage.directory.numbered_loads import load_once

        return load_once(
            self._log_dir,
            topic,
            records,
            source=source,
            group=lambda rows: self._by_partition(topic, rows, partition),
            codec=codec_of(codec),
            batch_bytes=batch_bytes,
        )

    def append_table(
        self,
        topic: str,
        table: "pa.Table | pa.RecordBatch",
        *,
        codec: Compression = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> dict[int, AppendResult]:
        """Append the rows of an Arrow table; the last answer of each partition that got some.

        Rows keep their order within a partition. They are appended by pieces of about
        `APPEND_BYTES`: a failure leaves the pieces before it in the log.

        Args:
            topic: Its name.
            table: Columns `key`, `value`, `timestamp` (ms, or any timestamp), `headers`, all
                optional, and `partition` (int) for those who choose it themselves.
            codec: Compression, unless the topic's `compression.type` says another.
            batch_bytes: Where a batch is closed, before compression.

        Raises:
            InvalidRequest: Another column, a wrong type, or a partition that is not there.
            MissingDependency: pyarrow, numpy or numba is not installed.
            UnknownTopic, ReadOnly, and what `Log.append_batches` raises.
        """
        from tidelog.arrow_topics import append_table

        return append_table(
            self._log_dir,
            topic,
            table,
            keyless=self._keyless_partition(topic),
            codec=codec_of(codec),
            batch_bytes=batch_bytes,
        )

    def _keyless_partition(self, topic: str) -> int:
        partitioner = self._partitioner(topic)
        partitioner.switch()
        return partitioner.choose(None)

    def _by_partition(
        self, topic: str, records: Iterable[NewRecord], partition: int | None
    ) -> dict[int, list[NewRecord]]:
        if partition is not None:
            return {partition: list(records)}
        partitioner = self._partitioner(topic)
        partitioner.switch()
        groups: dict[int, list[NewRecord]] = {}
        for record in records:
            groups.setdefault(partitioner.choose(record.key), []).append(record)
        return groups

    def _partitioner(self, topic: str) -> Partitioner:
        count = self._log_dir.topic(topic).partitions
        found = self._partitioners.get(topic)
        if found is None or found.partition_count != count:
            found = Partitioner(count, self._log_dir.env.random)
            self._partitioners[topic] = found
        return found

    def flush(self) -> None:
        """Make everything appended durable, in every partition that was written to."""
        self._log_dir.flush()


_LOGGER = logging.getLogger(__name__)


# What a point in time may be given as: ms since the epoch, or text in the grammar of docs/time.md.
When = int | str


@reads_arguments()
class Directory(Appending):
    """A directory of topics."""

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        writable: bool = False,
        env: Env | None = None,
        store_options: Mapping[str, str] | None = None,
        control: bool = False,
    ) -> Self:
        """Open a directory of topics.

        Args:
            path: Where it is; Kafka's own log directories can be opened as well. For reading also
                the URL of an object store, `s3://bucket/logs` say (docs/objects.md).
            writable: Take the lock and allow changes; the directory is made where it is missing.
            env: Files, clock and randomness; the machine's where None.
            store_options: Settings of the object store; the environment's where None.
            control: Serve the control channel meanwhile, by a thread (docs/control.md).

        Raises:
            DirectoryLocked: Another process has it open for writing.
            InvalidRequest: There is no such directory, and `writable` is false.
            ReadOnly: It lies in an object store, and `writable` is true.
            StorageFailure: The object store can't be reached, or lets nobody in.
        """
        options = LogDirOptions(writable=writable, create=writable)
        path = fspath(path)
        found = env_for(local_path(path), env, store_options)
        if control and not writable:
            raise InvalidRequest("control=True serves who would change it: open it writable")
        log_dir = LogDir.open(path, env=found, options=options)
        if not control:
            return cls(log_dir)
        from tidelog.control.server import served

        return served(cls, cls, log_dir)

    @property
    def path(self) -> str:
        """Where it is."""
        return self._log_dir.path

    @property
    def log_dir(self) -> LogDir:
        """The storage below, for those who work on partitions."""
        return self._log_dir

    @property
    def reports(self) -> Sequence[str]:
        """What was found damaged and made good since it was opened, one line each."""
        return self._log_dir.reports

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name; a notebook shows them as a table."""
        from tidelog.frames import Topics

        return Topics(self._log_dir.topics())

    def topic(self, name: str) -> TopicInfo:
        """One topic; raises UnknownTopic, which names the nearest one."""
        return self._log_dir.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
        exist_ok: bool = False,
    ) -> list[ConfigNote]:
        """Create a topic; what there is to say about its settings (old names, say).

        Args:
            name: By Kafka's rules.
            partitions: From 1 on.
            config: Settings under Kafka's names, see docs/config.md.
            topic_id: To match another cluster's topic; drawn where None.
            exist_ok: A topic that is there stays as it is, whatever the other arguments say.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError: Nothing was changed.
        """
        try:
            return self._log_dir.create_topic(
                name, partitions=partitions, config=config, topic_id=topic_id
            )[1]
        except TopicExists:
            if exist_ok:
                return []
            raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; raises UnknownTopic."""
        self._partitioners.pop(name, None)
        self._log_dir.delete_topic(name)

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> list[ConfigNote]:
        """Change a topic's settings, None for back to the default."""
        return self._log_dir.alter_config(name, changes)

    def partition(self, topic: str, partition: int) -> LogReader:
        """One partition, for reading."""
        return self._log_dir.reader(topic, partition)

    def log(self, topic: str, partition: int) -> Log:
        """One partition, for writing; raises ReadOnly where the directory is open for reading."""
        return self._log_dir.log(topic, partition)

    def retain(self, topic: str | None = None, *, dry_run: bool = False) -> "list[DueSegment]":
        """Apply retention: delete the finished segments that the topics' settings let go.

        A broker does it by itself; without one, all is kept until somebody calls this. Only topics
        with a `retention.ms` of their own, or of a broker's that is known, go by age.

        Args:
            topic: One topic; all of them where None.
            dry_run: Delete nothing. A directory that is open for reading can be asked, too.

        Returns:
            What was deleted, or would be, in order of partition and offset.

        Raises:
            UnknownTopic: No such topic.
            ReadOnly: The directory is open for reading, and this is no dry run.
            StorageFailure: The disk failed; the partition is offline.
        """
        from tidelog.storage.directory.topic_retention import retain

        names = sorted(self.topics()) if topic is None else [topic]
        return [one for name in names for one in retain(self._log_dir, name, dry_run=dry_run)]

    # -- lookups by time ---------------------------------------------------------------------

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The earliest record at or after a time, for each partition. Source: KIP-79.

        Args:
            times: ms since the epoch, 0 or more.
            clock: `record` or `append`.

        Returns:
            Every partition asked; None where no record is that late. On the append clock,
            `without_time` is the number of records before the answer whose append time is unknown.
            Where the answer is None, `without_append_time` tells how many there are in all, and a
            warning is logged if there are any.

        Raises:
            ValueError: A negative time, or an unknown clock.
        """
        found = self._log_dir.offsets_for_times(times, clock=ClockName(clock))
        if ClockName(clock) is ClockName.APPEND:
            for name, answer in found.items():
                if answer is None and (count := self.without_append_time(name)):
                    _LOGGER.warning("%s", unknown_times_note(name, count))
        return found

    def without_append_time(self, partition: TopicPartition) -> int:
        """Number of records of a partition whose append time is unknown."""
        return self.partition(partition.topic, partition.partition).without_append_time()

    def offsets_at(
        self, topic: str, when: When, *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """`offsets_for_times` for every partition of a topic and one point in time.

        Args:
            topic: Its name.
            when: ms since the epoch, or text such as `2013-02-08 12:00 America/New_York`, `-6h`.
            clock: `record` or `append`.

        Raises:
            InvalidTime: Text that can't be read as one point.
        """
        time_ms = self.point(when)
        partitions = self._log_dir.partitions(topic)
        return self.offsets_for_times(dict.fromkeys(partitions, time_ms), clock=clock)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can be read. Source: KIP-79."""
        return self._log_dir.beginning_offsets(partitions)

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """The offset behind the last visible record. Source: KIP-79."""
        return self._log_dir.end_offsets(partitions, isolation=level_of(isolation))

    def point(self, when: When) -> int:
        """A point in time in ms; text is read by the grammar of docs/time.md."""
        if isinstance(when, int):
            return when
        return parse_point(when, now_ms=self._log_dir.env.clock.now_ms())

    def range(self, text: str) -> tuple[int, int]:
        """A range in time [start, end) in ms, from text such as `-6h..now` or `2013-02-08`."""
        return parse_range(text, now_ms=self._log_dir.env.clock.now_ms())

    # -- reading -----------------------------------------------------------------------------

    def records(
        self,
        topic: str,
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """Every record of a topic with its append time, by partition; for small amounts."""
        level = level_of(isolation)
        for name in self._log_dir.partitions(topic):
            for record in self.partition(topic, name.partition).timed_records(level):
                yield name, record

    def read(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
        stats: "ScanStats | None" = None,
    ) -> "pa.RecordBatchReader":
        """A topic's records as an Arrow reader, a time range of them where one is given.

        Args:
            topic: Its name.
            start: Earliest time, inclusive; the log's start where None.
            end: Time to stop before, exclusive; the log's end where None.
            clock: Which of a record's two times the range is about: `record` or `append`.
            columns: Names out of `tidelog.scan.ALL_COLUMNS`; the usual ones where None.
            isolation: READ_COMMITTED leaves out records of aborted and open transactions.
            strict: Raise where records have no time on that clock; else they are left out.
            stats: Counted up while reading: rows and bytes read, records without a time.

        Returns:
            Exactly the records of the range, by partition and offset, create times in any order.

        Raises:
            InvalidTime: A point in time that can't be read.
            MissingDependency: pyarrow, numpy or numba is not installed.
            MissingTimestamps, CorruptData: While reading.
        """
        from tidelog.arrow_topics import read_topic

        return read_topic(
            self._log_dir,
            topic,
            times=(_maybe(self.point, start), _maybe(self.point, end)),
            clock=ClockName(clock),
            columns=columns,
            isolation=level_of(isolation),
            strict=strict,
            stats=stats,
        )

    def count(
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        clock: str = ClockName.RECORD,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> RecordCount:
        """How many records `read` would hand out of the same range, mostly by zone maps alone.

        Returns:
            The number, an int; its `without_time` is the number of records that have no time on
            the clock, so lie in no range.

        Raises:
            As `read`; for figures by partition see `tidelog.scan.count`.
        """
        from tidelog.scan import Wanted, count

        wanted = Wanted(start_ms=_maybe(self.point, start), end_ms=_maybe(self.point, end))
        clock_name = ClockName(clock)
        found = count(self._log_dir, topic, wanted=wanted, clock=clock_name, isolation=isolation)
        return RecordCount(found.records, without_time=found.without_time, is_least=found.is_least)

    def scan(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topics: "TopicChoice" = None,
        *,
        start: When | None = None,
        end: When | None = None,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
    ) -> "Scan":
        """Records for Arrow, Polars, DuckDB or pandas; nothing is read until they ask.

        Args:
            topics: Topics or single partitions; all of them where None.
            start: Earliest time, inclusive; the log's start where None.
            end: Time to stop before, exclusive; the log's end where None.
            during: Both at once, as text: `2013-02-08`, `-6h..now`.
            clock: Which of a record's two times the range is about: `record` or `append`.
            columns: Names out of `tidelog.scan.ALL_COLUMNS`; the usual ones where None.
            isolation: READ_COMMITTED leaves out records of aborted and open transactions.
            strict: Raise where records have no time on that clock; else they are left out.

        Raises:
            InvalidTime: A point or a range in time that can't be read.
            InvalidRequest: `during` beside `start` or `end`.
        """
        from tidelog.frames import Scan
        from tidelog.scan import Wanted

        one = str | TopicPartition
        first, last = _maybe(self.point, start), _maybe(self.point, end)
        if during is not None:
            if (start, end) != (None, None):
                raise InvalidRequest(f"during={during!r} is a whole range; leave start and end out")
            low, high = self.range(during)
            first, last = None if low == OPEN_START else low, None if high == OPEN_END else high
        return Scan(
            log_dir=self._log_dir,
            topics=topics if topics is None or isinstance(topics, one) else tuple(topics),
            wanted=Wanted(start_ms=first, end_ms=last),
            clock=ClockName(clock),
            columns=columns,
            isolation=level_of(isolation),
            strict=strict,
        )

    # -- tables by key -----------------------------------------------------------------------

    def table(
        self,
        topic: str | TopicPartition,
        *,
        at: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        inexact: str = "refuse",
    ) -> "Table":
        """A topic as a table as of a time: the winning record of each key (docs/tables.md).

        Of the committed records of a partition up to and with the time the one that the topic's
        compaction rule prefers, unless it is a tombstone. Records without a key are left out.

        Args:
            topic: Its name, or one of its partitions.
            at: The time; all that the log holds where None.
            clock: Which of a record's two times it is about: `record` or `append`.
            columns: Names out of `tidelog.scan.ALL_COLUMNS`; the usual ones where None.
            inexact: `refuse` raises where compaction or retention has taken away what the table
                was made of then; `mark` answers with what is left, and `Table.doubts` says why.

        Raises:
            InvalidTime, InvalidRequest: A time or a word that can't be read. The rest with its
                first rows, see `Table.to_arrow`.
        """
        from tidelog.keyed import DirectoryHome, Table

        return Table(
            home=DirectoryHome(self._log_dir, self._log_dir.env),
            topic=topic,
            at_ms=_maybe(self.point, at),
            clock=ClockName(clock),
            columns=columns,
            inexact=inexact,
        )

    def diff(
        self,
        topic: str | TopicPartition,
        before: When,
        after: When | None = None,
        *,
        clock: str = ClockName.RECORD,
        inexact: str = "refuse",
    ) -> "Diff":
        """What changed in a topic's table between two times: keys added, changed, deleted.

        Args:
            topic: Its name, or one of its partitions.
            before: The earlier time; records of that time are in the first table.
            after: The later one; all that the log holds where None.
            clock: Which of a record's two times both are about.
            inexact: As of `table`.

        Raises:
            InvalidTime, InvalidRequest: As `table`, or the times are the wrong way round.
        """
        from tidelog.keyed import Diff, DirectoryHome

        return Diff(
            home=DirectoryHome(self._log_dir, self._log_dir.env),
            topic=topic,
            before_ms=self.point(before),
            after_ms=_maybe(self.point, after),
            clock=ClockName(clock),
            inexact=inexact,
        )

    def _repr_html_(self) -> str:
        """The directory for a notebook: its topics and their sizes."""
        from tidelog.frames import directory_html

        return directory_html(self._log_dir)

    # -- closing -----------------------------------------------------------------------------

    def exclusive(self) -> AbstractContextManager[object]:
        """Keep requests of the control channel out while the block runs, where one is served.

        Calls do so by themselves; logs, partitions and scans that they hand out do not.
        """
        return nullcontext()

    def close(self) -> None:
        """Close everything; a writable directory leaves the mark of a clean stop."""
        self._log_dir.close()


def _maybe(read: Callable[[When], int], when: When | None) -> int | None:
    return None if when is None else read(when)


def open_directory(
    path: str | PathLike[str],
    *,
    writable: bool = False,
    env: Env | None = None,
    store_options: Mapping[str, str] | None = None,
    control: bool = False,
) -> Directory:
    """Open a directory of topics: `tidelog.open`; see `Directory.open`."""
    return Directory.open(
        path, writable=writable, env=env, store_options=store_options, control=control
    )
