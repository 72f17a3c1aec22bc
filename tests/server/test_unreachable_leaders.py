"""A partition whose leader can't be reached is an error that names it, never an empty partition."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.commanding import Shell
from tests.relay import DEAD_ADDRESS, Led, Relay

import tidelog
from tidelog.cli.problems import ExitCode
from tidelog.cluster.codes import LEADER_NOT_AVAILABLE
from tidelog.cluster.remote_directory import RemoteDirectory
from tidelog.cluster.view import Committed
from tidelog.errors import ClusterFailure
from tidelog.protocol.connection import ReceivedRequest
from tidelog.protocol.messages.metadata import MetadataResponse
from tidelog.server.in_process import Broker
from tidelog.spark.backend import open_backend
from tidelog.spark.limits import NO_LIMITS
from tidelog.spark.source_options import read_source_options
from tidelog.types import NewRecord, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RECORDS = 50
TIMEOUT_S = 2.0
HERE, GONE = TopicPartition("t", 0), TopicPartition("t", 1)
NAMED = rf"t-1 \(leader 77 at {DEAD_ADDRESS}\)"


@pytest.fixture
def half(broker: Broker) -> Iterator[str]:
    """A broker's address where partition 1 of topic t has a leader that can't be reached."""
    broker.call(lambda node: node.topics.create("t", partitions=2))
    with tidelog.connect(broker.bootstrap_servers) as log:
        for partition in (0, 1):
            log.append("t", [NewRecord(value=b"x")] * RECORDS, partition=partition)
    led = Led(1)
    with Relay(broker.bootstrap_servers, led) as relay:
        led.address = relay.address
        yield relay.address


QUESTIONS: dict[str, Callable[[RemoteDirectory], object]] = {
    "records": lambda log: list(log.records("t")),
    "scan": lambda log: log.scan("t").to_arrow().read_all(),
    "scan of all": lambda log: log.scan().to_arrow().read_all(),
    "count": lambda log: log.count("t"),
    "read": lambda log: log.read("t").read_all(),
    "table": lambda log: log.table("t").to_arrow().read_all(),
    "ends": lambda log: log.end_offsets([HERE, GONE]),
    "starts": lambda log: log.beginning_offsets([HERE, GONE]),
    "offsets by time": lambda log: log.offsets_at("t", "-6h"),
    "offsets by times": lambda log: log.offsets_for_times({HERE: 0, GONE: 0}),
    "largest times": lambda log: log.cluster.max_timestamps([HERE, GONE]),
    "first records": lambda log: log.cluster.first_records({HERE: 0, GONE: 0}),
    "records one by one": lambda log: list(log.cluster.records(GONE, 0, 10)),
}


@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_question_fails_and_names_partition_and_address(half: str, asked: str) -> None:
    with (
        tidelog.connect(half, timeout_s=TIMEOUT_S) as log,
        pytest.raises(ClusterFailure, match=NAMED),
    ):
        QUESTIONS[asked](log)


@pytest.mark.parametrize(
    "command",
    [
        ("count", "t"),
        ("read", "t"),
        ("describe", "t"),
        ("offsets", "t", "--at", "-6h"),
        ("lag", "g"),
        ("rewind", "--group", "g", "--topic", "t", "--to", "-6h"),
        ("rewind", "--group", "g", "--topic", "t", "--to", "earliest", "--execute"),
    ],
)
def test_a_command_fails_and_names_partition_and_address(
    half: str, command: tuple[str, ...]
) -> None:
    with tidelog.connect(half) as log:
        log.cluster.commit("g", {HERE: Committed(10), GONE: Committed(20)})
    code, out, err = Shell(half, timeout="2s").run(*command)
    assert code == ExitCode.ERROR, out
    assert re.search(NAMED, err), err
    assert "Traceback" not in err


def test_a_spark_job_fails_when_it_is_planned(half: str) -> None:
    given = {
        "kafka.bootstrap.servers": half,
        "subscribe": "t",
        "kafka.request.timeout.ms": str(int(TIMEOUT_S * 1000)),
        "fetchOffset.numRetries": "1",
    }
    with open_backend(read_source_options(given), ("value",)) as backend:
        with pytest.raises(ClusterFailure, match=NAMED):
            backend.plan_batch(NO_LIMITS)
        with pytest.raises(ClusterFailure, match=NAMED):
            backend.bounds([HERE, GONE])


def test_partitions_that_can_be_reached_still_answer(half: str) -> None:
    with tidelog.connect(half) as log:
        assert log.end_offsets([HERE]) == {HERE: RECORDS}
        assert len(list(log.cluster.records(HERE, 0, RECORDS))) == RECORDS


def test_a_partition_that_nobody_leads_is_named(broker: Broker) -> None:
    broker.call(lambda node: node.topics.create("t", partitions=2))

    led = Led()

    def leaderless(request: ReceivedRequest, message: "DataclassInstance") -> None:
        led(request, message)
        if isinstance(message, MetadataResponse):
            for topic in message.topics:
                for part in topic.partitions[1:]:
                    part.leader_id, part.error_code = -1, LEADER_NOT_AVAILABLE

    with Relay(broker.bootstrap_servers, leaderless) as relay:
        led.address = relay.address
        with (
            tidelog.connect(relay.address, timeout_s=TIMEOUT_S) as log,
            pytest.raises(ClusterFailure, match="t-1: LEADER_NOT_AVAILABLE"),
        ):
            log.count("t")
