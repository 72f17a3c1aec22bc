"""Responses reveal no hidden topic, neither in a cursor nor if it is created during the request.

Also tests the responses to requests that name a broker by an invalid name, or a missing group.
"""

from typing import Final

import pytest
from tests.server.test_acls import TOPIC_DENIED, add, login, settings_in
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.rights_talk import allow
from tests.worlds.clients.transacting import GROUP_KEY, LATER, find_coordinator, until

from tidelog.protocol.messages import (
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    OFFSET_DELETE,
)
from tidelog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.messages.group_offsets import OffsetDeleteRequest, OffsetDeleteRequestTopic
from tidelog.protocol.messages.metadata import DescribeTopicPartitionsRequest
from tidelog.protocol.messages.shared import PartitionIndex
from tidelog.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.server.api import topics as topic_handlers
from tidelog.server.embedded import Broker
from tidelog.server.runtime.errors import Refusal
from tidelog.server.security.operations import ResourceType

UNKNOWN_TOPIC: Final = 3
GROUP_ID_NOT_FOUND: Final = 69
broker = broker_fixture(settings_in, topics={"flights": 1, "secret": 1})


def test_a_cursor_names_no_topic_that_is_hidden(broker: Broker) -> None:
    add(broker, "alice", allow("DESCRIBE", name="secret"))
    asked = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=None)
    with login(broker, "alice") as alice, login(broker, "boss") as boss:
        said = boss.ask(DESCRIBE_TOPIC_PARTITIONS, 0, asked)
        assert ([t.name for t in said.topics], said.next_cursor is None) == (["flights"], False)
        said = alice.ask(DESCRIBE_TOPIC_PARTITIONS, 0, asked)
        assert ([t.name for t in said.topics], said.next_cursor) == (["secret"], None)


def test_without_the_right_to_delete_a_missing_topic_is_looked_up_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two lookups, the response could reveal a topic that was created between them."""
    add(broker, "alice", allow("READ", name="flights", prefix=True))
    add(broker, "alice", allow("DELETE", name="flights-mine"))
    looked_for: list[str] = []

    def find(_node: object, state: DeleteTopicState, _times: object) -> None:
        looked_for.append(state.name or "")
        raise Refusal(UNKNOWN_TOPIC)

    monkeypatch.setattr(topic_handlers, "_to_delete", find)
    names = ["flights-next", "flights-mine", "flights", "secret-next"]
    with login(broker, "alice") as alice:
        said = alice.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=names, timeout_ms=1000))
    assert {each.name: each.error_code for each in said.responses} == {
        "flights-next": UNKNOWN_TOPIC,
        "flights-mine": UNKNOWN_TOPIC,
        "flights": TOPIC_DENIED,
        "secret-next": TOPIC_DENIED,
    }
    assert looked_for == ["flights-mine"]


def test_a_broker_with_an_odd_name_is_not_this_one(broker: Broker) -> None:
    resource = DescribeConfigsResource(resource_type=4, resource_name="--5")
    with login(broker, "boss") as boss:
        said = boss.ask(DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))
    assert [each.error_code for each in said.results] == [42]


def test_a_missing_group_is_reported_without_rights_on_its_topics(
    broker: Broker,
) -> None:
    add(broker, "alice", allow("DELETE", ResourceType.GROUP, "gone"))
    topic = OffsetDeleteRequestTopic(name="flights", partitions=[PartitionIndex(partition_index=0)])
    with login(broker, "alice") as alice:
        # This request creates `__consumer_offsets`, because it is the first one about a group.
        find_coordinator(alice, "gone", GROUP_KEY)
        asked = OffsetDeleteRequest(group_id="gone", topics=[topic])
        said = until(
            lambda: alice.ask(OFFSET_DELETE, 0, asked), lambda told: told.error_code not in LATER
        )
    assert (said.error_code, said.topics) == (GROUP_ID_NOT_FOUND, [])
