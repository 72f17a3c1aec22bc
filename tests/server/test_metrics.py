"""The broker's HTTP pages: its metrics for Prometheus, and its health for probes."""

import gzip
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.brokers.running import METRICS, SETTINGS
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.server.embedded import Broker

T0 = 1_700_000_000_000
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Broker]:
    # The tests' records are old: the default retention of a week would delete them.
    ours = {"tidelog.metrics.listen": "127.0.0.1:0", "log.retention.ms": "-1"}
    settings = SETTINGS | ours
    with tidelog.broker(str(tmp_path / "data"), settings=settings) as running:
        yield running


def page(broker: Broker, path: str, **headers: str) -> tuple[int, bytes]:
    address = broker.call(lambda node: node.metrics_address)
    assert address is not None
    asked = urllib.request.Request(f"http://{address.host}:{address.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def samples(broker: Broker) -> Samples:
    status, body = page(broker, "/metrics")
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def of(found: Samples, name: str, **labels: str) -> float:
    return found[f"tidelog_{name}", frozenset(labels.items())]


def test_every_metric_family_is_exposed(watched: Broker) -> None:
    _, body = page(watched, "/metrics")
    told = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    assert {family.full_name for family in METRICS} <= told
    assert any(name.startswith("process_") for name in told)
    assert len({family.full_name for family in METRICS}) == len(METRICS)


def test_metrics_equal_the_work_of_clients(watched: Broker) -> None:
    config = {"bootstrap.servers": watched.bootstrap_servers}
    producer = Producer(config)
    for number in range(10):
        producer.produce("flights", b"x" * 100, partition=0, timestamp=T0 + number)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(config | {"group.id": "planes", "auto.offset.reset": "earliest"})
    consumer.subscribe(["flights"])
    read = 0
    while read < 10:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.commit(asynchronous=False)
    producer.produce("flights", b"y", partition=0, timestamp=T0 + 99)
    assert producer.flush(PATIENCE_S) == 0
    found = samples(watched)
    consumer.close()
    here = {"topic": "flights", "partition": "0"}
    assert of(found, "partition_log_end_offset", **here) == 11
    assert of(found, "partition_high_watermark", **here) == 11
    assert of(found, "partition_log_start_offset", **here) == 0
    assert of(found, "partition_segments", **here) == 1
    assert of(found, "partition_offline", **here) == 0
    assert of(found, "partition_size_bytes", **here) > 1000
    assert of(found, "partition_newest_time_seconds", **here, clock="record") == (T0 + 99) / 1000
    assert of(found, "partition_newest_time_seconds", **here, clock="append") > T0 / 1000
    assert of(found, "topic_records_in_total", topic="flights") == 11
    assert of(found, "topic_records_out_total", topic="flights") >= 10
    assert of(found, "topic_bytes_out_total", topic="flights") > 1000
    assert of(found, "topic_latency_seconds_count", topic="flights") == 11  # one per record
    first, last = (
        of(found, f"partition_{side}_time_seconds", **here, clock="append")
        for side in ("oldest", "newest")
    )
    late_s = of(found, "topic_latency_seconds_sum", topic="flights") / 11
    assert first - (T0 + 99) / 1000 < late_s < last - T0 / 1000
    assert of(found, "group_committed_offset", group="planes", **here) == 10
    assert of(found, "group_lag", group="planes", **here) == 1
    assert 0 <= of(found, "group_behind_seconds", group="planes", **here) < 100
    assert of(found, "group_members", group="planes") == 1
    assert of(found, "request_seconds_count", api="Produce") >= 2
    assert of(found, "request_bytes_total", api="Produce") > 1000
    assert of(found, "connections") >= 2


def test_probes_succeed_and_unknown_pages_are_404(watched: Broker) -> None:
    assert page(watched, "/healthz") == (200, b"alive\n")
    assert page(watched, "/readyz?full=1") == (200, b"ready\n")
    assert page(watched, "/secrets")[0] == 404
    status, body = page(watched, "/metrics", **{"Accept-Encoding": "gzip"})
    assert status == 200
    assert b"tidelog_connections" in gzip.decompress(body)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b""),
        (b"\x00\xff\r\n\r\n", b"400"),
    ],
)
def test_invalid_http_requests_are_refused(watched: Broker, said: bytes, status: bytes) -> None:
    address = watched.call(lambda node: node.metrics_address)
    assert address is not None
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(said)
        answer = b""
        with suppress(ConnectionResetError):  # the server may close with unread input
            answer = connection.recv(100)
    assert answer[9:12] == status
    assert page(watched, "/healthz")[0] == 200


def test_deleted_topics_are_forgotten(watched: Broker) -> None:
    producer = Producer({"bootstrap.servers": watched.bootstrap_servers})
    producer.produce("flights", b"x")
    assert producer.flush(PATIENCE_S) == 0
    assert ("tidelog_topic_records_in_total", frozenset({("topic", "flights")})) in samples(watched)
    watched.call(lambda node: delete_topic(node, "flights"))
    assert not any(("topic", "flights") in labels for _, labels in samples(watched))
