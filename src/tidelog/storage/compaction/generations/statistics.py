"""The file `compaction-statistics`: facts about each finished segment, kept between cleanings.

The file is derived data. If the file is lost or damaged, or describes other segments, the facts are
unknown. Without these facts, the partition's `cleaner-offset-checkpoint` gives the end of the clean
part, and sampling begins again. A row is valid only for a segment with the same base offset, end
offset, size and modification time. No row's `cleaned_to` is valid beyond the base offset of the
first segment that has changed. So if a log was truncated and records were appended afterwards, the
log counts as clean only up to the truncation point.

The file is a list of entries: a full snapshot, then the changes since. An entry has two lines: the
CRC-32C of the second line in 8 hexadecimal digits, and a JSON object (docs/format.md#text-files). A
cleaning changes a few rows and a part of the samples. While the log appends as many bytes as its
live size, dozens of cleanings run. If each cleaning wrote the full file, these writes would be more
than a tenth of all bytes that generational compaction writes. So changes are appended until they
take as much space as the snapshot; then the file is replaced.

A reader stops at a damaged or incomplete entry and uses only the entries before it, as if the
writer had crashed earlier. A writer never appends after a damaged or incomplete entry, but replaces
the file.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, field, replace
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, CorruptRecord, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c, read_varlong, write_varlong
from tidelog.storage import files
from tidelog.storage.compaction.generations.estimates import (
    SAMPLES_ROOM,
    SHIFT_MAX,
    KeySamples,
    MappedKeys,
)
from tidelog.storage.compaction.job import SEED_SIZE, SourceSegment
from tidelog.storage.open_files import DecodedFiles
from tidelog.storage.text_files import Fields, read_json
from tidelog.types import INT64_MAX

STATISTICS_FILE: Final = "compaction-statistics"
STATISTICS_VERSION: Final = 1
UNKNOWN: Final = -1
LINE_END: Final = b"\n"
_CRC_DIGITS: Final = 8

# A sample is the hash of a key, followed by two varints: the difference between the offset of the
# key's last record and the offset of the previous sample, and the size of the last record, negative
# for a tombstone.
_HASH_SIZE: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """Stored facts about one segment.

    Attributes:
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset.
        size_bytes: Size of the segment's log file.
        last_modified_ms: Modification time of the segment's log file.
        cleaned_to: Offset below which no record supersedes a record of the segment; see
            `SegmentFacts`.
        records: Number of the segment's records; -1 if they have not been counted.
        record_bytes: Size of the records in bytes, uncompressed; -1 if they have not been counted.
            After a rewrite, this size is an estimate.
        weight_bytes: `weight_bytes` of the segment's `SegmentEstimate`; -1 if the sample does not
            cover the segment.
        due_ms: Latest delete horizon of the segment's batches or tombstones; -1 if none is known.
        runs: Number of times that the segment was rewritten; after a merge, the largest number of
            its sources, plus 1.
        freed_bytes: Bytes of garbage that all rewrites together removed from the segment.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    last_modified_ms: int
    cleaned_to: int
    records: int = UNKNOWN
    record_bytes: int = UNKNOWN
    weight_bytes: int = UNKNOWN
    due_ms: int = UNKNOWN
    runs: int = 0
    freed_bytes: int = 0

    def is_of(self, segment: SourceSegment) -> bool:
        """Return whether the row describes this segment in its current state."""
        return (self.base_offset, self.end_offset, self.size_bytes, self.last_modified_ms) == (
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            segment.last_modified_ms,
        )


_ROW_FIELDS: Final = tuple(SegmentRow.__dataclass_fields__)


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Stored statistics of a partition.

    Attributes:
        seed: Secret of 16 bytes that seeds the hash by which keys are sampled.
        rows: Row of each finished segment, by base offset.
        samples: The sampled keys of the segments whose records are counted.
        swept_to: Offset up to which the last full pass removed due tombstones, exclusive; 0 if
            there was no such pass.
        swept_ms: Time of the last full pass in ms; -1 if there was none.
        planned_to: End of the cleanable part when the last plan was made.
        counted: Number of keys in a cleaning's map, to correct the sample; None if no map was
            counted.
    """

    seed: bytes = field(repr=False)
    rows: dict[int, SegmentRow] = field(default_factory=dict)
    samples: KeySamples = field(default_factory=KeySamples)
    swept_to: int = 0
    swept_ms: int = UNKNOWN
    planned_to: int = 0
    counted: MappedKeys | None = None

    def note_lost(self, samples: int) -> None:
        """Add `samples` to the number of keys lost from the sample since the map was counted."""
        if self.counted and samples:
            self.counted = replace(self.counted, lost=self.counted.lost + samples)

    def copy(self) -> "Statistics":
        """Return a deep copy."""
        samples = KeySamples(self.samples.shift, self.samples.latest)
        return replace(self, rows=dict(self.rows), samples=samples)


def new_row(segment: SourceSegment, cleaned_to: int) -> SegmentRow:
    """Return the row of a segment of which only `cleaned_to` is known."""
    return SegmentRow(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        last_modified_ms=segment.last_modified_ms,
        cleaned_to=cleaned_to,
    )


def reconcile(
    statistics: Statistics, segments: Sequence[SourceSegment], clean_offset: int
) -> Statistics:
    """Return the statistics that are valid for the current segments.

    Args:
        statistics: The stored statistics.
        segments: All finished segments of the partition, in order.
        clean_offset: Offset below which each key has at most one record, from the partition's
            checkpoint; not above the log's end.

    Returns:
        The statistics with a row for each segment.
    """
    end = segments[-1].end_offset if segments else 0
    # No row's `cleaned_to` is valid beyond the first segment that has changed.
    sound = next((s.base_offset for s in segments if not _is_known(statistics, s)), end)
    rows = {}
    for segment in segments:
        floor = max(segment.base_offset, clean_offset)
        row = statistics.rows.get(segment.base_offset)
        if row is not None and row.is_of(segment):
            proven = min(row.cleaned_to, sound)
            rows[segment.base_offset] = replace(row, cleaned_to=max(proven, floor))
        else:
            rows[segment.base_offset] = new_row(segment, floor)
    reconciled = replace(statistics, rows=rows)
    _forget_samples(reconciled, segments)
    return reconciled


def _is_known(statistics: Statistics, segment: SourceSegment) -> bool:
    row = statistics.rows.get(segment.base_offset)
    return row is not None and row.is_of(segment)


def _forget_samples(statistics: Statistics, segments: Sequence[SourceSegment]) -> None:
    """Drop samples at offsets of segments that are gone or have to be read again."""
    read = [s for s in segments if statistics.rows[s.base_offset].records >= 0]
    before = len(statistics.samples)
    statistics.samples.keep([(segment.base_offset, segment.end_offset) for segment in read])
    statistics.note_lost(before - len(statistics.samples))


def encode(statistics: Statistics) -> bytes:
    """Encode the full statistics as an entry."""
    return _entry(
        {
            "version": STATISTICS_VERSION,
            "seed": statistics.seed.hex(),
            "shift": statistics.samples.shift,
            **_common(statistics, statistics.rows.values(), statistics.samples),
        }
    )


def encode_change(before: Statistics, after: Statistics) -> bytes:
    """Encode the changes from `before` to `after` as an entry; both must have the same seed."""
    rows = [row for base, row in after.rows.items() if before.rows.get(base) != row]
    old_samples, new_samples = before.samples.thinned(after.samples.shift), after.samples.latest
    lost_hashes = b"".join(_hash_bytes(hash_) for hash_ in old_samples if hash_ not in new_samples)
    samples = [
        (hash_, *last) for hash_, last in new_samples.items() if old_samples.get(hash_) != last
    ]
    return _entry(
        {
            "shift": after.samples.shift,
            "gone": [base for base in before.rows if base not in after.rows],
            "lost": base64.b64encode(lost_hashes).decode(),
            **_common(after, rows, samples),
        }
    )


def _common(
    statistics: Statistics, rows: Iterable[SegmentRow], samples: Iterable[tuple[int, int, int]]
) -> dict[str, object]:
    """Return the fields that snapshots and changes both have."""
    return {
        "swept": [statistics.swept_to, statistics.swept_ms],
        "planned": statistics.planned_to,
        "counted": list(astuple(statistics.counted)) if statistics.counted else [],
        "rows": [list(astuple(row)) for row in rows],
        "samples": base64.b64encode(_encode_samples(samples)).decode(),
    }


def _entry(content: dict[str, object]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x\n%b\n" % (crc32c(text), text)


def _content(entry: bytes) -> Fields:
    """Parse the JSON object of an entry; raises CorruptFile."""
    checksum, mark, text = entry.partition(LINE_END)
    text = text.removesuffix(LINE_END)
    if not mark or len(checksum) != _CRC_DIGITS or checksum != f"{crc32c(text):08x}".encode():
        raise CorruptFile(f"statistics with a wrong checksum, {checksum[:20]!r}")
    return read_json(text, "statistics")


def decode(entry: bytes) -> Statistics:
    """Decode the result of `encode`.

    Raises:
        CorruptFile: The checksum or the structure is wrong.
        UnsupportedVersion: A later release wrote the entry.
    """
    content = _content(entry)
    if content.integer("version") != STATISTICS_VERSION:
        reason = f"statistics of version {content.integer('version')}"
        raise UnsupportedVersion(f"{reason}; this release reads version {STATISTICS_VERSION}")
    return _updated(Statistics(seed=_seed(content)), content)


def apply_change(before: Statistics, entry: bytes) -> Statistics:
    """Return the statistics after a change that `encode_change` encoded.

    Args:
        before: The statistics before the change; they are not modified.
        entry: The encoded change.

    Raises:
        CorruptFile: The checksum or the structure is wrong.
    """
    content = _content(entry)
    removed_bases = set(_integers(content.items("gone"), len(content.items("gone"))))
    lost_hashes, shift = _lost(content), _shift(content)
    samples = before.samples.thinned(shift)
    remaining = {hash_: last for hash_, last in samples.items() if hash_ not in lost_hashes}
    rows = {base: row for base, row in before.rows.items() if base not in removed_bases}
    return _updated(replace(before, rows=rows, samples=KeySamples(shift, remaining)), content)


def _updated(statistics: Statistics, content: Fields) -> Statistics:
    """Return the statistics updated with an entry's rows and samples."""
    swept_to, swept_ms = _integers(content.items("swept"), 2)
    rows = [SegmentRow(**_named(each)) for each in content.items("rows")]
    latest = dict(statistics.samples.latest) | dict(_samples(content))
    if len(latest) > SAMPLES_ROOM:
        raise CorruptFile(f"statistics: {len(latest)} samples, at most {SAMPLES_ROOM} expected")
    return Statistics(
        seed=statistics.seed,
        rows=statistics.rows | {row.base_offset: row for row in rows},
        samples=KeySamples(_shift(content), latest),
        swept_to=swept_to,
        swept_ms=swept_ms,
        planned_to=content.integer("planned"),
        counted=_counted(content),
    )


def _counted(content: Fields) -> MappedKeys | None:
    """Return the stored number of keys in a cleaning's map; None if none is stored."""
    counts = content.value("counted")
    if not counts:
        return None
    shift, keys, sampled, lost_keys = _integers(counts, 4)
    return MappedKeys(shift=shift, keys=keys, sampled=sampled, lost=lost_keys)


def _named(row: object) -> dict[str, int]:
    values = _integers(row, len(_ROW_FIELDS))
    return dict(zip(_ROW_FIELDS, values, strict=True))


def _integers(value: object, count: int) -> list[int]:
    """Check that a value is a list of `count` whole numbers; raises CorruptFile."""
    numbers = [each for each in value if type(each) is int] if isinstance(value, list) else []
    if len(numbers) != count or not all(-1 <= each <= INT64_MAX for each in numbers):
        raise CorruptFile(
            f"statistics: {str(value)[:80]}, a list of {count} whole numbers expected"
        )
    return numbers


def _seed(content: Fields) -> bytes:
    try:
        seed = bytes.fromhex(content.text("seed"))
    except ValueError:
        seed = b""
    if len(seed) != SEED_SIZE:
        raise CorruptFile(f"statistics: the seed has {len(seed)} bytes, {SEED_SIZE} expected")
    return seed


def _shift(content: Fields) -> int:
    shift = content.integer("shift")
    if not 0 <= shift <= SHIFT_MAX:
        raise CorruptFile(f"statistics: shift {shift}, 0 to {SHIFT_MAX} expected")
    return shift


def _hash_bytes(hash_: int) -> bytes:
    return hash_.to_bytes(_HASH_SIZE, "big")


def _encode_samples(samples: Iterable[tuple[int, int, int]]) -> bytes:
    """Encode the samples as hash, offset delta and size, in the order of offsets."""
    data, last = bytearray(), 0
    for hash_, offset, size in sorted(samples, key=lambda sample: sample[1]):
        data += _hash_bytes(hash_)
        write_varlong(data, offset - last)
        write_varlong(data, size)
        last = offset
    return bytes(data)


def _unpacked(content: Fields, name: str) -> bytes:
    try:
        return base64.b64decode(content.text(name), validate=True)
    except binascii.Error as error:
        raise CorruptFile(f"statistics: {name} are not base64: {error}") from error


def _samples(content: Fields) -> list[tuple[int, tuple[int, int]]]:
    try:
        return list(_decode_samples(_unpacked(content, "samples")))
    except CorruptRecord as error:
        raise CorruptFile(f"statistics: samples: {error}") from error


def _lost(content: Fields) -> set[int]:
    """Decode the hashes of keys that have left the sample."""
    packed = _unpacked(content, "lost")
    if len(packed) % _HASH_SIZE:
        raise CorruptFile(f"statistics: {len(packed)} bytes of lost hashes, {_HASH_SIZE} for each")
    starts = range(0, len(packed), _HASH_SIZE)
    return {int.from_bytes(packed[at : at + _HASH_SIZE], "big") for at in starts}


def _decode_samples(packed: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    at, offset, end = 0, 0, len(packed)
    while at < end:
        hash_ = int.from_bytes(packed[at : at + _HASH_SIZE], "big")
        step, at = read_varlong(packed, at + _HASH_SIZE, end)
        size, at = read_varlong(packed, at, end)
        offset += step
        if not 0 <= offset <= INT64_MAX:
            raise CorruptFile(f"statistics: a sample of offset {offset}")
        yield hash_, (offset, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStatistics:
    """Contents of a partition's statistics file.

    Attributes:
        statistics: The snapshot with all changes applied. It must not be modified, because the next
            change is computed by comparison with it.
        whole_bytes: Size of the snapshot in bytes.
        size_bytes: Size of the snapshot and its changes in bytes.
        is_sound: Whether the file ends after these bytes, so that entries can be appended.
    """

    statistics: Statistics
    whole_bytes: int
    size_bytes: int
    is_sound: bool = True


def read_statistics(
    fs: FileSystem, directory: str, cache: DecodedFiles | None = None
) -> tuple[StoredStatistics | None, str]:
    """Return a partition's statistics, and a text that describes damage of the file.

    The text is empty if the file is sound. The statistics are None if the file is missing or its
    snapshot can't be decoded.

    Args:
        fs: File system of the directory.
        directory: The partition's directory.
        cache: Contents that the lock holder has already read or written. If this call reads sound
            contents, it adds them to the cache.

    Raises:
        OSError: The disk failed.
    """
    path = f"{directory}/{STATISTICS_FILE}"
    try:
        stat = fs.stat(path)
        cached = None if cache is None else cache.find(path, stat)
        if isinstance(cached, StoredStatistics):
            return cached, ""
        stored, problem = decode_statistics(files.read_file(fs, path))
    except FileNotFoundError:
        return None, ""
    except (CorruptFile, UnsupportedVersion) as error:
        return None, f"{path}: {error}"
    if problem:
        return stored, f"{path}: {problem}"
    if cache is not None:
        cache.keep(path, stat, stored, _weight(stored))
    return stored, ""


def keep_written(
    fs: FileSystem, directory: str, cache: DecodedFiles, stored: StoredStatistics
) -> None:
    """Update the cache after `write_statistics` wrote the file; raises OSError."""
    path = f"{directory}/{STATISTICS_FILE}"
    cache.keep(path, fs.stat(path), stored, _weight(stored))


def _weight(stored: StoredStatistics) -> int:
    """Return the weight of statistics in the cache: the number of samples, plus 2 for each row."""
    return len(stored.statistics.samples) + 2 * len(stored.statistics.rows)


def decode_statistics(data: bytes) -> tuple[StoredStatistics, str]:
    """Return the contents of a file, and a text that describes damage of its changes.

    The text is empty if the changes are sound.

    Raises:
        CorruptFile: The snapshot is damaged.
        UnsupportedVersion: A later release wrote the file.
    """
    entries = _entries(data)
    whole = next(entries)
    stored = StoredStatistics(
        statistics=decode(whole),
        whole_bytes=len(whole),
        size_bytes=len(whole),
        # Without a line end, an appended entry would begin on the last line of this entry.
        is_sound=data.endswith(LINE_END),
    )
    for entry in entries:
        try:
            changed = apply_change(stored.statistics, entry)
        except CorruptFile as error:
            return replace(stored, is_sound=False), f"from byte {stored.size_bytes} on: {error}"
        stored = replace(stored, statistics=changed, size_bytes=stored.size_bytes + len(entry))
    return stored, ""


def _entries(data: bytes) -> Iterator[bytes]:
    """Yield the entries of a file, at least one; an entry has a checksum line and a text line."""
    at = 0
    while not at or at < len(data):
        end = data.find(LINE_END, data.find(LINE_END, at) + 1) + 1
        end = end or len(data)
        yield data[at:end]
        at = end


def write_statistics(
    fs: FileSystem, directory: str, statistics: Statistics, stored: StoredStatistics | None
) -> tuple[StoredStatistics, int]:
    """Store a partition's statistics: append the changes, or replace the file.

    The file is replaced if its changes would take more space than its snapshot.

    Args:
        fs: File system of the directory.
        directory: The partition's directory.
        statistics: The statistics; the caller may modify them afterwards.
        stored: Contents of the file; None if there is no file, or it has to be replaced.

    Returns:
        The new contents of the file, and the number of bytes written.

    Raises:
        OSError: The disk failed; `read_statistics` then returns the old or the new statistics.
    """
    path = f"{directory}/{STATISTICS_FILE}"
    if stored is not None and stored.is_sound:
        change = encode_change(stored.statistics, statistics)
        size = stored.size_bytes + len(change)
        if size <= 2 * stored.whole_bytes:
            _append(fs, path, change, stored.size_bytes)
            return replace(stored, statistics=statistics.copy(), size_bytes=size), len(change)
    data = encode(statistics)
    files.write_atomically(fs, path, data)
    contents = StoredStatistics(
        statistics=statistics.copy(), whole_bytes=len(data), size_bytes=len(data)
    )
    return contents, len(data)


def _append(fs: FileSystem, path: str, change: bytes, position: int) -> None:
    file = fs.open(path, write=True)
    try:
        files.write_fully(file, change, position)
        file.sync()
    finally:
        file.close()
