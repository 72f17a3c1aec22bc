"""`tidelog dump`: prints the content of log files, and reports damage in them.

Each kind of file has its own rows and its own checks. Offset and time indexes, append times and
zone maps are also checked against the segment's log file. No file is changed.
"""

import posixpath
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import click

from tidelog.amounts import duration_text, plural
from tidelog.cli import cells, output
from tidelog.cli.cells import Decode
from tidelog.cli.options import (
    Encoding,
    Format,
    argument,
    declared_by,
    examples,
    format_option,
    key_as_option,
    option,
    refuse_typed,
    value_as_option,
    with_options,
    zone_option,
)
from tidelog.cli.output import Cell, Columns, Row
from tidelog.cli.retention import DELETIONS, deletion_row
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.env import FileSystem
from tidelog.errors import CorruptData, CorruptFile, UnsupportedCompression, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch
from tidelog.record.coding import crc32c
from tidelog.record.offset_order import first_known_offset, has_jumped, jump_problem, order_problem
from tidelog.record.record import Record, read_control_type, read_end_marker
from tidelog.storage import files, log_files, text_files
from tidelog.storage.clocks import append_times
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import FileSum, Zone, ZoneMap
from tidelog.storage.directory.topic_registry import decode_topics
from tidelog.storage.files import TOPICS_FILE
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.producers import decode_snapshot
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment import deletion_history, segment_notes
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.sorted_index import SortedIndex
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX, NO_TIMESTAMP


class FileDump(NamedTuple):
    """A file's content as rows.

    Iterating over the rows adds the file's findings and notes to its `DumpFile`.
    """

    columns: Columns
    rows: Iterator[Row]


@dataclass(slots=True)
class DumpFile:
    """A dumped file.

    Attributes:
        path: Path of the file.
        file_system: File system of the file.
        base_offset: Base offset from the file's name; 0 if the name has none.
        findings: Lines about damage in the file.
        notes: Lines about checks that were not possible, and other remarks.
    """

    path: str
    file_system: FileSystem
    base_offset: int = 0
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, text: str) -> None:
        """Add a finding, a line about damage."""
        self.findings.append(f"{self.path}: {text}")

    def find_error(self, error: CorruptData) -> None:
        """Add a finding about damage that a decoder raised as an error."""
        located = error if error.path else error.located(self.path)
        self.findings.append(str(located))

    def note(self, text: str) -> None:
        """Add a note, a line that is not about damage."""
        self.notes.append(f"{self.path}: {text}")

    def read(self) -> bytes:
        """Return the content of the whole file, which must be small."""
        return files.read_file(self.file_system, self.path)

    def beside(self, name: str) -> str:
        """Return the path of another file in the dumped file's directory."""
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.path), name))

    def log_batches(self) -> list["BatchFacts"] | None:
        """Return the batches of the segment's log file; None if this file is missing or damaged."""
        path = self.beside(log_files.log_file_name(self.base_offset))
        if not self.file_system.exists(path):
            self.note("the segment's log file is missing; entries were not compared with it")
            return None
        try:
            return [_facts(position, batch) for position, batch in walk_log(self, path)]
        except CorruptData as error:
            self.note(
                f"the segment's log file is damaged; entries were not compared with it: {error}"
            )
            return None


class BatchFacts(NamedTuple):
    """Fields of a batch in the log; entries of indexes and append times are compared with them."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    fingerprint: int


def _facts(position: int, batch: Batch) -> BatchFacts:
    return BatchFacts(
        position, batch.base_offset, batch.last_offset, batch.max_timestamp, fingerprint(batch)
    )


def walk_log(dump: DumpFile, path: str) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of a log file with their positions; closes the file at the end.

    Raises:
        CorruptBatch: A batch's frame is invalid; the error contains the batch's position.
    """
    file = dump.file_system.open(path)
    try:
        yield from walk_file(file, path, 0, file.size())
    finally:
        file.close()


_BATCH_COLUMNS = output.columns(
    output.number("position", "bytes", "first_offset", "last_offset", "records"),
    output.minor(output.number("magic")),
    "codec",
    output.minor("timestamp_type"),
    output.time("max_timestamp"),
    output.minor(output.number("leader_epoch", "producer_id", "producer_epoch", "base_sequence")),
    output.minor("flags", "crc"),
    "valid",
)

_RECORD_COLUMNS = output.columns(
    output.number("position", "offset"),
    output.time("timestamp"),
    output.minor(output.time("create_time"), output.number("sequence")),
    output.key("key"),
    output.value("value"),
    output.minor("headers"),
)

_HEADER_VALUE: Final = cells.decoder(Encoding.AUTO)


def dump_log(dump: DumpFile, *, deep: bool, key: Encoding, value: Encoding) -> FileDump:
    """Return the batches of a log file, or their records, as rows.

    Damage becomes a finding. There are no rows after a batch with an invalid frame.

    Args:
        dump: The file.
        deep: Whether to return records instead of batches.
        key: Encoding in which keys are shown.
        value: Encoding in which values are shown.
    """
    if deep:
        rows_of = partial(_record_rows, cells.decoder(key), cells.decoder(value))
        return FileDump(_RECORD_COLUMNS, _rows(dump, rows_of))
    return FileDump(_BATCH_COLUMNS, _rows(dump, _batch_rows))


def _rows(
    dump: DumpFile, rows_of: Callable[[DumpFile, int, Batch, bool], Iterator[Row]]
) -> Iterator[Row]:
    """Yield the rows of the batches up to an invalid frame; damage becomes a finding."""
    end, next_offset, before = 0, 0, dump.base_offset
    last: tuple[int, Batch] | None = None
    try:
        for position, batch in walk_log(dump, dump.path):
            is_valid = batch.is_valid()
            if not is_valid:
                dump.find(f"position {position}: the batch's checksum is wrong")
            problem = order_problem(batch, next_offset)
            if problem is not None and last is not None and has_jumped(last[1], batch, before):
                first, following = (first_known_offset(each) for each in (last[1], batch))
                problem = jump_problem(first, last[1].last_offset, before, following)
                dump.find(f"position {last[0]}: {problem}")
                next_offset = before
            elif problem is not None:
                dump.find(f"position {position}: {problem}")
            yield from rows_of(dump, position, batch, is_valid)
            before, last = max(dump.base_offset, next_offset), (position, batch)
            end, next_offset = position + batch.size_bytes, batch.next_offset
    except CorruptData as error:
        dump.find_error(error)
    size = dump.file_system.stat(dump.path).size
    if end < size:
        dump.find(f"position {end}: incomplete batch; the last {size - end} bytes can't be read")


def _batch_rows(_dump: DumpFile, position: int, batch: Batch, is_valid: bool) -> Iterator[Row]:
    yield [
        position,
        batch.size_bytes,
        _base_offset(batch),
        batch.last_offset,
        batch.record_count,
        batch.magic,
        _codec(batch),
        batch.timestamp_type.config_name,
        batch.max_timestamp,
        _number_or_none(batch.leader_epoch),
        _number_or_none(batch.producer_id),
        _number_or_none(batch.producer_epoch),
        _number_or_none(batch.base_sequence),
        _flags(batch),
        f"{batch.crc:08x}",
        is_valid,
    ]


def _number_or_none(value: int) -> int | None:
    """Return a number, or None if it is negative, which means "unknown"."""
    return None if value < 0 else value


def _base_offset(batch: Batch) -> int | None:
    """Return the batch's first offset, or None if it is a wrapper message that can't be decoded."""
    with suppress(CorruptData, UnsupportedCompression):
        return batch.base_offset
    return None


def _codec(batch: Batch) -> str:
    try:
        return batch.codec.config_name
    except UnsupportedCompression as error:
        return str(error)


def _flags(batch: Batch) -> str | None:
    flags = []
    if batch.is_transactional:
        flags.append("transactional")
    if batch.is_control:
        flags.append("control")
    if batch.delete_horizon_ms is not None:
        flags.append(f"delete horizon {batch.delete_horizon_ms}")
    return ",".join(flags) or None


def _record_rows(
    key: Decode, value: Decode, dump: DumpFile, position: int, batch: Batch, is_valid: bool
) -> Iterator[Row]:
    if not is_valid:
        return
    try:
        for record in batch.records():
            control = _control(record) if batch.is_control else None
            yield [
                position,
                record.offset,
                record.timestamp,
                record.create_timestamp,
                _number_or_none(record.sequence),
                *(control or (key(record.key), value(record.value))),
                cells.headers_cell(record.headers, _HEADER_VALUE),
            ]
    except UnsupportedCompression as error:
        dump.find(f"position {position}: {error}")
    except CorruptData as error:
        dump.find_error(error.located(dump.path, position))


def _control(record: Record) -> tuple[Cell, Cell]:
    """Return a control record's type and, for a marker, its coordinator epoch, as cells."""
    kind = read_control_type(record.key).name.lower()
    with suppress(CorruptData):
        return kind, f"coordinator epoch {read_end_marker(record).coordinator_epoch}"
    return kind, None


# Start of the header of `.appendtime` files, up to the topic's id, inclusive.
_TOPIC_ID: Final = Struct(">8x16s")


def _offset_rows(dump: DumpFile) -> Iterator[Row]:
    """Yield the entries of an offset index.

    An entry has the last offset and the position of a batch. A finding is reported in three cases:
    the log has no batch at that position, the batch there has another last offset, or offset and
    position are not both greater than in the previous entry.
    """
    index = OffsetIndex(dump.base_offset, data=dump.read(), size_limit=INT64_MAX)
    _note_tail(dump, index)
    batches = dump.log_batches()
    at_position = {batch.position: batch for batch in batches or ()}
    last_offset, last_position = -1, -1
    for slot, (offset, position) in enumerate(index.entries()):
        if offset <= last_offset or position <= last_position:
            dump.find(
                f"slot {slot}: offset {offset} and position {position} must both be greater than"
                " those of the previous entry"
            )
        if batches is not None:
            _check_offset_entry(dump, slot, offset, at_position.get(position))
        last_offset, last_position = offset, position
        yield [slot, offset, position]


def _check_offset_entry(dump: DumpFile, slot: int, offset: int, batch: BatchFacts | None) -> None:
    if batch is None:
        dump.find(f"slot {slot}: no batch begins at the entry's position")
    elif batch.last_offset != offset:
        dump.find(
            f"slot {slot}: the entry has offset {offset}, but the batch at the entry's position"
            f" ends at offset {batch.last_offset}"
        )


def _note_tail(dump: DumpFile, index: SortedIndex) -> None:
    if index.tail_bytes % index.ENTRY_SIZE:
        dump.find(f"the file's size is not a multiple of {index.ENTRY_SIZE}, the size of an entry")
    elif index.tail_bytes:
        dump.note(
            f"{index.tail_bytes} zero bytes at the end: Kafka preallocates the index of an active"
            " segment"
        )


def _time_rows(dump: DumpFile) -> Iterator[Row]:
    """Yield the entries of a time index.

    An entry has the last offset of a batch, and the log's largest timestamp up to that offset. A
    finding is reported in three cases: no batch of the log has this last offset, the log's largest
    timestamp up to this offset differs, or the entries are not in ascending order.
    """
    index = TimeIndex(dump.base_offset, data=dump.read(), size_limit=INT64_MAX)
    _note_tail(dump, index)
    batches = dump.log_batches()
    largest = _largest_up_to(batches or [])
    last_timestamp, last_offset = -1, -1
    for slot, (timestamp, offset) in enumerate(index.entries()):
        if timestamp <= last_timestamp or offset < last_offset:
            dump.find(
                f"slot {slot}: timestamp {timestamp} must be greater than that of the previous"
                f" entry, and offset {offset} must not be smaller"
            )
        if batches is not None and largest.get(offset) != timestamp:
            log_timestamp = largest.get(offset)
            difference = (
                "but no batch ends at that offset"
                if log_timestamp is None
                else f"but the log's largest timestamp up to that offset is {log_timestamp}"
            )
            dump.find(f"slot {slot}: timestamp {timestamp} at offset {offset}, {difference}")
        last_timestamp, last_offset = timestamp, offset
        yield [slot, timestamp, offset]


def _largest_up_to(batches: list[BatchFacts]) -> dict[int, int]:
    """Map the last offset of each batch to the largest timestamp in the log up to this offset.

    The batch's own timestamps count too.
    """
    largest, largest_by_offset = -1, {}
    for batch in batches:
        largest = max(largest, batch.max_timestamp)
        largest_by_offset[batch.last_offset] = largest
    return largest_by_offset


def _append_rows(dump: DumpFile) -> Iterator[Row]:
    """Yield the rows of an append time file.

    A row with a known time has the base offset and the fingerprint of a batch. A finding is
    reported if no batch with this fingerprint begins at this offset in the log.
    """
    data = dump.read()
    topic_id = _topic_id(dump, data)
    times, damage = AppendTimes.decode(data, dump.base_offset, topic_id, open_end=True)
    if damage is not None:
        dump.find(f"{damage}; append times are unknown from there on")
    elif times.is_open:
        dump.note("the file has no end row: its segment is active, or was not closed")
    batches = dump.log_batches()
    starts = {batch.base_offset: batch for batch in batches or ()}
    for row, (offset, append_ms, crc) in enumerate(times.rows()):
        batch = starts.get(offset)
        is_there = batch is not None and batch.fingerprint == crc
        if batches is not None and append_ms >= 0 and not is_there:
            dump.find(f"row {row}: no batch with fingerprint {crc:08x} begins at offset {offset}")
        yield [row, offset, append_ms, f"{crc:08x}"]


def _topic_id(dump: DumpFile, data: bytes) -> uuid.UUID:
    """Return the topic's id, from the partition's directory or the file's header; 0 if unknown."""
    try:
        topic_id = text_files.read_partition_metadata(dump.file_system, dump.beside("."))
    except CorruptData as error:
        dump.note(f"{error}; using the topic id in the file's header, unchecked")
        topic_id = None
    if topic_id is not None or len(data) < append_times.HEADER_SIZE:
        return topic_id or uuid.UUID(int=0)
    return uuid.UUID(bytes=_TOPIC_ID.unpack_from(data)[0])


_Rows: TypeAlias = Callable[[DumpFile], Iterator[Row]]


def _decoded(rows_of: Callable[[bytes, int], Iterator[Row]]) -> _Rows:
    """Return a function that reads a whole file and yields its rows; damage becomes a finding.

    Args:
        rows_of: Yields the rows from the file's bytes and base offset.
    """

    def rows(dump: DumpFile) -> Iterator[Row]:
        try:
            yield from rows_of(dump.read(), dump.base_offset)
        except CorruptData as error:
            dump.find_error(error)
        except UnsupportedVersion as error:
            dump.find(str(error))

    return rows


def _aborted(data: bytes, base_offset: int) -> Iterator[Row]:
    yield from TxnIndex.decode(data, base_offset).entries


def _producers(data: bytes, _base: int) -> Iterator[Row]:
    yield from decode_snapshot(data)


def _offset_checkpoint(data: bytes, _base: int) -> Iterator[Row]:
    for name, offset in text_files.decode_offset_checkpoint(data).items():
        yield [name.topic, name.partition, offset]


def _epochs(data: bytes, _base: int) -> Iterator[Row]:
    yield from LeaderEpochs.decode(data).entries


def _append_time_checkpoint(data: bytes, _base: int) -> Iterator[Row]:
    for texts in text_files.decode_checkpoint(data, 3, 4):
        end, base, crc, *last_ms = (text_files.parse_number(text, "field") for text in texts)
        yield [end, base, f"{crc:08x}", last_ms[0] if last_ms else NO_TIMESTAMP]


def _segment_notes(data: bytes, _base: int) -> Iterator[Row]:
    notes, problems = segment_notes.decode_notes(data)
    for note in notes.values():
        base, end, crc, reason, roll_ms, arrival_ms = note
        yield [base, end, f"{crc:08x}", reason, roll_ms, arrival_ms]
    if problems:
        raise CorruptFile("; ".join(problems))


def _deletion_history(data: bytes, _base: int) -> Iterator[Row]:
    events, problems = deletion_history.decode_events(data)
    yield from map(deletion_row, events)
    if problems:
        raise CorruptFile("; ".join(problems))


def _metadata(data: bytes, _base: int) -> Iterator[Row]:
    yield ["topic_id", files.encode_topic_id(text_files.decode_partition_metadata(data))]


def _properties(data: bytes, _base: int) -> Iterator[Row]:
    yield from text_files.decode_meta_properties(data).items()


def _topics(data: bytes, _base: int) -> Iterator[Row]:
    for name, entry in decode_topics(data).topics.items():
        settings = ",".join(f"{key}={value}" for key, value in entry.given.items())
        yield [name, files.encode_topic_id(entry.topic_id), entry.partitions, settings]


_OFFSET_COLUMNS: Final = output.columns("topic", output.number("partition", "offset"))
_PAIR: Final = output.columns("name", "value")
_CHUNK_BYTES = 1 << 20


def _zone_rows(dump: DumpFile) -> Iterator[Row]:
    """Yield the zones of a zone map.

    A finding is reported if the log's bytes, or the files beside the log, don't match the zone
    map's checksums.
    """
    try:
        zone_map = ZoneMap.decode(dump.read(), report=dump.find)
        zone_map.verify()
    except CorruptData as error:
        dump.find_error(error)
        return
    except UnsupportedVersion as error:
        dump.note(str(error))
        return
    log_path = dump.beside(log_files.log_file_name(dump.base_offset))
    if dump.file_system.exists(log_path):
        _check_siblings(dump, zone_map)
    else:
        dump.note("the segment's log file is missing; zones were not compared with it")
        log_path = ""
    if zone_map.base_offset != dump.base_offset:
        dump.find(
            f"the zone map's base offset is {zone_map.base_offset}, but the file name has"
            f" {dump.base_offset}"
        )
    dump.note(_summary(zone_map))
    for number, zone in enumerate(zone_map.zones()):
        if log_path:
            _check_zone(dump, log_path, number, zone)
        yield [number, *_cells(zone)]


def _summary(zone_map: ZoneMap) -> str:
    latency = zone_map.latency.total()
    text = f"{plural(zone_map.zone_count, 'zone')}, {zone_map.total.size_bytes} bytes in total"
    if not latency.count:
        return f"{text}; no record has a known latency"
    records = plural(latency.count, "record")
    least, most = (duration_text(ms / 1000) for ms in (latency.min_ms, latency.max_ms))
    return f"{text}; latency of {records} from {least} to {most}"


def _cells(zone: Zone) -> Sequence[Cell]:
    """Return the fields of a zone.

    If no record has a time on a clock, the smallest and the largest time on this clock are None.
    """
    values: list[Cell] = list(zone)
    values[7] = "yes" if zone.is_transactional else "no"
    for count, low in ((zone.timed_records, 9), (zone.stamped_records, 12)):
        if not count:
            values[low] = values[low + 1] = None
    return [*values[:-1], f"{zone.crc:08x}"]


def _check_zone(dump: DumpFile, log_path: str, number: int, zone: Zone) -> None:
    size, crc = _sum(dump, log_path, zone.position, zone.size_bytes)
    if (size, crc) != (zone.size_bytes, zone.crc):
        dump.find(
            f"zone {number}: bytes {zone.position} to {zone.end_position - 1} of the log (offsets"
            f" {zone.first_offset} to {zone.last_offset}) have changed since the zone map was built"
        )


def _check_siblings(dump: DumpFile, zone_map: ZoneMap) -> None:
    for suffix in log_files.SUMMED_SUFFIXES:
        path = dump.beside(log_files.file_name(dump.base_offset, suffix))
        exists = dump.file_system.exists(path)
        expected = zone_map.siblings.get(suffix)
        if exists and FileSum(*_sum(dump, path, 0, dump.file_system.stat(path).size)) != expected:
            dump.find(f"{path} has changed since the zone map was built")
        elif expected is not None and not exists:
            dump.find(f"{path} was deleted after the zone map was built")


def _sum(dump: DumpFile, path: str, start: int, size: int) -> tuple[int, int]:
    """Return how many bytes of a range exist in a file, and the checksum of these bytes."""
    file, done, crc = dump.file_system.open(path), 0, 0
    try:
        while done < size:
            data = file.pread(min(_CHUNK_BYTES, size - done), start + done)
            if not data:
                break
            crc = crc32c(data, crc)
            done += len(data)
    finally:
        file.close()
    return done, crc


# Maps a file's name or suffix to the columns and rows of the file's content. Log files are not in
# this mapping, because they have several sets of columns.
_KINDS: Final[Mapping[str, tuple[Columns, _Rows]]] = {
    log_files.OFFSET_INDEX_SUFFIX: (output.number("slot", "offset", "position"), _offset_rows),
    log_files.TIME_INDEX_SUFFIX: (
        output.columns(output.number("slot"), output.time("timestamp"), output.number("offset")),
        _time_rows,
    ),
    log_files.TXN_INDEX_SUFFIX: (
        output.number("producer_id", "first_offset", "last_offset", "last_stable_offset"),
        _decoded(_aborted),
    ),
    log_files.SNAPSHOT_SUFFIX: (
        output.columns(
            output.number("producer_id", "epoch", "last_sequence", "last_offset", "offset_delta"),
            output.time("timestamp"),
            output.number("coordinator_epoch", "txn_first_offset"),
        ),
        _decoded(_producers),
    ),
    log_files.APPEND_TIME_SUFFIX: (
        output.columns(output.number("row", "offset"), output.time("append_time"), "fingerprint"),
        _append_rows,
    ),
    log_files.ZONES_SUFFIX: (
        output.columns(
            output.number("zone", "position", "size_bytes", "first_offset", "last_offset"),
            output.number("data_records"),
            output.minor(output.number("control_records", "tombstones"), "transactional"),
            output.minor(output.number("timed_records")),
            output.titled(
                min_timestamp=output.time("min_record"), max_timestamp=output.time("max_record")
            ),
            output.minor(output.number("stamped_records")),
            output.titled(
                min_append_time=output.time("min_append"), max_append_time=output.time("max_append")
            ),
            output.minor("crc"),
        ),
        _zone_rows,
    ),
    files.RECOVERY_POINT_CHECKPOINT_FILE: (_OFFSET_COLUMNS, _decoded(_offset_checkpoint)),
    files.LOG_START_CHECKPOINT_FILE: (_OFFSET_COLUMNS, _decoded(_offset_checkpoint)),
    files.HIGH_WATERMARK_CHECKPOINT_FILE: (_OFFSET_COLUMNS, _decoded(_offset_checkpoint)),
    files.CLEANER_CHECKPOINT_FILE: (_OFFSET_COLUMNS, _decoded(_offset_checkpoint)),
    files.LEADER_EPOCH_CHECKPOINT_FILE: (
        output.number("epoch", "start_offset"),
        _decoded(_epochs),
    ),
    files.APPEND_TIME_CHECKPOINT_FILE: (
        output.columns(
            output.number("end_offset", "last_base_offset"),
            "fingerprint",
            output.number("last_append_ms"),
        ),
        _decoded(_append_time_checkpoint),
    ),
    segment_notes.SEGMENT_NOTES_FILE: (
        output.columns(
            output.number("base_offset", "end_offset"),
            "fingerprint",
            "rolled",
            output.time("rolled_at", "seen"),
        ),
        _decoded(_segment_notes),
    ),
    deletion_history.DELETION_HISTORY_FILE: (DELETIONS, _decoded(_deletion_history)),
    files.PARTITION_METADATA_FILE: (_PAIR, _decoded(_metadata)),
    text_files.META_PROPERTIES_FILE: (_PAIR, _decoded(_properties)),
    TOPICS_FILE: (
        output.columns("topic", "topic_id", output.number("partitions"), "settings"),
        _decoded(_topics),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """Options of `tidelog dump`."""

    paths: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    deep: bool = option("--deep", is_flag=True, help="Show records instead of batches.")
    key_as: Encoding = declared_by(key_as_option)
    value_as: Encoding = declared_by(value_as_option)
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "dump",
    epilog=examples(
        "tidelog dump data/flights-0/00000000000000000000.log --deep",
        "tidelog dump data/flights-0 -o json",
    ),
)
@with_options(DumpOptions)
def dump(surroundings: Surroundings, options: DumpOptions) -> ExitCode:
    """Print the contents of log files, and where they are damaged.

    FILE is a file of a log, or the directory of a partition. Damage is reported on stderr, and the
    exit code is then 2.
    """
    if not options.deep:
        refuse_typed(("key_as", "value_as"), "applies only with --deep")
    file_system = surroundings.env.files
    paths = [path for argument in options.paths for path in _files_of(file_system, argument)]
    count = 0
    for path in paths:
        dumped_file = DumpFile(path, file_system, _base_offset_of(path))
        dumped = _dump(dumped_file, options)
        if options.kind is Format.JSON:
            dumped = _with_path(path, dumped)
        elif len(paths) > 1:
            surroundings.stdout.write(f"\n{path}\n")
        output.print_rows(
            surroundings, dumped.columns, dumped.rows, options.kind, zone=options.zone
        )
        for line in dumped_file.notes:
            surroundings.note(f"{line}")
        for line in dumped_file.findings:
            surroundings.fail(line)
        count += len(dumped_file.findings)
    if count:
        surroundings.say(f"{plural(count, 'finding')} in {plural(len(paths), 'file')}")
    return ExitCode.FINDINGS if count else ExitCode.OK


def _with_path(path: str, dumped: FileDump) -> FileDump:
    """Add the file's path to each row.

    JSON rows of several files are printed in one stream, so each row has to name its file.
    """
    return FileDump(output.columns("file", dumped.columns), ([path, *row] for row in dumped.rows))


def _files_of(file_system: FileSystem, path: str) -> Iterator[str]:
    if not file_system.exists(path):
        raise UsageProblem(f"{path}: no such file or directory")
    if not file_system.stat(path).is_dir:
        if _kind(path) is None:
            kinds = ", ".join((log_files.LOG_SUFFIX, *_KINDS))
            raise UsageProblem(
                f"{path}: the name is not that of a log file; known suffixes and names: {kinds}"
            )
        yield path
        return
    names = [entry.name for entry in file_system.list_dir(path) if not entry.is_dir]
    log_names = [name for name in names if _kind(name) is not None]
    if not log_names:
        raise UsageProblem(f"{path} contains no log files; give a partition's directory")
    yield from (posixpath.join(path, name) for name in log_names)


def _kind(path: str) -> str | None:
    """Return the suffix or name that determines a file's kind; None for an unknown file.

    Suffixes like `.deleted` are ignored.
    """
    name = posixpath.basename(path)
    if name in _KINDS:
        return name
    for extra in (log_files.DELETED_SUFFIX, log_files.CLEANED_SUFFIX, log_files.SWAP_SUFFIX):
        name = name.removesuffix(extra)
    suffix = posixpath.splitext(name)[1]
    return suffix if suffix == log_files.LOG_SUFFIX or suffix in _KINDS else None


def _base_offset_of(path: str) -> int:
    parsed = log_files.parse_file_name(posixpath.basename(path))
    return 0 if parsed is None else parsed[0]


def _dump(dumped: DumpFile, options: DumpOptions) -> FileDump:
    kind = _kind(dumped.path)
    assert kind is not None
    if kind == log_files.LOG_SUFFIX:
        return dump_log(dumped, deep=options.deep, key=options.key_as, value=options.value_as)
    columns, rows_of = _KINDS[kind]
    return FileDump(columns, rows_of(dumped))
