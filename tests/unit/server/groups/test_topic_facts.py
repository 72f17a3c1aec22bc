"""Topic ids and partition counts are cached for groups, and read again after topics changed."""

import tracemalloc

from tests.worlds.brokers.groups import World, topic_id

from tidelog.server.groups.group_updates import CACHE_ENTRIES_MAX, TopicFacts


def asked(**partitions: int) -> tuple[World, TopicFacts]:
    world = World()
    world.make_topics(**partitions)
    return world, TopicFacts(world.node.topics)


def test_ids_and_counts_are_of_topics_that_there_are() -> None:
    _, facts = asked(a=1, b=2)
    assert facts.ids(["a", "c"]) == {topic_id("a")}
    counts = facts.partition_counts()
    assert (counts[topic_id("a")], counts[topic_id("b")]) == (1, 2)
    assert topic_id("c") not in counts
    assert facts.metadata_hash(["c"]) == 0


def test_the_hash_depends_on_the_names_but_not_on_their_order() -> None:
    _, facts = asked(a=1, b=2)
    both = facts.metadata_hash(["a", "b"])
    assert facts.metadata_hash(["b", "a", "c"]) == both
    assert len({both, facts.metadata_hash(["a"]), facts.metadata_hash(["b"]), 0}) == 4


def test_changed_topics_are_seen() -> None:
    world, facts = asked(a=1)
    before = facts.metadata_hash(["a"]), facts.ids(["a", "b"]), facts.partition_counts()
    world.make_topics(a=2, b=1)
    assert facts.metadata_hash(["a"]) != before[0]
    assert facts.ids(["a", "b"]) == {topic_id("a"), topic_id("b")}
    assert facts.partition_counts()[topic_id("a")] == 2


def test_the_cache_of_topic_facts_is_bounded() -> None:
    _, facts = asked(a=1)
    tracemalloc.start()
    try:
        for number in range(20 * CACHE_ENTRIES_MAX):
            assert facts.ids(["a", f"other {number}"]) == {topic_id("a")}
        # A set of two names takes more than 200 bytes, so a cache of all these sets would take more
        # than 4 MB.
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        for number in range(5 * CACHE_ENTRIES_MAX):
            assert facts.ids([f"{number}" * 1000]) == set()
        assert tracemalloc.get_traced_memory()[0] < 3 << 20
    finally:
        tracemalloc.stop()
