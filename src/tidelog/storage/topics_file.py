"""The file of a directory's topics, `tidelog-topics.json`: its text, and reading it.

Text of the file, format version 1:
`{"version": 1, "topics": {NAME: {"id": 22 characters, "partitions": N, "config": {KEY: TEXT}}},
"deleted": {NAME: 22 characters or null}}`

`deleted` is there only while directories of deleted topics may still have their old names: who
writes it has deleted these topics, all at once, and a directory of such a name counts for nothing
where `partition.metadata` has the id said there, or no id that can be read.
"""

import json
import posixpath
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, InvalidTopic, UnsupportedVersion
from tidelog.storage.files import check_topic_name, decode_topic_id, encode_topic_id, read_file
from tidelog.types import Buffer

TOPICS_FILE: Final = "tidelog-topics.json"
TOPICS_VERSION: Final = 1
# Each partition is a directory: more of them in one topic is a slip of the keyboard.
PARTITION_COUNT_LIMIT: Final = 100_000


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """What the file says of one topic."""

    topic_id: uuid.UUID
    partitions: int
    given: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicsText:
    """What the file says.

    Attributes:
        topics: Those that are there, by name.
        deleted: Ids of those whose directories may have their names yet; None had no id.
    """

    topics: dict[str, TopicEntry] = field(default_factory=dict)
    deleted: dict[str, uuid.UUID | None] = field(default_factory=dict)


def encode_topics(
    entries: Mapping[str, TopicEntry], deleted: Mapping[str, uuid.UUID | None] | None = None
) -> bytes:
    """The file's text for these topics, sorted by name.

    Each new topic writes all of it: by hand in a quarter of the time that `json` takes to indent.
    """
    rows = ",".join(_row(name, entry) for name, entry in sorted(entries.items()))
    end = "\n " if rows else ""
    gone = ""
    if deleted:
        ids = {name: _text_of(topic_id) for name, topic_id in sorted(deleted.items())}
        gone = f',\n "deleted": {json.dumps(ids)}'
    text = f'{{\n "version": {TOPICS_VERSION},\n "topics": {{{rows}{end}}}{gone}\n}}\n'
    return text.encode("ascii")


def _text_of(topic_id: uuid.UUID | None) -> str | None:
    return None if topic_id is None else encode_topic_id(topic_id)


def _row(name: str, entry: TopicEntry) -> str:
    quoted = json.encoder.encode_basestring_ascii
    pairs = (f"\n    {quoted(key)}: {quoted(text)}" for key, text in entry.given.items())
    config = ",".join(pairs)
    end = "\n   " if config else ""
    return (
        f"\n  {quoted(name)}: {{"
        f'\n   "id": {quoted(encode_topic_id(entry.topic_id))},'
        f'\n   "partitions": {entry.partitions},'
        f'\n   "config": {{{config}{end}}}'
        "\n  }"
    )


def decode_topics(data: Buffer) -> TopicsText:
    """What a file's text says.

    Raises:
        CorruptFile: It is not what `encode_topics` writes.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        found: object = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}") from error
    content = _mapping(found, "the file")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise CorruptFile(f"version {version!r}, a number from 1 on expected")
    if version > TOPICS_VERSION:
        raise UnsupportedVersion(f"{TOPICS_FILE} of version {version}, {TOPICS_VERSION} is known")
    topics = _mapping(content.get("topics"), "`topics`")
    deleted = _mapping(content.get("deleted", {}), "`deleted`")
    return TopicsText(
        {name: _decode_entry(name, value) for name, value in topics.items()},
        {name: _decode_deleted(name, value) for name, value in deleted.items()},
    )


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise CorruptFile(f"{what} is {type(value).__name__}, a JSON object expected")
    return value


def _decode_entry(name: str, value: object) -> TopicEntry:
    entry = _mapping(value, f"topic {name[:80]!r}")
    topic_id, count = entry.get("id"), entry.get("partitions")
    given = _mapping(entry.get("config"), f"`config` of topic {name[:80]!r}")
    texts = {key: text for key, text in given.items() if isinstance(text, str)}
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        raise CorruptFile(str(error)) from error
    if not isinstance(topic_id, str):
        raise CorruptFile(f"topic {name}: `id` is {topic_id!r}")
    if type(count) is not int or not 1 <= count <= PARTITION_COUNT_LIMIT:
        raise CorruptFile(f"topic {name}: `partitions` is {count!r}")
    if len(texts) < len(given):
        raise CorruptFile(f"topic {name}: a setting in `config` is no text")
    return TopicEntry(decode_topic_id(topic_id), count, texts)


def _decode_deleted(name: str, value: object) -> uuid.UUID | None:
    if not (value is None or isinstance(value, str)):
        raise CorruptFile(f"deleted topic {name[:80]!r}: its id is {value!r}")
    return None if value is None else decode_topic_id(value)


def read_topics(files: FileSystem, directory: str) -> TopicsText:
    """What the directory's file says; no topics where it has no such file.

    Raises:
        CorruptFile, UnsupportedVersion: As `decode_topics`, with the path.
        OSError: A call failed.
    """
    path = posixpath.join(directory, TOPICS_FILE)
    try:
        return decode_topics(read_file(files, path))
    except FileNotFoundError:
        return TopicsText()
    except CorruptFile as error:
        raise error.located(path) from error
