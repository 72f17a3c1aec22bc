"""The file `compaction-statistics`: facts on each finished segment, kept between cleanings.

Derived: where the file is lost, damaged or about other segments, its facts are unknown, the
partition's `cleaner-offset-checkpoint` says how far it is clean, and sampling begins anew. A row
holds only for a segment with the same base, end, size and modification time, and its `cleaned_to`
only as far as every segment that begins below is still the same one. So a log that was cut and
appended to since is believed to be cleaned up to the cut, and no further.

The file is a list of entries: the whole at some time, then the changes since. An entry is the
CRC-32C of its text in 8 hexadecimal digits, a line end, a JSON object, a line end
(docs/format.md#text-files). A cleaning changes a few rows and the samples of many, and there are
dozens of cleanings while a log's live size is appended once: written whole each time, the
statistics would be a tenth and more of all that generational compaction writes. So changes are
appended until they take as much as the whole; then the file is replaced.

A damaged or incomplete entry ends the file for its reader: the entries before it count, as after a
crash a moment earlier. Nothing is appended behind it; the next writer replaces the file.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, CorruptRecord, UnsupportedVersion
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


# The hash of a sampled key; behind it, as varints, how far the offset of its last record lies
# behind the one before, and that record's size, negative for a tombstone.
_HASH_SIZE: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """What is remembered of one segment.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it, exclusive.
        size_bytes: Size of its log file.
        last_modified_ms: When that was last modified.
        cleaned_to: See `SegmentFacts`.
        records: Records in it; -1 where nobody has counted them.
        record_bytes: Their bytes, uncompressed; -1 likewise. An estimate once it was rewritten.
        weight_bytes: So many bytes of sampled records, times how rare they are, stand for the
            whole log file; -1 where the sample says nothing about it.
        due_ms: When the last of its tombstones may go; -1 where it has none that a cleaning has
            seen.
        runs: How often it was rewritten.
        found_bytes: Garbage that was found in it, all runs together.
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
    found_bytes: int = 0

    def is_of(self, segment: SourceSegment) -> bool:
        """Whether the row is about this segment, as it is now."""
        return (self.base_offset, self.end_offset, self.size_bytes, self.last_modified_ms) == (
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            segment.last_modified_ms,
        )


_ROW_FIELDS: Final = tuple(SegmentRow.__dataclass_fields__)


@dataclass(slots=True, kw_only=True)
class Statistics:
    """What is remembered of a partition.

    Attributes:
        seed: Secret by which keys are sampled, 16 bytes.
        rows: Of its finished segments, by base offset.
        samples: The sampled keys, of the segments whose records are counted.
        swept_to: Up to where the last full pass let go tombstones that were due; 0 where there was
            none.
        swept_ms: When that was; -1 where there was none.
        planned_to: Up to where the log could be cleaned when it was last planned.
        counted: What a cleaning's map says about the sample; None where none does.
    """

    seed: bytes = field(repr=False)
    rows: dict[int, SegmentRow] = field(default_factory=dict)
    samples: KeySamples = field(default_factory=KeySamples)
    swept_to: int = 0
    swept_ms: int = UNKNOWN
    planned_to: int = 0
    counted: MappedKeys | None = None

    def note_lost(self, samples: int) -> None:
        """Keys have left the sample."""
        if self.counted and samples:
            self.counted = replace(self.counted, lost=self.counted.lost + samples)

    def copy(self) -> "Statistics":
        """The same, which does not change with this one."""
        samples = KeySamples(self.samples.shift, self.samples.latest)
        return replace(self, rows=dict(self.rows), samples=samples)


def new_row(segment: SourceSegment, cleaned_to: int) -> SegmentRow:
    """The row of a segment of which nothing is known but how far it is cleaned."""
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
    """What of the statistics holds for the segments that are there.

    Args:
        statistics: What was remembered.
        segments: All finished segments of the partition, in order.
        clean_offset: Below it no older version of a key remains, as the partition's checkpoint
            says; not above the log's end.

    Returns:
        The statistics with a row for each segment.
    """
    end = segments[-1].end_offset if segments else 0
    # What begins with the first segment that is another one is not what the others were judged by.
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
    """Drop samples of offsets whose segment has to be read again, or is gone."""
    read = [s for s in segments if statistics.rows[s.base_offset].records >= 0]
    before = len(statistics.samples)
    statistics.samples.keep([(segment.base_offset, segment.end_offset) for segment in read])
    statistics.note_lost(before - len(statistics.samples))


def encode(statistics: Statistics) -> bytes:
    """The whole as an entry."""
    return _entry(
        {
            "version": STATISTICS_VERSION,
            "seed": statistics.seed.hex(),
            "shift": statistics.samples.shift,
            **_common(statistics, statistics.rows.values(), statistics.samples),
        }
    )


def encode_change(before: Statistics, after: Statistics) -> bytes:
    """What has changed as an entry, for `apply_change`; the seed is the same."""
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
    """What both kinds of entries have."""
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
    """The JSON object of an entry; raises CorruptFile."""
    checksum, mark, text = entry.partition(LINE_END)
    text = text.removesuffix(LINE_END)
    if not mark or len(checksum) != _CRC_DIGITS or checksum != f"{crc32c(text):08x}".encode():
        raise CorruptFile(f"statistics with the checksum {checksum[:20]!r}, which is wrong")
    return read_json(text, "statistics")


def decode(entry: bytes) -> Statistics:
    """What `encode` was given.

    Raises:
        CorruptFile: A wrong checksum, or another shape.
        UnsupportedVersion: A later release wrote it.
    """
    content = _content(entry)
    if content.integer("version") != STATISTICS_VERSION:
        reason = f"statistics of version {content.integer('version')}"
        raise UnsupportedVersion(f"{reason}, {STATISTICS_VERSION} is known")
    return _taken_in(Statistics(seed=_seed(content)), content)


def apply_change(before: Statistics, entry: bytes) -> Statistics:
    """What `encode_change` was given, from what was before; that stays as it is.

    Raises:
        CorruptFile: A wrong checksum, or another shape.
    """
    content = _content(entry)
    gone_bases = set(_integers(content.items("gone"), len(content.items("gone"))))
    lost_hashes, shift = _lost(content), _shift(content)
    samples = before.samples.thinned(shift)
    remaining = {hash_: last for hash_, last in samples.items() if hash_ not in lost_hashes}
    rows = {base: row for base, row in before.rows.items() if base not in gone_bases}
    return _taken_in(replace(before, rows=rows, samples=KeySamples(shift, remaining)), content)


def _taken_in(statistics: Statistics, content: Fields) -> Statistics:
    """The statistics with what an entry says of rows and samples put over them."""
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
    """What a map has counted; None where none has, or an earlier release wrote the file."""
    counts = content.value("counted")
    if not counts:
        return None
    shift, keys, sampled, lost_keys = _integers(counts, 4)
    return MappedKeys(shift=shift, keys=keys, sampled=sampled, lost=lost_keys)


def _named(row: object) -> dict[str, int]:
    values = _integers(row, len(_ROW_FIELDS))
    return dict(zip(_ROW_FIELDS, values, strict=True))


def _integers(value: object, count: int) -> list[int]:
    """A list of so many whole numbers; raises CorruptFile."""
    numbers = [each for each in value if type(each) is int] if isinstance(value, list) else []
    if len(numbers) != count or not all(-1 <= each <= INT64_MAX for each in numbers):
        raise CorruptFile(f"statistics: {str(value)[:80]}, {count} whole numbers expected")
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
    """Hash, step from the last offset, and size of each sample, in the order of offsets."""
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
        raise CorruptFile(f"statistics: {name} are no base64: {error}") from error


def _samples(content: Fields) -> list[tuple[int, tuple[int, int]]]:
    try:
        return list(_decode_samples(_unpacked(content, "samples")))
    except CorruptRecord as error:
        raise CorruptFile(f"statistics: samples: {error}") from error


def _lost(content: Fields) -> set[int]:
    """Hashes of keys that are not in the sample any more."""
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
class Stored:
    """What a partition's file says.

    Attributes:
        statistics: The whole with all changes; for whoever compares, not to be changed.
        whole_bytes: Bytes of the whole.
        size_bytes: Bytes of the whole and its changes.
        is_sound: Whether nothing else is in the file, so that more can be appended.
    """

    statistics: Statistics
    whole_bytes: int
    size_bytes: int
    is_sound: bool = True


def read_statistics(
    fs: FileSystem, directory: str, cache: DecodedFiles | None = None
) -> tuple[Stored | None, str]:
    """A partition's statistics, and what is wrong with the file; None where it says nothing.

    Args:
        fs: Files.
        directory: The partition's directory.
        cache: What was read or written before; what is sound is kept there. For the lock's holder.

    Raises:
        OSError: The disk failed.
    """
    path = f"{directory}/{STATISTICS_FILE}"
    try:
        stat = fs.stat(path)
        cached = None if cache is None else cache.find(path, stat)
        if isinstance(cached, Stored):
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


def keep_written(fs: FileSystem, directory: str, cache: DecodedFiles, stored: Stored) -> None:
    """Remember what `write_statistics` says that the file says now; raises OSError."""
    path = f"{directory}/{STATISTICS_FILE}"
    cache.keep(path, fs.stat(path), stored, _weight(stored))


def _weight(stored: Stored) -> int:
    """In samples, of which a row has about the size of two."""
    return len(stored.statistics.samples) + 2 * len(stored.statistics.rows)


def decode_statistics(data: bytes) -> tuple[Stored, str]:
    """What a file says, and what is wrong with its changes.

    Raises:
        CorruptFile: The whole is damaged.
        UnsupportedVersion: A later release wrote it.
    """
    entries = _entries(data)
    whole = next(entries)
    stored = Stored(
        statistics=decode(whole),
        whole_bytes=len(whole),
        size_bytes=len(whole),
        # Without it the next entry would begin on the last line of this one.
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
    """Entries, at least one: a line of its checksum, a line of text, with both line ends."""
    at = 0
    while not at or at < len(data):
        end = data.find(LINE_END, data.find(LINE_END, at) + 1) + 1
        end = end or len(data)
        yield data[at:end]
        at = end


def write_statistics(
    fs: FileSystem, directory: str, statistics: Statistics, stored: Stored | None
) -> tuple[Stored, int]:
    """Store a partition's statistics: as changes where that is less, else by replacing the file.

    Args:
        fs: Files.
        directory: The partition's directory.
        statistics: The statistics; they may be changed afterwards.
        stored: What the file says; None for no file, or one that is to be replaced.

    Returns:
        What the file says now, and how many bytes were written.

    Raises:
        OSError: The disk failed; the old ones are there or the new ones, for `read_statistics`.
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
    made = Stored(statistics=statistics.copy(), whole_bytes=len(data), size_bytes=len(data))
    return made, len(data)


def _append(fs: FileSystem, path: str, change: bytes, position: int) -> None:
    file = fs.open(path, write=True)
    try:
        files.write_fully(file, change, position)
        file.sync()
    finally:
        file.close()
