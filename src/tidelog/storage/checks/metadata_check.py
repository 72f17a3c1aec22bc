"""Checks `tidelog-metadata.log`, which holds a broker's users, ACLs and quotas.

The file is a sequence of record batches; the texts of findings call a batch a change. For a damaged
batch the check searches for the original bytes. If one bit was flipped, or the batch's length field
or magic byte is wrong, the checksum proves the original bytes. So the check distinguishes a flipped
bit in the last batch from an incomplete last batch. A hard stop can leave an incomplete batch; the
broker drops it at its next start. Findings don't show content, because the file contains secrets.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import (
    CorruptBatch,
    CorruptFile,
    CorruptRecord,
    UnsupportedCompression,
    UnsupportedVersion,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.header import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC_2,
    MAGIC_AT,
)
from tidelog.storage import files
from tidelog.storage.checks.findings import Finding, Severity
from tidelog.storage.checks.flipped_bits import flipped_bit
from tidelog.storage.directory.broker_files import LIMIT_BYTES, METADATA_FILE, batch_at, next_change

# Receives a record's value. Raises CorruptFile or UnsupportedVersion if the value is no metadata
# record.
Replay = Callable[[bytes], object]

# The length field counts neither the base offset nor itself.
_BEFORE_LENGTH: Final = LENGTH_AT + 4

_SHUT: Final = "the broker does not start with this damage"
_RESTORE: Final = f"restore the file from a backup: {_SHUT}"


def check_metadata(
    fs: FileSystem, directory: str, *, was_clean: bool, replay: Replay
) -> Iterator[Finding]:
    """Yield findings in the metadata log; yield none if the file is missing.

    Args:
        fs: File system of the directory.
        directory: Path of the directory.
        was_clean: Whether the directory was closed cleanly and is not open now. If so, an
            incomplete change at the file's end counts as damage.
        replay: Receives each record's value, in order, up to the first damage.

    Raises:
        OSError: The file can't be read.
    """
    path = f"{directory}/{METADATA_FILE}"
    try:
        data = files.read_file(fs, path, limit=LIMIT_BYTES)
    except FileNotFoundError:
        return
    except CorruptFile as error:
        yield Finding(path, error.reason, _RESTORE)
        return
    at = offset = 0
    is_sound = True
    while at < len(data):
        batch = batch_at(data, at)
        if batch is None:
            finding, at, offset = _damage(path, data, at, offset, was_clean=was_clean)
            yield finding
            is_sound = False
            continue
        problem = _problem(batch, offset, replay if is_sound else None)
        if problem is not None:
            yield Finding(path, problem, _RESTORE, position=at, offset=offset)
            is_sound = False
        elif batch.leader_epoch:
            yield _epoch(path, batch, offset)
        at += batch.size_bytes
        offset += batch.record_count


def _epoch(path: str, batch: RecordBatch, offset: int) -> Finding:
    return Finding(
        path,
        f"a change has leader epoch {batch.leader_epoch}, expected 0",
        "leader epochs of this file are never used, and no checksum covers them; other bytes may be"
        " damaged, too",
        Severity.WARNING,
        batch.at + LEADER_EPOCH_AT,
        offset,
    )


def _problem(batch: RecordBatch, offset: int, replay: Replay | None) -> str | None:
    """Return the problem of a batch whose checksum is right; None if the batch is sound."""
    if batch.base_offset != offset:
        # The checksum does not cover the base offset.
        return f"a change begins at offset {batch.base_offset}, expected {offset}"
    if batch.is_control:
        return "a transaction marker, although this log has no transactions"
    try:
        for record in batch.records(check_crc=False):
            if record.value is None:
                return f"the record at offset {record.offset} has no value"
            if replay is not None:
                replay(record.value)
    except (CorruptBatch, CorruptRecord, UnsupportedCompression):
        return "its records can't be read"
    except (CorruptFile, UnsupportedVersion) as error:
        return str(error)
    return None


def _damage(
    path: str, data: bytes, at: int, offset: int, *, was_clean: bool
) -> tuple[Finding, int, int]:
    """Return a finding on a damaged change, and the position and offset at which to continue."""
    later = next_change(data, at, offset)
    end = len(data) if later is None else later.at
    right = _find_right(data, at, end)
    if right is not None:
        left_out = later is None and not was_clean and at + right.size_bytes == len(data)
        then = "the broker drops this change at its next start" if left_out else _SHUT
        remedy = f"correct the byte while no broker runs, first in a copy of the file: {then}"
        finding = Finding(path, right.text, remedy, position=right.position, offset=offset)
        return finding, at + right.size_bytes, offset + right.record_count
    damage = f"{end - at} bytes that are not a complete change"
    if later is not None or was_clean:
        finding = Finding(path, damage, _RESTORE, position=at, offset=offset)
        return finding, end, offset if later is None else later.base_offset
    damage += ": torn by a hard stop, still being written, or damaged in more than one bit"
    remedy = (
        "the next start drops it; if no hard stop can be the cause, restore the file from a backup"
    )
    return Finding(path, damage, remedy, Severity.WARNING, at, offset), end, offset


@dataclass(frozen=True, slots=True)
class _Right:
    """A correction of a damaged change; the checksum proves that it restores the original bytes.

    Attributes:
        text: Description of the fault, for the finding.
        position: Position of the fault in the file.
        size_bytes: Size of the change.
        record_count: Number of records in the change.
    """

    text: str
    position: int
    size_bytes: int
    record_count: int


def _find_right(data: bytes, at: int, end: int) -> _Right | None:
    """Return the correction of the damaged change in [at, end); None if no correction is proven."""
    if end - at < HEADER_SIZE:
        return None
    size, magic = RecordBatch(data, at).size_bytes, data[at + MAGIC_AT]
    if not HEADER_SIZE <= size <= end - at or (magic == MAGIC_2 and size < end - at):
        right = _with_length(data, at, end)
        if right is not None or not HEADER_SIZE <= size <= end - at:
            return right
    if magic != MAGIC_2:
        text = f"a change has magic {magic}, expected {MAGIC_2}"
        return _proven(data, at, size, at + MAGIC_AT, bytes([MAGIC_2]), text)
    batch = RecordBatch(data, at)
    flipped = flipped_bit(data[at + ATTRIBUTES_AT : at + size], batch.crc)
    if flipped is None:
        return None
    byte, bit = flipped
    position = at + ATTRIBUTES_AT + byte
    text = (
        f"bit {bit} of this byte was flipped: with it restored, the checksum of the change matches"
    )
    return _proven(data, at, size, position, bytes([data[position] ^ 1 << bit]), text)


def _with_length(data: bytes, at: int, end: int) -> _Right | None:
    right = end - at - _BEFORE_LENGTH
    length = int.from_bytes(data[at + LENGTH_AT : at + _BEFORE_LENGTH], "big", signed=True)
    text = f"a change has length {length}, expected {right}"
    return _proven(data, at, end - at, at + LENGTH_AT, right.to_bytes(4, "big"), text)


def _proven(
    data: bytes, at: int, size: int, position: int, right: bytes, text: str
) -> _Right | None:
    """Return the correction if `right` at `position` makes the checksum match; else None."""
    fixed = bytearray(data[at : at + size])
    fixed[position - at : position - at + len(right)] = right
    batch = batch_at(bytes(fixed), 0)
    return None if batch is None else _Right(text, position, size, batch.record_count)
