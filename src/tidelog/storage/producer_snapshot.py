"""The bytes of `OFFSET.snapshot`: producers as they were when the log ended at that offset.

Header, 10 bytes, big-endian: int16 version 1, uint32 CRC-32C of everything from byte 6 on, int32
number of entries. Entry, 46 bytes: int64 producer id, int16 epoch, int32 last sequence, int64 last
offset, int32 offset delta, int64 timestamp, int32 coordinator epoch, int64 first offset of the
open transaction. -1 stands for "none", also as last offset of a producer without a batch.

Source: Kafka 4.x ProducerStateManager; docs/format.md#producer-snapshot.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.types import Buffer

VERSION: Final = 1
_HEADER: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
HEADER_SIZE: Final = 10
ENTRY_SIZE: Final = 46
CRC_START_AT: Final = 6
assert _HEADER.size == HEADER_SIZE
assert _ENTRY.size == ENTRY_SIZE

# Java's HashMap: it starts with 16 buckets and doubles them once it holds more than 3/4 as many.
_FIRST_BUCKETS: Final = 16
# Where fewer than one in so many buckets hold anything, these are sorted instead of walking all.
_SPARSE: Final = 64


class SnapshotEntry(NamedTuple):
    """One producer as the file has it; -1 for what is not there. See the module for the fields."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The whole file, entries in the order given.

    May run in a thread beside others: no step of it is long.
    """
    out = bytearray(_HEADER.size)
    for entry in entries:
        out += _ENTRY.pack(*entry)
    count = (len(out) - HEADER_SIZE) // ENTRY_SIZE
    _HEADER.pack_into(out, 0, VERSION, 0, count)
    with memoryview(out) as view:
        crc = crc32c(view[CRC_START_AT:])
    _HEADER.pack_into(out, 0, VERSION, crc, count)
    return bytes(out)


def decode_snapshot(data: Buffer) -> list[SnapshotEntry]:
    """The entries of a file.

    Raises:
        CorruptFile: Another version, a wrong checksum, or entries that are not all there, are
            there twice, or have a negative producer id.
    """
    view = memoryview(data)
    if len(view) < HEADER_SIZE:
        raise CorruptFile(f"snapshot of {len(view)} bytes, at least {HEADER_SIZE} expected", at=0)
    version, stored, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise CorruptFile(f"snapshot of version {version}, {VERSION} expected", at=0)
    if stored != (computed := crc32c(view[CRC_START_AT:])):
        raise CorruptFile(f"snapshot checksum {stored:08x}, its bytes give {computed:08x}", at=2)
    if count * ENTRY_SIZE != len(view) - HEADER_SIZE:
        raise CorruptFile(f"snapshot of {count} entries has {len(view)} bytes", at=CRC_START_AT)
    entries = [SnapshotEntry(*row) for row in _ENTRY.iter_unpack(view[HEADER_SIZE:])]
    known: set[int] = set()
    for slot, entry in enumerate(entries):
        if entry.producer_id < 0 or entry.producer_id in known:
            at = HEADER_SIZE + slot * ENTRY_SIZE
            raise CorruptFile(f"producer {entry.producer_id} can't be, or twice", at=at)
        known.add(entry.producer_id)
    return entries


def in_hash_order(producer_ids: Iterable[int], peak_count: int) -> list[int]:
    """Producer ids in the order in which a Java HashMap walks them, so in which Kafka writes them.

    Args:
        producer_ids: In the order of their insertion, which decides within a bucket.
        peak_count: Most producers there ever were: the map never shrinks.
    """
    buckets = _FIRST_BUCKETS
    while peak_count > buckets * 3 // 4:
        buckets *= 2

    def bucket(producer_id: int) -> int:
        folded = (producer_id ^ (producer_id >> 32)) & 0xFFFF_FFFF
        return (folded ^ (folded >> 16)) & (buckets - 1)

    # Not sorted in one go, which for a million would keep other threads waiting.
    held: dict[int, list[int]] = {}
    for producer_id in producer_ids:
        held.setdefault(bucket(producer_id), []).append(producer_id)
    is_sparse = len(held) < buckets // _SPARSE
    order = sorted(held) if is_sparse else range(buckets)
    return [producer_id for number in order for producer_id in held.get(number, ())]
