"""bench.harness computes figures, alternates rounds, and compares figures with goals."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import __main__ as command
from bench.harness import Case, Harness, Reading, Result, Side, is_met, to_value
from bench.report import as_json, human, markdown
from tests.worlds.needs import need


class Watch:
    """Clocks that only the work advances; CPU time advances at half the speed of wall time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> Reading:
        return Reading(self.now_s, self.now_s / 2)

    def work(self, seconds: float, done: float = 1.0) -> Callable[[], float]:
        def run() -> float:
            self.now_s += seconds
            return done

        return run


def measure(watch: Watch, case: Case) -> Result:
    return Harness(quick=True, clocks=watch, collect=lambda: None).measure(case)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("records/s", 50.0), ("MB/s", 50.0), ("s", 0.02), ("ms", 20.0), ("us", 20_000), ("B", 100)],
)
def test_the_unit_decides_how_a_figure_is_computed_from_work_and_time(
    unit: str, expected: float
) -> None:
    assert to_value(unit, 100.0, 2.0) == pytest.approx(expected)


def test_ratio_is_ours_over_rival() -> None:
    watch = Watch()
    case = Case(
        case="c", unit="x/s", ours=watch.work(1, 30), rival=watch.work(2, 30), rival_name="slow"
    )
    result = measure(watch, case)
    assert result.ours.value == pytest.approx(30)
    assert result.rival is not None
    assert result.rival.value == pytest.approx(15)
    assert result.ratio == pytest.approx(2)


def test_sides_alternate_after_two_calls_each() -> None:
    watch, calls = Watch(), list[str]()

    def note(name: str) -> Callable[[], float]:
        def run() -> float:
            calls.append(name)
            return watch.work(1)()

        return run

    measure(watch, Case(case="c", unit="x/s", ours=note("o"), rival=note("r"), rival_name="r"))
    assert "".join(calls) == "oorr" + "or" * 5


def test_short_work_is_repeated_and_its_figure_stays_per_piece() -> None:
    watch = Watch()
    result = measure(watch, Case(case="c", unit="us", ours=watch.work(10e-6)))
    assert result.ours.value == pytest.approx(10)
    assert result.ours.wall_s == pytest.approx(10e-6)
    assert watch.now_s > 5 * 0.05, "each round lasts as long as a round should"


def test_untimed_figure_does_not_grow_with_loops() -> None:
    watch = Watch()
    result = measure(watch, Case(case="c", unit="B", ours=watch.work(10e-6, 640)))
    assert result.ours.value == pytest.approx(640)


def test_prepare_runs_before_each_call_and_is_not_timed() -> None:
    watch, prepared = Watch(), list[float]()

    def prepare() -> None:
        watch.now_s += 100
        prepared.append(watch.now_s)

    result = measure(watch, Case(case="c", unit="s", ours=watch.work(1e-3), prepare=prepare))
    assert result.ours.value == pytest.approx(1e-3)
    assert len(prepared) == 2 + 5


def test_median_ignores_one_slow_round() -> None:
    watch, seconds = Watch(), iter([1.0] * 4 + [60.0] + [1.0] * 2)

    def run() -> float:
        return watch.work(next(seconds))()

    result = measure(watch, Case(case="c", unit="s", ours=run))
    assert result.ours.value == pytest.approx(1)
    assert result.ours.value_max == pytest.approx(60)


def test_cpu_time_stands_beside_wall_time() -> None:
    watch = Watch()
    side = measure(watch, Case(case="c", unit="s", ours=watch.work(4))).ours
    assert side.wall_s == pytest.approx(4)
    assert side.cpu_s == pytest.approx(2)


def test_peak_memory_includes_memory_freed_during_the_call() -> None:
    """The allocation is large enough to stand out from the process's other allocations."""
    need(sys.platform == "linux", "Linux, to reset the peak memory")

    def run() -> float:
        return float(len(bytearray(256 << 20)))

    peak = (
        Harness(quick=True, collect=lambda: None)
        .measure(Case(case="c", unit="B", ours=run))
        .ours.peak_bytes
    )
    assert peak is not None
    assert 240 << 20 < peak < 320 << 20


@pytest.mark.parametrize(
    ("goal", "ours", "ratio", "met"),
    [
        ("", 1, None, None),
        (">= 0.85", 1, 0.85, True),
        (">= 0.85", 1, 0.84, False),
        ("<= 1.5", 1, 1.6, False),
        ("ratio <= 1.5", 1, 1.5, True),
        ("ours >= 25e6", 25e6, None, True),
        ("ours >= 25_000_000", 24e6, 9.0, False),
    ],
)
def test_goal(goal: str, ours: float, ratio: float | None, met: bool | None) -> None:
    assert is_met(goal, ours=ours, ratio=ratio) is met


@pytest.mark.parametrize("goal", ["> 1", "fast", "rival >= 2", ">= 0.5"])
def test_goal_that_cannot_be_judged_is_an_error(goal: str) -> None:
    with pytest.raises(ValueError, match="goal"):
        is_met(goal, ours=1.0, ratio=None)


def test_json_has_the_fields_of_the_schema() -> None:
    side = Side(1.0, 0.9, 1.1, 0.5, 0.4, 1024)
    case = Case(case="c", unit="x/s", ours=lambda: 1.0, rival_name="r", goal="<= 0.5")
    run = json.loads(as_json("n", [Result(case, side, Side(4.0, 4, 4, 1, 1, None))], quick=True))
    assert set(run) == {"name", "date", "quick", "machine", "cases"}
    only = run["cases"][0]
    expected = {"case": "c", "unit": "x/s", "ours": 1.0, "rival": 4.0, "rival_name": "r"}
    expected |= {"ratio": 0.25, "goal": "<= 0.5", "met": True}
    assert {key: only[key] for key in expected} == expected
    assert only["ours_detail"]["cpu_s"] == 0.4


def test_the_table_shows_the_written_results() -> None:
    side = Side(46e6, 1, 1, 1, 1, None)
    alone = Case(case="alone", unit="rows/s", ours=lambda: 1.0, goal="ours >= 25e6")
    rivalled = Case(case="both", unit="s", ours=lambda: 1.0, rival_name="r 1.0")
    results = [Result(alone, side, None), Result(rivalled, side, Side(92e6, 1, 1, 1, 1, None))]
    rows = markdown([json.loads(as_json("n", results, quick=True))]).splitlines()
    assert rows[2] == "| n | alone | 46 M rows/s |  |  | ours >= 25e6 met |"
    assert rows[3] == "| n | both | 46 M s | r 1.0: 92 M s | 0.50x |  |"
    assert rows[-1] == "Quick runs: n."


def test_numbers_for_people() -> None:
    numbers = (None, 0.1234, 46_123_456, 2e9)
    assert [human(n, "records/s") for n in numbers] == ["-", "0.123", "46.1 M", "2 G"]
    units = ("MB", "MB per s", "ms (p99)", "GB/s", "us per transaction")
    assert {human(1224, unit) for unit in units} == {"1,220"}


def test_command_refuses_unknown_names_and_out_for_many(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["no-such-bench"], ["--out", "x.json"]):
        with pytest.raises(SystemExit):
            command.parse(arguments)
    assert "no benchmark named no-such-bench" in capsys.readouterr().err


def test_a_section_of_one_benchmark_can_be_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.parse(["broker", "--only", "start", "--only", "single"]).only == [
        "start",
        "single",
    ]
    for wrong in (["--only", "start"], ["broker", "--only", "nonsense"], ["decode", "--only", "x"]):
        with pytest.raises(SystemExit):
            command.parse(wrong)
    assert "broker has no section nonsense; have: start, throughput" in capsys.readouterr().err


def test_every_benchmark_can_be_loaded() -> None:
    assert all(callable(command.load(name)) for name in command.names())
    assert all(Path(command.HERE, f"{name}.py").exists() for name in command.names())
