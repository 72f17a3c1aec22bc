"""Tasks of a mirror: write rows of a micro-batch to the target, and report where they went.

Tasks run by `mapInArrow` and return one small report each; the rows stay in the workers. A task of
a directory stages segments, and the driver attaches those of all tasks together. A task of brokers
writes one transaction with its rows and a marker that holds its notes; when the task comes again it
finds both, writes nothing, and reports the notes.

The notes are rows of an offset map (`Ledger`). Runs of offsets at one distance become one dense
row; if offsets jump too often, one row stands for all of a record batch. No object per record.

Not owned: the commit of a batch and the map (`commit`).
"""

import base64
import dataclasses
import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import CorruptData, InvalidRequest
from tidelog.jobs.offset_map import DENSE, ROW, MapRow, Partitioning, append_rows, thin
from tidelog.record.columns.encode import choose_partitions
from tidelog.spark.sink_options import SinkOptions, task_number
from tidelog.storage.directory.staging import StagedSegment
from tidelog.types import NO_TIMESTAMP, US_PER_MS, time_refused

if TYPE_CHECKING:
    import numpy.typing as npt

    Longs: TypeAlias = npt.NDArray[np.int64]


# So many runs of a record batch are worth a row each.
RUNS_MAX: Final = 32


# What one task hands to the driver at most; the oldest are merged where there are more.
TASK_ROWS_MAX: Final = 512


_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RoutedRows:
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
    known_ms = create_ms[create_ms != NO_TIMESTAMP]
    return MapRow(
        *group,
        flags=flags,
        source_start=int(source[0]),
        source_end=int(source[-1]) + 1,
        target_start=int(target.min()),
        target_end=int(target.max()) + 1,
        create_ms_min=int(known_ms.min()) if len(known_ms) else NO_TIMESTAMP,
        create_ms_max=int(known_ms.max()) if len(known_ms) == len(create_ms) else NO_TIMESTAMP,
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

    def take(self, batch: RoutedRows) -> None:
        """Note a record batch."""
        positions, arrival = self._number(batch), self.arrival_ms
        self.records += len(batch.offset)
        keys = np.stack([batch.source, batch.partition, batch.target], axis=1)
        groups, inverse = _unique_rows(keys)
        for number, (pair, partition, target) in enumerate(groups):
            chosen = slice(None) if len(groups) == 1 else inverse == number
            offsets, group = batch.offset[chosen], (pair, partition, target)
            rows = rows_of_group(
                group, offsets, positions[chosen], batch.create_ms[chosen], arrival
            )
            self.rows = append_rows(self.rows, rows)
            self._note_copied((pair, partition), int(offsets.min()), int(offsets.max()) + 1)
        if len(self.rows) > TASK_ROWS_MAX:
            self.rows = thin(self.rows, TASK_ROWS_MAX // 2)

    def _number(self, batch: RoutedRows) -> "Longs":
        """The place of each record among those of its partition of the target."""
        topics = np.array([self.topics[n] for n in range(len(self.topics))], np.int32)
        keys = np.stack([topics[batch.source], batch.target], axis=1)
        groups, inverse = _unique_rows(keys)
        positions = np.empty(len(batch.offset), np.int64)
        for number, (topic, partition) in enumerate(groups):
            chosen = slice(None) if len(groups) == 1 else inverse == number
            count = len(batch.offset) if len(groups) == 1 else int((inverse == number).sum())
            start = self.counts.get((topic, partition), 0)
            positions[chosen] = self.place(topic, partition, start, count)
            self.counts[(topic, partition)] = start + count
        return positions

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
class LedgerRows:
    """What one task, or all of a batch, has noted.

    Attributes:
        rows: Of the map.
        copied: First and end offset, by pair and partition of the source.
        records: How many were written.
    """

    rows: tuple[MapRow, ...] = ()
    copied: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0


def encode_ledger_rows(noted: LedgerRows) -> str:
    """Text that holds it; small."""
    packed = b"".join(ROW.pack(*row) for row in noted.rows)
    content = {
        "v": _VERSION,
        "copied": [[*place, *offsets] for place, offsets in sorted(noted.copied.items())],
        "records": noted.records,
        "rows": base64.b64encode(zlib.compress(packed)).decode(),
    }
    return json.dumps(content, separators=(",", ":"))


def decode_ledger_rows(text: str) -> LedgerRows:
    """Decode the output of `encode_ledger_rows`; raises CorruptData for other bytes."""
    try:
        content = json.loads(text)
        if content["v"] != _VERSION:
            raise CorruptData(f"a mirror's note of version {content['v']}, {_VERSION} is known")
        packed = zlib.decompress(base64.b64decode(content["rows"], validate=True))
        return LedgerRows(
            rows=tuple(map(MapRow._make, ROW.iter_unpack(packed))),
            copied={(int(a), int(b)): (int(c), int(d)) for a, b, c, d in content["copied"]},
            records=int(content["records"]),
        )
    except (ValueError, TypeError, KeyError, struct.error, zlib.error) as error:
        raise CorruptData(f"not a mirror's note: {error}") from error


def join_ledger_rows(parts: Iterable[LedgerRows]) -> LedgerRows:
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
    return LedgerRows(rows=rows, copied=copied, records=records)


# Columns that a transform must leave: by them the map knows what went where.
ORIGIN: Final = ("source", "topic", "partition", "offset")


TARGET_PARTITION: Final = "targetPartition"


RECORD: Final = ("key", "value", "headers", "timestamp")


REPORT_SCHEMA: Final = "report string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where each topic goes, as tasks need it.

    Attributes:
        pairs: Place, topic and target topic of each pair, in order.
        counts: Partitions of each target topic.
        partitioning: How partitions are chosen.
    """

    pairs: tuple[tuple[int, str, str], ...]
    counts: tuple[tuple[str, int], ...]
    partitioning: Partitioning

    @property
    def targets(self) -> list[str]:
        """The target topics, by number."""
        return [name for name, _ in self.counts]

    def target_numbers(self) -> dict[int, int]:
        """Number of the target topic of each pair."""
        return {n: self.targets.index(pair[2]) for n, pair in enumerate(self.pairs)}


class Origins:
    """Reads from record batches what a ledger needs, and what the sink writes. For one thread."""

    def __init__(self, routes: Routes, *, task: int) -> None:
        """Begin.

        Args:
            routes: Where topics go.
            task: Number of the task; records without a key begin their turns there.
        """
        self._routes = routes
        numbers = routes.target_numbers()
        self._target_of = np.array([numbers[n] for n in range(len(numbers))], np.int32)
        self._turn = task

    def read(self, batch: pa.RecordBatch) -> tuple[RoutedRows, pa.RecordBatch]:
        """The rows for the ledger, and the same rows for the sink.

        Raises:
            InvalidRequest: A row without an origin, or of a topic that is not mirrored.
            InvalidTimestamp: A transform has made a time that no log should hold.
        """
        self._turn += 1
        if any(batch.column(name).null_count for name in ORIGIN):
            raise InvalidRequest(
                f"a row without {', '.join(ORIGIN)}: a transform must leave these as they are"
            )
        pairs = self._pairs(batch)
        rows = RoutedRows(
            source=pairs,
            partition=_ints(batch, "partition"),
            offset=np.asarray(batch.column("offset")).astype(np.int64, copy=False),
            create_ms=_create_ms(batch),
            target=self._targets(batch, pairs),
        )
        return rows, self._for_sink(batch, rows)

    def _pairs(self, batch: pa.RecordBatch) -> "npt.NDArray[np.int32]":
        """Number of the pair of each row."""
        places = _ints(batch, "source")
        pairs = np.full(len(places), -1, np.int32)
        topics = batch.column("topic")
        for number, (place, topic, _) in enumerate(self._routes.pairs):
            pairs[(places == place) & np.asarray(pc.equal(topics, pa.scalar(topic)))] = number
        if (pairs < 0).any():
            topic = str(topics[int(np.flatnonzero(pairs < 0)[0])])
            raise InvalidRequest(f"a row of topic {topic}, which is not mirrored")
        return pairs

    def _targets(
        self, batch: pa.RecordBatch, pairs: "npt.NDArray[np.int32]"
    ) -> "npt.NDArray[np.int32]":
        if self._routes.partitioning is Partitioning.KEPT:
            return _ints(batch, "partition")
        topics = self._target_of[pairs]
        chosen_numbers = np.empty(len(pairs), np.int32)
        for number, (_, count) in enumerate(self._routes.counts):
            chosen = topics == number
            if chosen.any():
                keys = batch.column("key").filter(pa.array(chosen))
                chosen_numbers[chosen] = choose_partitions(keys, count, keyless=self._turn % count)
        if self._routes.partitioning is Partitioning.ANY:
            given = batch.column(TARGET_PARTITION)
            given_numbers = np.asarray(given.fill_null(0)).astype(np.int32)
            return np.where(np.asarray(given.is_valid()), given_numbers, chosen_numbers)
        return chosen_numbers

    def _for_sink(self, batch: pa.RecordBatch, rows: RoutedRows) -> pa.RecordBatch:
        """Columns as the sink takes them; "no time", -1 ms, stays that instead of becoming now."""
        names = self._routes.targets
        dictionary = pa.DictionaryArray.from_arrays(self._target_of[rows.source], pa.array(names))
        columns = {
            "key": batch.column("key"),
            "value": batch.column("value"),
            "headers": batch.column("headers"),
            "timestamp": pa.array(rows.create_ms),
            "topic": dictionary.cast(pa.string()),
            "partition": pa.array(rows.target),
        }
        return pa.RecordBatch.from_pydict(columns)


def _create_ms(batch: pa.RecordBatch) -> "npt.NDArray[np.int64]":
    """Create times in ms, rounded down; -1 for null, a record without a time."""
    column = batch.column("timestamp").cast(pa.timestamp("us", "UTC"))
    micros = np.asarray(column.cast(pa.int64()).fill_null(0))
    wrong = np.flatnonzero(micros < 0)
    if wrong.size:
        row = int(wrong[0])
        topic, partition, offset = (
            batch.column(name)[row] for name in ("topic", "partition", "offset")
        )
        time_ms = int(micros[row]) // US_PER_MS
        raise time_refused(f"{time_ms} ms", f"row of {topic}-{partition}, offset {offset}")
    return np.where(np.asarray(column.is_valid()), micros // US_PER_MS, NO_TIMESTAMP)


def _ints(batch: pa.RecordBatch, name: str) -> "npt.NDArray[np.int32]":
    return np.asarray(batch.column(name)).astype(np.int32, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Message of a task to the driver.

    Attributes:
        task: Its number; segments are put in order by it.
        noted: Where its rows went: in a directory counted from the task's first record of each
            partition, at brokers for good.
        staged: The segments that it has staged.
        counts: Records by number of the target topic and partition.
        was_done: It had written all of it before.
    """

    task: int
    noted: LedgerRows
    staged: tuple[StagedSegment, ...] = ()
    counts: tuple[tuple[int, int, int], ...] = ()
    was_done: bool = False

    def encode(self) -> str:
        """Text for the driver."""
        return json.dumps(
            {
                "task": self.task,
                "noted": encode_ledger_rows(self.noted),
                "staged": [dataclasses.asdict(segment) for segment in self.staged],
                "counts": self.counts,
                "was_done": self.was_done,
            }
        )

    @classmethod
    def decode(cls, text: str) -> "Report":
        """What a task of this program has told."""
        content = json.loads(text)
        return cls(
            task=content["task"],
            noted=decode_ledger_rows(content["noted"]),
            staged=tuple(
                StagedSegment(**one | {"order": tuple(one["order"])}) for one in content["staged"]
            ),
            counts=tuple((a, b, c) for a, b, c in content["counts"]),
            was_done=content["was_done"],
        )


def _noted_rows(
    batches: Iterable[pa.RecordBatch], routes: Routes, task: int, ledger: "Ledger | SentLedger"
) -> Iterator[pa.RecordBatch]:
    """The rows of a task as the sink takes them; each is noted in the ledger first."""
    origins = Origins(routes, task=task)
    for batch in batches:
        if batch.num_rows:
            noted, ours = origins.read(batch)
            ledger.take(noted)
            yield ours


def _report_batch(report: Report) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"report": pa.array([report.encode()], pa.string())})


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryTask:
    """Stages the rows of a task. Called by `mapInArrow`.

    Attributes:
        options: Of the sink.
        routes: Where topics go.
        commit_id: Of the batch; names of staged files begin so.
    """

    options: SinkOptions
    routes: Routes
    commit_id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report; removes what was staged where the task fails."""
        from tidelog.spark.directory_sink import stage

        task, ledger = task_number(), Ledger(self.routes.target_numbers())
        rows = _noted_rows(batches, self.routes, task, ledger)
        staged = stage(self.options, rows, self.commit_id)
        noted = LedgerRows(rows=ledger.rows, copied=ledger.copied, records=ledger.records)
        counts = tuple((a, b, count) for (a, b), count in sorted(ledger.counts.items()))
        yield _report_batch(Report(task=task, noted=noted, staged=tuple(staged), counts=counts))


class SentLedger:
    """Notes where the brokers put the rows of a task. For one thread.

    Rows of a partition are reported in the order in which they were sent, so the n-th report is
    about the n-th row. What waits for its report is bounded by the size of a micro-batch.
    """

    def __init__(self, routes: Routes) -> None:
        self._names = {name: number for number, name in enumerate(routes.targets)}
        self._topic_of = routes.target_numbers()
        self._waiting: list[RoutedRows] = []
        self._offsets: dict[tuple[int, int], array[int]] = {}

    def take(self, rows: RoutedRows) -> None:
        """Rows that are about to be sent."""
        self._waiting.append(rows)

    def sent(self, topic: str, partition: int, offset: int) -> None:
        """One row has its offset."""
        number = self._names.get(topic)
        if number is not None:  # else it is a marker
            key = (number, partition)
            if key not in self._offsets:
                self._offsets[key] = array("q")
            self._offsets[key].append(offset)

    def noted(self, arrival_ms: int) -> LedgerRows:
        """All rows, once every one of them has its offset."""
        offsets = {
            key: np.frombuffer(reported, np.int64) for key, reported in self._offsets.items()
        }
        ledger = PlacedLedger(self._topic_of, offsets, arrival_ms)
        for rows in self._waiting:
            ledger.take(rows)
        return LedgerRows(rows=ledger.rows, copied=ledger.copied, records=ledger.records)


class PlacedLedger(Ledger):
    """A ledger that knows the offsets at the target by their number."""

    def __init__(
        self,
        topics: dict[int, int],
        offsets: "dict[tuple[int, int], npt.NDArray[np.int64]]",
        arrival_ms: int,
    ) -> None:
        super().__init__(topics, arrival_ms=arrival_ms)
        self._known = offsets

    def place(self, topic: int, partition: int, start: int, count: int) -> "npt.NDArray[np.int64]":
        """Where the rows `start` to `start + count` of a partition went."""
        offsets = self._known[topic, partition][start : start + count]
        assert len(offsets) == count, "every row was reported"
        return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTask:
    """Sends the rows of a task in one transaction. Called by `mapInArrow`.

    Attributes:
        options: Of the sink.
        routes: Where topics go.
        mirror_id: Names the writer.
        batch_id: Of the micro-batch.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report."""
        from tidelog.spark.broker_sink import Claim, send

        task, ledger = task_number(), SentLedger(self.routes)
        rows = _noted_rows(batches, self.routes, task, ledger)
        clock = self.options.env().clock
        prefix = self.options.transactional_id_prefix
        claim = Claim(
            f"{prefix}/{self.mirror_id}/{task}",
            self.batch_id,
            note=lambda: encode_ledger_rows(ledger.noted(clock.now_ms())),
        )
        sent = send(self.options, rows, task=task, claim=claim, on_sent=ledger.sent)
        noted = decode_ledger_rows(sent.note) if sent.note else LedgerRows()
        yield _report_batch(Report(task=task, noted=noted, was_done=sent.was_done))


def read_reports(texts: Sequence[str]) -> list[Report]:
    """The reports of all tasks, in the order of the tasks."""
    return sorted(map(Report.decode, texts), key=lambda report: report.task)
