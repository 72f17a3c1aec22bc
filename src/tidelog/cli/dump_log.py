"""Dump of a log file: its batches, or with `--deep` its records."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from tidelog.cli import fields, output
from tidelog.cli.choices import Encoding
from tidelog.cli.dump_file import Dumped, DumpFile, walk_log
from tidelog.cli.fields import Decode
from tidelog.cli.output import Cell, Row
from tidelog.errors import CorruptData, UnsupportedCompression
from tidelog.record.record import Record, read_control_type, read_end_marker
from tidelog.record.views import Batch

_BATCH_COLUMNS = [
    output.number("position"),
    output.number("bytes"),
    output.number("first_offset"),
    output.number("last_offset"),
    output.number("records"),
    output.number("magic"),
    output.text("codec"),
    output.text("timestamp_type"),
    output.time("max_timestamp"),
    output.number("leader_epoch"),
    output.number("producer_id"),
    output.number("producer_epoch"),
    output.number("base_sequence"),
    output.text("flags"),
    output.text("crc"),
    output.text("valid"),
]
_RECORD_COLUMNS = [
    output.number("position"),
    output.number("offset"),
    output.time("timestamp"),
    output.time("create_time"),
    output.number("sequence"),
    output.text("key"),
    output.text("value"),
    output.text("headers"),
]
_HEADER_VALUE: Final = fields.decoder(Encoding.AUTO)


def dump_log(dump: DumpFile, *, deep: bool, key: Encoding, value: Encoding) -> Dumped:
    """The batches of a log file, or their records; damage ends the rows and is noted.

    Args:
        dump: The file.
        deep: Records.
        key: What their keys are shown as.
        value: What their values are shown as.
    """
    if deep:
        rows_of = partial(_record_rows, fields.decoder(key), fields.decoder(value))
        return Dumped(_RECORD_COLUMNS, _rows(dump, rows_of))
    return Dumped(_BATCH_COLUMNS, _rows(dump, _batch_rows))


def _rows(
    dump: DumpFile, rows_of: Callable[[DumpFile, int, Batch, bool], Iterator[Row]]
) -> Iterator[Row]:
    """Rows of all batches. A wrong checksum is noted and passed; a wrong frame ends the walk."""
    end, next_offset = 0, -1
    try:
        for position, batch in walk_log(dump, dump.path):
            is_valid = batch.is_valid()
            if not is_valid:
                dump.find(f"position {position}: the batch's checksum is wrong")
            if batch.last_offset < next_offset:
                dump.find(
                    f"position {position}: offset {batch.last_offset} comes after {next_offset - 1}"
                )
            yield from rows_of(dump, position, batch, is_valid)
            end, next_offset = position + batch.size_bytes, batch.next_offset
    except CorruptData as error:
        dump.find_error(error)
    size = dump.file_system.stat(dump.path).size
    if end < size:
        dump.find(f"position {end}: no whole batch; the last {size - end} bytes can't be read")


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
        _known(batch.leader_epoch),
        _known(batch.producer_id),
        _known(batch.producer_epoch),
        _known(batch.base_sequence),
        _flags(batch),
        f"{batch.crc:08x}",
        is_valid,
    ]


def _known(value: int) -> int | None:
    """A number whose -1 stands for none."""
    return None if value < 0 else value


def _base_offset(batch: Batch) -> int | None:
    """The first offset; a compressed wrapper of magic 0 and 1 has to be opened for it."""
    with suppress(CorruptData, UnsupportedCompression):
        return batch.base_offset
    return None


def _codec(batch: Batch) -> str:
    try:
        return batch.codec.config_name
    except UnsupportedCompression as error:
        return str(error)


def _flags(batch: Batch) -> str | None:
    found = []
    if batch.is_transactional:
        found.append("transactional")
    if batch.is_control:
        found.append("control")
    if batch.delete_horizon_ms is not None:
        found.append(f"delete horizon {batch.delete_horizon_ms}")
    return ",".join(found) or None


def _record_rows(
    key: Decode, value: Decode, dump: DumpFile, position: int, batch: Batch, is_valid: bool
) -> Iterator[Row]:
    if not is_valid:
        return
    try:
        for record in batch.records():
            shown = _control(record) if batch.is_control else None
            yield [
                position,
                record.offset,
                record.timestamp,
                record.create_timestamp,
                _known(record.sequence),
                *(shown or (key(record.key), value(record.value))),
                fields.headers_cell(record.headers, _HEADER_VALUE),
            ]
    except UnsupportedCompression as error:
        dump.find(f"position {position}: {error}")
    except CorruptData as error:
        dump.find_error(error.located(dump.path, position))


def _control(record: Record) -> tuple[Cell, Cell]:
    """A control record in words: what it says, and a marker's coordinator epoch."""
    kind = read_control_type(record.key).name.lower()
    with suppress(CorruptData):
        return kind, f"coordinator epoch {read_end_marker(record).coordinator_epoch}"
    return kind, None
