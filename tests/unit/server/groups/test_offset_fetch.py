"""OffsetFetch for offsets that were committed for another topic of the same name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from tests.unit.server.groups.test_shards import GROUP, running_node
from tests.unit.server.loops import on_a_loop

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.api.context import RequestContext
from tidelog.server.api.group_offsets import offset_fetch
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest

TOPIC = "flights"
# Partitions, named by their commit: a commit for the deleted topic, a commit without a topic id, a
# commit for the present topic, and no commit.
FORMER, UNKNOWN, PRESENT, NOTHING = range(4)


def id_of(node: Node, name: str = TOPIC) -> UUID:
    info = node.topics.find(name)
    assert info is not None
    assert info.topic_id is not None
    return info.topic_id


@asynccontextmanager
async def broker_with_commits(path: Path) -> AsyncIterator[Node]:
    """Start a broker with commits for its topics and for former topics with the same names."""
    async with running_node(path) as node:
        await node.groups.topic.ensure_topic()
        for name in (TOPIC, "ships"):
            node.log_dir.create_topic(name, partitions=4)
        commits = [
            Commit(TOPIC, FORMER, 7, 3, "old", UUID(int=1)),
            Commit(TOPIC, UNKNOWN, 8, topic_id=NO_UUID),
            Commit(TOPIC, PRESENT, 9, topic_id=id_of(node)),
            Commit("ships", 0, 10, topic_id=UUID(int=2)),
        ]
        said = node.groups.commits.commit(CommitRequest(group_id=GROUP), commits)
        assert await said == [ErrorCode.NONE] * 4
        yield node


async def fetched(
    node: Node, version: int, topic: OffsetFetchTopic | None
) -> dict[tuple[UUID, int], tuple[int, int, str | None, int]]:
    """Send OffsetFetch; return offset, epoch, metadata and error by topic id and partition."""
    context = RequestContext(node, OFFSET_FETCH, version, "test", ClientInfo(9, "127.0.0.1"))
    group = OffsetFetchGroup(group_id=GROUP, topics=None if topic is None else [topic])
    said = await offset_fetch(context, OffsetFetchRequest(groups=[group]))
    assert isinstance(said, OffsetFetchResponse)
    (told,) = said.groups
    assert told.error_code == 0
    assert all(each.partitions for each in told.topics)
    return {
        (each.topic_id, one.partition_index): (
            one.committed_offset,
            one.committed_leader_epoch,
            one.metadata,
            one.error_code,
        )
        for each in told.topics
        for one in each.partitions
    }


@on_a_loop
async def test_a_new_topic_has_no_offsets_of_the_former_one(tmp_path: Path) -> None:
    async with broker_with_commits(tmp_path) as node:
        topic_id = id_of(node)
        asked = OffsetFetchTopic(topic_id=topic_id, partition_indexes=[*range(4)])
        assert await fetched(node, 10, asked) == {
            (topic_id, FORMER): (-1, -1, "", 0),
            (topic_id, UNKNOWN): (8, -1, "", 0),
            (topic_id, PRESENT): (9, -1, "", 0),
            (topic_id, NOTHING): (-1, -1, "", 0),
        }


@on_a_loop
async def test_all_offsets_of_a_group_are_those_of_the_topics_they_were_committed_for(
    tmp_path: Path,
) -> None:
    async with broker_with_commits(tmp_path) as node:
        topic_id = id_of(node)
        assert await fetched(node, 10, None) == {
            (topic_id, UNKNOWN): (8, -1, "", 0),
            (topic_id, PRESENT): (9, -1, "", 0),
        }


@on_a_loop
async def test_a_fetch_by_name_returns_all_offsets_of_that_name(tmp_path: Path) -> None:
    async with broker_with_commits(tmp_path) as node:
        asked = OffsetFetchTopic(name=TOPIC, partition_indexes=[FORMER, PRESENT])
        told = await fetched(node, 9, asked)
        assert [*told.values()] == [(7, 3, "old", 0), (9, -1, "", 0)]
        told = await fetched(node, 9, None)
        assert sorted(each[0] for each in told.values()) == [7, 8, 9, 10]
