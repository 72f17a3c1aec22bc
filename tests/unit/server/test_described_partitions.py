"""DescribeTopicPartitions: the partitions in one response, and the cursor for the next request."""

import asyncio
from pathlib import Path

import pytest
from tests.worlds.brokers.socketless import World, watched

from tidelog.protocol.messages import DESCRIBE_TOPIC_PARTITIONS
from tidelog.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.server.api import metadata
from tidelog.server.api.context import RequestContext
from tidelog.server.api.metadata import Part, describe_topic_partitions, split
from tidelog.server.api.node import ClientInfo

COUNTS = {"a": 2, "b": 0, "c": 3}


def test_all_partitions_fit_into_one_response() -> None:
    assert split(["a", "b", "c"], COUNTS, None, 5) == (
        [Part("a", 0, 2), Part("b", 0, 0), Part("c", 0, 3)],
        None,
    )


def test_a_limit_gives_a_cursor_to_the_next_partition() -> None:
    assert split(["a", "c"], COUNTS, None, 2) == (
        [Part("a", 0, 2)],
        Cursor(topic_name="c", partition_index=0),
    )
    assert split(["a", "c"], COUNTS, None, 3) == (
        [Part("a", 0, 2), Part("c", 0, 1)],
        Cursor(topic_name="c", partition_index=1),
    )


def test_cursor_counts_for_its_topic_alone() -> None:
    start = Cursor(topic_name="a", partition_index=1)
    assert split(["a", "c"], COUNTS, start, 9) == ([Part("a", 1, 2), Part("c", 0, 3)], None)
    gone = Cursor(topic_name="aa", partition_index=1)
    assert split(["c"], COUNTS, gone, 9) == ([Part("c", 0, 3)], None)


def test_a_cursor_after_the_last_partition_gives_an_empty_part() -> None:
    start = Cursor(topic_name="c", partition_index=7)
    assert split(["c"], COUNTS, start, 9) == ([Part("c", 3, 3)], None)


def test_responses_joined_by_cursors_have_each_partition_once() -> None:
    names = ["a", "b", "c"]
    for limit in (1, 2, 3, 4):
        seen: list[tuple[str, int]] = []
        cursor: Cursor | None = Cursor(topic_name="a", partition_index=0)
        while cursor is not None:
            assert len(seen) <= sum(COUNTS.values())
            first = cursor.topic_name
            parts, cursor = split([n for n in names if n >= first], COUNTS, cursor, limit)
            seen += [(part.name, n) for part in parts for n in range(part.first, part.end)]
        assert seen == [(name, n) for name in names for n in range(COUNTS[name])]


def test_a_client_that_allows_any_number_gets_the_brokers_maximum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PARTITIONS_MAX", 2)

    async def answered() -> DescribeTopicPartitionsResponse:
        with watched() as errors:
            world = World.open(tmp_path, errors)
            world.node.log_dir.create_topic("t", partitions=3)
            client = ClientInfo(1, "here")
            context = RequestContext(world.node, DESCRIBE_TOPIC_PARTITIONS, 0, "app", client)
            request = DescribeTopicPartitionsRequest(
                topics=[], response_partition_limit=1_000_000, cursor=None
            )
            try:
                return await describe_topic_partitions(context, request)
            finally:
                await world.close()

    response = asyncio.run(answered())
    assert [each.partition_index for each in response.topics[0].partitions] == [0, 1]
    assert response.next_cursor == Cursor(topic_name="t", partition_index=2)
