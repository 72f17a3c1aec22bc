"""What a directory says of its topics, by its file and its partition directories.

The partition directories are the truth on what exists: what the file does not know (a directory
that Kafka wrote) is found by them, with default settings, and called foreign; a topic id in
`partition.metadata` wins over the file's, since it is what Kafka goes by.

All functions read only, except `give_ids`; `topics` changes topics.
"""

import posixpath
import random
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.config import TopicConfig
from tidelog.env import FileSystem, prefetch
from tidelog.errors import CorruptFile, TidelogError
from tidelog.storage.files import (
    PARTITION_METADATA_FILE,
    encode_topic_id,
    parse_partition_dir,
    partition_dir_name,
    random_topic_id,
)
from tidelog.storage.text_files import read_partition_metadata, write_partition_metadata
from tidelog.storage.topics_file import TOPICS_FILE, TopicEntry, TopicsText, read_topics
from tidelog.types import TopicPartition

NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic.

    Attributes:
        name: As in the directories' names.
        topic_id: None where neither the file nor any directory has one.
        partitions: How many there are, those without a directory included.
        present: Numbers of those that have a directory, ascending.
        given: The settings that were set, under Kafka's names; the rest is default.
        config: All settings.
        foreign: The directory's own file does not know the topic, so its settings are unknown.
    """

    name: str
    topic_id: uuid.UUID | None
    partitions: int
    present: tuple[int, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    config: TopicConfig
    foreign: bool = False


def find_topics(
    files: FileSystem, directory: str, defaults: Mapping[str, str] | None = None
) -> tuple[dict[str, TopicInfo], list[str]]:
    """All topics of a directory by name, from its file and its partition directories.

    Args:
        files: Where the directory is.
        directory: Its path.
        defaults: Settings, under a broker's names, of topics that have none of their own.

    Returns:
        The topics, sorted by name, and one line for each thing that does not fit together.

    Raises:
        CorruptFile, UnsupportedVersion: The topics file can't be read, or holds settings that
            this release does not know.
        OSError: A call failed.
    """
    found = find_all(files, directory, defaults)
    return found.topics, found.notes


def find_leftovers(files: FileSystem, directory: str) -> list[TopicPartition]:
    """Directories that deleted topics have left under their own names; errors as `find_topics`."""
    return _take_leftovers(
        files, directory, read_topics(files, directory), _find_partitions(files, directory)
    )


@dataclass(frozen=True, slots=True)
class Found:
    """All that the file and the directories say.

    Attributes:
        topics: By name, sorted.
        notes: What does not fit together.
        deleted: As the file has it.
        leftovers: Directories of deleted topics that have their names yet.
    """

    topics: dict[str, TopicInfo]
    notes: list[str]
    deleted: dict[str, uuid.UUID | None]
    leftovers: list[TopicPartition]


def find_all(files: FileSystem, directory: str, defaults: Mapping[str, str] | None) -> Found:
    """The same with what deleted topics have left; arguments and errors as `find_topics`."""
    text = read_topics(files, directory)
    entries, present = text.topics, _find_partitions(files, directory)
    notes: list[str] = []
    topics = {}
    found = [TopicPartition(name, number) for name in present for number in present[name]]
    prefetch(files, (f"{directory}/{place}/{PARTITION_METADATA_FILE}" for place in found))
    leftovers = _take_leftovers(files, directory, text, present)
    for name in sorted(entries.keys() | present.keys()):
        ids = _read_ids(files, directory, name, present[name], notes)
        config = _config_of(name, entries.get(name), defaults)
        topics[name] = _merge(name, entries.get(name), present[name], ids, config, notes)
    return Found(topics, notes, text.deleted, leftovers)


def give_ids(
    files: FileSystem,
    directory: str,
    topics: MutableMapping[str, TopicInfo],
    source: random.Random,
) -> None:
    """Give topics without an id one, in their partition directories, as a Kafka broker does.

    Kafka before 2.8, and a copy of the logs alone, leave no id. Clients need one: consumers of the
    new group protocol, share groups and standbys find topics by id only. A topic with a
    `partition.metadata` that can't be read, or whose directories can't be written, stays as it is.
    """
    for name, info in topics.items():
        places = (TopicPartition(name, number) for number in info.present)
        paths = [posixpath.join(directory, partition_dir_name(place)) for place in places]
        if info.topic_id is not None or not paths:
            continue
        if any(files.exists(f"{path}/{PARTITION_METADATA_FILE}") for path in paths):
            continue
        topic_id = random_topic_id(source)
        try:
            for path in paths:
                write_partition_metadata(files, path, topic_id)
        except OSError:
            continue  # the next opening takes the id from the directories that have one
        topics[name] = replace(info, topic_id=topic_id)


def _take_leftovers(
    files: FileSystem, directory: str, text: TopicsText, present: dict[str, tuple[int, ...]]
) -> list[TopicPartition]:
    """Take what deleted topics have left out of `present`, by the rule in `topics_file`."""
    left = []
    for name in text.deleted.keys() & present.keys() - text.topics.keys():
        numbers = present.pop(name)
        places = [TopicPartition(name, number) for number in numbers]
        ids = [_read_id(files, directory, place, []) for place in places]
        theirs = (None, text.deleted[name])
        gone = [place for place, found in zip(places, ids, strict=True) if found in theirs]
        left += gone
        if len(gone) < len(places):  # somebody else has made a topic of that name
            present[name] = tuple(place.partition for place in places if place not in gone)
    return sorted(left)


def _find_partitions(files: FileSystem, directory: str) -> defaultdict[str, tuple[int, ...]]:
    """The partition numbers of each topic that has a directory, ascending."""
    numbers = defaultdict(list)
    for item in files.list_dir(directory):
        partition = parse_partition_dir(item.name) if item.is_dir else None
        if partition is not None:
            numbers[partition.topic].append(partition.partition)
    return defaultdict(tuple, {name: tuple(sorted(found)) for name, found in numbers.items()})


def _read_ids(
    files: FileSystem, directory: str, name: str, numbers: Iterable[int], notes: list[str]
) -> list[uuid.UUID]:
    """The distinct topic ids in the partitions' metadata, in the partitions' order."""
    read = (_read_id(files, directory, TopicPartition(name, number), notes) for number in numbers)
    return list({topic_id: None for topic_id in read if topic_id is not None})


def _read_id(
    files: FileSystem, directory: str, partition: TopicPartition, notes: list[str]
) -> uuid.UUID | None:
    """The topic id in a partition's metadata, None where none can be read."""
    try:
        path = posixpath.join(directory, partition_dir_name(partition))
        return read_partition_metadata(files, path)
    except CorruptFile as error:
        notes.append(str(error))
        return None


def _merge(
    name: str,
    entry: TopicEntry | None,
    present: tuple[int, ...],
    ids: list[uuid.UUID],
    config: TopicConfig,
    notes: list[str],
) -> TopicInfo:
    """One topic out of what the file (`entry`) and the directories (`present`, `ids`) say."""
    if len(ids) > 1:
        notes.append(f"topic {name}: its partitions have {len(ids)} different topic ids")
    count = present[-1] + 1 if present else 0
    if entry is None:
        topic_id = ids[0] if ids else None
        return TopicInfo(
            name=name,
            topic_id=topic_id,
            partitions=count,
            present=present,
            config=config,
            foreign=True,
        )
    topic_id = entry.topic_id if not ids or entry.topic_id in ids else ids[0]
    if topic_id != entry.topic_id:
        known, found = encode_topic_id(entry.topic_id), encode_topic_id(topic_id)
        notes.append(f"topic {name}: its directories have topic id {found}, it was {known}")
    return TopicInfo(
        name=name,
        topic_id=topic_id,
        partitions=max(count, entry.partitions),
        present=present,
        given=entry.given,
        config=config,
    )


def _config_of(
    name: str, entry: TopicEntry | None, defaults: Mapping[str, str] | None
) -> TopicConfig:
    given = {} if entry is None else entry.given
    try:
        return TopicConfig.parse(given, broker=defaults)[0]
    except TidelogError as error:
        raise CorruptFile(f"{TOPICS_FILE}: topic {name}: {error}") from error


def named_few(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
