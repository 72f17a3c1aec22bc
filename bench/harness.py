"""Measures cases: tidelog's side and a rival in turn, with medians of at least five rounds.

A case's `ours` and `rival` are callables that do the work once and return the amount of work. The
case's unit decides how this number is used:

- `.../s` (records/s, MB/s): work per second of elapsed time, higher is better;
- `s`, `ms`, `us`: elapsed time per piece of work, lower is better;
- any other unit (bytes, rows): the figure is the number itself, independent of the time.

`ratio` is always ours / rival. A goal limits this ratio, or tidelog's figure in the case's unit. A
goal for the ratio is written `>= X` or `<= X`, optionally with `ratio` before it. A goal for
tidelog's figure is written `ours >= X` or `ours <= X`. Results also have CPU time and peak memory.
CPU time is the time of this process and of the children that it has waited for. Peak memory is the
amount by which one call raises the resident set; outside Linux, peak memory is None. CPU time and
peak memory don't include a long-lived child such as Spark's JVM. Callables that are shorter than
`ROUND_SECONDS` run several times per round, unless the case has `prepare`.
"""

import gc
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

Work = Callable[[], float]

ROUNDS: Final = 9
ROUNDS_QUICK: Final = 5
ROUND_SECONDS: Final = 0.2
ROUND_SECONDS_QUICK: Final = 0.05
LOOPS_MAX: Final = 1_000_000

_SECONDS_PER_UNIT: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_GOAL: Final = re.compile(r"(?P<what>ratio|ours)?\s*(?P<sign><=|>=)\s*(?P<limit>[0-9][0-9_.e+-]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement.

    Attributes:
        case: Name of the work, e.g. `decode 100-byte records, all columns`.
        unit: Unit of the figure, which decides how the callables' results are used (see the
            module).
        ours: Does tidelog's work once; returns the amount of work.
        rival: Does the same work by other means; None without a rival.
        rival_name: Name and version of the rival, e.g. `aiokafka 0.14.0`.
        goal: Goal for the ratio or the figure (see the module); empty for none.
        note: Conditions that a reader needs to judge the figure.
        prepare: Function that is called before every measured call, without being timed. If a case
            has `prepare`, each side is called once per round.
    """

    case: str
    unit: str
    ours: Work
    rival: Work | None = None
    rival_name: str = ""
    goal: str = ""
    note: str = ""
    prepare: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of two clocks in seconds: elapsed time since a fixed moment, and CPU time."""

    wall_s: float
    cpu_s: float


def read_clocks() -> Reading:
    """Return elapsed time and CPU time; CPU time includes finished children."""
    children = os.times()
    cpu_s = time.process_time() + children.children_user + children.children_system
    return Reading(time.perf_counter(), cpu_s)


@dataclass(frozen=True, slots=True)
class Side:
    """Medians over the rounds, of tidelog or of its rival in a case. Seconds are per call."""

    value: float
    value_min: float
    value_max: float
    wall_s: float
    cpu_s: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """A case with its figures."""

    case: Case
    ours: Side
    rival: Side | None

    @property
    def ratio(self) -> float | None:
        """Ours / rival; None without a rival or if the rival's figure is 0."""
        if self.rival is None or not self.rival.value:
            return None
        return self.ours.value / self.rival.value

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        return is_met(self.case.goal, ours=self.ours.value, ratio=self.ratio)


def is_met(goal: str, *, ours: float, ratio: float | None) -> bool | None:
    """Return whether the figures reach a goal; None if the goal is empty.

    Raises:
        ValueError: The goal is malformed, or the goal is for the ratio and the case has no rival.
    """
    if not goal:
        return None
    parts = _GOAL.fullmatch(goal.strip())
    if parts is None:
        raise ValueError(f"goal {goal!r}: want '>= X', '<= X', 'ours >= X' or 'ours <= X'")
    figure = ours if parts["what"] == "ours" else ratio
    if figure is None:
        raise ValueError(f"goal {goal!r} is about a ratio, and the case has no rival")
    limit = float(parts["limit"])
    return figure >= limit if parts["sign"] == ">=" else figure <= limit


def to_value(unit: str, work: float, wall_s: float) -> float:
    """Return the figure of one call in the case's unit (see the module)."""
    if unit.endswith("/s"):
        return work / wall_s if wall_s else math.inf
    if unit in _SECONDS_PER_UNIT:
        return wall_s / _SECONDS_PER_UNIT[unit] / work
    return work


class Harness:
    """Measures cases one by one. The clocks are an argument, so that tests can control the time."""

    def __init__(
        self,
        *,
        quick: bool,
        clocks: Callable[[], Reading] = read_clocks,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._rounds = ROUNDS_QUICK if quick else ROUNDS
        self._round_s = ROUND_SECONDS_QUICK if quick else ROUND_SECONDS
        self._clocks = clocks
        self._collect = collect

    def run(self, cases: Iterable[Case]) -> Iterator[Result]:
        """Measure the cases; a generator may create and remove data around its yields."""
        for case in cases:
            # raises ValueError for a malformed goal before the work
            is_met(case.goal, ours=0.0, ratio=0.0)
            yield self.measure(case)

    def measure(self, case: Case) -> Result:
        """Warm up, then measure rounds of tidelog's side and of the rival in turn."""
        ours = self._runner(case, case.ours)
        rival = self._runner(case, case.rival) if case.rival else None
        for _ in range(self._rounds):
            ours.one_round()
            if rival:
                rival.one_round()
        return Result(case, ours.side(), rival.side() if rival else None)

    def _runner(self, case: Case, work: Work) -> "_Runner":
        runner = _Runner(case, work, self._clocks, self._collect)
        runner.warm_up(self._round_s)
        return runner


class _Runner:
    """Calls and measures tidelog or its rival in a case.

    The first call is not counted, because it compiles code and fills caches. From the second call,
    the runner computes how many calls fit into a round, and measures the memory of a call.
    """

    def __init__(
        self,
        case: Case,
        work: Work,
        clocks: Callable[[], Reading],
        collect: Callable[[], object],
    ) -> None:
        self._case, self._work, self._clocks, self._collect = case, work, clocks, collect
        self._values: list[float] = []
        self._wall: list[float] = []
        self._cpu: list[float] = []
        self._loops = 1
        self._peak_bytes: int | None = None

    def warm_up(self, round_s: float) -> None:
        self._call()
        with _PeakMemory() as memory:
            seconds = self._call()[1]
        self._peak_bytes = memory.peak_bytes
        if self._case.prepare is None and seconds < round_s:
            self._loops = min(LOOPS_MAX, math.ceil(round_s / max(seconds, 1e-7)))

    def _call(self) -> tuple[float, float, float]:
        """Do the work `_loops` times; return its amount, and the elapsed and the CPU seconds."""
        if self._case.prepare:
            self._case.prepare()
        self._collect()
        done = 0.0
        start = self._clocks()
        for _ in range(self._loops):
            done += self._work()
        end = self._clocks()
        return done, end.wall_s - start.wall_s, end.cpu_s - start.cpu_s

    def one_round(self) -> None:
        done, wall_s, cpu_s = self._call()
        timed = self._case.unit.endswith("/s") or self._case.unit in _SECONDS_PER_UNIT
        work = done if timed else done / self._loops
        self._values.append(to_value(self._case.unit, work, wall_s))
        self._wall.append(wall_s / self._loops)
        self._cpu.append(cpu_s / self._loops)

    def side(self) -> Side:
        values = self._values
        return Side(
            median(values),
            min(values),
            max(values),
            median(self._wall),
            median(self._cpu),
            self._peak_bytes,
        )


class _PeakMemory:
    """Measures the rise of the resident set in a block (Linux: VmHWM, reset at its start)."""

    peak_bytes: int | None = None

    def __enter__(self) -> "_PeakMemory":
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _status_bytes("VmRSS")
        except OSError:
            self._before = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            high = _status_bytes("VmHWM")
            self.peak_bytes = None if high is None else max(high - self._before, 0)


def _status_bytes(name: str) -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
