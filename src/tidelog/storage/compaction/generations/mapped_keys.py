"""How many keys there are: what a cleaning's offset map has counted holds the sample to account.

The sample says that there are `samples << shift` keys, off by the luck of the draw: some 1 % for
8,192 samples. But every cleaning maps the keys of a range of offsets, and knows their exact number.
The sample's own number for that range, at that time, shows how lucky its draw was among those
keys. A key is in the sample or not for good, so the difference holds for as long as the keys do:
what remains uncertain are keys that were not in the map, and those that are gone since.

    keys = samples << shift  +  (counted - sampled << shift)

Source: the difference estimator of survey sampling. Pure.
"""

import math
from dataclasses import dataclass

from tidelog.storage.compaction.generations.samples import KeySamples


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
    found = len(samples) << samples.shift
    return max((found + counted.keys - (counted.sampled << samples.shift)) / found, 0.0)


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
