"""Names of files and directories, small text files, and loops over short writes.

Over 400 lines because the names and the small files that carry them are looked up together.

Owns how a directory of topics is spelled, and the text files beside the segments: checkpoints,
`partition.metadata`, the clean shutdown marker (`meta.properties` has its own module).
The epochs of `leader-epoch-checkpoint` are in `epochs`, which shares `encode_checkpoint`.

Source: Kafka 4.x LogFileUtils, CheckpointFile, PartitionMetadataFile; docs/format.md#text-files.
"""

import base64
import errno
import posixpath
import random
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidelog.env import MAX_BUFFERS_PER_WRITE, File, FileSystem
from tidelog.errors import CorruptFile, InvalidTopic
from tidelog.types import INT32_MAX, INT64_MAX, Buffer, TopicPartition

# Where controllers of Kafka keep their records; it may lie among the partitions of a broker.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
APPEND_TIME_SUFFIX: Final = ".appendtime"
ZONES_SUFFIX: Final = ".zones"

# Put behind the whole name, e.g. `00000000000000000000.timeindex.swap`.
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
TMP_SUFFIX: Final = ".tmp"
REMOVED_SUFFIX: Final = ".removed"  # of what `commits.overlay` says is gone

# The files of one segment that are named by its base offset.
SEGMENT_SUFFIXES: Final = (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    APPEND_TIME_SUFFIX,
    ZONES_SUFFIX,
)

LOCK_FILE: Final = ".lock"
LEADER_EPOCH_CHECKPOINT_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
APPEND_TIME_CHECKPOINT_FILE: Final = "append-time-checkpoint"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT_FILE: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT_FILE: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT_FILE: Final = "cleaner-offset-checkpoint"

CHECKPOINT_VERSION: Final = 0
PARTITION_METADATA_VERSION: Final = 0
# What Kafka reads at start; -1 says that no KRaft controller knows this start.
CLEAN_SHUTDOWN_TEXT: Final = b'{"version":0,"brokerEpoch":-1}'

TOPIC_NAME_LIMIT: Final = 249

# A small file of ours is never larger; a directory of 100,000 partitions needs some 30 MB.
SMALL_FILE_LIMIT_BYTES: Final = 64 * 1024 * 1024

_FILE_NAME: Final = re.compile(r"([0-9]{20})(\.[a-z]+(?:\.[a-z]+)*)", re.ASCII)
_PARTITION_DIR: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", re.ASCII)
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
# Kafka keeps these for "no id" and for its own metadata topic.
_RESERVED_IDS: Final = (uuid.UUID(int=0), uuid.UUID(int=1))


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's file, e.g. `00000000000000000042.timeindex`."""
    assert 0 <= base_offset <= INT64_MAX
    return f"{base_offset:020d}{suffix}"


def log_file_name(base_offset: int) -> str:
    """The name of a segment's log file."""
    return file_name(base_offset, LOG_SUFFIX)


def parse_file_name(name: str) -> tuple[int, str] | None:
    """The base offset and the whole suffix (`.index`, `.index.deleted`), None for another name."""
    found = _FILE_NAME.fullmatch(name)
    if found is None or int(found[1]) > INT64_MAX:
        return None
    return int(found[1]), found[2]


def partition_dir_name(partition: TopicPartition) -> str:
    """The name of a partition's directory, e.g. `flights-0`."""
    return str(partition)


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The partition that a directory holds; None for other names and `-delete`, `-stray`, ..."""
    found = _PARTITION_DIR.fullmatch(name)
    if found is None or int(found[2]) > INT32_MAX or found[1] in (".", ".."):
        return None
    return TopicPartition(found[1], int(found[2]))


def check_topic_name(name: str) -> None:
    """Refuse a name that Kafka would refuse.

    Raises:
        InvalidTopic: The name is empty, `.` or `..`, too long, or has a character that is not an
            ASCII letter or digit, `.`, `_` or `-`.
    """
    if not name or name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r}: a name can't be empty, '.' or '..'")
    if len(name) > TOPIC_NAME_LIMIT:
        raise InvalidTopic(f"topic name {name[:40]!r}...: over {TOPIC_NAME_LIMIT} characters")
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopic(f"topic name {name!r}: only ASCII letters, digits, '.', '_' and '-'")


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """A topic id as Kafka prints it: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def decode_topic_id(text: str) -> uuid.UUID:
    """The topic id that `encode_topic_id` wrote.

    Raises:
        CorruptFile: Not 22 characters of URL-safe base64 that stand for 16 bytes.
    """
    if _TOPIC_ID.fullmatch(text) is None:
        raise CorruptFile(f"topic id {text[:40]!r}: 22 characters of URL-safe base64 expected")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def random_topic_id(source: random.Random) -> uuid.UUID:
    """A new topic id: never reserved, and never with a leading `-`, which tools take for an option.

    Source: Kafka 4.x Uuid.randomUuid.
    """
    while True:
        drawn = uuid.UUID(int=source.getrandbits(128), version=4)
        if drawn not in _RESERVED_IDS and not encode_topic_id(drawn).startswith("-"):
            return drawn


def is_reserved_topic_id(topic_id: uuid.UUID) -> bool:
    """Whether Kafka keeps the id for itself, so that no topic on disk may have it."""
    return topic_id in _RESERVED_IDS


def write_fully(file: File, data: Buffer, position: int) -> None:
    """Write all of `data` at `position`, however often the system stops short.

    Raises:
        OSError: A call failed or wrote nothing; a prefix of `data` may be in the file.
    """
    written = file.pwrite(data, position)
    if written != len(data):
        write_rest(file, data, position, written)


def write_rest(file: File, data: Buffer, position: int, written: int) -> None:
    """Go on where the system has stopped short after so many bytes; see `write_fully`."""
    view = memoryview(data).cast("B")
    done = _progress(written, len(view))
    while done < len(view):
        done += _progress(file.pwrite(view[done:], position + done), len(view) - done)


def writev_fully(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write all buffers back to back at `position`; how many bytes that is.

    Raises:
        OSError: A call failed or wrote nothing; a prefix of the bytes may be in the file.
    """
    start = position
    for first in range(0, len(buffers), MAX_BUFFERS_PER_WRITE):
        group = [buffer for buffer in buffers[first : first + MAX_BUFFERS_PER_WRITE] if len(buffer)]
        position += _writev_group(file, group, position)
    return position - start


def _writev_group(file: File, buffers: list[Buffer], position: int) -> int:
    size = sum(map(len, buffers))
    written = _progress(file.pwritev(buffers, position), size) if size else 0
    if written == size:
        return size
    rest = position
    for buffer in buffers:
        skipped = min(len(buffer), written)
        written -= skipped
        if skipped < len(buffer):
            write_fully(file, memoryview(buffer).cast("B")[skipped:], rest + skipped)
        rest += len(buffer)
    return size


def _progress(written: int, wanted: int) -> int:
    """`written`, or an error where nothing was: going on would loop for ever."""
    if wanted and written <= 0:
        raise OSError(errno.EIO, f"a write of {wanted} bytes wrote nothing")
    return written


def read_exactly(file: File, size: int, position: int) -> bytes:
    """Exactly `size` bytes from `position`.

    Raises:
        CorruptFile: The file ends before.
        OSError: The call failed.
    """
    data = file.pread(size, position)
    if len(data) < size:
        reason = f"the file ends after {len(data)} of {size} bytes wanted"
        raise CorruptFile(reason, at=position, position=position)
    return data


def read_file(files: FileSystem, path: str, *, limit: int = SMALL_FILE_LIMIT_BYTES) -> bytes:
    """All bytes of a small file.

    Raises:
        CorruptFile: The file is larger than `limit` bytes.
        OSError: No such file, or a call failed.
    """
    file = files.open(path)
    try:
        size = file.size()
        if size > limit:
            raise CorruptFile(f"{size} bytes, at most {limit} expected", path=path)
        return file.pread(size, 0)
    finally:
        file.close()


def write_atomically(
    fs: FileSystem, path: str, data: Buffer, *, sync_name: bool = True, is_durable: bool = True
) -> None:
    """Give `path` new content so that a crash leaves the old or the new one, whole and durable.

    Written to `path` + `.tmp`, synced, renamed; the directory is synced then if `sync_name`. Raises
    OSError where a call fails; `path` has its old or its new content. What need not be durable a
    loss of power may leave torn.
    """
    temporary = path + TMP_SUFFIX
    file = fs.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        write_fully(file, data, 0)
        if is_durable:
            file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    if sync_name and is_durable:
        fs.sync_dir(posixpath.dirname(path) or ".")


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    """Kafka's checkpoint text: the version, the number of entries, one line for each entry."""
    entries = list(lines)
    return "".join(
        f"{line}\n" for line in (str(CHECKPOINT_VERSION), str(len(entries)), *entries)
    ).encode()


def decode_checkpoint(data: Buffer, field_count: int) -> list[list[str]]:
    """The fields of each entry of a checkpoint text; an empty text has no entries.

    Raises:
        CorruptFile: Not UTF-8, another version, a wrong number of entries or fields.
    """
    lines = decode_text(data).split("\n")
    if lines == [""]:
        return []
    if lines.pop() != "":
        raise CorruptFile(f"checkpoint: no line end at the end, {len(data)} bytes")
    if parse_number(lines[0], "checkpoint version") != CHECKPOINT_VERSION:
        raise CorruptFile(f"checkpoint version {lines[0][:20]!r}, {CHECKPOINT_VERSION} expected")
    count = parse_number(lines[1] if len(lines) > 1 else "", "number of entries")
    entries = [line.split() for line in lines[2:]]
    if len(entries) != count:
        raise CorruptFile(f"checkpoint of {count} entries has {len(entries)}")
    for fields in entries:
        if len(fields) != field_count:
            raise CorruptFile(f"checkpoint line {' '.join(fields)[:80]!r}: {field_count} fields")
    return entries


def parse_number(text: str, what: str) -> int:
    """The whole number that `text` is; `what` names it in the error.

    Raises:
        CorruptFile: Anything but an ASCII number that fits into an int64.
    """
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) is None or abs(int(text)) > INT64_MAX:
        raise CorruptFile(f"{what} {text[:40]!r}: a whole number expected")
    return int(text)


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of an offset checkpoint: `topic partition offset` in the mapping's order."""
    return encode_checkpoint(
        f"{place.topic} {place.partition} {offset}" for place, offset in offsets.items()
    )


def decode_offset_checkpoint(data: Buffer) -> dict[TopicPartition, int]:
    """The offsets that `encode_offset_checkpoint` wrote; raises CorruptFile."""
    offsets = {}
    for topic, partition, offset in decode_checkpoint(data, 3):
        place = TopicPartition(topic, parse_number(partition, "partition"))
        offsets[place] = parse_number(offset, "offset")
    return offsets


def read_offset_checkpoint(files: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint file, none where there is no such file.

    Raises:
        CorruptFile: The text breaks its rules. Kafka then goes on as if it were empty.
    """
    try:
        return decode_offset_checkpoint(read_file(files, path))
    except FileNotFoundError:
        return {}
    except CorruptFile as error:
        raise error.located(path) from error


def write_offset_checkpoint(
    files: FileSystem, path: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace a checkpoint file atomically."""
    write_atomically(files, path, encode_offset_checkpoint(offsets))


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """The text of `partition.metadata`; without a line end, as Kafka writes it."""
    assert topic_id.int != 0
    text = f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {encode_topic_id(topic_id)}"
    return text.encode()


def decode_partition_metadata(data: Buffer) -> uuid.UUID:
    """The topic id in a `partition.metadata`.

    Raises:
        CorruptFile: Another shape, a negative version, or the id of all zeros.
    """
    found = re.fullmatch(
        r"version:\s+([0-9]{1,9})\s*\ntopic_id:\s+(\S+)\s*", decode_text(data), re.ASCII
    )
    if found is None:
        raise CorruptFile("'version: N' and 'topic_id: ID' expected, a line each")
    topic_id = decode_topic_id(found[2])
    if topic_id.int == 0:
        raise CorruptFile("the topic id is all zeros")
    return topic_id


def read_partition_metadata(files: FileSystem, directory: str) -> uuid.UUID | None:
    """The topic id of a partition's directory, None where it has no `partition.metadata`."""
    path = posixpath.join(directory, PARTITION_METADATA_FILE)
    try:
        return decode_partition_metadata(read_file(files, path))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise error.located(path) from error


def write_partition_metadata(
    files: FileSystem,
    directory: str,
    topic_id: uuid.UUID,
    *,
    sync_name: bool = True,
    is_durable: bool = True,
) -> None:
    """Write a directory's `partition.metadata`; see `write_atomically`."""
    path, data = f"{directory}/{PARTITION_METADATA_FILE}", encode_partition_metadata(topic_id)
    write_atomically(files, path, data, sync_name=sync_name, is_durable=is_durable)


def write_clean_shutdown(files: FileSystem, directory: str) -> None:
    """Mark a log directory as shut down cleanly: the last step of closing it."""
    write_atomically(files, posixpath.join(directory, CLEAN_SHUTDOWN_FILE), CLEAN_SHUTDOWN_TEXT)


def take_clean_shutdown(files: FileSystem, directory: str) -> bool:
    """Whether the marker was there; it is removed durably, before anything is loaded.

    Only its being there counts: old brokers wrote it empty. Source: KAFKA-10471.
    """
    path = posixpath.join(directory, CLEAN_SHUTDOWN_FILE)
    try:
        files.remove(path)
    except FileNotFoundError:
        return False
    files.sync_dir(directory)
    return True


def decode_text(data: Buffer) -> str:
    """The text of UTF-8 bytes; raises CorruptFile for anything else."""
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise CorruptFile("not UTF-8", at=error.start) from error
