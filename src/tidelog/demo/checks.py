"""Figures of the log against the same figures by pandas, straight from the source file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from tidelog.demo.flights import ZONE
from tidelog.demo.lookups import Crossing

# Percentiles lie between two whole minutes; both sides interpolate in floating point.
_TOLERANCE: Final = 1e-9


@dataclass(slots=True)
class Checks:
    """Compares figures, and remembers whether all were equal.

    Attributes:
        tell: Called with one line for each comparison.
        failed: What differed.
        count: How many comparisons there were.
    """

    tell: Callable[[str], None]
    failed: list[str] = field(default_factory=list)
    count: int = 0

    def equal(self, what: str, ours: object, expected: object) -> bool:
        """Compare two values, and say so."""
        return self._note(what, ours == expected, f"the log says {ours}, the source {expected}")

    def frames_equal(self, what: str, ours: pd.DataFrame, expected: pd.DataFrame) -> bool:
        """Compare two tables, row by row."""
        return self._note(what, same_frames(ours, expected), "the tables differ")

    def _note(self, what: str, is_equal: bool, difference: str) -> bool:
        self.count += 1
        if is_equal:
            self.tell(f"checked: {what}: equal")
        else:
            self.failed.append(what)
            self.tell(f"checked: {what}: DIFFERENT: {difference}")
        return is_equal


def same_frames(ours: pd.DataFrame, expected: pd.DataFrame) -> bool:
    """Whether two tables have the same columns and, to rounding, the same values."""
    if list(ours.columns) != list(expected.columns) or len(ours) != len(expected):
        return False
    for name in expected.columns:
        left, right = ours[name].to_numpy(), expected[name].to_numpy()
        if left.dtype.kind in "if" and right.dtype.kind in "if":
            close = np.isclose(
                left.astype(float), right.astype(float), atol=_TOLERANCE, equal_nan=True
            )
            if not close.all():
                return False
        elif list(left) != list(right):
            return False
    return True


def read_by_pandas(path: Path) -> pd.DataFrame:
    """The source file by pandas alone, with both times of each flight in ms and its local hour."""
    frame = pd.read_csv(path)
    minutes = frame["sched_dep_time"] // 100 * 60 + frame["sched_dep_time"] % 100
    wall = pd.to_datetime(frame[["year", "month", "day"]]) + pd.to_timedelta(minutes, unit="m")
    due = wall.dt.tz_localize(ZONE)
    left = due + pd.to_timedelta(frame["dep_delay"].fillna(0), unit="m")
    return frame.assign(local_hour=wall.dt.hour, due_ms=_millis(due), left_ms=_millis(left))


def _millis(times: "pd.Series[pd.Timestamp]") -> "pd.Series[int]":
    since = times - pd.Timestamp(0, tz="UTC")
    return since // pd.Timedelta(milliseconds=1)


def day_by_pandas(frame: pd.DataFrame, start_ms: int, end_ms: int) -> pd.DataFrame:
    """What `sparkjob.by_hour_and_airport` must give for the flights due in [start, end)."""
    day = frame[(frame["due_ms"] >= start_ms) & (frame["due_ms"] < end_ms)]
    day = day.assign(late=(day["left_ms"] - day["due_ms"]) / 60_000)
    day["late"] = day["late"].where(day["dep_delay"].notna())
    groups = day.rename(columns={"hour": "scheduled_hour", "local_hour": "hour"}).groupby(
        ["hour", "origin"]
    )
    found = pd.DataFrame(
        {
            "departures": groups["dep_delay"].count(),
            "cancelled": groups["dep_delay"].size() - groups["dep_delay"].count(),
            "delay_p50": groups["dep_delay"].quantile(0.5),
            "delay_p90": groups["dep_delay"].quantile(0.9),
            "late_p50": groups["late"].quantile(0.5),
            "late_p90": groups["late"].quantile(0.9),
            "late_max": groups["late"].max(),
        }
    )
    return found.assign(disagreeing=0).reset_index()


def crossing_by_pandas(frame: pd.DataFrame, at_ms: int, start_ms: int, end_ms: int) -> Crossing:
    """What `lookups.count_crossing` must give."""
    due, left = frame["due_ms"], frame["left_ms"]
    left_after = (left >= at_ms) & (left < end_ms)
    return Crossing(
        int(((due >= start_ms) & (due < at_ms) & left_after).sum()),
        int(((due >= at_ms) & (due < end_ms) & (left < at_ms)).sum()),
    )
