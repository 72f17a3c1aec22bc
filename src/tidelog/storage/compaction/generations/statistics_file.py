"""The file `compaction-statistics`: the whole at some time, then what has changed since.

A cleaning changes a few rows and samples of many, and there are dozens of cleanings while a log's
live size is appended once: written anew each time, the statistics would be a tenth and more of all
that generational compaction writes. So changes are appended, each an entry with a checksum of its
own, until they take as much as the whole; then the file is replaced.

What is damaged or incomplete ends the file for its reader: what stands before counts, as it would
after a crash that came a moment earlier. Nothing is appended behind it, the next writer replaces
the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.storage.compaction.generations import statistics
from tidelog.storage.compaction.generations.statistics import (
    LINE_END,
    STATISTICS_FILE,
    Statistics,
)
from tidelog.storage.decoded_files import DecodedFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a partition's file says.

    Attributes:
        statistics: The whole with all changes; for whoever compares, not to be changed.
        whole_bytes: Bytes of the whole.
        size_bytes: Bytes of the whole and its changes.
        is_sound: Whether nothing else is in the file, so that more can be appended.
    """

    statistics: Statistics
    whole_bytes: int
    size_bytes: int
    is_sound: bool = True


def read_statistics(
    fs: FileSystem, directory: str, known: DecodedFiles | None = None
) -> tuple[Stored | None, str]:
    """A partition's statistics, and what is wrong with the file; None where it says nothing.

    Args:
        fs: Files.
        directory: The partition's directory.
        known: What was read or written before; what is sound is kept there. For the lock's holder.

    Raises:
        OSError: The disk failed.
    """
    path = f"{directory}/{STATISTICS_FILE}"
    try:
        stat = fs.stat(path)
        kept = None if known is None else known.find(path, stat)
        if isinstance(kept, Stored):
            return kept, ""
        found, problem = decode(files.read_file(fs, path))
    except FileNotFoundError:
        return None, ""
    except (CorruptFile, UnsupportedVersion) as error:
        return None, f"{path}: {error}"
    if problem:
        return found, f"{path}: {problem}"
    if known is not None:
        known.keep(path, stat, found, _weight(found))
    return found, ""


def keep_written(fs: FileSystem, directory: str, known: DecodedFiles, stored: Stored) -> None:
    """Remember what `write_statistics` says that the file says now; raises OSError."""
    path = f"{directory}/{STATISTICS_FILE}"
    known.keep(path, fs.stat(path), stored, _weight(stored))


def _weight(stored: Stored) -> int:
    """In samples, of which a row has about the size of two."""
    return len(stored.statistics.samples) + 2 * len(stored.statistics.rows)


def decode(data: bytes) -> tuple[Stored, str]:
    """What a file says, and what is wrong with its changes.

    Raises:
        CorruptFile: The whole is damaged.
        UnsupportedVersion: A later release wrote it.
    """
    entries = _entries(data)
    whole = next(entries)
    found = Stored(
        statistics=statistics.decode(whole),
        whole_bytes=len(whole),
        size_bytes=len(whole),
        # Without it the next entry would begin on the last line of this one.
        is_sound=data.endswith(LINE_END),
    )
    for entry in entries:
        try:
            changed = statistics.apply_change(found.statistics, entry)
        except CorruptFile as error:
            return replace(found, is_sound=False), f"from byte {found.size_bytes} on: {error}"
        found = replace(found, statistics=changed, size_bytes=found.size_bytes + len(entry))
    return found, ""


def _entries(data: bytes) -> Iterator[bytes]:
    """Entries, at least one: a line of its checksum, a line of text, with both line ends."""
    at = 0
    while not at or at < len(data):
        end = data.find(LINE_END, data.find(LINE_END, at) + 1) + 1
        end = end or len(data)
        yield data[at:end]
        at = end


def write_statistics(
    fs: FileSystem, directory: str, known: Statistics, stored: Stored | None
) -> tuple[Stored, int]:
    """Store a partition's statistics: as changes where that is less, else by replacing the file.

    Args:
        fs: Files.
        directory: The partition's directory.
        known: The statistics; they may be changed afterwards.
        stored: What the file says; None for no file, or one that is to be replaced.

    Returns:
        What the file says now, and how many bytes were written.

    Raises:
        OSError: The disk failed; the old ones are there or the new ones, for `read_statistics`.
    """
    path = f"{directory}/{STATISTICS_FILE}"
    if stored is not None and stored.is_sound:
        change = statistics.encode_change(stored.statistics, known)
        size = stored.size_bytes + len(change)
        if size <= 2 * stored.whole_bytes:
            _append(fs, path, change, stored.size_bytes)
            return replace(stored, statistics=known.copy(), size_bytes=size), len(change)
    data = statistics.encode(known)
    files.write_atomically(fs, path, data)
    made = Stored(statistics=known.copy(), whole_bytes=len(data), size_bytes=len(data))
    return made, len(data)


def _append(fs: FileSystem, path: str, change: bytes, position: int) -> None:
    file = fs.open(path, write=True)
    try:
        files.write_fully(file, change, position)
        file.sync()
    finally:
        file.close()
