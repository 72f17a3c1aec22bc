"""A workload with several kinds of partitions, and commits of the sink between the appends.

- `tides`: two partitions with appends, transactions and idempotent producers.
- `stamped`: a topic with LogAppendTime that syncs each append (`flush.messages` is 1).
- `copy`: a follower's partition, to which a leader's batches are appended unchanged, with gaps in
  their offsets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tests.fault.promise import Kept, LogPromise, Sent
from tests.fault.workload import CODECS, SETTINGS, Workload
from tests.faults import DamageFileSystem

from tidelog.record.builder import build_batch
from tidelog.storage.directory.attach import AttachedRange, attach
from tidelog.storage.directory.staging import RowFacts, StagedSegment, StagedWriter, drop_staging
from tidelog.storage.directory.topic_registry import NewTopic
from tidelog.storage.open_files import FilePool
from tidelog.types import INT64_MAX, NewRecord, TopicPartition

TIDES = (TopicPartition("tides", 0), TopicPartition("tides", 1))
STAMPED = TopicPartition("stamped", 0)
COPY = TopicPartition("copy", 0)
LED = (*TIDES, STAMPED)
TOPICS = {
    "tides": (2, {}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime", "flush.messages": "1"}),
    "copy": (1, {}),
}
# First producer id of idempotent producers; smaller ids belong to transactions.
FIRST_IDEMPOTENT = 1_000_000
JOB = "job"

Rows = Sequence[Sequence[NewRecord]]


class WideWorkload(Workload):
    """Each step runs on a randomly drawn partition."""

    def __init__(self, seed: int, files: DamageFileSystem | None = None) -> None:
        super().__init__(seed, files)
        # For each attach of segments: the indexes of the calls by which it changes files.
        self.attach_calls: list[range] = []
        self._jobs = 0
        self._leader_epoch = 0

    def weighted(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the steps of every workload, and the steps that only this workload has."""
        return [*super().weighted(), (6, self.send), (2, self.send_again), (5, self.sink_commit)]

    def take(self, step: Callable[[], None]) -> None:
        """Take one step on a drawn partition."""
        self.at = self.draw.choice((*LED, COPY))
        super().take(step)

    def create_main(self) -> None:
        """Create all topics together."""
        assert self.directory is not None
        new = [
            NewTopic(topic, partitions, {**SETTINGS, **settings})
            for topic, (partitions, settings) in TOPICS.items()
        ]
        self.directory.topic_admin.create(new)
        promise = self.story.latest
        for topic, (partitions, _) in TOPICS.items():
            promise = promise.with_topic(topic, partitions)
        self.story.tell(promise)

    def _after_roll(self, promise: LogPromise) -> LogPromise:
        promise = super()._after_roll(promise)
        return promise.flushed() if self.at == STAMPED else promise

    # ---- a follower

    def append(self) -> None:
        """Append as the partition's leader; in the partition of `copy`, copy from its leader."""
        if self.at == COPY:
            self.follow()
        else:
            super().append()

    def append_in_transaction(self) -> None:
        """Append in a transaction if this log is the partition's leader."""
        if self.at != COPY:
            super().append_in_transaction()

    def bump_epoch(self) -> None:
        """Increase the leader epoch of this log, or of the leader that `copy` follows."""
        if self.at == COPY:
            self._leader_epoch += 1
        else:
            super().bump_epoch()

    def truncate(self) -> None:
        """Truncate. In the partition of `copy`, later batches have the next leader epoch."""
        super().truncate()
        if self.at == COPY:
            self._leader_epoch += 1

    def follow(self) -> None:
        """Append one to three batches of a leader, some after a gap that compaction has left.

        No gap precedes the log's first batch, so this batch starts at offset 0. A crash may tear
        the offset of a batch, which no checksum covers. Below offset 256, a torn offset reads as 0.
        The order of offsets reveals this in every batch but the first one, where 0 is in order.
        Kafka's format has this limit.
        """
        promise, data = self.promise, bytearray()
        offset = first = promise.end
        kept: list[Kept] = []
        for _ in range(self.draw.randrange(1, 4)):
            offset += self.draw.choice((0, 0, 0, 3)) if offset else 0
            records = [self._record() for _ in range(self.draw.randrange(1, 4))]
            data += build_batch(
                records,
                base_offset=offset,
                leader_epoch=self._leader_epoch,
                codec=self.draw.choice(CODECS),
            )
            kept += self._copied(records, offset)
            offset += len(records)
        # The leader sends the append time; the follower must not store the batch's time of arrival.
        told_ms = self.log._clock.next_ms()
        result = self.log.follower.append(data, append_ms=told_ms)
        self._last_append_ms[COPY] = result.append_time_ms
        kept = [replace(record, append_ms=result.append_time_ms) for record in kept]
        batches = self._batches_from(first)
        self._tell(promise.appended(batches, kept, epoch=self._leader_epoch))

    def _copied(self, records: Sequence[NewRecord], offset: int) -> list[Kept]:
        return [
            Kept(
                offset + number,
                self._timestamp_of(record, -1),
                record.key,
                record.value,
                -1,
                self._leader_epoch,
            )
            for number, record in enumerate(records)
        ]

    # ---- idempotent producers

    def send(self) -> None:
        """Append a batch of an idempotent producer; some batches start a new producer epoch."""
        if self.at == COPY:
            return
        producer_id = FIRST_IDEMPOTENT + self.draw.randrange(2)
        last = self.promise.last_sent(self.promise.end).get(producer_id)
        epoch, sequence = (0, 0) if last is None else (last.epoch, last.next_sequence)
        if self.draw.random() < 0.1:
            epoch, sequence = epoch + 1, 0
        now = self.env.clock.now_ms()
        records = [replace(self._record(), timestamp=now) for _ in range(self.draw.randrange(1, 4))]
        data = build_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        result = self.log.append_batches(bytes(data))
        assert not result.is_duplicate
        sent = Sent(
            producer_id,
            epoch,
            sequence + len(records),
            bytes(data),
            result.base_offset,
            result.last_offset,
            now if result.log_append_time_ms < 0 else result.log_append_time_ms,
        )
        promise = self._appended(result, records)
        self._tell(replace(promise, sent=(*promise.sent, sent)))

    def send_again(self) -> None:
        """Send a batch again, as a producer does after a lost response."""
        calls = self.files.calls
        for sent in self.promise.last_sent(self.promise.end).values():
            if sent.first_offset < self.promise.start:
                continue  # the log may forget a producer after its records are deleted
            result = self.log.append_batches(sent.data)
            assert result.is_duplicate
            assert (result.base_offset, result.last_offset) == (sent.first_offset, sent.last_offset)
        assert self.files.calls == calls

    # ---- the sink

    def sink_commit(self) -> None:
        """Let tasks of a job stage segments for some partitions; usually commit the job."""
        assert self.directory is not None
        self._jobs += 1
        job = f"{JOB}{self._jobs}"
        chosen = [name for name in LED if self.draw.random() < 0.7]
        rows = {name: [self._rows() for _ in range(self.draw.choice((1, 1, 2)))] for name in chosen}
        staged = [
            segment
            for name, tasks in rows.items()
            for number, task in enumerate(tasks)
            for segment in self._stage(name, task, f"{job}-{number}", number)
        ]
        fate = self.draw.random()
        if fate < 0.1:
            return  # the driver died
        if fate < 0.2:
            drop_staging(self.files, self.directory.path, prefix=f"{job}-", older_than_ms=INT64_MAX)
            return
        self.draw.shuffle(staged)
        calls = self.files.calls
        result = attach(self.directory, staged)
        self.attach_calls.append(range(calls, self.files.calls))
        self._tell_commit(rows, result.partitions)

    def _rows(self) -> Rows:
        """Return the rows of one task for one partition, batch by batch."""
        return [
            [self._record() for _ in range(self.draw.randrange(1, 5))]
            for _ in range(self.draw.randrange(1, 7))
        ]

    def _stage(
        self, name: TopicPartition, rows: Rows, file_name: str, task: int
    ) -> list[StagedSegment]:
        """Stage segments as one task of the Spark sink does."""
        assert self.directory is not None
        config = self.directory.topic(name.topic).config
        pool = FilePool(self.files)
        writer = StagedWriter(
            pool, self.directory.path, name, config, name=file_name, order=(task,)
        )
        for records in rows:
            times = [self._timestamp_of(record, -1) for record in records]
            facts = RowFacts(
                min_timestamp=min((ms for ms in times if ms >= 0), default=INT64_MAX),
                has_null_key=any(record.key is None for record in records),
            )
            writer.append([build_batch(records, codec=self.draw.choice(CODECS))], facts)
        staged = writer.finish(self.env.clock.now_ms())
        pool.close()
        return staged

    def _tell_commit(
        self,
        rows: dict[TopicPartition, list[Rows]],
        ranges: Mapping[TopicPartition, AttachedRange],
    ) -> None:
        logs = {}
        for self.at, tasks in rows.items():
            records = [record for task in tasks for batch in task for record in batch]
            logs[self.at] = self._attached(records, ranges[self.at])
        self.story.tell(self.story.latest.committed_together(logs))

    def _attached(self, records: Sequence[NewRecord], found: AttachedRange) -> LogPromise:
        promise, log = self.promise, self.log
        assert (found.first_offset, found.end_offset) == (promise.end, promise.end + len(records))
        assert found.append_time_ms == max(self.last_append_ms, self.env.clock.now_ms())
        self._last_append_ms[self.at] = found.append_time_ms
        stamped_ms = found.append_time_ms if self.at == STAMPED else -1
        kept = [
            Kept(
                found.first_offset + number,
                self._timestamp_of(record, stamped_ms),
                record.key,
                record.value,
                found.append_time_ms,
                log.leader_epoch,
            )
            for number, record in enumerate(records)
        ]
        batches = self._batches_from(found.first_offset)
        return promise.appended(batches, kept, epoch=log.leader_epoch).flushed()
