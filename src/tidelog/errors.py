"""One tree of exceptions: each carries its facts as fields, Kafka's code and one line of text.

`TidelogError`
- `CorruptData`: bytes from disk or wire break a rule (`CorruptBatch`, `CorruptRecord`,
  `CorruptIndex`, `CorruptFile`, `CorruptMessage`). Record and index code knows only the place in
  its buffer (`at`); storage adds file and position with `located`.
- `RequestError`: the caller asked for something that can't be (`OffsetOutOfRange`, ...).
- `StorageFailure`: the operating system failed us; the partition goes offline.
- `ClusterFailure`: somebody else's brokers can't be reached or refuse.
- `ConfigError`: a setting has a wrong name or value.

Codes are those of Kafka's protocol, None where the wire has no word for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENOENT
from typing import ClassVar, Final, Self

from tidelog.error_codes import ErrorCode

# Characters of a value that an error shows.
_SHOWN_MAX: Final = 400


class TidelogError(Exception):
    """Root of everything that tidelog raises on purpose."""

    code: ClassVar[int | None] = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy by the attributes: constructors take other arguments than the text."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(
    kind: type[TidelogError], args: tuple[object, ...], attributes: dict[str, object]
) -> TidelogError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class CorruptData(TidelogError):
    """Bytes that break a rule of their format.

    Attributes:
        reason: The rule that is broken, with the value found and what would be right.
        at: Place in the buffer that was handed to the decoder, in bytes, None where unknown.
        offset: Logical offset concerned, None where unknown.
        path: File, None until storage adds it.
        position: Place in the file, in bytes, None until storage adds it.
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
        """The same error with its file; `start` is the file position of the buffer's first byte."""
        position = None if self.at is None else start + self.at
        return type(self)(self.reason, at=self.at, offset=self.offset, path=path, position=position)


class CorruptBatch(CorruptData):
    """A record batch (or legacy message) with a bad frame, header or checksum."""


class CorruptStream(CorruptBatch):
    """A batch whose checksum is right, but whose compressed records can't be opened.

    Nobody damaged it on its way, so it is no better when it is sent again, which clients do where
    they are told of a corrupt message (error 2).
    """

    code: ClassVar[int | None] = None


class StreamTooLong(CorruptStream):
    """A batch whose records decompress to more bytes than are read from one batch."""

    code: ClassVar[int | None] = ErrorCode.MESSAGE_TOO_LARGE


class CorruptRecord(CorruptData):
    """A record inside a batch whose frame and checksum are right, but whose content is not."""

    code: ClassVar[int | None] = ErrorCode.INVALID_RECORD


class CorruptIndex(CorruptData):
    """An offset, time, transaction or append-time index that breaks its rules."""


class CorruptFile(CorruptData):
    """A checkpoint, snapshot or metadata file that can't be read."""


class CorruptMessage(CorruptData):
    """A message from the network that breaks the protocol; its connection is of no use any more."""

    code: ClassVar[int | None] = None


class RequestError(TidelogError):
    """The caller's request can't be met; nothing was changed."""

    code: ClassVar[int | None] = ErrorCode.INVALID_REQUEST


class InvalidRequest(RequestError):
    """An argument is out of its range or contradicts another."""


class InvalidChoice(InvalidRequest, ValueError):
    """An argument that is none of the words that a parameter takes."""


class InvalidTime(InvalidRequest, ValueError):
    """A point or range in time that can't be read, or not in one way only.

    Attributes:
        text: What was given.
        reason: What was read in it, and what would be right.
    """

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(f"{text!r}: {reason}")


@dataclass(frozen=True, slots=True)
class RecordError:
    """One refused record: its number in its batch, from 0, and the rule it breaks."""

    index: int
    reason: str


class RefusedRecords(RequestError):
    """Records that the topic's rules refuse; nothing of the append was taken.

    Attributes:
        record_errors: The single records refused, where it was about single records.
    """

    def __init__(self, reason: str, *, record_errors: tuple[RecordError, ...] = ()) -> None:
        self.record_errors = record_errors
        super().__init__(reason)


class InvalidRecord(RefusedRecords):
    """A record that the topic's rules refuse (null key in a compacted topic, wrong deltas ...)."""

    code: ClassVar[int | None] = ErrorCode.INVALID_RECORD


class InvalidTimestamp(RefusedRecords):
    """A timestamp outside the topic's limits. Nothing of the batch was appended."""

    code: ClassVar[int | None] = ErrorCode.INVALID_TIMESTAMP


class MessageTooLarge(RequestError):
    """A batch larger than `max.message.bytes`."""

    code: ClassVar[int | None] = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLarge(RequestError):
    """An append larger than `segment.bytes`."""

    code: ClassVar[int | None] = ErrorCode.RECORD_LIST_TOO_LARGE


class UnsupportedCompression(RequestError):
    """A codec number nobody defined, or one that the record's format forbids."""

    code: ClassVar[int | None] = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class UnsupportedForMessageFormat(RequestError):
    """A question that the stored message format can't answer. Source: KIP-79."""

    code: ClassVar[int | None] = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class SerdeError(RequestError):
    """A value that its serializer can't write, or bytes that its deserializer can't read."""

    code: ClassVar[int | None] = None


class OutOfOrderSequence(RequestError):
    """An idempotent producer's batch does not follow its last one."""

    code: ClassVar[int | None] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(RequestError):
    """An older instance of a producer, fenced by a newer one."""

    code: ClassVar[int | None] = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnState(RequestError):
    """A transactional step at the wrong moment."""

    code: ClassVar[int | None] = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFenced(RequestError):
    """A transaction marker of an older coordinator than one the log has seen."""

    code: ClassVar[int | None] = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class FencedLeaderEpoch(RequestError):
    """A leader epoch older than one the log has seen."""

    code: ClassVar[int | None] = ErrorCode.FENCED_LEADER_EPOCH


class InconsistentTopicId(RequestError):
    """A topic of this name has another id: it is another topic, created anew."""

    code: ClassVar[int | None] = ErrorCode.INCONSISTENT_TOPIC_ID


class PolicyViolation(RequestError):
    """The topic's policy forbids the request."""

    code: ClassVar[int | None] = ErrorCode.POLICY_VIOLATION


class OffsetOutOfRange(RequestError):
    """An offset below the log start or beyond the log end.

    Attributes:
        offset: What was asked.
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
    """Offsets [start, end) of a partition that were asked for and are not in the log."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: offsets {self.start} to {self.end}: {self.reason}"


class OffsetsGone(RequestError):
    """Offsets that were asked for were deleted, or never written.

    Attributes:
        lost: Exactly which ones.
    """

    code: ClassVar[int | None] = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, lost: tuple[LostOffsets, ...]) -> None:
        self.lost = lost
        super().__init__("; ".join(map(str, lost)))


class UnknownTopic(RequestError):
    """No topic or partition of that name; the text names the nearest one that exists."""

    code: ClassVar[int | None] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicExists(RequestError):
    """A topic of that name exists already."""

    code: ClassVar[int | None] = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidTopic(RequestError):
    """A topic name that Kafka's rules refuse."""

    code: ClassVar[int | None] = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidPartitions(RequestError):
    """A partition count that can't be."""

    code: ClassVar[int | None] = ErrorCode.INVALID_PARTITIONS


class GroupActive(RequestError):
    """A consumer group whose members would overrule a commit from outside; nothing was changed."""

    code: ClassVar[int | None] = ErrorCode.NON_EMPTY_GROUP


class UnknownGroup(RequestError):
    """No consumer group of that name."""

    code: ClassVar[int | None] = ErrorCode.GROUP_ID_NOT_FOUND


class MissingTimestamps(RequestError):
    """A strict time range met records without a time on the asked clock."""


class InexactTable(RequestError):
    """A table as of a time of which records have gone since: nothing was handed out.

    Attributes:
        exact_since_ms: Earliest time whose table is whole, in ms; None where that is not known.
    """

    def __init__(self, reason: str, *, exact_since_ms: int | None = None) -> None:
        self.exact_since_ms = exact_since_ms
        super().__init__(reason)


class ReadOnly(RequestError):
    """A change was asked of a directory that was opened for reading."""


class Closed(RequestError):
    """The log or directory was closed before the call."""


class IndexFull(TidelogError):
    """An index has reached its size limit; the caller rolls the segment."""


class OffsetOverflow(TidelogError):
    """An offset that does not fit into a segment's 32-bit relative offsets."""


class UnsupportedVersion(TidelogError):
    """A file or message of a version that this release does not know."""

    code: ClassVar[int | None] = ErrorCode.UNSUPPORTED_VERSION


class UnsupportedRequest(UnsupportedVersion):
    """A request of an API or version that is not served; what an answer needs to say so.

    Attributes:
        api_key: The API's number.
        version: The version asked.
        correlation_id: What an answer must repeat.
        client_id: How the client calls itself.
    """

    def __init__(
        self, api_key: int, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        super().__init__(f"API {api_key} v{version} is not served")


class StorageFailure(TidelogError):
    """The operating system failed a call; the partition is offline for writes until reopened.

    Attributes:
        path: File concerned.
        operation: What was tried, e.g. `sync`.
    """

    code: ClassVar[int | None] = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, path: str, operation: str, reason: str) -> None:
        self.path = path
        self.operation = operation
        self.reason = reason
        super().__init__(f"{path}: {operation} failed: {reason}")

    def again(self) -> "StorageFailure":
        """An error for a later request, which is refused because of this one."""
        reason = f"{self.reason}; the partition is offline"
        return StorageFailure(self.path, self.operation, reason)


class MissingFile(StorageFailure, FileNotFoundError):
    """A file of a log, or an object of its tier, is not there.

    Perhaps it was deleted or exchanged since the reader looked: one that is opened anew, or
    refreshed, finds what took its place. If it meets the same error, the records are lost here.
    """

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(path, operation, reason)
        self.errno, self.strerror, self.filename = ENOENT, reason, path

    def __str__(self) -> str:
        return f"{self.path}: {self.operation} failed: {self.reason}"

    def __reduce__(self) -> tuple[type["MissingFile"], tuple[str, str, str]]:
        return type(self), (self.path, self.operation, self.reason)


class DamagedLog(CorruptBatch, StorageFailure):
    """Damage in the part of a log that is known to have been whole, so no crash has left it.

    The partition keeps all of its bytes: its sound prefix can be read, appends are refused until
    `tidelog doctor --repair` sets the damage aside or the file is restored. Clients get error 56,
    as of any partition that is offline: the same request fails again, whoever sends it.

    Attributes:
        offset: First offset that can't be read; all below it can.
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
        """The same error, for another request."""
        location = {"at": self.at, "offset": self.offset, "position": self.position}
        return DamagedLog(self.reason, path=self.path, **location)


class ClusterFailure(TidelogError):
    """A cluster could not be reached, or refused; what had been done before stays done.

    Attributes:
        bootstrap: Which cluster, as it was named.
        operation: What was tried, e.g. `look up offsets`.
        reason: What the broker or the client library said.
        error_code: Kafka's error code; negative ones are librdkafka's own; None for a time-out.
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
    """Somebody else has changed a partition's tier: another copy of the directory, say.

    Nothing was changed by the caller; the text says what was found and what to do.
    """


class CleaningAborted(TidelogError):
    """A partition changed while it was compacted: the job is given up, and may be tried again."""


class CleaningFailed(TidelogError):
    """A compaction's process ended, said what can't be understood, or has not the room it needs."""


class NotAuthorized(ClusterFailure):
    """The cluster knows who asks, and does not allow it; or it does not believe who asks."""


class WriterFenced(ClusterFailure):
    """A newer attempt writes under the same transactional id; this one's records are aborted."""


class DirectoryLocked(TidelogError):
    """Somebody else holds the directory's lock, in this process or in another one."""


class ClockJump(TidelogError):
    """The wall clock jumped ahead by more than an hour; appends wait for an explicit accept.

    Clients get Kafka's POLICY_VIOLATION, which producers don't retry, with the reason as its text.

    Attributes:
        last_ms: Last append time given out, or the wall time expected.
        now_ms: What the wall clock says.
    """

    code: ClassVar[int | None] = ErrorCode.POLICY_VIOLATION

    def __init__(self, last_ms: int, now_ms: int, reason: str) -> None:
        self.last_ms = last_ms
        self.now_ms = now_ms
        super().__init__(reason)


def shortened(value: str) -> str:
    """Return a value as errors show it: the beginning of a long one, with its length."""
    if len(value) <= _SHOWN_MAX:
        return value
    return f"{value[:_SHOWN_MAX]}... ({len(value)} characters)"


class ConfigError(TidelogError):
    """A setting with an unknown name or a value outside its range.

    Attributes:
        key: The setting.
        value: What was given, None where only the name is wrong.
        allowed: What would be right.
    """

    code: ClassVar[int | None] = ErrorCode.INVALID_CONFIG

    def __init__(self, key: str, value: str | None, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        setting = key if value is None else f"{key}={shortened(value)}"
        super().__init__(f"{setting}: {allowed}")


class ConfigErrors(ConfigError):
    """Several settings that can't be; what it says of one is about the first.

    Attributes:
        errors: All of them, in the order of the settings.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(errors[0].key, errors[0].value, errors[0].allowed)
        self.errors = tuple(errors)
        self.args = ("; ".join(map(str, errors)),)


class MissingDependency(TidelogError):
    """An optional package is not installed; the text says which extra brings it."""
