"""A model of a compacted log with integers as keys, which computes traffic and space.

All records have size 1. Space and traffic (bytes written and read) are multiples of the log's live
size. A cleaning follows the rules of tidelog's storage: a map has the last offsets of the keys in
[from, to), and the records that these offsets supersede are removed in place. Neighboring segments
that are rewritten together may be merged. The module has four schedulers: the storage's scheduler
with exact counts of live records, the storage's scheduler with a sample of keys, brute force, and a
greedy choice with exact counts.

The log begins with each key once, in random order. Updates follow, whose keys are drawn from a
distribution.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidelog.storage.compaction.generations import SegmentFacts
from tidelog.storage.compaction.generations.estimates import (
    KeySamples,
    MappedKeys,
    SegmentEstimate,
    better,
    correction,
    count_error,
    live_bytes,
    live_error,
)
from tidelog.storage.compaction.generations.planning import Demand, after_cleaning, plan_generation

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Records that are appended to the log: each key once, and then updates.

    Attributes:
        kind: `zipf` (exponent 1.0) or `uniform`.
        keys: Number of keys, which is the live size in records.
        segments: Number of segments that the live size fills.
        rounds: Size of the updates that follow, as a multiple of the live size.
        factor: Limit of the log's space, in live sizes.
        seed: Seed of the draws.
    """

    kind: str
    keys: int = 8192
    segments: int = 64
    rounds: int = 30
    factor: float = 2.0
    seed: int = 1

    def draw(self) -> Longs:
        """Return the keys of all records, in order."""
        random = np.random.default_rng(self.seed)
        first = random.permutation(self.keys)
        count = self.keys * self.rounds
        if self.kind == "uniform":
            rest = random.integers(0, self.keys, count)
        else:
            weights = np.cumsum(1 / np.arange(1, self.keys + 1))
            ranks = np.searchsorted(weights, random.random(count) * weights[-1])
            rest = random.permutation(self.keys)[ranks]
        return np.concatenate([first, rest]).astype(np.int64)


@dataclass(slots=True)
class Piece:
    """A finished segment."""

    base: int
    keys: Longs
    offsets: Longs
    cleaned_to: int
    number: int
    weight: int

    @property
    def size(self) -> int:
        return len(self.keys)


@dataclass(slots=True)
class Outcome:
    """Figures of a run, in live sizes unless stated otherwise.

    `peak` is a fraction of the space limit. `segments_peak` is the largest number of segments,
    divided by the number of segments that the live size fills. `runs` is the number of cleanings.
    """

    written: float = 0.0
    read: float = 0.0
    mapped: float = 0.0
    sampled: float = 0.0
    peak: float = 0.0
    segments_peak: float = 0.0
    runs: int = 0

    @property
    def read_total(self) -> float:
        return self.read + self.mapped + self.sampled


Scheduler = Callable[["ModelLog"], None]


class ModelLog:
    """Model of the log.

    Before each new segment, the log calls the scheduler until the log size is stable.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.stream = workload.draw()
        self.segment = workload.keys // workload.segments
        self.bound = workload.factor * workload.keys
        self.end = 0
        self.pieces: list[Piece] = []
        self.latest: Longs = np.full(workload.keys, -1, np.int64)
        self._home: Longs = np.full(workload.keys, -1, np.int64)
        self._live: Longs = np.zeros(len(self.stream) // self.segment + 1, np.int64)
        self.found = Outcome()
        self.mapped_to = self.mapped_from = self.mapped_keys = 0

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def is_full(self) -> bool:
        """Whether the log would exceed its space limit with one more segment."""
        return self.size + self.segment > self.bound

    def live(self, piece: Piece) -> int:
        """Return the number of a segment's records that are the last records of their keys."""
        return int(self._live[piece.number])

    def run(self, scheduler: Scheduler) -> Outcome:
        """Append all records; return the figures."""
        while self.end < len(self.stream):
            before = -1
            while self.size != before:
                before = self.size
                scheduler(self)
            self.found.peak = max(self.found.peak, (self.size + self.segment) / self.bound)
            self._append()
            count = len(self.pieces) / self.workload.segments
            self.found.segments_peak = max(self.found.segments_peak, count)
        return self.found

    def _append(self) -> None:
        keys = self.stream[self.end : self.end + self.segment]
        offsets = np.arange(self.end, self.end + len(keys), dtype=np.int64)
        number = self.end // self.segment
        last, first = np.unique(keys[::-1], return_index=True)
        homes = self._home[last]
        np.subtract.at(self._live, homes[homes >= 0], 1)
        self.latest[last] = offsets[len(keys) - 1 - first]
        self._home[last] = number
        self._live[number] = len(last)
        self.pieces.append(Piece(self.end, keys, offsets, self.end, number, len(keys)))
        self.end += len(keys)

    def clean(self, groups: Sequence[tuple[int, ...]], map_from: int) -> None:
        """Rewrite each group of segments, given by base offsets, into one segment."""
        unit = self.workload.keys
        self.found.runs += 1
        mapped = sum(piece.size for piece in self.pieces if piece.base >= map_from)
        self.found.mapped += mapped / unit
        self.mapped_from, self.mapped_keys = map_from, int((self.latest >= map_from).sum())
        first = {bases[0]: bases for bases in groups}
        inside = {base for bases in groups for base in bases}
        by_base = {piece.base: piece for piece in self.pieces}
        left: list[Piece] = []
        for piece in self.pieces:
            if piece.base in first:
                made = self._rewrite([by_base[base] for base in first[piece.base]], map_from)
                if made.size:
                    left.append(made)
            elif piece.base not in inside:
                left.append(piece)
        self.pieces, self.mapped_to = left, self.end

    def _rewrite(self, pieces: Sequence[Piece], map_from: int) -> Piece:
        unit, number = self.workload.keys, pieces[0].number
        self.found.read += sum(piece.size for piece in pieces) / unit
        keys = np.concatenate([piece.keys for piece in pieces])
        offsets = np.concatenate([piece.offsets for piece in pieces])
        latest = self.latest[keys]
        stays = ~((latest > offsets) & (latest >= map_from))
        keys, offsets = keys[stays], offsets[stays]
        self.found.written += len(keys) / unit
        for piece in pieces:
            self._live[piece.number] = 0
        is_last = self.latest[keys] == offsets
        self._home[keys[is_last]] = number
        self._live[number] = int(is_last.sum())
        proven = min(after_cleaning(piece.cleaned_to, map_from, self.end) for piece in pieces)
        return Piece(pieces[0].base, keys, offsets, proven, number, len(keys))


def brute_force(log: ModelLog) -> None:
    """Rewrite all segments, like Kafka, when one more segment would exceed the space limit."""
    if log.is_full:
        log.clean([(piece.base,) for piece in log.pieces], log.mapped_to)


def greedy(log: ModelLog) -> None:
    """If the log is full, clean the segments with the most garbage per live byte, each separately.

    This scheduler knows the exact count of live records in each segment.
    """
    if not log.is_full:
        return
    order = sorted(log.pieces, key=lambda p: (p.size - log.live(p)) / max(log.live(p), 0.1))
    needed, taken = log.size + log.segment - log.bound, []
    while needed > 0 and order:
        taken.append(order.pop())
        needed -= taken[-1].size - log.live(taken[-1])
    bases = sorted(piece.base for piece in taken)
    log.clean([(base,) for base in bases], min(piece.cleaned_to for piece in taken))


def facts(log: ModelLog, live: Sequence[float], counted: Sequence[float]) -> list[SegmentFacts]:
    """Return facts on the log's segments, as the storage's scheduler needs them."""
    ends = [*(piece.base for piece in log.pieces), log.end][1:]
    return [
        SegmentFacts(
            base_offset=piece.base,
            end_offset=end,
            size_bytes=piece.size,
            cleaned_to=piece.cleaned_to,
            live_bytes=min(found, piece.size),
            sum_bytes=total,
            keys=total,
            records=piece.size,
        )
        for piece, end, found, total in zip(log.pieces, ends, live, counted, strict=True)
    ]


def _demand(log: ModelLog, error: float, count_error: float) -> Demand:
    return Demand(
        cleanable_end=log.end,
        active_bytes=0,
        segment_bytes=log.segment,
        space_factor=log.workload.factor,
        live_error=error,
        count_error=count_error,
    )


def generational(log: ModelLog) -> None:
    """Run the storage's scheduler with exact live sizes."""
    live = [float(log.live(piece)) for piece in log.pieces]
    carry_out(log, live, live, (0.0, 0.0))


class Sampling:
    """The storage's scheduler, with estimates from a sample of keys. `seed` selects the sample."""

    def __init__(self, shift: int, seed: int = 0) -> None:
        self._seed = seed
        self._samples = KeySamples(shift)
        self._read_to = 0
        self._counted: MappedKeys | None = None

    def __call__(self, log: ModelLog) -> None:
        for piece in log.pieces:
            if piece.base >= self._read_to:
                hashes = _scramble(piece.keys, self._seed).tolist()
                self._samples.add(
                    (h, o, 1) for h, o in zip(hashes, piece.offsets.tolist(), strict=True)
                )
                self._read_to = piece.base + 1
                log.found.sampled += piece.size / log.workload.keys
        bases = [piece.base for piece in log.pieces]
        counts = self._samples.count(bases)
        shift = self._samples.shift
        live = self._live(log, counts)
        before = {id(piece): piece for piece in log.pieces}
        whole = correction(self._samples, self._counted)
        counted = [(size << shift) * whole for _, size in counts]
        errors = [error(self._samples, self._counted) for error in (live_error, count_error)]
        if carry_out(log, live, counted, errors):
            self._count(log)
            self._weigh(log, before)

    def _live(self, log: ModelLog, counts: Sequence[tuple[int, int]]) -> list[float]:
        shift = self._samples.shift
        return live_bytes(
            [
                SegmentEstimate(
                    size_bytes=piece.size,
                    cohort=-1 if piece.cleaned_to == piece.base else piece.cleaned_to,
                    keys=keys,
                    sampled_bytes=size << shift,
                    weight_bytes=piece.weight or -1,
                )
                for piece, (keys, size) in zip(log.pieces, counts, strict=True)
            ]
        )

    def _count(self, log: ModelLog) -> None:
        sampled = self._samples.count_between(log.mapped_from, log.end)
        new = MappedKeys(shift=self._samples.shift, keys=log.mapped_keys, sampled=sampled)
        self._counted = better(self._counted, new, self._samples)

    def _weigh(self, log: ModelLog, before: Mapping[int, Piece]) -> None:
        counts = self._samples.count([piece.base for piece in log.pieces])
        for piece, (_, size) in zip(log.pieces, counts, strict=True):
            if id(piece) not in before and piece.cleaned_to == log.end:
                piece.weight = size << self._samples.shift


def _scramble(keys: Longs, seed: int) -> Longs:
    """Return seeded hashes of integers. The low bits of the hashes are uniformly distributed."""
    words = (keys + (seed << 40)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0xD6E8FEB86659FD93)
    return (words >> np.uint64(20)).astype(np.int64)


def carry_out(
    log: ModelLog, live: Sequence[float], counted: Sequence[float], errors: Sequence[float]
) -> bool:
    """Clean the log if the plan is due; return whether the plan was due."""
    plan = plan_generation(facts(log, live, counted), _demand(log, *errors))
    if plan.is_due:
        log.clean([each.bases for each in plan.groups], plan.map_from)
    return plan.is_due


__all__ = [
    "ModelLog",
    "Outcome",
    "Piece",
    "Sampling",
    "Workload",
    "brute_force",
    "carry_out",
    "generational",
    "greedy",
]
