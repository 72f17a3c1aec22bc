"""The manifest of a partition's tier: which segments it has, and what is to be thrown away.

One object per partition, replaced by compare-and-swap, so any set of segments is exchanged in one
step: a reader sees the old set or the new one. Everything here is immutable and pure: changes
return another manifest.

Text, version 1: `{"crc32c": N, "manifest": {"version": 1, ...}}`; the checksum is that of the
inner object as written. Source: docs/tiers.md#the-manifest.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.errors import CorruptFile, InvalidRequest, TierConflict, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage.tiers.fields import Fields, read_json
from tidelog.storage.tiers.rows import TierSegment, decode_row, encode_row

MANIFEST_VERSION: Final = 1
# What is left of a segment below an offset, None where nothing is.
Clip = Callable[[TierSegment, int], TierSegment | None]
_HEAD: Final = b'{"crc32c": '
_MIDDLE: Final = b', "manifest": '


@dataclass(frozen=True, slots=True)
class Garbage:
    """A segment that no manifest from now on has; readers may still go by an older one.

    Attributes:
        segment: What it was.
        since_ms: When it was taken out.
    """

    segment: TierSegment
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the tier of one partition holds.

    Attributes:
        topic: Its topic's name.
        topic_id: The topic's id, 32 hexadecimal digits.
        partition: Its number.
        writer: Id of the directory that changes it; another one is refused.
        generation: Grows with every change.
        change: Drawn anew for each change, so that two copies of a directory never write the same;
            empty where a release wrote it that did not draw any.
        log_start_offset: Offsets below it are deleted, whatever segments still hold.
        segments: By offset, without overlaps.
        garbage: To be removed once their time has come.
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
        """Offset behind the last segment; the log start where there is none."""
        return self.segments[-1].end_offset if self.segments else self.log_start_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' objects."""
        return sum(row.size_bytes for row in self.segments)

    def folders(self) -> set[str]:
        """Names of the folders that hold something of it, garbage included."""
        rows = [*self.segments, *(one.segment for one in self.garbage)]
        return {row.folder for row in rows}

    def with_added(self, rows: Iterable[TierSegment]) -> "Manifest":
        """With further segments; one that is there already with the same bytes is passed over.

        Raises:
            TierConflict: Another segment lies at some of these offsets.
        """
        found = list(self.segments)
        for row in rows:
            touching = [each for each in found if _overlap(each, row)]
            if not touching:
                found.append(row)
            elif len(touching) > 1 or not touching[0].is_copy_of(row):
                raise TierConflict(
                    f"{self.topic}-{self.partition}: the tier holds other records at offsets"
                    f" {touching[0].base_offset} to {touching[-1].end_offset - 1}"
                )
        return self.having(found)

    def with_exchanged(
        self, old: Sequence[TierSegment], new: Sequence[TierSegment], now_ms: int
    ) -> "Manifest":
        """With `new` in the place of `old`, all in one step.

        Args:
            old: Neighbours, each as it is in this manifest.
            new: Neighbours that span the same offsets, any number but none.
            now_ms: From when on the old ones wait to be removed.

        Raises:
            InvalidRequest: Nothing to be exchanged, or other offsets.
            TierConflict: One of the old ones is not in the manifest any more.
        """
        if not old or not new:
            raise InvalidRequest("an exchange needs segments on both sides")
        for what, rows in (("old", old), ("new", new)):
            if any(a.end_offset != b.base_offset for a, b in pairwise(rows)):
                raise InvalidRequest(f"the {what} segments of an exchange are no neighbours")
        if _span(old) != _span(new):
            raise InvalidRequest(f"offsets {_span(old)} can't be exchanged for {_span(new)}")
        missing = [row.base_offset for row in old if row not in self.segments]
        if missing:
            raise TierConflict(
                f"{self.topic}-{self.partition}: the tier's segment {missing[0]} was exchanged or"
                " deleted meanwhile; read the manifest and begin anew"
            )
        uids = {row.uid for row in old}
        kept = [row for row in self.segments if row.uid not in uids]
        return self.having([*kept, *new]).discarding(old, now_ms)

    def with_start(self, offset: int, now_ms: int) -> "Manifest":
        """With the log start at `offset` where it lies below; without segments that end there."""
        start = max(self.log_start_offset, offset)
        gone = [row for row in self.segments if row.end_offset <= start]
        moved = dataclasses.replace(self, log_start_offset=start)
        kept = [row for row in self.segments if row.end_offset > start]
        return moved.having(kept).discarding(gone, now_ms)

    def with_cut(self, offset: int, clip: Clip, now_ms: int) -> "Manifest":
        """Without what lies at or behind `offset`, where the log was cut.

        Args:
            offset: First offset that is gone.
            clip: What is left of a segment that holds the offset, None where nothing is.
            now_ms: From when on segments that are gone as a whole wait to be removed.
        """
        kept, gone = [], []
        for row in self.segments:
            left = row if row.end_offset <= offset else None
            if row.base_offset < offset < row.end_offset:
                left = clip(row, offset)
            if left is None:
                gone.append(row)
            else:
                kept.append(left)
        # Records that follow lie behind the cut, and count whatever was deleted before.
        start = min(self.log_start_offset, offset)
        cut = dataclasses.replace(self, log_start_offset=start)
        return cut.having(kept).discarding(gone, now_ms)

    def without_garbage(self, folders: Collection[str]) -> "Manifest":
        """Without these folders among what waits to be removed: their objects are gone."""
        kept = tuple(one for one in self.garbage if one.segment.folder not in folders)
        return dataclasses.replace(self, garbage=kept)

    def having(self, rows: Iterable[TierSegment]) -> "Manifest":
        """With exactly these segments; raises CorruptFile where they overlap."""
        ordered = tuple(sorted(rows, key=lambda row: row.base_offset))
        found = dataclasses.replace(self, segments=ordered)
        check_rows(found)
        return found

    def discarding(self, rows: Iterable[TierSegment], now_ms: int) -> "Manifest":
        """With these among what waits to be removed."""
        added = tuple(Garbage(row, now_ms) for row in rows)
        return dataclasses.replace(self, garbage=(*self.garbage, *added))


def check_rows(manifest: Manifest) -> None:
    """Segments neither overlap nor share objects; raises CorruptFile."""
    for first, second in pairwise(manifest.segments):
        if first.end_offset > second.base_offset:
            raise CorruptFile(
                f"segment {second.base_offset} begins before {first.base_offset} ends at"
                f" {first.end_offset}"
            )
    uids = {row.uid for row in manifest.segments}
    if len(uids) != len(manifest.segments):
        raise CorruptFile("two segments have one uid")


def _overlap(one: TierSegment, other: TierSegment) -> bool:
    return one.base_offset < other.end_offset and other.base_offset < one.end_offset


def _span(rows: Sequence[TierSegment]) -> tuple[int, int]:
    return rows[0].base_offset, rows[-1].end_offset


def missing_span(
    rows: Sequence[TierSegment], others: Sequence[TierSegment], start: int
) -> tuple[int, int] | None:
    """First offsets [first, end) from `start` on that `rows` have and `others` lack; None if none.

    Args:
        rows: By offset, without overlaps.
        others: By offset, without overlaps.
        start: Offsets below don't count.
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
    """The manifest's text."""
    inner = json.dumps(manifest_object(manifest), separators=(",", ":")).encode("ascii")
    return seal(inner, _MIDDLE)


def manifest_object(manifest: Manifest) -> dict[str, object]:
    """A manifest as JSON objects and numbers."""
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
    """The manifest that `encode_manifest` wrote.

    Raises:
        CorruptFile: Its checksum is wrong, or a rule is broken.
        UnsupportedVersion: A later release wrote it.
    """
    return manifest_of(unseal(data, _MIDDLE, "the manifest"))


def seal(inner: bytes, middle: bytes) -> bytes:
    """A JSON text with its checksum in front."""
    return b"%s%d%s%s}\n" % (_HEAD, crc32c(inner), middle, inner)


def unseal(data: bytes, middle: bytes, what: str) -> Fields:
    """The fields of a text that `seal` wrote; raises CorruptFile."""
    head, _, rest = data.partition(middle)
    inner = rest.removesuffix(b"}\n")
    number = head.removeprefix(_HEAD)
    if not head.startswith(_HEAD) or inner == rest or not number.isdigit():
        raise CorruptFile(f"{what} is cut, or something else: {data[:40]!r}")
    if len(number) > 10 or int(number) != crc32c(inner):
        raise CorruptFile(f"{what}: its checksum is {crc32c(inner)}, it says {number[:10]!r}")
    return read_json(inner, what)


def manifest_of(found: Fields) -> Manifest:
    """The manifest in these fields; errors as `decode_manifest`."""
    version = found.integer("version")
    if version != MANIFEST_VERSION:
        raise UnsupportedVersion(f"manifest of version {version}, {MANIFEST_VERSION} is known")
    manifest = Manifest(
        topic=found.text("topic"),
        topic_id=found.text("topicId"),
        partition=found.integer("partition"),
        writer=found.text("writer"),
        generation=found.integer("generation"),
        change=found.maybe_text("change"),
        log_start_offset=found.integer("logStartOffset"),
        segments=tuple(decode_row(item) for item in found.items("segments")),
        garbage=tuple(_garbage(item) for item in found.items("garbage")),
    )
    check_rows(manifest)
    return manifest


def _garbage(item: object) -> Garbage:
    if not isinstance(item, list) or len(item) != 2 or type(item[1]) is not int:
        raise CorruptFile(f"`garbage` holds {str(item)[:80]}")
    return Garbage(decode_row(item[0]), item[1])
