"""One segment in the tier, as its manifest describes it: enough to plan without opening a file.

Source: docs/tiers.md#the-manifest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from tidelog.errors import CorruptFile
from tidelog.storage import files
from tidelog.storage.retention import CountedTime, SegmentTimes, TimeBasis
from tidelog.storage.roll import RollReason
from tidelog.storage.zone_format import FileSum, Zone
from tidelog.types import INT64_MAX, INT64_MIN, UNKNOWN_MS

# What a segment may consist of in the tier; `.snapshot` is the one at its base offset.
TIER_SUFFIXES: Final = (*files.SEGMENT_SUFFIXES, files.SNAPSHOT_SUFFIX)
_SUFFIXES: Final = frozenset(TIER_SUFFIXES)
_UID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_ZONE_TYPES: Final[list[type]] = [bool if n == "is_transactional" else int for n in Zone._fields]
_TIMES_TYPES: Final[list[type]] = [int, int, int, int, int, bool, int]
_REASONS: Final[Mapping[str, RollReason]] = {str(reason): reason for reason in RollReason}
_BASES: Final[Mapping[str, TimeBasis]] = {str(basis): basis for basis in TimeBasis}


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
    """The row that `encode_row` wrote; raises CorruptFile.

    A plan may read 100,000 of them, so numbers are looked at many at a time.
    """
    match value:
        case {
            "base": int(base),
            "end": int(end),
            "uid": str(uid),
            "objects": dict(objects),
            "total": list(total),
            "times": list(times),
            "capped": capped,
            "zonesKnowAppend": bool(knows),
            "fingerprint": int(named),
            "note": note,
            "clip": clip,
        }:
            what = f"segment {str(base)[:20]}"
        case _:
            raise CorruptFile(f"a segment lacks a field, or has one of another kind: {value!s:.80}")
    row = TierSegment(
        base_offset=base,
        end_offset=end,
        uid=_uid(uid),
        objects=_objects(objects, what),
        total=Zone._make(_numbers(total, _ZONE_TYPES, f"{what}: `total`")),
        times=_times(times, capped, what),
        zones_know_append=knows,
        last_fingerprint=named,
        note=_note(note, what),
        clip_bytes=_clip(clip, what),
    )
    whole = row.objects[files.LOG_SUFFIX].size_bytes
    if bool in {type(base), type(end), type(named)} or not 0 <= base < end <= INT64_MAX:
        raise CorruptFile(f"{what} ends at {end!s:.20}")
    if not 0 <= row.log_bytes <= whole:
        raise CorruptFile(f"{what} has {row.log_bytes} of {whole} bytes")
    return row


def _numbers(items: list[int], types: list[type], what: str) -> list[int]:
    """The items, which must have exactly these types, numbers 64 bits at most."""
    if list(map(type, items)) != types:
        raise CorruptFile(f"{what} is {items!s:.80}")
    if not INT64_MIN <= min(items) <= max(items) <= INT64_MAX:
        raise CorruptFile(f"{what} holds a number of more than 64 bits")
    return items


def _clip(value: object, what: str) -> int | None:
    if value is None or type(value) is int:
        return value
    raise CorruptFile(f"{what}: `clip` is {value!s:.20}, a whole number expected")


def _uid(text: str) -> str:
    if _UID.fullmatch(text) is None:
        raise CorruptFile(f"uid {text[:40]!r}: 32 hexadecimal digits expected")
    return text


def _objects(found: dict[str, list[int]], what: str) -> dict[str, FileSum]:
    if files.LOG_SUFFIX not in found or not set(found) <= _SUFFIXES:
        raise CorruptFile(f"{what}: `objects` has no log, or what is no file of a segment")
    pairs = list(found.values())
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise CorruptFile(f"{what}: `objects` are not lengths and checksums")
    numbers = list(chain.from_iterable(pairs))
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers[1::2]) >= 1 << 32:
        raise CorruptFile(f"{what}: `objects` are not lengths and checksums")
    return {suffix: FileSum(*pair) for suffix, pair in found.items()}


def _times(items: list[int], capped: object, what: str) -> TierTimes:
    found = _numbers(items, _TIMES_TYPES, f"{what}: `times`")
    return TierTimes(
        largest_timestamp=found[0],
        largest_at=found[1],
        mtime_ms=found[2],
        largest_append_ms=found[3],
        append_slack_ms=found[4],
        is_append_known=bool(found[5]),
        seen_ms=found[6],
        capped=None if capped is None else _capped(capped, what),
    )


def _capped(value: object, what: str) -> CountedTime:
    match value:
        case [int(ms), str(basis), bool(is_exact), int(offset)] if basis in _BASES:
            return CountedTime(ms, _BASES[basis], is_exact, offset)
    raise CorruptFile(f"{what}: `capped` is {value!s:.80}")


def _note(value: object, what: str) -> TierNote:
    match value:
        case [str(reason), int(roll_ms), int(seen_ms)]:
            # A later release may know more reasons; to this one they are unknown.
            return TierNote(_REASONS.get(reason, RollReason.UNKNOWN), roll_ms, seen_ms)
    raise CorruptFile(f"{what}: `note` is {value!s:.80}")
