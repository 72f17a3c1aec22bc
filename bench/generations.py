"""Compares generational compaction with brute force, on real segments and in a model.

Both cleaners process the same log of 200-byte records. Each key occurs once, and then updates
follow, whose keys are uniform or distributed by Zipf's law. Both cleaners may use the same peak
space: twice the live size, with the active segment counted as full. Brute force cleans when one
more segment would exceed this peak space. The generational strategy decides after every roll
whether to clean. Bytes written are bytes of log files and of `compaction-statistics`. Bytes read
are the bytes that cleanings read to map, rewrite and sample segments. Files that await deletion,
and `.cleaned` files before their swap, don't count as space.

`./run bench compaction` includes these cases.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from bench.generations_model import (
    ModelLog,
    Sampling,
    Workload,
    brute_force,
    generational,
    greedy,
)
from bench.generations_yields import SamplingWithYields, by_yields
from bench.harness import Case
from tidelog.env import Env, ManualClock
from tidelog.record.builder import build_batch
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendTerms
from tidelog.types import NewRecord, TopicPartition

NAME = TopicPartition("keys", 0)
VALUE = b"v" * 176
BATCH_RECORDS = 64
FACTOR = 2.0
GOALS = {"zipf": "<= 0.47", "uniform": "<= 0.37"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a run over all updates.

    `peak` is the largest space that the log takes, divided by the live size. `segments` is the
    largest number of segments, divided by the number of segments that the live records fill.
    """

    written_bytes: int
    read_bytes: int
    peak: float
    segments: float


def drive(workload: Workload, scheduler: str) -> Figures:
    """Append all records, while `scheduler` decides on cleanings; return the figures."""
    path = tempfile.mkdtemp(prefix="tidelog-bench-")
    try:
        return _Drive(path, workload, scheduler).run()
    finally:
        shutil.rmtree(path)


class _Drive:
    """One run on real segments."""

    def __init__(self, path: str, workload: Workload, scheduler: str) -> None:
        self._workload = workload
        self._is_generational = scheduler == "generational"
        sample = build_batch([self._record(key) for key in range(BATCH_RECORDS)])
        self._record_bytes = len(sample) / BATCH_RECORDS
        self._live_bytes = workload.keys * self._record_bytes
        self._segment_bytes = int(self._live_bytes / workload.segments)
        options = LogDirOptions(create=True)
        self._env = Env(clock=ManualClock(1_700_000_000_000))
        self._dir = LogDir.open(path, env=self._env, options=options)
        config = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": str(self._segment_bytes),
            "file.delete.delay.ms": "0",
            "tidelog.compaction.scheduler": scheduler,
            "tidelog.compaction.space.factor": str(workload.factor),
        }
        self._dir.create_topic(NAME.topic, config=config)
        self._log = self._dir.log(NAME.topic, 0)
        self._written = self._read = 0

    def _record(self, key: int) -> NewRecord:
        return NewRecord(key=key.to_bytes(8, "big"), value=VALUE, timestamp=1_700_000_000_000)

    def run(self) -> Figures:
        peak = segments = 0.0
        keys = self._workload.draw().tolist()
        count = 0
        for at in range(0, len(keys), BATCH_RECORDS):
            batch = build_batch([self._record(key) for key in keys[at : at + BATCH_RECORDS]])
            self._log.append_batches(batch, AppendTerms(owned=True))
            if len(self._log.segments) != count:
                peak = max(peak, self._space())
                self._clean()
                count = len(self._log.segments)
                segments = max(segments, count * self._segment_bytes / self._live_bytes)
        self._dir.close()
        return Figures(self._written, self._read, peak / self._live_bytes, segments)

    def _space(self) -> float:
        return sum(each.size_bytes for each in self._log.segments)

    def _clean(self) -> None:
        self._log.flush()
        is_full = self._space() + self._segment_bytes > self._workload.factor * self._live_bytes
        if not (self._is_generational or is_full):
            return
        options = CleanerOptions(is_asked=not self._is_generational)
        report = clean_partition(self._dir, NAME, InProcess(self._env), options)
        self._written += report.bytes_written
        self._read += report.bytes_read


def cases_of(quick: bool) -> Iterator[Case]:
    """Yield the cases of both distributions of keys.

    Each run is executed only once.
    """
    keys, segments, rounds = (16_384, 32, 8) if quick else (65_536, 64, 30)
    run = cache(drive)
    for kind, goal in GOALS.items():
        work = Workload(kind=kind, keys=keys, segments=segments, rounds=rounds, factor=FACTOR)
        yield _case(f"bytes written, {kind}", work, run, "written_bytes", "" if quick else goal)
        yield _case(f"bytes read, {kind}", work, run, "read_bytes", "")
        space = f"ours <= {work.factor}"
        yield _space_case("peak space, live sizes", work, run, "peak", space)
        count = "segments, for each that the live bytes fill"
        yield _space_case(count, work, run, "segments", "ours <= 8")
        yield from _model_cases(work)


def _case(name: str, work: Workload, run: object, field: str, goal: str) -> Case:
    assert callable(run)
    return Case(
        case=f"generational, {work.rounds} rounds: {name}",
        unit="bytes",
        ours=lambda: float(getattr(run(work, "generational"), field)),
        rival=lambda: float(getattr(run(work, "brute-force"), field)),
        rival_name="brute force at the same peak",
        goal=goal,
        note="log files and statistics; reads count mapping, rewriting and sampling",
    )


def _space_case(name: str, work: Workload, run: object, field: str, goal: str) -> Case:
    assert callable(run)
    return Case(
        case=f"generational, {work.kind}: {name}",
        unit="x",
        ours=lambda: float(getattr(run(work, "generational"), field)),
        goal=goal,
    )


def _model_cases(work: Workload) -> Iterator[Case]:
    """Yield the model's figures for the same kind of updates, for each scheduler of the model."""
    small = Workload(kind=work.kind, keys=4096, segments=32, rounds=work.rounds, factor=FACTOR)
    brute = ModelLog(small).run(brute_force)
    schedulers = (
        ("told what is alive", generational),
        ("greedy, exact", greedy),
        ("a sample of keys", Sampling(0)),
        ("a sample and yields", SamplingWithYields(0)),
        ("yields alone", by_yields()),
    )
    for name, scheduler in schedulers:
        found = ModelLog(small).run(scheduler)
        yield Case(
            case=f"model, {work.kind}, {name}: written",
            unit="live sizes",
            ours=partial(float, found.written),
            rival=partial(float, brute.written),
            rival_name="brute force",
            note=f"{found.read_total:.0f} live sizes read, brute force {brute.read_total:.0f}",
        )


__all__ = ["Figures", "cases_of", "drive"]


def curve(kind: str) -> dict[float, tuple[float, float]]:
    """Return the model's bytes written and bytes read, per byte appended, for each space factor."""
    found = {}
    for factor in np.arange(1.2, 4.1, 0.4).tolist():
        work = Workload(kind=kind, keys=4096, segments=32, rounds=20, factor=factor)
        made = ModelLog(work).run(generational)
        found[factor] = (made.written / work.rounds, made.read_total / work.rounds)
    return found
