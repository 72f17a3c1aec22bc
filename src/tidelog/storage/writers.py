"""How far writers from outside have come with a directory: what they may not write once more.

A streaming query (or a job that numbers its versions) that starts anew after a crash sends its
last batch again. Its commit says which batch it was (`storage.commits`), and the directory
remembers the last one of each writer here, so that a batch that is there already is not attached
a second time. The holder of the lock alone reads and writes it, between opening and closing.

`tidelog-writers.json` at the top of the directory, replaced atomically. Text of the file, format
version 1: `{"version": 1, "writers": {WRITER: [LAST VERSION, MS OF THE COMMIT, NOTE, RANGES]}}`;
the last two are left out where both are empty. RANGES: `[[TOPIC, PARTITION, FIRST OFFSET, END
OFFSET, APPEND TIME IN MS], ...]`.

A writer may count each topic by itself: its names are then those of `topic_writer`, one for each
topic. Releases before this rule had one mark for all topics of such a writer, which still counts
(`find_topic_mark`).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, InvalidRequest, UnsupportedVersion
from tidelog.storage import files
from tidelog.types import INT64_MAX

WRITERS_FILE: Final = "tidelog-writers.json"
WRITERS_VERSION: Final = 1
# A writer's name is a kind and an id that somebody has chosen; there is no need for novels.
NAME_CHARACTERS_MAX: Final = 512
NOTE_CHARACTERS_MAX: Final = 1 << 20


class Mark(NamedTuple):
    """The last version that a writer has committed.

    Attributes:
        version: From 0 on; a writer's versions grow.
        committed_ms: When, by the directory's clock, in ms.
        note: What the writer wanted to find again with that version.
        ranges: Where its records went: topic, partition, first offset, end offset, append time in
            ms (-1 where the append clock is off).
    """

    version: int
    committed_ms: int
    note: str = ""
    ranges: tuple[tuple[str, int, int, int, int], ...] = ()


def encode_mark(mark: Mark) -> list[object]:
    """A mark as JSON has it."""
    start: list[object] = [mark.version, mark.committed_ms]
    return [*start, mark.note, list(mark.ranges)] if mark.note or mark.ranges else start


def decode_mark(told: list[object]) -> Mark:
    """The mark that `encode_mark` wrote; TypeError or ValueError for what is none."""
    version, committed_ms, *more = told
    note, ranges = more or ("", ())
    if type(version) is not int or type(committed_ms) is not int or not isinstance(note, str):
        raise TypeError(f"a mark of {str(told)[:80]}")
    if not isinstance(ranges, list | tuple):
        raise TypeError(f"ranges of {type(ranges).__name__}")
    return Mark(version, committed_ms, note, tuple(map(_decode_range, ranges)))


def _decode_range(told: object) -> tuple[str, int, int, int, int]:
    match told:
        case [str(topic), int(partition), int(first), int(end), int(append_ms)]:
            return topic, partition, first, end, append_ms
    raise TypeError(f"a range of {str(told)[:80]}")


def check_marks(marks: Mapping[str, Mark]) -> None:
    """Raise CorruptFile where a name or a number can't be."""
    for name, mark in marks.items():
        is_number = type(mark.version) is int and type(mark.committed_ms) is int
        if not is_number or not 0 <= mark.version <= INT64_MAX or not len(name) > 0:
            raise CorruptFile(f"writer {name[:80]!r} at {mark[:2]!r}: no name, version or time")


def topic_writer(writer: str, topic: str) -> str:
    """Return the name under which a writer that counts topics separately has its mark."""
    return f"topic/{topic}/{writer}"  # a topic's name has no slash


def find_topic_mark(
    marks: Mapping[str, Mark], writer: str, topic: str, version: int
) -> Mark | None:
    """Return the mark by which a version of a topic is committed already, None without one.

    A mark for all topics together, as earlier releases wrote it, counts for each topic, except
    where its ranges prove that this very version went to other topics only.
    """
    own = marks.get(topic_writer(writer, topic))
    if own is not None and own.version >= version:
        return own
    shared = marks.get(writer)
    if shared is None or shared.version < version:
        return None
    is_other = shared.version == version and bool(shared.ranges)
    if is_other and all(name != topic for name, *_ in shared.ranges):
        return None
    return shared


def find_done_topics(
    marks: Mapping[str, Mark], writer: str, version: int, topics: Iterable[str]
) -> dict[str, int]:
    """Return the topics that have a version of a writer already, each with its last version."""
    found = {topic: find_topic_mark(marks, writer, topic, version) for topic in topics}
    return {topic: mark.version for topic, mark in found.items() if mark is not None}


def ensure_version(name: str, version: int, note: str = "") -> None:
    """Raise InvalidRequest where a writer's name, version or note can't be kept."""
    if len(note) > NOTE_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a note of {len(note)} characters, at most {NOTE_CHARACTERS_MAX} are kept"
        )
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a writer's name of {len(name)} characters, 1 to {NAME_CHARACTERS_MAX} are allowed"
        )
    if not 0 <= version <= INT64_MAX:
        raise InvalidRequest(f"version {version} of writer {name}: from 0 to 2^63-1")


def encode_marks(marks: Mapping[str, Mark]) -> bytes:
    """The file's text, writers in order."""
    content = {
        "version": WRITERS_VERSION,
        "writers": {name: encode_mark(mark) for name, mark in sorted(marks.items())},
    }
    return f"{json.dumps(content, indent=1)}\n".encode()


def decode_marks(data: bytes) -> dict[str, Mark]:
    """The marks in a file's text.

    Raises:
        CorruptFile: It is not what `encode_marks` writes.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        marks = {name: decode_mark(mark) for name, mark in content["writers"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"not a list of writers: {error}") from error
    if version != WRITERS_VERSION:
        raise UnsupportedVersion(f"{WRITERS_FILE} of version {version}, {WRITERS_VERSION} is known")
    check_marks(marks)
    return marks


def read_marks(fs: FileSystem, directory: str) -> dict[str, Mark]:
    """The marks of a directory, none where there is no file; errors as `decode_marks`, located."""
    path = f"{directory}/{WRITERS_FILE}"
    try:
        return decode_marks(files.read_file(fs, path))
    except FileNotFoundError:
        return {}
    except CorruptFile as error:
        raise error.located(path) from error


def note(fs: FileSystem, directory: str, marks: Mapping[str, Mark]) -> None:
    """Remember marks, durably; a mark that is not newer than the one that is there changes nothing.

    Raises:
        CorruptFile, UnsupportedVersion: As `read_marks`; nothing was changed.
        OSError: The disk failed.
    """
    known = read_marks(fs, directory)
    newer = {
        name: mark
        for name, mark in marks.items()
        if name not in known or known[name].version < mark.version
    }
    if newer:
        files.write_atomically(fs, f"{directory}/{WRITERS_FILE}", encode_marks(known | newer))


def forget_topics(fs: FileSystem, directory: str, topics: Iterable[str]) -> None:
    """Drop the marks of topics, durably: a new topic of the same name has none of their records.

    A file that can't be read stays as it is: no writer goes by it.

    Raises:
        OSError: The disk failed.
    """
    stale = tuple(topic_writer("", topic) for topic in topics)
    try:
        known = read_marks(fs, directory)
    except (CorruptFile, UnsupportedVersion):
        return
    kept = {name: mark for name, mark in known.items() if not name.startswith(stale)}
    if len(kept) < len(known):
        files.write_atomically(fs, f"{directory}/{WRITERS_FILE}", encode_marks(kept))


__all__ = [
    "NAME_CHARACTERS_MAX",
    "NOTE_CHARACTERS_MAX",
    "WRITERS_FILE",
    "Mark",
    "decode_mark",
    "decode_marks",
    "encode_mark",
    "encode_marks",
    "ensure_version",
    "find_done_topics",
    "find_topic_mark",
    "forget_topics",
    "note",
    "read_marks",
    "topic_writer",
]
