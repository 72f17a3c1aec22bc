"""The file `segment-notes`: why and when each segment was rolled, and when its records arrived.

If another program wrote a segment, the note has the earlier of two times: the time when tidelog
first saw the segment, and the modification time that the log file had then, which can be in the
future. The note is needed, because a later copy of the file gets a new modification time. The file
of notes is primary data, which can't be rebuilt. Without the file the reasons are unknown, and
modification times are used. Retention, `tidelog why` and recovery (which looks for lost ends of
segments) use the file.

Text: the version, then a line for each note, oldest first. A later line replaces an earlier line of
the same segment, so a roll only appends one line. A line ends with the CRC-32C of the line's text
before the CRC. A line with a wrong CRC, for example a torn last line, is ignored. A note is valid
only if the segment still ends with the offset and the batch that the note has.

    0
    BASE END FINGERPRINT REASON ROLL_MS SEEN_MS CRC

When a partition is opened, `NoteKeeper` adds a note for every segment without a note. So a later
copy of the files, which changes their modification times, does not change the recorded arrival
times. Later, `NoteKeeper` adds a note for each segment that is rolled, attached or written by a
cleaning. At a clean close `NoteKeeper` adds a note for the active segment. Until then, the active
segment's arrival time is kept only in memory, because it changes with every append.

Kafka ignores the file. Source: docs/format.md#text-files; docs/retention.md.
"""

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final

from tidelog.config import TopicConfig
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage import files, text_files
from tidelog.storage.segment.active_segment import TailSegment
from tidelog.storage.segment.append_time_trust import last_batch
from tidelog.storage.segment.roll import (
    STORM_ROLLS,
    Roll,
    RollReason,
    RollStorm,
    SegmentNote,
    find_storm,
    is_by_append,
)
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.types import UNKNOWN_MS, Buffer

SEGMENT_NOTES_FILE: Final = "segment-notes"
NOTES_VERSION: Final = 0
_FIELD_COUNT: Final = 7

# The file is rewritten if it has more lines than twice the number of notes plus this value.
_STALE_LINES: Final = 64


def encode_note(note: SegmentNote) -> bytes:
    """Encode a note as a line."""
    text = " ".join(map(str, note))
    return f"{text} {crc32c(text.encode()):08x}\n".encode()


def encode_notes(notes: Iterable[SegmentNote]) -> bytes:
    """Encode the whole file."""
    return f"{NOTES_VERSION}\n".encode() + b"".join(map(encode_note, notes))


def decode_notes(data: Buffer) -> tuple[dict[int, SegmentNote], list[str]]:
    """Return the notes by base offset, and the problems of lines that were left out.

    Raises:
        CorruptFile: The file has an unknown version or is not text.
    """
    lines = bytes(data).decode("ascii", "replace").split("\n")
    if lines == [""]:
        return {}, []
    if text_files.parse_number(lines[0], "version of the notes") != NOTES_VERSION:
        raise CorruptFile(f"version {lines[0][:20]} of the notes, {NOTES_VERSION} expected")
    notes, problems = {}, []
    torn = lines.pop()
    for number, line in enumerate(lines[1:], 2):
        try:
            note = _decode_note(line)
        except (CorruptFile, ValueError) as error:
            problems.append(f"line {number}: {error}")
            continue
        notes[note.base_offset] = note
    if torn:
        problems.append(f"line {len(lines) + 1}: no line end")
    return notes, problems


def _decode_note(line: str) -> SegmentNote:
    text, _, crc = line.rpartition(" ")
    if f"{crc32c(text.encode()):08x}" != crc:
        raise CorruptFile(f"{line[:80]!r}: wrong checksum")
    fields = line.split(" ")
    if len(fields) != _FIELD_COUNT:
        raise CorruptFile(f"{line[:80]!r}: {len(fields)} fields, {_FIELD_COUNT} expected")
    base, end, named, roll_ms, seen_ms = (
        text_files.parse_number(fields[number], "field") for number in (0, 1, 2, 4, 5)
    )
    # A later release may define more reasons; a reason that is unknown to this release counts as
    # UNKNOWN.
    reason = fields[3] if fields[3] in set(RollReason) else RollReason.UNKNOWN
    return SegmentNote(base, end, named, RollReason(reason), roll_ms, seen_ms)


def read_notes(context: SegmentContext) -> tuple[dict[int, SegmentNote], list[str]]:
    """Return a partition's notes by base offset, and the problems of the file.

    Notes and problems are empty if there is no file.

    For an unreadable file, return no notes and one problem.

    Raises:
        OSError: The disk failed.
    """
    path = f"{context.directory}/{SEGMENT_NOTES_FILE}"
    try:
        return decode_notes(files.read_file(context.env.files, path))
    except FileNotFoundError:
        return {}, []
    except CorruptFile as error:
        return {}, [str(error)]


def has_notes(fs: FileSystem, directory: str) -> bool:
    """Return whether a partition has a file of notes; raises OSError."""
    return fs.exists(f"{directory}/{SEGMENT_NOTES_FILE}")


def begin_notes(fs: FileSystem, directory: str) -> None:
    """Create an empty file of notes if there is no file, durably.

    If this file exists, recovery treats a gap between segments as a loss unless a note explains the
    gap.

    Raises:
        OSError: The disk failed.
    """
    if not has_notes(fs, directory):
        files.write_atomically(fs, f"{directory}/{SEGMENT_NOTES_FILE}", encode_notes([]))


class NotesFile:
    """The notes of a partition that is open for writing; `add` is durable on return.

    Not thread-safe, but any thread may call the callbacks that `prepare` returns.
    """

    def __init__(self, context: SegmentContext) -> None:
        self._context = context
        self._path = f"{context.directory}/{SEGMENT_NOTES_FILE}"
        self._notes: dict[int, SegmentNote] = {}
        self._size_bytes = 0
        self._lines = 0
        self._is_whole = True
        self._is_writing = threading.Lock()

    @property
    def notes(self) -> Mapping[int, SegmentNote]:
        """All notes by base offset."""
        return self._notes

    def __iter__(self) -> Iterator[SegmentNote]:
        return iter(self._notes.values())

    def load(self) -> list[str]:
        """Read the file; return its problems.

        If the file is damaged, the next change of the notes replaces it.

        Raises:
            OSError: The disk failed.
        """
        self._context.pool.forget(self._path)
        self._notes, problems = read_notes(self._context)
        self._is_whole = not problems
        self._lines = len(self._notes)
        fs = self._context.env.files
        self._size_bytes = fs.stat(self._path).size if fs.exists(self._path) else 0
        return problems

    def add(self, notes: Iterable[SegmentNote]) -> None:
        """Add notes, replacing earlier notes on the same segments.

        Raises:
            OSError: The disk failed. After this error, the file has some of the new lines or none
                of them.
        """
        self.prepare(notes)()

    def prepare(self, notes: Iterable[SegmentNote]) -> Callable[[], None]:
        """Add notes in memory; return a callback that makes them durable.

        Call the callback once, in any thread. The callback raises the same errors as `add`. Several
        callbacks must be called in the order in which they were prepared.
        """
        new = [note for note in notes if self._notes.get(note.base_offset) != note]
        self._notes |= {note.base_offset: note for note in new}
        self._lines += len(new)
        if not new:
            return lambda: None
        if not self._size_bytes or not self._is_whole or self._is_stale():
            # Encode the notes now, because notes may be added or dropped before the file is
            # written.
            encoded = encode_notes(self._notes[base] for base in sorted(self._notes))
            count = len(self._notes)
            return lambda: self._write_anew(encoded, count)
        return lambda: self._append(b"".join(map(encode_note, new)))

    def forget(self, base_offsets: Iterable[int]) -> None:
        """Drop the notes of segments that are gone; a later change updates the file.

        Until then, the lines of these notes do no harm, because a note is valid only for a segment
        that ends as the note states.
        """
        for base in base_offsets:
            self._notes.pop(base, None)

    def _is_stale(self) -> bool:
        return self._lines > 2 * len(self._notes) + _STALE_LINES

    def _append(self, lines: bytes) -> None:
        with self._is_writing:
            try:
                file = self._context.pool.get(self._path)
                files.write_fully(file, lines, self._size_bytes)
                file.sync()
            except BaseException:
                self._is_whole = False
                raise
            self._size_bytes += len(lines)

    def _write_anew(self, encoded: bytes, count: int) -> None:
        with self._is_writing:
            self._context.pool.forget(self._path)
            files.write_atomically(self._context.env.files, self._path, encoded)
            self._size_bytes, self._lines, self._is_whole = len(encoded), count, True


_LOGGER: Final = logging.getLogger(__name__)
_NO_BATCH: Final = 0
_NAMED: Final = Struct(">Iiq")


class NoteKeeper:
    """Maintains the notes of one partition. Only the thread that changes the log may use it.

    Attributes:
        context: The partition's context, with its current settings.
        arrived_ms: Time in ms by which all records of the active segment had arrived; -1 if the
            segment has no records.
    """

    def __init__(self, context: SegmentContext) -> None:
        self.context = context
        self._file = NotesFile(context)
        self._proven: set[int] = set()
        self._rolls: deque[Roll] = deque(maxlen=STORM_ROLLS)
        self._has_warned = False
        self.arrived_ms = UNKNOWN_MS

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic."""
        self.context = dataclasses.replace(self.context, config=config)

    def note_arrival(self, now_ms: int) -> None:
        """Store in memory that records of the active segment had arrived at `now_ms`."""
        self.arrived_ms = now_ms

    def load(self, segments: Sequence[Segment], *, was_clean: bool) -> None:
        """Read the notes; add a note for each segment without a valid note.

        The arrival time in an added note is the earlier of the log file's modification time and the
        current time.

        Args:
            segments: All segments of the log, the active one last.
            was_clean: Whether the log was closed cleanly. After a hard stop, the modification time
                of the active segment's file may be earlier than the last append, so the note gets
                the current time instead.

        Raises:
            OSError: The disk failed.
        """
        for problem in self._file.load():
            self.context.report(f"{self.context.directory}/segment-notes: {problem}; ignored")
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
        """Return whether the segment's note matches the segment's end offset and last batch."""
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
        """Return the time in ms by which all records of a segment had arrived.

        The result is -1 for an empty active segment. If the note of a finished segment describes
        other records, the segment gets a new note.

        Raises:
            OSError: The disk failed.
        """
        if segment.is_active:
            return self.arrived_ms
        if not self._is_proven(segment):
            self._file.add([self._first_sight(segment)])
        return self._file.notes[segment.base_offset].seen_ms

    def note_of(self, segment: Segment) -> SegmentNote | None:
        """Return the note on a segment, None if the note is missing or has another end offset."""
        return self._file.notes.get(segment.base_offset) if self._is_noted(segment) else None

    def rolled(
        self,
        segment: TailSegment,
        end_offset: int,
        reason: RollReason,
        *,
        is_copy: bool = False,
    ) -> Callable[[], None]:
        """Add a note on the roll of the active segment.

        Args:
            segment: The segment that was rolled.
            end_offset: Base offset of the next segment.
            reason: Reason of the roll.
            is_copy: Whether an append of a leader's records caused the roll. A leader's records
                arrive as fast as they can be copied, so these rolls don't count for a storm. The
                leader warns of its own storms.

        Returns:
            A callback that makes the note durable. Call it once, in any thread. It raises OSError.
        """
        now_ms = self.context.env.clock.now_ms()
        seen_ms = now_ms if self.arrived_ms == UNKNOWN_MS else self.arrived_ms
        note = _note(segment, reason, now_ms, seen_ms)._replace(end_offset=end_offset)
        write = self._file.prepare([note])
        self._proven.add(segment.base_offset)
        self.arrived_ms = UNKNOWN_MS
        if is_by_append(reason) and not is_copy:
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
        """Roll storm of the last rolls since the log was opened, None if they are not a storm."""
        if len(self._rolls) < STORM_ROLLS:
            return None
        return find_storm(list(self._rolls), segment_bytes=self.context.config.segment_size_limit)

    def adopted(self, segments: Sequence[Segment]) -> None:
        """Add notes for finished segments that were attached.

        Raises:
            OSError: The disk failed.
        """
        now_ms = self.context.env.clock.now_ms()
        self._file.add([_note(each, RollReason.ATTACH, now_ms, now_ms) for each in segments])
        self._proven.update(segment.base_offset for segment in segments)

    def exchanged(self, old_bases: Sequence[int], new_segments: Sequence[Segment]) -> None:
        """Add notes for segments that replaced other segments.

        The new notes have the latest arrival time of the replaced segments, and the reason and roll
        time of the last replaced segment.

        Raises:
            OSError: The disk failed.
        """
        notes = [self._file.notes[base] for base in old_bases if base in self._file.notes]
        now_ms = self.context.env.clock.now_ms()
        seen_ms = max((note.seen_ms for note in notes), default=now_ms)
        reason = notes[-1].reason if notes else RollReason.UNKNOWN
        roll_ms = notes[-1].roll_ms if notes else UNKNOWN_MS
        self._file.forget(old_bases)
        self._proven.difference_update(old_bases)
        self._file.add([_note(each, reason, roll_ms, seen_ms) for each in new_segments])
        self._proven.update(segment.base_offset for segment in new_segments)

    def closed(self, active: Segment) -> None:
        """Write the note on the active segment, because the log is being closed.

        Raises:
            OSError: The disk failed.
        """
        if active.size_bytes and self.arrived_ms != UNKNOWN_MS:
            self._file.add([_note(active, RollReason.OPEN, UNKNOWN_MS, self.arrived_ms)])

    def before_cut(self, segments: Sequence[Segment], offset: int) -> None:
        """Prepare for a truncation to `offset`, so that remaining records keep their arrival time.

        Raises:
            OSError: The disk failed.
        """
        remaining = [segment for segment in segments if segment.base_offset <= offset]
        self.arrived_ms = self.seen_ms(remaining[-1]) if remaining else UNKNOWN_MS
        self.deleted(each.base_offset for each in segments if each.base_offset > offset)
        self._proven.clear()

    def deleted(self, base_offsets: Iterable[int]) -> None:
        """Drop the notes of segments that are being deleted."""
        self._file.forget(base_offsets)


def _note(segment: Segment, reason: RollReason, roll_ms: int, seen_ms: int) -> SegmentNote:
    named = last_fingerprint(segment)
    return SegmentNote(segment.base_offset, segment.end_offset, named, reason, roll_ms, seen_ms)


def last_fingerprint(segment: Segment) -> int:
    """Return the fingerprint of a segment's last batch.

    Return 0 if the segment has no batch or if damage hides the last batch.

    Unlike `append_time_trust.fingerprint`, this fingerprint does not use the batch's base offset.
    For a wrapper of an old format, the base offset is known only after decompression.
    """
    last = last_batch(segment) if segment.last_batch is None else segment.last_batch
    if last is None:
        return _NO_BATCH
    return crc32c(_NAMED.pack(last.crc, last.leader_epoch, last.last_offset))
