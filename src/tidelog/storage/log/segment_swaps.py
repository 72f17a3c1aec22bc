"""Finished segments taken into an open log, or exchanged for others.

`directory.attach` and `storage.compaction` make the files and publish them by a commit record;
here the log shows them. Between the record and its end the files of old segments get other names,
those of new ones their final names, and the list of segments changes, all in one call: no read of
this process comes between. A reader of an old segment goes on under its new name, until
`file.delete.delay.ms` is over. A failing disk takes the partition offline, as with any change.

Source: Kafka 4.x LocalLog.replaceSegments.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.storage import files
from tidelog.storage.clocks.append_clock import AppendClock
from tidelog.storage.commits import Commit
from tidelog.storage.log.append import stamps_by_append_clock
from tidelog.storage.log.durability import DeletedFiles, FailureGuard, Flusher
from tidelog.storage.log.leader_epochs import EpochCheckpoint
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.segment_list import SegmentList
from tidelog.storage.log.segment_roller import SegmentRoller
from tidelog.storage.segment import roll, zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_notes import NoteKeeper
from tidelog.types import UNKNOWN_MS


@dataclass(frozen=True, slots=True)
class Adoption:
    """Properties of segments that are to be taken in.

    Attributes:
        base_offset: Offset of the first record, the log end.
        leader_epoch: Epoch of every batch.
        append_ms: Append time of all records; -1 where the append clock is off.
        now_ms: The wall clock, against which create times are held.
    """

    base_offset: int
    leader_epoch: int
    append_ms: int
    now_ms: int

    @property
    def stamp_ms(self) -> int:
        """The time that LogAppendTime writes into batches."""
        return self.now_ms if self.append_ms == UNKNOWN_MS else self.append_ms


@dataclass(frozen=True, slots=True)
class CleanedSwap:
    """A published swap.

    Attributes:
        old: The segments that go, as the log showed them when the cleaning began.
        end_offset: Offset behind the new one, which has the first old one's base.
        commit: The commit record: the new files have `.swap` names.
    """

    old: Sequence[ClosedSegment]
    end_offset: int
    commit: Commit


class SegmentSwaps:
    """Shows other finished segments in one open log."""

    def __init__(  # noqa: PLR0913 - the parts that a swap touches
        self,
        segments: SegmentList,
        guard: FailureGuard,
        epochs: EpochCheckpoint,
        roller: SegmentRoller,
        producers: ProducerStates,
        flusher: Flusher,
        clock: AppendClock,
        notes: NoteKeeper,
        deleted: DeletedFiles,
    ) -> None:
        self._segments = segments
        self._guard = guard
        self._epochs = epochs
        self._roller = roller
        self._producers = producers
        self._flusher = flusher
        self._clock = clock
        self._notes = notes
        self._deleted = deleted

    # -- adopting ----------------------------------------------------------------------------

    def prepare_adoption(self) -> Adoption:
        """Make ready: nothing is visible yet, and nothing needs to be undone.

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
        """Say durably that this leader epoch writes from the log end on, as its first append would.

        That append then syncs nothing, for a log which was opened beside the thread that writes.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        end = self._segments.end_offset
        directory = self._segments.context.directory
        self._guard.run(directory, "note epoch", lambda: self._epochs.note_own(end))

    def adopt(self, bases: Sequence[int], end_offset: int) -> None:
        """Show segments whose files lie in place under their final names, durably.

        Args:
            bases: Their base offsets, ascending; the first is that of `prepare_adoption`.
            end_offset: Offset behind their last record.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows them.
        """
        assert bases[0] == self._segments.end_offset
        assert not self._segments.active.size_bytes
        directory = self._segments.context.directory
        self._guard.run(directory, "attach", lambda: self._adopt(bases, end_offset))

    def _adopt(self, bases: Sequence[int], end_offset: int) -> None:
        context = self._segments.context
        for suffix in files.SEGMENT_SUFFIXES:
            self._segments.active.forget(suffix)  # these names mean other files now
        self._roller.write_snapshot(end_offset, self._producers.encode_snapshot())
        created = ActiveSegment.create(context, end_offset)
        # The next append's row must not be rounded below the time of these records.
        created.append_times.floor_ms = self._clock.last_ms
        context.env.files.sync_dir(context.directory)
        spans = itertools.pairwise([*bases, end_offset])
        adopted = [ClosedSegment(context, base, end) for base, end in spans]
        self._segments.replace_active(*adopted, created)
        self._notes.adopted(adopted)
        self._flusher.made_durable(end_offset)
        self._flusher.began_segment()
        self._roller.draw_jitter()
        self._map_later(adopted)

    def _map_later(self, segments: Sequence[ClosedSegment]) -> None:
        """Build zone maps; each byte is read, so it is deferred."""

        def build() -> None:
            zone_map_files.build_missing(segments)

        self._guard.defer(self._segments.context.directory, "map zones", build)

    def fail_adoption(self, reason: str) -> None:
        """Go offline: the disk failed where only reopening can tell which files are there."""
        if self._guard.failure is None:
            directory = self._segments.context.directory
            self._guard.go_offline(StorageFailure(directory, "attach", reason))

    # -- exchanging --------------------------------------------------------------------------

    def finished_run(self, bases: Sequence[int]) -> list[ClosedSegment]:
        """The finished local segments with these base offsets, which follow each other.

        Raises:
            InvalidRequest: There is no such run, or the tier has copies of some, which would be
                others.
        """
        self._guard.ensure_writable()
        finished = [each for each in self._finished() if not each.is_tiered]
        known = [each.base_offset for each in finished]
        at = known.index(bases[0]) if bases and bases[0] in known else len(known)
        if not bases or known[at : at + len(bases)] != list(bases):
            raise InvalidRequest(
                f"{self._name}: no run of finished segments at {list(bases)}; there are {known}"
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

    def _finished(self) -> list[ClosedSegment]:
        return [each for each in self._segments.all[:-1] if isinstance(each, ClosedSegment)]

    def exchange(self, old: Sequence[ClosedSegment], spans: Sequence[tuple[int, int]]) -> None:
        """Show other segments in the place of these; their files lie in place, durably.

        Args:
            old: As `finished_run` gave them; their files have gone, or are others by now.
            spans: Base and end offsets of the new ones.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows them.
        """
        directory = self._segments.context.directory
        self._guard.run(directory, "exchange", lambda: self._exchange(old, spans))

    def _exchange(self, old: Sequence[ClosedSegment], spans: Sequence[tuple[int, int]]) -> None:
        context = self._segments.context
        for segment in old:
            segment.unload()
            for suffix in files.SEGMENT_SUFFIXES:
                path = context.path(segment.base_offset, suffix)
                context.pool.forget(path)
                context.maps.forget(path)
        self._show(old, [ClosedSegment(context, base, end) for base, end in spans])

    def _show(self, old: Sequence[ClosedSegment], new: Sequence[ClosedSegment]) -> None:
        self._segments.exchange(old, new)
        self._notes.exchanged([segment.base_offset for segment in old], new)
        self._map_later(new)

    # -- compacting --------------------------------------------------------------------------

    def cleanable_segments(self) -> list[ClosedSegment]:
        """The finished segments, oldest first.

        Raises:
            InvalidRequest: Some have copies in a tier, which would be others then.
            StorageFailure, Closed: The partition is offline or closed.
        """
        self._guard.ensure_writable()
        if self._segments.tier.view is not None:
            raise InvalidRequest(
                f"{self._name}: segments with copies in a tier can't be compacted here"
            )
        return self._finished()

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Whether the log shows exactly these objects still: none was cut, deleted, exchanged."""
        self._guard.ensure_writable()
        known = {id(segment) for segment in self._segments.all}
        return all(id(segment) in known for segment in segments)

    def take_cleaned(self, swap: CleanedSwap) -> None:
        """Show a cleaned segment; its swap is published, the renames are made here.

        They are not durable when this returns: the commit record stays until they are.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows the new one.
        """
        directory = self._segments.context.directory
        self._guard.run(directory, "swap cleaned segments", lambda: self._take_cleaned(swap))

    def _take_cleaned(self, swap: CleanedSwap) -> None:
        context, old = self._segments.context, swap.old
        fs, directory = context.env.files, context.directory
        for segment in old:
            _ = segment.txn_index, segment.append_times  # while their names mean what they did
        finals = [move.final for move in swap.commit.moves]
        going = [*(removal.name for removal in swap.commit.removes), *finals]
        aside = [name for name in going if fs.exists(f"{directory}/{name}")]
        paths = [f"{directory}/{name}" for name in going]
        with context.pool.replacing(paths), context.maps.replacing(paths):
            for name in aside:
                fs.rename(f"{directory}/{name}", f"{directory}/{name}{files.DELETED_SUFFIX}")
            for segment in old:
                segment.go_aside()
            for move in swap.commit.moves:
                fs.rename(f"{directory}/{move.staged}", f"{directory}/{move.final}")
        self._show(old, [ClosedSegment(context, old[0].base_offset, swap.end_offset)])
        due_ms = context.env.clock.now_ms() + context.config.file_delete_delay_ms
        self._deleted.put([f"{directory}/{name}{files.DELETED_SUFFIX}" for name in aside], due_ms)
