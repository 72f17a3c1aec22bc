"""File and directory names, topic names and ids, and functions that read and write files.

The names of a log's segment files are in `log_files`. The content of small text files is defined in
`text_files`, or in a module for one kind of file.

Source: Kafka 4.x LogFileUtils; docs/format.md.
"""

import base64
import errno
import posixpath
import random
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from tidelog.env import MAX_BUFFERS_PER_WRITE, Env, File, FileSystem, NotRegularFile
from tidelog.errors import CorruptFile, InvalidTopic, MissingFile, UnsupportedVersion
from tidelog.types import INT32_MAX, Buffer, TopicPartition

_Content = TypeVar("_Content")
_Missing = TypeVar("_Missing")

# Name of the controllers' metadata log in Kafka; a broker's directory may contain it.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

# Suffix of a file that `write_atomically` renames to its final name.
TMP_SUFFIX: Final = ".tmp"

LOCK_FILE: Final = ".lock"

# File that reserves disk space for a directory's small files. If the disk is full, the reserve file
# is removed, because commands that free disk space must first write small files.
RESERVE_FILE: Final = "tidelog-reserve"

RESERVE_BYTES: Final = 256 * 1024
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LEADER_EPOCH_CHECKPOINT_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
APPEND_TIME_CHECKPOINT_FILE: Final = "append-time-checkpoint"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT_FILE: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT_FILE: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT_FILE: Final = "cleaner-offset-checkpoint"
TOPICS_FILE: Final = "tidelog-topics.json"
TOPIC_NAME_LIMIT: Final = 249

# Maximum size of a small file in bytes. The largest small file of a directory with 100,000
# partitions has some 30 MB.
SMALL_FILE_LIMIT_BYTES: Final = 64 * 1024 * 1024

_PARTITION_DIR: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", re.ASCII)
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)

# Kafka reserves these ids for "no id" and for its own metadata topic.
_RESERVED_IDS: Final = (uuid.UUID(int=0), uuid.UUID(int=1))


def partition_dir_name(partition: TopicPartition) -> str:
    """Return the name of a partition's directory, e.g. `flights-0`."""
    return str(partition)


def parse_partition_dir(name: str) -> TopicPartition | None:
    """Return the partition of a partition directory's name, None for other names.

    Return None also for a name that ends with `-delete` or `-stray`.
    """
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or int(match[2]) > INT32_MAX or match[1] in (".", ".."):
        return None
    return TopicPartition(match[1], int(match[2]))


def check_topic_name(name: str) -> None:
    """Raise an error for a name that Kafka would refuse.

    Raises:
        InvalidTopic: The name is empty, `.` or `..`, too long, or has a character that is not an
            ASCII letter or digit, `.`, `_` or `-`.
    """
    if not name or name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r}: a name can't be empty, '.' or '..'")
    if len(name) > TOPIC_NAME_LIMIT:
        raise InvalidTopic(f"topic name {name[:40]!r}...: more than {TOPIC_NAME_LIMIT} characters")
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopic(
            f"topic name {name!r}: only ASCII letters, digits, '.', '_' and '-' are allowed"
        )


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Encode a topic id as Kafka prints it: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def decode_topic_id(text: str) -> uuid.UUID:
    """Decode the result of `encode_topic_id`.

    Raises:
        CorruptFile: The text is not 22 characters of URL-safe base64.
    """
    if _TOPIC_ID.fullmatch(text) is None:
        raise CorruptFile(f"topic id {text[:40]!r}: 22 characters of URL-safe base64 expected")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def random_topic_id(source: random.Random) -> uuid.UUID:
    """Draw a topic id that is not reserved, and whose text does not begin with `-`.

    In a command line, a topic id that begins with `-` would look like an option.

    Source: Kafka 4.x Uuid.randomUuid.
    """
    while True:
        drawn = uuid.UUID(int=source.getrandbits(128), version=4)
        if drawn not in _RESERVED_IDS and not encode_topic_id(drawn).startswith("-"):
            return drawn


# If the last change of a directory is older than this number of ms, the next change is certain to
# change the directory's modification time. The number is larger than the time resolution of any
# file system (2 s on FAT). A modification time with a fraction of a second comes from the system's
# clock, which ticks every 10 ms; for such a time, `SETTLED_FINE_MS` is long enough.
SETTLED_MS: Final = 3_000

SETTLED_FINE_MS: Final = 100

# A directory's modification time in ms, and the directory's identity.
FolderStamp = tuple[int, tuple[int, int]]


def settled_stamp(env: Env, folder: str) -> FolderStamp | None:
    """Return a value that changes whenever the entries of a directory change.

    Return None if a change of the entries might leave the value unchanged.

    The value contains the directory's modification time, which changes when an entry is added,
    renamed or removed. But the file system stores this time with a limited resolution. If two
    changes follow each other within the resolution, the second change may leave the time unchanged.
    So the function returns None shortly after a change, and always for an object store. Call this
    function before the directory's entries are read.
    """
    status = env.files.stat(folder)
    # If the file system's clock is ahead of `env.clock`, the modification time may look recent or
    # be in the future. The result is None also in this case.
    age_ms = SETTLED_FINE_MS if status.mtime_ms % 1_000 else SETTLED_MS
    if 0 < status.mtime_ms <= env.clock.now_ms() - age_ms:
        return status.mtime_ms, status.identity
    return None


def write_fully(file: File, data: Buffer, position: int) -> None:
    """Write all of `data` at `position`; continue after short writes.

    Raises:
        OSError: A call failed or wrote nothing; a prefix of `data` may be in the file.
    """
    written = file.pwrite(data, position)
    if written != len(data):
        write_rest(file, data, position, written)


def write_rest(file: File, data: Buffer, position: int, written: int) -> None:
    """Continue after a short write of `written` bytes; see `write_fully`."""
    view = memoryview(data).cast("B")
    done = _progress(written, len(view))
    while done < len(view):
        done += _progress(file.pwrite(view[done:], position + done), len(view) - done)


def writev_fully(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write all buffers one after the other at `position`; return the number of bytes.

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


def _progress(written: int, requested: int) -> int:
    """Return `written`; raise if nothing was written, because repeating could loop forever."""
    if requested and written <= 0:
        raise OSError(errno.EIO, f"a write of {requested} bytes wrote nothing")
    return written


def read_exactly(file: File, size: int, position: int) -> bytes:
    """Read exactly `size` bytes from `position`.

    Raises:
        CorruptFile: The file is shorter.
        OSError: The call failed.
    """
    data = file.pread(size, position)
    if len(data) < size:
        reason = f"the file ends after {len(data)} of {size} requested bytes"
        raise CorruptFile(reason, at=position, position=position)
    return data


def read_file(files: FileSystem, path: str, *, limit: int = SMALL_FILE_LIMIT_BYTES) -> bytes:
    """Read all bytes of a small file.

    Raises:
        CorruptFile: The file is larger than `limit` bytes or is not a regular file.
        OSError: The file does not exist, or a call failed.
    """
    try:
        file = files.open(path)
    except NotRegularFile as error:
        raise CorruptFile(f"{error.strerror}", path=path) from error
    try:
        size = file.size()
        if size > limit:
            raise CorruptFile(f"{size} bytes, at most {limit} expected", path=path)
        return file.pread(size, 0)
    finally:
        file.close()


def read_decoded(
    fs: FileSystem,
    path: str,
    decode: Callable[[bytes], _Content],
    missing: _Missing,
    *,
    limit: int = SMALL_FILE_LIMIT_BYTES,
) -> "_Content | _Missing":
    """Read and decode a small file; return `missing` if there is no such file.

    Raises:
        CorruptFile, UnsupportedVersion: `read_file` or `decode` refuses the file; the error has the
            path. Other errors of `decode` are raised unchanged.
        MissingFile: The path names an object of a tier that the store does not have.
        OSError: A call failed.
    """
    try:
        return decode(read_file(fs, path, limit=limit))
    except MissingFile:
        raise  # the tier's manifest lists this object, so its content is lost
    except FileNotFoundError:
        return missing
    except CorruptFile as error:
        raise error.located(path) from error
    except UnsupportedVersion as error:
        raise UnsupportedVersion(error.reason, path=path) from error


def write_atomically(
    fs: FileSystem, path: str, data: Buffer, *, sync_name: bool = True, is_durable: bool = True
) -> None:
    """Replace the content of `path`; after a crash, `path` has the whole old or new content.

    Write `path` + `.tmp`, sync this file, and rename it to `path`. If `sync_name` is true, sync the
    directory after the rename. Raises OSError if a call fails; after an error, `path` has its old
    or its new content. If `is_durable` is false, nothing is synced, and a power loss may leave a
    torn file. If the disk is full, the directory's reserve file is removed and the write is
    repeated, because freeing disk space may require this write.
    """
    try:
        _write_once(fs, path, data, sync_name=sync_name, is_durable=is_durable)
    except OSError as error:
        if error.errno not in NO_ROOM or not _spend_reserve(fs, posixpath.dirname(path) or "."):
            raise
        _write_once(fs, path, data, sync_name=sync_name, is_durable=is_durable)


def keep_reserve(fs: FileSystem, directory: str) -> None:
    """Create a directory's reserve file unless it exists or the disk is full. Raises OSError."""
    path = f"{directory}/{RESERVE_FILE}"
    if fs.exists(path) and fs.stat(path).size == RESERVE_BYTES:
        return
    try:
        _write_once(fs, path, b"\1" * RESERVE_BYTES, sync_name=False, is_durable=True)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        with suppress(FileNotFoundError):
            fs.remove(path + TMP_SUFFIX)


def _spend_reserve(fs: FileSystem, directory: str) -> bool:
    """Remove a directory's reserve file; return whether it was removed."""
    try:
        fs.remove(f"{directory}/{RESERVE_FILE}")
    except OSError:
        return False
    return True


def _write_once(
    fs: FileSystem, path: str, data: Buffer, *, sync_name: bool, is_durable: bool
) -> None:
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
