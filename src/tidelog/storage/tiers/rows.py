"""One segment in the tier, as its manifest describes it: enough to plan without opening a file.

Source: docs/tiers.md#the-manifest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.errors import CorruptFile
from tidelog.storage import files
from tidelog.storage.retention import CountedTime, SegmentTimes, TimeBasis
from tidelog.storage.roll import RollReason
from tidelog.storage.tiers.fields import Fields
from tidelog.storage.zone_format import FileSum, Zone

UNKNOWN_MS: Final = -1
# What a segment may consist of in the tier; `.snapshot` is the one at its base offset.
TIER_SUFFIXES: Final = (*files.SEGMENT_SUFFIXES, files.SNAPSHOT_SUFFIX)
_UID_LENGTH: Final = 32
_ZONE_FIELDS: Final = len(Zone._fields)
_FLAG_AT: Final = Zone._fields.index("is_transactional")


class TierNote(NamedTuple):
    """Why and when a segment was rolled, and by when its records were there; -1 for unknown."""

    reason: RollReason
    roll_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTimes:
    """What retention needs to know of a segment's times, under any policy; see `SegmentTimes`."""

    largest_timestamp: int
    largest_at: int
    mtime_ms: int
    largest_append_ms: int = UNKNOWN_MS
    append_slack_ms: int = 0
    is_append_known: bool = False
    seen_ms: int = UNKNOWN_MS
    capped: CountedTime | None = None

    @classmethod
    def of(cls, times: SegmentTimes) -> "TierTimes":
        """Those of a local segment, asked under the policy that asks for most."""
        return cls(
            largest_timestamp=times.largest_timestamp,
            largest_at=times.largest_at,
            mtime_ms=times.mtime_ms,
            largest_append_ms=times.largest_append_ms,
            append_slack_ms=times.append_slack_ms,
            is_append_known=times.is_append_known,
            seen_ms=times.seen_ms,
            capped=times.capped,
        )

    def at(self, now_ms: int) -> SegmentTimes:
        """The same as retention wants it."""
        return SegmentTimes(
            largest_timestamp=self.largest_timestamp,
            largest_at=self.largest_at,
            mtime_ms=self.mtime_ms,
            largest_append_ms=self.largest_append_ms,
            append_slack_ms=self.append_slack_ms,
            is_append_known=self.is_append_known,
            seen_ms=self.seen_ms,
            capped=self.capped,
            now_ms=now_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSegment:
    """A segment in the tier.

    Attributes:
        base_offset: First offset that it may hold.
        end_offset: Offset behind it.
        uid: 32 hexadecimal digits that no other copy of any segment has.
        objects: Length and CRC-32C of each object, by suffix; the log's is there.
        total: All zones together: counts, times on both clocks, transactions.
        times: What retention counts from.
        zones_know_append: Whether its zone map knows exactly the append times that it has.
        last_fingerprint: Names its last batch, as notes do; 0 where it has none.
        note: Why and when it was rolled.
        clip_bytes: Where the log was cut inside of it: bytes of the log object that still count;
            None where all do. Indexes and zone map of a cut segment are not used.
    """

    base_offset: int
    end_offset: int
    uid: str
    objects: Mapping[str, FileSum]
    total: Zone
    times: TierTimes
    zones_know_append: bool
    last_fingerprint: int
    note: TierNote = field(default=TierNote(RollReason.UNKNOWN, UNKNOWN_MS, UNKNOWN_MS))
    clip_bytes: int | None = None

    @property
    def log_bytes(self) -> int:
        """Bytes of its log that count."""
        whole = self.objects[files.LOG_SUFFIX].size_bytes
        return whole if self.clip_bytes is None else self.clip_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all its objects."""
        return sum(one.size_bytes for one in self.objects.values())

    @property
    def folder(self) -> str:
        """Name of its folder below the partition's."""
        return f"{self.base_offset:020d}-{self.uid}"

    def key(self, suffix: str) -> str:
        """Key of one of its objects below the partition's folder."""
        return f"{self.folder}/{files.file_name(self.base_offset, suffix)}"

    def is_copy_of(self, other: "TierSegment") -> bool:
        """Whether both hold the same log bytes at the same offsets, wherever they lie."""
        log = files.LOG_SUFFIX
        return (self.base_offset, self.end_offset, self.objects[log], self.clip_bytes) == (
            other.base_offset,
            other.end_offset,
            other.objects[log],
            other.clip_bytes,
        )


def encode_row(row: TierSegment) -> dict[str, object]:
    """A row as JSON objects and numbers."""
    times, capped = row.times, row.times.capped
    return {
        "base": row.base_offset,
        "end": row.end_offset,
        "uid": row.uid,
        "objects": {suffix: list(one) for suffix, one in sorted(row.objects.items())},
        "total": list(row.total),
        "times": [
            times.largest_timestamp,
            times.largest_at,
            times.mtime_ms,
            times.largest_append_ms,
            times.append_slack_ms,
            times.is_append_known,
            times.seen_ms,
        ],
        "capped": None if capped is None else list(capped),
        "zonesKnowAppend": row.zones_know_append,
        "fingerprint": row.last_fingerprint,
        "note": list(row.note),
        "clip": row.clip_bytes,
    }


def decode_row(value: object) -> TierSegment:
    """The row that `encode_row` wrote; raises CorruptFile."""
    found = Fields.of(value, "a segment")
    base, end = found.integer("base"), found.integer("end")
    what = f"segment {base}"
    row = TierSegment(
        base_offset=base,
        end_offset=end,
        uid=_uid(found.text("uid")),
        objects=_objects(found.mapping("objects"), what),
        total=_zone(found.items("total"), what),
        times=_times(found.items("times"), found.value("capped"), what),
        zones_know_append=found.flag("zonesKnowAppend"),
        last_fingerprint=found.integer("fingerprint"),
        note=_note(found.items("note"), what),
        clip_bytes=found.maybe_integer("clip"),
    )
    whole = row.objects[files.LOG_SUFFIX].size_bytes
    if not 0 <= base < end or not 0 <= row.log_bytes <= whole:
        raise CorruptFile(f"{what} ends at {end}, with {row.log_bytes} of {whole} bytes")
    return row


def _uid(text: str) -> str:
    if len(text) != _UID_LENGTH or not set(text) <= set("0123456789abcdef"):
        raise CorruptFile(f"uid {text[:40]!r}: 32 hexadecimal digits expected")
    return text


def _objects(found: Fields, what: str) -> dict[str, FileSum]:
    objects = {}
    for suffix in found.names:
        size, crc = _integers(found.items(suffix), 2, f"{what}, object {suffix[:20]!r}")
        if suffix not in TIER_SUFFIXES or size < 0 or not 0 <= crc < 1 << 32:
            raise CorruptFile(f"{what}: object {suffix[:20]!r} of {size} bytes, checksum {crc}")
        objects[suffix] = FileSum(size, crc)
    if files.LOG_SUFFIX not in objects:
        raise CorruptFile(f"{what} has no log object")
    return objects


def _zone(items: list[object], what: str) -> Zone:
    if len(items) != _ZONE_FIELDS or type(items[_FLAG_AT]) is not bool:
        raise CorruptFile(f"{what}: `total` of {len(items)} fields, {_ZONE_FIELDS} expected")
    flag = items[_FLAG_AT]
    numbers = _integers([*items[:_FLAG_AT], *items[_FLAG_AT + 1 :]], _ZONE_FIELDS - 1, what)
    return Zone._make([*numbers[:_FLAG_AT], flag, *numbers[_FLAG_AT:]])


def _times(items: list[object], capped: object, what: str) -> TierTimes:
    if len(items) != 7 or type(items[5]) is not bool:
        raise CorruptFile(f"{what}: `times` of {len(items)} fields, 7 expected")
    numbers = _integers([*items[:5], items[6]], 6, what)
    return TierTimes(
        largest_timestamp=numbers[0],
        largest_at=numbers[1],
        mtime_ms=numbers[2],
        largest_append_ms=numbers[3],
        append_slack_ms=numbers[4],
        is_append_known=items[5],
        seen_ms=numbers[5],
        capped=None if capped is None else _capped(capped, what),
    )


def _capped(value: object, what: str) -> CountedTime:
    if not isinstance(value, list) or len(value) != 4 or type(value[2]) is not bool:
        raise CorruptFile(f"{what}: `capped` is {str(value)[:80]}")
    ms, offset = _integers([value[0], value[3]], 2, what)
    try:
        return CountedTime(ms, TimeBasis(value[1]), value[2], offset)
    except ValueError as error:
        raise CorruptFile(f"{what}: `capped` is {str(value)[:80]}") from error


def _note(items: list[object], what: str) -> TierNote:
    if len(items) != 3:
        raise CorruptFile(f"{what}: `note` of {len(items)} fields, 3 expected")
    roll_ms, seen_ms = _integers(items[1:], 2, what)
    # A later release may know more reasons; to this one they are unknown.
    known = items[0] if items[0] in set(RollReason) else RollReason.UNKNOWN
    return TierNote(RollReason(str(known)), roll_ms, seen_ms)


def _integers(items: list[object], count: int, what: str) -> list[int]:
    numbers = [item for item in items if type(item) is int]
    if len(numbers) != len(items) or len(numbers) != count:
        raise CorruptFile(f"{what}: {count} whole numbers expected, not {str(items)[:80]}")
    return numbers
