"""What is remembered of each segment of a partition, in the text file `segment-notes`.

A note says why and when a segment was rolled, and by when all of its records were there (when it
was first seen, for one that somebody else wrote). Files don't keep that: a copy changes their
times. Primary: it can't be rebuilt; where it is lost, reasons are unknown and file times count
again. No answer about records depends on it, only retention and `tidelog why`.

Text: the version, then a line for each note, oldest first; a later line about the same segment
takes an earlier one's place. So a roll appends a line instead of writing all of them again. A line
ends with the CRC-32C of what stands before it; one that breaks it (a crash may tear the last) is
left out. A note holds only where the segment ends with the offset and the batch that it names:
somebody else may have cut the log and appended other records since.

    0
    BASE END FINGERPRINT REASON ROLL_MS SEEN_MS CRC

Kafka does not know the file and leaves it alone. Pure but for `read_notes` and `NotesFile`.
Source: docs/format.md#text-files.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage import files, text_files
from tidelog.storage.roll import RollReason
from tidelog.storage.segment import SegmentContext
from tidelog.types import Buffer

SEGMENT_NOTES_FILE: Final = "segment-notes"
NOTES_VERSION: Final = 0
_FIELD_COUNT: Final = 7
# So many lines that no longer count may stay before the file is written anew.
_STALE_LINES: Final = 64


class SegmentNote(NamedTuple):
    """What is remembered of a segment.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it when the note was made.
        last_fingerprint: Of its last batch: CRC-32C of that batch's checksum field, leader epoch
            and last offset; 0 where it had none.
        reason: Why it was rolled; OPEN while it takes appends, UNKNOWN where somebody else did it.
        roll_ms: When it was rolled, by the wall clock; -1 where that is not known.
        seen_ms: All records below `end_offset` were there by then, in ms.
    """

    base_offset: int
    end_offset: int
    last_fingerprint: int
    reason: RollReason
    roll_ms: int
    seen_ms: int


def encode_note(note: SegmentNote) -> bytes:
    """A note's line."""
    text = " ".join(map(str, note))
    return f"{text} {crc32c(text.encode()):08x}\n".encode()


def encode_notes(notes: Iterable[SegmentNote]) -> bytes:
    """The whole file."""
    return f"{NOTES_VERSION}\n".encode() + b"".join(map(encode_note, notes))


def decode_notes(data: Buffer) -> tuple[dict[int, SegmentNote], list[str]]:
    """The notes by base offset, and what is wrong with lines that were left out.

    Raises:
        CorruptFile: Another version, or no text.
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
        text_files.parse_number(fields[place], "field") for place in (0, 1, 2, 4, 5)
    )
    # A later release may know more reasons; to this one they are unknown.
    known = fields[3] if fields[3] in set(RollReason) else RollReason.UNKNOWN
    return SegmentNote(base, end, named, RollReason(known), roll_ms, seen_ms)


def read_notes(context: SegmentContext) -> tuple[dict[int, SegmentNote], list[str]]:
    """A partition's notes by base offset and what is wrong with the file; none where it is missing.

    A file that can't be read at all has no notes, and says so.

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
    """Whether a partition has a file of notes; raises OSError."""
    return fs.exists(f"{directory}/{SEGMENT_NOTES_FILE}")


def begin_notes(fs: FileSystem, directory: str) -> None:
    """Make a file without notes where there is none, durably: from now on rolls are noted.

    Raises:
        OSError: The disk failed.
    """
    if not has_notes(fs, directory):
        files.write_atomically(fs, f"{directory}/{SEGMENT_NOTES_FILE}", encode_notes([]))


class NotesFile:
    """The notes of a partition that is open for writing; every change is durable when it returns.

    Not safe for two threads, but for what `prepare` returns.
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
        """Read the file; what is wrong with it. A damaged one is written anew by the next change.

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
        """Note these, in the place of earlier notes about the same segments.

        Raises:
            OSError: The disk failed; the file holds some of the new lines or none.
        """
        self.prepare(notes)()

    def prepare(self, notes: Iterable[SegmentNote]) -> Callable[[], None]:
        """Take these in; what makes them durable, to be called once, in whatever thread.

        It raises as `add`. Several are called in the order in which they were prepared.
        """
        new = [note for note in notes if self._notes.get(note.base_offset) != note]
        self._notes |= {note.base_offset: note for note in new}
        self._lines += len(new)
        if not new:
            return lambda: None
        if not self._size_bytes or not self._is_whole or self._is_stale():
            # Encoded here: notes may come and go before the file is written.
            encoded = encode_notes(self._notes[base] for base in sorted(self._notes))
            count = len(self._notes)
            return lambda: self._write_anew(encoded, count)
        return lambda: self._append(b"".join(map(encode_note, new)))

    def forget(self, base_offsets: Iterable[int]) -> None:
        """Drop the notes of segments that are gone; the file follows with a later change.

        Their lines do no harm meanwhile: a note holds only where a segment ends as it says.
        """
        for base in base_offsets:
            self._notes.pop(base, None)

    def _is_stale(self) -> bool:
        return self._lines > 2 * len(self._notes) + _STALE_LINES

    def _append(self, lines: bytes) -> None:
        with self._is_writing:
            file = self._context.pool.get(self._path)
            self._is_whole = False  # until all of it is there
            files.write_fully(file, lines, self._size_bytes)
            file.sync()
            self._size_bytes += len(lines)
            self._is_whole = True

    def _write_anew(self, encoded: bytes, count: int) -> None:
        with self._is_writing:
            self._context.pool.forget(self._path)
            files.write_atomically(self._context.env.files, self._path, encoded)
            self._size_bytes, self._lines, self._is_whole = len(encoded), count, True
