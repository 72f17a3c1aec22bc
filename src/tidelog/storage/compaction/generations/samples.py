"""A sample of a log's keys, the same keys everywhere: whose last record is where.

A key belongs to the sample if its hash ends with `shift` zero bits. So either all records of a key
are sampled or none, and of a sampled key it is known exactly which of its records is the last:
the others are garbage. Segments whose hot keys are in the sample look no worse than others, since
what is counted up is live records, and of those a key has one.

The hash is seeded by a secret of the partition, but nothing is dropped by it: a cleaning draws its
own. Equal hashes of two keys make a record look superseded that is not; the estimate is wrong by
that one record.

Memory: `SAMPLES_MAX` keys at most, two whole numbers each. Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

# Keys in the sample: at least this many where there are so many, then one in 16 to 8, never more
# than twice the larger limit. 32,768 of a log of 64 segments are 512 a segment, whose live part is
# known to some 5 % then, and that of the whole log to 0.5 %.
SAMPLES_MIN: Final = 1024
SAMPLES_MAX: Final = 32_768
KEYS_PER_SAMPLE: Final = 16
# Where one look at a segment finds this many, the sample is thinned before it ends.
SAMPLES_ROOM: Final = 4 * SAMPLES_MAX
# More zero bits than this no sample needs; a file that says so is not ours.
SHIFT_MAX: Final = 32
# What of a hash counts: among so few keys more bits tell nothing new, and they would be stored.
HASH_MASK: Final = (1 << 48) - 1


class KeySamples:
    """The last record of each sampled key: hash -> (offset, size).

    The size is that of the record in bytes, negative for a tombstone.
    """

    def __init__(self, shift: int = 0, latest: Mapping[int, tuple[int, int]] | None = None) -> None:
        assert 0 <= shift <= SHIFT_MAX
        self.shift = shift
        self._latest: dict[int, tuple[int, int]] = dict(latest or {})

    def __len__(self) -> int:
        return len(self._latest)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Hash, offset and size of each sampled key's last record."""
        return ((hash_, *found) for hash_, found in self._latest.items())

    @property
    def latest(self) -> Mapping[int, tuple[int, int]]:
        """Offset and size of each sampled key's last record by its hash, as they are now."""
        return self._latest

    def thinned(self, shift: int) -> dict[int, tuple[int, int]]:
        """What of it a sample of another shift has, of the records that are known."""
        mask = (1 << shift) - 1
        return {h: found for h, found in self._latest.items() if h & mask == 0}

    @property
    def key_count(self) -> int:
        """How many keys there are expected to be."""
        return len(self._latest) << self.shift

    def add(self, records: Iterable[tuple[int, int, int]]) -> None:
        """Take records (hash, offset, size) in any order; of a key the highest offset counts."""
        latest, mask = self._latest, (1 << self.shift) - 1
        for hash_, offset, size in records:
            if hash_ & mask:
                continue
            name = hash_ & HASH_MASK
            known = latest.get(name)
            if known is None or known[0] <= offset:
                latest[name] = (offset, size)
                if len(latest) > SAMPLES_ROOM:
                    self._thin()
                    latest, mask = self._latest, (1 << self.shift) - 1
        self._thin()

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Drop what is known outside of these ranges of offsets [start, end), in order."""
        starts = [start for start, _ in ranges]

        def is_kept(offset: int) -> bool:
            slot = bisect_right(starts, offset) - 1
            return slot >= 0 and offset < ranges[slot][1]

        self._latest = {h: found for h, found in self._latest.items() if is_kept(found[0])}

    def forget_tombstones(self, start: int, end: int) -> None:
        """Drop the tombstones of offsets [start, end): a cleaning has let them go."""
        gone = [
            h for h, (offset, size) in self._latest.items() if size < 0 and start <= offset < end
        ]
        for hash_ in gone:
            del self._latest[hash_]

    def count(self, bases: Sequence[int]) -> list[tuple[int, int]]:
        """Sampled keys, and bytes of their last records, from each base to the next, ascending."""
        found = [[0, 0] for _ in bases]
        for offset, size in self._latest.values():
            slot = bisect_right(bases, offset) - 1
            if slot >= 0:
                found[slot][0] += 1
                found[slot][1] += abs(size)
        return [(keys, size) for keys, size in found]

    def count_between(self, start: int, end: int) -> int:
        """Sampled keys whose last record is in [start, end)."""
        return sum(start <= offset < end for offset, _ in self._latest.values())

    def size_variance(self) -> float:
        """Variance of the sizes of last records, in squares of their mean."""
        sizes = [abs(size) for _, size in self._latest.values()]
        total = sum(sizes)
        # In whole numbers: where sizes hardly differ, what is left of fractions may be negative.
        spread = len(sizes) * sum(size * size for size in sizes) - total * total
        return spread / (total * total) if total else 0.0

    def _thin(self) -> None:
        """Halve the sample while it is larger than it has to be."""
        while len(self._latest) > 2 * self._target() and self.shift < SHIFT_MAX:
            self.shift += 1
            self._latest = self.thinned(self.shift)

    def _target(self) -> int:
        return min(max(self.key_count // KEYS_PER_SAMPLE, SAMPLES_MIN), SAMPLES_MAX)
