"""Idempotent loads to brokers: each transaction also commits the number of rows loaded so far.

The consumer group `tidelog-load/SOURCE` stores the number of loaded rows as its committed offset
for partition 0 of the topic. A repeated load continues with the row after the stored number of
loaded rows. The transactional id consists of source and topic, so a new load fences an earlier load
that still runs elsewhere. Consumers with `read_committed` see every row exactly once.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural, verb
from tidelog.errors import TidelogError
from tidelog.remote.client import typed_error
from tidelog.remote.cluster import Cluster
from tidelog.remote.producer import STAMPED, Row, refuse_time, too_large_for_queue
from tidelog.storage.directory.numbered_loads import (
    ROWS_AT_ONCE,
    LoadedRange,
    LoadResult,
    check_source,
    too_few_rows,
)
from tidelog.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck

# Prefix of the consumer groups of loads. The committed offset of such a group is the number of rows
# that are loaded.
LOAD_GROUPS: Final = "tidelog-load/"

# Minimum transaction timeout in ms; it is also librdkafka's default. The transaction timeout must
# not be shorter than a request's timeout.
_TRANSACTION_MS: Final = 60_000


def load_once(
    cluster: Cluster,
    topic: str,
    rows: Iterable[Row],
    *,
    source: str,
    settings: Mapping[str, object],
) -> LoadResult:
    """Append the rows of a source that were not yet loaded into a topic.

    Each transaction has at most `ROWS_AT_ONCE` rows. After an error, the rows of committed
    transactions stay in the log, and the next call continues after them.

    Args:
        cluster: The cluster.
        topic: Name of the topic.
        rows: All rows of the source, including rows that were already loaded.
        source: Name of the source, which identifies it in later calls.
        settings: The producer's settings for batches and records.

    Raises:
        InvalidRequest: The source has fewer rows than were already loaded from it; nothing was
            appended.
        NotAuthorized, ClusterFailure, TidelogError: See `RemoteDirectory.append`. The transaction
            of the failed rows is aborted. A note of the error states the number of rows
            that earlier transactions of this call have appended.
    """
    check_source(source)
    producer = cluster.producer(
        {
            "transactional.id": f"tidelog-load/{topic}/{source}",
            "linger.ms": 5,
            "transaction.timeout.ms": max(_TRANSACTION_MS, cluster.request_timeout_ms),
            **settings,
        }
    )
    with cluster.typed(f"begin to load {source!r}"):
        producer.init_transactions(cluster.timeout_s)
    skipped = loaded_rows(cluster, topic, source)
    remaining = iter(rows)
    passed = sum(1 for _ in itertools.islice(remaining, skipped))
    if passed < skipped:
        raise too_few_rows(source, topic, skipped, passed)
    load = _Load(cluster, producer, topic, f"{LOAD_GROUPS}{source}")
    count = skipped
    while chunk := _next(remaining):
        if chunk.rows:
            try:
                load.commit(chunk.rows, count + len(chunk.rows))
            except TidelogError as error:
                appended = (
                    f"{plural(count - skipped, 'row')} {verb(count - skipped, 'was', 'were')}"
                )
                error.add_note(f"before this error, {appended} appended; a repeated load continues")
                raise
        count += len(chunk.rows)
        if chunk.error is not None:
            raise chunk.error
    return LoadResult(load.ranges, count - skipped, skipped)


def loaded_rows(cluster: Cluster, topic: str, source: str) -> int:
    """Return the number of rows of a source that `load_once` has appended to a topic.

    Raises:
        InvalidRequest: The source's name is invalid.
        NotAuthorized, ClusterFailure: The cluster refuses, or did not respond in time.
    """
    check_source(source)
    name = TopicPartition(topic, 0)
    committed = cluster.committed(f"{LOAD_GROUPS}{source}", [name]).get(name)
    return 0 if committed is None else committed.offset


class _Chunk:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self.rows) or self.error is not None


def _next(rows: Iterator[Row]) -> _Chunk:
    """Return the next rows, at most `ROWS_AT_ONCE`.

    If reading a row fails, return the rows before this row, and the error.
    """
    chunk = _Chunk()
    try:
        chunk.rows.extend(itertools.islice(rows, ROWS_AT_ONCE))
    except Exception as error:  # noqa: BLE001 - raised after the rows before it are committed
        chunk.error = error
    return chunk


class _Load:
    """The transactions of one call of `load_once`."""

    def __init__(self, client: Cluster, producer: "ck.Producer", topic: str, group: str) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._group = group
        self.ranges: dict[int, LoadedRange] = {}
        self._errors: list[TidelogError] = []

    def commit(self, rows: list[Row], count: int) -> None:
        """Append rows and commit the new number of loaded rows, in one transaction."""
        from confluent_kafka import TopicPartition as CkPartition

        producer, timeout_s = self._producer, self._client.timeout_s
        delivered: list[ck.Message] = []
        with self._client.typed(f"append to {self._topic}"):
            producer.begin_transaction()
            try:
                for row in rows:
                    self._queue(row, delivered)
                producer.flush(timeout_s)
                if self._errors:
                    raise self._errors[0]
                with closing(self._client.consumer(self._group)) as member:
                    producer.send_offsets_to_transaction(
                        [CkPartition(self._topic, 0, count)],
                        member.consumer_group_metadata(),
                        timeout_s,
                    )
                producer.commit_transaction(timeout_s)
            except BaseException:
                self._abort()
                raise
        for message in delivered:
            self._count(message)

    def _abort(self) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.abort_transaction(self._client.timeout_s)
        except KafkaException:
            # The broker aborts the transaction at its timeout, or when the next load begins.
            return

    def _queue(self, row: Row, delivered: "list[ck.Message]") -> None:
        partition, key, value, time_ms, headers = row
        where = f"{self._topic}-{partition}"

        def on_delivery(error: "ck.KafkaError | None", message: "ck.Message") -> None:
            if error is None:
                delivered.append(message)
            else:
                self._errors.append(typed_error(self._client, "append", error, where=where))

        from confluent_kafka import KafkaException

        refuse_time(where, time_ms)
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition, on_delivery, None, time_ms, headers
                )
                return
            except BufferError:
                if not len(self._producer):
                    raise too_large_for_queue(where) from None
                self._producer.poll(0.1)
            except KafkaException as error:
                # An earlier record's error may have ended the transaction, and is then the cause.
                failures = [
                    *self._errors,
                    typed_error(self._client, "append", error.args[0], where=where),
                ]
                raise failures[0] from error

    def _count(self, message: "ck.Message") -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        kind, stamp_ms = message.timestamp()
        stamp_ms = stamp_ms if kind == STAMPED else NO_TIMESTAMP
        rows, first, last, _ = self.ranges.get(partition, (0, offset, offset, stamp_ms))
        self.ranges[partition] = LoadedRange(
            rows + 1, min(first, offset), max(last, offset), stamp_ms
        )
