"""File names, small text files, and loops over short writes."""

import random
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidelog.env import MAX_BUFFERS_PER_WRITE, File, OsFileSystem
from tidelog.errors import CorruptFile, InvalidTopic
from tidelog.storage import files, log_files, text_files
from tidelog.storage.open_files import FilePool, PooledFile
from tidelog.types import INT32_MAX, INT64_MAX, Buffer, TopicPartition

# Java: Uuid.fromString("AAAAAAAAAAEAAAAAAAAAAg") has these 16 bytes.
TOPIC_ID = uuid.UUID(int=(1 << 64) | 2)


class ShortFile:
    """File in memory that writes at most `most` bytes at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.data = bytearray()

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self.data[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> int:
        taken = bytes(data)[: self.most]
        self.data.extend(bytes(max(0, position + len(taken) - len(self.data))))
        self.data[position : position + len(taken)] = taken
        return len(taken)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        assert len(buffers) <= MAX_BUFFERS_PER_WRITE
        return self.pwrite(b"".join(map(bytes, buffers)), position)

    def size(self) -> int:
        return len(self.data)

    def truncate(self, size: int) -> None:
        del self.data[size:]

    def sync(self) -> None: ...

    def close(self) -> None: ...


def test_file_names_are_twenty_digits_and_a_suffix() -> None:
    assert log_files.log_file_name(0) == "00000000000000000000.log"
    assert log_files.file_name(42, log_files.TIME_INDEX_SUFFIX) == "00000000000000000042.timeindex"
    assert log_files.log_file_name(INT64_MAX) == "09223372036854775807.log"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000042.index", (42, ".index")),
        ("00000000000000000042.log.deleted", (42, ".log.deleted")),
        ("00000000000000000042.timeindex.swap", (42, ".timeindex.swap")),
        ("09223372036854775808.log", None),
        ("42.log", None),
        ("00000000000000000042", None),
        ("x00000000000000000042.log", None),
        ("00000000000000000042.log\n", None),
        ("leader-epoch-checkpoint", None),
        ("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٢.log", None),
    ],
)
def test_only_whole_file_names_are_parsed(name: str, expected: tuple[int, str] | None) -> None:
    assert log_files.parse_file_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flights-0", TopicPartition("flights", 0)),
        ("a-b.c_d-12", TopicPartition("a-b.c_d", 12)),
        (f"t-{INT32_MAX}", TopicPartition("t", INT32_MAX)),
        (f"t-{INT32_MAX + 1}", None),
        ("t-01", None),
        ("t-", None),
        ("-1", None),
        ("..-1", None),
        ("flights", None),
        ("t-0.0123456789abcdef0123456789abcdef-delete", None),
        ("t-0.0123456789abcdef0123456789abcdef-stray", None),
        ("t-0.0123456789abcdef0123456789abcdef-future", None),
        ("é-0", None),
    ],
)
def test_only_live_partition_directories_are_parsed(
    name: str, expected: TopicPartition | None
) -> None:
    assert files.parse_partition_dir(name) == expected
    if expected is not None:
        assert files.partition_dir_name(expected) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "x" * 250])
def test_topic_names_that_kafka_refuses_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        files.check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_topic_names_that_kafka_accepts_are_accepted(name: str) -> None:
    files.check_topic_name(name)


def test_topic_ids_are_written_as_kafka_writes_them() -> None:
    assert files.encode_topic_id(TOPIC_ID) == "AAAAAAAAAAEAAAAAAAAAAg"
    assert files.decode_topic_id("AAAAAAAAAAEAAAAAAAAAAg") == TOPIC_ID
    assert files.encode_topic_id(uuid.UUID(int=2**128 - 1)) == "_" * 21 + "w"


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 21 + "=", "A" * 21 + "+"])
def test_a_text_that_is_no_topic_id_is_an_error(text: str) -> None:
    with pytest.raises(CorruptFile):
        files.decode_topic_id(text)


def test_drawn_topic_ids_are_never_reserved_nor_start_with_a_dash() -> None:
    class Source(random.Random):
        """Random source: the text of the first topic id drawn from it would begin with a dash."""

        drawn = 0

        def getrandbits(self, k: int) -> int:
            self.drawn += 1
            return 0b111110 << (k - 6) if self.drawn == 1 else super().getrandbits(k)

    source = Source(1)
    drawn = files.random_topic_id(source)
    assert source.drawn == 2
    assert not files.encode_topic_id(drawn).startswith("-")


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_short_writes_are_continued(most: int) -> None:
    file = ShortFile(most)
    files.write_fully(file, b"0123456789", 2)
    assert bytes(file.data) == b"\0\x000123456789"


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_short_writes_to_an_open_file_are_continued(most: int) -> None:
    class Disk(OsFileSystem):
        def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
            assert (path, write, create) == ("log", True, True)
            return file

    file = ShortFile(most)
    PooledFile(FilePool(Disk()), "log", create=True).write(b"0123456789", 2)
    assert bytes(file.data) == b"\0\x000123456789"


@pytest.mark.parametrize("most", [1, 4, 7, 1_000_000])
def test_short_writes_of_many_buffers_are_continued(most: int) -> None:
    buffers: list[Buffer] = [bytes([n % 251]) * (n % 4) for n in range(MAX_BUFFERS_PER_WRITE + 50)]
    buffers[7] = memoryview(bytearray(b"view"))
    file = ShortFile(most)
    written = files.writev_fully(file, buffers, 3)
    expected = b"".join(map(bytes, buffers))
    assert bytes(file.data) == b"\0\0\0" + expected
    assert written == len(expected)


def test_a_write_that_makes_no_progress_is_an_error() -> None:
    with pytest.raises(OSError, match="wrote nothing"):
        files.write_fully(ShortFile(0), b"x", 0)
    with pytest.raises(OSError, match="wrote nothing"):
        files.writev_fully(ShortFile(0), [b"x"], 0)


def test_an_empty_write_is_valid() -> None:
    file = ShortFile(0)
    files.write_fully(file, b"", 0)
    assert files.writev_fully(file, [], 0) == files.writev_fully(file, [b"", b""], 0) == 0


def test_reading_beyond_the_end_names_the_position() -> None:
    file = ShortFile(9)
    files.write_fully(file, b"012", 0)
    assert files.read_exactly(file, 2, 1) == b"12"
    with pytest.raises(CorruptFile, match="after 1 of 5 requested bytes") as caught:
        files.read_exactly(file, 5, 2)
    assert caught.value.position == 2


def test_an_atomic_write_replaces_the_content_and_leaves_no_other_file(tmp_path: Path) -> None:
    system = OsFileSystem()
    path = str(tmp_path / "checkpoint")
    (tmp_path / "checkpoint.tmp").write_bytes(b"left over from a crash, and longer")
    files.write_atomically(system, path, b"one")
    files.write_atomically(system, path, b"two")
    assert files.read_file(system, path) == b"two"
    assert [entry.name for entry in system.list_dir(str(tmp_path))] == ["checkpoint"]


def test_a_small_file_over_its_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(CorruptFile, match="5 bytes, at most 4"):
        files.read_file(OsFileSystem(), str(tmp_path / "large"), limit=4)
    assert files.read_file(OsFileSystem(), str(tmp_path / "large"), limit=5) == b"12345"


def test_an_offset_checkpoint_is_kafkas_text() -> None:
    offsets = {TopicPartition("flights", 0): 12, TopicPartition("a-b", 3): 0}
    text = b"0\n2\nflights 0 12\na-b 3 0\n"
    assert text_files.encode_offset_checkpoint(offsets) == text
    assert text_files.decode_offset_checkpoint(text) == offsets
    assert text_files.encode_offset_checkpoint({}) == b"0\n0\n"
    assert text_files.decode_offset_checkpoint(b"0\n0\n") == {}
    assert text_files.decode_offset_checkpoint(b"") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"1\n0\n",
        b"0\n",
        b"0\n1\n",
        b"0\n0\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 1 2\n",
        b"0\n1\na x 1\n",
        b"0\n1\na 0 99999999999999999999\n",
        b"0\n1\na 0 1",
        b"x\n0\n",
        b"0\n-1\n",
        b"\n",
        b"\xff\xfe",
    ],
)
def test_a_damaged_checkpoint_is_an_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(text)
    path = str(tmp_path / "checkpoint")
    with pytest.raises(CorruptFile) as caught:
        text_files.read_offset_checkpoint(OsFileSystem(), path)
    assert caught.value.path == path


def test_a_missing_checkpoint_has_no_entries(tmp_path: Path) -> None:
    system, path = OsFileSystem(), str(tmp_path / "checkpoint")
    assert text_files.read_offset_checkpoint(system, path) == {}
    text_files.write_offset_checkpoint(system, path, {TopicPartition("t", 1): 7})
    assert text_files.read_offset_checkpoint(system, path) == {TopicPartition("t", 1): 7}


def test_partition_metadata_is_kafkas_text(tmp_path: Path) -> None:
    system = OsFileSystem()
    assert text_files.read_partition_metadata(system, str(tmp_path)) is None
    text_files.write_partition_metadata(system, str(tmp_path), TOPIC_ID)
    text = (tmp_path / "partition.metadata").read_bytes()
    assert text == b"version: 0\ntopic_id: AAAAAAAAAAEAAAAAAAAAAg"
    assert text_files.read_partition_metadata(system, str(tmp_path)) == TOPIC_ID


def test_partition_metadata_with_a_line_end_and_a_later_version_is_read() -> None:
    text = b"version: 3\ntopic_id:  AAAAAAAAAAEAAAAAAAAAAg\n"
    assert text_files.decode_partition_metadata(text) == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"version: 0\n",
        b"version: -1\ntopic_id: AAAAAAAAAAEAAAAAAAAAAg",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: short",
        b"topic_id: AAAAAAAAAAEAAAAAAAAAAg\nversion: 0",
        b"version: 0\ntopic_id: AAAAAAAAAAEAAAAAAAAAAg\nmore: 1",
    ],
)
def test_damaged_partition_metadata_is_an_error(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_bytes(text)
    with pytest.raises(CorruptFile) as caught:
        text_files.read_partition_metadata(OsFileSystem(), str(tmp_path))
    assert caught.value.path == str(tmp_path / "partition.metadata")


def test_the_clean_shutdown_marker_is_taken_once(tmp_path: Path) -> None:
    system = OsFileSystem()
    assert not text_files.take_clean_shutdown(system, str(tmp_path))
    text_files.write_clean_shutdown(system, str(tmp_path))
    text = (tmp_path / ".kafka_cleanshutdown").read_bytes()
    assert text == b'{"version":0,"brokerEpoch":-1}'
    assert text_files.take_clean_shutdown(system, str(tmp_path))
    assert not text_files.take_clean_shutdown(system, str(tmp_path))


def test_an_empty_clean_shutdown_marker_counts(tmp_path: Path) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")
    assert text_files.take_clean_shutdown(OsFileSystem(), str(tmp_path))
