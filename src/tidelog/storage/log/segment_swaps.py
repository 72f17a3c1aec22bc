"""Segments taken in or exchanged: attach, exchange, compaction show theirs here.

Taking finished segments into an open partition: the partition's own share of `attach`.

The files are made and moved by `attach`; here the log is made ready for them (an empty active
segment at its end, the leader epoch on disk, one append time for them all), and shows them once
they are in place. The rule for failures is that of every change: the partition goes offline.

A partition that is open for writing and takes cleaned segments in the place of its own.

A compaction writes its files beside the partition's (`storage.compaction`); here the log shows
them. Between a published commit record and its end the files of old segments get Kafka's suffix
`.deleted`, those of the new one their final names, and the log's list of segments changes, all in
one call: no read of this process comes between. Whoever holds an old segment reads it on under its
new name, until `file.delete.delay.ms` is over.

Source: Kafka 4.x LocalLog.replaceSegments.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.storage import files
from tidelog.storage.commits import Commit
from tidelog.storage.log.log_loader import LogOptions
from tidelog.storage.log.writable import WritableLog
from tidelog.storage.segment import roll, zone_map_files
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.segment import Segment
from tidelog.types import UNKNOWN_MS

__all__ = ["AdoptingLog", "Adoption", "LogOptions"]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What segments that are to be taken in must say.

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


class AdoptingLog(WritableLog):
    """A partition that is open for writing and can take in finished segments."""

    def prepare_adoption(self) -> Adoption:
        """Make ready: nothing is visible yet, and nothing needs to be undone.

        Raises:
            ClockJump: The clock jumped; see `accept_clock`.
            StorageFailure: The disk failed; the partition is offline.
        """
        self._ensure_writable()
        is_timed = self._config.tidelog_append_time_enable
        append_ms = self._append_clock.next_ms() if is_timed else UNKNOWN_MS
        now_ms = self.context.env.clock.now_ms()
        if self._stamps_alone:
            now_ms = self._append_clock.next_ms()
        self.roll(roll.RollReason.ATTACH)
        self.begin_epoch()
        return Adoption(self.log_end_offset, self.leader_epoch, append_ms, now_ms)

    def begin_epoch(self) -> None:
        """Say durably that this leader epoch writes from the log end on, as its first append would.

        That append then syncs nothing, for a log which was opened beside the thread that writes.

        Raises:
            StorageFailure: The disk failed; the partition is offline.
        """
        self._guarded(self.context.directory, "note epoch", self._note_epoch)

    def _note_epoch(self) -> None:
        """The epoch file says who wrote an offset before the offset is written."""
        if not self._epoch_is_noted and self._epochs.assign(self.leader_epoch, self.log_end_offset):
            self._write_epochs()
        self._epoch_is_noted = True

    def adopt(self, bases: Sequence[int], end_offset: int) -> None:
        """Show segments whose files lie in place under their final names, durably.

        Args:
            bases: Their base offsets, ascending; the first is what `prepare_adoption` said.
            end_offset: Offset behind their last record.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows them.
        """
        assert bases[0] == self.log_end_offset
        assert not self.active.size_bytes
        self._guarded(self.context.directory, "attach", lambda: self._adopt(bases, end_offset))

    def _adopt(self, bases: Sequence[int], end_offset: int) -> None:
        for suffix in files.SEGMENT_SUFFIXES:
            self.active.forget(suffix)  # these names mean other files now
        self._write_snapshot(end_offset, self._producers.encode_snapshot())
        created = ActiveSegment.create(self.context, end_offset)
        # The next append's row must not be rounded below the time of these records.
        created.append_times.floor_ms = self._append_clock.last_ms
        self.context.env.files.sync_dir(self.context.directory)
        spans = itertools.pairwise([*bases, end_offset])
        adopted = [ClosedSegment(self.context, base, end) for base, end in spans]
        self._segments = [*self._segments[:-1], *adopted, created]
        self._notes.adopted(adopted)
        self.recovery_point = end_offset
        self._unflushed_records = 0
        self._jitter_ms = roll.draw_jitter_ms(self._config, self.context.env.random)
        self._map_later(adopted)

    def _map_later(self, segments: Sequence[ClosedSegment]) -> None:
        """A map needs a look at every byte: that is left for later where anything is."""

        def build() -> None:
            zone_map_files.build_missing(segments)

        self._defer(self.context.directory, "map zones", build)

    def fail_adoption(self, reason: str) -> None:
        """Go offline: the disk failed where only reopening can tell what is there."""
        if self._failure is None:
            self._fail(StorageFailure(self.context.directory, "attach", reason))

    # -- exchanging --------------------------------------------------------------------------

    def finished_run(self, bases: Sequence[int]) -> list[ClosedSegment]:
        """The finished local segments with these base offsets, which follow each other.

        Raises:
            InvalidRequest: There is no such run, or the tier has copies of some, which would be
                others.
        """
        self._ensure_writable()
        finished = [
            each
            for each in self._segments[:-1]
            if isinstance(each, ClosedSegment) and not each.is_tiered
        ]
        known = [each.base_offset for each in finished]
        at = known.index(bases[0]) if bases and bases[0] in known else len(known)
        if not bases or known[at : at + len(bases)] != list(bases):
            raise InvalidRequest(
                f"{self.topic_partition}: no run of finished segments at {list(bases)}; there are"
                f" {known}"
            )
        run = finished[at : at + len(bases)]
        self._ensure_not_copied(run)
        return run

    def _ensure_not_copied(self, run: Sequence[ClosedSegment]) -> None:
        rows = () if self._tier is None else self._tier.record.manifest.segments
        start, end = run[0].base_offset, run[-1].end_offset
        if any(row.base_offset < end and start < row.end_offset for row in rows):
            raise InvalidRequest(
                f"{self.topic_partition}: segments with copies in a tier can't be exchanged"
            )

    def exchange(self, old: Sequence[ClosedSegment], spans: Sequence[tuple[int, int]]) -> None:
        """Show other segments in the place of these; their files lie in place, durably.

        Args:
            old: As `finished_run` gave them; their files have gone, or are others by now.
            spans: Base and end offsets of the new ones.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows them.
        """
        self._guarded(self.context.directory, "exchange", lambda: self._exchange(old, spans))

    def _exchange(self, old: Sequence[ClosedSegment], spans: Sequence[tuple[int, int]]) -> None:
        at = self._segments.index(old[0])
        shown = [ClosedSegment(self.context, base, end) for base, end in spans]
        for segment in old:
            segment.unload()
            for suffix in files.SEGMENT_SUFFIXES:
                path = self.context.path(segment.base_offset, suffix)
                self.context.pool.forget(path)
                self.context.maps.forget(path)
        behind = self._segments[at + len(old) :]
        self._replace_segments([*self._segments[:at], *shown, *behind])
        self._notes.exchanged([segment.base_offset for segment in old], shown)
        self._map_later(shown)


@dataclass(frozen=True, slots=True)
class CleanedSwap:
    """A published swap.

    Attributes:
        old: The segments that go, as the log showed them when the cleaning began.
        end_offset: Offset behind the new one, which has the first old one's base.
        commit: What was published: the new files have `.swap` names.
    """

    old: Sequence[ClosedSegment]
    end_offset: int
    commit: Commit


class CompactingLog(AdoptingLog):
    """A partition whose finished segments may be compacted."""

    def cleanable_segments(self) -> list[ClosedSegment]:
        """The finished segments, oldest first.

        Raises:
            InvalidRequest: Some have copies in a tier, which would be others then.
            StorageFailure, Closed: The partition is offline or closed.
        """
        self._ensure_writable()
        if self._tier is not None:
            raise InvalidRequest(
                f"{self.topic_partition}: segments with copies in a tier can't be compacted here"
            )
        return [each for each in self._segments[:-1] if isinstance(each, ClosedSegment)]

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Whether the log shows exactly these objects still: none was cut, deleted, exchanged."""
        self._ensure_writable()
        known = {id(segment) for segment in self._segments}
        return all(id(segment) in known for segment in segments)

    def take_cleaned(self, swap: CleanedSwap) -> None:
        """Show a cleaned segment; its swap is published, the renames are made here.

        They are not durable when this returns: the commit record stays until they are.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows the new one.
        """
        directory = self.context.directory
        self._guarded(directory, "swap cleaned segments", lambda: self._take_cleaned(swap))

    def _take_cleaned(self, swap: CleanedSwap) -> None:
        fs, directory, old = self.context.env.files, self.context.directory, swap.old
        for segment in old:
            _ = segment.txn_index, segment.append_times  # while their names mean what they did
        finals = [move.final for move in swap.commit.moves]
        going = [*(removal.name for removal in swap.commit.removes), *finals]
        aside = [name for name in going if fs.exists(f"{directory}/{name}")]
        paths = [f"{directory}/{name}" for name in going]
        with self.context.pool.replacing(paths), self.context.maps.replacing(paths):
            for name in aside:
                fs.rename(f"{directory}/{name}", f"{directory}/{name}{files.DELETED_SUFFIX}")
            for segment in old:
                segment.go_aside()
            for move in swap.commit.moves:
                fs.rename(f"{directory}/{move.staged}", f"{directory}/{move.final}")
        self._show_cleaned(old, swap.end_offset)
        due_ms = self.context.env.clock.now_ms() + self._config.file_delete_delay_ms
        self._bin.put([f"{directory}/{name}{files.DELETED_SUFFIX}" for name in aside], due_ms)

    def _show_cleaned(self, old: Sequence[ClosedSegment], end_offset: int) -> None:
        at = next(n for n, each in enumerate(self._segments) if each is old[0])
        shown = ClosedSegment(self.context, old[0].base_offset, end_offset)
        behind = self._segments[at + len(old) :]
        self._replace_segments([*self._segments[:at], shown, *behind])
        self._notes.exchanged([segment.base_offset for segment in old], [shown])
        self._map_later([shown])

    def roll_idle(self) -> bool:
        """Finish the active segment because its records wait for their compaction too long.

        False where it is empty; errors as `roll`.
        """
        return self.roll(RollReason.COMPACTION_LAG)
