"""Checks of `tidelog-metadata.log`: a flipped bit is named, and distinguished from a cut file."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import PATH, WRITABLE
from tests.worlds.directories.sick import look

from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.record.header import CRC_AT, HEADER_SIZE, LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT
from tidelog.storage.checks import Finding, Severity
from tidelog.storage.checks.flipped_bits import flipped_bit
from tidelog.storage.checks.metadata_check import check_metadata
from tidelog.storage.directory.broker_files import METADATA_FILE, MetadataFile
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import write_atomically

FILE = f"{PATH}/{METADATA_FILE}"
CHANGES = ([b"first"], [b"one", b"two"], [b"secret", b"four", b"five"])


def written() -> tuple[SeededEnv, list[int]]:
    """Return a disk with a file of three changes, and a list: the changes' positions, the end."""
    env = seeded_env(1)
    env.files.make_dirs(PATH)
    file, ends = MetadataFile(env, PATH), [0]
    file.replace(CHANGES[0])
    ends.append(env.files.stat(FILE).size)
    for change in CHANGES[1:]:
        file.append(change)
        ends.append(env.files.stat(FILE).size)
    return env, ends


def content(env: SeededEnv) -> bytes:
    return bytes(env.files.map(FILE))


def findings_of(
    env: SeededEnv,
    data: bytes | None = None,
    *,
    was_clean: bool = False,
    replay: Callable[[bytes], object] = lambda _value: None,
) -> list[Finding]:
    if data is not None:
        write_atomically(env.files, FILE, data)
    return [*check_metadata(env.files, PATH, was_clean=was_clean, replay=replay)]


def test_a_valid_file_has_no_findings_and_all_records() -> None:
    env, _ = written()
    values = list[bytes]()
    assert findings_of(env, replay=values.append) == []
    assert values == [value for change in CHANGES for value in change]
    env.files.remove(FILE)
    assert findings_of(env) == []


@pytest.mark.parametrize("was_clean", [True, False])
def test_every_flipped_bit_is_named(was_clean: bool) -> None:
    env, ends = written()
    whole = content(env)
    for at in range(len(whole)):
        start = max(end for end in ends if end <= at)
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            (found,) = findings_of(env, bytes(data), was_clean=was_clean)
            assert found.counts
            judge(found, at - start, at, start)


def judge(found: Finding, place: int, at: int, start: int) -> None:
    """Check that a finding names the flipped bit, or the damaged field if no checksum covers it."""
    if place < LENGTH_AT:
        assert (found.position, "expected" in found.damage) == (start, True)
    elif place < LEADER_EPOCH_AT:
        assert found.position == start + LENGTH_AT
        assert "length" in found.damage
    elif place < MAGIC_AT:
        assert (found.position, found.severity) == (start + LEADER_EPOCH_AT, Severity.WARNING)
    elif place < CRC_AT:
        assert (found.position, "expected 2" in found.damage) == (at, True)
    else:
        assert (found.position, "was flipped" in found.damage) == (at, True)


def test_a_bit_of_the_last_change_is_not_taken_for_a_cut() -> None:
    """The finding states that a broker would ignore the last change."""
    env, ends = written()
    data = bytearray(content(env))
    data[-1] ^= 4
    (found,) = findings_of(env, bytes(data))
    assert (found.severity, found.position, found.offset) == (Severity.ERROR, ends[3] - 1, 3)
    assert found.damage.startswith("bit 2 of this byte was flipped")
    assert "the broker drops this change" in found.remedy
    (clean,) = findings_of(env, was_clean=True)
    assert "does not start with this damage" in clean.remedy


def test_a_cut_is_a_warning_only_after_a_hard_stop() -> None:
    env, ends = written()
    whole = content(env)
    for size in range(ends[2] + 1, ends[3]):
        (found,) = findings_of(env, whole[:size])
        assert (found.severity, found.position, found.offset) == (Severity.WARNING, ends[2], 3)
        assert f"{size - ends[2]} bytes that are not a complete change" in found.damage
        (found,) = findings_of(env, was_clean=True)
        assert (found.severity, found.position) == (Severity.ERROR, ends[2])
    assert findings_of(env, whole[: ends[2]]) == []


def test_after_damage_the_next_complete_change_is_found() -> None:
    env, ends = written()
    data = bytearray(content(env))
    for at in (ends[1] + HEADER_SIZE + 1, ends[1] + HEADER_SIZE + 5):
        data[at] ^= 0xFF
    (found,) = findings_of(env, bytes(data))
    assert (found.severity, found.position, found.offset) == (Severity.ERROR, ends[1], 1)
    assert found.damage == f"{ends[2] - ends[1]} bytes that are not a complete change"


def test_damage_in_two_changes_is_two_findings() -> None:
    env, ends = written()
    data = bytearray(content(env))
    data[ends[1] - 1] ^= 1
    data[ends[2] - 1] ^= 2
    values = list[bytes]()
    found = findings_of(env, bytes(data), replay=values.append)
    assert [each.position for each in found] == [ends[1] - 1, ends[2] - 1]
    assert values == [], "what follows damage would be told of a state that never was"


@pytest.mark.parametrize("error", [CorruptFile("invalid record"), None])
def test_unknown_records_are_findings(error: CorruptFile | None) -> None:
    env, ends = written()

    def replay(value: bytes) -> None:
        if value == b"two":
            raise error or UnsupportedVersion("record 4 v0 is not known")

    (found,) = findings_of(env, replay=replay)
    assert (found.severity, found.position, found.offset) == (Severity.ERROR, ends[1], 1)
    assert ("invalid record" if error else "not known") in found.damage


def test_findings_contain_no_record_content() -> None:
    env, _ = written()
    whole = content(env)
    for at in range(len(whole)):
        (found,) = findings_of(env, whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :])
        assert "secret" not in str(found)


def test_the_check_of_a_directory_reads_it() -> None:
    """The file is also checked in a directory without topics."""
    env = seeded_env(2)
    LogDir.open(PATH, env=env, options=WRITABLE).close()
    env.files.remove(f"{PATH}/.kafka_cleanshutdown")
    MetadataFile(env, PATH).replace(CHANGES[0])
    data = content(env)
    assert look(env) == []
    write_atomically(env.files, FILE, data[:-1] + bytes([data[-1] ^ 1]))
    (found,) = look(env)
    assert found.path == FILE


@given(st.binary(max_size=200), st.data())
def test_one_flipped_bit_is_found_wherever_it_is(data: bytes, draw: st.DataObject) -> None:
    stored = crc32c(data).to_bytes(4, "big") + data
    at = draw.draw(st.integers(0, len(stored) - 1))
    bit = draw.draw(st.integers(0, 7))
    damaged = bytearray(stored)
    damaged[at] ^= 1 << bit
    crc = int.from_bytes(damaged[:4], "big")
    assert flipped_bit(bytes(damaged[4:]), crc) == (at - 4, bit)


def test_two_flipped_bits_are_not_taken_for_one() -> None:
    data = bytes(range(60))
    for first in range(0, 480, 7):
        for second in range(first + 1, 480, 11):
            damaged = bytearray(data)
            damaged[first // 8] ^= 1 << first % 8
            damaged[second // 8] ^= 1 << second % 8
            assert flipped_bit(bytes(damaged), crc32c(data)) is None
