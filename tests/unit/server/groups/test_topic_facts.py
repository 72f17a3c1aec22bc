"""What groups ask of topics: found once, and anew when topics have changed."""

from collections.abc import Mapping
from uuid import UUID

from tidelog.config import TopicConfig
from tidelog.server.groups.topic_facts import KNOWN_MAX, TopicFacts
from tidelog.storage.topic_info import TopicInfo


class FakeTopics:
    """Topics that a test sets."""

    def __init__(self, **partitions: int) -> None:
        self.made: Mapping[str, TopicInfo] = {}
        self.make(**partitions)

    def make(self, **partitions: int) -> None:
        self.made = {
            name: TopicInfo(
                name=name, topic_id=topic_id(name), partitions=count, config=TopicConfig()
            )
            for name, count in partitions.items()
        }

    def all(self) -> Mapping[str, TopicInfo]:
        return self.made


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"-"))


def test_ids_and_counts_are_of_topics_that_there_are() -> None:
    facts = TopicFacts(FakeTopics(a=1, b=2))
    assert facts.ids(["a", "c"]) == {topic_id("a")}
    assert facts.partition_counts() == {topic_id("a"): 1, topic_id("b"): 2}
    assert facts.metadata_hash(["c"]) == 0


def test_hash_tells_names_apart_not_their_order() -> None:
    facts = TopicFacts(FakeTopics(a=1, b=2))
    both = facts.metadata_hash(["a", "b"])
    assert facts.metadata_hash(["b", "a", "c"]) == both
    assert len({both, facts.metadata_hash(["a"]), facts.metadata_hash(["b"]), 0}) == 4


def test_changed_topics_are_seen() -> None:
    topics = FakeTopics(a=1)
    facts = TopicFacts(topics)
    before = facts.metadata_hash(["a"]), facts.ids(["a", "b"]), facts.partition_counts()
    topics.make(a=2, b=1)
    assert facts.metadata_hash(["a"]) != before[0]
    assert facts.ids(["a", "b"]) == {topic_id("a"), topic_id("b")}
    assert facts.partition_counts()[topic_id("a")] == 2


def test_what_is_remembered_has_a_bound() -> None:
    facts = TopicFacts(FakeTopics(a=1))
    for number in range(2 * KNOWN_MAX):
        assert facts.ids(["a", f"other {number}"]) == {topic_id("a")}
        assert len(facts._ids) <= KNOWN_MAX
