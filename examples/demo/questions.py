"""The demo's queries: lookups on both clocks, the last flight of each aircraft, and checks.

To find the last flight of each aircraft as of a date, the demo reads a compacted topic as a table.
The checks compare the log's figures with pandas' figures from the source file.
"""

import json
import subprocess
import sys
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from examples.demo.flights import FLIGHTS_TOPIC, ZONE, Flights, Ints, Longs, record_table

import tidelog
from tidelog.env import Env, ManualClock
from tidelog.errors import InexactTable
from tidelog.lazy_dataclass import dataclass
from tidelog.record.kernels.compiler import is_cached
from tidelog.record.kernels.key_map import map_batches
from tidelog.types import ClockName, OffsetAndTimestamp

if TYPE_CHECKING:
    from subprocess import Popen

    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Results of a lookup on both clocks in one partition.

    Attributes:
        partition: Index of the partition.
        record: First offset of a flight scheduled at the requested time or later.
        append: First offset of a flight that departed at the requested time or later.
    """

    partition: int
    record: OffsetAndTimestamp
    append: OffsetAndTimestamp


@dataclass(frozen=True, slots=True)
class Crossing:
    """Counts of a day's flights that only one of the two clocks places before a moment.

    Attributes:
        due_before_left_after: Number of flights that were scheduled before the moment, and departed
            at the moment or later.
        due_after_left_before: Number of flights that were scheduled for the moment or later, and
            departed before the moment.
    """

    due_before_left_after: int
    due_after_left_before: int


def look_up(path: str, at_ms: int) -> list[Answer]:
    """Look up a time on both clocks in each partition."""
    with tidelog.open(path) as directory:
        record = directory.offsets_at(FLIGHTS_TOPIC, at_ms, clock=ClockName.RECORD)
        append = directory.offsets_at(FLIGHTS_TOPIC, at_ms, clock=ClockName.APPEND)
    return [
        Answer(partition=name.partition, record=_existing(match), append=_existing(append[name]))
        for name, match in record.items()
    ]


def _existing(match: OffsetAndTimestamp | None) -> OffsetAndTimestamp:
    assert match is not None  # there are flights after every time that the demo looks up
    return match


def count_crossing(path: str, at_ms: int, start_ms: int, end_ms: int) -> Crossing:
    """Count the flights of a `Crossing` within [start, end).

    Reads the log from `at_ms` on twice: by append time, and by timestamp.
    """
    with tidelog.open(path) as directory:
        after = directory.read(
            FLIGHTS_TOPIC, start=at_ms, end=end_ms, clock=ClockName.APPEND, columns=["timestamp"]
        )
        due = np.concatenate([_millis(batch.column(0)) for batch in after])
        later = directory.read(
            FLIGHTS_TOPIC,
            start=at_ms,
            end=end_ms,
            clock=ClockName.RECORD,
            columns=["appendTimestamp"],
        )
        left = np.concatenate([_millis(batch.column(0)) for batch in later])
    return Crossing(
        int(((due < at_ms) & (due >= start_ms)).sum()),
        int((left < at_ms).sum()),
    )


def _millis(column: object) -> Longs:
    return np.asarray(column).astype("datetime64[ms]").astype(np.int64)


def expected_answers(flights: Flights, partitions: Ints, at_ms: int) -> list[tuple[int, int]]:
    """Return the expected offsets of each partition on both clocks, computed from the flights."""
    offsets = []
    for number in np.unique(partitions).tolist():
        mine = partitions == number
        record = np.flatnonzero(flights.scheduled_ms[mine] >= at_ms)[0]
        append = np.flatnonzero(flights.departed_ms[mine] >= at_ms)[0]
        offsets.append((int(record), int(append)))
    return offsets


AIRCRAFT_TOPIC: Final = "aircraft"
PARTITIONS: Final = 4

SETTINGS: Final = {
    "cleanup.policy": ("compact", "compaction keeps the last flight of each aircraft"),
    "segment.bytes": ("4194304", "small segments, so that compaction finds finished ones"),
}

_COLUMNS: Final = ("key", "value", "timestamp")
_FIELDS: Final = ("carrier", "flight", "origin", "dest")


@dataclass(frozen=True, slots=True)
class State:
    """Last flight of each aircraft.

    Attributes:
        rows: Scheduled time in ms, carrier, flight, origin and destination, by tail number.
        deleted: Number of keys that were deleted up to the time of the table.
    """

    rows: pd.DataFrame
    deleted: int


def load(path: str, flights: Flights) -> int:
    """Append the flights with a tail number, in the order of departure; return their number."""
    keyed = flights.where(~np.asarray(flights.key.is_null()))
    config = {key: value for key, (value, _) in SETTINGS.items()}
    clock = ManualClock(int(keyed.departed_ms.max()))
    with tidelog.open(path, writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic(AIRCRAFT_TOPIC, partitions=PARTITIONS, config=config)
        directory.append_table(AIRCRAFT_TOPIC, record_table(keyed))
    return len(keyed)


def state_as_of(path: str, at_ms: int) -> State:
    """Return each aircraft's last flight scheduled up to a time (inclusive), from the log."""
    from tidelog.scan.keyed_table import TableStats

    stats = TableStats()
    table = tidelog.table(path, AIRCRAFT_TOPIC, at=at_ms, columns=_COLUMNS)
    return State(_states(table.to_arrow(stats=stats).read_all()), stats.deleted)


def _states(rows: "pa.Table") -> pd.DataFrame:
    values = [json.loads(cell.as_py()) for cell in rows["value"]]
    times = rows["timestamp"].to_numpy().astype("datetime64[ms]").astype(np.int64)
    frame = pd.DataFrame(values).reindex(columns=list(_FIELDS))
    frame = frame.assign(tailnum=[cell.as_py().decode() for cell in rows["key"]], due_ms=times)
    return frame.set_index("tailnum").sort_index()


def state_by_pandas(frame: pd.DataFrame, at_ms: int) -> pd.DataFrame:
    """Return the expected result of `state_as_of`, computed from the source file alone."""
    keyed = frame[frame["tailnum"].notna() & (frame["due_ms"] <= at_ms)]
    last = keyed.sort_values("left_ms", kind="stable").groupby("tailnum").tail(1)
    state = last.set_index("tailnum").sort_index()
    return state.reindex(columns=[*_FIELDS, "due_ms"])


def compact(path: str) -> int:
    """Compact the topic; return the number of remaining records."""
    from tidelog.storage.compaction.cleaner import clean_partition
    from tidelog.storage.compaction.cleaning_plan import CleanerOptions
    from tidelog.storage.compaction.worker import InProcess

    with tidelog.open(path, writable=True) as directory:
        for name in directory.log_dir.partitions(AIRCRAFT_TOPIC):
            log = directory.log(AIRCRAFT_TOPIC, name.partition)
            log.roll()
            log.flush()
            worker = InProcess(directory.log_dir.env)
            clean_partition(directory.log_dir, name, worker, CleanerOptions(is_asked=True))
        return directory.count(AIRCRAFT_TOPIC)


def is_refused(path: str, at_ms: int) -> bool:
    """Whether the table as of a time is refused because records are missing."""
    try:
        state_as_of(path, at_ms)
    except InexactTable:
        return True
    return False


# Maximum absolute difference of figures that count as equal. Figures may differ slightly, because
# percentiles may be between two whole minutes, and both sides interpolate in floating point.
_TOLERANCE: Final = 1e-9


@dataclass(slots=True)
class Checks:
    """Compares figures, and stores the results.

    Attributes:
        lines: One line for each comparison: what was compared, and the result.
        failed: The lines of the comparisons that differed.
    """

    lines: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def equal(self, what: str, ours: object, expected: object) -> bool:
        """Compare two values and report the result."""
        return self._note(what, ours == expected, f"the log says {ours}, the source {expected}")

    def frames_equal(self, what: str, ours: pd.DataFrame, expected: pd.DataFrame) -> bool:
        """Compare two tables row by row and report the result."""
        return self._note(what, same_frames(ours, expected), "the tables differ")

    def _note(self, what: str, is_equal: bool, difference: str) -> bool:
        line = f"{what}: {'equal' if is_equal else f'DIFFERENT: {difference}'}"
        self.lines.append(line)
        if not is_equal:
            self.failed.append(line)
        return is_equal


def same_frames(ours: pd.DataFrame, expected: pd.DataFrame) -> bool:
    """Whether two tables have the same columns and, except for rounding, the same values."""
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
    """Read the source file by pandas alone; add create and append time (ms) and the local hour."""
    frame = pd.read_csv(path)
    minutes = frame["sched_dep_time"] // 100 * 60 + frame["sched_dep_time"] % 100
    wall = pd.to_datetime(frame[["year", "month", "day"]]) + pd.to_timedelta(minutes, unit="m")
    due = wall.dt.tz_localize(ZONE)
    left = due + pd.to_timedelta(frame["dep_delay"].fillna(0), unit="m")
    return frame.assign(
        local_hour=wall.dt.hour, due_ms=_checked_millis(due), left_ms=_checked_millis(left)
    )


def _checked_millis(times: "pd.Series[pd.Timestamp]") -> "pd.Series[int]":
    since = times - pd.Timestamp(0, tz="UTC")
    return since // pd.Timedelta(milliseconds=1)


def day_by_pandas(frame: pd.DataFrame, start_ms: int, end_ms: int) -> pd.DataFrame:
    """Return the expected result of `by_hour_and_airport` for flights scheduled in [start, end)."""
    day = frame[(frame["due_ms"] >= start_ms) & (frame["due_ms"] < end_ms)]
    day = day.assign(late=(day["left_ms"] - day["due_ms"]) / 60_000)
    day["late"] = day["late"].where(day["dep_delay"].notna())
    groups = day.rename(columns={"hour": "scheduled_hour", "local_hour": "hour"}).groupby(
        ["hour", "origin"]
    )
    figures = pd.DataFrame(
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
    return figures.assign(disagreeing=0).reset_index()


def crossing_by_pandas(frame: pd.DataFrame, at_ms: int, start_ms: int, end_ms: int) -> Crossing:
    """Return the expected result of `count_crossing`, computed with pandas."""
    due, left = frame["due_ms"], frame["left_ms"]
    left_after = (left >= at_ms) & (left < end_ms)
    return Crossing(
        int(((due >= start_ms) & (due < at_ms) & left_after).sum()),
        int(((due >= at_ms) & (due < end_ms) & (left < at_ms)).sum()),
    )


# -- native code of these queries --------------------------------------------------------------
# Native code is compiled at its first use on a machine, and cached. Compiling the demo's code takes
# most of a minute of CPU time. A separate process compiles it while the flights are loaded.

_RECORDS: Final = 3
# A time after all records: the year 2100.
_FAR_MS: Final = 4_102_444_800_000


def start_compiler(folder: Path) -> "Popen[bytes] | None":
    """Start a process that compiles the code; return None if the code is compiled already.

    Args:
        folder: Folder for a small log; the process creates it.
    """
    # `compile_code` compiles `map_batches` last. If it is cached, all kernels are.
    if is_cached(map_batches):
        return None
    command = [sys.executable, "-m", __name__, str(folder)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=nowhere, stderr=nowhere)  # noqa: S603 - our own module


def stop_compiler(compiler: "Popen[bytes] | None") -> None:
    """Kill the process of `start_compiler` if it still runs."""
    if compiler is not None:
        compiler.kill()
        compiler.wait()


def compile_code(folder: Path) -> None:
    """Read, query and compact a log of a few records with the same calls as the demo."""
    import pyarrow as pa

    path = str(folder)
    with tidelog.open(path, writable=True) as directory:
        directory.create_topic(FLIGHTS_TOPIC)
        rows = [tidelog.NewRecord(key=b"k%d" % n, value=b"{}") for n in range(_RECORDS)]
        directory.append(FLIGHTS_TOPIC, rows)
    count_crossing(path, 1, 0, _FAR_MS)
    with tidelog.open(path, writable=True) as directory:
        directory.create_topic(AIRCRAFT_TOPIC, config={"cleanup.policy": "compact"})
        times = pa.array(range(1, _RECORDS + 1), pa.timestamp("ms", "UTC"))
        keys = pa.array([b"N1"] * _RECORDS)
        table = pa.table({"key": keys, "value": pa.array([b"{}"] * _RECORDS), "timestamp": times})
        directory.append_table(AIRCRAFT_TOPIC, table)
    state_as_of(path, _RECORDS)
    compact(path)


if __name__ == "__main__":
    compile_code(Path(sys.argv[1]))
