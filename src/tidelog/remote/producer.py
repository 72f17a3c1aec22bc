"""Appends to brokers: a call queues all its records, and a future has the resulting offsets.

Each pair of codec and batch size has its own producer and a thread for its delivery reports, so
calls of several threads and tasks can overlap. If more than `LANES_MAX` producers are unused, the
least recently used of them are closed, except producers with undelivered records.

Callbacks of the futures run in a thread of their own; a callback that is added to a finished future
runs at once, in the caller's thread. If callbacks ran in the thread of the delivery reports, a
callback that waits for a delivery would wait forever: librdkafka delivers the other reports of the
same poll only after the callback has returned.

Life cycle: send and flush, any number of times, then close. Thread-safe.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.amounts import plural, ranges_text, verb
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    Closed,
    ClusterFailure,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RecordError,
    RefusedRecords,
    TidelogError,
    times_of,
    with_times,
)
from tidelog.remote.client import PURGED, Client, typed_error
from tidelog.remote.client_settings import QUEUE_KBYTES
from tidelog.storage.log.append_types import AppendResult
from tidelog.types import INT32_MAX, NO_OFFSET, NO_TIMESTAMP, Codec, time_refused

if TYPE_CHECKING:
    import confluent_kafka as ck


Headers: TypeAlias = list[tuple[str, str | bytes | None]]

# Partition, key, value, create time in ms, headers.
Row: TypeAlias = tuple[int, bytes | None, bytes | None, int, Headers | None]

Results: TypeAlias = dict[int, AppendResult]
OnDelivery: TypeAlias = "Callable[[ck.KafkaError | None, ck.Message], None]"
OnResult: TypeAlias = Callable[[Future[Results]], object]
_POLL_S: Final = 0.1

# Maximum number of queued records; while the queue is full, calls wait.
_QUEUE_RECORDS: Final = 200_000

# librdkafka's number of the timestamp type LogAppendTime.
STAMPED: Final = 2

_FATAL: Final = -150

# librdkafka's error code for records that a broker refused only because of other records of their
# batch.
_OTHER_RECORD: Final = -138

# librdkafka's default limit for the key and value of a record, in bytes.
RECORD_BYTES: Final = 1_000_000
# Highest limit that a producer gets for the key and value of a record, in bytes. It is below the
# default of the brokers' setting `socket.request.max.bytes`: a broker closes the connection of a
# larger request.
RECORD_BYTES_MAX: Final = 100_000_000

# librdkafka's error code for a partition that is not in its metadata.
_UNKNOWN_PARTITION: Final = -190

# Maximum number of ranges of appended records that an error names.
RANGES_SHOWN: Final = 20

# Maximum number of callbacks that wait for their thread; while so many wait, calls wait.
CALLBACKS_MAX: Final = 200_000

# Maximum number of producers of a connection that no call uses. Each producer has a queue and
# several threads, and a program may choose another batch size for each call.
LANES_MAX: Final = 16


class _Callbacks:
    """Thread that runs the callbacks of a connection's futures, one after another.

    Life cycle: start, run and wait, any number of times, then close. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_room = threading.Event()
        self._is_closed = False

    def start(self) -> None:
        """Start the thread, if this was not done; raises RuntimeError if the system refuses it."""
        with self._lock:
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(target=self._work, name="tidelog-callback", daemon=True)
                thread.start()
                self._thread = thread

    def run(self, callback: OnResult, future: Future[Results]) -> None:
        """Run a callback in the thread; after `close`, run it at once in the caller's thread."""
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                # for a future that is done, this call runs the callback and logs its exception
                self._queue.put(lambda: Future.add_done_callback(future, callback))
        if is_closed:
            Future.add_done_callback(future, callback)

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            with suppress(BaseException):  # for example SystemExit, which would end the thread
                call()
            if not self._has_room.is_set():
                self._has_room.set()

    def wait_for_room(self) -> None:
        """Wait while too many callbacks are queued; a callback itself does not wait."""
        while self._queue.qsize() >= CALLBACKS_MAX and not self._is_current:
            self._has_room.clear()
            # The thread may have made room between the two calls, so the wait has a limit.
            self._has_room.wait(_POLL_S)

    def wait(self) -> None:
        """Wait for the callbacks that are queued so far; a callback itself does not wait."""
        reached = threading.Event()
        with self._lock:
            if self._thread is None or self._is_closed or self._is_current:
                return
            self._queue.put(reached.set)
        reached.wait()

    def close(self) -> None:
        """Wait for the queued callbacks, then end the thread; a callback itself does not wait."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            if not self._is_current:
                thread.join()

    @property
    def _is_current(self) -> bool:
        return self._thread is threading.current_thread()


class _Result(Future[Results]):
    """Future whose callbacks don't run in the thread that delivers the result."""

    def __init__(self, callbacks: _Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: OnResult) -> None:
        """Call `fn` with this future when it is done; at once if it is done already.

        Raises RuntimeError if the system refuses the thread of the callbacks; `fn` is not called.
        """
        if self.done():
            super().add_done_callback(fn)
        else:
            self._callbacks.start()
            super().add_done_callback(lambda _: self._callbacks.run(fn, self))


class _Call:
    """State of one append: number of records in the queue, and offsets of the delivered records."""

    __slots__ = (
        "count",
        "error",
        "failures",
        "is_cause",
        "is_sealed",
        "lock",
        "offsets",
        "result",
        "waiting",
    )

    def __init__(self, callbacks: _Callbacks) -> None:
        self.result = _Result(callbacks)
        self.lock = threading.Lock()
        self.waiting = 0
        self.count = 0
        self.failures: list[int] = []  # indexes of the records that failed
        self.is_sealed = False
        self.error: TidelogError | None = None
        self.is_cause = False  # False: `error` is only a consequence of another record's error
        # maps partitions to (first offset, last offset, latest append time in ms, record count)
        self.offsets: dict[int, tuple[int, int, int, int]] = {}

    def sent(self) -> None:
        with self.lock:
            self.waiting += 1

    def delivered(self, partition: int, offset: int, stamp_ms: int) -> None:
        """Count a delivered record of the call, and note its offset and append time."""
        with self.lock:
            unknown = offset, offset, stamp_ms, 0
            first, last, stamp, count = self.offsets.get(partition, unknown)
            first, last, stamp = min(first, offset), max(last, offset), max(stamp, stamp_ms)
            self.offsets[partition] = first, last, stamp, count + 1
            self.count += 1
            self.waiting -= 1
        self._settle()

    def failed(self, index: int, error: TidelogError, *, is_cause: bool = True) -> None:
        """Remember that the record with this index in the call failed.

        The call's first error is kept, unless a later error has `is_cause` and the first error
        does not. `is_cause` is false if the record was refused only because of another record of
        its batch.
        """
        with self.lock:
            if self.error is None or (is_cause and not self.is_cause):
                self.error, self.is_cause = error, is_cause
            self.failures.append(index)
            self.waiting -= 1
        self._settle()

    def seal(self, error: TidelogError | None = None) -> None:
        """Remember that the call queues no more records; `error` is the reason if it failed."""
        with self.lock:
            self.is_sealed = True
            if error is not None and not self.is_cause:
                self.error, self.is_cause = error, True
        self._settle()

    def _settle(self) -> None:
        with self.lock:
            if not self.is_sealed or self.waiting or self.result.done():
                return
            if self.error is None:
                self.result.set_result(self._results())
            else:
                self.result.set_exception(self._failure(self.error))

    def _results(self) -> Results:
        return {
            partition: AppendResult(
                first, last, stamp, stamp, NO_OFFSET, other_offsets=last - first + 1 - count
            )
            for partition, (first, last, stamp, count) in sorted(self.offsets.items())
        }

    def _failure(self, error: TidelogError) -> TidelogError:
        if self.count:
            records = (
                f"{plural(self.count, 'record')} of the call {verb(self.count, 'was', 'were')}"
            )
            failures = set(self.failures)
            done = (at for at in range(self.count + len(failures)) if at not in failures)
            ranges = ranges_text(done).split(", ")
            more = ", ..." if len(ranges) > RANGES_SHOWN else ""
            which = f"{verb(self.count, 'index', 'indexes')} {', '.join(ranges[:RANGES_SHOWN])}"
            error.add_note(f"despite this error, {records} appended to the log: {which}{more}")
        return error


def record_settings(max_message_bytes: int) -> dict[str, int]:
    """Return the producer's setting for records of a topic with this limit in bytes."""
    return {"message.max.bytes": min(max(max_message_bytes, RECORD_BYTES), RECORD_BYTES_MAX)}


class Sender:
    """The producers of one connection: one producer for each pair of codec and batch size."""

    def __init__(
        self, client: Client, codec_name: str, message_limit: Callable[[str], int]
    ) -> None:
        """Create a sender; opens no connection.

        Args:
            client: The cluster; its settings take precedence over the settings in this module.
            codec_name: Codec of calls that don't choose a codec.
            message_limit: Returns a topic's `max.message.bytes`; `RECORD_BYTES` if it is unknown.
        """
        self._client = client
        self._message_limit = message_limit
        self._codec_name = codec_name
        self._lanes: dict[tuple[str, int | None], _Lane] = {}
        self._broken: list[_Lane] = []  # replaced producers that are not closed yet
        self._lock = threading.Lock()
        self._callbacks = _Callbacks()
        self._is_closed = False

    def send(
        self, topic: str, rows: Iterable[Row], codec: Codec | None, batch_bytes: int | None = None
    ) -> "Future[Results]":
        """Queue records and return a future; the order within each partition is kept.

        Args:
            topic: Name of the topic.
            rows: The records.
            codec: Codec of the batches; the connection's codec if None.
            batch_bytes: Uncompressed size in bytes at which a batch is finished; the client
                library's size if None.

        Returns:
            Future with the result of each partition. Base and last offset are the offsets of the
            call's first and last record; other producers' records may be between these two, and
            `record_count` does not count them. Append times are known for topics with
            LogAppendTime; for other topics they are -1. The log start offset in each result is -1,
            which means unknown. Callbacks of the futures run one after another in a thread of the
            connection; they may append, flush, wait for other futures and close. A callback that is
            added to a finished future runs at once, in the caller's thread. While `CALLBACKS_MAX`
            or more callbacks are queued, calls wait, except calls in a callback.

        Raises:
            Closed: The connection was closed.
            ConfigError: librdkafka doesn't know a setting or a value.

        The future's `result()` raises InvalidRecord, InvalidTimestamp, MessageTooLarge,
        ClusterFailure and others. After such an error, other records of the call may be in the log;
        a note of the error states how many, and their indexes in the call, from 0 on.
        """
        self._callbacks.wait_for_room()
        codec_name = self._codec_name if codec is None else codec.config_name
        lane = self._take_lane(codec_name, batch_bytes)
        call = _Call(self._callbacks)
        try:
            for index, row in enumerate(rows):
                lane.put(topic, row, call, index)
        except TidelogError as error:
            call.seal(error)
        except BaseException:
            reason = "interrupted before all records were queued"
            call.seal(ClusterFailure(self._client.bootstrap, "append", reason))
            raise
        else:
            call.seal()
        finally:
            self._give_back(lane)
        return call.result

    def _take_lane(self, codec_name: str, batch_bytes: int | None) -> "_Lane":
        """Return the producer for a call, which must give it back."""
        with self._lock:
            if self._is_closed:
                raise Closed(f"the connection to {self._client.bootstrap} is closed")
            key = codec_name, batch_bytes
            lane = self._lanes.pop(key, None)
            if lane is not None and lane.is_broken:
                self._broken.append(lane)
                lane = None
            if lane is None:
                settings = self._producer_settings(codec_name) | batch_settings(batch_bytes)
                lane = _Lane(self._client, settings, self._message_limit)
            self._lanes[key] = lane  # the last entry is the most recently used producer
            lane.users += 1
            return lane

    def _give_back(self, lane: "_Lane") -> None:
        """Close broken producers, and the least recently used producers if there are too many.

        A producer with calls or undelivered records stays open, so this call does not wait for the
        delivery of other calls' records.
        """
        with self._lock:
            lane.users -= 1
            unused = [key for key, each in self._lanes.items() if not each.users]
            empty = [key for key in unused if not self._lanes[key].has_records]
            surplus = [self._lanes.pop(key) for key in empty[: max(len(unused) - LANES_MAX, 0)]]
            if self._broken:
                surplus += [each for each in self._broken if not (each.users or each.has_records)]
                self._broken = [each for each in self._broken if each not in surplus]
        for each in surplus:  # the lock is free meanwhile, because each thread takes time to end
            each.close()

    def _producer_settings(self, codec_name: str) -> dict[str, object]:
        return {
            "enable.idempotence": True,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "queue.buffering.max.messages": _QUEUE_RECORDS,
            "linger.ms": 0,
            "message.timeout.ms": max(int(self._client.timeout_s * 1000), 1000),
            "compression.type": codec_name,
        }

    def flush(self) -> None:
        """Wait until each record that was queued so far is in the log, or its call has failed.

        Then wait for the callbacks of the finished calls; a callback itself does not wait for them.
        """
        with self._lock:
            lanes = [*self._broken, *self._lanes.values()]
        for lane in lanes:
            lane.flush()
        self._callbacks.wait()

    def close(self) -> None:
        """Wait for pending records and callbacks, then close the producers.

        A call that is still queuing records fails with Closed, and its queued records are
        delivered. A call of `send` that begins after this call fails with Closed, also in a
        callback. A callback itself does not wait for callbacks. A second call does nothing.
        """
        with self._lock:
            self._is_closed = True
            lanes = [*self._broken, *self._lanes.values()]
            self._broken.clear()
            self._lanes.clear()
        for lane in lanes:
            lane.close()
        self._callbacks.close()


class _Lane:
    """One producer, and the thread that receives its delivery reports.

    Attributes:
        users: Number of calls that are queuing records. The `Sender` counts them.
        is_broken: Whether the producer can't be used again after a fatal error.
    """

    def __init__(
        self,
        client: Client,
        settings: Mapping[str, object],
        message_limit: Callable[[str], int],
    ) -> None:
        self._client = client
        self._settings = settings
        self._message_limit = message_limit
        self._record_bytes = RECORD_BYTES
        # Held to queue a record, to replace the producer, and to begin closing.
        self._lock = threading.Lock()
        self._producer: ck.Producer = client.producer(settings)
        self.users = 0
        self.is_broken = False
        self._is_closed = False
        self._has_work = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="tidelog-append", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            self._has_work.wait()
            if self._is_closed:
                return
            self._producer.poll(_POLL_S)
            if not len(self._producer):
                self._has_work.clear()
                if len(self._producer) or self._is_closed:
                    self._has_work.set()

    def put(self, topic: str, row: Row, call: _Call, index: int) -> None:
        """Queue one record; wait while the queue is full.

        Args:
            topic: Name of the topic.
            row: The record.
            call: The append.
            index: Index of the record in the call, for errors.

        Raises:
            InvalidRecord, InvalidTimestamp, MessageTooLarge, UnknownTopic, InvalidRequest,
                ClusterFailure, Closed: The record was not queued.
        """
        from confluent_kafka import KafkaException

        where = f"{topic}-{row[0]}"

        def on_delivery(error: "ck.KafkaError | None", message: "ck.Message") -> None:
            try:
                self._handle_report(call, index, (topic, row[0]), error, message)
            except Exception as problem:  # noqa: BLE001 - it would end the thread
                reason = f"{where}: {problem!r}"
                call.failed(index, ClusterFailure(self._client.bootstrap, "append", reason))

        call.sent()
        try:
            refuse_time(where, row[3])
            self._queue(topic, row, on_delivery)
        except KafkaException as error:
            failure = _numbered(self._typed(where, error.args[0]), where, index)
            call.failed(index, failure)
            raise failure from error
        except TidelogError as error:
            failure = _numbered(error, where, index)
            call.failed(index, failure)
            raise failure from error
        except (TypeError, UnicodeError, OverflowError) as error:
            refused = _numbered(InvalidRecord(f"{where}: {error}"), where, index)
            call.failed(index, refused)
            raise refused from error
        self._has_work.set()

    def _typed(self, where: str, error: "ck.KafkaError") -> TidelogError:
        # After a fatal error librdkafka can't use the producer again, so the next call creates a
        # new producer.
        self.is_broken = self.is_broken or error.fatal() or error.code() == _FATAL
        return typed_error(self._client, "append", error, where=where)

    def _queue(self, topic: str, row: Row, on_delivery: OnDelivery) -> None:
        from confluent_kafka import KafkaException

        partition, key, value, time_ms, headers = row
        is_refreshed = was_full = is_empty = False
        while True:
            limit = self._record_bytes
            try:
                with self._lock:
                    if self._is_closed:
                        raise Closed(f"{topic}-{partition}: the connection was closed")
                    # Another thread may empty the queue after an attempt has failed. So a record is
                    # too large only if an attempt fails although the queue was empty before this
                    # attempt.
                    is_empty = was_full and not len(self._producer)
                    self._producer.produce(
                        topic, value, key, partition, on_delivery, None, time_ms, headers
                    )
                return
            except KafkaException as error:
                if error.args[0].code() == ErrorCode.MESSAGE_TOO_LARGE:
                    if not self._raise_limit(topic, limit):
                        raise
                    continue
                # librdkafka refreshes its metadata only every five minutes. So it might not know
                # partitions that were added, or the partitions of a recreated topic.
                if is_refreshed or error.args[0].code() != _UNKNOWN_PARTITION:
                    raise
                self._producer.list_topics(topic, timeout=self._client.timeout_s)
                is_refreshed = True
            except BufferError:
                if is_empty:
                    raise too_large_for_queue(f"{topic}-{partition}") from None
                was_full = True
                if len(self._producer):
                    self._producer.poll(_POLL_S)

    def _raise_limit(self, topic: str, limit: int) -> bool:
        """Replace the producer by one that accepts the topic's largest records, if needed.

        Returns whether the limit is now above `limit`, so that it makes sense to try again.

        The size limit of an existing producer can't be changed. All queued records are delivered
        first, so the order of records is kept.

        Args:
            topic: Name of the topic.
            limit: Limit in bytes that a record exceeds.
        """
        wanted = record_settings(self._message_limit(topic))
        record_bytes = wanted["message.max.bytes"]
        # `message.max.bytes` also limits the size of batches. The limits of other topics may be
        # lower, so batches of several records stay as small as before.
        batch_bytes = self._settings.get("batch.size")
        if isinstance(batch_bytes, int):
            wanted["batch.size"] = min(batch_bytes, RECORD_BYTES)
        with self._lock:
            if record_bytes > self._record_bytes:
                self.flush()
                self._producer = self._client.producer({**self._settings, **wanted})
                self._record_bytes = record_bytes
            return self._record_bytes > limit

    def _handle_report(
        self,
        call: _Call,
        index: int,
        partition_key: tuple[str, int],
        error: "ck.KafkaError | None",
        message: "ck.Message",
    ) -> None:
        """Handle the delivery report of one record."""
        topic, partition = partition_key
        where = f"{topic}-{partition}"
        if error is None:
            offset = message.offset()
            kind, stamp_ms = message.timestamp()
            if offset is None:
                call.failed(index, self._unproven(where))
            else:
                call.delivered(partition, offset, stamp_ms if kind == STAMPED else NO_TIMESTAMP)
        elif error.code() in PURGED:
            call.failed(index, Closed(f"{where}: closed before the record was sent"))
        else:
            is_cause = error.code() != _OTHER_RECORD
            call.failed(index, self._typed(where, error), is_cause=is_cause)

    def _unproven(self, where: str) -> TidelogError:
        """Return the error for a delivery report without an offset.

        If a broker refuses a record's sequence number as a duplicate, it returns no offset, and
        librdkafka reports the record as delivered. Brokers before 4.4 also refuse a record as a
        duplicate if a later request has overtaken the record's own request (KAFKA-15591). A record
        that was refused for this reason is not in the log.
        """
        reason = (
            f"{where}: the broker returned no offset for a retried record, so it may not be in"
            " the log"
        )
        return ClusterFailure(self._client.bootstrap, "append", reason)

    def flush(self) -> None:
        """Wait until each record is delivered or has failed."""
        while self._producer.flush(_POLL_S):
            pass

    @property
    def has_records(self) -> bool:
        """Whether records are queued, or their delivery reports have not been handled."""
        return len(self._producer) > 0

    def close(self) -> None:
        """Refuse further records, wait for pending records, then end the thread."""
        with self._lock:
            self._is_closed = True
        self.flush()
        self._has_work.set()
        self._thread.join()


def _numbered(error: TidelogError, where: str, index: int) -> TidelogError:
    """Return the error with the index of the record if the record was refused."""
    if not isinstance(error, RefusedRecords):
        return error
    reason = str(error).removeprefix(f"{where}: ")
    numbered = type(error)(
        f"{where}: record {index}: {reason}", record_errors=(RecordError(index, reason),)
    )
    return with_times(numbered, *times_of(error))


def batch_settings(batch_bytes: int | None) -> dict[str, object]:
    """Return the producer's setting for a batch size in bytes; no setting for None."""
    if batch_bytes is None:
        return {}
    if batch_bytes < 1:
        raise InvalidRequest(f"batch_bytes must be at least 1, got {batch_bytes}")
    return {"batch.size": min(batch_bytes, INT32_MAX)}


def too_large_for_queue(where: str) -> MessageTooLarge:
    """Return the error for a record that exceeds the size of the producer's queue."""
    return MessageTooLarge(
        f"{where}: the record is larger than the producer's queue (queue.buffering.max.kbytes)"
    )


def refuse_time(where: str, time_ms: int) -> None:
    """Raise InvalidTimestamp for a time below -1, and for 0, which librdkafka would replace."""
    if time_ms == 0:
        raise InvalidTimestamp(
            f"{where}: a record whose timestamp is 1970-01-01T00:00:00Z (0 ms): the client"
            " library would replace it by the current time"
        )
    if time_ms < NO_TIMESTAMP:
        raise time_refused(f"{time_ms} ms", where)
