"""`tidelog-metadata.log`: what a directory's broker keeps of its cluster, as a log in one file.

Record batches of format 2, one behind the other from offset 0 on. A batch is a change: it is synced
before anybody hears of it, and its CRC says whether it is there whole. When too much of it has been
overtaken the file is replaced by a new one, durably, that says the same in fewer records. What is
in the records is the business of who writes them.

After a hard stop the last change may be torn. It was never answered then, so it is left out, and
the file is replaced before it takes another one. Anything else that does not fit is damage:
nobody guesses what rules there were.

One file and no partition: a directory's only other place for records that Kafka leaves alone is
its own `__cluster_metadata-0`. See docs/decisions/0019.

Bytes: docs/format.md#text-files, beside the other files at the top.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

from tidelog.env import Env
from tidelog.errors import CorruptBatch, CorruptFile, CorruptRecord, UnsupportedCompression
from tidelog.record.batch import HEADER_SIZE, RecordBatch
from tidelog.record.builder import build_batch
from tidelog.storage import files
from tidelog.types import NewRecord

METADATA_FILE: Final = "tidelog-metadata.log"
# Records of one batch where a file is replaced; a change is one batch, however large.
_BATCH_RECORDS: Final = 1_000
_MAGIC: Final = 2
# Far above what all users and rules that are allowed take, twice.
LIMIT_BYTES: Final = 1 << 30

# Type, name, pattern, principal, host, operation, permission; the numbers as on the wire.
AclRow: TypeAlias = tuple[int, str, int, str, str, int, int]


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is kept of a user's password, for one mechanism (RFC 5802).

    Attributes:
        salt: Put before the password.
        iterations: How often it was hashed.
        stored_key: What a client's proof is checked by.
        server_key: What the server proves itself by.
    """

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecurityState:
    """Users and rules of a directory's broker.

    Attributes:
        scram: Credentials by user and the mechanism's number.
        acls: Rules, in any order.
    """

    scram: Mapping[tuple[str, int], ScramCredential] = field(default_factory=dict)
    acls: frozenset[AclRow] = frozenset()


class MetadataFile:
    """The file. One call at a time; holds no handle between calls.

    Attributes:
        is_certain: Whether it surely ends with the last change that was told to be written; before
            the next one it is to be replaced where not.
        record_count: How many records it has.
    """

    def __init__(self, env: Env, directory: str) -> None:
        """Nothing is read yet."""
        self.path = f"{directory}/{METADATA_FILE}"
        self._env = env
        self._end = 0
        self.record_count = 0
        self.is_certain = False

    def read(self, *, may_be_torn: bool) -> list[bytes] | None:
        """The records' values in order; None where there is no such file.

        Args:
            may_be_torn: Whether it may end with a change that a hard stop has cut.

        Raises:
            CorruptFile: It is damaged; no part of the content is shown.
            OSError: A call failed.
        """
        try:
            data = files.read_file(self._env.files, self.path, limit=LIMIT_BYTES)
        except FileNotFoundError:
            return None
        values: list[bytes] = []
        self._end = 0
        for batch in _whole_batches(data):
            values += self._values(batch, len(values))
            self._end += batch.size_bytes
        self.record_count = len(values)
        self.is_certain = self._end == len(data)
        is_torn = may_be_torn and next_change(data, self._end, len(values)) is None
        if not (self.is_certain or is_torn):
            raise CorruptFile("no whole change", path=self.path, position=self._end)
        return values

    def _values(self, batch: RecordBatch, offset: int) -> Iterator[bytes]:
        try:
            if batch.base_offset != offset or batch.is_control:
                raise CorruptFile("a batch out of order", path=self.path, position=batch.at)
            for record in batch.records(check_crc=False):
                if record.value is None:
                    raise CorruptFile("a record without a value", path=self.path, position=batch.at)
                yield record.value
        except (CorruptBatch, CorruptRecord, UnsupportedCompression):
            text = "records that can't be read"
            raise CorruptFile(text, path=self.path, position=batch.at) from None

    def append(self, values: Sequence[bytes]) -> None:
        """Write a change, durably; the file must be there, and certain.

        Raises:
            OSError: It may be there or not, in part or whole: the file is not certain any more.
        """
        assert self.is_certain
        assert values
        batch = self._batch(values, self.record_count)
        self.is_certain = False
        file = self._env.files.open(self.path, write=True)
        try:
            files.write_fully(file, batch, self._end)
            file.sync()
        finally:
            file.close()
        self._is_now(self._end + len(batch), self.record_count + len(values))

    def replace(self, values: Iterable[bytes]) -> None:
        """Replace the file, durably.

        Raises:
            OSError: The old one or the new one is there, whole, and it is not certain which.
        """
        data, count, rest = bytearray(), 0, iter(values)
        while some := list(islice(rest, _BATCH_RECORDS)):
            data += self._batch(some, count)
            count += len(some)
        self.is_certain = False
        files.write_atomically(self._env.files, self.path, data)
        self._is_now(len(data), count)

    def _batch(self, values: Sequence[bytes], offset: int) -> bytearray:
        now_ms = self._env.clock.now_ms()
        records = [NewRecord(value=value, timestamp=now_ms) for value in values]
        return build_batch(records, base_offset=offset, leader_epoch=0)

    def _is_now(self, size: int, count: int) -> None:
        self._end, self.record_count, self.is_certain = size, count, True


def batch_at(data: bytes, at: int) -> RecordBatch | None:
    """The batch that is at a place of the file's bytes, whole; None for anything else."""
    if len(data) - at < HEADER_SIZE:
        return None
    batch = RecordBatch(data, at)
    is_there = HEADER_SIZE <= batch.size_bytes <= len(data) - at and batch.magic == _MAGIC
    return batch if is_there and batch.is_valid() else None


def _whole_batches(data: bytes) -> Iterator[RecordBatch]:
    at = 0
    while (batch := batch_at(data, at)) is not None:
        yield batch
        at += batch.size_bytes


def next_change(data: bytes, start: int, offset: int) -> RecordBatch | None:
    """The first whole change behind what is none, at `start` in place of the one at `offset`.

    Where there is none, what begins there can be one change that was cut.
    """
    # A later change has a larger offset; its first bytes are zeros, so few places are looked at.
    zeros = bytes(4)
    at = data.find(zeros, start + 1)
    while at >= 0:
        batch = batch_at(data, at)
        if batch is not None and batch.base_offset > offset:
            return batch
        at = data.find(zeros, at + 1)
    return None
