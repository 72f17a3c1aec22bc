"""The `uniform` assignor for members that subscribe to different topics."""

from uuid import UUID

import pytest

from tidelog.server.groups.mixed_assignor import assign_mixed

ROUTES, STOPS = UUID(int=1), UUID(int=2)
READERS = [
    ("a", frozenset({ROUTES})),
    ("b", frozenset({ROUTES})),
    ("c", frozenset({STOPS})),
]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (({0, 1}, {2}), ({0, 1}, {2})),
        (({0, 1}, set()), ({0}, {1})),
        (({0, 1, 2}, set()), ({0, 1}, {2})),
        (({0, 1, 2}, {3}), ({0, 1}, {2, 3})),
    ],
)
def test_partitions_move_until_readers_of_a_topic_differ_by_one(
    before: tuple[set[int], set[int]], after: tuple[set[int], set[int]]
) -> None:
    targets = {
        name: {ROUTES: frozenset(numbers)} if numbers else {}
        for name, numbers in zip("abc", (*before, set[int]()), strict=True)
    }
    assigned = assign_mixed(READERS, targets, {ROUTES: sum(map(len, before)), STOPS: 1})
    assert [set(assigned[name][ROUTES]) for name in "ab"] == [*after]
    assert assigned["c"] == {STOPS: frozenset({0})}
