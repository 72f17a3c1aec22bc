"""Batches of `__consumer_offsets`: what groups write, plain or in a transaction."""

from collections.abc import Sequence

from tidelog.error_codes import ErrorCode
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.server.groups.gathering import Gathering
from tidelog.server.groups.host import Host
from tidelog.server.groups.internal_topic import InternalTopic
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.replay import LoadedShard
from tidelog.server.groups.reply import Reply
from tidelog.server.open_transactions import Guard, TransactionEnd
from tidelog.server.transactional_writes import append_in_transaction, end_transaction
from tidelog.storage.appends import AppendOrigin
from tidelog.types import Codec


class OffsetsLog:
    """The topic's partitions, to be written to. Belongs to the loop's thread."""

    def __init__(self, host: Host, topic: InternalTopic[LoadedShard]) -> None:
        self._clock = host.env.clock
        self._codec = Codec(host.config.offsets_topic_compression_codec)
        self._topic = topic
        self._gathering = Gathering(topic, self._write)
        host.closers.append(self._gathering.flush_all)

    def append(self, number: int, records: Sequence[GroupRecord]) -> Reply[ErrorCode]:
        """Write records, those of a turn of the loop together; when they are safe, or why not.

        A failure that is known at once is answered at once: then nothing was written.
        """
        return self._gathering.append(number, records)

    def append_now(self, number: int, records: Sequence[GroupRecord]) -> Reply[ErrorCode]:
        """Write records in a batch of their own; as `append`."""
        self._gathering.flush(number)
        return self._write(number, records)

    def settled(self, number: int) -> Reply[ErrorCode]:
        """When all that was written to a partition is safe."""
        return self._gathering.pending(number) or self._topic.settled(number)

    def _write(self, number: int, records: Sequence[GroupRecord]) -> Reply[ErrorCode]:
        made = build_batch(records, codec=self._codec, default_timestamp=self._clock.now_ms())
        return self._topic.append(number, made)

    def append_pending(
        self,
        number: int,
        records: Sequence[GroupRecord],
        producer: tuple[int, int],
        guard: Guard | None,
    ) -> Reply[ErrorCode]:
        """Write records that count once a producer's transaction is committed.

        Args:
            number: The partition.
            records: In one batch.
            producer: Id and epoch.
            guard: What the partition gave before the coordinator of transactions was asked.
        """
        self._gathering.flush(number)
        made = build_batch(
            records,
            codec=self._codec,
            default_timestamp=self._clock.now_ms(),
            producer_id=producer[0],
            producer_epoch=producer[1],
            transactional=True,
        )
        batch, origin = RecordBatch(made, 0), AppendOrigin.COORDINATOR
        return self._topic.write(
            number,
            lambda partition: append_in_transaction(partition, made, batch, guard, origin=origin),
        )

    def end_transaction(self, number: int, end: TransactionEnd) -> Reply[ErrorCode]:
        """Write the marker that ends a producer's transaction."""
        self._gathering.flush(number)
        return self._topic.write(number, lambda partition: end_transaction(partition, end))
