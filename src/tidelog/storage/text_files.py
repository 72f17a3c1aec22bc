"""Kafka's small text files, and typed fields of JSON files.

Encodes, decodes, reads and writes checkpoints, `partition.metadata`, the mark of a clean stop
`.kafka_cleanshutdown`, and `meta.properties`. Version 1 of `meta.properties` has `cluster.id`,
`node.id` and usually `directory.id`; version 0 had `broker.id`. `storage.log.leader_epochs` decodes
the epochs of `leader-epoch-checkpoint`. A JSON value of the wrong type raises CorruptFile with the
value's name.

Source: Kafka 4.x CheckpointFile, PartitionMetadataFile, MetaProperties; docs/format.md#text-files.
"""

import json
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from tidelog.amounts import plural
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage.files import (
    CLEAN_SHUTDOWN_FILE,
    PARTITION_METADATA_FILE,
    decode_topic_id,
    encode_topic_id,
    read_decoded,
    read_file,
    write_atomically,
)
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP, Buffer, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")

CHECKPOINT_VERSION: Final = 0
PARTITION_METADATA_VERSION: Final = 0

# File of tidelog (not of Kafka) that contains one time. Append times that are ahead of the
# machine's clock are accepted up to this time, inclusive.
ACCEPTED_CLOCK_FILE: Final = "tidelog-accepted-clock"

# Content of the mark of a clean stop, which Kafka reads when it starts. The broker epoch -1 means
# that no KRaft controller has assigned an epoch.
CLEAN_SHUTDOWN_TEXT: Final = b'{"version":0,"brokerEpoch":-1}'


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    """Encode Kafka's checkpoint text: version, number of entries, one line for each entry."""
    entries = list(lines)
    return "".join(
        f"{line}\n" for line in (str(CHECKPOINT_VERSION), str(len(entries)), *entries)
    ).encode()


def decode_checkpoint(data: Buffer, *field_counts: int) -> list[list[str]]:
    """Decode the fields of each entry of a checkpoint's text; an empty text has no entries.

    Args:
        data: The text.
        field_counts: Allowed numbers of fields of an entry.

    Raises:
        CorruptFile: The text is not UTF-8, its last line has no line end, its version is not
            supported, or it has a wrong number of entries or fields.
    """
    lines = decode_text(data).split("\n")
    if lines == [""]:
        return []
    if lines.pop() != "":
        raise CorruptFile("checkpoint: its last line has no line end")
    if parse_number(lines[0], "checkpoint version") != CHECKPOINT_VERSION:
        raise CorruptFile(f"checkpoint version {lines[0][:20]!r}, {CHECKPOINT_VERSION} expected")
    count = parse_number(lines[1] if len(lines) > 1 else "", "number of entries")
    entries = [line.split() for line in lines[2:]]
    if len(entries) != count:
        raise CorruptFile(
            f"checkpoint declares {plural(count, 'entry', 'entries')}, but has {len(entries)}"
        )
    for entry in entries:
        if len(entry) not in field_counts:
            numbers = " or ".join(map(str, field_counts))
            raise CorruptFile(
                f"checkpoint line {' '.join(entry)[:80]!r}: {numbers} fields expected"
            )
    return entries


def parse_number(text: str, what: str) -> int:
    """Parse a whole number; `what` names it in the error.

    Raises:
        CorruptFile: The text is not an ASCII number that fits into an int64.
    """
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) is None or abs(int(text)) > INT64_MAX:
        raise CorruptFile(f"{what} {text[:40]!r}: a whole number expected")
    return int(text)


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode an offset checkpoint: lines `topic partition offset` in the mapping's order."""
    return encode_checkpoint(
        f"{name.topic} {name.partition} {offset}" for name, offset in offsets.items()
    )


def decode_offset_checkpoint(data: Buffer) -> dict[TopicPartition, int]:
    """Decode the result of `encode_offset_checkpoint`.

    Raises:
        CorruptFile: The text is invalid, or an offset can't be the end of a log.
    """
    offsets = {}
    for topic, partition, offset in decode_checkpoint(data, 3):
        name = TopicPartition(topic, parse_number(partition, "partition"))
        offsets[name] = parse_number(offset, "offset")
        if not 0 <= offsets[name] < INT64_MAX:
            raise CorruptFile(
                f"offset {offset} of {name}: 0 to {INT64_MAX - 1} expected, since one more record"
                " must have an offset"
            )
    return offsets


def read_offset_checkpoint(files: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Read the offsets in a checkpoint file; return no offsets if there is no such file.

    Raises:
        CorruptFile: The text is invalid. Kafka would continue as if the file were empty.
    """
    return read_decoded(files, path, decode_offset_checkpoint, {})


def write_offset_checkpoint(
    files: FileSystem, path: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace a checkpoint file atomically."""
    write_atomically(files, path, encode_offset_checkpoint(offsets))


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Encode the text of `partition.metadata`; like Kafka's, it has no final line end."""
    assert topic_id.int != 0
    text = f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {encode_topic_id(topic_id)}"
    return text.encode()


def decode_partition_metadata(data: Buffer) -> uuid.UUID:
    """Decode the topic id in a `partition.metadata`.

    Raises:
        CorruptFile: The structure is invalid, the version is negative, or the id consists of zeros.
    """
    match = re.fullmatch(
        r"version:\s+([0-9]{1,9})\s*\ntopic_id:\s+(\S+)\s*", decode_text(data), re.ASCII
    )
    if match is None:
        raise CorruptFile("'version: N' and 'topic_id: ID' expected, a line each")
    topic_id = decode_topic_id(match[2])
    if topic_id.int == 0:
        raise CorruptFile("the topic id is all zeros")
    return topic_id


def read_partition_metadata(files: FileSystem, directory: str) -> uuid.UUID | None:
    """Read the topic id of a partition's directory, None if it has no `partition.metadata`."""
    path = posixpath.join(directory, PARTITION_METADATA_FILE)
    return read_decoded(files, path, decode_partition_metadata, None)


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


def read_accepted_clock(files: FileSystem, directory: str, report: Callable[[str], None]) -> int:
    """Return up to which append time, in ms, a log directory accepts times ahead of the clock.

    The result is -1 if there is no such file. A damaged file is reported and counts as -1.
    """
    try:
        data = read_file(files, posixpath.join(directory, ACCEPTED_CLOCK_FILE))
        ((text,),) = decode_checkpoint(data, 1)
        return parse_number(text, "accepted append time")
    except FileNotFoundError:
        return NO_TIMESTAMP
    except (CorruptFile, ValueError) as error:
        report(f"{ACCEPTED_CLOCK_FILE}: {error}; if the clock was accepted, accept it again")
        return NO_TIMESTAMP


def write_accepted_clock(files: FileSystem, directory: str, accepted_ms: int) -> None:
    """Store durably up to which append time, in ms, times ahead of the clock are accepted."""
    path = posixpath.join(directory, ACCEPTED_CLOCK_FILE)
    write_atomically(files, path, encode_checkpoint([str(accepted_ms)]))


def write_clean_shutdown(files: FileSystem, directory: str) -> None:
    """Write the mark of a clean stop to a log directory, as the last step of closing it."""
    write_atomically(files, posixpath.join(directory, CLEAN_SHUTDOWN_FILE), CLEAN_SHUTDOWN_TEXT)


def take_clean_shutdown(files: FileSystem, directory: str) -> bool:
    """Remove the mark of a clean stop durably, before loading; return whether it existed.

    The mark's content is ignored, because old brokers wrote an empty mark. Source: KAFKA-10471.
    """
    path = posixpath.join(directory, CLEAN_SHUTDOWN_FILE)
    try:
        files.remove(path)
    except FileNotFoundError:
        return False
    files.sync_dir(directory)
    return True


def decode_text(data: Buffer) -> str:
    """Decode UTF-8 bytes; raises CorruptFile if they are invalid."""
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise CorruptFile("not UTF-8", at=error.start) from error


META_PROPERTIES_FILE: Final = "meta.properties"


def encode_meta_properties(properties: Mapping[str, str]) -> bytes:
    """Encode `meta.properties`: one line `key=value` for each property, sorted by key.

    Kafka also writes the date above these lines. The date is left out, because no program reads it.
    """
    lines = [f"{key}={_escape(value)}" for key, value in sorted(properties.items())]
    return ("#\n" + "".join(f"{line}\n" for line in lines)).encode()


def decode_meta_properties(data: Buffer) -> dict[str, str]:
    """Decode a `meta.properties`; raises CorruptFile for a line without `=` or `:`."""
    properties = {}
    for line in decode_text(data).splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        match = re.fullmatch(r"([^=:\s]+)\s*[=:]\s*(.*)", text)
        if match is None:
            raise CorruptFile(f"line {text[:80]!r}: 'key=value' expected")
        properties[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
    return properties


def read_meta_properties(files: FileSystem, directory: str) -> dict[str, str] | None:
    """Read the properties of a log directory, None if it has no `meta.properties`."""
    path = posixpath.join(directory, META_PROPERTIES_FILE)
    return read_decoded(files, path, decode_meta_properties, None)


def write_meta_properties(files: FileSystem, directory: str, properties: Mapping[str, str]) -> None:
    """Write a log directory's `meta.properties` atomically."""
    path = posixpath.join(directory, META_PROPERTIES_FILE)
    write_atomically(files, path, encode_meta_properties(properties))


def _escape(value: str) -> str:
    return re.sub(r"([\\=:#!])", r"\\\1", value)


class Fields(NamedTuple):
    """Typed fields of a JSON object; `what` names the object in errors."""

    content: dict[str, object]
    what: str

    @classmethod
    def of(cls, value: object, what: str) -> Self:
        """Wrap the fields of `value`; raises CorruptFile if `value` is not an object."""
        if not isinstance(value, dict):
            raise CorruptFile(f"{what} is {type(value).__name__}, a JSON object expected")
        return cls(value, what)

    @property
    def names(self) -> list[str]:
        """Names of the fields."""
        return list(self.content)

    def value(self, name: str) -> object:
        """Return a field of any type; None if it is missing."""
        return self.content.get(name)

    def integer(self, name: str) -> int:
        """Return a field that must be a whole number of 64 bits; else raise CorruptFile."""
        value = self.maybe_integer(name)
        if value is None:
            raise self._problem(name, "a whole number")
        return value

    def maybe_integer(self, name: str) -> int | None:
        """Return a field that must be a whole number of 64 bits, null or missing.

        Return None if the field is null or missing; raise CorruptFile if it has another value.
        """
        value = self.content.get(name)
        if value is None:
            return None
        if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
            raise self._problem(name, "a whole number")
        return value

    def text(self, name: str) -> str:
        """Return a field that must be a text; else raise CorruptFile."""
        value = self.content.get(name)
        if not isinstance(value, str):
            raise self._problem(name, "a text")
        return value

    def items(self, name: str) -> list[object]:
        """Return a field that must be a list; else raise CorruptFile."""
        value = self.content.get(name)
        if not isinstance(value, list):
            raise self._problem(name, "a list")
        return value

    def check_version(self, newest: int, name: str) -> None:
        """Raise UnsupportedVersion if a later release wrote the object; `name` is used in errors.

        Raise CorruptFile if the object has no valid version.
        """
        version = self.content.get("version")
        if type(version) is not int or version < 1:
            raise CorruptFile(f"version {version!r}, a number from 1 on expected")
        if version > newest:
            raise UnsupportedVersion(
                f"{name} of version {version}; this release reads up to version {newest}"
            )

    def mapping(self, name: str) -> "Fields":
        """Return a field that must be an object; else raise CorruptFile."""
        return Fields.of(self.content.get(name), f"`{name}` of {self.what}")

    def _problem(self, name: str, expected: str) -> CorruptFile:
        value = str(self.content.get(name))[:80]
        return CorruptFile(f"{self.what}: `{name}` is {value}, {expected} expected")


def read_record(kind: type[_Record], content: object, what: str, **values_read: object) -> _Record:
    """Create an instance of a dataclass from the JSON form of its `asdict` result.

    The fields may be whole numbers, texts, flags, dataclasses of such fields, and tuples of these.

    Args:
        kind: The dataclass.
        content: The object, as parsed from JSON.
        what: Name of the object in errors.
        values_read: Fields that the caller has already read.

    Raises:
        CorruptFile: The structure is invalid. Errors that the dataclass itself raises are passed on
            unchanged.
    """
    values, hints = Fields.of(content, what), get_type_hints(kind)
    read = {
        each.name: _read_as(hints[each.name], values.value(each.name), f"`{each.name}` of {what}")
        for each in fields(kind)
        if each.name not in values_read
    }
    return kind(**read, **values_read)


def _read_as(kind: type, value: object, what: str) -> object:
    if is_dataclass(kind):
        return read_record(kind, value, what)
    if get_origin(kind) is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        return tuple(_read_as(item, each, what) for each in value)
    if type(value) is not kind or (type(value) is int and not INT64_MIN <= value <= INT64_MAX):
        raise CorruptFile(f"{what} is {str(value)[:80]}, {kind.__name__} expected")
    return value


def read_json(data: bytes, what: str) -> Fields:
    """Parse the object in a JSON text; raises CorruptFile."""
    try:
        content: object = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what} is not JSON: {error}") from error
    return Fields.of(content, what)


def read_versioned(data: Buffer, name: str, newest: int) -> Fields:
    """Parse the object in a JSON file's text; raises CorruptFile, UnsupportedVersion."""
    try:
        content = Fields.of(json.loads(decode_text(data)), "the file")
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}") from error
    content.check_version(newest, name)
    return content
