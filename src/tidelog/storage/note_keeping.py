"""Keeping the notes of a partition that is open for writing: rolls, first sights, storms.

At opening every segment that nobody has noted is: from then on no copy of the files can change by
when its records were there. A roll, an attach and a clean close note what they have done. The
active segment's time is kept in memory meanwhile: it changes with every append.

Owns the partition's `NotesFile`. Source: docs/retention.md.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final

from tidelog.record.coding import crc32c
from tidelog.storage.roll import RollReason
from tidelog.storage.roll_storm import STORM_ROLLS, Roll, RollStorm, find_storm, is_by_append
from tidelog.storage.segment import Segment, SegmentContext
from tidelog.storage.segment_notes import NotesFile, SegmentNote
from tidelog.storage.tail import TailSegment
from tidelog.storage.trust import last_batch
from tidelog.types import UNKNOWN_MS

_LOGGER: Final = logging.getLogger(__name__)
_NO_BATCH: Final = 0
_NAMED: Final = Struct(">Iiq")


class NoteKeeper:
    """The notes of one partition. Not safe for two threads that change the log.

    Attributes:
        context: The partition's, with its present settings.
        arrived_ms: All records of the active segment were there by then; -1 where it has none.
    """

    def __init__(self, context: SegmentContext) -> None:
        self.context = context
        self._file = NotesFile(context)
        self._proven: set[int] = set()
        self._rolls: deque[Roll] = deque(maxlen=STORM_ROLLS)
        self._has_warned = False
        self.arrived_ms = UNKNOWN_MS

    def load(self, segments: Sequence[Segment], *, was_clean: bool) -> None:
        """Read the notes and note what has none, by its file's time or now, the earlier.

        Args:
            segments: All of the log's, the active one last.
            was_clean: Whether the log was closed cleanly; else the last file's time may be older
                than what is in it.

        Raises:
            OSError: The disk failed.
        """
        for problem in self._file.load():
            self.context.report(f"{self.context.directory}/segment-notes: {problem}; left out")
        present = {segment.base_offset for segment in segments}
        self._file.forget([base for base in self._file.notes if base not in present])
        closed = [segment for segment in segments[:-1] if not self._is_noted(segment)]
        self._file.add([self._first_sight(segment) for segment in closed])
        self._load_active(segments[-1], was_clean=was_clean)

    def _load_active(self, active: Segment, *, was_clean: bool) -> None:
        self.arrived_ms = UNKNOWN_MS
        if not active.size_bytes:
            return
        if not self._is_proven(active):
            note = self._first_sight(active)._replace(reason=RollReason.OPEN)
            seen_ms = note.seen_ms if was_clean else self.context.env.clock.now_ms()
            self._file.add([note._replace(seen_ms=seen_ms)])
        self.arrived_ms = self._file.notes[active.base_offset].seen_ms

    def _is_noted(self, segment: Segment) -> bool:
        note = self._file.notes.get(segment.base_offset)
        return note is not None and note.end_offset == segment.end_offset

    def _is_proven(self, segment: Segment) -> bool:
        """Whether the segment is the one that its note is about, its last batch looked at."""
        base = segment.base_offset
        if not self._is_noted(segment):
            return False
        if base not in self._proven:
            if self._file.notes[base].last_fingerprint != last_fingerprint(segment):
                return False
            self._proven.add(base)
        return True

    def _first_sight(self, segment: Segment) -> SegmentNote:
        now_ms = self.context.env.clock.now_ms()
        mtime_ms = segment.mtime_ms()
        seen_ms = mtime_ms if 0 < mtime_ms < now_ms else now_ms
        self._proven.add(segment.base_offset)
        return _note(segment, RollReason.UNKNOWN, UNKNOWN_MS, seen_ms)

    def seen_ms(self, segment: Segment) -> int:
        """By when all records of a segment were there, in ms; -1 of one without records.

        Where its note turns out to be about other records, it is noted anew.

        Raises:
            OSError: The disk failed.
        """
        if segment.is_active:
            return self.arrived_ms
        if not self._is_proven(segment):
            self._file.add([self._first_sight(segment)])
        return self._file.notes[segment.base_offset].seen_ms

    def note_of(self, segment: Segment) -> SegmentNote | None:
        """The note about a segment, None where there is none or it ends elsewhere by now."""
        return self._file.notes.get(segment.base_offset) if self._is_noted(segment) else None

    def rolled(
        self, segment: TailSegment, end_offset: int, reason: RollReason
    ) -> Callable[[], None]:
        """The active segment was finished; the next one begins at `end_offset`, without records.

        Returns:
            What makes the note durable, to be called once, in whatever thread; raises OSError.
        """
        now_ms = self.context.env.clock.now_ms()
        seen_ms = now_ms if self.arrived_ms == UNKNOWN_MS else self.arrived_ms
        note = _note(segment, reason, now_ms, seen_ms)._replace(end_offset=end_offset)
        write = self._file.prepare([note])
        self._proven.add(segment.base_offset)
        self.arrived_ms = UNKNOWN_MS
        if is_by_append(reason):
            roll = Roll(reason, now_ms, segment.size_bytes, segment.largest_timestamp)
            self._rolls.append(roll)
            self._warn_once()
        return write

    def _warn_once(self) -> None:
        storm = None if self._has_warned else self.storm
        if storm is not None:
            self._has_warned = True
            _LOGGER.warning("%s: %s", self.context.topic_partition, storm)

    @property
    def storm(self) -> RollStorm | None:
        """What the last rolls since opening are, None where they are no storm."""
        if len(self._rolls) < STORM_ROLLS:
            return None
        return find_storm(list(self._rolls), segment_bytes=self.context.config.segment_size_limit)

    def adopted(self, segments: Sequence[Segment]) -> None:
        """Finished segments were taken in.

        Raises:
            OSError: The disk failed.
        """
        now_ms = self.context.env.clock.now_ms()
        self._file.add([_note(each, RollReason.ATTACH, now_ms, now_ms) for each in segments])
        self._proven.update(segment.base_offset for segment in segments)

    def exchanged(self, gone: Sequence[int], shown: Sequence[Segment]) -> None:
        """Segments were exchanged for others: their records were there as early as before.

        Raises:
            OSError: The disk failed.
        """
        known = [self._file.notes[base] for base in gone if base in self._file.notes]
        now_ms = self.context.env.clock.now_ms()
        seen_ms = max((note.seen_ms for note in known), default=now_ms)
        reason = known[-1].reason if known else RollReason.UNKNOWN
        roll_ms = known[-1].roll_ms if known else UNKNOWN_MS
        self._file.forget(gone)
        self._proven.difference_update(gone)
        self._file.add([_note(each, reason, roll_ms, seen_ms) for each in shown])
        self._proven.update(segment.base_offset for segment in shown)

    def closed(self, active: Segment) -> None:
        """The log is being closed: what is known of the active segment must not be lost.

        Raises:
            OSError: The disk failed.
        """
        if active.size_bytes and self.arrived_ms != UNKNOWN_MS:
            self._file.add([_note(active, RollReason.OPEN, UNKNOWN_MS, self.arrived_ms)])

    def before_cut(self, segments: Sequence[Segment], offset: int) -> None:
        """A truncation to `offset` comes: what it leaves of a segment was there as early as all.

        Raises:
            OSError: The disk failed.
        """
        kept = [segment for segment in segments if segment.base_offset <= offset]
        self.arrived_ms = self.seen_ms(kept[-1]) if kept else UNKNOWN_MS
        self.deleted(each.base_offset for each in segments if each.base_offset > offset)
        self._proven.clear()

    def deleted(self, base_offsets: Iterable[int]) -> None:
        """Segments are going."""
        self._file.forget(base_offsets)


def _note(segment: Segment, reason: RollReason, roll_ms: int, seen_ms: int) -> SegmentNote:
    named = last_fingerprint(segment)
    return SegmentNote(segment.base_offset, segment.end_offset, named, reason, roll_ms, seen_ms)


def last_fingerprint(segment: Segment) -> int:
    """What a note names a segment's last batch by; 0 where it has none, or damage hides it.

    Unlike `trust.fingerprint` it needs no base offset, for which a wrapper of an old format must be
    decompressed.
    """
    known = segment.last_batch if isinstance(segment, TailSegment) else None
    last = last_batch(segment) if known is None else known
    if last is None:
        return _NO_BATCH
    return crc32c(_NAMED.pack(last.crc, last.leader_epoch, last.last_offset))
