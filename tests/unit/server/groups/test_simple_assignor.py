"""Share groups assign partitions to members evenly, and members to partitions evenly."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.server.coordinator.java_hash import ample_table_size
from tidelog.server.groups.assignors import assign_simple
from tidelog.server.groups.modern_group import Target

TOPICS = [UUID(int=number) for number in range(1, 5)]
topics = st.frozensets(st.sampled_from(TOPICS), max_size=4)
members = st.dictionaries(st.sampled_from([f"m{n}" for n in range(12)]), topics, max_size=12)
counts = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})


def partitions(of: dict[UUID, int]) -> dict[UUID, frozenset[int]]:
    return {topic: frozenset(range(count)) for topic, count in of.items()}


def readers(found: dict[str, Target], topic: UUID, number: int) -> int:
    return sum(number in target.get(topic, ()) for target in found.values())


def test_a_table_is_allocated_as_by_kafkas_assignors() -> None:
    """The number of buckets is (count + 1) / 0.75 + 1, rounded up to a power of two."""
    assert [ample_table_size(count) for count in (1, 11, 94, 95)] == [4, 32, 128, 256]


@given(members, counts, members)
def test_each_partition_is_read_by_as_many_as_the_others(
    reads: dict[str, frozenset[UUID]],
    of: dict[UUID, int],
    before: dict[str, frozenset[UUID]],
) -> None:
    had = assign_simple(before, {}, partitions(of))
    found = assign_simple(reads, had, partitions(of))
    assert found.keys() == reads.keys()
    same = len(set(reads.values())) == 1
    for topic in TOPICS:
        interested = [name for name in reads if topic in reads[name]]
        pool = [sum(of[each] for each in reads[interested[0]])] if interested and same else []
        for number in range(of[topic]):
            size = pool[0] if pool else of[topic]
            expected = -(-len(interested) // size)
            assert readers(found, topic, number) == expected
        assert all(topic not in found[name] for name in reads.keys() - set(interested))


@given(st.integers(1, 12), st.integers(1, 9))
def test_members_that_read_the_same_have_as_many_as_each_other(count: int, of: int) -> None:
    reads = {f"m{number}": frozenset({TOPICS[0]}) for number in range(count)}
    found = assign_simple(reads, {}, {TOPICS[0]: frozenset(range(of))})
    sizes = sorted(len(target.get(TOPICS[0], ())) for target in found.values())
    assert sizes[-1] - sizes[0] <= 1
    assert sizes[0] >= 1


def test_members_keep_partitions_that_they_had() -> None:
    of = {TOPICS[0]: frozenset(range(6))}
    two = assign_simple(dict.fromkeys("AB", frozenset(TOPICS[:1])), {}, of)
    three = assign_simple(dict.fromkeys("ABC", frozenset(TOPICS[:1])), two, of)
    for name in "AB":
        assert three[name][TOPICS[0]] < two[name][TOPICS[0]]
    assert assign_simple(dict.fromkeys("ABC", frozenset(TOPICS[:1])), three, of) == three


class CountedId(UUID):
    """A UUID that counts how often hashes of such ids are computed."""

    count = 0

    def __hash__(self) -> int:
        CountedId.count += 1
        return super().__hash__()


def test_the_pool_is_not_scanned_for_each_member() -> None:
    """A scan per member would block the loop for 0.25 s with 200 members and 10,000 partitions."""
    topic = CountedId(int=1)
    reads = {f"m{number}": frozenset[UUID]({topic}) for number in range(100)}
    of: dict[UUID, frozenset[int]] = {topic: frozenset(range(1000))}
    had = assign_simple(reads, {}, of)
    CountedId.count = 0
    assert assign_simple(reads, had, of) == had
    assert CountedId.count < 30 * 1000  # there are 100,000 pairs of member and partition


def test_no_members_or_no_topics_give_an_empty_assignment() -> None:
    assert assign_simple({}, {}, {}) == {}
    assert assign_simple({"A": frozenset()}, {}, {}) == {"A": {}}


def test_a_member_with_too_many_partitions_gives_up_its_first_ones() -> None:
    """Kafka's assignor chooses the same partitions, so the target survives a change of broker."""
    of = {topic: frozenset(range(4)) for topic in TOPICS[:2]}
    one = assign_simple({"A": frozenset(TOPICS[:1])}, {}, of)
    assert one == {"A": {TOPICS[0]: frozenset(range(4))}}
    two = assign_simple({"A": frozenset(TOPICS[:1]), "B": frozenset(TOPICS[:2])}, one, of)
    assert two["A"] == {TOPICS[0]: frozenset({2, 3})}
    assert two["B"] == {TOPICS[0]: frozenset({0, 1}), TOPICS[1]: frozenset(range(4))}
