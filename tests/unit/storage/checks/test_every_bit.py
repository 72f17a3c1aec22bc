"""Each single-bit flip in each file of a finished segment is found.

Sidecar files are compared with the facts read from the undamaged log. The zone map detects the
flips in the log itself. The whole check of the segment runs on some of the flips in the log.
"""

from collections.abc import Iterator
from functools import partial

import pytest
from tests.faults import seeded_env
from tests.worlds.directories.logs import PATH, WRITABLE, new_records
from tests.worlds.directories.sick import (
    PARTITION,
    BytesFileSystem,
    counting,
    full_log,
    look,
    mend,
)
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.samples import T0

from tidelog.record.header import CRC_AT
from tidelog.storage import log_files
from tidelog.storage.checks import DirectoryCheck
from tidelog.storage.checks.findings import CheckedPartition
from tidelog.storage.checks.log_check import LogReplay
from tidelog.storage.checks.partition_check import SegmentCheck
from tidelog.storage.checks.zone_map_check import ZoneMapContext, changed_zones
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import Codec, TopicPartition

PADDING = bytes(range(256)) * 5
SIDECARS = [suffix for suffix in log_files.SEGMENT_SUFFIXES if suffix != log_files.LOG_SUFFIX]


@pytest.fixture(scope="module")
def partition() -> CheckedPartition:
    env = full_log(segments=2, rounds=8, padding=PADDING)
    mend(env)
    found = look(env)
    assert counting(found) == [], found
    copied = BytesFileSystem.copy_of(env.files, PATH)
    check = DirectoryCheck(copied, PATH, clock=env.clock)  # type: ignore[arg-type] # it is only read
    check.load()
    return check.partitions[TopicPartition("t", 0)]


def first_segment(partition: CheckedPartition) -> SegmentCheck:
    names = [log_files.parse_file_name(name) for name in partition.file_names()]
    bases = sorted(found[0] for found in names if found and found[1] == log_files.LOG_SUFFIX)
    assert len(bases) == 2
    return SegmentCheck(partition, bases[0], bases[1], LogReplay())


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each bit's index, and the file's content with that bit flipped."""
    changed = bytearray(data)
    for bit in range(8 * len(data)):
        changed[bit >> 3] ^= 1 << (bit & 7)
        yield bit, bytes(changed)
        changed[bit >> 3] ^= 1 << (bit & 7)


def contents_of(partition: CheckedPartition) -> dict[str, bytes]:
    fs = partition.fs
    assert isinstance(fs, BytesFileSystem)
    return fs.contents


def path_of(suffix: str) -> str:
    return f"{PARTITION}/{log_files.file_name(0, suffix)}"


def test_the_segment_has_all_files_and_tens_of_kilobytes(partition: CheckedPartition) -> None:
    sizes = {
        suffix: len(contents_of(partition)[path_of(suffix)])
        for suffix in log_files.SEGMENT_SUFFIXES
    }
    assert min(sizes.values()) > 0
    assert sum(sizes.values()) > 20_000


@pytest.mark.parametrize("suffix", SIDECARS)
def test_every_bit_of_a_sidecar(partition: CheckedPartition, suffix: str) -> None:
    check = first_segment(partition)
    assert not any(finding.counts for finding in check.findings())
    contents, path = contents_of(partition), path_of(suffix)
    sound = contents[path]
    file = partition.fs.open(path_of(log_files.LOG_SUFFIX))
    try:
        for bit, changed in flips(sound):
            contents[path] = changed
            assert any(finding.counts for finding in check.check_beside(file)), bit
    finally:
        contents[path] = sound


def part(data: bytes, size: int, at: int) -> bytes:
    return data[at : at + size]


def test_every_bit_of_a_log_is_reported_by_its_zone_map(partition: CheckedPartition) -> None:
    check = first_segment(partition)
    assert not any(finding.counts for finding in check.findings())
    sound = contents_of(partition)[path_of(log_files.LOG_SUFFIX)]
    zone_map = ZoneMap.decode(contents_of(partition)[path_of(log_files.ZONES_SUFFIX)])
    for bit, changed in flips(sound):
        beside = ZoneMapContext(
            read=partial(part, changed),
            facts=check.facts,
            end_offset=check.end_offset,
            topic_id=partition.topic_id.bytes,
            sums={},
            doubted=frozenset(),
            damaged=(),
        )
        assert next(changed_zones(zone_map, beside), None) is not None, bit


def test_the_whole_check_finds_bits_of_a_log(partition: CheckedPartition) -> None:
    """Flip all header bits before the CRC in four batches, and a sample of the log's other bits.

    Kafka's CRC does not cover the header fields before the CRC field.
    """
    contents, path = contents_of(partition), path_of(log_files.LOG_SUFFIX)
    sound = contents[path]
    check = first_segment(partition)
    assert not any(finding.counts for finding in check.findings())
    starts = check.facts.positions
    heads = [starts[0], starts[1], starts[len(starts) // 2], starts[-1]]
    wanted = {8 * start + bit for start in heads for bit in range(8 * CRC_AT)}
    wanted |= set(range(5, 8 * len(sound), 397))
    try:
        for bit, changed in flips(sound):
            if bit in wanted:
                contents[path] = changed
                found = [each for each in first_segment(partition).findings() if each.counts]
                assert any(each.path == path for each in found), bit
                assert not any(each.repairable for each in found), bit
    finally:
        contents[path] = sound


def test_the_bit_that_was_flipped_is_named(partition: CheckedPartition) -> None:
    contents, path = contents_of(partition), path_of(log_files.LOG_SUFFIX)
    sound = contents[path]
    check = first_segment(partition)
    assert not any(finding.counts for finding in check.findings())
    start, offset = check.facts.positions[3], check.facts.first_offsets[3]
    fields = {0: "base offset", 7: "base offset", 9: "length", 15: "leader epoch", 16: "magic"}
    try:
        for at, field in fields.items():
            changed = bytearray(sound)
            changed[start + at] ^= 1 << 5
            contents[path] = bytes(changed)
            found = [
                each for each in first_segment(partition).findings() if "flipped" in each.damage
            ]
            assert [(each.position, each.offset) for each in found] == [(start + at, offset)]
            assert (
                f"bit 5 was flipped in the {field} of the batch at position {start}"
                in found[0].damage
            )
    finally:
        contents[path] = sound


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_flipped_bit_of_an_old_format_is_not_named_by_fields_of_the_new_format(
    codec: Codec,
) -> None:
    """The checksum of a message of format 1 covers its bytes from the magic on."""
    env = seeded_env(3)
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.create_topic("t")
        log = directory.log("t", 0)
        for base in (0, 3, 6):
            data = build_legacy_set(new_records([T0] * 3), magic=1, codec=codec, base_offset=base)
            log.follower.append(data)
        log.roll()
    mend(env)
    path = path_of(log_files.LOG_SUFFIX)
    sound = bytes(BytesFileSystem.copy_of(env.files, PATH).contents[path])
    start = len(sound) // 3
    for at, is_named in ((7, True), (9, True), (12, False), (15, False), (16, False)):
        copied = BytesFileSystem.copy_of(env.files, PATH)
        changed = bytearray(sound)
        changed[start + at] ^= 1 << 5
        copied.contents[path] = bytes(changed)
        check = DirectoryCheck(copied, PATH, clock=env.clock)  # type: ignore[arg-type] # it is only read
        check.load()
        found = [each for each in check.findings() if each.counts and each.path == path]
        assert [each.position for each in found if "flipped" not in each.damage] == [start]
        named = [each.position for each in found if "flipped" in each.damage]
        assert named == ([start + at] if is_named else [])
