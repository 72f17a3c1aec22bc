"""Tasks of an audit: reduce records to rows by key, compare rows, and read keys of differences.

1. `ReducePart` reads a part of A or B and reduces it to rows by key. The task writes the rows to
   files in the audit's folder, and returns only the run (range of offsets, file names and counts)
   to the driver.
2. `ComparePart` compares some chunks of both sides; `order_part` checks the order of keys. A chunk
   contains a range of key hashes. A task reads its chunks in the files of all partitions on both
   sides, so all rows of a key are compared by one task.
3. `KeyPart` reads the keys for the differences that the report lists, because rows contain only
   hashes of keys. For each of these keys, the task looks up one record by offset. The lookup begins
   at an index entry, and reads some kilobytes of the log.

The parts are planned in `plan`, the order of the steps is in `run`, the rules of the comparison are
in `key_verdicts`, and the tables of rows in `record.columns.key_tables`.
"""

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tidelog.env import Env, os_env
from tidelog.errors import CorruptFile, OffsetOutOfRange
from tidelog.jobs.audit import key_verdicts
from tidelog.jobs.audit.key_verdicts import KIND, PAIR_FIELDS
from tidelog.jobs.audit.options import KINDS
from tidelog.jobs.audit.state import ROWS_SUFFIX, SEED_BYTES, Run, decode_run, encode_run
from tidelog.jobs.audit.state_files import read_rows, write_rows
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.record.columns.key_tables import COLUMNS, ROWS_MAX, KeyTable, Reducer, joined
from tidelog.record.kernels import key_rows
from tidelog.scan.split import ScanStats, decode_split
from tidelog.spark.parts import directory_env
from tidelog.spark.places import Place
from tidelog.spark.workers import prepare_digests
from tidelog.storage.files import read_exactly, write_fully
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.record.kernels.memory import Longs
    from tidelog.spark.broker_tasks import BrokerTask
    from tidelog.storage.directory.log_dir import LogDir


REDUCED: Final = "run string"
_SEEDS: Final = struct.Struct("<5q")

assert _SEEDS.size == SEED_BYTES


def seeds_of(seed: bytes) -> "Longs":
    """Return the seed as five 64-bit words, for the kernels."""
    return np.array(_SEEDS.unpack(seed), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducePart:
    """Task that reads a part of A or B and reduces it to rows; implements `Work`.

    Attributes:
        places: Places of both sides, by letter.
        folder: Folder for the files of rows.
        seed: Seed of the hashes.
        span_ms: Length of a time span in ms.
        isolation: READ_COMMITTED reads up to the last stable offset, without records of aborted
            transactions.
        times: Range of record timestamps in ms, [start, end), for brokers; None for all records.
        rows_max: Maximum number of keys that a task holds in memory.
    """

    places: tuple[tuple[str, Place], ...]
    folder: str
    seed: bytes
    span_ms: int
    isolation: IsolationLevel
    times: tuple[int, int] | None = None
    rows_max: int = ROWS_MAX

    def __call__(self, part: str) -> tuple[object, ...]:
        """Run one task; `part` is a JSON list of the run and the run's split (null for brokers).

        Returns one cell: the run as JSON, with its files and counts.
        """
        prepare_digests()
        fields, split = json.loads(part)
        run, env, stats = decode_run(fields), os_env(), ScanStats()
        row_files = _Files(env, self.folder)
        seeds = seeds_of(self.seed)
        reducer = Reducer(seeds, run.partition, self.span_ms, row_files, rows_max=self.rows_max)
        self._read(run, split, stats, reducer)
        reducer.finish()
        return (encode_run(_with_counts(run, reducer, row_files, stats)),)

    def _read(self, run: Run, split: str | None, stats: ScanStats, reducer: Reducer) -> None:
        place = dict(self.places)[run.side]
        if split is None:
            task = broker_task(place, run, run.start, run.end, self.isolation, COLUMNS)
            for batch in replace(task, time_range=self.times).read():
                reducer.add(batch)
            return
        from tidelog.objects.object_files import env_for
        from tidelog.scan.reader import ReadOptions, read

        one = decode_split(split)
        env = env_for(one.directory, None, dict(place.store))
        options = ReadOptions(fail_on_data_loss=False, env=env, fold=reducer)
        for _ in read(one, COLUMNS, options=options, stats=stats):
            raise AssertionError("the reducer consumes all batches")


class _Files:
    """Writer of files of rows. File names are random, so a repeated task overwrites no file."""

    def __init__(self, env: Env, folder: str) -> None:
        self._env, self._folder = env, folder
        self._stem = f"{env.random.getrandbits(64):016x}"
        self.names: list[str] = []
        self.rows = 0

    def __call__(self, rows: "Longs") -> None:
        name = f"{self._stem}-{len(self.names)}{ROWS_SUFFIX}"
        write_rows(self._env, f"{self._folder}/{name}", rows)
        self.names.append(name)
        self.rows += len(rows)


def _with_counts(run: Run, reducer: Reducer, files: _Files, stats: ScanStats) -> Run:
    return replace(
        run,
        files=tuple(files.names),
        rows=files.rows,
        records=reducer.records,
        unkeyed=reducer.unkeyed,
        unkeyed_sum=reducer.unkeyed_sum,
        untimed=reducer.untimed,
        span_ms=reducer.spans.span_ms,
        spans=tuple(reducer.spans.items()),
        log_bytes=stats.log_bytes,
        lost=tuple(map(str, stats.lost)),
    )


def broker_task(  # noqa: PLR0913 - the place, the offsets, and how they are read
    place: Place,
    run: Run,
    start: int,
    end: int,
    isolation: IsolationLevel,
    columns: tuple[str, ...],
    *,
    fail_on_data_loss: bool = True,
) -> "BrokerTask":
    """Return a task that reads the offsets [start, end) of a run's partition from brokers.

    An audit must read all records. So by default, the task raises an error if offsets no longer
    exist.
    """
    from tidelog.spark.broker_tasks import BrokerTask
    from tidelog.spark.options import SourceOptions

    options = SourceOptions(
        bootstrap=place.address,
        client=place.client,
        isolation=isolation,
        columns=columns,
        fail_on_data_loss=fail_on_data_loss,
    )
    return BrokerTask(
        name=TopicPartition(run.topic, run.partition),
        start_offset=start,
        end_offset=end,
        topic_id=run.topic_id,
        columns=columns,
        options=options,
    )


COMPARED: Final = "counts string, differences binary"
PAIRS_SUFFIX: Final = ".pairs.rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePart:
    """Task that compares some chunks of a topic; implements `Work`.

    Attributes:
        folder: Folder with the files of rows. The task also writes its file of pairs to this
            folder.
        keys_max: Maximum number of differing keys that a task returns for each kind of difference.
            The returned counts include all differing keys.
        wants_order: Whether a later step checks the order of keys.
    """

    folder: str
    keys_max: int
    wants_order: bool

    def __call__(self, part: str) -> tuple[object, ...]:
        """Run one task; `part` is a JSON object.

        The fields of `part` are:

        - `files`: for each side, a list of partitions (partition number, names of files ordered by
          offset); null for a missing side;
        - `chunks`: [start, end);
        - `history`: see `key_verdicts.compare`;
        - `positions`: the group's committed offset by partition of B, or of A if there is no B;
          null without a group;
        - `behind`: files of later records that are not compared, see `run`.
        """
        fields, env = json.loads(part), os_env()
        start, end = fields["chunks"]
        counts: dict[str, object] = {"damaged": []}
        sides = []
        for files in fields["files"]:
            rows = None if files is None else self._side(env, files, start, end, counts)
            sides.append(rows)
        behind = self._side(env, fields["behind"], start, end, counts)
        if counts["damaged"]:
            return json.dumps(counts), b""
        differences = self._compare(env, sides, fields, counts, _table_of(behind))
        return json.dumps(counts), differences.tobytes()

    def _side(
        self,
        env: Env,
        files: Sequence[tuple[int, Sequence[str]]],
        start: int,
        end: int,
        counts: dict[str, object],
    ) -> "Longs":
        """Return one row for each key of a side.

        The names of damaged or missing files are added to `counts`.
        """
        partitions, damaged = [], counts["damaged"]
        assert isinstance(damaged, list)
        for _, names in files:
            tables = []
            for name in names:
                try:
                    tables.append(read_rows(env, f"{self.folder}/{name}", start, end))
                except (CorruptFile, FileNotFoundError):
                    damaged.append(name)
            partitions.append(joined(tables))
        return joined(partitions, across=True)

    def _compare(
        self,
        env: Env,
        sides: "Sequence[Longs | None]",
        fields: Mapping[str, object],
        counts: dict[str, object],
        unsure: KeyTable | None,
    ) -> "Longs":
        a_rows, b_rows = sides
        assert a_rows is not None
        differences = [np.empty((0, key_verdicts.DIFFERENCE_FIELDS), np.int64)]
        counts["a_keys"], counts["b_keys"], counts["deleted"] = len(a_rows), 0, 0
        if b_rows is not None:
            table = KeyTable(max(len(a_rows), 1))
            table.add(a_rows)
            compared = key_verdicts.compare(
                table, b_rows, history=bool(fields["history"]), unsure=unsure
            )
            differences.append(compared.differences)
            counts["b_keys"], counts["deleted"] = len(b_rows), compared.deleted
            counts["superseded"] = compared.superseded
            if self.wants_order:
                counts["pairs"] = self._write_pairs(env, compared.pairs)
        positions = fields["positions"]
        if isinstance(positions, dict):
            last = a_rows if b_rows is None else b_rows
            by_number = {int(number): int(offset) for number, offset in positions.items()}
            partitions = sorted(by_number)
            offsets = [by_number[number] for number in partitions]
            differences.append(key_verdicts.undelivered(last, partitions, offsets))
        return self._limited(np.concatenate(differences), counts)

    def _limited(self, differences: "Longs", counts: dict[str, object]) -> "Longs":
        """Add each kind's count to `counts`; return at most `keys_max` differences of each kind."""
        limited = []
        for number, kind in enumerate(KINDS):
            of_kind = differences[differences[:, KIND] == number]
            counts[kind.value] = len(of_kind)
            limited.append(of_kind[: self.keys_max])
        return np.concatenate(limited)

    def _write_pairs(self, env: Env, pairs: "Longs") -> list[object]:
        """Write the rows of equal keys to a file; return the file's name and its sections.

        A section contains all rows that have the same partition on A and the same partition on B. A
        section is returned as a list: partition on A, partition on B, count of rows, and checksum
        of the rows.
        """
        order = np.lexsort(
            (pairs[:, key_verdicts.PAIR_B_PARTITION], pairs[:, key_verdicts.PAIR_A_PARTITION])
        )
        pairs = pairs[order]
        partitions = pairs[:, [key_verdicts.PAIR_A_PARTITION, key_verdicts.PAIR_B_PARTITION]]
        groups, counts = np.unique(partitions, axis=0, return_counts=True)
        name = f"{env.random.getrandbits(64):016x}{PAIRS_SUFFIX}"
        file = env.files.open(f"{self.folder}/{name}", write=True, create=True)
        try:
            write_fully(file, np.ascontiguousarray(pairs, "<i8").tobytes(), 0)
        finally:
            file.close()
        cut = np.cumsum(counts)[:-1]
        sums = [crc32c(np.ascontiguousarray(g, "<i8").tobytes()) for g in np.split(pairs, cut)]
        sections = [
            [*group, count, crc]
            for group, count, crc in zip(groups.tolist(), counts.tolist(), sums, strict=False)
        ]
        return [name, sections]


def _table_of(rows: "Longs") -> KeyTable | None:
    """Return a table that finds the rows by key; None if there are no rows."""
    if not len(rows):
        return None
    table = KeyTable(len(rows))
    table.add(rows)
    return table


ORDERED: Final = "displaced binary"


def order_part(folder: str, part: str) -> tuple[object, ...]:
    """Check the order of keys in a pair of partitions (A, B), in a Spark task; implements `Work`.

    `part` is a JSON list of sections, see `run.Section`.
    """
    return (displaced_in(os_env(), folder, json.loads(part)).tobytes(),)


def displaced_in(env: Env, folder: str, sections: Sequence[tuple[str, int, int, int]]) -> "Longs":
    """Return the displaced pairs in sections of files; see `key_verdicts.displaced`.

    Raises:
        CorruptFile: The checksum of a section does not match.
    """
    parts = []
    for name, first, count, crc in sections:
        file = env.files.open(f"{folder}/{name}")
        try:
            data = read_exactly(file, count * PAIR_FIELDS * 8, first * PAIR_FIELDS * 8)
        finally:
            file.close()
        if crc32c(data) != crc:
            raise CorruptFile("the pairs do not match their checksum", path=f"{folder}/{name}")
        parts.append(np.frombuffer(data, "<i8").reshape(-1, PAIR_FIELDS).astype(np.int64))
    return key_verdicts.displaced(np.concatenate(parts))


assert key_rows.FIELDS * 2 + 1 == key_verdicts.DIFFERENCE_FIELDS

KEYS: Final = "keys string, log_bytes bigint"

# Maximum number of records whose keys one task reads. All these records are in one partition.
OFFSETS_AT_ONCE: Final = 500

_COLUMNS: Final = ("offset", "createTimestamp", "key")


class RecordPosition(NamedTuple):
    """Position of a record: side, topic, partition and offset."""

    side: str
    topic: str
    partition: int
    offset: int


def key_parts(
    records: Sequence[RecordPosition], topic_ids: Mapping[tuple[str, str], str]
) -> list[str]:
    """Return the inputs of the `KeyPart` tasks that read the keys of these records.

    Args:
        records: The records.
        topic_ids: Topic ids, by side and topic.
    """
    parts: list[str] = []
    by_name: dict[tuple[str, str, int], list[int]] = {}
    for record in sorted(set(records)):
        by_name.setdefault(record[:3], []).append(record.offset)
    for name, offsets in by_name.items():
        topic_id = topic_ids.get(name[:2], "")
        parts += [
            json.dumps([*name, topic_id, offsets[at : at + OFFSETS_AT_ONCE]])
            for at in range(0, len(offsets), OFFSETS_AT_ONCE)
        ]
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """Task that reads the keys of some records in one partition; implements `Work`.

    Attributes:
        places: Places of both sides, by letter.
        isolation: Isolation level of reads from brokers.
    """

    places: tuple[tuple[str, Place], ...]
    isolation: IsolationLevel

    def __call__(self, part: str) -> tuple[object, ...]:
        """Run one task; `part` is a JSON list: side, topic, partition, topic id, offsets."""
        side, topic, partition, topic_id, offsets = json.loads(part)
        place = dict(self.places)[side]
        if place.is_broker:
            run = Run(
                side=side, topic=topic, partition=partition, start=0, end=0, topic_id=topic_id
            )
            records, log_bytes = self._from_brokers(place, run, offsets), 0
        else:
            records, log_bytes = _from_directory(place, TopicPartition(topic, partition), offsets)
        cells = [
            [side, topic, partition, offset, create_ms, _text(key)]
            for offset, create_ms, key in records
        ]
        return json.dumps(cells), log_bytes

    def _from_brokers(self, place: Place, run: Run, offsets: Sequence[int]) -> "list[KeyRow]":
        records: list[KeyRow] = []
        for offset in offsets:
            # If a record was deleted after it was compared, its key is reported as None.
            task = broker_task(
                place,
                run,
                offset,
                offset + 1,
                self.isolation,
                _COLUMNS,
                fail_on_data_loss=False,
            )
            for batch in task.read():
                records += _rows(batch)
        return records


# Offset, create time in ms, and key of a record.
KeyRow = tuple[int, int | None, bytes | None]


def _from_directory(
    place: Place, name: TopicPartition, offsets: Sequence[int]
) -> tuple[list[KeyRow], int]:
    from tidelog.scan.plan import with_directory

    def look(log_dir: "LogDir") -> tuple[list[KeyRow], int]:
        reader = log_dir.reader(name.topic, name.partition)
        records: list[KeyRow] = []
        log_bytes = 0
        for offset in offsets:
            # If a record was deleted after it was compared, its key is reported as None.
            with suppress(OffsetOutOfRange):
                for part in reader.slices(offset, offset + 1):
                    data = part.segment.view(part.start_position, part.end_position)
                    log_bytes += len(data)
                    for batch in _decoded(data, offset):
                        records += _rows(batch)
        return records, log_bytes

    return with_directory(place.address, directory_env(place), look)


def _decoded(data: memoryview, offset: int) -> "Iterator[pa.RecordBatch]":
    from tidelog.record.columns.batch_table import Selection
    from tidelog.record.columns.decode import decode

    return decode(data, Selection(offset_start=offset, offset_end=offset + 1), columns=_COLUMNS)


def _rows(batch: "pa.RecordBatch") -> Iterator[KeyRow]:
    import pyarrow as pa

    times = batch.column("createTimestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    columns = (batch.column("offset"), times, batch.column("key"))
    yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _text(key: bytes | None) -> str | None:
    return None if key is None else base64.b64encode(key).decode("ascii")


def read_cells(text: str) -> Iterator[tuple[RecordPosition, int | None, bytes | None]]:
    """Yield position, create time in ms and key of each record in a result of `KeyPart`."""
    for side, topic, partition, offset, create_ms, key in json.loads(text):
        content = None if key is None else base64.b64decode(key)
        yield RecordPosition(side, topic, partition, offset), create_ms, content
