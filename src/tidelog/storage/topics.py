"""The topics of a directory as they change: names, ids, partition counts and settings.

Kafka keeps these in its metadata log, which a directory of ours has not, so they lie in a small
file of our own at the top, `tidelog-topics.json`, replaced atomically; its text is told in
`topics_file`, and what a directory holds is found by `topic_info`.

Owns no lock: only the holder of the directory's lock may call what changes it.
"""

import posixpath
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tidelog.config import ConfigNote, TopicConfig, key_names, normalize
from tidelog.env import FileSystem
from tidelog.errors import (
    InvalidPartitions,
    InvalidTopic,
    TidelogError,
    TopicExists,
    UnknownTopic,
)
from tidelog.storage.files import (
    CLUSTER_METADATA_TOPIC,
    check_topic_name,
    random_topic_id,
    write_atomically,
)
from tidelog.storage.topic_info import TopicInfo, find_all, give_ids, named_few
from tidelog.storage.topics_file import (
    PARTITION_COUNT_LIMIT,
    TOPICS_FILE,
    TopicEntry,
    encode_topics,
)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that is to be.

    Attributes:
        name: By Kafka's rules.
        partitions: From 1 on.
        config: Settings; other names of a setting are taken and reported.
        topic_id: The id to take instead of a new one.
    """

    name: str
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: uuid.UUID | None = None


# A new topic, and what to tell about its settings.
Made: TypeAlias = tuple[TopicInfo, list[ConfigNote]]
# Makes directories; gives, by topic, why some could not be made.
Make: TypeAlias = Callable[[Collection[TopicInfo]], Mapping[str, OSError]]


class TopicRegistry:
    """The topics of a directory that we may change. One change at a time; others may look on.

    Each change is in the file, durably, before its method returns. Where that raises OSError the
    change counts as not done here; the file has its old or its new content, never half of one.
    Partition directories are the caller's business (`make`): they are there before anybody sees
    the topic, and after it is in the file.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        defaults: Mapping[str, str] | None = None,
        source: random.Random | None = None,
    ) -> None:
        """Read what is there, as `find_topics`; with a `source`, draw ids where none is there."""
        self._files = files
        self._directory = directory
        self._defaults = dict(defaults or {})
        read = find_all(files, directory, self._defaults)
        self._topics, self.notes, self.leftovers = read.topics, read.notes, read.leftovers
        # Deleted topics whose directories may have their names yet; the file's as it was written.
        self._deleted, self._is_stale = read.deleted, bool(read.deleted)
        # Whether the file may say of topics that they are deleted which are not.
        self.is_doubtful = False
        if (found := self._topics.get(CLUSTER_METADATA_TOPIC)) is not None and found.foreign:
            # A log of Kafka's own controller: nobody else recovers, shortens or serves it.
            del self._topics[CLUSTER_METADATA_TOPIC]
        if source is not None:
            give_ids(files, directory, self._topics, source)

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name."""
        return self._topics

    @property
    def defaults(self) -> Mapping[str, str]:
        """Settings, under a broker's names, of topics that have none of their own."""
        return self._defaults

    def get(self, name: str) -> TopicInfo:
        """One topic; raises UnknownTopic, which names the nearest one."""
        found = self._topics.get(name)
        if found is None:
            raise unknown_topic(name, self._topics)
        return found

    def use_defaults(self, defaults: Mapping[str, str]) -> None:
        """Give topics other defaults, under a broker's names; nothing is written.

        Raises:
            ConfigError: With these a topic's own settings contradict; nothing was changed.
        """
        made = {
            name: replace(info, config=TopicConfig.parse(info.given, broker=defaults)[0])
            for name, info in self._topics.items()
        }
        self._defaults = dict(defaults)
        self._show(made)

    def create(
        self,
        name: str,
        partitions: int,
        given: Mapping[str, str],
        *,
        source: random.Random,
        topic_id: uuid.UUID | None = None,
    ) -> Made:
        """Add a topic; see `create_all`.

        Raises:
            InvalidTopic, TopicExists, InvalidPartitions, ConfigError: The request can't be met.
            OSError: The file could not be written.
        """
        (made,) = self.create_all([NewTopic(name, partitions, given, topic_id)], source=source)
        if isinstance(made, TidelogError | OSError):
            raise made
        return made

    def create_all(
        self, new: Iterable[NewTopic], *, source: random.Random, make: Make | None = None
    ) -> list[Made | TidelogError | OSError]:
        """Add topics, in one write of the file, but for those that can't be.

        Args:
            new: What is to be added.
            source: Where new topic ids are drawn from.
            make: Makes the directories of all their partitions.

        Returns:
            For each the topic, or why it is not there: InvalidTopic, TopicExists,
            InvalidPartitions, ConfigError, OSError.
        """
        names = _Names(self._topics)
        found: list[Made | TidelogError | OSError] = []
        for each in new:
            try:
                found.append(self._planned(each, names, source))
            except TidelogError as error:
                found.append(error)
        planned = [each[0] for each in found if isinstance(each, tuple)]
        saved = iter(self._save_made(planned, make))
        return [_saved(next(saved), each[1]) if isinstance(each, tuple) else each for each in found]

    def _planned(self, new: NewTopic, names: "_Names", source: random.Random) -> Made:
        texts, notes = check_new(new)
        names.check(new.name)
        info = TopicInfo(
            name=new.name,
            topic_id=new.topic_id or random_topic_id(source),
            partitions=new.partitions,
            given=texts,
            config=TopicConfig.parse(new.config, broker=self._defaults)[0],
        )
        names.take(new.name)
        return info, notes

    @property
    def deleted(self) -> Set[str]:
        """Names of deleted topics whose directories may have these names yet."""
        return self._deleted.keys()

    def hide(self, names: Iterable[str]) -> list[TopicInfo]:
        """Show topics no more; they are in the file still. Raises UnknownTopic: none is hidden.

        Until `delete_hidden` nothing else may be changed.
        """
        hidden = {name: self.get(name) for name in names}
        self._topics = {name: kept for name, kept in self._topics.items() if name not in hidden}
        return list(hidden.values())

    def delete_hidden(self, hidden: Iterable[TopicInfo]) -> None:
        """Delete what was hidden, in one write of the file: all of it, or nothing.

        Their directories count for nothing from then on; `forget_deleted` when they are gone.

        Raises:
            OSError: The file could not be written.
        """
        known, gone = self._deleted, {info.name: info.topic_id for info in hidden}
        self._deleted = {**known, **gone}
        try:
            self._write(self._topics)
        except OSError:
            self._deleted = known
            raise

    def show_again(self, hidden: Iterable[TopicInfo]) -> None:
        """Show what was hidden; where the file might say that it is deleted, mend that.

        Where that fails, `settle` tries again.
        """
        self._show({**self._topics, **{info.name: info for info in hidden}})
        self.is_doubtful = True
        with suppress(OSError):
            self.settle()

    def settle(self) -> None:
        """Let the file say what is shown, before more is built on that; raises OSError."""
        if self.is_doubtful:
            self._write(self._topics)

    def forget_deleted(self, names: Collection[str]) -> None:
        """Deleted topics have no directory of their names any more, durably."""
        self._deleted = {n: gone for n, gone in self._deleted.items() if n not in names}

    def tidy(self) -> None:
        """Take out of the file what is forgotten; raises OSError."""
        if self._is_stale and not self._deleted:
            self._write(self._topics)

    def alter(
        self, name: str, changes: Mapping[str, str | None], *, source: random.Random
    ) -> tuple[TopicInfo, list[ConfigNote]]:
        """Change settings; None goes back to the default. A foreign topic becomes ours by it.

        Raises:
            UnknownTopic, ConfigError, OSError: Nothing was changed.
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

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Raise a topic's number of partitions to `partitions`; see `grow_all`.

        Raises:
            UnknownTopic: No such topic.
            InvalidPartitions: It has as many or more.
            OSError: The file could not be written.
        """
        (grown,) = self.grow_all({name: partitions})
        if isinstance(grown, TidelogError | OSError):
            raise grown
        return grown

    def grow_all(
        self, counts: Mapping[str, int], *, make: Make | None = None
    ) -> list[TopicInfo | TidelogError | OSError]:
        """Raise numbers of partitions, in one write of the file, where that can be.

        Args:
            counts: How many partitions there shall be in all, by topic.
            make: Makes the directories that they lack.

        Returns:
            For each the topic, or why it has not grown: UnknownTopic, InvalidPartitions, OSError.
        """
        found: list[TopicInfo | TidelogError | OSError] = []
        for name, count in counts.items():
            try:
                found.append(self._grown(name, count))
            except TidelogError as error:
                found.append(error)
        saved = iter(self._save_made([each for each in found if isinstance(each, TopicInfo)], make))
        return [next(saved) if isinstance(each, TopicInfo) else each for each in found]

    def _grown(self, name: str, partitions: int) -> TopicInfo:
        info = self.get(name)
        _check_count(partitions)
        if partitions <= info.partitions:
            raise InvalidPartitions(f"topic {name} has {info.partitions} partitions already")
        return replace(info, partitions=partitions)

    def _save_made(
        self, infos: Sequence[TopicInfo], make: Make | None
    ) -> list[TopicInfo | OSError]:
        """Write topics, make their directories, then show them; for each that, or what failed."""
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
        shown = {**self._topics, **{each.name: each for each in infos if each.name not in failed}}
        if failed:
            with suppress(OSError):
                self._write(shown)
        self._show(shown)
        return [failed.get(info.name, info) for info in infos]

    def _save(self, topics: Mapping[str, TopicInfo]) -> None:
        """Write the file, then take its content."""
        self._write(topics)
        self._show(topics)

    def _show(self, topics: Mapping[str, TopicInfo]) -> None:
        self._topics = dict(sorted(topics.items()))

    def _write(self, topics: Mapping[str, TopicInfo]) -> None:
        """Write the file; foreign topics stay out of it."""
        entries = {
            name: TopicEntry(info.topic_id, info.partitions, info.given)
            for name, info in topics.items()
            if not info.foreign and info.topic_id is not None
        }
        path = posixpath.join(self._directory, TOPICS_FILE)
        write_atomically(self._files, path, encode_topics(entries, self._deleted))
        self._is_stale, self.is_doubtful = bool(self._deleted), False


def check_new(new: NewTopic) -> tuple[dict[str, str], list[ConfigNote]]:
    """Check a topic that is to be made, without looking at what is there.

    Returns:
        Its settings under their proper names, and notes on them.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: It can't be made anywhere.
    """
    check_topic_name(new.name)
    _check_count(new.partitions)
    texts, notes = normalize(new.config)
    TopicConfig.parse(texts)
    return texts, notes


def unknown_topic(name: str, known: Iterable[str]) -> UnknownTopic:
    """The error for a topic that is not there, with the nearest name, or the first names there."""
    import difflib  # only for errors: it costs 3 ms

    names = sorted(known)
    words = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {words[0]}?" if words else f"; there are: {named_few(names)}"
    return UnknownTopic(f"no topic {name!r}{hint if names else ''}")


class _Names:
    """Names that are taken."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        # Kafka's metrics write both as `_`, so it refuses two topics that differ only in that.
        self._twins = {name.replace(".", "_"): name for name in self._names}

    def check(self, name: str) -> None:
        """Raises TopicExists, InvalidTopic where a topic of that name can't be added."""
        if name in self._names:
            raise TopicExists(f"topic {name} exists already")
        other = self._twins.get(name.replace(".", "_"))
        if other is not None:
            raise InvalidTopic(f"topic {name} differs from {other} only in '.' and '_'")

    def take(self, name: str) -> None:
        """The name is taken from now on."""
        self._names.add(name)
        self._twins[name.replace(".", "_")] = name


def _saved(info: TopicInfo | OSError, notes: list[ConfigNote]) -> Made | OSError:
    return info if isinstance(info, OSError) else (info, notes)


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= PARTITION_COUNT_LIMIT:
        raise InvalidPartitions(f"{partitions} partitions, 1 to {PARTITION_COUNT_LIMIT} allowed")
