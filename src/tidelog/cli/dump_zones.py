"""Dump of a zone map: a row for each zone, held against its own sums and the log beside it."""

from collections.abc import Iterator, Sequence

from tidelog.cli import output
from tidelog.cli.dump_file import Dumped, DumpFile
from tidelog.cli.output import Cell, Row
from tidelog.errors import CorruptData, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage import files
from tidelog.storage.zone_files import SIBLING_SUFFIXES
from tidelog.storage.zones import FileSum, Zone, ZoneMap

_CHUNK_BYTES = 1 << 20


def dump_zones(dump: DumpFile) -> Dumped:
    """Zones; the bytes of each must have its checksum, and so must the files beside the log."""
    columns = [
        output.number("zone"),
        output.number("position"),
        output.number("size_bytes"),
        output.number("first_offset"),
        output.number("last_offset"),
        output.number("data_records"),
        output.number("control_records"),
        output.number("tombstones"),
        output.text("transactional"),
        output.number("timed_records"),
        output.time("min_record"),
        output.time("max_record"),
        output.number("stamped_records"),
        output.time("min_append"),
        output.time("max_append"),
        output.text("crc"),
    ]
    return Dumped(columns, _rows(dump))


def _rows(dump: DumpFile) -> Iterator[Row]:
    try:
        found = ZoneMap.decode(dump.read(), report=dump.find)
        found.verify()
    except CorruptData as error:
        dump.find_error(error)
        return
    except UnsupportedVersion as error:
        dump.note(str(error))
        return
    log_path = dump.beside(files.log_file_name(dump.base_offset))
    if dump.file_system.exists(log_path):
        _check_siblings(dump, found)
    else:
        dump.note("no log file beside it: its zones are not checked against one")
        log_path = ""
    if found.base_offset != dump.base_offset:
        dump.find(f"it is of base offset {found.base_offset}")
    dump.note(_summary(found))
    for number, zone in enumerate(found.zones()):
        if log_path:
            _check_zone(dump, log_path, number, zone)
        yield [number, *_cells(zone)]


def _summary(found: ZoneMap) -> str:
    latency = found.latency.total()
    text = f"{found.zone_count} zones of {found.total.size_bytes} bytes; latency of "
    if not latency.count:
        return f"{text}no record is known"
    return f"{text}{latency.count} records from {latency.min_ms} to {latency.max_ms} ms"


def _cells(zone: Zone) -> Sequence[Cell]:
    """The fields of a zone; extremes of no times are nothing."""
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
            f"zone {number}: bytes {zone.position} to {zone.end_position} of the log (offsets"
            f" {zone.first_offset} to {zone.last_offset}) are not those it was built of"
        )


def _check_siblings(dump: DumpFile, found: ZoneMap) -> None:
    for suffix in SIBLING_SUFFIXES:
        path = dump.beside(files.file_name(dump.base_offset, suffix))
        there = dump.file_system.exists(path)
        known = found.siblings.get(suffix)
        if there and FileSum(*_sum(dump, path, 0, dump.file_system.stat(path).size)) != known:
            dump.find(f"{path} is not the file that was there when it was built")
        elif known is not None and not there:
            dump.find(f"{path} has gone since it was built")


def _sum(dump: DumpFile, path: str, start: int, size: int) -> tuple[int, int]:
    """Bytes that are there of a range of a file, and their checksum."""
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
