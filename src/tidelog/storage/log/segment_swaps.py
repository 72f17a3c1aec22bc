"""Adds finished segments at an open log's end, or replaces finished segments.

This module makes an open log show new finished segments. Before a swap, other code has written the
new files durably under staged names, and a durable commit record lists these files
(`directory.publication` writes and removes the record). `SegmentSwaps.show` renames the files into
place and changes the list of segments in one call, so that no read of this process runs in between.
Files of replaced segments get the suffix `.deleted`: a reader of an old segment continues to read
them until they are unlinked.

Other modules write the files and the commit record, and sync the new names. This module syncs only
the name of a new active segment, because the next flush depends on this name.

A disk failure takes the partition offline. After a disk failure, only reopening the partition shows
which segments exist. Reopening also carries out the rest of the commit record.

Source: Kafka 4.x LocalLog.replaceSegments.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.storage import files, log_files
from tidelog.storage.commits import Commit
from tidelog.storage.log.append_types import stamps_by_append_clock
from tidelog.storage.log.append_writer import SegmentRoller
from tidelog.storage.log.deletion import Deleter
from tidelog.storage.log.log_loader import LogPart, LogParts
from tidelog.storage.segment import roll, zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.segment import Segment
from tidelog.types import UNKNOWN_MS


class Adoption(NamedTuple):
    """Properties of segments to add.

    Attributes:
        base_offset: Offset of the first record, the log end.
        leader_epoch: Epoch of every batch.
        append_ms: Append time of all records in ms; -1 if the append clock is off.
        now_ms: Wall time in ms, which create times are compared with. For a topic with
            LogAppendTime and without append times, this time comes from the append clock.
    """

    base_offset: int
    leader_epoch: int
    append_ms: int
    now_ms: int

    @property
    def stamp_ms(self) -> int:
        """Timestamp in ms for batches with LogAppendTime."""
        return self.now_ms if self.append_ms == UNKNOWN_MS else self.append_ms


class Swap(NamedTuple):
    """New finished segments for one log, and the segments that they replace.

    Attributes:
        bases: Base offsets of the new segments, ascending. The first new segment has the base
            offset of the first old segment, or the log end if there are no old segments.
        end_offset: Offset after the last record of the new segments.
        old: The consecutive segments to replace, as the objects in the log's list of segments.
        keeps_old: Whether files of old segments are kept for `file.delete.delay.ms`.
    """

    bases: Sequence[int]
    end_offset: int
    old: Sequence[ClosedSegment] = ()
    keeps_old: bool = False


class SegmentSwaps(LogPart):
    """Adds or replaces finished segments of one open log."""

    def __init__(self, parts: LogParts, roller: SegmentRoller, deleter: Deleter) -> None:
        super().__init__(parts)
        self._roller = roller
        self._deleter = deleter

    # -- adding ------------------------------------------------------------------------------

    def prepare_adoption(self) -> Adoption:
        """Prepare to add segments at the log end; return the offset, epoch and times to use.

        A caller that adds no segment afterwards has nothing to undo.

        Raises:
            ClockJump: The clock jumped; see `accept_clock`.
            StorageFailure: The disk failed; the partition is offline.
        """
        self._guard.ensure_writable()
        context = self._segments.context
        is_timed = context.config.tidelog_append_time_enable
        append_ms = self._clock.next_ms() if is_timed else UNKNOWN_MS
        now_ms = context.env.clock.now_ms()
        if stamps_by_append_clock(context.config):
            now_ms = self._clock.next_ms()
        self._roller.roll(roll.RollReason.ATTACH)
        self.begin_epoch()
        return Adoption(self._segments.end_offset, self._epochs.leader_epoch, append_ms, now_ms)

    def begin_epoch(self) -> None:
        """Store durably that the log's own leader epoch starts at the log end.

        A thread that opens a log on behalf of the appending thread calls this method. The first
        append then need not sync the epoch.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        end = self._segments.end_offset
        directory = self._segments.context.directory
        self._guard.run(directory, "note epoch", lambda: self._epochs.note_own(end))

    # -- segments that may be swapped --------------------------------------------------------

    def finished_run(self, bases: Sequence[int]) -> list[ClosedSegment]:
        """Return the finished, consecutive local segments with these base offsets.

        Raises:
            InvalidRequest: The log has no such run of segments. Also raised if the tier has copies
                of some of the segments; a swap would make these copies differ from the log.
            StorageFailure, Closed: The partition is offline or closed.
        """
        self._guard.ensure_writable()
        finished = [each for each in self._segments.finished() if not each.is_tiered]
        finished_bases = [each.base_offset for each in finished]
        at = (
            finished_bases.index(bases[0])
            if bases and bases[0] in finished_bases
            else len(finished_bases)
        )
        if not bases or finished_bases[at : at + len(bases)] != list(bases):
            raise InvalidRequest(
                f"{self._name}: {list(bases)} are not consecutive finished segments; there are"
                f" {finished_bases}"
            )
        run = finished[at : at + len(bases)]
        start, end = run[0].base_offset, run[-1].end_offset
        rows = self._segments.tier.rows
        if any(row.base_offset < end and start < row.end_offset for row in rows):
            raise InvalidRequest(f"{self._name}: segments with copies in a tier can't be exchanged")
        return run

    @property
    def _name(self) -> str:
        return str(self._segments.context.topic_partition)

    def cleanable_segments(self) -> list[ClosedSegment]:
        """Return the finished segments, oldest first.

        Raises:
            InvalidRequest: The log has a tier. A compaction would make the log differ from the
                copies in the tier.
            StorageFailure, Closed: The partition is offline or closed.
        """
        self._guard.ensure_writable()
        if self._segments.tier.view is not None:
            raise InvalidRequest(
                f"{self._name}: segments with copies in a tier can't be compacted here"
            )
        return self._segments.finished()

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Return whether the log still has all of these segment objects."""
        self._guard.ensure_writable()
        current_ids = {id(segment) for segment in self._segments.all}
        return all(id(segment) in current_ids for segment in segments)

    # -- showing -----------------------------------------------------------------------------

    def show(self, swap: Swap, commit: Commit, operation: str) -> list[str]:
        """Rename the files of new segments into place, and make the segments visible to readers.

        Args:
            swap: The segments.
            commit: The published record; this method carries out its entries for this partition.
            operation: Name of the operation, for errors.

        Returns:
            Paths of old segments' files that are no longer needed; the caller removes these files.

        Raises:
            StorageFailure: The disk failed. The partition is offline until it is reopened. After
                that, the partition shows the new segments.
        """
        directory = self._segments.context.directory
        return self._guard.run(directory, operation, lambda: self._show(swap, commit))

    def _show(self, swap: Swap, commit: Commit) -> list[str]:
        context = self._segments.context
        for segment in swap.old:
            _ = segment.txn_index, segment.append_times  # load them before their files are renamed
        aside = self._rename(swap, commit.of(files.partition_dir_name(context.topic_partition)))
        spans = itertools.pairwise([*swap.bases, swap.end_offset])
        new = [ClosedSegment(context, base, end) for base, end in spans]
        if swap.old:
            self._segments.exchange(swap.old, new)
            self._notes.exchanged([segment.base_offset for segment in swap.old], new)
        else:
            self._put_behind_end(new, swap.end_offset)
        # The zone maps are written later, because building them reads every byte of the segments.
        self._guard.defer(context.directory, "map zones", lambda: _map_zones(new))
        if not swap.keeps_old:
            return aside
        due_ms = context.env.clock.now_ms() + context.config.file_delete_delay_ms
        self._deleter.unlink_later(aside, due_ms)
        return []

    def _rename(self, swap: Swap, commit: Commit) -> list[str]:
        """Rename old segments' files to `.deleted`, and new segments' files to their final names.

        If there are no old segments, the new segments replace the empty active segment's files.

        Returns:
            Paths of the old files under their `.deleted` names.
        """
        context = self._segments.context
        fs, directory = context.env.files, context.directory
        names = [removal.name for removal in commit.removes]
        names += [move.final for move in commit.moves]
        paths = [f"{directory}/{name}" for name in names]
        aside = [path for path in paths if swap.old and fs.exists(path)]
        if not swap.old:
            for suffix in log_files.SEGMENT_SUFFIXES:
                self._segments.active.forget(suffix)
        with context.pool.replacing(paths), context.maps.replacing(paths):
            for path in aside:
                fs.rename(path, path + log_files.DELETED_SUFFIX)
            for segment in swap.old:
                segment.go_aside()
            for move in commit.moves:
                fs.rename(f"{directory}/{move.staged}", f"{directory}/{move.final}")
        return [path + log_files.DELETED_SUFFIX for path in aside]

    def _put_behind_end(self, new: Sequence[ClosedSegment], end_offset: int) -> None:
        """Show the new segments instead of the empty active segment; begin a new active segment."""
        assert new[0].base_offset == self._segments.end_offset
        assert not self._segments.active.size_bytes
        context = self._segments.context
        self._roller.write_snapshot(end_offset, self._producers.encode_snapshot())
        created = ActiveSegment.create(context, end_offset)
        # The time of the next append's row is rounded down, but must not be smaller than the time
        # of these records.
        created.append_times.floor_ms = self._clock.last_ms
        context.env.files.sync_dir(context.directory)
        self._segments.replace_active(*new, created)
        self._notes.adopted(new)
        self._flusher.note_durable(end_offset)
        self._flusher.began_segment()
        self._roller.draw_jitter()

    def go_offline(self, operation: str, reason: str) -> None:
        """Take the partition offline after a disk failure.

        Only reopening the partition shows which files exist.
        """
        if self._guard.failure is None:
            directory = self._segments.context.directory
            self._guard.go_offline(StorageFailure(directory, operation, reason))


def _map_zones(segments: Sequence[ClosedSegment]) -> None:
    zone_map_files.build_missing(segments)
