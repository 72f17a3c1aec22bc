"""Tasks of a mirror: write a micro-batch's rows to the target, and report the rows' offsets.

Tasks run in `mapInArrow`. Each task returns one small report; the rows stay in the workers. If the
target is a directory, a task stages segments, and the driver attaches the segments of all tasks
together. If the target is a cluster, a task writes its rows and a marker in one transaction. The
marker contains the rows that the task adds to the offset map. A repeated task finds this marker,
writes nothing, and reports the map rows that the marker contains.

`Ledger` makes the rows of the offset map. A range of consecutive offsets becomes one dense row (see
`offset_map`). In two cases, a record batch gets only one row for each pair of a source partition
and a target partition: its offsets have too many gaps, or several of its records have the same
source offset. For speed, no Python object is created for each record.

`commit` commits the batch, and writes the map.
"""

import base64
import dataclasses
import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import CorruptData, InvalidRequest
from tidelog.jobs.offset_map import DENSE, ROW, MapRow, Partitioning, append_rows, thin
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.encode import choose_partitions
from tidelog.spark.sink_options import SinkOptions, task_number
from tidelog.storage.directory.staging import StagedSegment
from tidelog.types import NO_TIMESTAMP, US_PER_MS, time_refused

if TYPE_CHECKING:
    import numpy.typing as npt

    Longs: TypeAlias = npt.NDArray[np.int64]


# If a record batch has at most this number of gapless ranges of offsets, each range gets its own
# row.
RUNS_MAX: Final = 32

# Maximum number of rows that a task returns to the driver. If a task has more rows, older rows are
# merged until at most half of this number are left. Only rows of the same `MapRow.group` are
# merged, so more rows may remain.
TASK_ROWS_MAX: Final = 512

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Rows of one record batch, in the order in which they are written.

    Attributes:
        source: Index of the pair of topics, int32[n].
        partition: Partition of the source, int32[n].
        offset: Offset at the source, int64[n].
        create_ms: Create time in ms, -1 for none, int64[n].
        target: Partition at the target, int32[n].
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
    """Return rows of the map for records from one source partition in one target partition.

    Args:
        group: Pair of topics, partition at the source, partition at the target.
        source: Offsets at the source, int64[n], n > 0.
        target: Offsets at the target, int64[n].
        create_ms: Create times in ms, -1 for none, int64[n].
        arrival_ms: Time in ms at which all of these records were already at the target.
    """
    if len(source) > 1 and (np.diff(source) < 0).any():
        order = np.argsort(source, kind="stable")
        source, target, create_ms = source[order], target[order], create_ms[order]
    steps = np.diff(source)
    cuts = np.flatnonzero((steps != 1) | (np.diff(target) != 1)) + 1
    # If a transform makes several records from one record, these records have the same source
    # offset.
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
    """Collector of one task's rows for the offset map. Not thread-safe.

    `take` numbers the records of each target partition from 0, in order. These numbers are target
    offsets relative to the task's first record in the partition. A subclass can use final target
    offsets instead of these numbers.

    Attributes:
        topics: Index of the target topic, by the pair's index.
        arrival_ms: Arrival time of the rows in ms; 0 if not known yet.
        rows: Rows of the map so far.
        counts: Count of records so far, by the target topic's index and the target partition.
        copied: For each pair of source and target topic, and each source partition: the first
            copied offset, and the offset after the last copied offset, at the source.
        records: Number of records so far.
    """

    topics: Mapping[int, int]
    arrival_ms: int = 0
    rows: tuple[MapRow, ...] = ()
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    copied: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0

    def take(self, batch: RoutedRows) -> None:
        """Add the rows of a record batch."""
        target_offsets, arrival = self._number(batch), self.arrival_ms
        self.records += len(batch.offset)
        keys = np.stack([batch.source, batch.partition, batch.target], axis=1)
        groups, inverse = _unique_rows(keys)
        for number, (pair, partition, target) in enumerate(groups):
            chosen = slice(None) if len(groups) == 1 else inverse == number
            offsets, group = batch.offset[chosen], (pair, partition, target)
            rows = rows_of_group(
                group, offsets, target_offsets[chosen], batch.create_ms[chosen], arrival
            )
            self.rows = append_rows(self.rows, rows)
            self._note_copied((pair, partition), int(offsets.min()), int(offsets.max()) + 1)
        if len(self.rows) > TASK_ROWS_MAX:
            self.rows = thin(self.rows, TASK_ROWS_MAX // 2)

    def _number(self, batch: RoutedRows) -> "Longs":
        """Return each row's offset at the target, and count the rows."""
        topics = np.array([self.topics[n] for n in range(len(self.topics))], np.int32)
        keys = np.stack([topics[batch.source], batch.target], axis=1)
        groups, inverse = _unique_rows(keys)
        target_offsets = np.empty(len(batch.offset), np.int64)
        for number, (topic, partition) in enumerate(groups):
            chosen = slice(None) if len(groups) == 1 else inverse == number
            count = len(batch.offset) if len(groups) == 1 else int((inverse == number).sum())
            start = self.counts.get((topic, partition), 0)
            target_offsets[chosen] = self.offsets_of(topic, partition, start, count)
            self.counts[(topic, partition)] = start + count
        return target_offsets

    def offsets_of(self, topic: int, partition: int, start: int, count: int) -> "Longs":  # noqa: ARG002 - for subclasses
        """Return the target offsets of records [start, start + count) of a partition."""
        return np.arange(start, start + count)

    def _note_copied(self, source_partition: tuple[int, int], start: int, end: int) -> None:
        old = self.copied.get(source_partition, (start, end))
        self.copied[source_partition] = min(old[0], start), max(old[1], end)


def _unique_rows(
    keys: "npt.NDArray[np.int32]",
) -> "tuple[list[tuple[int, ...]], npt.NDArray[np.intp]]":
    """Return the distinct rows, and for each row of `keys` its index among the distinct rows."""
    if (keys == keys[0]).all():
        return [tuple(keys[0].tolist())], np.zeros(len(keys), np.intp)
    unique_keys, inverse = np.unique(keys, axis=0, return_inverse=True)
    return [tuple(row) for row in unique_keys.tolist()], inverse.reshape(-1)


def moved(row: MapRow, by: int, arrival_ms: int) -> MapRow:
    """Return the row with `by` added to the target offsets, and with this arrival time."""
    return row._replace(
        target_start=row.target_start + by, target_end=row.target_end + by, arrival_ms=arrival_ms
    )


# -- map rows as text, for the driver and the target ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRows:
    """Rows, copied offsets and count of records that a task or a batch adds to the map.

    Attributes:
        rows: Rows for the offset map.
        copied: For each pair of source and target topic, and each source partition: the first
            copied offset, and the offset after the last copied offset, at the source.
        records: Number of written records.
    """

    rows: tuple[MapRow, ...] = ()
    copied: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0


def encode_ledger_rows(noted: LedgerRows) -> str:
    """Return map rows, copied offsets and number of records as a short text."""
    packed = b"".join(ROW.pack(*row) for row in noted.rows)
    content = {
        "v": _VERSION,
        "copied": [[*partition, *offsets] for partition, offsets in sorted(noted.copied.items())],
        "records": noted.records,
        "rows": base64.b64encode(zlib.compress(packed)).decode(),
    }
    return json.dumps(content, separators=(",", ":"))


def decode_ledger_rows(text: str) -> LedgerRows:
    """Decode the result of `encode_ledger_rows`; raises CorruptData for other text."""
    try:
        content = json.loads(text)
        if content["v"] != _VERSION:
            raise CorruptData(
                f"a mirror's note has version {content['v']}, but this release supports only"
                f" version {_VERSION}"
            )
        packed = zlib.decompress(base64.b64decode(content["rows"], validate=True))
        return LedgerRows(
            rows=tuple(map(MapRow._make, ROW.iter_unpack(packed))),
            copied={(int(a), int(b)): (int(c), int(d)) for a, b, c, d in content["copied"]},
            records=int(content["records"]),
        )
    except (ValueError, TypeError, KeyError, struct.error, zlib.error) as error:
        raise CorruptData(f"not a mirror's note: {error}") from error


def join_ledger_rows(parts: Iterable[LedgerRows]) -> LedgerRows:
    """Join the map rows, copied offsets and numbers of records of several tasks."""
    rows: tuple[MapRow, ...] = ()
    copied: dict[tuple[int, int], tuple[int, int]] = {}
    records = 0
    for part in parts:
        rows = append_rows(rows, part.rows)
        records += part.records
        for partition, (start, end) in part.copied.items():
            old = copied.get(partition, (start, end))
            copied[partition] = min(old[0], start), max(old[1], end)
    return LedgerRows(rows=rows, copied=copied, records=records)


# Columns that a transform must keep, because the offset map needs the offsets at the source.
ORIGIN: Final = ("source", "topic", "partition", "offset")

TARGET_PARTITION: Final = "targetPartition"
RECORD: Final = ("key", "value", "headers", "timestamp")
REPORT_SCHEMA: Final = "report string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Target topics of the source topics, in the form that tasks need.

    Attributes:
        pairs: One item for each pair of topics, in the order of the plan. An item has the index of
            the source, the name of the source topic, and the name of the target topic.
        counts: Number of partitions of each target topic.
        partitioning: How the partition of a record is chosen.
    """

    pairs: tuple[tuple[int, str, str], ...]
    counts: tuple[tuple[str, int], ...]
    partitioning: Partitioning

    @property
    def targets(self) -> list[str]:
        """Names of the target topics, by number."""
        return [name for name, _ in self.counts]

    def target_numbers(self) -> dict[int, int]:
        """Return a mapping from each pair's index to the index of its target topic."""
        return {n: self.targets.index(pair[2]) for n, pair in enumerate(self.pairs)}


class Origins:
    """Converts record batches to rows for a ledger and rows for the sink. Not thread-safe."""

    def __init__(self, routes: Routes, *, task: int) -> None:
        """Create the converter for one task.

        Args:
            routes: Target topics of the source topics.
            task: Index of the task. If keys choose the partition, the index also determines the
                partition for the records without a key in the task's first record batch. The
                records without a key in each further record batch go to the next partition.
        """
        self._routes = routes
        numbers = routes.target_numbers()
        self._target_of = np.array([numbers[n] for n in range(len(numbers))], np.int32)
        self._turn = task

    def read(self, batch: pa.RecordBatch) -> tuple[RoutedRows, pa.RecordBatch]:
        """Return the rows for the ledger, and the same rows for the sink.

        Raises:
            InvalidRequest: A row has null in a column of `ORIGIN`, or its topic is not copied.
            InvalidTimestamp: A transform has set a create time before 1970.
        """
        self._turn += 1
        if any(batch.column(name).null_count for name in ORIGIN):
            raise InvalidRequest(
                f"a row has null in one of the columns {', '.join(ORIGIN)}: a transform must leave"
                " these columns as they are"
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
        """Return the index of the pair for each row."""
        sources = _ints(batch, "source")
        pairs = np.full(len(sources), -1, np.int32)
        topics = batch.column("topic")
        for number, (source, topic, _) in enumerate(self._routes.pairs):
            pairs[(sources == source) & np.asarray(pc.equal(topics, pa.scalar(topic)))] = number
        if (pairs < 0).any():
            topic = str(topics[int(np.flatnonzero(pairs < 0)[0])])
            raise InvalidRequest(f"a row has the topic {topic}, which is not mirrored")
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
            target_numbers = batch.column(TARGET_PARTITION)
            chosen_targets = np.asarray(target_numbers.fill_null(0)).astype(np.int32)
            return np.where(np.asarray(target_numbers.is_valid()), chosen_targets, chosen_numbers)
        return chosen_numbers

    def _for_sink(self, batch: pa.RecordBatch, rows: RoutedRows) -> pa.RecordBatch:
        """Return columns for the sink.

        A missing create time becomes -1 ms, because the sink would replace null by the current
        time.
        """
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
    """Return create times in ms, rounded down; -1 for null (no create time)."""
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
    """Message from a task to the driver.

    Attributes:
        task: Index of the task. Segments are attached in the order of the tasks' indexes.
        noted: Map rows with target offsets. If the target is a directory, the offsets are relative
            to the task's first record in each partition. If the target is a cluster, the offsets
            are final.
        staged: Segments that the task has staged; empty for brokers.
        counts: Items (index of the target topic, target partition, count of records).
        was_done: Whether an earlier attempt had already written all of the task's rows.
    """

    task: int
    noted: LedgerRows
    staged: tuple[StagedSegment, ...] = ()
    counts: tuple[tuple[int, int, int], ...] = ()
    was_done: bool = False

    def encode(self) -> str:
        """Return the report as text for the driver."""
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
        """Decode the result of `encode`."""
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
    """Add each record batch of a task to the ledger, then yield the batch's rows for the sink."""
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
    """Function that stages the rows of a task; called by `mapInArrow`.

    Attributes:
        options: Options of the sink.
        routes: Target topics of the source topics.
        commit_id: Id of the batch's commit. The names of staged files begin with this id.
    """

    options: SinkOptions
    routes: Routes
    commit_id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows and yield one report; if staging fails, the staged files are removed."""
        from tidelog.spark.directory_sink import stage

        task, ledger = task_number(), Ledger(self.routes.target_numbers())
        rows = _noted_rows(batches, self.routes, task, ledger)
        staged = stage(self.options, rows, self.commit_id)
        noted = LedgerRows(rows=ledger.rows, copied=ledger.copied, records=ledger.records)
        counts = tuple((a, b, count) for (a, b), count in sorted(ledger.counts.items()))
        yield _report_batch(Report(task=task, noted=noted, staged=tuple(staged), counts=counts))


class SentLedger:
    """Collects the offsets that brokers assign to the rows of one task. Not thread-safe.

    The rows of a partition are acknowledged in the order in which they were sent, so the n-th
    acknowledgement is for the n-th row. The unacknowledged rows are from only one micro-batch, so
    they need a bounded amount of memory.
    """

    def __init__(self, routes: Routes) -> None:
        self._names = {name: number for number, name in enumerate(routes.targets)}
        self._topic_of = routes.target_numbers()
        self._waiting: list[RoutedRows] = []
        self._offsets: dict[tuple[int, int], array[int]] = {}

    def take(self, rows: RoutedRows) -> None:
        """Add rows that will be sent next."""
        self._waiting.append(rows)

    def sent(self, topic: str, partition: int, offset: int) -> None:
        """Add the target offset of one acknowledged row. Acknowledged markers are ignored."""
        number = self._names.get(topic)
        if number is not None:  # the topic of markers has no number
            key = (number, partition)
            if key not in self._offsets:
                self._offsets[key] = array("q")
            self._offsets[key].append(offset)

    def noted(self, arrival_ms: int) -> LedgerRows:
        """Return the map rows for all sent rows; all of them must have been acknowledged."""
        offsets = {
            key: np.frombuffer(reported, np.int64) for key, reported in self._offsets.items()
        }
        ledger = AcknowledgedLedger(self._topic_of, offsets, arrival_ms)
        for rows in self._waiting:
            ledger.take(rows)
        return LedgerRows(rows=ledger.rows, copied=ledger.copied, records=ledger.records)


class AcknowledgedLedger(Ledger):
    """Ledger whose target offsets are the final offsets that brokers have acknowledged."""

    def __init__(
        self,
        topics: dict[int, int],
        offsets: "dict[tuple[int, int], npt.NDArray[np.int64]]",
        arrival_ms: int,
    ) -> None:
        super().__init__(topics, arrival_ms=arrival_ms)
        self._offsets = offsets

    def offsets_of(
        self, topic: int, partition: int, start: int, count: int
    ) -> "npt.NDArray[np.int64]":
        """Return the target offsets of `count` rows of a partition, from row `start` on."""
        offsets = self._offsets[topic, partition][start : start + count]
        assert len(offsets) == count, "every row was reported"
        return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorBrokerTask:
    """Function that sends the rows of a task in one transaction; called by `mapInArrow`.

    Attributes:
        options: Options of the sink.
        routes: Target topics of the source topics.
        mirror_id: Id of the mirror, which is a part of the writer's name.
        batch_id: Number of the micro-batch.
    """

    options: SinkOptions
    routes: Routes
    mirror_id: str
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows and yield one report."""
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
    """Decode the reports of all tasks, ordered by task."""
    return sorted(map(Report.decode, texts), key=lambda report: report.task)
