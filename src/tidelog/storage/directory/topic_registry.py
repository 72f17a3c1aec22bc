"""The topics of a directory, from `tidelog-topics.json` and the partition directories.

Kafka keeps names, ids, partition counts and settings of topics in its controllers' metadata log,
which a tidelog directory does not have. A tidelog directory keeps names, ids, partition counts and
settings of topics in `tidelog-topics.json` instead. Each change replaces `tidelog-topics.json`
atomically. Only the holder of the directory's lock changes this file, through `TopicRegistry`,
which creates no partition directory and takes no lock. Of the functions outside of this
class, only `give_ids` writes files.

A topic exists if the file or a partition directory has its name. A topic that the file does not
list (Kafka wrote its directories) gets the default settings and is called foreign. Kafka uses the
topic ids in the `partition.metadata` of the partition directories. These ids take precedence over a
topic's id in the file: if the topic's directories have ids, but none of them is the id in the file,
tidelog uses the id of the topic's first directory that has one.

A partition directory whose number is not below the partition count in the file is a stray, with one
exception: Kafka has added the partition. tidelog assumes this if a directory exists for every
number from the count in the file up to this number, inclusive, and each of these directories has
the topic's id, or has records and no readable id. A stray is not counted, read, changed or removed;
it is reported.

Text of the file, format version 1: `{"version": 1, "topics": {NAME: {"id": 22 characters,
"partitions": N, "config": {KEY: TEXT}}}, "deleted": {NAME: 22 characters or null}}`

The file has `deleted` only while directories of deleted topics may still have their old names. A
deletion is atomic: all topics that one write of the file adds to `deleted` are deleted by this
write. A partition directory of a topic in `deleted` is ignored if its `partition.metadata` has the
listed id, or no readable id.

Source: Kafka 4.x LogManager (a log without a topic id has taken no record yet).
"""

import json
import posixpath
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence, Set
from contextlib import suppress
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tidelog.amounts import plural, ranges_text, verb
from tidelog.config import ConfigNote, TopicConfig, key_names, normalize
from tidelog.display import TopicDisplay
from tidelog.env import DirEntry, FileSystem, prefetch
from tidelog.errors import (
    CorruptFile,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    MissingFile,
    TidelogError,
    TopicExists,
    UnknownTopic,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.files import (
    CLUSTER_METADATA_TOPIC,
    PARTITION_METADATA_FILE,
    TOPICS_FILE,
    check_topic_name,
    decode_topic_id,
    encode_topic_id,
    parse_partition_dir,
    partition_dir_name,
    random_topic_id,
    read_decoded,
    write_atomically,
)
from tidelog.storage.log_files import LOG_SUFFIX, parse_file_name
from tidelog.storage.text_files import (
    Fields,
    read_partition_metadata,
    read_versioned,
    write_partition_metadata,
)
from tidelog.types import Buffer, TopicPartition

TOPICS_VERSION: Final = 1

# Maximum number of partitions of a topic. Each partition is a directory; a larger number is almost
# certainly a typing error.
PARTITION_COUNT_LIMIT: Final = 100_000


class TopicEntry(NamedTuple):
    """Entry of one topic in the topics file."""

    topic_id: uuid.UUID
    partitions: int
    given: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicsText:
    """Contents of the topics file.

    Attributes:
        topics: Existing topics, by name.
        deleted: Ids, by name, of deleted topics whose directories may still have their old names;
            None for a topic that had no id.
    """

    topics: dict[str, TopicEntry] = field(default_factory=dict)
    deleted: dict[str, uuid.UUID | None] = field(default_factory=dict)


def encode_topics(
    entries: Mapping[str, TopicEntry], deleted: Mapping[str, uuid.UUID | None] | None = None
) -> bytes:
    """Encode the text of the topics file, with the topics sorted by name.

    Each new topic rewrites the whole file, so encoding must be fast. This function formats the text
    without `json`, which would take four times as long with indentation.
    """
    rows = ",".join(_row(name, entry) for name, entry in sorted(entries.items()))
    end = "\n " if rows else ""
    deleted_text = ""
    if deleted:
        ids = {name: _text_of(topic_id) for name, topic_id in sorted(deleted.items())}
        deleted_text = f',\n "deleted": {json.dumps(ids)}'
    text = f'{{\n "version": {TOPICS_VERSION},\n "topics": {{{rows}{end}}}{deleted_text}\n}}\n'
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
    """Decode the text of a topics file.

    Raises:
        CorruptFile: The text is not a result of `encode_topics`.
        UnsupportedVersion: A later release wrote the text.
    """
    content = read_versioned(data, TOPICS_FILE, TOPICS_VERSION)
    topics = Fields.of(content.value("topics"), "`topics`").content
    deleted = Fields.of(content.content.get("deleted", {}), "`deleted`").content
    return TopicsText(
        {name: _decode_entry(name, value) for name, value in topics.items()},
        {name: _decode_deleted(name, value) for name, value in deleted.items()},
    )


def _decode_entry(name: str, value: object) -> TopicEntry:
    entry = Fields.of(value, f"topic {name[:80]!r}")
    topic_id, count = entry.value("id"), entry.value("partitions")
    config = Fields.of(entry.value("config"), f"`config` of topic {name[:80]!r}").content
    texts = {key: text for key, text in config.items() if isinstance(text, str)}
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        raise CorruptFile(str(error)) from error
    if not isinstance(topic_id, str):
        raise CorruptFile(f"topic {name}: `id` is {topic_id!r}, a text expected")
    if type(count) is not int or not 1 <= count <= PARTITION_COUNT_LIMIT:
        raise CorruptFile(
            f"topic {name}: `partitions` is {count!r}, 1 to {PARTITION_COUNT_LIMIT} expected"
        )
    if len(texts) < len(config):
        raise CorruptFile(f"topic {name}: a setting in `config` is not a text")
    return TopicEntry(decode_topic_id(topic_id), count, texts)


def _decode_deleted(name: str, value: object) -> uuid.UUID | None:
    if not (value is None or isinstance(value, str)):
        raise CorruptFile(
            f"deleted topic {name[:80]!r}: its id is {value!r}, a text or null expected"
        )
    return None if value is None else decode_topic_id(value)


def read_topics(files: FileSystem, directory: str) -> TopicsText:
    """Read a directory's topics file; return no topics if there is no file.

    Raises:
        CorruptFile, UnsupportedVersion: `decode_topics` refuses the text; the error has the path.
        OSError: A system call failed.
    """
    path = posixpath.join(directory, TOPICS_FILE)
    return read_decoded(files, path, decode_topics, TopicsText())


NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopicInfo(TopicDisplay):
    """One topic.

    Attributes:
        name: Name of the topic, as in its directories' names.
        topic_id: Id of the topic; None if neither the file nor any directory has an id.
        partitions: Number of partitions, including partitions without a directory.
        present: Partition numbers that have a directory, ascending.
        given: The settings that were set for the topic, under Kafka's names; all other settings
            have their defaults.
        config: All settings.
        foreign: Whether the topic is missing from the topics file. The settings of a foreign topic
            are unknown.
    """

    name: str
    topic_id: uuid.UUID | None
    partitions: int
    present: tuple[int, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    config: TopicConfig
    foreign: bool = False

    @property
    def settings(self) -> Mapping[str, str]:
        """All settings as text, under Kafka's names."""
        return self.config.texts()


def find_topics(
    files: FileSystem, directory: str, defaults: Mapping[str, str] | None = None
) -> tuple[dict[str, TopicInfo], list[str]]:
    """Find all topics of a directory by name, from its file and its partition directories.

    Args:
        files: File system of the directory.
        directory: Path of the directory.
        defaults: Values of settings that a topic does not set, by the names of broker settings.

    Returns:
        The topics, sorted by name, and one line for each inconsistency.

    Raises:
        CorruptFile, UnsupportedVersion: The topics file is unreadable, or has settings that this
            release refuses.
        InvalidRequest: `directory` is the directory of one partition.
        OSError: A system call failed.
    """
    contents = find_all(files, directory, defaults)
    return contents.topics, contents.notes


def find_strays(files: FileSystem, directory: str) -> list[TopicPartition]:
    """Find directories that are not partitions of the topics in their names.

    Raises the errors of `find_topics`.
    """
    return find_all(files, directory, None).strays


def find_leftovers(files: FileSystem, directory: str) -> list[TopicPartition]:
    """Find partitions of deleted topics whose directories still have their old names.

    Raises the errors of `find_topics`.
    """
    return _take_leftovers(
        files, directory, read_topics(files, directory), find_partitions(files, directory)
    )


class RegistryContents(NamedTuple):
    """Topics according to the topics file and the partition directories.

    Attributes:
        topics: Topics by name, sorted.
        notes: Inconsistencies between the file and the directories, one line each.
        deleted: Topic ids by name, for deleted topics whose directories may still have their old
            names.
        leftovers: Partitions of deleted topics whose directories still have their old names.
        strays: Directories that are not partitions of the topics in their names.
    """

    topics: dict[str, TopicInfo]
    notes: list[str]
    deleted: dict[str, uuid.UUID | None]
    leftovers: list[TopicPartition]
    strays: list[TopicPartition]


def find_all(
    files: FileSystem, directory: str, defaults: Mapping[str, str] | None
) -> RegistryContents:
    """Find topics, strays, and leftovers of deleted topics; raises the errors of `find_topics`."""
    text = read_topics(files, directory)
    entries, present = text.topics, find_partitions(files, directory)
    notes: list[str] = []
    topics = {}
    partitions = [TopicPartition(name, number) for name in present for number in present[name]]
    prefetch(
        files, (f"{directory}/{partition}/{PARTITION_METADATA_FILE}" for partition in partitions)
    )
    leftovers = _take_leftovers(files, directory, text, present)
    strays = []
    for name, entry in entries.items():
        strays += _take_strays(files, directory, name, entry, present)
    for name in sorted(entries.keys() | present.keys()):
        ids = _read_ids(files, directory, name, present[name], notes)
        config = _config_of(directory, name, entries.get(name), defaults)
        topics[name] = _merge(name, entries.get(name), present[name], ids, config, notes)
    for stray in sorted(strays):
        info = topics[stray.topic]
        problem = stray_problem(files, directory, stray, info.topic_id)
        notes.append(
            f"{directory}/{partition_dir_name(stray)} is ignored: topic {stray.topic} has"
            f" {plural(info.partitions, 'partition')}, and this directory"
            f" {'has no records' if problem is None else f'{problem}; {STRAY_ADVICE}'}"
        )
    return RegistryContents(topics, notes, text.deleted, leftovers, strays)


def give_ids(
    files: FileSystem,
    directory: str,
    topics: MutableMapping[str, TopicInfo],
    source: random.Random,
) -> None:
    """Assign ids to topics without an id, in the partition directories, as a Kafka broker does.

    Topics of Kafka before 2.8, and topics of which only the logs were copied, have no id. Clients
    need ids: consumers of the new group protocol, share groups and standbys find topics by id only.
    Three kinds of topics stay without an id: topics without a directory, topics with an unreadable
    `partition.metadata`, and topics with a directory that can't be written.
    """
    for name, info in topics.items():
        partitions = (TopicPartition(name, number) for number in info.present)
        paths = [
            posixpath.join(directory, partition_dir_name(partition)) for partition in partitions
        ]
        if info.topic_id is not None or not paths:
            continue
        if any(files.exists(f"{path}/{PARTITION_METADATA_FILE}") for path in paths):
            continue
        topic_id = random_topic_id(source)
        try:
            for path in paths:
                write_partition_metadata(files, path, topic_id)
        except OSError:
            continue  # if some directories got the id, the next open uses this id
        topics[name] = replace(info, topic_id=topic_id)


def _take_leftovers(
    files: FileSystem, directory: str, text: TopicsText, present: dict[str, tuple[int, ...]]
) -> list[TopicPartition]:
    """Remove the partitions of deleted topics from `present`; return them, sorted.

    The module's docstring defines which directories belong to deleted topics.
    """
    leftovers = []
    for name in text.deleted.keys() & present.keys() - text.topics.keys():
        numbers = present.pop(name)
        partitions = [TopicPartition(name, number) for number in numbers]
        ids = [_read_id(files, directory, partition, []) for partition in partitions]
        theirs = (None, text.deleted[name])
        stale = [
            partition
            for partition, topic_id in zip(partitions, ids, strict=True)
            if topic_id in theirs
        ]
        leftovers += stale
        # Directories with another topic id belong to a topic that another program created with the
        # deleted topic's name.
        if len(stale) < len(partitions):
            present[name] = tuple(
                partition.partition for partition in partitions if partition not in stale
            )
    return sorted(leftovers)


def _take_strays(
    files: FileSystem,
    directory: str,
    name: str,
    entry: TopicEntry,
    present: dict[str, tuple[int, ...]],
) -> list[TopicPartition]:
    """Remove the strays of a topic (see the module's docstring) from `present`; return them."""
    numbers = present[name]
    if not numbers or numbers[-1] < entry.partitions:
        return []
    listed = [number for number in numbers if number < entry.partitions]
    topic_ids = {entry.topic_id, *_read_ids(files, directory, name, listed, [])}
    strays, end = [], entry.partitions
    for number in numbers[len(listed) :]:
        partition = TopicPartition(name, number)
        if number == end and _is_added(files, directory, partition, topic_ids):
            end += 1
        else:
            strays.append(partition)
    present[name] = tuple(number for number in numbers if number < end)
    return strays


def _is_added(
    files: FileSystem, directory: str, partition: TopicPartition, topic_ids: Set[uuid.UUID]
) -> bool:
    topic_id = _read_id(files, directory, partition, [])
    return topic_id in topic_ids if topic_id else _has_records(files, directory, partition)


def _has_records(files: FileSystem, directory: str, partition: TopicPartition) -> bool:
    path = posixpath.join(directory, partition_dir_name(partition))
    try:
        return any(
            item.name.endswith(LOG_SUFFIX) and files.stat(f"{path}/{item.name}").size
            for item in files.list_dir(path)
            if not item.is_dir
        )
    except FileNotFoundError:  # another process has removed or renamed the directory
        return False


# Advice on a directory that is not a partition of the topic in its name, but may have records.
STRAY_ADVICE: Final = "move it out of the directory of topics; its records are not read"


def stray_problem(
    files: FileSystem, directory: str, stray: TopicPartition, topic_id: uuid.UUID | None
) -> str | None:
    """Return, as text, why a stray must not become a partition of the topic with this id.

    Return None if the stray has neither records nor another topic's id.
    """
    own_id = _read_id(files, directory, stray, [])
    if own_id is not None and own_id != topic_id:
        return f"has another topic id, {encode_topic_id(own_id)}"
    if not _has_records(files, directory, stray):
        return None
    return "has records and no topic id" if own_id is None else "has records and the topic's id"


def find_partitions(files: FileSystem, directory: str) -> defaultdict[str, tuple[int, ...]]:
    """Return the partition numbers of each topic that has a directory, ascending.

    Raises:
        InvalidRequest: `directory` is the directory of one partition.
    """
    numbers = defaultdict(list)
    entries = files.list_dir(directory)
    for item in entries:
        partition = parse_partition_dir(item.name) if item.is_dir else None
        if partition is not None:
            numbers[partition.topic].append(partition.partition)
    if not numbers:
        _ensure_no_segments(directory, entries)
    return defaultdict(tuple, {name: tuple(sorted(of_topic)) for name, of_topic in numbers.items()})


def _ensure_no_segments(directory: str, entries: Iterable[DirEntry]) -> None:
    for item in entries:
        parsed = parse_file_name(item.name)
        if parsed is not None and parsed[1] == LOG_SUFFIX and not item.is_dir:
            parent = posixpath.normpath(posixpath.join(directory, ".."))
            if parse_partition_dir(posixpath.basename(posixpath.abspath(directory))) is None:
                raise InvalidRequest(
                    f"{directory} is the directory of one partition, but its name is not"
                    " TOPIC-NUMBER, such as flights-0; rename it, then open the directory that"
                    f" holds it, {parent}"
                )
            raise InvalidRequest(
                f"{directory} is the directory of one partition; open the directory that holds it,"
                f" {parent}"
            )


def _read_ids(
    files: FileSystem, directory: str, name: str, numbers: Iterable[int], notes: list[str]
) -> list[uuid.UUID]:
    """Return the distinct topic ids in the partitions' metadata, in the partitions' order."""
    read = (_read_id(files, directory, TopicPartition(name, number), notes) for number in numbers)
    return list({topic_id: None for topic_id in read if topic_id is not None})


def _read_id(
    files: FileSystem, directory: str, partition: TopicPartition, notes: list[str]
) -> uuid.UUID | None:
    """Return the topic id in a partition's metadata; None if there is no readable id."""
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
    """Create one topic from the file (`entry`) and the directories (`present`, `ids`)."""
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
        listed_id, stored_id = encode_topic_id(entry.topic_id), encode_topic_id(topic_id)
        notes.append(
            f"topic {name}: its directories have topic id {stored_id}, {TOPICS_FILE}"
            f" has {listed_id}"
        )
    return TopicInfo(
        name=name,
        topic_id=topic_id,
        partitions=max(count, entry.partitions),
        present=present,
        given=entry.given,
        config=config,
    )


def _config_of(
    directory: str, name: str, entry: TopicEntry | None, defaults: Mapping[str, str] | None
) -> TopicConfig:
    texts = {} if entry is None else entry.given
    try:
        return TopicConfig.parse(texts, broker=defaults)[0]
    except TidelogError as error:
        raise CorruptFile(f"topic {name}: {error}", path=f"{directory}/{TOPICS_FILE}") from error


def named_few(names: Sequence[str]) -> str:
    """Return the first `NAMED_MAX` names of a list, and the number of further names, as text."""
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


class NewTopic(NamedTuple):
    """A topic to create.

    Attributes:
        name: A name that Kafka allows.
        partitions: Number of partitions, 1 or more.
        config: Settings by name; old names of a setting are accepted and reported.
        topic_id: Id of the topic; None for a random id.
    """

    name: str
    partitions: int = 1
    config: Mapping[str, str] = MappingProxyType({})
    topic_id: uuid.UUID | None = None


# A created topic, and notes on its settings.
CreatedTopic: TypeAlias = tuple[TopicInfo, list[ConfigNote]]

# Creates the partition directories of topics; returns errors by the names of the topics that
# failed.
Make: TypeAlias = Callable[[Collection[TopicInfo]], Mapping[str, OSError]]


class TopicRegistry:
    """The topics of a writable directory.

    One thread at a time changes the topics; other threads may read them at the same time.

    `create`, `grow`, `alter` and `delete_hidden` write a change to the file, durably, before they
    return. If the write fails, the change is not made in memory; the file has its old or its new
    content, never a mix. `create` and `grow` call the caller's `make` to create partition
    directories, after the topic is in the file and before it is visible.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        defaults: Mapping[str, str] | None = None,
        source: random.Random | None = None,
    ) -> None:
        """Read the topics like `find_topics`; with a random `source`, assign missing ids."""
        self._files = files
        self._directory = directory
        self._defaults = dict(defaults or {})
        read = find_all(files, directory, self._defaults)
        self._topics, self.notes, self.leftovers = read.topics, read.notes, read.leftovers
        self._strays = read.strays
        # `_deleted`: ids of deleted topics whose directories may still have their old names.
        # `_is_stale`: whether the file lists deleted topics.
        self._deleted, self._is_stale = read.deleted, bool(read.deleted)
        # Whether the file may list existing topics as deleted.
        self.is_doubtful = False
        if (
            metadata_topic := self._topics.get(CLUSTER_METADATA_TOPIC)
        ) is not None and metadata_topic.foreign:
            # The log of Kafka's own controller: tidelog does not recover this log, does not delete
            # from it, and does not serve it.
            del self._topics[CLUSTER_METADATA_TOPIC]
        if source is not None:
            give_ids(files, directory, self._topics, source)

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name."""
        return self._topics

    @property
    def defaults(self) -> Mapping[str, str]:
        """Values of settings that a topic does not set, by the names of broker settings."""
        return self._defaults

    def get(self, name: str) -> TopicInfo:
        """Return one topic; raises UnknownTopic, which suggests existing names."""
        topic = self._topics.get(name)
        if topic is None:
            raise unknown_topic(name, self._topics)
        return topic

    def use_defaults(self, defaults: Mapping[str, str]) -> None:
        """Replace the defaults of topics in memory; `defaults` has names of broker settings.

        Raises:
            ConfigError: The defaults conflict with a topic's own settings; nothing was changed.
        """
        topics = {
            name: replace(info, config=TopicConfig.parse(info.given, broker=defaults)[0])
            for name, info in self._topics.items()
        }
        self._defaults = dict(defaults)
        self._show(topics)

    def create(
        self, new: Iterable[NewTopic], *, source: random.Random, make: Make | None = None
    ) -> list[CreatedTopic | TidelogError | OSError]:
        """Add all valid topics of `new`, in one write of the file.

        Args:
            new: The topics to add.
            source: Random source of new topic ids.
            make: Creates the directories of all the new topics' partitions.

        Returns:
            One entry for each topic in `new`, in the same order: the created topic with notes on
                its settings, or the error (InvalidTopic, TopicExists, InvalidPartitions,
                ConfigError, OSError).
        """
        names = _Names(self._topics)
        outcomes: list[CreatedTopic | TidelogError | OSError] = []
        for each in new:
            try:
                outcomes.append(self._planned(each, names, source))
            except TidelogError as error:
                outcomes.append(error)
        planned = [each[0] for each in outcomes if isinstance(each, tuple)]
        saved = iter(self._save_topics(planned, make))
        return [
            _saved(next(saved), each[1]) if isinstance(each, tuple) else each for each in outcomes
        ]

    def _planned(self, new: NewTopic, names: "_Names", source: random.Random) -> CreatedTopic:
        texts, notes = check_new(new)
        names.check(new.name)
        info = TopicInfo(
            name=new.name,
            topic_id=new.topic_id or random_topic_id(source),
            partitions=new.partitions,
            given=texts,
            config=TopicConfig.parse(new.config, broker=self._defaults)[0],
        )
        self.ensure_no_stray_among(info.name, info.partitions, info.topic_id)
        names.take(new.name)
        return info, notes

    @property
    def deleted(self) -> Mapping[str, uuid.UUID | None]:
        """Ids, by name, of deleted topics whose directories are possibly not renamed yet."""
        return self._deleted

    def hide(self, names: Iterable[str]) -> list[TopicInfo]:
        """Hide topics, but keep them in the file. If this raises UnknownTopic, no topic is hidden.

        The caller must not change any topic until `delete_hidden` or `show_again` has returned.
        """
        hidden = {name: self.get(name) for name in names}
        self._topics = {name: info for name, info in self._topics.items() if name not in hidden}
        return list(hidden.values())

    def delete_hidden(self, hidden: Iterable[TopicInfo]) -> None:
        """Delete the hidden topics, in one write of the file: all of them, or none.

        From then on, the directories of the deleted topics are ignored. Call `forget_deleted` after
        the directories are durably renamed or removed.

        Raises:
            OSError: The write failed, and the file may or may not list the topics as deleted; call
                `show_again`.
        """
        before, hidden_ids = self._deleted, {info.name: info.topic_id for info in hidden}
        self._deleted = {**before, **hidden_ids}
        try:
            self._write(self._topics)
        except OSError:
            self._deleted = before
            raise

    def show_again(self, hidden: Iterable[TopicInfo]) -> None:
        """Show the hidden topics again; if the file may list them as deleted, correct it.

        If the write fails, `settle` tries again.
        """
        self._show({**self._topics, **{info.name: info for info in hidden}})
        self.is_doubtful = True
        with suppress(OSError):
            self.settle()

    def settle(self) -> None:
        """Write the file again if it may differ from the visible topics; raises OSError."""
        if self.is_doubtful:
            self._write(self._topics)

    def forget_deleted(self, names: Collection[str]) -> None:
        """Forget deleted topics whose directories are durably renamed or removed.

        The next write of the topics file omits the forgotten topics.
        """
        self._deleted = {n: topic_id for n, topic_id in self._deleted.items() if n not in names}

    def tidy(self) -> None:
        """Write the file without `deleted` if no deleted topic remains; raises OSError."""
        if self._is_stale and not self._deleted:
            self._write(self._topics)

    def alter(
        self, name: str, changes: Mapping[str, str | None], *, source: random.Random
    ) -> tuple[TopicInfo, list[ConfigNote]]:
        """Change a topic's settings; the value None resets a setting to its default.

        A foreign topic is added to the file.

        Raises:
            UnknownTopic, ConfigError: Nothing was changed.
            OSError: The write failed; the settings in memory are unchanged.
        """
        info = self.get(name)
        texts, notes = normalize({key: text for key, text in changes.items() if text is not None})
        cleared = {key for name, text in changes.items() if text is None for key in key_names(name)}
        given = {key: text for key, text in {**info.given, **texts}.items() if key not in cleared}
        altered = replace(
            info,
            given=given,
            config=TopicConfig.parse(given, broker=self._defaults)[0],
            topic_id=info.topic_id or random_topic_id(source),
            foreign=False,
        )
        self._save({**self._topics, name: altered})
        return altered, notes

    def grow(
        self, counts: Mapping[str, int], *, make: Make | None = None
    ) -> list[TopicInfo | TidelogError | OSError]:
        """Increase numbers of partitions if allowed, in one write of the file.

        Args:
            counts: New total number of partitions, by topic.
            make: Creates the missing directories.

        Returns:
            One entry for each topic in `counts`, in the same order: the grown topic, or the error
                (UnknownTopic, InvalidPartitions, OSError).
        """
        outcomes: list[TopicInfo | TidelogError | OSError] = []
        for name, count in counts.items():
            try:
                outcomes.append(self._grown(name, count))
            except TidelogError as error:
                outcomes.append(error)
        saved = iter(
            self._save_topics([each for each in outcomes if isinstance(each, TopicInfo)], make)
        )
        return [next(saved) if isinstance(each, TopicInfo) else each for each in outcomes]

    def _grown(self, name: str, partitions: int) -> TopicInfo:
        info = self.get(name)
        _check_count(partitions)
        if partitions <= info.partitions:
            raise InvalidPartitions(
                f"topic {name} already has {plural(info.partitions, 'partition')}"
            )
        self.ensure_no_stray_among(name, partitions, info.topic_id)
        return replace(info, partitions=partitions)

    def is_of_another(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Return whether a directory is a stray whose topic id differs from `topic_id`."""
        if partition not in self._strays:
            return False
        own_id = _read_id(self._files, self._directory, partition, [])
        return own_id not in (None, topic_id)

    def ensure_no_stray_among(self, name: str, partitions: int, topic_id: uuid.UUID | None) -> None:
        """Raise InvalidPartitions if a topic of this size would contain records of a stray.

        A stray directly after the last partition is refused, too, because the next opening would
        treat it as a partition of the topic.
        """
        for stray in self._strays:
            if stray.topic != name or stray.partition > partitions:
                continue
            if stray.partition == partitions and self.is_of_another(stray, topic_id):
                continue
            problem = stray_problem(self._files, self._directory, stray, topic_id)
            if problem is not None:
                path = f"{self._directory}/{partition_dir_name(stray)}"
                raise InvalidPartitions(
                    f"{path} is not a partition of topic {name}, but {problem}; move it out of the"
                    " directory of topics first"
                )

    def _save_topics(
        self, infos: Sequence[TopicInfo], make: Make | None
    ) -> list[TopicInfo | OSError]:
        """Write topics, create directories, show the topics; return each topic or its error."""
        if not infos:
            return []
        try:
            self._write({**self._topics, **{info.name: info for info in infos}})
        except OSError as error:
            return [error] * len(infos)
        failed: Mapping[str, OSError] = {}
        if make is not None:
            try:
                failed = make(infos)
            except OSError as error:
                failed = {info.name: error for info in infos}
            infos = [replace(info, present=tuple(range(info.partitions))) for info in infos]
        topics = {**self._topics, **{each.name: each for each in infos if each.name not in failed}}
        if failed:
            with suppress(OSError):
                self._write(topics)
        self._show(topics)
        return [failed.get(info.name, info) for info in infos]

    def _save(self, topics: Mapping[str, TopicInfo]) -> None:
        """Write the file, then make the topics visible."""
        self._write(topics)
        self._show(topics)

    def add_present(self, partition: TopicPartition) -> None:
        """Store in memory that a partition has a directory again."""
        info = self._topics.get(partition.topic)
        if info is not None:
            present = tuple(sorted({*info.present, partition.partition}))
            self._topics = {**self._topics, info.name: replace(info, present=present)}

    def _show(self, topics: Mapping[str, TopicInfo]) -> None:
        self._topics = dict(sorted(topics.items()))

    def _write(self, topics: Mapping[str, TopicInfo]) -> None:
        """Write the file, without foreign topics."""
        entries = {
            name: TopicEntry(info.topic_id, info.partitions, info.given)
            for name, info in topics.items()
            if not info.foreign and info.topic_id is not None
        }
        path = posixpath.join(self._directory, TOPICS_FILE)
        write_atomically(self._files, path, encode_topics(entries, self._deleted))
        self._is_stale, self.is_doubtful = bool(self._deleted), False


def check_new(new: NewTopic) -> tuple[dict[str, str], list[ConfigNote]]:
    """Check a topic that will be created, independently of existing topics.

    Returns:
        The topic's settings under their current names, and notes on the settings.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: No directory can have such a topic.
    """
    check_topic_name(new.name)
    _check_count(new.partitions)
    texts, notes = normalize(new.config)
    TopicConfig.parse(texts)
    return texts, notes


def unknown_topic(name: str, existing: Iterable[str]) -> UnknownTopic:
    """Return the error for an unknown topic, with the nearest name, or the first existing names."""
    import difflib  # imported here, because the import takes 3 ms and only this error needs it

    names = sorted(existing)
    words = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {words[0]}?" if words else f"; there are: {named_few(names)}"
    return UnknownTopic(f"no topic {name!r}{hint if names else ''}")


def absent_numbers(info: TopicInfo) -> list[int]:
    """Return the numbers of partitions that the topics file lists without a directory, ascending.

    Returns no numbers for a foreign topic, of which a directory may have only some partitions. Also
    returns no numbers if there are more than `PARTITION_COUNT_LIMIT` partitions: a directory that
    is not in the file, but counts as a partition, can have any number.
    """
    if info.foreign or not len(info.present) < info.partitions <= PARTITION_COUNT_LIMIT:
        return []
    present = set(info.present)
    return [number for number in range(info.partitions) if number not in present]


def absent_error(
    directory: str, info: TopicInfo, among: Collection[int] | None = None
) -> MissingFile | None:
    """Return the error for partitions that the topics file lists, but that have no directory.

    Returns None if every partition has a directory. Only partitions in `among` are checked; None
    checks all partitions of the topic.
    """
    absent = set(absent_numbers(info))
    if among is not None:
        absent.intersection_update(among)
    return missing_error(directory, info.name, absent) if absent else None


def not_here_error(directory: str, info: TopicInfo, number: int) -> UnknownTopic:
    """Return the error for a partition of a foreign topic that has no directory here."""
    numbers = ", ".join(map(str, info.present))
    return UnknownTopic(
        f"{directory}: topic {info.name} has no partition {number} here, only {numbers}"
    )


# Advice in errors of reads from partitions that have no directory.
MISSING_ADVICE: Final = (
    "restore missing directories from a backup, or select other partitions; if the partitions are"
    " being created, try again"
)


def missing_error(directory: str, topic: str, numbers: Collection[int]) -> MissingFile:
    """Return the error for partitions that `TOPICS_FILE` lists, but that have no directory."""
    verbs = f"{verb(len(numbers), 'is', 'are')} listed in {TOPICS_FILE}, but"
    names = f"{verb(len(numbers), 'partition', 'partitions')} {ranges_text(numbers)}"
    reason = f"{names} {verbs} {verb(len(numbers), 'has', 'have')} no directory"
    return MissingFile(directory, f"reading {topic}", reason)


class _Names:
    """Names of existing topics."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        # Kafka's metrics show a `.` in a topic's name as `_`, so Kafka refuses two topics that
        # differ only in these characters.
        self._twins = {name.replace(".", "_"): name for name in self._names}

    def check(self, name: str) -> None:
        """Raise TopicExists or InvalidTopic if a topic of that name can't be added."""
        if name in self._names:
            raise TopicExists(f"topic {name} already exists")
        other = self._twins.get(name.replace(".", "_"))
        if other is not None:
            raise InvalidTopic(
                f"topic {name} differs from the existing topic {other} only in '.' and '_', which"
                " Kafka's metrics don't distinguish; choose another name"
            )

    def take(self, name: str) -> None:
        """Add a name to the existing names."""
        self._names.add(name)
        self._twins[name.replace(".", "_")] = name


def _saved(info: TopicInfo | OSError, notes: list[ConfigNote]) -> CreatedTopic | OSError:
    return info if isinstance(info, OSError) else (info, notes)


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= PARTITION_COUNT_LIMIT:
        raise InvalidPartitions(
            f"the number of partitions must be 1 to {PARTITION_COUNT_LIMIT}, got {partitions}"
        )
