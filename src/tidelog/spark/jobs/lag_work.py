"""What a worker does for a lag report: counts unread records by hour, on both clocks.

Groups stand at different places of a partition, and saw its end at different moments. Its offsets
are cut at all of these, and each record is counted once, in the interval that it lies in: what a
group has not read are the intervals from its place to the end that it saw.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.scan.split_json import decode_split
from tidelog.types import HOUR_MS, NO_TIMESTAMP, ClockName, TimestampType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Longs = npt.NDArray[np.int64]

COLUMNS: Final = ("offset", "timestamp", "appendTimestamp")
_ROWS: Final = 65_536
# Where hours lie closer together than this, they are counted by place, else sorted.
_SPAN_MAX: Final = 1 << 20


class Cell(NamedTuple):
    """What records are counted under.

    Attributes:
        topic: Of the records.
        partition: Its number.
        interval: Number of the interval between two places of groups.
        clock: `append` or `record`.
        hour_ms: First ms of their hour, None where they have no time on that clock.
    """

    topic: str
    partition: int
    interval: int
    clock: str
    hour_ms: int | None


Counts = Counter[Cell]
# Ascending offsets at which a partition is cut; the last one is where its counting ends.
Cuts = Mapping[tuple[str, int], Sequence[int]]


def encode_counts(counts: Counts) -> str:
    """Counts as JSON."""
    return json.dumps([[*cell, number] for cell, number in counts.items()])


def decode_counts(text: str) -> Counts:
    """What `encode_counts` made."""
    return Counter({Cell(*row[:-1]): row[-1] for row in json.loads(text)})


@dataclass(frozen=True, slots=True)
class CountSplit:
    """Reads a split of a directory and counts it.

    Attributes:
        store: Settings of the object store.
    """

    store: tuple[tuple[str, str], ...] = ()

    def __call__(self, part: str) -> tuple[object, ...]:
        """See `Work`; `part` is a JSON list: split, places at which its partition is cut."""
        import numpy as np

        from tidelog.objects.environment import env_for
        from tidelog.scan import ReadOptions, read

        text, cuts = json.loads(part)
        split = decode_split(text)
        env = env_for(split.directory, None, dict(self.store))
        options = ReadOptions(rows=_ROWS, fail_on_data_loss=False, env=env)
        counts: Counts = Counter()
        places = np.array(cuts, np.int64)
        for batch in read(split, COLUMNS, options=options):
            times = {
                ClockName.RECORD: _times(batch.column("timestamp")),
                ClockName.APPEND: _times(batch.column("appendTimestamp")),
            }
            offsets = _longs(batch.column("offset"))
            count_rows((split.topic, split.partition), offsets, times, places, counts)
        return (encode_counts(counts),)


@dataclass(frozen=True, slots=True)
class CountRows:
    """Counts rows that Spark has read from brokers.

    These know an append time only where it is the record's own (LogAppendTime).

    Attributes:
        cuts: Places of groups, by topic and partition.
    """

    cuts: Mapping[tuple[str, int], tuple[int, ...]]

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """One row of a task: its counts as JSON."""
        import numpy as np
        import pyarrow as pa

        counts: Counts = Counter()
        for batch in batches:
            table = pa.Table.from_batches([batch])
            numbers = np.asarray(batch.column("partition"))
            names = np.array(batch.column("topic").to_pylist(), object)
            for topic, number in sorted(set(zip(names.tolist(), numbers.tolist(), strict=True))):
                chosen = pa.array((names == topic) & (numbers == number))
                mine = table.filter(chosen).combine_chunks().to_batches()[0]
                times = _broker_times(mine)
                places = np.array(self.cuts[topic, number], np.int64)
                offsets = _longs(mine.column("offset"))
                count_rows((topic, number), offsets, times, places, counts)
        yield pa.RecordBatch.from_pydict({"counts": [encode_counts(counts)]})


def _broker_times(batch: "pa.RecordBatch") -> "dict[ClockName, Longs]":
    import numpy as np

    record_ms = _times(batch.column("timestamp")) // 1000
    is_stamped = np.asarray(batch.column("timestampType")) == TimestampType.LOG_APPEND_TIME
    return {
        ClockName.RECORD: record_ms,
        ClockName.APPEND: np.where(is_stamped, record_ms, NO_TIMESTAMP),
    }


def _times(column: "pa.Array[pa.Scalar[pa.DataType]]") -> "Longs":
    """Times as numbers in their own unit, below 0 for none."""
    import pyarrow as pa

    return _longs(column.cast(pa.int64()).fill_null(NO_TIMESTAMP))


def _longs(column: "pa.Array[pa.Scalar[pa.DataType]]") -> "Longs":
    import numpy as np

    found: Longs = np.asarray(column, np.int64)
    return found


def count_rows(
    name: tuple[str, int],
    offsets: "Longs",
    times: "Mapping[ClockName, Longs]",
    cuts: "Longs",
    counts: Counts,
) -> None:
    """Count records of one partition.

    Args:
        name: Topic and partition.
        offsets: int64[n], ascending.
        times: int64[n] in ms for each clock, below 0 for unknown.
        cuts: Places of groups, ascending; records before the first one are not counted.
        counts: Counted up.
    """
    import numpy as np

    starts = np.searchsorted(offsets, cuts).tolist()
    for interval, (start, end) in enumerate(zip(starts, [*starts[1:], len(offsets)], strict=True)):
        if start < end:
            for clock, all_ms in times.items():
                for hour, number in _hours(all_ms[start:end]):
                    cell = Cell(*name, interval, clock.value, None if hour < 0 else hour * HOUR_MS)
                    counts[cell] += number


def _hours(times_ms: "Longs") -> list[tuple[int, int]]:
    """(hour since the epoch, how many); -1 for those without a time."""
    import numpy as np

    hours = np.where(times_ms < 0, -1, times_ms // HOUR_MS)
    first, last = int(hours.min()), int(hours.max())
    if last - first < _SPAN_MAX:
        found = np.bincount(hours - first)
        return [(first + at, int(found[at])) for at in np.flatnonzero(found).tolist()]
    values, numbers = np.unique(hours, return_counts=True)
    return list(zip(values.tolist(), numbers.tolist(), strict=True))


def by_partition(counts: Counts) -> dict[tuple[str, int], Counts]:
    """Counts by topic and partition."""
    found: dict[tuple[str, int], Counts] = {}
    for cell, number in counts.items():
        found.setdefault((cell.topic, cell.partition), Counter())[cell] = number
    return found


def unread_by_hour(counts: Counts, start: int, end: int) -> dict[tuple[str, int | None], int]:
    """Records of one partition in intervals [start, end), by clock and hour."""
    found: Counter[tuple[str, int | None]] = Counter()
    for cell, number in counts.items():
        if start <= cell.interval < end:
            found[cell.clock, cell.hour_ms] += number
    return dict(found)
