"""The file `segment-notes`: its format, damaged lines, and its bounded growth."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.directories.logs import TOPIC, WRITABLE, new_log, put, read, write

from tidelog.env import Env
from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment.roll import RollReason, SegmentNote
from tidelog.storage.segment.segment_notes import (
    NotesFile,
    decode_notes,
    encode_note,
    encode_notes,
    read_notes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = SegmentNote(0, 42, 123, RollReason.SIZE, 1_000, 990)
SECOND = SegmentNote(42, 50, 0, RollReason.UNKNOWN, -1, 2_000)


def test_the_bytes_of_a_file() -> None:
    line = "0 42 123 size 1000 990"
    assert encode_notes([FIRST]) == f"0\n{line} {crc32c(line.encode()):08x}\n".encode()


def test_written_notes_are_read_back() -> None:
    assert decode_notes(encode_notes([FIRST, SECOND])) == ({0: FIRST, 42: SECOND}, [])
    assert decode_notes(b"") == ({}, [])


def test_a_later_line_replaces_an_earlier_one() -> None:
    later = FIRST._replace(end_offset=99, reason=RollReason.TIME)
    assert decode_notes(encode_notes([FIRST, later]))[0] == {0: later}


@pytest.mark.parametrize("cut", range(1, len(encode_note(SECOND))))
def test_a_torn_line_is_left_out(cut: int) -> None:
    notes, problems = decode_notes(encode_notes([FIRST, SECOND])[:-cut])
    assert notes == {0: FIRST}
    assert problems == ["line 3: no line end"]


def test_a_changed_bit_costs_one_line() -> None:
    data = encode_notes([FIRST, SECOND])
    for at in range(2, len(encode_note(FIRST)) + 1):
        flipped = bytearray(data)
        flipped[at] ^= 1
        notes, problems = decode_notes(flipped)
        assert notes.get(0) is None
        assert notes.get(42) == SECOND
        assert problems


def test_another_version_is_refused() -> None:
    with pytest.raises(CorruptFile, match="version 7"):
        decode_notes(b"7\n")
    with pytest.raises(CorruptFile):
        decode_notes(b"\xff\xfe nothing of ours")


def test_a_reason_of_a_later_release_is_unknown() -> None:
    line = "0 42 123 boredom 1000 990"
    data = f"0\n{line} {crc32c(line.encode()):08x}\n".encode()
    assert decode_notes(data)[0][0].reason is RollReason.UNKNOWN


def test_a_line_is_appended_and_outdated_ones_are_removed_later() -> None:
    env, _, log = new_log()
    notes = NotesFile(log.context)
    assert notes.load() == []
    notes.add([FIRST, SECOND])
    size = len(read(env, "segment-notes"))
    for turn in range(200):
        notes.add([SECOND._replace(seen_ms=3_000 + turn)])
        assert read_notes(log.context)[0][42].seen_ms == 3_000 + turn
    lines = read(env, "segment-notes").count(b"\n")
    assert lines < 80
    assert len(read(env, "segment-notes")) > size
    notes.add([SECOND._replace(seen_ms=3_199)])
    assert read(env, "segment-notes").count(b"\n") == lines, "the same note again is not written"


def test_a_note_added_during_a_write_is_written_too(tmp_path: Path) -> None:
    disk = HookedDisk()
    with LogDir.open(str(tmp_path), env=Env(files=disk), options=WRITABLE) as directory:
        directory.create_topic(TOPIC)
        context = directory.log(TOPIC, 0).context
        notes = NotesFile(context)
        notes.load()
        notes.add([FIRST])
        later: list[Callable[[], None]] = []
        renamed: list[str] = []

        def hook(call: str, path: str) -> None:
            if call == "rename":
                renamed.append(path)
            elif call == "sync" and path.endswith("segment-notes") and not later:
                later.append(notes.prepare([FIRST._replace(seen_ms=7_000)]))

        disk.hook = hook
        notes.add([SECOND])
        later[0]()
        assert renamed == []
        assert read_notes(context) == ({0: FIRST._replace(seen_ms=7_000), 42: SECOND}, [])


def test_after_damage_the_file_is_written_again() -> None:
    env, _, log = new_log()
    write(env, "segment-notes", encode_notes([FIRST, SECOND])[:-3])
    notes = NotesFile(log.context)
    assert notes.load() == ["line 3: no line end"]
    notes.add([SECOND])
    assert read(env, "segment-notes") == encode_notes([FIRST, SECOND])


def test_an_unreadable_file_is_reported_and_the_log_opens() -> None:
    from tests.worlds.directories.logs import reopen

    env, directory, log = new_log()
    put(log, 1)
    log.roll()
    directory.close()
    write(env, "segment-notes", b"\x00\x01")
    directory, log = reopen(env)
    assert any("segment-notes" in line for line in directory.reports)
    assert read_notes(log.context)[0][0].reason is RollReason.UNKNOWN
