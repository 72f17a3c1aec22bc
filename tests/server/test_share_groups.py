"""Share groups through a broker: heartbeats, admin requests, rights, restarts."""

import asyncio
from collections.abc import Awaitable
from threading import Event

from tests.worlds.brokers.running import SETTINGS, share_states
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until, until_so

import tidelog
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_GROUPS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
)
from tidelog.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    ListedGroup,
    ListGroupsRequest,
)
from tidelog.protocol.messages.modern_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidelog.protocol.messages.share_fetch import (
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tidelog.server.api.context import Answer, RequestContext
from tidelog.server.api.handlers import handler_of
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.embedded import Broker
from tidelog.server.runtime.threads import THREADS

# Error codes while the offsets topic is being created or loaded.
LOADING = (14, 15, 16)
GROUP = "sharers"
# Number of loop iterations in which the broker sends any response that does not have to wait.
TURNS = 20


def start(data: str) -> Broker:
    settings = {**SETTINGS, "group.share.assignment.interval.ms": "0"}
    return tidelog.broker(data, settings=settings)


def beat(broker: Broker, member: str, epoch: int, *topics: str) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=list(topics) or None,
    )
    with RawClient(broker.bootstrap_servers) as asking:
        asking.ask(FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[GROUP]))
        return until(
            lambda: asking.ask(SHARE_GROUP_HEARTBEAT, 1, request),
            lambda told: told.error_code not in LOADING,
        )


def described(broker: Broker, *groups: str) -> list[DescribedShareGroup]:
    request = ShareGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=True)
    with RawClient(broker.bootstrap_servers) as asking:
        return asking.ask(SHARE_GROUP_DESCRIBE, 1, request).groups


def listed(broker: Broker, **filters: list[str]) -> list[ListedGroup]:
    with RawClient(broker.bootstrap_servers) as asking:
        return asking.ask(LIST_GROUPS, 5, ListGroupsRequest(**filters)).groups


def test_a_group_lives_through_a_restart_and_dies_when_it_is_deleted(data: str) -> None:
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=2))
        joined = beat(broker, "A", 0, "routes")
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "A", 2)
        assert joined.assignment is not None
        assert [part.partitions for part in joined.assignment.topic_partitions] == [[0, 1]]
        assert beat(broker, "A", 2).assignment is None
    with start(data) as broker:
        assert beat(broker, "A", 2).error_code == 0
        (group,) = described(broker, GROUP)
        (member,) = group.members
        assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
        assert (group.group_epoch, group.assignment_epoch, member.member_epoch) == (2, 2, 2)
        assert (member.client_id, member.subscribed_topic_names) == ("raw", ["routes"])
        (part,) = member.assignment.topic_partitions
        assert (part.topic_name, part.partitions) == ("routes", [0, 1])
        assert beat(broker, "A", -1).member_epoch == -1
        with RawClient(broker.bootstrap_servers) as asking:
            told = asking.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[GROUP]))
        assert [result.error_code for result in told.results] == [0]
        assert [group.error_code for group in described(broker, GROUP, "")] == [69, 24]


def test_groups_are_listed_by_type_and_state(data: str) -> None:
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=2))
        beat(broker, "A", 0, "routes")
        expected = [
            ListedGroup(
                group_id=GROUP, protocol_type="share", group_state="Stable", group_type="share"
            )
        ]
        assert listed(broker) == expected
        assert listed(broker, types_filter=["Share"]) == expected
        assert listed(broker, types_filter=["consumer", "classic"]) == []
        assert listed(broker, states_filter=["Empty"]) == []
        beat(broker, "A", -1)
        (found,) = listed(broker, states_filter=["empty"])
        assert found.group_state == "Empty"


def offsets(broker: Broker, *numbers: int) -> list[tuple[int, int, int, int]]:
    """Return index, start offset, lag and error code of these (or all) partitions of `routes`."""
    topic = DescribeShareGroupOffsetsRequestTopic(topic_name="routes", partitions=list(numbers))
    group = DescribeShareGroupOffsetsRequestGroup(
        group_id=GROUP, topics=[topic] if numbers else None
    )
    with RawClient(broker.bootstrap_servers) as asking:
        request = DescribeShareGroupOffsetsRequest(groups=[group])
        (told,) = asking.ask(DESCRIBE_SHARE_GROUP_OFFSETS, 1, request).groups
    assert told.error_code == 0
    return [
        (each.partition_index, each.start_offset, each.lag, each.error_code)
        for found in told.topics
        for each in found.partitions
    ]


def alter(broker: Broker, **starts: int) -> AlterShareGroupOffsetsResponse:
    """Set the group's start offsets in partition 0 and in the missing partition 9 of each topic."""
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start)
                for number in (0, 9)
            ],
        )
        for name, start in starts.items()
    ]
    request = AlterShareGroupOffsetsRequest(group_id=GROUP, topics=topics)
    with RawClient(broker.bootstrap_servers) as asking:
        return asking.ask(ALTER_SHARE_GROUP_OFFSETS, 0, request)


def forget(broker: Broker, *names: str) -> DeleteShareGroupOffsetsResponse:
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    request = DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=topics)
    with RawClient(broker.bootstrap_servers) as asking:
        return asking.ask(DELETE_SHARE_GROUP_OFFSETS, 0, request)


def test_tools_show_and_change_the_offsets_of_a_group(data: str) -> None:
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=2))
        assert beat(broker, "A", 1).error_code == 69
        assert forget(broker, "routes").error_code == 69
        assert offsets(broker) == []
        told = alter(broker, routes=7, nowhere=7)
        assert told.error_code == 0
        codes = [[each.error_code for each in topic.partitions] for topic in told.responses]
        assert codes == [[0, 3], [3, 3]]
        assert offsets(broker) == [(0, 7, -7, 0)]
        assert offsets(broker, 0, 1) == [(0, 7, -7, 0), (1, -1, -1, 0)]
        beat(broker, "A", 0, "routes")
        assert alter(broker, routes=8).error_code == 68
        assert forget(broker, "routes").error_code == 68
        beat(broker, "A", -1)
        assert offsets(broker) == [(0, 7, -7, 0), (1, -1, -1, 0)]
    with start(data) as broker:
        beat(broker, "B", 1)
        assert offsets(broker, 0) == [(0, 7, -7, 0)]
        gone = forget(broker, "routes", "nowhere")
        assert [topic.error_code for topic in gone.responses] == [0, 3]
        assert offsets(broker) == []
        assert offsets(broker, 0) == [(0, -1, -1, 0)]


def altered(broker: Broker, *asked: tuple[int, int]) -> list[tuple[int, int]]:
    """Set start offsets by a request that names `routes` twice; return each partition's code."""
    partitions = [
        AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start)
        for number, start in asked
    ]
    topic = AlterShareGroupOffsetsRequestTopic(topic_name="routes", partitions=partitions)
    request = AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[topic, topic])
    with RawClient(broker.bootstrap_servers) as asking:
        told = asking.ask(ALTER_SHARE_GROUP_OFFSETS, 0, request)
    assert told.error_code == 0
    return [
        (each.partition_index, each.error_code)
        for found in told.responses
        for each in found.partitions
    ]


def test_a_repeated_partition_is_changed_and_returned_once(data: str) -> None:
    """If 5,000 repetitions of a partition were written one by one, the request would take 1 s."""
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=2))
        beat(broker, "A", 1)
        often = [(0, number) for number in range(300)]
        assert altered(broker, *often, (1, 4)) == [(0, 0), (1, 0)]
        assert offsets(broker, *[0] * 300, 1) == [(0, 299, -299, 0), (1, 4, -4, 0)]
        kept = broker.call(lambda node: share_states(node, GROUP))
        assert [each.snapshot_epoch for each in kept] == [0, 0]


def test_no_group_begins_below_0(data: str) -> None:
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=2))
        beat(broker, "A", 1)
        assert altered(broker, (0, -7), (1, 3)) == [(0, 42), (1, 0)]
        assert offsets(broker) == [(1, 3, -3, 0)]
        assert altered(broker, (1, -1)) == [(1, 0)]  # again at the group's configured start
        assert offsets(broker) == [(1, -1, -1, 0)]


def test_no_group_is_created_for_missing_topics(data: str) -> None:
    with start(data) as broker:
        beat(broker, "A", 1)
        assert altered(broker, (0, 0)) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert listed(broker) == []


def test_a_deleted_group_starts_again_without_state(data: str) -> None:
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=2))
        beat(broker, "A", 1)
        alter(broker, routes=7)
        with RawClient(broker.bootstrap_servers) as asking:
            told = asking.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[GROUP]))
        assert [result.error_code for result in told.results] == [0]
        assert offsets(broker, 0) == [(0, -1, -1, 0)]


def test_a_share_fetch_waits_while_its_group_is_loaded(data: str) -> None:
    """A member's fetch waits while its group is reloaded, instead of getting no records."""
    with start(data) as broker:
        broker.call(lambda node: node.log_dir.create_topic("routes", partitions=1))
        beat(broker, "A", 0, "routes")
        topic_id = broker.call(lambda node: node.topics.all()["routes"].topic_id)
        assert topic_id is not None
        partition = ShareFetchPartition(partition_index=0)
        topic = ShareFetchTopic(topic_id=topic_id, partitions=[partition])
        request = ShareFetchRequest(group_id=GROUP, member_id="A", max_records=1, topics=[topic])
        answers = list["asyncio.Future[ShareFetchResponse]"]()
        may_load = Event()

        def fetch_while_loading(node: Node) -> None:
            for _ in range(THREADS):
                node.work.submit(may_load.wait)
            shards = node.groups.topic
            shards.mark_failed(shards.number_of(GROUP))
            assert shards.error_for(GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            context = RequestContext(node, SHARE_FETCH, 1, "A", ClientInfo(1, "127.0.0.1"))
            answers.append(
                asyncio.ensure_future(_awaited(handler_of(SHARE_FETCH.key)(context, request)))
            )

        broker.call(fetch_while_loading)
        for _ in range(TURNS):
            broker.call(lambda _: None)
        was_answered = answers[0].done()
        may_load.set()
        until_so(answers[0].done)
        told = answers[0].result()
    assert not was_answered
    assert told.error_code == 0


async def _awaited(said: Answer) -> ShareFetchResponse:
    found = await said if isinstance(said, Awaitable) else said
    assert isinstance(found, ShareFetchResponse)
    return found
