"""Statistics of yields for generational compaction, in the model of a compacted log.

tidelog's storage does not use yields. It uses a sample of keys, because the results with a sample
were better: see docs/generations.md#yields-as-statistics.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bench.generations_model import ModelLog, Piece, Sampling, Scheduler, carry_out
from tidelog.storage.compaction.generations.estimates import PRIOR_SAMPLES


class Yields:
    """Yields of earlier cleanings, and predictions from these yields.

    If a cleaning leaves a fraction p of a segment, and d records were appended to the log since the
    segment's previous cleaning (or since its base offset), the segment's records became garbage at
    a rate of -ln(p) / d. As in the storage's scheduler, this rate is expected to fall with the
    segment's age, in proportion to 1 / (age + 2L), where L is the number of keys. A segment that
    was never cleaned is expected to have the yield that segments of similar age had at their first
    cleaning.
    """

    KEPT = 32

    def __init__(self) -> None:
        # maps a segment's base offset to rate and age
        self._rates: dict[int, tuple[float, float]] = {}
        self._first: list[tuple[float, float]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no cleaning has been observed."""
        return not self._first and not self._rates

    def parts(self, log: ModelLog) -> list[float]:
        """Return the expected live fraction of each segment."""
        return [self._part(log, piece) for piece in log.pieces]

    def _part(self, log: ModelLog, piece: Piece) -> float:
        passed = log.end - max(piece.cleaned_to, piece.base)
        age = log.end - piece.base - passed / 2
        known = self._rates.get(piece.base)
        if piece.cleaned_to == piece.base:
            near = sorted(self._first, key=lambda one: abs(one[1] - age))[:4]
            if not near:
                return 1.0
            known = sum(rate for rate, _ in near) / len(near), sum(at for _, at in near) / len(near)
        if known is None:
            return 1.0
        rate, at = known
        old = 2 * log.workload.keys
        return float(np.exp(-rate * (at + old) / (age + old) * passed))

    def learn(self, log: ModelLog, before: Mapping[int, Piece]) -> None:
        """Update the statistics after a cleaning; `before` has all segments before the cleaning."""
        gone = sorted(before.values(), key=lambda piece: piece.base)
        bases = [piece.base for piece in log.pieces] + [log.end]
        for piece, end in zip(log.pieces, bases[1:], strict=True):
            if id(piece) in before:
                continue
            old = [each for each in gone if piece.base <= each.base < end]
            size = sum(each.size for each in old)
            passed = sum((log.end - each.cleaned_to) * each.size for each in old) / size
            if passed:
                rate = -np.log(max(piece.size / size, 0.01)) / passed
                mean = sum(each.base * each.size for each in old) / size
                seen = float(rate), log.end - mean - passed / 2
                self._rates[piece.base] = seen
                if len(old) == 1 and old[0].cleaned_to == old[0].base:
                    self._first = [*self._first, seen][-self.KEPT :]


def by_yields() -> Scheduler:
    """Return the storage's scheduler with live sizes estimated from yields alone.

    The estimates are scaled to the exact live size of the whole log, because yields don't provide
    this size. Yields come from the scheduler's cleanings, and from cleanings of the whole log when
    it is full.
    """
    yields = Yields()

    def clean(log: ModelLog) -> None:
        before = {id(piece): piece for piece in log.pieces}
        live = [p * each.size for p, each in zip(yields.parts(log), log.pieces, strict=True)]
        total = sum(log.live(piece) for piece in log.pieces)
        live = [one * total / sum(live) for one in live]
        if not carry_out(log, live, live, (0.0, 0.0)) and log.is_full:
            log.clean([(piece.base,) for piece in log.pieces], 0)
        if any(id(piece) not in before for piece in log.pieces) or len(before) != len(log.pieces):
            yields.learn(log, before)

    return clean


class SamplingWithYields(Sampling):
    """Sampling scheduler whose predictions come from the yields of earlier cleanings.

    The scheduler `Sampling` predicts from the samples of neighboring segments instead.
    """

    def __init__(self, shift: int, seed: int = 0, prior: int = PRIOR_SAMPLES) -> None:
        super().__init__(shift, seed)
        self._yields = Yields()
        self._prior = prior

    def _live(self, log: ModelLog, counts: Sequence[tuple[int, int]]) -> list[float]:
        live = super()._live(log, counts)
        if self._yields.is_empty:
            return live
        shift, found = self._samples.shift, []
        prior = self._prior << shift
        for piece, (_, size), part, other in zip(
            log.pieces, counts, self._yields.parts(log), live, strict=True
        ):
            weight = piece.weight
            if piece.cleaned_to == piece.base or not weight:
                found.append(other)
                continue
            share = ((size << shift) + prior * part) / (weight + prior)
            found.append(min(share, 1.0) * piece.size)
        return found

    def _weigh(self, log: ModelLog, before: Mapping[int, Piece]) -> None:
        super()._weigh(log, before)
        self._yields.learn(log, before)


__all__ = ["SamplingWithYields", "by_yields"]
