"""Dumps of the files beside a log file, each checked by its own rules and against the log."""

import uuid
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tidelog.cli import output
from tidelog.cli.dump_file import BatchFacts, Dumped, DumpFile
from tidelog.cli.output import Row
from tidelog.errors import CorruptData
from tidelog.storage import append_time, offset_index, text_files, time_index
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.producer_snapshot import decode_snapshot
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.txn_index import TxnIndex
from tidelog.types import INT64_MAX

# Where the header of `.appendtime` has the topic's id.
_TOPIC_ID: Final = Struct(">8x16s")


def dump_offset_index(dump: DumpFile) -> Dumped:
    """Offset index entries; each must lead to the batch whose last offset it names."""
    columns = [output.number("slot"), output.number("offset"), output.number("position")]
    return Dumped(columns, _offset_rows(dump))


def _offset_rows(dump: DumpFile) -> Iterator[Row]:
    index = OffsetIndex(dump.base_offset, data=dump.read(), size_limit=INT64_MAX)
    _note_tail(dump, index.tail_bytes, offset_index.ENTRY_SIZE)
    batches = dump.log_batches()
    at_position = {batch.position: batch for batch in batches or ()}
    last_offset, last_position = -1, -1
    for slot, (offset, position) in enumerate(index.entries()):
        if offset <= last_offset or position <= last_position:
            dump.find(f"slot {slot}: ({offset}, {position}) does not follow the entry before")
        if batches is not None:
            _check_offset_entry(dump, slot, offset, at_position.get(position))
        last_offset, last_position = offset, position
        yield [slot, offset, position]


def _check_offset_entry(dump: DumpFile, slot: int, offset: int, found: BatchFacts | None) -> None:
    if found is None:
        dump.find(f"slot {slot}: no batch begins at its position")
    elif found.last_offset != offset:
        dump.find(f"slot {slot}: it names offset {offset}, the batch ends at {found.last_offset}")


def _note_tail(dump: DumpFile, tail_bytes: int, entry_size: int) -> None:
    if tail_bytes % entry_size:
        dump.find(f"its size is no multiple of {entry_size}, the size of an entry")
    elif tail_bytes:
        dump.note(f"{tail_bytes} zero bytes at its end, as Kafka preallocates an active index")


def dump_time_index(dump: DumpFile) -> Dumped:
    """Time index entries; up to each one's offset its timestamp must be the log's largest."""
    columns = [output.number("slot"), output.time("timestamp"), output.number("offset")]
    return Dumped(columns, _time_rows(dump))


def _time_rows(dump: DumpFile) -> Iterator[Row]:
    index = TimeIndex(dump.base_offset, data=dump.read(), size_limit=INT64_MAX)
    _note_tail(dump, index.tail_bytes, time_index.ENTRY_SIZE)
    batches = dump.log_batches()
    largest = _largest_up_to(batches or [])
    last_timestamp, last_offset = -1, -1
    for slot, (timestamp, offset) in enumerate(index.entries()):
        if timestamp <= last_timestamp or offset < last_offset:
            dump.find(f"slot {slot}: ({timestamp}, {offset}) does not follow the entry before")
        if batches is not None and largest.get(offset) != timestamp:
            known = largest.get(offset)
            says = "ends no batch" if known is None else f"has largest timestamp {known} up to it"
            dump.find(f"slot {slot}: timestamp {timestamp} at offset {offset}, the log {says}")
        last_timestamp, last_offset = timestamp, offset
        yield [slot, timestamp, offset]


def _largest_up_to(batches: list[BatchFacts]) -> dict[int, int]:
    """For each batch's last offset the largest timestamp up to it."""
    largest, found = -1, {}
    for batch in batches:
        largest = max(largest, batch.max_timestamp)
        found[batch.last_offset] = largest
    return found


def dump_append_time(dump: DumpFile) -> Dumped:
    """Append time rows; a known one must name the batch that it begins with."""
    columns = [
        output.number("row"),
        output.number("offset"),
        output.time("append_time"),
        output.text("fingerprint"),
    ]
    return Dumped(columns, _append_rows(dump))


def _append_rows(dump: DumpFile) -> Iterator[Row]:
    data = dump.read()
    topic_id = _topic_id(dump, data)
    times, damage = AppendTimes.decode(data, dump.base_offset, topic_id, open_end=True)
    if damage is not None:
        dump.find(f"{damage}; append times are unknown from there on")
    elif times.is_open:
        dump.note("no end row: its segment is active, or was not closed")
    batches = dump.log_batches()
    starts = {batch.base_offset: batch for batch in batches or ()}
    for row, (offset, append_ms, named) in enumerate(times.rows()):
        batch = starts.get(offset)
        is_there = batch is not None and batch.fingerprint == named
        if batches is not None and append_ms >= 0 and not is_there:
            dump.find(f"row {row}: no batch with fingerprint {named:08x} begins at offset {offset}")
        yield [row, offset, append_ms, f"{named:08x}"]


def _topic_id(dump: DumpFile, data: bytes) -> uuid.UUID:
    """The id that the partition's directory has; without one, what the file says itself."""
    try:
        found = text_files.read_partition_metadata(dump.file_system, dump.beside("."))
    except CorruptData as error:
        dump.note(f"{error}; the topic id is taken from the file itself")
        found = None
    if found is not None or len(data) < append_time.HEADER_SIZE:
        return found or uuid.UUID(int=0)
    return uuid.UUID(bytes=_TOPIC_ID.unpack_from(data)[0])


def dump_txn_index(dump: DumpFile) -> Dumped:
    """Aborted transactions."""
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    return Dumped([output.number(name) for name in names], _txn_rows(dump))


def _txn_rows(dump: DumpFile) -> Iterator[Row]:
    try:
        index = TxnIndex.decode(dump.read(), dump.base_offset)
    except CorruptData as error:
        dump.find_error(error)
        return
    yield from (list(entry) for entry in index.entries)


def dump_snapshot(dump: DumpFile) -> Dumped:
    """Producers as they were when the log ended at the file's offset."""
    columns = [
        output.number("producer_id"),
        output.number("epoch"),
        output.number("last_sequence"),
        output.number("last_offset"),
        output.number("offset_delta"),
        output.time("timestamp"),
        output.number("coordinator_epoch"),
        output.number("txn_first_offset"),
    ]
    return Dumped(columns, _snapshot_rows(dump))


def _snapshot_rows(dump: DumpFile) -> Iterator[Row]:
    try:
        entries = decode_snapshot(dump.read())
    except CorruptData as error:
        dump.find_error(error)
        return
    yield from (list(entry) for entry in entries)
