"""Kafka's controller and our broker respond at once to changes of topics with a timeout of 0."""

from uuid import UUID

import pytest
from tests.peers.test_admin_answers import (
    Pair,
    await_topics,
    creating,
    deleting,
    growing,
    ours,
    pair,
    topic,
)

pytestmark = pytest.mark.kafka

__all__ = ["ours", "pair"]  # the fixtures


def test_a_timeout_of_zero_or_less_gets_a_timeout_error(pair: Pair) -> None:
    """Nothing is changed, and each topic gets an error as often as the request names it."""
    pair.agree_on(creating(topic("late")))
    await_topics(pair.kafka, "late")
    for wait_ms in (0, -1):
        pair.agree_on(creating(topic("late-2"), topic("late"), topic("a b"), wait_ms=wait_ms))
        pair.agree_on(creating(topic("late-2"), topic("late-2"), version=4, wait_ms=wait_ms))
        pair.agree_on(creating(topic("late-2"), trial=True, wait_ms=wait_ms))
        pair.agree_on(growing(("late", 3, None), ("nope", 3, None), wait_ms=wait_ms))
        for version in (5, 6):
            pair.agree_on(deleting("late", "nope", version=version, wait_ms=wait_ms))
            pair.agree_on(deleting("late", "nope", "nope", version=version, wait_ms=wait_ms))
        for ids in ((77,), (0,), (77, 77), (0, 77)):
            pair.agree_on(deleting(ids=tuple(UUID(int=each) for each in ids), wait_ms=wait_ms))
            pair.agree_on(
                deleting("late", "late", ids=tuple(UUID(int=e) for e in ids), wait_ms=wait_ms)
            )
        pair.agree_on(deleting("nope", "nope", wait_ms=wait_ms))
        pair.agree_on(growing(("nope", 3, None), ("nope", 3, None), wait_ms=wait_ms))
    pair.agree_on(growing(("late", 2, None)))
    pair.agree_on(creating(topic("late-2")))
