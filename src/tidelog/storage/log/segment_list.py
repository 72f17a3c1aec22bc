"""A partition as it was loaded: its segments, local and in the tier, and how far times are sure.

`LoadedLog` knows which segments there are and where the log begins and ends. What is asked of them
is in `log_reader.LogReader`.
"""

import itertools
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.env import forget
from tidelog.storage import commits, files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.producer_loading import (
    bases_among,
    file_names,
    find_aborted,
    limit_times,
    may_have_transactions,
)
from tidelog.storage.segment import time_search
from tidelog.storage.segment.active_segment import TailSegment, load_tail
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint, trusted_end
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index import TxnIndex
from tidelog.storage.segment.segment import Segment, SegmentContext, typed_read
from tidelog.storage.tier.tier_record import TierAccess, TierView
from tidelog.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.segment.time_search_kernels import KernelSearch


# Names that a commit is about.
_STAGED: Final = (commits.STAGED_SUFFIX, files.SWAP_SUFFIX)


# A live directory may change while it is looked at again and again, but not for ever.
_LOOKS_MAX: Final = 5


# The last segment has no zone map, and mostly no aborted transaction: so much is walked at an
# opening to say so, in some ms.
_LAST_WALKED_BYTES: Final = 16 << 20


class LoadedLog:
    """The segments of a partition."""

    def __init__(
        self,
        context: SegmentContext,
        *,
        log_start_offset: int = 0,
        tiers: TierAccess | None = None,
    ) -> None:
        self.context = context
        self._tiers = tiers
        self._tier: TierView | None = None
        self._checkpointed_start = log_start_offset
        self._log_start_offset = log_start_offset
        self._segments: list[Segment] = []
        self._maxima = time_search.RunningMaxima()
        self._trusted: int | None = None
        self._has_transactions: bool | None = None
        self._checkpointed_ms = NO_TIMESTAMP
        self._search: time_search.BatchSearch = time_search.search_segment
        self._kernels: KernelSearch | None = None

    @typed_read
    def refresh(self) -> None:
        """See what is on disk now; closed segments that are still there keep what they loaded.

        Where the holder of the lock carries out a commit at that moment, names change while they
        are read: then all of it is looked at again.
        """
        for _ in range(_LOOKS_MAX):
            forget(self.context.env.files, self.context.directory)
            names = file_names(self.context)
            self._renew_overlay(names)
            self._look(names)
            if file_names(self.context) == names:
                return

    def _renew_overlay(self, names: Sequence[str]) -> None:
        """See commits as they are now, where there may be one."""
        context = self.context
        if context.overlay or any(name.endswith(_STAGED) for name in names):
            root = posixpath.dirname(context.directory)
            overlay = commits.overlay(context.env.files, root, context.topic_partition)
            self.context = replace(context, overlay=overlay)

    def _look(self, names: Sequence[str]) -> None:
        known = {segment.base_offset: segment for segment in self._segments}
        self._forget_files()
        bases = self._load_tier(bases_among(self.context, names))
        segments: list[Segment] = []
        for base, next_base in itertools.pairwise(bases):
            segments.append(self._closed(known.get(base), base, next_base))
        if bases:
            segments.append(self._tail(bases[-1]))
        self._replace_segments(segments)

    def _load_tier(self, bases: list[int]) -> list[int]:
        """Read what the directory knows of its tier; the bases of local segments that count."""
        self._tier = None if self._tiers is None else TierView.load(self.context, self._tiers)
        return bases if self._tier is None else self._tier.local_bases(bases)

    def _forget_files(self) -> None:
        """Let go of files that may mean something else now: the last one's, and replaced ones."""
        for segment in self._segments:
            if not isinstance(segment, ClosedSegment):
                self.context.pool.forget(segment.log_path)
            elif segment.was_replaced():
                segment.unload()

    def _closed(self, known: Segment | None, base: int, next_base: int) -> Segment:
        if (
            isinstance(known, ClosedSegment)
            and not known.is_tiered
            and known.end_offset == next_base
            and not known.was_replaced()
        ):
            return known
        return ClosedSegment(
            self.context,
            base,
            next_base,
            limit_times=self._limit_times,
            find_aborted=self._find_aborted,
        )

    def _find_aborted(self, segment: Segment) -> TxnIndex:
        """The aborted transactions of a segment that has no file of them, by its batches."""
        if segment.is_active and segment.size_bytes > _LAST_WALKED_BYTES:
            return TxnIndex(segment.base_offset)
        if self._has_transactions is None:
            self._has_transactions = may_have_transactions(self.context)
        if not self._has_transactions:
            return TxnIndex(segment.base_offset)
        return find_aborted(self.context, segment)

    def _tail(self, base: int) -> TailSegment:
        tail = load_tail(self.context, base)
        tail.find_aborted = self._find_aborted
        return tail

    def _replace_segments(self, local: Sequence[Segment]) -> None:
        """Take these local segments, behind those that the tier has alone."""
        self._segments = [*self._remote_segments(local), *local]
        self._maxima = time_search.RunningMaxima()
        self._trusted = self._has_transactions = None
        self._forget_maps()  # a file's name may stand for another file now
        first = self._segments[0].base_offset if self._segments else 0
        told = 0 if self._tier is None else self._tier.record.log_start_offset
        self._log_start_offset = max(self._checkpointed_start, first, told)

    def _remote_segments(self, local: Sequence[Segment]) -> Sequence[Segment]:
        if self._tier is None:
            return ()
        below = local[0].base_offset if local else None
        hole = None if below is None else self._tier.hole(below)
        if hole is not None:
            self.context.report(
                f"{self.context.directory}: offsets {hole[0]} to {hole[1] - 1} are in neither tier:"
                " local files were deleted before they were copied"
            )
        return self._tier.segments(below)

    def _forget_maxima(self) -> None:
        self._maxima = time_search.RunningMaxima()

    def _forget_maps(self) -> None:
        if self._kernels is not None:
            self._kernels.clear()

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and partition."""
        return self.context.topic_partition

    @property
    def segments(self) -> list[Segment]:
        """Segments, oldest first; the last one is active. Empty only for a bare directory."""
        return self._segments

    @property
    def local_segments(self) -> list[Segment]:
        """Segments whose files lie in the directory, oldest first."""
        return [segment for segment in self._segments if not segment.is_tiered]

    @property
    def local_start_offset(self) -> int:
        """First offset that may be read from local files; the log start where there is no tier."""
        first = next((s.base_offset for s in self._segments if not s.is_tiered), None)
        return self._log_start_offset if first is None else max(self._log_start_offset, first)

    @property
    def tier(self) -> TierView | None:
        """What the directory knows of the partition's tier, None where it has none."""
        return self._tier

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read, inclusive."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets; one behind the last."""
        return self._segments[-1].end_offset if self._segments else self._log_start_offset

    @property
    def high_watermark(self) -> int:
        """Offset below which records are safe; a single node's log end."""
        return self.log_end_offset

    # -- append times ------------------------------------------------------------------------

    def trusted_end(self) -> int:
        """Offset below which every append time on disk is right.

        See `tidelog.storage.segment.append_time_trust`.
        """
        if self._trusted is None:
            checkpoint = AppendTimeCheckpoint.read(self.context.env.files, self.context.directory)
            self._trusted = trusted_end(checkpoint, self.local_segments)
            self._checkpointed_ms = NO_TIMESTAMP if checkpoint is None else checkpoint.last_ms
            try:
                self._limit_tail_times()
            except OSError:
                self._trusted = None  # else the next one would be told what nothing proves
                raise
        return self._trusted

    def _limit_tail_times(self) -> None:
        tail = self._segments[-1] if self._segments else None
        if isinstance(tail, TailSegment):
            self._limit_times(tail, tail.append_times)

    def _limit_times(self, segment: Segment, times: AppendTimes) -> None:
        """Make unknown what the segment's rows can't prove; in memory only."""
        limit_times(segment, times, self.trusted_end())

    @typed_read
    def append_times_of(self, segment: Segment) -> AppendTimes:
        """A segment's append times, limited to what is sure."""
        self.trusted_end()
        return segment.append_times
