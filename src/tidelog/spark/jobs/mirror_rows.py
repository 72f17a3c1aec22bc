"""What a task of a mirror notes of the rows that it writes: the rows of an offset map.

Runs of offsets at one distance become one dense row; where offsets jump too often, one row stands
for all of a record batch. No object per record.
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tidelog.cluster.offset_map import DENSE, MapRow, append_rows, thin
from tidelog.cluster.offset_map_file import ROW
from tidelog.errors import CorruptData
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    Longs: TypeAlias = npt.NDArray[np.int64]

# So many runs of a record batch are worth a row each.
RUNS_MAX: Final = 32
# What one task hands to the driver at most; the oldest are merged where there are more.
TASK_ROWS_MAX: Final = 512
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one record batch as they go to the target, in order.

    Attributes:
        source: Number of the pair, int32[n].
        partition: Partition of the source, int32[n].
        offset: Offset there, int64[n].
        create_ms: Create time, -1 where there is none, int64[n].
        target: Partition of the target, int32[n].
    """

    source: "npt.NDArray[np.int32]"
    partition: "npt.NDArray[np.int32]"
    offset: "Longs"
    create_ms: "Longs"
    target: "npt.NDArray[np.int32]"


def rows_of_group(
    group: tuple[int, int, int],
    source: "Longs",
    target: "Longs",
    create_ms: "Longs",
    arrival_ms: int,
) -> list[MapRow]:
    """The map's rows for records of one partition of a source in one of the target.

    Args:
        group: Pair, partition of the source, partition of the target.
        source: Offsets at the source, int64[n], n > 0.
        target: Offsets at the target, int64[n].
        create_ms: Create times, -1 for none, int64[n].
        arrival_ms: When they were there.
    """
    if len(source) > 1 and (np.diff(source) < 0).any():
        order = np.argsort(source, kind="stable")
        source, target, create_ms = source[order], target[order], create_ms[order]
    steps = np.diff(source)
    cuts = np.flatnonzero((steps != 1) | (np.diff(target) != 1)) + 1
    # Where a transform has made several records of one, no single distance is right.
    if len(cuts) >= RUNS_MAX or (steps == 0).any():
        flags, starts, ends = 0, [0], [len(source)]
    else:
        flags, starts, ends = DENSE, [0, *cuts.tolist()], [*cuts.tolist(), len(source)]
    return [
        _row(group, flags, source[a:b], target[a:b], create_ms[a:b], arrival_ms)
        for a, b in zip(starts, ends, strict=True)
    ]


def _row(
    group: tuple[int, int, int],
    flags: int,
    source: "Longs",
    target: "Longs",
    create_ms: "Longs",
    arrival_ms: int,
) -> MapRow:
    known = create_ms[create_ms != NO_TIMESTAMP]
    return MapRow(
        *group,
        flags=flags,
        source_start=int(source[0]),
        source_end=int(source[-1]) + 1,
        target_start=int(target.min()),
        target_end=int(target.max()) + 1,
        create_ms_min=int(known.min()) if len(known) else NO_TIMESTAMP,
        create_ms_max=int(known.max()) if len(known) == len(create_ms) else NO_TIMESTAMP,
        arrival_ms=arrival_ms,
    )


@dataclass(slots=True)
class Ledger:
    """Notes where the records of one task go. Not safe for two threads.

    `take` numbers the records of each partition of the target from 0 on, in order; that is what
    their offsets will be behind the place where the target puts the task's first one.

    Attributes:
        topics: Number of the target topic of each pair.
        arrival_ms: Of the rows; 0 where it is not known yet.
        rows: So far, with `target_start` counted from 0.
        counts: Records so far, by pair's target topic number and partition.
        copied: First and end offset, by pair and partition of the source.
        records: How many.
    """

    topics: Mapping[int, int]
    arrival_ms: int = 0
    rows: tuple[MapRow, ...] = ()
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    copied: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0

    def take(self, batch: Rows) -> None:
        """Note a record batch."""
        places, arrival = self._number(batch), self.arrival_ms
        self.records += len(batch.offset)
        keys = np.stack([batch.source, batch.partition, batch.target], axis=1)
        groups, inverse = _unique_rows(keys)
        for number, (pair, partition, target) in enumerate(groups):
            chosen = slice(None) if len(groups) == 1 else inverse == number
            offsets, group = batch.offset[chosen], (pair, partition, target)
            rows = rows_of_group(group, offsets, places[chosen], batch.create_ms[chosen], arrival)
            self.rows = append_rows(self.rows, rows)
            self._note_copied((pair, partition), int(offsets.min()), int(offsets.max()) + 1)
        if len(self.rows) > TASK_ROWS_MAX:
            self.rows = thin(self.rows, TASK_ROWS_MAX // 2)

    def _number(self, batch: Rows) -> "Longs":
        """The place of each record among those of its partition of the target."""
        topics = np.array([self.topics[n] for n in range(len(self.topics))], np.int32)
        keys = np.stack([topics[batch.source], batch.target], axis=1)
        groups, inverse = _unique_rows(keys)
        places = np.empty(len(batch.offset), np.int64)
        for number, (topic, partition) in enumerate(groups):
            chosen = slice(None) if len(groups) == 1 else inverse == number
            count = len(batch.offset) if len(groups) == 1 else int((inverse == number).sum())
            start = self.counts.get((topic, partition), 0)
            places[chosen] = self.place(topic, partition, start, count)
            self.counts[(topic, partition)] = start + count
        return places

    def place(self, topic: int, partition: int, start: int, count: int) -> "Longs":  # noqa: ARG002 - others know
        """Where the records `start` to `start + count` of a partition go."""
        return np.arange(start, start + count)

    def _note_copied(self, place: tuple[int, int], start: int, end: int) -> None:
        old = self.copied.get(place, (start, end))
        self.copied[place] = min(old[0], start), max(old[1], end)


def _unique_rows(
    keys: "npt.NDArray[np.int32]",
) -> "tuple[list[tuple[int, ...]], npt.NDArray[np.intp]]":
    """The different rows of a table, and which of them each row is."""
    if (keys == keys[0]).all():
        return [tuple(keys[0].tolist())], np.zeros(len(keys), np.intp)
    found, inverse = np.unique(keys, axis=0, return_inverse=True)
    return [tuple(row) for row in found.tolist()], inverse.reshape(-1)


def moved(row: MapRow, by: int, arrival_ms: int) -> MapRow:
    """A row whose target offsets were counted from elsewhere."""
    return row._replace(
        target_start=row.target_start + by, target_end=row.target_end + by, arrival_ms=arrival_ms
    )


# -- on their way to the driver, and into what the target remembers -------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What one task, or all of a batch, has noted.

    Attributes:
        rows: Of the map.
        copied: First and end offset, by pair and partition of the source.
        records: How many were written.
    """

    rows: tuple[MapRow, ...] = ()
    copied: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0


def encode_noted(noted: Noted) -> str:
    """Text that holds it; small."""
    packed = b"".join(ROW.pack(*row) for row in noted.rows)
    content = {
        "v": _VERSION,
        "copied": [[*place, *offsets] for place, offsets in sorted(noted.copied.items())],
        "records": noted.records,
        "rows": base64.b64encode(zlib.compress(packed)).decode(),
    }
    return json.dumps(content, separators=(",", ":"))


def decode_noted(text: str) -> Noted:
    """What `encode_noted` wrote; raises CorruptData for anything else."""
    try:
        content = json.loads(text)
        if content["v"] != _VERSION:
            raise CorruptData(f"a mirror's note of version {content['v']}, {_VERSION} is known")
        packed = zlib.decompress(base64.b64decode(content["rows"], validate=True))
        return Noted(
            rows=tuple(map(MapRow._make, ROW.iter_unpack(packed))),
            copied={(int(a), int(b)): (int(c), int(d)) for a, b, c, d in content["copied"]},
            records=int(content["records"]),
        )
    except (ValueError, TypeError, KeyError, struct.error, zlib.error) as error:
        raise CorruptData(f"not a mirror's note: {error}") from error


def join_noted(parts: Iterable[Noted]) -> Noted:
    """What several tasks have noted."""
    rows: tuple[MapRow, ...] = ()
    copied: dict[tuple[int, int], tuple[int, int]] = {}
    records = 0
    for part in parts:
        rows = append_rows(rows, part.rows)
        records += part.records
        for place, (start, end) in part.copied.items():
            old = copied.get(place, (start, end))
            copied[place] = min(old[0], start), max(old[1], end)
    return Noted(rows=rows, copied=copied, records=records)
