"""How often each record was seen in each of four places, in bounded memory.

A record is a digest of 16 bytes. Digests go to buckets by their first bytes; buckets are kept in
memory up to `BUFFER_BYTES` in all and then written to files of their own, so that at the end one
bucket after the other is counted. Digests are evenly spread, equal ones take one place.

Bound: `BUFFER_BYTES` (64 MB) and the counts of one bucket, about 65,536 different digests (16 MB);
where more than 268 million records are expected, a 4,096th of them.

add* -> walk -> add* -> walk ... -> close, best by `with`. For one thread.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from tidelog.closing import Closing
from tidelog.env import Env

DIGEST_SIZE: Final = 16
BUFFER_BYTES: Final = 64 * 1024 * 1024
_PER_BUCKET: Final = 65_536
_BUCKETS_MAX: Final = 4_096
_ENTRY: Final = Struct(f">{DIGEST_SIZE}sB")
_ENTRY_SIZE: Final = _ENTRY.size
_READ_ENTRIES: Final = 65_536
# Counts of the four places share one int: 40 bits each, more than any log has records.
_COUNT_BITS: Final = 40
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1


class Place(IntEnum):
    """Where a record was seen: on A or B, before the position or start, or after it."""

    A_AFTER = 0
    A_BEFORE = 1
    B_AFTER = 2
    B_BEFORE = 3


_ONES: Final = tuple(1 << _COUNT_BITS * place for place in Place)


class Counts(NamedTuple):
    """How often a record was seen in each place."""

    a_after: int
    a_before: int
    b_after: int
    b_before: int


@dataclass(frozen=True, slots=True)
class Spill:
    """Where digests go that don't fit into memory.

    Attributes:
        env: Files.
        folder: Made when it is needed, and removed again.
        buffer_bytes: So many are kept in memory.
    """

    env: Env
    folder: str
    buffer_bytes: int = BUFFER_BYTES


class DigestCounts(Closing):
    """Counts of digests by place."""

    def __init__(self, spill: Spill, *, expected: int) -> None:
        """Nothing is written before the buffers are full.

        Args:
            spill: Where to write then.
            expected: About how many records will be added.
        """
        self._files = spill.env.files
        self._folder = spill.folder
        self._limit = spill.buffer_bytes
        self._buffered = 0
        count = min(max(-(-expected // _PER_BUCKET), 1), _BUCKETS_MAX)
        self._buffers = [bytearray() for _ in range(count)]
        self._written = [0] * count
        self._made: set[int] = set()

    def add(self, place: Place, digest: bytes) -> None:
        """Count one record."""
        bucket = int.from_bytes(digest[:4]) % len(self._buffers)
        buffer = self._buffers[bucket]
        buffer += digest
        buffer.append(place)
        self._buffered += _ENTRY_SIZE
        if self._buffered >= self._limit:
            self._spill()

    def walk(self) -> Iterator[tuple[bytes, Counts]]:
        """Every digest once, with its counts; in no order that means anything."""
        for bucket in range(len(self._buffers)):
            for digest, packed in self._counted(bucket).items():
                yield digest, _unpacked(packed)

    def tally(self) -> dict[Counts, int]:
        """How many digests have the same counts; few combinations, however many digests."""
        found: Counter[int] = Counter()
        for bucket in range(len(self._buffers)):
            found.update(self._counted(bucket).values())
        return {_unpacked(packed): number for packed, number in found.items()}

    def _counted(self, bucket: int) -> dict[bytes, int]:
        counts: dict[bytes, int] = {}
        for chunk in self._chunks(bucket):
            for digest, place in _ENTRY.iter_unpack(chunk):
                counts[digest] = counts.get(digest, 0) + _ONES[place]
        return counts

    def _chunks(self, bucket: int) -> Iterator[bytes]:
        written = self._written[bucket]
        if written:
            file = self._files.open(self._path(bucket))
            try:
                for position in range(0, written, _READ_ENTRIES * _ENTRY_SIZE):
                    size = min(_READ_ENTRIES * _ENTRY_SIZE, written - position)
                    yield file.pread(size, position)
            finally:
                file.close()
        yield bytes(self._buffers[bucket])

    def _spill(self) -> None:
        self._files.make_dirs(self._folder)
        for bucket, buffer in enumerate(self._buffers):
            if buffer:
                self._append(bucket, buffer)
                self._buffers[bucket] = bytearray()
        self._buffered = 0

    def _append(self, bucket: int, buffer: bytearray) -> None:
        self._made.add(bucket)
        file = self._files.open(self._path(bucket), create=True)
        try:
            done = 0
            while done < len(buffer):
                rest = memoryview(buffer)[done:]
                done += file.pwrite(rest, self._written[bucket] + done)
        finally:
            file.close()
        self._written[bucket] += len(buffer)

    def _path(self, bucket: int) -> str:
        return f"{self._folder}/{bucket:04d}"

    def close(self) -> None:
        """Remove what was written; closing twice is fine."""
        made, self._made = self._made, set()
        for bucket in made:
            if self._files.exists(self._path(bucket)):
                self._files.remove(self._path(bucket))
        if made:
            self._files.remove_dir(self._folder)


def _unpacked(packed: int) -> Counts:
    return Counts(*(packed >> _COUNT_BITS * place & _COUNT_MASK for place in Place))
