"""A long AddPartitionsToTxn request, processed in parts, adds all of its partitions or none."""

from collections.abc import Iterator

import pytest
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import TIMEOUT_MS, find_coordinator

import tidelog
from tidelog.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_ACLS,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
)
from tidelog.protocol.messages.security import AclCreation, CreateAclsRequest
from tidelog.protocol.messages.shared import NamedPartitions
from tidelog.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.server.api.node import Node
from tidelog.server.api.table import BY_KEY
from tidelog.server.embedded import Broker

TOPIC = "many"
SECRET = "secret"
COUNT = BY_KEY[ADD_PARTITIONS_TO_TXN.key].at_once + 300
MISSING = COUNT + 7
UNKNOWN, DENIED, FENCED, NOT_ATTEMPTED = 3, 29, 90, 55
DENY, LITERAL, TOPIC_TYPE, WRITE = 2, 3, 2, 4


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        **SETTINGS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }

    def fill(node: Node) -> None:
        node.log_dir.create_topic(TOPIC, partitions=COUNT)
        node.log_dir.create_topic(SECRET)

    data = str(tmp_path_factory.mktemp("many"))
    with tidelog.broker(data, settings=settings) as broker:
        broker.call(fill)
        yield broker


@pytest.fixture
def client(many: Broker) -> Iterator[RawClient]:
    with RawClient(many.bootstrap_servers) as client:
        yield client


def begin(client: RawClient, name: str) -> InitProducerIdResponse:
    find_coordinator(client, name)
    asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)
    return client.ask(INIT_PRODUCER_ID, 4, asked)


def topics_of(*extra: int) -> list[NamedPartitions]:
    return [NamedPartitions(name=TOPIC, partitions=[*range(COUNT), *extra])]


def add(
    client: RawClient,
    name: str,
    producer: InitProducerIdResponse,
    topics: list[NamedPartitions],
) -> dict[tuple[str, int], int]:
    asked = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=topics,
    )
    answer = client.ask(ADD_PARTITIONS_TO_TXN, 3, asked)
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }


def added(client: RawClient, name: str) -> set[int]:
    asked = DescribeTransactionsRequest(transactional_ids=[name])
    (state,) = client.ask(DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
    return {number for topic in state.topics for number in topic.partitions}


def test_one_partition_that_does_not_exist_keeps_all_parts_out(client: RawClient) -> None:
    producer = begin(client, "missing")
    codes = add(client, "missing", producer, topics_of(MISSING))
    assert codes.pop((TOPIC, MISSING)) == UNKNOWN
    assert set(codes.values()) == {NOT_ATTEMPTED}
    assert len(codes) == COUNT
    assert added(client, "missing") == set()


def test_the_partitions_of_all_parts_are_added(client: RawClient) -> None:
    producer = begin(client, "whole")
    codes = add(client, "whole", producer, topics_of())
    assert codes == {(TOPIC, number): 0 for number in range(COUNT)}
    assert added(client, "whole") == set(range(COUNT))


def test_a_fenced_producer_adds_none(client: RawClient) -> None:
    old = begin(client, "fenced")
    begin(client, "fenced")
    codes = add(client, "fenced", old, topics_of())
    assert set(codes.values()) == {FENCED}
    assert added(client, "fenced") == set()


def test_one_topic_without_rights_keeps_all_parts_out(client: RawClient) -> None:
    acl = AclCreation(
        resource_type=TOPIC_TYPE,
        resource_name=SECRET,
        resource_pattern_type=LITERAL,
        principal="User:ANONYMOUS",
        host="*",
        operation=WRITE,
        permission_type=DENY,
    )
    client.ask(CREATE_ACLS, 2, CreateAclsRequest(creations=[acl]))
    producer = begin(client, "denied")
    secret = NamedPartitions(name=SECRET, partitions=[0])
    codes = add(client, "denied", producer, [*topics_of(), secret])
    assert codes.pop((SECRET, 0)) == DENIED
    assert set(codes.values()) == {NOT_ATTEMPTED}
    assert added(client, "denied") == set()


def test_each_transaction_of_a_broker_s_request_is_added_or_not(client: RawClient) -> None:
    producers = {name: begin(client, name) for name in ("first", "second", "third")}
    topics = {"first": topics_of(MISSING), "second": topics_of(), "third": topics_of(MISSING)}
    asked = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                topics=topics[name],
            )
            for name, producer in producers.items()
        ]
    )
    answer = client.ask(ADD_PARTITIONS_TO_TXN, 4, asked)
    codes = {
        each.transactional_id: {
            result.partition_error_code
            for topic in each.topic_results
            for result in topic.results_by_partition
        }
        for each in answer.results_by_transaction
    }
    refused = {NOT_ATTEMPTED, UNKNOWN}
    assert codes == {"first": refused, "second": {0}, "third": refused}
    assert [added(client, name) for name in producers] == [set(), set(range(COUNT)), set()]
