"""Exceptions of the library, which form a tree of classes.

Each exception has its details as fields, Kafka's error code, and a line of text.

`TidelogError`
- `CorruptData`: bytes from disk or network break a rule (`CorruptBatch`, `CorruptRecord`,
  `CorruptIndex`, `CorruptFile`, `CorruptMessage`). Code that decodes records and indexes knows only
  the position in its buffer (`at`). Storage code then adds the file and the position in the file by
  calling `located`.
- `RequestError`: the caller's request is invalid or impossible (`OffsetOutOfRange`, ...).
- `StorageFailure`: a system call failed, or a change was interrupted. A failed write takes the
  partition offline.
- `ClusterFailure`: a cluster's brokers can't be reached, or refuse a request.
- `ConfigError`: a setting has a wrong name or value.

The codes are Kafka's error codes; the code is None if Kafka's protocol has no such error.
"""

from collections.abc import Callable, Sequence
from errno import ENOENT
from typing import ClassVar, Final, Self, TypeVar

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass

# Maximum number of characters of a value in an error message.
_VALUE_CHARS_MAX: Final = 400


_Error = TypeVar("_Error", bound=Exception)


class TidelogError(Exception):
    """Base class of the exceptions that the library defines."""

    code: ClassVar[int | None] = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the attributes, because constructors don't take the error's text."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(
    kind: type[TidelogError], args: tuple[object, ...], attributes: dict[str, object]
) -> TidelogError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def with_times(error: _Error, *times_ms: int) -> _Error:
    """Attach the times (ms) that the error's text states in UTC, and return the error."""
    error.__dict__["times_ms"] = times_ms
    return error


def times_of(error: Exception) -> tuple[int, ...]:
    """Return the times (ms) that an error's text states in UTC; commands print them in a zone."""
    times: tuple[int, ...] = error.__dict__.get("times_ms", ())
    return times


class CorruptData(TidelogError):
    """Bytes break a rule of their format.

    Attributes:
        reason: The broken rule, with the value that was found and the expected value.
        at: Position in the decoder's buffer, in bytes; None if unknown.
        offset: Logical offset where the damage is; None if unknown.
        path: The damaged file; None until storage code adds it.
        position: Position in the file, in bytes; None until storage code adds it.
    """

    code: ClassVar[int | None] = ErrorCode.CORRUPT_MESSAGE

    def __init__(
        self,
        reason: str,
        *,
        at: int | None = None,
        offset: int | None = None,
        path: str | None = None,
        position: int | None = None,
    ) -> None:
        self.reason = reason
        self.at = at
        self.offset = offset
        self.path = path
        self.position = position
        super().__init__(reason)

    def __str__(self) -> str:
        parts = []
        if self.path is not None:
            parts.append(self.path)
        if self.position is not None:
            parts.append(f"position {self.position}")
        elif self.at is not None:
            parts.append(f"byte {self.at}")
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        return f"{', '.join(parts)}: {self.reason}" if parts else self.reason

    def located(self, path: str, start: int = 0) -> Self:
        """Return the error with its path, and with its position in the file.

        `start` is the file position of the buffer's first byte.
        """
        position = None if self.at is None else start + self.at
        return type(self)(self.reason, at=self.at, offset=self.offset, path=path, position=position)


class CorruptBatch(CorruptData):
    """A record batch (or legacy message) has a bad frame, header or checksum."""


class CorruptStream(CorruptBatch):
    """A batch's checksum is right, but its compressed records can't be decompressed.

    The batch was not damaged in transit, so a retry doesn't help. This error has no Kafka code,
    because clients would retry after Kafka's error 2 (CORRUPT_MESSAGE).
    """

    code: ClassVar[int | None] = None


class StreamTooLong(CorruptStream):
    """The records of a batch decompress to more bytes than the limit for one batch."""

    code: ClassVar[int | None] = ErrorCode.MESSAGE_TOO_LARGE


class CorruptRecord(CorruptData):
    """A record is invalid although the frame and the checksum of its batch are right."""

    code: ClassVar[int | None] = ErrorCode.INVALID_RECORD


class CorruptIndex(CorruptData):
    """An offset, time, transaction or append-time index breaks the rules of its format."""


class CorruptFile(CorruptData):
    """A checkpoint, snapshot or metadata file can't be read."""


class CorruptMessage(CorruptData):
    """A message from the network breaks the protocol. The connection can't be used any more."""

    code: ClassVar[int | None] = None


class RequestError(TidelogError):
    """The caller's request is refused. Nothing was changed, unless the call documents otherwise."""

    code: ClassVar[int | None] = ErrorCode.INVALID_REQUEST


class InvalidRequest(RequestError):
    """An argument has a wrong type or value, or conflicts with another argument."""


class InvalidChoice(InvalidRequest, ValueError):
    """An argument is none of the words that a parameter accepts."""


class InvalidTime(InvalidRequest, ValueError):
    """A point or range in time is invalid or ambiguous.

    Attributes:
        text: The given time, as text.
        reason: What is wrong with the text, and what is expected.
        is_zone_missing: Whether only the time zone is missing.
    """

    def __init__(self, text: str, reason: str, *, is_zone_missing: bool = False) -> None:
        self.text = text
        self.reason = reason
        self.is_zone_missing = is_zone_missing
        super().__init__(f"{text!r}: {reason}")


@dataclass(frozen=True, slots=True)
class RecordError:
    """Refused record: its index, from 0, and the broken rule.

    The index is the record's position in the batch. If the caller passed records instead of a
    batch, the index is the record's position among the records of the call.
    """

    index: int
    reason: str


class RefusedRecords(RequestError):
    """Rules of the format or of the topic refuse records. No record of the append was accepted.

    Attributes:
        record_errors: The refused records; empty if a batch or an append was refused as a whole.
    """

    def __init__(self, reason: str, *, record_errors: tuple[RecordError, ...] = ()) -> None:
        self.record_errors = record_errors
        super().__init__(reason)

    def renumbered(self, index_of: Callable[[int], int]) -> Self:
        """Return the error with the refused records' indexes replaced, also in its text."""
        if not self.record_errors:
            return self
        moved = tuple(RecordError(index_of(one.index), one.reason) for one in self.record_errors)
        old, new = (f": record {errors[0].index}: " for errors in (self.record_errors, moved))
        error = type(self)(str(self).replace(old, new, 1), record_errors=moved)
        return with_times(error, *times_of(self))


class InvalidRecord(RefusedRecords):
    """A rule of the format or of the topic refuses a record (wrong deltas, null key, ...)."""

    code: ClassVar[int | None] = ErrorCode.INVALID_RECORD


class InvalidTimestamp(RefusedRecords):
    """A timestamp is outside the limits of the format or of the topic; nothing was appended."""

    code: ClassVar[int | None] = ErrorCode.INVALID_TIMESTAMP


class MessageTooLarge(RefusedRecords):
    """A batch is larger than `max.message.bytes`."""

    code: ClassVar[int | None] = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLarge(RefusedRecords):
    """An append is larger than `segment.bytes`."""

    code: ClassVar[int | None] = ErrorCode.RECORD_LIST_TOO_LARGE


class UnsupportedCompression(RequestError):
    """A codec number is undefined, or the record's format forbids the codec."""

    code: ClassVar[int | None] = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class UnsupportedForMessageFormat(RequestError):
    """The stored message format does not support the request. Source: KIP-79."""

    code: ClassVar[int | None] = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class SerdeError(RequestError):
    """A serializer can't write a value, or a deserializer can't read the bytes."""

    code: ClassVar[int | None] = None


class OutOfOrderSequence(RequestError):
    """A batch's sequence number does not follow that of the idempotent producer's last batch."""

    code: ClassVar[int | None] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(RequestError):
    """A newer instance of the producer has fenced the instance that sent the request."""

    code: ClassVar[int | None] = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnState(RequestError):
    """The producer's transaction is in a state that doesn't allow the request."""

    code: ClassVar[int | None] = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFenced(RequestError):
    """A transaction marker has an older coordinator epoch than an earlier marker of the log."""

    code: ClassVar[int | None] = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class InconsistentTopicId(RequestError):
    """The topic of this name has another id, because it was deleted and created again."""

    code: ClassVar[int | None] = ErrorCode.INCONSISTENT_TOPIC_ID


class PolicyViolation(RequestError):
    """The topic's policy forbids the request."""

    code: ClassVar[int | None] = ErrorCode.POLICY_VIOLATION


class OffsetOutOfRange(RequestError):
    """An offset is below the log start or beyond the log end.

    Attributes:
        offset: The requested offset.
        start: Log start offset, inclusive.
        end: Log end offset, exclusive.
    """

    code: ClassVar[int | None] = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offset: int, start: int, end: int, *, where: str = "") -> None:
        self.offset = offset
        self.start = start
        self.end = end
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}offset {offset} is outside [{start}, {end}]")


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Requested offsets [start, end) of a partition that are not in the log."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        last = max(self.start, self.end - 1)
        offsets = f"offset {last}" if last == self.start else f"offsets {self.start} to {last}"
        return f"{self.topic}-{self.partition}: {offsets}: {self.reason}"


class OffsetsGone(RequestError):
    """Requested offsets were deleted, or were never written.

    Attributes:
        lost: Ranges of the missing offsets. If a compaction removed the records during the read,
            the ranges may also contain offsets that were not missing.
    """

    code: ClassVar[int | None] = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, lost: tuple[LostOffsets, ...]) -> None:
        self.lost = lost
        super().__init__("; ".join(map(str, lost)))


class UnknownTopic(RequestError):
    """A topic or partition does not exist. The error's text may suggest a similar name."""

    code: ClassVar[int | None] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def partitions_text(count: int) -> str:
    """Return which partitions a topic has: `only partition 0`, or `partitions 0 to 5`."""
    return "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"


def unknown_partition(topic: str, count: int, number: int, place: str = "") -> UnknownTopic:
    """Return the error for a partition `number` that a topic with `count` partitions lacks.

    The text begins with `place`, the directory or the cluster, if it is given.
    """
    where = f"{place}: " if place else ""
    return UnknownTopic(f"{where}topic {topic} has {partitions_text(count)}, not {number}")


class TopicExists(RequestError):
    """A topic of that name already exists."""

    code: ClassVar[int | None] = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidTopic(RequestError):
    """Kafka's rules refuse a topic name."""

    code: ClassVar[int | None] = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidPartitions(RequestError):
    """A partition count is invalid."""

    code: ClassVar[int | None] = ErrorCode.INVALID_PARTITIONS


class GroupActive(RequestError):
    """A consumer group has members, whose own commits would overwrite the requested commit.

    Nothing was changed.
    """

    code: ClassVar[int | None] = ErrorCode.NON_EMPTY_GROUP


class UnknownGroup(RequestError):
    """A consumer group does not exist."""

    code: ClassVar[int | None] = ErrorCode.GROUP_ID_NOT_FOUND


class MissingTimestamps(RequestError):
    """A read with `strict` found records without a time on the requested clock."""


class InexactTable(RequestError):
    """A table as of a time may be inexact, because records or their times are missing.

    The read returned no rows of the affected partitions.

    Attributes:
        exact_since_ms: Earliest time with an exact table, in ms; None if unknown.
    """

    def __init__(self, reason: str, *, exact_since_ms: int | None = None) -> None:
        self.exact_since_ms = exact_since_ms
        super().__init__(reason)


class ReadOnly(RequestError):
    """A change was requested in a directory that is open for reading only."""


class Closed(RequestError):
    """The log or directory was closed before the call."""


class IndexFull(TidelogError):
    """An index has reached its size limit, so the caller must roll the segment."""


class OffsetOverflow(TidelogError):
    """An offset does not fit into a segment's 32-bit relative offsets."""


class UnsupportedVersion(TidelogError):
    """A file or message has a version that this release does not know.

    Attributes:
        reason: The item and its version, and the versions that this release reads.
        path: The file; None for a message, and until storage code adds it.
    """

    code: ClassVar[int | None] = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason if path is None else f"{path}: {reason}")


class UnsupportedRequest(UnsupportedVersion):
    """A request's API or version is not supported. A response needs the values of the attributes.

    Attributes:
        api_key: Key of the API.
        version: The requested version.
        correlation_id: Id that a response must repeat.
        client_id: The client's id from the request header.
    """

    def __init__(
        self, api_key: int, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        super().__init__(f"API {api_key} v{version} is not supported")


class StorageFailure(TidelogError):
    """A system call failed, or damaged data interrupted a change of a partition.

    After a failed write, the partition is offline for writes until it is reopened.

    Attributes:
        path: The file of the failed operation.
        operation: The failed operation, e.g. `sync`.
        is_partial: Whether some of the records of a failed `Directory.append` may be in the log.
    """

    code: ClassVar[int | None] = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, path: str, operation: str, reason: str) -> None:
        self.is_partial = False
        self.path = path
        self.operation = operation
        self.reason = reason
        super().__init__(f"{path}: {operation} failed: {reason}")

    def again(self) -> "StorageFailure":
        """Return the error for a later request that is refused because of this failure."""
        reason = f"{self.reason}; the partition is offline"
        return StorageFailure(self.path, self.operation, reason)


class MissingFile(StorageFailure, FileNotFoundError):
    """A file of a log, or an object of its tier, is missing.

    The file or object may have been deleted or replaced since the reader was opened. Reopen or
    refresh the reader, so that it opens a replacement of the file. If the error persists, the
    records are lost in this directory or tier.
    """

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(path, operation, reason)
        self.errno, self.strerror, self.filename = ENOENT, reason, path

    def __str__(self) -> str:
        return f"{self.path}: {self.operation} failed: {self.reason}"

    def __reduce__(self) -> tuple[type["MissingFile"], tuple[str, str, str]]:
        return type(self), (self.path, self.operation, self.reason)


class DamagedLog(CorruptBatch, StorageFailure):
    """Damage in a part of a log that was complete on disk, so the damage is not from a crash.

    The partition keeps all of its bytes. Offsets before the damage can be read. Appends are refused
    until `tidelog doctor --repair` moves the damaged bytes into another file, or the file is
    restored. Clients get error 56 (KAFKA_STORAGE_ERROR), as for any offline partition.

    Attributes:
        offset: First offset that can't be read; all earlier offsets can be read.
    """

    code: ClassVar[int | None] = ErrorCode.KAFKA_STORAGE_ERROR
    path: str  # type: ignore[mutable-override] # it always has one

    def __init__(
        self,
        reason: str,
        *,
        at: int | None = None,
        offset: int | None = None,
        path: str | None = None,
        position: int | None = None,
    ) -> None:
        StorageFailure.__init__(self, path or "", "open", reason)
        self.at = at
        self.offset = offset
        self.position = position

    def again(self) -> "DamagedLog":
        """Return a copy of the error for a later request."""
        location = {"at": self.at, "offset": self.offset, "position": self.position}
        return DamagedLog(self.reason, path=self.path, **location)


class ClusterFailure(TidelogError):
    """A cluster could not be reached, or refused a request. Changes made before the failure remain.

    Attributes:
        bootstrap: The cluster's address, as given.
        operation: The failed operation, e.g. `look up offsets`.
        reason: Text of the broker or the client library.
        error_code: Kafka's error code, or a negative code of librdkafka. None if there is no code,
            as for a timeout.
    """

    code: ClassVar[int | None] = None

    def __init__(
        self, bootstrap: str, operation: str, reason: str, *, error_code: int | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.operation = operation
        self.reason = reason
        self.error_code = error_code
        super().__init__(f"{bootstrap}: could not {operation}: {reason}")


class TierConflict(TidelogError):
    """Another process has changed a partition's tier, e.g. through another copy of the directory.

    The call changed nothing. The error's text states the conflict and the next step.
    """


class CleaningAborted(TidelogError):
    """A partition changed during a compaction. The compaction was aborted and may be retried."""


class CleaningFailed(TidelogError):
    """A compaction's process failed, returned an invalid result, or had too little disk space."""


class NotAuthorized(ClusterFailure):
    """The cluster denies the client's request, or does not authenticate the client."""


class WriterFenced(ClusterFailure):
    """A newer writer uses this writer's transactional id. This writer's records are aborted."""


class DirectoryLocked(TidelogError):
    """The directory is locked, by this process or another process."""


class ClockJump(TidelogError):
    """The wall clock jumped ahead by more than `tidelog.max.clock.jump.ms` (default: an hour).

    Appends are refused until a user accepts the clock's time.

    Also raised if the last append time on disk is ahead of the wall clock by more than this limit.
    Clients get Kafka's POLICY_VIOLATION with the reason as message. Producers don't retry after
    this error.

    Attributes:
        last_ms: Last append time, or the expected wall time.
        now_ms: The wall clock's time.
    """

    code: ClassVar[int | None] = ErrorCode.POLICY_VIOLATION

    def __init__(self, last_ms: int, now_ms: int, reason: str) -> None:
        self.last_ms = last_ms
        self.now_ms = now_ms
        super().__init__(reason)


def shortened(value: str) -> str:
    """Return a value for an error message; a long value is cut, and its length is added."""
    if len(value) <= _VALUE_CHARS_MAX:
        return value
    return f"{value[:_VALUE_CHARS_MAX]}... ({len(value)} characters)"


class ConfigError(TidelogError):
    """A setting has an unknown name or an invalid value.

    Attributes:
        key: The setting.
        value: The given value, None if only the name is wrong.
        allowed: The allowed values.
    """

    code: ClassVar[int | None] = ErrorCode.INVALID_CONFIG

    def __init__(self, key: str, value: str | None, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        setting = (key or "''") if value is None else f"{key}={shortened(value)}"
        super().__init__(f"{setting}: {allowed}")


class ConfigErrors(ConfigError):
    """Several settings are invalid; `key`, `value` and `allowed` describe the first error.

    Attributes:
        errors: All errors, in the order of the settings.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(errors[0].key, errors[0].value, errors[0].allowed)
        self.errors = tuple(errors)
        self.args = ("; ".join(map(str, errors)),)


class MissingDependency(TidelogError):
    """An optional package is not installed, or too old; the text says what is needed."""
