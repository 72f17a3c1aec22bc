"""Files of a broker at the top of its directory.

| file | content |
|---|---|
| `tidelog-cluster.json` | changed settings of brokers and groups; the broker's topic defaults |
| `tidelog-groups.json` | on a standby: offsets that groups have committed at the leader |
| `tidelog-producer-ids.json` | the first producer id after the blocks that were reserved |
| `tidelog-metadata.log` | users, ACLs and quotas, as record batches |

The JSON files are replaced atomically and are durable before the change is acknowledged; each has
`"version": 1`.

- Cluster: `{"quotas": [], "settings": {BROKER: {NAME: TEXT}}, "groups": {GROUP: {NAME: TEXT}},
  "topic_defaults": {NAME: TEXT}}`; BROKER is a number, or '' for all brokers. A tool that applies
  retention uses the topic defaults, so the tool deletes only records that the broker would also
  delete. `quotas` is always an empty list (decision 0019).
- Groups: `{"fetched_ms": MS, "topic_copied": BOOL (missing: false), "groups": {GROUP: [{"topic",
  "partition", "offset", "leader_epoch" (or null), "metadata"}]}}`. The leader's offsets are valid
  on the standby, because a record has the same offset in both logs.
- Producer ids: `{"next": ID}`, written before the first id of a block is used. If the broker is
  killed, at most the unused ids of a block are lost, and no id is assigned twice. If a directory
  with topics lacks the file, or if the file is damaged, ids start at a random number, because logs
  may contain earlier ids.
- Metadata log: batches of format 2 with offsets from 0 on. Each change is appended as one batch,
  which is synced before the change is acknowledged. A file in which most records are superseded is
  replaced by a shorter one. A torn last change after a hard stop was never acknowledged and is
  dropped; any other damage is an error, because a guess could change ACLs. The log is a single file
  and not a directory, because Kafka treats every subdirectory of a data directory as a partition,
  and `__cluster_metadata-0` may be the log of Kafka's own controller. See docs/decisions/0019.
"""

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tidelog.env import Env, FileSystem
from tidelog.errors import (
    CorruptBatch,
    CorruptFile,
    CorruptRecord,
    UnsupportedCompression,
    UnsupportedVersion,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.header import HEADER_SIZE
from tidelog.storage import files
from tidelog.storage.files import read_decoded, write_atomically
from tidelog.storage.text_files import Fields, read_versioned
from tidelog.types import INT64_MAX, Buffer, NewRecord

CLUSTER_FILE: Final = "tidelog-cluster.json"
CLUSTER_VERSION: Final = 1

# Key of the settings that apply to each broker, unless the broker has a value of its own.
ALL_BROKERS: Final = ""

# Parts of the entity that a quota is for, sorted by type: ("client-id", "app"), ("user", None).
Entity: TypeAlias = tuple[tuple[str, str | None], ...]

Quotas: TypeAlias = Mapping[Entity, Mapping[str, float]]
Settings: TypeAlias = Mapping[str, Mapping[str, str]]


class ClusterState(NamedTuple):
    """Contents of the cluster file, and the quotas, which the metadata log stores.

    Attributes:
        quotas: For each entity, quotas by Kafka's names.
        settings: For each broker's number or `ALL_BROKERS`, texts of settings by Kafka's names.
        groups: For each group, texts of settings by Kafka's names.
        topic_defaults: Default values of topic settings, as the directory's last broker used them
            (including changes at run time), by the names of broker settings; None if no broker
            stored them.
    """

    quotas: Quotas = MappingProxyType({})
    settings: Settings = MappingProxyType({})
    groups: Settings = MappingProxyType({})
    topic_defaults: Mapping[str, str] | None = None


def settings_of(state: ClusterState, broker: int) -> Mapping[str, str]:
    """Return a broker's changed settings: its own settings override settings of all brokers."""
    settings = state.settings
    return {**settings.get(ALL_BROKERS, {}), **settings.get(str(broker), {})}


def stored_defaults(state: ClusterState) -> Mapping[str, str]:
    """Return the topic defaults of the directory's broker, for programs other than the broker.

    If no broker stored its defaults, returns the topic defaults among the changed settings. Returns
    an empty mapping if these settings belong to several broker numbers (the broker was renumbered).
    """
    if state.topic_defaults is not None:
        return state.topic_defaults
    numbers = state.settings.keys() - {ALL_BROKERS}
    if len(numbers) > 1 or not state.settings:
        return {}
    # Imported here, because most calls return before they need this module.
    from tidelog.config.broker import TOPIC_DEFAULTS

    settings = settings_of(state, int(next(iter(numbers), 0)))
    return {name: text for name, text in settings.items() if name in TOPIC_DEFAULTS}


def with_defaults(state: ClusterState, defaults: Mapping[str, str]) -> ClusterState:
    """Return a state that stores a broker's defaults for topics.

    If there are neither defaults nor changed settings, stores no defaults, so that the directory
    needs no file.
    """
    noted = dict(defaults) if defaults or state.settings else None
    return state._replace(topic_defaults=noted)


def encode_cluster(state: ClusterState) -> bytes:
    """Encode a state as the text of a cluster file; brokers, groups and settings are sorted."""
    content = {
        "version": CLUSTER_VERSION,
        "quotas": [],
        "settings": _sorted(state.settings),
        "groups": _sorted(state.groups),
    }
    if state.topic_defaults is not None:
        content["topic_defaults"] = dict(sorted(state.topic_defaults.items()))
    text = json.dumps(content, indent=1, allow_nan=False)
    return f"{text}\n".encode("ascii")


def _sorted(settings: Settings) -> Settings:
    return {who: dict(sorted(texts.items())) for who, texts in sorted(settings.items())}


def decode_cluster(data: Buffer) -> ClusterState:
    """Decode the text of a cluster file.

    Raises:
        CorruptFile: The text is not a result of `encode_cluster`.
        UnsupportedVersion: A later release wrote the text.
    """
    content = read_versioned(data, CLUSTER_FILE, CLUSTER_VERSION).content
    settings = Fields.of(content.get("settings", {}), "`settings`").content
    groups = Fields.of(content.get("groups", {}), "`groups`").content
    if content.get("quotas") != []:
        raise CorruptFile("an empty list `quotas` expected")
    return ClusterState(
        settings={_broker(who): _texts(who, texts) for who, texts in settings.items()},
        groups={_group(who): _texts(who, texts) for who, texts in groups.items()},
        topic_defaults=_defaults(content.get("topic_defaults")),
    )


def _broker(who: str) -> str:
    if who == ALL_BROKERS or (who.isascii() and who.isdigit()):
        return who
    raise CorruptFile(f"settings of {who!r}; expected a broker's number")


def _group(who: str) -> str:
    if who:
        return who
    raise CorruptFile("settings of a group without a name")


def _texts(who: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not value:
        raise CorruptFile(f"settings of {who!r} are {value!r}, at least one setting expected")
    for name, text in value.items():
        if not isinstance(text, str):
            raise CorruptFile(f"{name} is {text!r}, a text expected")
    return value


def _defaults(value: object) -> Mapping[str, str] | None:
    return {} if value == {} else None if value is None else _texts("topic_defaults", value)


def read_cluster(fs: FileSystem, directory: str) -> ClusterState:
    """Read a directory's cluster file; return an empty state if there is no file.

    Raises:
        CorruptFile, UnsupportedVersion: `decode_cluster` refuses the text; the error has the path.
        OSError: A system call failed.
    """
    path = f"{directory}/{CLUSTER_FILE}"
    return files.read_decoded(fs, path, decode_cluster, ClusterState())


def read_stored_defaults(
    fs: FileSystem, directory: str, report: Callable[[str], None]
) -> Mapping[str, str]:
    """Return a directory's `stored_defaults`; an invalid file is reported and has no defaults.

    Without stored defaults, a topic without an age limit of its own keeps records of any age.

    Raises:
        OSError: A system call failed.
    """
    try:
        return stored_defaults(read_cluster(fs, directory))
    except (CorruptFile, UnsupportedVersion) as error:
        report(
            f"{error}; the broker's default settings for topics, such as its retention,"
            " are not known"
        )
        return {}


def write_cluster(fs: FileSystem, directory: str, state: ClusterState) -> None:
    """Replace a directory's cluster file, durably; on OSError the old or the new file exists."""
    files.write_atomically(fs, f"{directory}/{CLUSTER_FILE}", encode_cluster(state))


GROUPS_FILE: Final = "tidelog-groups.json"
GROUPS_VERSION: Final = 1


class GroupOffset(NamedTuple):
    """One commit: the offset of the next record that a group reads from a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class GroupOffsets(NamedTuple):
    """Committed offsets of all groups at one moment.

    Attributes:
        fetched_ms: Time in ms at which the offsets were fetched, by the standby's clock.
        groups: Commits by group.
        topic_copied: Whether the standby also copies `__consumer_offsets` itself.
    """

    fetched_ms: int
    groups: Mapping[str, Sequence[GroupOffset]]
    topic_copied: bool = False


def encode_group_offsets(offsets: GroupOffsets) -> bytes:
    """Encode commits as the text of a groups file, sorted by group, topic and partition."""
    groups = {
        name: [
            {
                "topic": commit.topic,
                "partition": commit.partition,
                "offset": commit.offset,
                "leader_epoch": commit.leader_epoch,
                "metadata": commit.metadata,
            }
            for commit in sorted(commits, key=lambda c: (c.topic, c.partition))
        ]
        for name, commits in sorted(offsets.groups.items())
    }
    content: dict[str, object] = {"version": GROUPS_VERSION, "fetched_ms": offsets.fetched_ms}
    if offsets.topic_copied:
        content["topic_copied"] = True
    content["groups"] = groups
    return f"{json.dumps(content, indent=1)}\n".encode("ascii")


def decode_group_offsets(data: Buffer) -> GroupOffsets:
    """Decode the text of a groups file.

    Raises:
        CorruptFile: The text is not a result of `encode_group_offsets`.
        UnsupportedVersion: A later release wrote the text.
    """
    content = read_versioned(data, GROUPS_FILE, GROUPS_VERSION)
    groups = Fields.of(content.value("groups"), "`groups`").content
    return GroupOffsets(
        content.integer("fetched_ms"),
        {name: _commits(name, entries) for name, entries in groups.items()},
        topic_copied=content.value("topic_copied") is True,
    )


def _commits(group: str, entries: object) -> list[GroupOffset]:
    if not isinstance(entries, list):
        raise CorruptFile(f"group {group[:80]!r}: a list of commits expected")
    return [_commit(group, entry) for entry in entries]


def _commit(group: str, entry: object) -> GroupOffset:
    match entry:
        case {
            "topic": str(topic),
            "partition": int(partition),
            "offset": int(offset),
            "leader_epoch": int() | None as epoch,
            "metadata": str(metadata),
        }:
            return GroupOffset(topic, partition, offset, epoch, metadata)
    raise CorruptFile(
        f"group {group[:80]!r}: a commit with a missing or invalid field: {str(entry)[:60]}"
    )


def read_group_offsets(files: FileSystem, directory: str) -> GroupOffsets | None:
    """Read the groups' commits in a directory; None if the directory has no groups file.

    Raises:
        CorruptFile, UnsupportedVersion: `decode_group_offsets` refuses the text; the error has the
            path.
        OSError: A system call failed.
    """
    path = posixpath.join(directory, GROUPS_FILE)
    return read_decoded(files, path, decode_group_offsets, None)


def write_group_offsets(files: FileSystem, directory: str, offsets: GroupOffsets) -> None:
    """Replace a directory's groups file; raises OSError."""
    write_atomically(files, posixpath.join(directory, GROUPS_FILE), encode_group_offsets(offsets))


PRODUCER_IDS_FILE: Final = "tidelog-producer-ids.json"
BLOCK_SIZE: Final = 1000
_VERSION: Final = 1

# Lower bound (inclusive) and upper bound (exclusive) of a random first id: above the ids that Kafka
# reaches in practice, and far enough below 2^53 that every JSON reader reads all later ids exactly.
_RANDOM_FIRST: Final = 1 << 40

_RANDOM_LAST: Final = 1 << 52


def encode_next(next_id: int) -> bytes:
    """Encode the text of the file of producer ids."""
    return f"{json.dumps({'version': _VERSION, 'next': next_id})}\n".encode()


def read_next(fs: FileSystem, directory: str) -> int | None:
    """Read the first producer id after the blocks that were reserved; None if there is no file.

    Raises:
        CorruptFile: The text is not a result of `encode_next`.
        UnsupportedVersion: A later release wrote the text.
        OSError: A system call failed.
    """
    return files.read_decoded(fs, f"{directory}/{PRODUCER_IDS_FILE}", _decode_next, None)


def _decode_next(data: bytes) -> int:
    next_id = read_versioned(data, PRODUCER_IDS_FILE, _VERSION).integer("next")
    if not 0 <= next_id < INT64_MAX:
        raise CorruptFile(f"next id {next_id}, 0 to {INT64_MAX - 1} expected")
    return next_id


def take_block(env: Env, directory: str, *, is_new: bool, first: int | None = None) -> range:
    """Reserve the next block of producer ids, durably; return it. Any thread may call this.

    Args:
        env: Files and randomness.
        directory: Directory of topics.
        is_new: True if the directory had no topics when its broker started. In this case, no log
            has a producer id of an earlier broker.
        first: First id after the last reserved block; None to read it from the file.

    Raises:
        UnsupportedVersion: A later release wrote the file.
        OSError: A system call failed; no id was assigned.
    """
    if first is None:
        first = _first_free(env, directory, is_new=is_new)
    block = range(first, first + BLOCK_SIZE)
    path = f"{directory}/{PRODUCER_IDS_FILE}"
    files.write_atomically(env.files, path, encode_next(block.stop))
    return block


def _first_free(env: Env, directory: str, *, is_new: bool) -> int:
    try:
        next_id = read_next(env.files, directory)
    except CorruptFile:
        is_new, next_id = False, None
    if next_id is not None:
        return next_id
    return 0 if is_new else env.random.randrange(_RANDOM_FIRST, _RANDOM_LAST)


METADATA_FILE: Final = "tidelog-metadata.log"

# Maximum number of records in each batch of a new file that replaces the old one. An appended
# change is always one batch, of any number of records.
_BATCH_RECORDS: Final = 1_000

_MAGIC: Final = 2

# Maximum size of a file that is read. The maximum number of users and rules needs far less than
# half of this size.
LIMIT_BYTES: Final = 1 << 30

# One ACL rule: resource type, resource name, pattern type, principal, host, operation, permission.
# The numbers are Kafka's codes.
AclRow: TypeAlias = tuple[int, str, int, str, str, int, int]


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Stored credential of a user's password, for one mechanism (RFC 5802).

    Attributes:
        salt: Bytes that are hashed with the password.
        iterations: Number of hash iterations.
        stored_key: Verifies a client's proof.
        server_key: Proves the server's identity.
    """

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class SecurityState(NamedTuple):
    """Users and rules of a directory's broker.

    Attributes:
        scram: Credentials by user and by the number of the SCRAM mechanism.
        acls: ACL rules, in any order.
    """

    scram: Mapping[tuple[str, int], ScramCredential] = MappingProxyType({})
    acls: frozenset[AclRow] = frozenset()


class MetadataFile:
    """The metadata log. Callers make one call at a time; no file is open between calls.

    Attributes:
        is_certain: Whether the file certainly ends with the last change that was written. If not,
            the file has to be replaced before the next change is appended.
        record_count: Number of records in the file.
    """

    def __init__(self, env: Env, directory: str) -> None:
        """Create the object without reading the file."""
        self.path = f"{directory}/{METADATA_FILE}"
        self._env = env
        self._end = 0
        self.record_count = 0
        self.is_certain = False

    def read(self, *, may_be_torn: bool) -> list[bytes] | None:
        """Read the records' values in order; None if there is no such file.

        Args:
            may_be_torn: Whether the file may end with an incomplete change after a hard stop.

        Raises:
            CorruptFile: The file is damaged; the error shows none of its content.
            OSError: A system call failed.
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
            raise CorruptFile("an incomplete or damaged change", path=self.path, position=self._end)
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
        """Append a change, durably; the file must exist, and `is_certain` must be true.

        Raises:
            OSError: It is unknown whether the change is in the file completely, partly or not at
                all; `is_certain` is then false.
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
        """Replace the file by a file with these values, durably.

        Raises:
            OSError: The old or the new file exists, complete; it is unknown which of them.
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
    """Return the complete, valid batch at a position of the file's bytes; None if there is none."""
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
    """Return the first whole change after the invalid bytes that begin at position `start`.

    Args:
        data: The file's bytes.
        start: Position of the invalid bytes.
        offset: Offset that a change at `start` would have.

    Returns:
        The batch of the later change. None if there is no later change: in this case, the bytes
        from `start` on may be one incomplete change.
    """
    # The bytes of a change begin with its offset, and later changes have larger offsets. The first
    # four bytes of an offset are zeros, so few positions are tried.
    zeros = bytes(4)
    at = data.find(zeros, start + 1)
    while at >= 0:
        batch = batch_at(data, at)
        if batch is not None and batch.base_offset > offset:
            return batch
        at = data.find(zeros, at + 1)
    return None
