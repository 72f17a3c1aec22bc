"""The manifest of a partition's tier: its segments, and objects to be removed.

Each partition has one manifest object, which is replaced by compare-and-swap. So any number of
segments is replaced in one step, and a reader sees all of the old segments or all of the new
segments. Each segment has a row in the manifest. A scan can be planned from the rows alone, without
opening a file. Manifests are immutable: a change returns another manifest. This module does no
I/O.

Text, version 1: `{"crc32c": N, "manifest": {"version": 1, ...}}`; the checksum covers the bytes of
the inner object. Source: docs/tiers.md#the-manifest.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain, pairwise
from typing import Final, NamedTuple

from tidelog.amounts import offsets_text
from tidelog.errors import CorruptFile, InvalidRequest, TierConflict
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.storage import log_files
from tidelog.storage.clocks.zone_map import FileSum, Zone
from tidelog.storage.segment.retention import CountedTime, SegmentTimes, TimeBasis
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.text_files import Fields, read_json
from tidelog.types import INT64_MAX, INT64_MIN, UNKNOWN_MS

# Suffixes of the objects that a segment may have. The producer snapshot has the state at the
# segment's base offset.
_SUFFIXES: Final = frozenset(log_files.LOG_FIRST)

_UID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_ZONE_TYPES: Final[list[type]] = [bool if n == "is_transactional" else int for n in Zone._fields]
_TIMES_TYPES: Final[list[type]] = [int, int, int, int, int, bool, int]
_REASONS: Final[Mapping[str, RollReason]] = {str(reason): reason for reason in RollReason}
_BASES: Final[Mapping[str, TimeBasis]] = {str(basis): basis for basis in TimeBasis}


class TierNote(NamedTuple):
    """Reason and time of a segment's roll, and the time by which all its records had arrived.

    Times are in ms, -1 if unknown.
    """

    reason: RollReason
    roll_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSegment:
    """A segment in the tier.

    Attributes:
        base_offset: First offset that the segment may hold.
        end_offset: Offset after the segment's last offset.
        uid: 32 hexadecimal digits, unique among all copies of all segments.
        objects: Length and CRC-32C of each object, by suffix; the log is always among them.
        total: Summary of all zones: counts, times on both clocks, transactions.
        times: Times that retention needs under any policy; the field `now_ms` is not stored, and is
            0.
        zones_know_append: Whether the zone map has exactly the append times of the segment.
        last_fingerprint: Fingerprint of the segment's last batch, as in segment notes; 0 without a
            batch.
        note: Reason and time of the segment's roll.
        clip_bytes: Number of valid bytes of the log object if the log was truncated inside the
            segment; None if all bytes are valid. Indexes and zone map of a truncated segment are
            not used.
    """

    base_offset: int
    end_offset: int
    uid: str
    objects: Mapping[str, FileSum]
    total: Zone
    times: SegmentTimes
    zones_know_append: bool
    last_fingerprint: int
    note: TierNote = field(default=TierNote(RollReason.UNKNOWN, UNKNOWN_MS, UNKNOWN_MS))
    clip_bytes: int | None = None

    @property
    def log_bytes(self) -> int:
        """Number of valid bytes of the log object."""
        whole = self.objects[log_files.LOG_SUFFIX].size_bytes
        return whole if self.clip_bytes is None else self.clip_bytes

    @property
    def size_bytes(self) -> int:
        """Size of all objects of the segment in bytes."""
        return sum(one.size_bytes for one in self.objects.values())

    @property
    def folder(self) -> str:
        """Name of the segment's folder inside the partition's folder."""
        return f"{self.base_offset:020d}-{self.uid}"

    def key(self, suffix: str) -> str:
        """Return the key of one of the segment's objects, relative to the partition's folder."""
        return f"{self.folder}/{log_files.file_name(self.base_offset, suffix)}"

    @property
    def is_dense(self) -> bool:
        """Whether each offset of the segment has a record; False if the segment was truncated."""
        total = self.total
        records = total.data_records + total.control_records
        return self.clip_bytes is None and records == self.end_offset - self.base_offset

    def is_copy_of(self, other: "TierSegment") -> bool:
        """Return whether this row and another describe equal log bytes at equal offsets."""
        log = log_files.LOG_SUFFIX
        return (self.base_offset, self.end_offset, self.objects[log], self.clip_bytes) == (
            other.base_offset,
            other.end_offset,
            other.objects[log],
            other.clip_bytes,
        )


def encode_row(row: TierSegment) -> dict[str, object]:
    """Encode a row as JSON objects and numbers."""
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
    """Decode the result of `encode_row`; raises CorruptFile.

    A plan may read 100,000 rows. For speed, all numbers of a list are checked in one step.
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
            raise CorruptFile(f"a segment with a missing or invalid field: {value!s:.80}")
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
    whole = row.objects[log_files.LOG_SUFFIX].size_bytes
    if bool in {type(base), type(end), type(named)} or not 0 <= base < end <= INT64_MAX:
        values = f"{base!s:.20}, {end!s:.20} and {named!s:.20}"
        raise CorruptFile(f"{what} has an invalid base offset, end offset or fingerprint: {values}")
    if not 0 <= row.log_bytes <= whole:
        raise CorruptFile(f"{what} uses {row.log_bytes} of {whole} bytes of its log")
    return row


def _numbers(items: list[int], types: list[type], what: str) -> list[int]:
    """Check that items have these types and that numbers have at most 64 bits; return the items."""
    if list(map(type, items)) != types:
        raise CorruptFile(f"{what} is invalid: {items!s:.80}")
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


def _objects(sums: dict[str, list[int]], what: str) -> dict[str, FileSum]:
    if log_files.LOG_SUFFIX not in sums or not set(sums) <= _SUFFIXES:
        raise CorruptFile(f"{what}: `objects` has no log, or an unknown file")
    pairs = list(sums.values())
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise CorruptFile(f"{what}: `objects` are not lengths and checksums")
    numbers = list(chain.from_iterable(pairs))
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers[1::2]) >= 1 << 32:
        raise CorruptFile(f"{what}: `objects` are not lengths and checksums")
    return {suffix: FileSum(*pair) for suffix, pair in sums.items()}


def _times(items: list[int], capped: object, what: str) -> SegmentTimes:
    numbers = _numbers(items, _TIMES_TYPES, f"{what}: `times`")
    largest, largest_at, mtime_ms, append_ms, slack_ms, is_known, seen_ms = numbers
    return SegmentTimes(
        largest_timestamp=largest,
        mtime_ms=mtime_ms,
        now_ms=0,
        largest_at=largest_at,
        largest_append_ms=append_ms,
        append_slack_ms=slack_ms,
        is_append_known=bool(is_known),
        seen_ms=seen_ms,
        capped=None if capped is None else _capped(capped, what),
    )


def _capped(value: object, what: str) -> CountedTime:
    match value:
        case [int(ms), str(basis), bool(is_exact), int(offset)] if basis in _BASES:
            return CountedTime(ms, _BASES[basis], is_exact, offset)
    raise CorruptFile(f"{what}: `capped` is invalid: {value!s:.80}")


def _note(value: object, what: str) -> TierNote:
    match value:
        case [str(reason), int(roll_ms), int(seen_ms)]:
            # Reasons that only a later release defines count as unknown.
            return TierNote(_REASONS.get(reason, RollReason.UNKNOWN), roll_ms, seen_ms)
    raise CorruptFile(f"{what}: `note` is invalid: {value!s:.80}")


MANIFEST_VERSION: Final = 1

# Returns the part of a segment below an offset, None if nothing remains.
Clip = Callable[[TierSegment, int], TierSegment | None]

_HEAD: Final = b'{"crc32c": '
_MIDDLE: Final = b', "manifest": '


@dataclass(frozen=True, slots=True)
class Garbage:
    """A segment that was removed from the manifest; readers may still use an older manifest.

    Attributes:
        segment: The removed segment.
        since_ms: Time in ms when the segment was removed from the manifest.
    """

    segment: TierSegment
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of the tier of one partition.

    Attributes:
        topic: The partition's topic.
        topic_id: The topic's id, 32 hexadecimal digits.
        partition: The partition's number.
        writer: Id of the only directory that may change the manifest.
        generation: Number that increases with every change.
        change: Random name of the change that wrote the manifest. The name distinguishes manifests
            that two copies of a directory have written.
        log_start_offset: Log start; records below it are deleted, even if segments still have them.
        segments: Segments by offset, without overlaps.
        garbage: Segments whose objects are to be removed after the grace period.
    """

    topic: str
    topic_id: str
    partition: int
    writer: str
    generation: int = 0
    change: str = ""
    log_start_offset: int = 0
    segments: tuple[TierSegment, ...] = ()
    garbage: tuple[Garbage, ...] = ()

    @property
    def end_offset(self) -> int:
        """Offset after the last segment, or the log start if that is higher.

        This is the log start if there is no segment.
        """
        end = self.segments[-1].end_offset if self.segments else 0
        return max(end, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        """Size of all segments' objects in bytes."""
        return sum(row.size_bytes for row in self.segments)

    def folders(self) -> set[str]:
        """Return the names of the folders of all segments, garbage included."""
        rows = [*self.segments, *(one.segment for one in self.garbage)]
        return {row.folder for row in rows}

    def with_added(self, rows: Iterable[TierSegment]) -> "Manifest":
        """Return the manifest with `rows` added, except rows that are copies of its segments.

        Raises:
            TierConflict: The manifest has other data at some of these offsets.
        """
        segments = list(self.segments)
        for row in rows:
            touching = [each for each in segments if _overlap(each, row)]
            if not touching:
                segments.append(row)
            elif len(touching) > 1 or not touching[0].is_copy_of(row):
                raise TierConflict(
                    f"{self.topic}-{self.partition}: the tier has other records at offsets"
                    f" {touching[0].base_offset} to {touching[-1].end_offset - 1}"
                )
        return self.having(segments)

    def with_exchanged(
        self, old: Sequence[TierSegment], new: Sequence[TierSegment], now_ms: int
    ) -> "Manifest":
        """Return the manifest with `old` replaced by `new`, all in one step.

        Args:
            old: Consecutive segments, each as it is in this manifest.
            new: One or more consecutive segments that span the offsets of `old`.
            now_ms: Start of the grace period of the old segments.

        Raises:
            InvalidRequest: `old` or `new` is empty or not consecutive, or their offsets differ.
            TierConflict: One of the old segments is no longer in the manifest.
        """
        if not old or not new:
            raise InvalidRequest("an exchange needs old and new segments")
        for what, rows in (("old", old), ("new", new)):
            if any(a.end_offset != b.base_offset for a, b in pairwise(rows)):
                raise InvalidRequest(f"the {what} segments of an exchange are not adjacent")
        if _span(old) != _span(new):
            raise InvalidRequest(
                f"segments with {_span_text(old)} can't be exchanged for segments with"
                f" {_span_text(new)}; the offsets must be equal"
            )
        missing = [row.base_offset for row in old if row not in self.segments]
        if missing:
            raise TierConflict(
                f"{self.topic}-{self.partition}: the tier's segment {missing[0]} was exchanged or"
                " deleted meanwhile; read the manifest and start again"
            )
        uids = {row.uid for row in old}
        unchanged = [row for row in self.segments if row.uid not in uids]
        return self.having([*unchanged, *new]).discarding(old, now_ms)

    def with_start(
        self, offset: int, local_start: int, now_ms: int, *, gaps_are_losses: bool = True
    ) -> "Manifest":
        """Return the manifest with the log start raised to `offset`.

        Segments below the log start become garbage. Exception: if the log start is in a gap after a
        segment, and the offsets in this gap may be lost, the segment stays. Without it, nothing
        would show that these offsets are lost.

        Args:
            offset: The new log start; an offset below the current log start changes nothing.
            local_start: First local offset.
            now_ms: Start of the grace period of the deleted segments.
            gaps_are_losses: Whether a gap after a segment without gaps may be a loss; False if
                records were removed from the middle of the log (`storage.segment.gaps`).
        """
        start = max(self.log_start_offset, offset)
        following = [row.base_offset for row in self.segments[1:]]
        deleted: list[TierSegment] = []
        remaining: list[TierSegment] = []
        for row, next_base in zip(self.segments, [*following, local_start], strict=False):
            is_before_loss = gaps_are_losses and row.is_dense
            end = max(row.end_offset, next_base) if is_before_loss else row.end_offset
            (deleted if end <= start else remaining).append(row)
        moved = dataclasses.replace(self, log_start_offset=start)
        return moved.having(remaining).discarding(deleted, now_ms)

    def with_cut(self, offset: int, clip: Clip, now_ms: int) -> "Manifest":
        """Return the manifest of a log that was truncated at `offset`.

        Args:
            offset: First offset that is removed.
            clip: Returns the part of a segment below the offset, None if nothing remains.
            now_ms: Start of the grace period of segments that are removed completely.
        """
        remaining, deleted = [], []
        for row in self.segments:
            clipped = row if row.end_offset <= offset else None
            if row.base_offset < offset < row.end_offset:
                clipped = clip(row, offset)
            if clipped is None:
                deleted.append(row)
            else:
                remaining.append(clipped)
        # The log start must not stay above `offset`: records that are appended after the truncation
        # are valid, even if earlier records at the same offsets had been deleted.
        start = min(self.log_start_offset, offset)
        cut = dataclasses.replace(self, log_start_offset=start)
        return cut.having(remaining).discarding(deleted, now_ms)

    def without_garbage(self, folders: Collection[str]) -> "Manifest":
        """Return the manifest without garbage in these folders, whose objects have been removed."""
        remaining = tuple(one for one in self.garbage if one.segment.folder not in folders)
        return dataclasses.replace(self, garbage=remaining)

    def having(self, rows: Iterable[TierSegment]) -> "Manifest":
        """Return the manifest with exactly these segments; raises CorruptFile if they overlap."""
        ordered = tuple(sorted(rows, key=lambda row: row.base_offset))
        manifest = dataclasses.replace(self, segments=ordered)
        check_rows(manifest)
        return manifest

    def discarding(self, rows: Iterable[TierSegment], now_ms: int) -> "Manifest":
        """Return the manifest with these segments added to the garbage."""
        added = tuple(Garbage(row, now_ms) for row in rows)
        return dataclasses.replace(self, garbage=(*self.garbage, *added))


def check_rows(manifest: Manifest) -> None:
    """Check that segments neither overlap nor share objects; raises CorruptFile."""
    for first, second in pairwise(manifest.segments):
        if first.end_offset > second.base_offset:
            raise CorruptFile(
                f"segment {second.base_offset} begins before {first.base_offset} ends at"
                f" {first.end_offset}"
            )
    uids = {row.uid for row in manifest.segments}
    if len(uids) != len(manifest.segments):
        raise CorruptFile("two segments have the same uid")


def _overlap(one: TierSegment, other: TierSegment) -> bool:
    return one.base_offset < other.end_offset and other.base_offset < one.end_offset


def _span(rows: Sequence[TierSegment]) -> tuple[int, int]:
    return rows[0].base_offset, rows[-1].end_offset


def _span_text(rows: Sequence[TierSegment]) -> str:
    first, end = _span(rows)
    return offsets_text(first, end - 1)


def missing_span(
    rows: Sequence[TierSegment], others: Sequence[TierSegment], start: int
) -> tuple[int, int] | None:
    """Return the first offsets [first, end) that `rows` have and `others` lack, or None.

    Args:
        rows: Segments by offset, without overlaps.
        others: Segments by offset, without overlaps.
        start: Offsets below this one are ignored.
    """
    covered = iter(others)
    other = next(covered, None)
    for row in rows:
        at = max(row.base_offset, start)
        while at < row.end_offset:
            while other is not None and other.end_offset <= at:
                other = next(covered, None)
            if other is None or other.base_offset > at:
                end = row.end_offset if other is None else min(row.end_offset, other.base_offset)
                return at, end
            at = other.end_offset
    return None


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the manifest's text."""
    inner = json.dumps(manifest_object(manifest), separators=(",", ":")).encode("ascii")
    return seal(inner, _MIDDLE)


def manifest_object(manifest: Manifest) -> dict[str, object]:
    """Encode a manifest as JSON objects and numbers."""
    return {
        "version": MANIFEST_VERSION,
        "topic": manifest.topic,
        "topicId": manifest.topic_id,
        "partition": manifest.partition,
        "writer": manifest.writer,
        "generation": manifest.generation,
        "change": manifest.change,
        "logStartOffset": manifest.log_start_offset,
        "segments": [encode_row(row) for row in manifest.segments],
        "garbage": [[encode_row(one.segment), one.since_ms] for one in manifest.garbage],
    }


def decode_manifest(data: bytes) -> Manifest:
    """Decode the result of `encode_manifest`.

    Raises:
        CorruptFile: The checksum is wrong, or the content is invalid.
        UnsupportedVersion: A later release wrote the manifest.
    """
    return manifest_of(unseal(data, _MIDDLE, "the manifest"))


def seal(inner: bytes, middle: bytes) -> bytes:
    """Return a JSON object: the checksum of `inner`, then the text `middle`, then `inner`."""
    return b"%s%d%s%s}\n" % (_HEAD, crc32c(inner), middle, inner)


def unseal(data: bytes, middle: bytes, what: str) -> Fields:
    """Return the fields of `inner` in a text that `seal` returned; raises CorruptFile."""
    head, _, rest = data.partition(middle)
    inner = rest.removesuffix(b"}\n")
    number = head.removeprefix(_HEAD)
    if not head.startswith(_HEAD) or inner == rest or not number.isdigit():
        raise CorruptFile(f"{what} is truncated or invalid: {data[:40]!r}")
    if len(number) > 10 or int(number) != crc32c(inner):
        raise CorruptFile(f"{what}: its checksum is {crc32c(inner)}, but {number[:10]!r} is stored")
    return read_json(inner, what)


def manifest_of(fields: Fields) -> Manifest:
    """Decode the manifest in these fields; raises the errors of `decode_manifest`."""
    fields.check_version(MANIFEST_VERSION, "manifest")
    manifest = Manifest(
        topic=fields.text("topic"),
        topic_id=fields.text("topicId"),
        partition=fields.integer("partition"),
        writer=fields.text("writer"),
        generation=fields.integer("generation"),
        change=fields.text("change"),
        log_start_offset=fields.integer("logStartOffset"),
        segments=tuple(decode_row(item) for item in fields.items("segments")),
        garbage=tuple(_garbage(item) for item in fields.items("garbage")),
    )
    check_rows(manifest)
    return manifest


def _garbage(item: object) -> Garbage:
    if not isinstance(item, list) or len(item) != 2 or type(item[1]) is not int:
        raise CorruptFile(f"`garbage` has an invalid item: {str(item)[:80]}")
    return Garbage(decode_row(item[0]), item[1])
