"""Page `damage` of the commands: the findings of `tidelog doctor` for damage of each kind of file.

One file at a time is damaged in each way of `_damages`: bits are flipped, and bytes are removed,
added or made 0. In a log, bytes of the first batch are also changed together with its checksum, so
that the checksum is valid. An entry contains the findings of one file, as JSON. A finding whose
texts differ from earlier ones only in numbers is left out.
"""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from aiokafka.record.util import calc_crc32c
from tests.corpus import still
from tests.corpus.book import Entry
from tests.corpus.shell import Ran, escaped, run

import tidelog

Damage = Callable[[bytes], bytes]

# Files of each kind. Files of the same kind are different: `txn` has transactions, and `flights`
# has finished segments with zone maps.
_FILES: Final = (
    *("flights-0/00000000000000000000.log", "flights-0/00000000000000000040.log"),
    *("txn-0/00000000000000000000.log", "packed-0/00000000000000000000.log"),
    *("flights-0/00000000000000000010.index", "flights-0/00000000000000000010.timeindex"),
    *("flights-0/00000000000000000040.index", "flights-0/00000000000000000040.timeindex"),
    *("flights-0/00000000000000000010.appendtime", "flights-0/00000000000000000010.zones"),
    *("flights-0/00000000000000000045.snapshot", "txn-0/00000000000000000011.snapshot"),
    *("txn-0/00000000000000000000.txnindex", "flights-0/append-time-checkpoint"),
    *("flights-0/leader-epoch-checkpoint", "flights-0/partition.metadata"),
    *("flights-0/segment-notes", "meta.properties", "recovery-point-offset-checkpoint"),
    *("log-start-offset-checkpoint", "tidelog-producer-ids.json", "tidelog-topics.json"),
)
# Topics that are removed before the damage, because `doctor` would check them in each run.
_OTHERS: Final = ("blank", "odd", "orders", "planes", "prices", "stamped")
_BATCH: Final = struct.Struct(">qi")
_CRC_AT: Final = 17
_CRC_END: Final = 21
_RECORDS_AT: Final = 61
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|[\d.,]+(?: errors?| warnings?)?")


def _flipped(position: int, bit: int = 0) -> Damage:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 1 << bit
        return bytes(changed)

    return flip


def _cut(size: int) -> Damage:
    return lambda data: data[: max(len(data) - size, 0)]


def _sealed(position: int, add: int) -> Damage:
    """Add a number to a byte of the first batch, then correct the batch's checksum."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        end = _BATCH.size + _BATCH.unpack_from(data)[1]
        changed[position] = (changed[position] + add) % 256
        crc = calc_crc32c(bytes(changed[_CRC_END:end]))
        struct.pack_into(">I", changed, _CRC_AT, crc)
        return bytes(changed)

    return change


def _damages(data: bytes, *, is_log: bool) -> Iterator[tuple[str, Damage]]:
    """Yield the damages of a file, each with its name."""
    positions = {*range(min(len(data), 16)), *range(0, len(data), max(len(data) // 12, 1))}
    for position in sorted(positions):
        yield f"byte {position} flipped", _flipped(position, bit=position % 8)
    if data:
        yield "last byte flipped", _flipped(-1)
    yield "empty", lambda _: b""
    for size in (1, 3, len(data) // 2):
        yield f"{size} bytes removed", _cut(size)
    yield "24 zero bytes added", lambda data: data + bytes(24)
    yield "text added", lambda data: data + b"more\n"
    yield "all bytes 0", lambda data: bytes(len(data))
    yield "twice", lambda data: data + data
    if is_log:
        for position in range(_CRC_END, _RECORDS_AT + 16):
            yield f"byte {position} plus 65, sealed", _sealed(position, 65)


def play(home: Path) -> Iterator[Entry]:
    """Damage a copy of `logs`; yield an entry for each file."""
    os.chdir(home)
    folder = home / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(home / "logs", folder)
    still.set_time(still.START_MS)
    with tidelog.open(folder, writable=True) as directory:
        for topic in _OTHERS:
            directory.delete_topic(topic)
    seen = set[str]()
    for name in _FILES:
        lines = list(_findings(folder / name, seen))
        yield Entry(f"commands/damage/{name.replace('/', '-')}", "\n".join(lines))
    shutil.rmtree(folder)


def _findings(path: Path, seen: set[str]) -> Iterator[str]:
    data, stat = path.read_bytes(), path.stat()
    for words, damage in _damages(data, is_log=path.suffix == ".log"):
        path.write_bytes(damage(data))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        yield from _told(words, run("doctor", "damaged", "-o", "json"), seen)
    path.unlink()
    yield from _told("removed", run("doctor", "damaged", "-o", "json"), seen)
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _told(words: str, ran: Ran, seen: set[str]) -> Iterator[str]:
    lines = []
    for line in ran.out.decode().splitlines():
        found: Mapping[str, object] = json.loads(line)
        texts = [f"{found.get(name)}" for name in ("severity", "damage", "remedy")]
        kind = _NUMBER.sub("#", " | ".join(texts))
        if kind not in seen and "damage" in found:
            seen.add(kind)
            lines.append(f"| {escaped(line)}")
    err = ran.err.decode()
    kind = _NUMBER.sub("#", err)
    if isinstance(ran.code, str) or kind not in seen:
        seen.add(kind)
        lines += [f"! {escaped(line)}" for line in err.splitlines()]
        lines.append(f"= {ran.code}")
    if lines:
        yield f"@ {words}"
        yield from lines
