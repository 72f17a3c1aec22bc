"""Transaction index of a segment: the aborted transactions whose markers are in the segment.

The file `BASE.txnindex` is created at the first abort. An entry has the id of a producer, and a
range of offsets. In this range, readers of committed records must skip the producer's batches. The
entry is stored in the index of the segment that has the abort marker. That segment may be after the
segment with the records, so a reader also reads the indexes of later segments. The reader can stop
at an entry whose last stable offset is at or after the end of the reader's range: all transactions
with later markers begin after the range. Each entry's last offset is above the previous entry's.

An entry has 34 bytes, big-endian: int16 version 0, int64 producer id, int64 first offset, int64
last offset (of the marker), int64 last stable offset.

Source: Kafka 4.x TransactionIndex, AbortedTxn; docs/format.md#index-of-aborted-transactions.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple, Self

from tidelog.errors import CorruptIndex, InvalidRequest
from tidelog.types import Buffer

VERSION: Final = 0
_TXN_ENTRY: Final = Struct(">hqqqq")
TXN_ENTRY_SIZE: Final = 34
assert _TXN_ENTRY.size == TXN_ENTRY_SIZE


class AbortedTxn(NamedTuple):
    """One aborted transaction.

    Attributes:
        producer_id: Id of the producer.
        first_offset: Offset of the transaction's first record.
        last_offset: Offset of the transaction's abort marker, inclusive.
        last_stable_offset: Last stable offset after the marker was written. Every transaction with
            a later marker starts at or after this offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CollectedTxns(NamedTuple):
    """Aborted transactions in a range, and whether the indexes of later segments can be skipped."""

    aborted: list[AbortedTxn]
    is_complete: bool


class TxnIndex:
    """Aborted transactions whose markers are in one segment, in the order of the markers.

    Concurrent changes are not safe.
    """

    __slots__ = ("base_offset", "entries")

    def __init__(self, base_offset: int, entries: Iterable[AbortedTxn] = ()) -> None:
        self.base_offset = base_offset
        self.entries: list[AbortedTxn] = []
        for entry in entries:
            self.append(entry)

    @property
    def size_bytes(self) -> int:
        """Size in bytes of the file with all entries."""
        return len(self.entries) * TXN_ENTRY_SIZE

    def append(self, aborted: AbortedTxn) -> bytes:
        """Add a transaction; return the bytes to append to the file.

        Raises:
            InvalidRequest: The marker is not after the last entry's marker; nothing was changed.
        """
        if self.entries and aborted.last_offset <= self.entries[-1].last_offset:
            raise InvalidRequest(
                f"aborted transaction ending at {aborted.last_offset} does not follow the one "
                f"ending at {self.entries[-1].last_offset}"
            )
        self.entries.append(aborted)
        return _TXN_ENTRY.pack(VERSION, *aborted)

    def collect(self, fetch_start: int, upper_bound: int) -> CollectedTxns:
        """Return aborted transactions that overlap [fetch_start, upper_bound), in order of markers.

        Returns:
            The transactions, and whether they are complete. If the transactions are not complete,
            later segments have to be searched, too (`aborted_between`).
        """
        aborted = []
        for entry in self.entries:
            if entry.last_offset >= fetch_start and entry.first_offset < upper_bound:
                aborted.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return CollectedTxns(aborted, True)
        return CollectedTxns(aborted, False)

    def truncate_to(self, offset: int) -> int:
        """Drop entries whose marker is at or after `offset`; return the remaining size in bytes."""
        while self.entries and self.entries[-1].last_offset >= offset:
            self.entries.pop()
        return self.size_bytes

    @property
    def encoded(self) -> memoryview:
        """Content of the whole file."""
        return memoryview(b"".join(_TXN_ENTRY.pack(VERSION, *entry) for entry in self.entries))

    @classmethod
    def decode(cls, data: Buffer, base_offset: int) -> Self:
        """Decode the content of a file.

        Raises:
            CorruptIndex: An entry is incomplete, has an unknown version or a negative field, does
                not have a greater last offset than the previous entry, or has a marker before the
                segment.
        """
        index = cls(base_offset)
        if len(data) % TXN_ENTRY_SIZE:
            at = len(data) // TXN_ENTRY_SIZE * TXN_ENTRY_SIZE
            raise CorruptIndex(
                f"an incomplete entry: {len(data) - at} of {TXN_ENTRY_SIZE} bytes", at=at
            )
        for slot, (version, *fields) in enumerate(_TXN_ENTRY.iter_unpack(data)):
            if version != VERSION:
                reason = f"aborted transaction of version {version}, {VERSION} expected"
                raise CorruptIndex(reason, at=slot * TXN_ENTRY_SIZE)
            index._take(AbortedTxn(*fields), slot * TXN_ENTRY_SIZE)
        return index

    def _take(self, entry: AbortedTxn, at: int) -> None:
        last = self.entries[-1].last_offset if self.entries else self.base_offset - 1
        if entry.last_offset <= last:
            raise CorruptIndex(f"marker offset {entry.last_offset} is not above {last}", at=at)
        if min(entry) < 0 or entry.first_offset > entry.last_offset:
            reason = (
                f"invalid entry: producer {entry.producer_id}, offsets {entry.first_offset} to"
                f" {entry.last_offset}, last stable offset {entry.last_stable_offset}"
            )
            raise CorruptIndex(reason, at=at, offset=entry.last_offset)
        self.entries.append(entry)


def aborted_between(indexes: Iterable[TxnIndex], start: int, end: int) -> list[AbortedTxn]:
    """Return aborted transactions that overlap [start, end), in the order of their markers.

    Args:
        indexes: Indexes of the segments from offset `start` on. Indexes after `end` are needed as
            well, because an abort's marker, and so its entry, may be far after the records. The
            function takes indexes only until the transactions are complete.
        start: Start of the range, inclusive.
        end: End of the range, exclusive.
    """
    aborted: list[AbortedTxn] = []
    for index in indexes:
        entries, is_complete = index.collect(start, end)
        aborted += entries
        if is_complete:
            break
    return aborted
