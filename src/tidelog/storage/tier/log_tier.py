"""The tier of an open log: its state file, and the local segments that may be deleted.

`LogTier` owns the file `tidelog-tier.json` that the log uses. Three kinds of changes are stored
durably in this file before they are made: a higher log start, a truncation of the log, and the
deletion of local files that the tier has.

`local.retention.ms` and `local.retention.bytes` limit the age and the size of local files, as
`retention.ms` and `retention.bytes` do for the whole log. The value -2 means the value of the
setting without `local.`. A local segment is deleted only if the manifest has a row with the
segment's offsets, length and last batch. While the active segment is empty, the newest finished
segment keeps its local files, so that the log can be opened without the store.

Source: KIP-405; Kafka 4.x UnifiedLog (localRetentionMs, localRetentionSize).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.amounts import offsets_text
from tidelog.config import CLEANUP_DELETE, RetentionClock, TopicConfig
from tidelog.storage.segment.index_proof import first_reaching
from tidelog.storage.segment.retention import SegmentFacts, plan_retention
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.storage.segment.segment_notes import last_fingerprint
from tidelog.storage.tier.tier_files import TierAccess, read_record_bytes
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    from tidelog.storage.tier.manifest import Manifest, TierSegment
    from tidelog.storage.tier.remote_segment import RemoteSegment
    from tidelog.storage.tier.tier_record import TierRecord, TierView

AS_TOTAL: Final = -2


class LocalRetention(NamedTuple):
    """The settings of local retention as a `RetentionConfig` for `plan_retention`."""

    retention_ms: int
    retention_bytes: int
    tidelog_retention_clock: RetentionClock
    cleanup_policy: tuple[str, ...] = (CLEANUP_DELETE,)

    @classmethod
    def of(cls, config: TopicConfig) -> "LocalRetention":
        """Create the local retention settings of a topic."""
        ms, size = config.local_retention_ms, config.local_retention_bytes
        return cls(
            config.retention_ms if ms == AS_TOTAL else ms,
            config.retention_bytes if size == AS_TOTAL else size,
            config.tidelog_retention_clock,
        )


def is_copied(segment: Segment, row: "TierSegment") -> bool:
    """Return whether a row describes a copy of a segment: equal offsets, length and last batch."""
    return row.end_offset == segment.end_offset and _has_bytes_of(segment, row)


def is_followed_by_hole(segment: Segment, row: "TierSegment", manifest: "Manifest") -> bool:
    """Return whether the tier has offsets of a missing file that followed a copied segment.

    A finished segment's end is taken from the next file's base offset. If a file is missing,
    `segment` seems to have the missing file's offsets, too.
    """
    if segment.is_active or row.end_offset >= segment.end_offset:
        return False
    later = (each.base_offset for each in manifest.segments if each.base_offset >= row.end_offset)
    return next(later, segment.end_offset) < segment.end_offset and _has_bytes_of(segment, row)


def _has_bytes_of(segment: Segment, row: "TierSegment") -> bool:
    """Return whether a log file matches a row, by base offset, length and last batch."""
    same = (row.base_offset, row.log_bytes) == (segment.base_offset, segment.size_bytes)
    return same and row.last_fingerprint == last_fingerprint(segment)


def copies_of(local: Sequence[Segment], rows: "Sequence[TierSegment]") -> int:
    """Return how many local segments precede the oldest local segment that the tier lacks."""
    by_base = {row.base_offset: row for row in rows}
    count = 0
    for segment in local:
        row = by_base.get(segment.base_offset)
        if segment.is_active or row is None or not is_copied(segment, row):
            break
        count += 1
    return count


def plan_release(local: Sequence[SegmentFacts], *, config: TopicConfig, now_ms: int) -> int:
    """Return how many local segments, oldest first, local retention deletes once they are copied.

    Args:
        local: All local segments, the active one last.
        config: The topic's settings.
        now_ms: Wall time in ms.
    """
    limit = len(local) - 1
    if local and not local[-1].size_bytes:
        limit -= 1
    if limit <= 0:
        return 0
    plan = plan_retention(
        local,
        config=LocalRetention.of(config),
        log_start=local[0].base_offset,
        log_end=INT64_MAX,
        high_watermark=INT64_MAX,
        now_ms=now_ms,
    )
    return min(limit, len(plan))


class LogTier:
    """The part of a log that is in a tier. Does nothing for a log without a tier.

    Attributes:
        view: The tier according to the file `tidelog-tier.json`; None if there is no such file.
    """

    def __init__(self, access: TierAccess | None) -> None:
        self._access = access
        self.view: TierView | None = None

    @property
    def rows(self) -> "Sequence[TierSegment]":
        """Rows of the tier's segments, oldest first."""
        return () if self.view is None else self.view.record.manifest.segments

    @property
    def start_offset(self) -> int:
        """Log start offset in `tidelog-tier.json`, 0 if there is no such file."""
        return 0 if self.view is None else self.view.record.log_start_offset

    @property
    def end_offset(self) -> int:
        """End of the tier's segments, exclusive, or the log start if that is higher.

        This is the log start if the tier has no segments, and 0 if the log has no tier.
        """
        return 0 if self.view is None else self.view.end_offset

    @property
    def restart_offset(self) -> int | None:
        """Start of the new local files during a truncation below all old local files.

        None at other times.
        """
        return None if self.view is None else self.view.record.restart_offset

    def load(self, bases: list[int], context: SegmentContext) -> list[int]:
        """Read `tidelog-tier.json`; return the `bases` that belong to local segments."""
        data = None
        if self._access is not None:
            data = read_record_bytes(context.env.files, context.directory)
        if self._access is None or data is None:
            self.view = None
            return bases
        from tidelog.storage.tier.tier_record import TierView

        self.view = TierView.decode(data, context, self._access)
        return self.view.local_bases(bases)

    def segments(self, below: int | None) -> "Sequence[RemoteSegment]":
        """Return segments that only the tier has, oldest first; see `TierView.segments`."""
        return () if self.view is None else self.view.segments(below)

    def segments_below(
        self, local: Sequence[Segment], context: SegmentContext
    ) -> "Sequence[RemoteSegment]":
        """Return segments that only the tier has, oldest first.

        `local` are the log's local segments. Missing offsets between the tier's last segment and
        the first local segment are reported.
        """
        if self.view is None:
            return ()
        below = local[0].base_offset if local else None
        hole = None if below is None else self.view.hole(below)
        if hole is not None:
            context.report(
                f"{context.directory}: neither local files nor the tier have"
                f" {offsets_text(hole[0], hole[1] - 1)}: local files were deleted before they were"
                " copied"
            )
        return self.view.segments(below)

    def take(self, record: "TierRecord", context: SegmentContext) -> None:
        """Store a new `tidelog-tier.json` durably and use it; on OSError the view is unchanged."""
        from tidelog.storage.tier.tier_record import TierView

        assert self._access is not None
        self._store(TierView(record, context, self._access))

    def _save(self, record: "TierRecord") -> None:
        assert self.view is not None
        self._store(self.view.with_record(record))

    def _store(self, view: "TierView") -> None:
        from tidelog.storage.tier.tier_record import write_record

        write_record(view.context.env.files, view.context.directory, view.record)
        self.view = view

    def move_start(self, offset: int) -> None:
        """Store a new log start, durably."""
        if self.view is not None:
            self._save(self.view.record.with_start(offset))

    def release_below(self, offset: int) -> None:
        """Store durably that local segments begin at `offset` from now on."""
        if self.view is not None:
            self._save(dataclasses.replace(self.view.record, local_start_offset=offset))

    def clip(self, offset: int, local_start: int) -> "Mapping[str, TierSegment]":
        """Return, by uid, the new row of the tier's segment that a truncation at `offset` shortens.

        The result is empty if no segment of the tier is shortened, if a shortened segment would
        keep no record, or if local files have the offset. The store is read before anything
        changes, so that a failure of the store does not take the log offline.
        """
        view = self.view
        if view is None or not self._is_cut_below(offset, local_start):
            return {}
        clipped = {}
        for row in self.rows:
            if row.base_offset < offset < row.end_offset:
                position, end = first_reaching(view.segment(row), offset)
                if position:  # else no batch remains, because compaction removed the first batches
                    clipped_row = dataclasses.replace(row, end_offset=end, clip_bytes=position)
                    clipped[row.uid] = clipped_row
        return clipped

    def _is_cut_below(self, offset: int, local_start: int) -> bool:
        return bool(self.rows) and offset < local_start

    def restart_after_cut(
        self, offset: int, local_start: int, clipped: "Mapping[str, TierSegment]"
    ) -> int | None:
        """Return the local start that `cut` will set; None if local files have the offset."""
        record = self._record_after_cut(offset, local_start, clipped)
        return None if record is None else record.restart_offset

    def cut(self, offset: int, local_start: int, clipped: "Mapping[str, TierSegment]") -> None:
        """Truncate the tier in `tidelog-tier.json`, durably, so that it ends at or below `offset`.

        If `offset` is inside of a local segment that the tier has, the row of the tier's copy is
        dropped; the segment is copied again later. If `offset` is inside of a segment that only the
        tier has, the segment's row is replaced by its truncated row in `clipped`, or dropped if
        `clipped` has no such row.
        """
        record = self._record_after_cut(offset, local_start, clipped)
        if record is not None:
            self._save(record)

    def _record_after_cut(
        self, offset: int, local_start: int, clipped: "Mapping[str, TierSegment]"
    ) -> "TierRecord | None":
        if self.view is None:
            return None
        now_ms = self.view.context.env.clock.now_ms()
        record = self.view.record.with_cut(offset, lambda row, _: clipped.get(row.uid), now_ms)
        return record.with_restart() if self._is_cut_below(offset, local_start) else record

    def end_restart(self) -> None:
        """Store durably that the truncation below all old local files is complete."""
        if self.view is not None and self.restart_offset is not None:
            self._save(dataclasses.replace(self.view.record, restart_offset=None))
