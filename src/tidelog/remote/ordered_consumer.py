"""librdkafka's consumer with a check of the order of offsets (see `record.offset_order`).

librdkafka returns records in the order in which they arrive, whatever their offsets are. Each
record must have a higher offset than the previous record of its partition. A record that follows a
gap in the offsets must also be below the high watermark of its response. A list of records is
checked completely before it is returned.

librdkafka requests the coordinator of `group.id` even if the caller assigns the partitions and
commits nothing. If the user chose no group, `group.id` is a placeholder. If the broker denies
access to the placeholder, the consumer ignores this error, because reading topics needs no group.

One kind of damage is not detected: a flipped bit in a base offset that moves a batch below the
requested offset. librdkafka drops this batch, and the missing offsets look like a gap from
compaction. Readers of batches (`remote.partition_fetch`) detect this damage.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import confluent_kafka as ck

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptBatch
from tidelog.record.offset_order import bad_order
from tidelog.types import INT64_MAX

_NO_TIMEOUT: Final = -1


class OrderedConsumer(ck.Consumer):
    """Consumer that raises CorruptBatch for a record whose offset is out of order.

    Args:
        bootstrap: Bootstrap servers, for errors.
        config: Settings of librdkafka.
        has_group: Whether the user chose the group. If false, `group.id` is a placeholder, and a
            broker's error that denies access to this group is ignored.
        more: Arguments of `confluent_kafka.Consumer`.
    """

    def __init__(
        self, bootstrap: str, config: Mapping[str, object], *, has_group: bool, **more: object
    ) -> None:
        super().__init__(dict(config), **more)
        self._bootstrap = bootstrap
        self._has_group = has_group
        # For each partition: the offset after the partition's last record, and its last known high
        # watermark.
        self._nexts: dict[tuple[str | None, int | None], int] = {}
        self._ends: dict[tuple[str | None, int | None], int] = {}

    def assign(self, partitions: list[ck.TopicPartition]) -> None:
        """Assign partitions; the next record of a partition may have any offset in the log."""
        self._nexts.clear()
        super().assign(partitions)

    def poll(self, timeout: float = _NO_TIMEOUT) -> ck.Message | None:
        """Return the next message, None at the timeout; raises CorruptBatch for a wrong offset."""
        message = super().poll(timeout)
        while message is not None and self._is_ignored(message):
            message = super().poll(timeout)
        if message is not None:
            self._check([message])
        return message

    def consume(self, num_messages: int = 1, timeout: float = _NO_TIMEOUT) -> list[ck.Message]:
        """Return at most `num_messages` messages; raises CorruptBatch for a wrong offset."""
        messages = super().consume(num_messages, timeout)
        self._check(messages)
        return [message for message in messages if not self._is_ignored(message)]

    def _is_ignored(self, message: ck.Message) -> bool:
        error = message.error()
        is_refusal = error is not None and error.code() == ErrorCode.GROUP_AUTHORIZATION_FAILED
        return is_refusal and not self._has_group

    def _check(self, messages: Iterable[ck.Message]) -> None:
        nexts = self._nexts
        for message in messages:
            if message.error() is not None:
                continue
            offset = message.offset()
            assert offset is not None
            partition = message.topic(), message.partition()
            following = nexts.get(partition, 0)
            if offset != following and self._is_wrong(partition, offset, following):
                problem = bad_order(offset, offset, following, self._ends[partition])
                path = f"kafka://{self._bootstrap}/{partition[0]}-{partition[1]}"
                raise CorruptBatch(problem or "", offset=following, path=path)
            nexts[partition] = offset + 1

    def _is_wrong(
        self, partition: tuple[str | None, int | None], offset: int, following: int
    ) -> bool:
        """Return whether an offset is below `following`, or not below the high watermark."""
        if offset >= self._ends.get(partition, 0):
            self._ends[partition] = self._high_watermark(partition)
        return not following <= offset < self._ends[partition]

    def _high_watermark(self, partition: tuple[str | None, int | None]) -> int:
        """Return the high watermark from the last fetch response; sends no request."""
        topic, number = partition
        assert topic is not None
        assert number is not None
        _, end = self.get_watermark_offsets(ck.TopicPartition(topic, number), cached=True)
        # the high watermark is unknown until the first response
        return end if end >= 0 else INT64_MAX
