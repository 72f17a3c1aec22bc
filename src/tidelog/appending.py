"""Appending to a directory of topics: records, tables, and sources whose rows come once.

The part of `tidelog.Directory` that writes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.arguments import codec_of, reads_arguments
from tidelog.closing import Closing
from tidelog.record.encode import BATCH_BYTES
from tidelog.storage.log import AppendResult
from tidelog.storage.log_dir import LogDir
from tidelog.storage.partitioner import Partitioner
from tidelog.types import Codec, Compression, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.storage.numbered_loads import Loaded


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
        from tidelog.storage.numbered_loads import load_once

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
        from tidelog.tables import append_table

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
