"""Requests are processed even if the client half-closes or disconnects after sending them."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from tests.worlds.brokers.certificates import Authority
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.records.batches import batch
from tests.worlds.waiting import until_so

import tidelog
from tidelog.protocol.messages import CREATE_TOPICS, DELETE_RECORDS, FETCH, PRODUCE
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker

TOPIC = "t"
PARTITIONS = 8
BATCHES = 20


def send_unacknowledged(client: RawClient) -> None:
    """Send `BATCHES` Produce requests with acks=0; they go to the partitions in turn."""
    for number in range(BATCHES):
        request = produce_request(TOPIC, batch(), number % PARTITIONS)
        request.acks = 0
        client.send(PRODUCE, 9, request)


def all_there(broker: Broker) -> bool:
    def count(node: Node) -> int:
        found = [node.partitions.get(TOPIC, number) for number in range(PARTITIONS)]
        return sum(each.high_watermark for each in found)

    return broker.call(count) == BATCHES


def fetch_request(*, wait_ms: int = 0, max_bytes: int = 1 << 20) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        rack_id="",
    )


def records_in(client: RawClient) -> int:
    """Receive the next response; return how many bytes of records it has."""
    answer = cast("FetchResponse", client.receive())
    return len(cast("bytes", answer.responses[0].partitions[0].records))


def end_sending(client: RawClient) -> None:
    client._sock.shutdown(socket.SHUT_WR)


def test_records_of_a_disconnected_client_are_all_appended(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=PARTITIONS))
    with RawClient(broker.bootstrap_servers) as client:
        send_unacknowledged(client)
    until_so(lambda: all_there(broker), "the records of the disconnected client")


@pytest.mark.parametrize("way", ["waits", "says so", "just goes"])
def test_records_of_a_disconnected_tls_client_are_all_appended(tmp_path: Path, way: str) -> None:
    authority = Authority(tmp_path)
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("server", password="key-word")),
        "ssl.key.password": "key-word",
    }
    context = ssl.create_default_context(cafile=str(authority.path))
    context.check_hostname = False
    with tidelog.broker(str(tmp_path / "data"), settings=settings) as broker:
        broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=PARTITIONS))
        with RawClient(broker.bootstrap_servers) as client:
            client._sock = context.wrap_socket(client._sock)
            send_unacknowledged(client)
            if way == "waits":
                client._sock.unwrap()
            elif way == "says so":
                client._sock.setblocking(False)
                with suppress(ssl.SSLWantReadError):  # the broker has closed its side
                    client._sock.unwrap()
        until_so(lambda: all_there(broker), "the records of the disconnected client")


def test_a_topic_is_created_for_a_disconnected_client(broker: Broker) -> None:
    wanted = CreatableTopic(name=TOPIC, num_partitions=3, replication_factor=1)
    with RawClient(broker.bootstrap_servers) as client:
        client.send(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[wanted], timeout_ms=1000))
    until_so(lambda: broker.call(lambda node: node.topics.find(TOPIC) is not None), "the topic")


def test_records_are_deleted_for_a_disconnected_client(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
    with RawClient(broker.bootstrap_servers) as client:
        client.produce(TOPIC, batch())
        part = DeleteRecordsPartition(partition_index=0, offset=1)
        topic = DeleteRecordsTopic(name=TOPIC, partitions=[part])
        client.send(DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
    with RawClient(broker.bootstrap_servers) as client:
        until_so(lambda: client.list_offsets(TOPIC, -2)[0].offset == 1, "the deletion")


def test_a_half_closed_connection_gets_later_records(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
    with (
        RawClient(broker.bootstrap_servers) as client,
        RawClient(broker.bootstrap_servers) as other,
    ):
        client.send(FETCH, 12, fetch_request(wait_ms=60_000))
        end_sending(client)
        assert not other.produce(TOPIC, batch()).error_code
        assert records_in(client) == len(batch())
        with pytest.raises(ConnectionError):
            client.receive()


@pytest.mark.parametrize("count", [1, 8])
def test_a_half_closed_connection_gets_a_large_response_completely(
    broker: Broker, count: int
) -> None:
    large = batch(bytes(1 << 20))
    broker.call(
        lambda node: node.log_dir.create_topic(
            TOPIC, partitions=1, config={"max.message.bytes": "2000000"}
        )
    )
    with RawClient(broker.bootstrap_servers) as client:
        for _ in range(count):
            assert not client.produce(TOPIC, large).error_code
        client._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.send(FETCH, 12, fetch_request(max_bytes=count * len(large)))
        end_sending(client)
        assert records_in(client) == count * len(large)
