"""The demo's chapter on keys: each aircraft's last flight as of a date, of a compacted topic."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

import tidelog
from tidelog.demo.flights import Flights
from tidelog.demo.load import record_table
from tidelog.env import Env, ManualClock
from tidelog.errors import InexactTable

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC: Final = "aircraft"
PARTITIONS: Final = 4
SETTINGS: Final = {
    "cleanup.policy": ("compact", "the last flight of each aircraft is what matters"),
    "segment.bytes": ("4194304", "some segments for the year, so that there are finished ones"),
}
_COLUMNS: Final = ("key", "value", "timestamp")
_SHOWN: Final = ("carrier", "flight", "origin", "dest")


@dataclass(frozen=True, slots=True)
class State:
    """Where each aircraft was last.

    Attributes:
        rows: By tail number: scheduled time in ms, carrier, flight, origin and destination.
        deleted: Keys that were deleted by then.
    """

    rows: pd.DataFrame
    deleted: int


def load(path: str, flights: Flights) -> int:
    """Append the flights of aircraft that are known, in the order of departure; how many."""
    known = flights.where(~np.asarray(flights.key.is_null()))
    config = {key: value for key, (value, _) in SETTINGS.items()}
    clock = ManualClock(int(known.departed_ms.max()))
    with tidelog.open(path, writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic(TOPIC, partitions=PARTITIONS, config=config)
        directory.append_table(TOPIC, record_table(known))
    return len(known)


def state_as_of(path: str, at_ms: int) -> State:
    """Each aircraft's last flight among those due up to a time, from the log."""
    from tidelog.scan.tables import TableStats

    stats = TableStats()
    found = tidelog.table(path, TOPIC, at=at_ms, columns=_COLUMNS)
    return State(_states(found.to_arrow(stats=stats).read_all()), stats.deleted)


def _states(rows: "pa.Table") -> pd.DataFrame:
    values = [json.loads(cell.as_py()) for cell in rows["value"]]
    times = rows["timestamp"].to_numpy().astype("datetime64[ms]").astype(np.int64)
    frame = pd.DataFrame(values).reindex(columns=list(_SHOWN))
    frame = frame.assign(tailnum=[cell.as_py().decode() for cell in rows["key"]], due_ms=times)
    return frame.set_index("tailnum").sort_index()


def state_by_pandas(frame: pd.DataFrame, at_ms: int) -> pd.DataFrame:
    """What `state_as_of` must give, from the source alone."""
    known = frame[frame["tailnum"].notna() & (frame["due_ms"] <= at_ms)]
    last = known.sort_values("left_ms", kind="stable").groupby("tailnum").tail(1)
    found = last.set_index("tailnum").sort_index()
    return found.reindex(columns=[*_SHOWN, "due_ms"])


def compact(path: str) -> int:
    """Compact the topic; how many records are left."""
    from tidelog.storage.compaction.process import InProcess
    from tidelog.storage.compaction.runner import CleanerOptions, clean_partition

    with tidelog.open(path, writable=True) as directory:
        for name in directory.log_dir.partitions(TOPIC):
            log = directory.log(TOPIC, name.partition)
            log.roll()
            log.flush()
            worker = InProcess(directory.log_dir.env)
            clean_partition(directory.log_dir, name, worker, CleanerOptions(is_asked=True))
        return directory.count(TOPIC)


def is_refused(path: str, at_ms: int) -> bool:
    """Whether the table as of a time can't be told any more."""
    try:
        state_as_of(path, at_ms)
    except InexactTable:
        return True
    return False
