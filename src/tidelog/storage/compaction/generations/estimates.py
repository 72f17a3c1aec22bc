"""Estimates of live bytes of each segment, from a sample of the log's keys. Pure.

- The sample (`KeySamples`) has each key whose hash ends with `shift` zero bits. So either all
  records of a key are sampled or none. The last record of a sampled key is known exactly, and all
  other records of the key are garbage. Only live records are counted, and every key has at most one
  live record, however often the key is updated. So it does not matter how many frequently updated
  keys of a segment are sampled. The hash is seeded by a secret of the partition. The sample never
  decides which record is dropped: a cleaning hashes keys with a seed of its own. If two keys have
  equal hashes, one live record looks superseded, and the estimate is wrong by that record. For each
  sampled key, the sample stores the offset and the size of the key's last record. The sample has at
  most `SAMPLES_ROOM` keys while records are added, and at most 2 x `SAMPLES_MAX` keys afterwards.
- Live bytes of a segment (`live_bytes`): if a log has many segments, the sample of each segment is
  small. Selecting the segments with the smallest estimates would then select the segments with the
  largest sampling errors. But neighboring segments that were cleaned at the same time lose their
  records at the same rate. So the estimate for a segment combines the segment's own sample with the
  samples of its neighbors, which together weigh as much as `PRIOR_SAMPLES` sampled keys.
- The number of keys (`correction`): the sample's estimate is `samples << shift`, with a sampling
  error of some 1 % for 8,192 samples. Every cleaning maps the keys of a range of offsets and so
  counts them exactly. Comparing this count with the sample's estimate for the same range and time
  gives the sampling error among those keys. Whether a key is sampled depends only on its hash, so
  this error remains the same as long as the keys exist. Keys that were not in the map, and keys
  that have disappeared since, remain uncertain.

      keys = (samples << shift) + counted - (sampled << shift)

  `samples` is the number of keys in the sample, `counted` the exact number of keys in the
  cleaning's map, and `sampled` the number of the map's keys that were in the sample.

`SegmentFacts` are the input of a plan. `cleaned_to` makes the cleaning safe: no record of the
segment is superseded by a record below that offset. `cleaned_to` is proven, never estimated.
`live_bytes` and `keys` are estimates: if they are wrong, a cleaning costs more or comes at another
time, but no live record is dropped.

Source: the difference estimator of survey sampling.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Facts about one finished segment.

    Attributes:
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset.
        size_bytes: Size of the segment's log file.
        cleaned_to: Offset below which no record supersedes a record of the segment; the segment's
            base offset if the segment was never cleaned.
        live_bytes: Bytes that are expected to remain after a cleaning, 0 to `size_bytes`.
        sum_bytes: Unbiased estimate of the live bytes, for sums over many segments. `live_bytes`
            also uses the result of the last cleaning, so `live_bytes` is more accurate for one
            segment, but biased in a sum.
        keys: Expected number of keys whose last record is in the segment.
        records: Number of the segment's records; None if they have not been counted.
        has_due: Whether the segment holds tombstones past their delete horizon.
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


# Weight of the neighbors' samples in the estimate for a segment, as a number of sampled keys; and
# the number of neighbors on each side of the segment.
PRIOR_SAMPLES: Final = 128

NEIGHBOURS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEstimate:
    """Sampling result of one segment.

    Attributes:
        size_bytes: Size of the segment's log file.
        cohort: Offset up to which the segment is clean, -1 if it was never cleaned; an estimate
            uses only neighbors with the same cohort.
        keys: Number of sampled keys whose last record is in the segment.
        sampled_bytes: Bytes of the last records of these keys, divided by the sampling rate.
        weight_bytes: Value that `sampled_bytes` would have if the segment had no garbage; -1 if
            unknown.
    """

    size_bytes: int
    cohort: int
    keys: int
    sampled_bytes: int
    weight_bytes: int


def live_bytes(segments: Sequence[SegmentEstimate], *, is_whole: bool = False) -> list[float]:
    """Estimate the live bytes of each segment; an estimate is at most the segment's size.

    Args:
        segments: All finished segments of the log, in order.
        is_whole: Whether every key is in the sample; if True, neighbors are ignored.
    """
    keys = sum(each.keys for each in segments)
    unit = sum(each.sampled_bytes for each in segments) / keys if keys and not is_whole else 0.0
    return list(_live_bytes(segments, PRIOR_SAMPLES * unit))


def _live_bytes(segments: Sequence[SegmentEstimate], prior: float) -> Iterator[float]:
    for slot, each in enumerate(segments):
        around = [
            other
            for other in segments[max(slot - NEIGHBOURS, 0) : slot + NEIGHBOURS + 1]
            if other.cohort == each.cohort and other.weight_bytes > 0
        ]
        weight = sum(other.weight_bytes for other in around)
        if not weight:
            yield float(each.size_bytes)  # unknown: assume no garbage
            continue
        shared = sum(other.sampled_bytes for other in around) / weight
        own = max(each.weight_bytes, 0)
        own_bytes = each.sampled_bytes if own else 0
        part = (own_bytes + prior * shared) / (own + prior) if own + prior else shared
        yield min(part, 1.0) * each.size_bytes


# Target for the number of keys in the sample: one key in KEYS_PER_SAMPLE, but at least SAMPLES_MIN
# and at most SAMPLES_MAX. A sample of more than twice the target is halved. In a log of 64
# segments, 32,768 keys are 512 keys for each segment. This is enough to estimate the live part of a
# segment with an error of some 5 %, and the live part of the whole log with an error of 0.5 %.
SAMPLES_MIN: Final = 1024

SAMPLES_MAX: Final = 32_768
KEYS_PER_SAMPLE: Final = 16

# A sample that exceeds this number of keys while records are added is thinned at once.
SAMPLES_ROOM: Final = 4 * SAMPLES_MAX

# Largest valid shift. No sample needs more zero bits, so a file with a larger shift is invalid.
SHIFT_MAX: Final = 32

# Mask of the bits of a hash that are kept. These bits are enough to distinguish the few sampled
# keys; more bits would only increase the size of the sample.
HASH_MASK: Final = (1 << 48) - 1


class KeySamples:
    """The last record of each sampled key: hash -> (offset, size).

    The size is the record's size in bytes, negative for a tombstone.
    """

    def __init__(self, shift: int = 0, latest: Mapping[int, tuple[int, int]] | None = None) -> None:
        assert 0 <= shift <= SHIFT_MAX
        self.shift = shift
        self._latest: dict[int, tuple[int, int]] = dict(latest or {})

    def __len__(self) -> int:
        return len(self._latest)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield hash, offset and size of each sampled key's last record."""
        return ((hash_, *last) for hash_, last in self._latest.items())

    @property
    def latest(self) -> Mapping[int, tuple[int, int]]:
        """Offset and size of each sampled key's last record, by the key's hash; not a copy."""
        return self._latest

    def thinned(self, shift: int) -> dict[int, tuple[int, int]]:
        """Return the samples that remain at `shift`, in the form of `latest`.

        `shift` must not be less than the current shift.
        """
        mask = (1 << shift) - 1
        return {h: last for h, last in self._latest.items() if h & mask == 0}

    @property
    def key_count(self) -> int:
        """Estimated number of keys."""
        return len(self._latest) << self.shift

    def add(self, records: Iterable[tuple[int, int, int]]) -> None:
        """Add records (hash, offset, size) in any order; keep the highest offset of each key."""
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
        """Drop samples whose offsets are in none of `ranges`, ascending [start, end) pairs."""
        starts = [start for start, _ in ranges]

        def is_inside(offset: int) -> bool:
            slot = bisect_right(starts, offset) - 1
            return slot >= 0 and offset < ranges[slot][1]

        self._latest = {h: last for h, last in self._latest.items() if is_inside(last[0])}

    def forget_tombstones(self, start: int, end: int) -> None:
        """Drop the tombstones of offsets [start, end), which a cleaning has removed."""
        expired = [
            h for h, (offset, size) in self._latest.items() if size < 0 and start <= offset < end
        ]
        for hash_ in expired:
            del self._latest[hash_]

    def count(self, bases: Sequence[int]) -> list[tuple[int, int]]:
        """Return each segment's number of sampled keys, and the bytes of their last records.

        A key is counted in the segment that contains the key's last record.

        Args:
            bases: Base offsets of the segments, ascending.
        """
        counts = [[0, 0] for _ in bases]
        for offset, size in self._latest.values():
            slot = bisect_right(bases, offset) - 1
            if slot >= 0:
                counts[slot][0] += 1
                counts[slot][1] += abs(size)
        return [(keys, size) for keys, size in counts]

    def count_between(self, start: int, end: int) -> int:
        """Count sampled keys whose last record is in [start, end)."""
        return sum(start <= offset < end for offset, _ in self._latest.values())

    def size_variance(self) -> float:
        """Return the variance of the sizes of last records, divided by the square of their mean."""
        sizes = [abs(size) for _, size in self._latest.values()]
        total = sum(sizes)
        # The sums are whole numbers: if sizes hardly differ, rounding of fractions could make the
        # result negative.
        spread = len(sizes) * sum(size * size for size in sizes) - total * total
        return spread / (total * total) if total else 0.0

    def _thin(self) -> None:
        """Halve the sample while it is larger than needed."""
        while len(self._latest) > 2 * self._target() and self.shift < SHIFT_MAX:
            self.shift += 1
            self._latest = self.thinned(self.shift)

    def _target(self) -> int:
        return min(max(self.key_count // KEYS_PER_SAMPLE, SAMPLES_MIN), SAMPLES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedKeys:
    """The number of keys in a cleaning's map, compared with the sample.

    Attributes:
        shift: Sampling rate when the map was counted (`KeySamples.shift`).
        keys: Number of different keys in the map.
        sampled: Number of these keys that were in the sample.
        lost: Number of keys that have left the sample since the map was counted.
    """

    shift: int
    keys: int
    sampled: int
    lost: int = 0

    def unknown(self, samples: KeySamples) -> int:
        """Return the maximum number of sampled keys for which the count may be wrong.

        These are the keys that are new or lost since the map was counted, or all keys if the
        sampling rate has changed.
        """
        if self.shift != samples.shift:
            return len(samples)
        return min(max(len(samples) - self.sampled, 0) + 2 * self.lost, len(samples))


def better(old: MappedKeys | None, new: MappedKeys, samples: KeySamples) -> MappedKeys:
    """Return the count that leaves fewer keys uncertain; the newer count in case of a tie."""
    return old if old and old.unknown(samples) < new.unknown(samples) else new


def correction(samples: KeySamples, counted: MappedKeys | None) -> float:
    """Return the factor that removes the known sampling error from a sum over all sampled keys.

    The factor is the corrected number of keys (see the module's docstring), divided by the sample's
    estimate of this number. It is 1 if no map was counted, or if the count may be wrong for all
    sampled keys.
    """
    if counted is None or counted.unknown(samples) >= len(samples):
        return 1.0
    key_count = len(samples) << samples.shift
    return max((key_count + counted.keys - (counted.sampled << samples.shift)) / key_count, 0.0)


def live_error(samples: KeySamples, counted: MappedKeys | None) -> float:
    """Return the relative standard error of the estimated live size; 1 if the sample is empty.

    The error has two parts: the error of the number of keys, and the error of the mean size of
    their last records. The error is 0 if every key is sampled.
    """
    if not len(samples):
        return 1.0
    return math.hypot(count_error(samples, counted), _error(samples, samples.size_variance()))


def count_error(samples: KeySamples, counted: MappedKeys | None) -> float:
    """Return the part of `live_error` that comes from the number of keys; 0 without a sample.

    A map of all keys would remove this part.
    """
    if not len(samples):
        return 0.0
    unknown = len(samples) if counted is None else counted.unknown(samples)
    return _error(samples, unknown / len(samples))


def _error(samples: KeySamples, variance: float) -> float:
    chance = 1 - 1 / (1 << samples.shift)
    return math.sqrt(chance * variance / len(samples))
