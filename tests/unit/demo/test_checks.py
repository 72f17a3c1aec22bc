"""The comparisons of the demo detect differences."""

import pandas as pd
import pytest
from examples.demo.questions import Checks, day_by_pandas, same_frames

FRAME = pd.DataFrame({"hour": [5, 6], "late": [0.1 + 0.2, float("nan")], "origin": ["A", "B"]})


def test_equal_figures_are_lines() -> None:
    checks = Checks()
    assert checks.equal("rows", 3, 3)
    assert (checks.lines, checks.failed) == (["rows: equal"], [])


def test_different_figures_are_kept_with_both_values() -> None:
    checks = Checks()
    assert not checks.equal("rows", 3, 4)
    assert not checks.frames_equal("table", FRAME, FRAME.head(1))
    assert checks.lines[0] == "rows: DIFFERENT: the log says 3, the source 4"
    assert checks.failed == checks.lines


def test_frames_are_equal_to_rounding() -> None:
    assert same_frames(FRAME, FRAME.assign(late=[0.3, float("nan")]))


@pytest.mark.parametrize(
    "other",
    [
        FRAME.assign(late=[0.31, float("nan")]),
        FRAME.assign(late=[0.3, 0.0]),
        FRAME.assign(hour=[5, 7]),
        FRAME.assign(origin=["A", "C"]),
        FRAME.head(1),
        FRAME.rename(columns={"hour": "minute"}),
        FRAME[["late", "hour", "origin"]],
    ],
)
def test_frames_that_differ(other: pd.DataFrame) -> None:
    assert not same_frames(FRAME, other)


def test_a_day_is_summarized_by_hour_and_airport() -> None:
    frame = pd.DataFrame(
        {
            "due_ms": [0, 1, 2, 9_999],
            "left_ms": [60_000, 180_001, 2, 9_999],
            "dep_delay": [1.0, 3.0, None, 0.0],
            "origin": ["A", "A", "A", "A"],
            "hour": [1, 1, 1, 1],
            "local_hour": [2, 2, 2, 2],
        }
    )
    (row,) = day_by_pandas(frame, 0, 9_999).to_dict("records")
    assert row == {
        "hour": 2,
        "origin": "A",
        "departures": 2,
        "cancelled": 1,
        "delay_p50": 2.0,
        "delay_p90": pytest.approx(2.8),
        "late_p50": 2.0,
        "late_p90": pytest.approx(2.8),
        "late_max": 3.0,
        "disagreeing": 0,
    }
