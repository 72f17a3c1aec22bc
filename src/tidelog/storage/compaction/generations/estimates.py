"""Estimates of live bytes of each segment, from a sample of the log's keys. Pure.

- The sample (`KeySamples`): a key belongs to it if its hash ends with `shift` zero bits. So either
  all records of a key are sampled or none, and of a sampled key the last record is known exactly:
  the others are garbage. Segments whose hot keys are in the sample look no worse than others, since
  live records are counted, and a key has one. The hash is seeded by a secret of the partition. No
  record is dropped by it: a cleaning draws its own seed. Two keys with equal hashes make one record
  look superseded that is not, and the estimate is wrong by that record. Memory: `SAMPLES_MAX` keys
  at most, two whole numbers each.
- Bytes alive in a segment (`live_bytes`): a segment's own sample is small where a log has many
  segments, and whoever picks the segments that look emptiest picks those whose sample errs. But
  segments that were written one after the other and cleaned at the same time lose their records
  alike. So each is judged by its own sample and by that of its neighbors, as if `PRIOR_SAMPLES` of
  its keys had been drawn from them.
- The number of keys (`correction`): the sample says `samples << shift`, off by the luck of the
  draw, some 1 % for 8,192 samples. Every cleaning maps the keys of a range of offsets and knows
  their exact number. The sample's number for that range, at that time, shows how lucky its draw was
  among those keys. A key is in the sample or not for good, so the difference holds for as long as
  the keys do: keys that were not in the map, and those that are gone since, remain uncertain.

      keys = samples << shift  +  (counted - sampled << shift)

`SegmentFacts` are what a plan goes by. `cleaned_to` carries the safety of everything that follows:
no record of the segment is superseded by a record below that offset. It is known, never estimated.
`live_bytes` and `keys` are estimates: where they are wrong, a cleaning costs more, nothing else.

Source: the difference estimator of survey sampling.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One finished segment.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it, exclusive.
        size_bytes: Size of its log file.
        cleaned_to: No record of it is superseded by one with an offset below this; its base
            offset where it was never cleaned.
        live_bytes: Bytes that are expected to stay when it is cleaned, 0 to `size_bytes`.
        sum_bytes: The same for sums over many segments: where `live_bytes` leans on what a
            cleaning has left, and on its own sample alone, this one is right on average.
        keys: Keys whose last record is expected to be in it.
        records: Records in it; None where nobody has counted them.
        has_due: Whether it holds tombstones that are past their horizon.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    cleaned_to: int
    live_bytes: float
    sum_bytes: float
    keys: float
    records: int | None = None
    has_due: bool = False

    @property
    def garbage_bytes(self) -> float:
        """Bytes that a cleaning is expected to free."""
        return max(self.size_bytes - self.live_bytes, 0.0)


# Keys of the neighbours that count beside a segment's own, and how many neighbours on each side.
PRIOR_SAMPLES: Final = 128


NEIGHBOURS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the sample says of one segment.

    Attributes:
        size_bytes: Size of its log file.
        cohort: Segments with the same number were cleaned by the same runs.
        keys: Sampled keys whose last record is in it.
        found_bytes: Bytes of those records, times how rare sampled keys are.
        weight_bytes: What they would be if nothing of the segment was garbage; -1 for unknown.
    """

    size_bytes: int
    cohort: int
    keys: int
    found_bytes: int
    weight_bytes: int


def live_bytes(segments: Sequence[Counted], *, is_whole: bool = False) -> list[float]:
    """Bytes of each segment that are expected to be alive, at most its size.

    Args:
        segments: All of them, in order.
        is_whole: Whether every key is in the sample: then nobody else is asked.
    """
    keys = sum(each.keys for each in segments)
    unit = sum(each.found_bytes for each in segments) / keys if keys and not is_whole else 0.0
    return list(_live_bytes(segments, PRIOR_SAMPLES * unit))


def _live_bytes(segments: Sequence[Counted], prior: float) -> Iterator[float]:
    for slot, each in enumerate(segments):
        around = [
            other
            for other in segments[max(slot - NEIGHBOURS, 0) : slot + NEIGHBOURS + 1]
            if other.cohort == each.cohort and other.weight_bytes > 0
        ]
        weight = sum(other.weight_bytes for other in around)
        if not weight:
            yield float(each.size_bytes)  # nothing is known: nothing is expected to be garbage
            continue
        shared = sum(other.found_bytes for other in around) / weight
        own = max(each.weight_bytes, 0)
        own_bytes = each.found_bytes if own else 0
        part = (own_bytes + prior * shared) / (own + prior) if own + prior else shared
        yield min(part, 1.0) * each.size_bytes


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
        return ((hash_, *last) for hash_, last in self._latest.items())

    @property
    def latest(self) -> Mapping[int, tuple[int, int]]:
        """Offset and size of each sampled key's last record by its hash, as they are now."""
        return self._latest

    def thinned(self, shift: int) -> dict[int, tuple[int, int]]:
        """What of it a sample of another shift has, of the records that are known."""
        mask = (1 << shift) - 1
        return {h: last for h, last in self._latest.items() if h & mask == 0}

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
            last = latest.get(name)
            if last is None or last[0] <= offset:
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

        self._latest = {h: last for h, last in self._latest.items() if is_kept(last[0])}

    def forget_tombstones(self, start: int, end: int) -> None:
        """Drop the tombstones of offsets [start, end): a cleaning has let them go."""
        expired = [
            h for h, (offset, size) in self._latest.items() if size < 0 and start <= offset < end
        ]
        for hash_ in expired:
            del self._latest[hash_]

    def count(self, bases: Sequence[int]) -> list[tuple[int, int]]:
        """Sampled keys, and bytes of their last records, from each base to the next, ascending."""
        counts = [[0, 0] for _ in bases]
        for offset, size in self._latest.values():
            slot = bisect_right(bases, offset) - 1
            if slot >= 0:
                counts[slot][0] += 1
                counts[slot][1] += abs(size)
        return [(keys, size) for keys, size in counts]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedKeys:
    """What one map has counted.

    Attributes:
        shift: How rare sampled keys were then (`KeySamples.shift`).
        keys: Different keys in the map.
        sampled: How many of them were in the sample.
        lost: Keys that have left the sample since.
    """

    shift: int
    keys: int
    sampled: int
    lost: int = 0

    def unknown(self, samples: KeySamples) -> int:
        """Sampled keys at most that it says nothing about: those that are new, and those gone."""
        if self.shift != samples.shift:
            return len(samples)
        return min(max(len(samples) - self.sampled, 0) + 2 * self.lost, len(samples))


def better(old: MappedKeys | None, new: MappedKeys, samples: KeySamples) -> MappedKeys:
    """That of two counts which leaves less uncertain, the newer one where both are as good."""
    return old if old and old.unknown(samples) < new.unknown(samples) else new


def correction(samples: KeySamples, counted: MappedKeys | None) -> float:
    """By what factor sums over the whole sample are wrong, as far as a count tells; else 1."""
    if counted is None or counted.unknown(samples) >= len(samples):
        return 1.0
    key_count = len(samples) << samples.shift
    return max((key_count + counted.keys - (counted.sampled << samples.shift)) / key_count, 0.0)


def live_error(samples: KeySamples, counted: MappedKeys | None) -> float:
    """The standard error of the live size, as a part of it: 0 where each key is sampled.

    Of two kinds: in the number of keys, and in the mean size of their last records.
    """
    if not len(samples):
        return 1.0
    return math.hypot(count_error(samples, counted), _error(samples, samples.size_variance()))


def count_error(samples: KeySamples, counted: MappedKeys | None) -> float:
    """That of the number of keys: what a map of all of them would take away."""
    if not len(samples):
        return 0.0
    unknown = len(samples) if counted is None else counted.unknown(samples)
    return _error(samples, unknown / len(samples))


def _error(samples: KeySamples, variance: float) -> float:
    chance = 1 - 1 / (1 << samples.shift)
    return math.sqrt(chance * variance / len(samples))
