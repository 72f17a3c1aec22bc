"""What groups ask of topics again and again: ids, hashes, counts; found once and remembered.

The list of topics is another mapping at each change. What was found goes by one, and is forgotten
with it.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, Protocol
from uuid import UUID

from tidelog.storage.topic_info import TopicInfo

HASH_BYTES: Final = 8
# Sets of names that are remembered, of each kind; then all are found anew.
KNOWN_MAX: Final = 1024
# Of all names that are remembered: members may subscribe to topics that do not exist.
CHARACTERS_MAX: Final = 1 << 20


class TopicList(Protocol):
    """The topics of the broker."""

    def all(self) -> Mapping[str, TopicInfo]:
        """All by name; another mapping at each change."""
        ...


class TopicFacts:
    """Answers about topics as they are now. Belongs to the loop's thread."""

    def __init__(self, topics: TopicList) -> None:
        self._topics = topics
        self._seen: Mapping[str, TopicInfo] = {}
        self._ids: dict[frozenset[str], frozenset[UUID]] = {}
        self._hashes: dict[frozenset[str], int] = {}
        self._counts: Mapping[UUID, int] | None = None
        self._characters = 0

    def _look(self) -> Mapping[str, TopicInfo]:
        topics = self._topics.all()
        is_full = max(len(self._ids), len(self._hashes)) >= KNOWN_MAX
        if topics is not self._seen or is_full or self._characters > CHARACTERS_MAX:
            self._seen, self._counts, self._characters = topics, None, 0
            self._ids.clear()
            self._hashes.clear()
        return topics

    def ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """Ids of those of these topics that there are."""
        topics, asked = self._look(), frozenset(names)
        found = self._ids.get(asked)
        if found is None:
            ids = (topics[name].topic_id for name in asked if name in topics)
            self._characters += sum(map(len, asked))
            found = self._ids[asked] = frozenset(each for each in ids if each is not None)
        return found

    def metadata_hash(self, names: Iterable[str]) -> int:
        """A hash of these topics' names, ids and partitions; 0 where there are none."""
        topics, asked = self._look(), frozenset(names)
        found = self._hashes.get(asked)
        if found is None:
            self._characters += sum(map(len, asked))
            found = self._hashes[asked] = _hash_of(
                topics[name] for name in sorted(asked) if name in topics
            )
        return found

    def partition_counts(self) -> Mapping[UUID, int]:
        """How many partitions each topic has."""
        topics = self._look()
        if self._counts is None:
            self._counts = {
                info.topic_id: info.partitions
                for info in topics.values()
                if info.topic_id is not None
            }
        return self._counts


def _hash_of(topics: Iterable[TopicInfo]) -> int:
    known = list(topics)
    if not known:
        return 0
    hashed = blake2b(digest_size=HASH_BYTES)
    for info in known:
        hashed.update(f"{info.name}\0{info.topic_id}\0{info.partitions}\n".encode())
    return int.from_bytes(hashed.digest(), "big", signed=True)
