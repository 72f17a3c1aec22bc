"""No request blocks the event loop for long, even with very long lists or the worst batches."""

import contextlib
import gc
from collections.abc import Iterator
from uuid import UUID

import pytest
from tests.server.longest import Long, longest_lists, request_of
from tests.server.loop_meter import HELD_MAX_S, MeteredBroker, metered_broker
from tests.server.worst_batches import WORST
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until_kernels_loaded, until_so

from tidelog.protocol.messages import (
    CREATE_TOPICS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    SHARE_ACKNOWLEDGE,
)
from tidelog.protocol.messages.classic_groups import DescribeGroupsRequest, FindCoordinatorRequest
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchTopic,
)
from tidelog.protocol.messages.shared import ConfigValue
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tidelog.server.api.metadata import TOPICS_AT_ONCE
from tidelog.server.api.table import ROWS

# Number of elements of a long list. A test fails if the loop spends 25 us on each element.
ELEMENTS = 8000
THERE = "there"
# Requests may delete the topics that they name, so no request names this topic.
PLAIN = "plain"
KEYED = "keyed"
LARGE = 250_000_000
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
INVALID_RECORD = 87


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    path = str(tmp_path_factory.mktemp("metered"))
    settings = {
        **SETTINGS,
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(LARGE),
        "socket.request.max.bytes": str(LARGE),
    }
    with pytest.MonkeyPatch.context() as patch, metered_broker(path, patch, settings) as running:
        compacted = ConfigValue(name="cleanup.policy", value="compact")
        topics = [
            CreatableTopic(name=THERE, num_partitions=1, replication_factor=1),
            CreatableTopic(name=PLAIN, num_partitions=1, replication_factor=1),
            CreatableTopic(name=KEYED, num_partitions=1, replication_factor=1, configs=[compacted]),
        ]
        with RawClient(running.broker.bootstrap_servers) as client:
            client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=9000))
        running.broker.call(lambda node: (node.groups, node.transactions, node.shares))
        until_kernels_loaded()
        until_so(lambda: running.broker.call(lambda node: node.partitions.has_kernels))
        yield running


def held_by(metered: MeteredBroker, long: Long, count: int, name: str | None) -> float:
    """Return the CPU seconds for which one request blocks the loop."""
    request = request_of(long, count, name)
    gc.collect()
    gc.freeze()  # the loop then spends no time on the test's garbage
    with RawClient(metered.broker.bootstrap_servers) as client:
        metered.held_s()
        with contextlib.suppress(ConnectionError):
            client.send(long.api, long.version, request)
            client.receive()
    return metered.held_s()


def test_the_longest_lists_include_every_api_with_a_list() -> None:
    with_lists = {long.api.key for long in longest_lists()}
    assert with_lists <= {row.key for row in ROWS}
    assert len(with_lists) > len(ROWS) * 3 // 4


@pytest.mark.parametrize("name", [None, THERE], ids=["others", "one"])
@pytest.mark.parametrize("long", list(longest_lists()), ids=str)
def test_a_long_list_leaves_the_loop_to_others(
    metered: MeteredBroker, long: Long, name: str | None
) -> None:
    held_by(metered, long, 2, name)  # the first request loads modules and codecs
    held = held_by(metered, long, ELEMENTS, name)
    if held >= HELD_MAX_S:  # the machine may have been slow for a moment
        held = held_by(metered, long, ELEMENTS, name)
    assert held < HELD_MAX_S


def test_a_list_in_several_slices_gets_a_complete_response(metered: MeteredBroker) -> None:
    names = [f"group-{number:050}" for number in range(ELEMENTS)]
    with RawClient(metered.broker.bootstrap_servers) as client:
        answer = client.ask(DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=names))
    assert [group.group_id for group in answer.groups] == names


@pytest.mark.parametrize("topic", [PLAIN, KEYED])
@pytest.mark.parametrize("name", list(WORST))
def test_a_batch_that_takes_long_to_check_leaves_the_loop_to_others(
    metered: MeteredBroker, name: str, topic: str
) -> None:
    batch = WORST[name](metered.broker.call(lambda node: node.env.clock.now_ms()))
    held, codes = [], set()
    with RawClient(metered.broker.bootstrap_servers) as client:
        for _ in range(2):
            gc.collect()
            gc.freeze()
            metered.held_s()
            answer = client.produce(topic, batch)
            codes.add(answer.error_code)
            if not answer.error_code:
                client.list_offsets(topic, 1, 2**62, -3)
            held.append(metered.held_s())
    assert min(held) < HELD_MAX_S
    expected = {"future": INVALID_TIMESTAMP, "equal_deltas": INVALID_RECORD}.get(name, 0)
    if topic == KEYED:
        expected = INVALID_RECORD
    assert codes == {MESSAGE_TOO_LARGE if name == "too_long" else expected}


def test_acknowledgements_of_one_session_epoch_are_not_processed_in_parts(
    metered: MeteredBroker,
) -> None:
    """The first part would change the session's epoch, so all other parts would be refused."""
    batch = AcknowledgementBatch(first_offset=0, last_offset=2599, acknowledge_types=[1] * 2600)
    partitions = [
        ShareFetchPartition(partition_index=number, acknowledgement_batches=[batch])
        for number in range(2)
    ]
    request = ShareAcknowledgeRequest(
        group_id="g",
        member_id="m",
        share_session_epoch=1,
        topics=[ShareFetchTopic(topic_id=UUID(int=1), partitions=partitions)],
    )
    with (
        RawClient(metered.broker.bootstrap_servers) as client,
        pytest.raises(ConnectionError),
    ):
        client.ask(SHARE_ACKNOWLEDGE, 2, request)


def test_metadata_of_all_topics_leaves_the_loop_to_others(metered: MeteredBroker) -> None:
    names = [f"many{number}" for number in range(TOPICS_AT_ONCE + 500)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    with RawClient(metered.broker.bootstrap_servers) as client:
        client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=60_000))
        gc.collect()
        gc.freeze()
        metered.held_s()
        answer = client.ask(METADATA, 9, MetadataRequest(topics=None))
    assert metered.held_s() < HELD_MAX_S
    assert set(names) <= {topic.name for topic in answer.topics if not topic.error_code}


def test_lists_below_one_element_are_put_together_again(metered: MeteredBroker) -> None:
    numbers = list(range(3000))
    with RawClient(metered.broker.bootstrap_servers) as client:
        groups = [
            OffsetFetchGroup(
                group_id=name,
                topics=[OffsetFetchTopic(name=each, partition_indexes=numbers) for each in "xy"],
            )
            for name in ("a", "b")
        ]

        def is_coordinator() -> bool:
            client.ask(FIND_COORDINATOR, 0, FindCoordinatorRequest(key="a"))
            asked = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id="a", topics=[])])
            return not client.ask(OFFSET_FETCH, 9, asked).groups[0].error_code

        until_so(is_coordinator)
        fetched = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=groups))
        partitions = [ListOffsetsPartition(partition_index=each, timestamp=-1) for each in numbers]
        topics = [ListOffsetsTopic(name=each, partitions=list(partitions)) for each in "xy"]
        listed = client.ask(LIST_OFFSETS, 7, ListOffsetsRequest(topics=topics))
    assert [group.group_id for group in fetched.groups] == ["a", "b"]
    for group in fetched.groups:
        assert [topic.name for topic in group.topics] == ["x", "y"]
        for topic in group.topics:
            assert [each.partition_index for each in topic.partitions] == numbers
    assert [topic.name for topic in listed.topics] == ["x", "y"]
    for told in listed.topics:
        assert [each.partition_index for each in told.partitions] == numbers
