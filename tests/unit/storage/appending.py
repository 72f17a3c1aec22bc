"""Records, a context, calls and readers that the tests of the validator share."""

from collections.abc import Sequence

from tidelog.config import TopicConfig
from tidelog.record.header import seal
from tidelog.record.record import Record
from tidelog.storage.log.append_types import AppendContext, AppendOrigin, AppendTerms, PendingAppend
from tidelog.storage.log.validator import Validator
from tidelog.types import (
    Buffer,
    Header,
    NewRecord,
    TopicPartition,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000
PARTITION = TopicPartition("flights", 3)
OWN_ORIGINS = (AppendOrigin.COORDINATOR, AppendOrigin.SINK)


def record(timestamp: int = NOW, key: bytes | None = b"k", value: bytes | None = b"v") -> NewRecord:
    return NewRecord.of_log(key=key, value=value, timestamp=timestamp, headers=(Header("h", b"1"),))


def records(count: int = 3) -> list[NewRecord]:
    return [record(NOW - i, b"k%d" % i) for i in range(count)]


def bare_records() -> list[NewRecord]:
    """Return records that fit into the old formats, which have no headers."""
    return [NewRecord(key=b"k", value=b"v", timestamp=NOW - i) for i in range(3)]


def context(
    origin: AppendOrigin = AppendOrigin.CLIENT, *, owned: bool = False, trusted: bool = False
) -> AppendContext:
    terms = AppendTerms(origin, owned=owned, trusted=trusted)
    return context_of(terms)


def context_of(terms: AppendTerms) -> AppendContext:
    return AppendContext(
        terms, next_offset=100, leader_epoch=7, now_ms=NOW, append_ms=NOW + 5, stamp_ms=NOW + 5
    )


def validate(
    data: Buffer, given: dict[str, str] | None = None, where: AppendContext | None = None
) -> PendingAppend:
    config, _ = TopicConfig.parse(given or {})
    return Validator(PARTITION, config).validate(data, where or context())


def read(result: PendingAppend) -> list[Record]:
    return [found for batch in result.batches for found in batch.records()]


def contents(found: Sequence[NewRecord | Record]) -> list[tuple[object, ...]]:
    return [(r.key, r.value, r.headers) for r in found]


def resealed(batch: bytearray, at: int, field: bytes) -> bytes:
    """Return the batch with a changed header field and a correct CRC."""
    changed = bytearray(batch)
    changed[at : at + len(field)] = field
    seal(changed, 0)
    return bytes(changed)
