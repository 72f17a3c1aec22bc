"""Calls that need a partition whose leader is unreachable fail, and name the partition."""

import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.contracts.broker_commands import Shell
from tests.server.relay import DEAD_ADDRESS, Led, Relay
from tests.worlds.waiting import with_time

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.env import os_env
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure
from tidelog.jobs.audit.plan import ReadScope, Side, plan_side
from tidelog.jobs.mirror.places import find_targets, read_sources
from tidelog.jobs.mirror.plan import MirrorPlan, MirrorSource
from tidelog.jobs.place_topics import read_topic
from tidelog.jobs.source_ranges import Question as ReplayQuestion
from tidelog.jobs.source_ranges import find
from tidelog.protocol.messages.metadata import MetadataResponse
from tidelog.protocol.requests import ReceivedRequest
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.remote.view import Committed
from tidelog.server.embedded import Broker
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.places import Place
from tidelog.spark.pushdown import NO_LIMITS
from tidelog.spark.tasks import Backend
from tidelog.types import IsolationLevel, NewRecord, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RECORDS = 50
LEAST_S = 2
HERE, GONE = TopicPartition("t", 0), TopicPartition("t", 1)
NAMED = rf"t-1 \(leader 77 at {DEAD_ADDRESS}\)"


@pytest.fixture
def half(broker: Broker) -> Iterator[str]:
    """Yield the address of a broker where partition 1 of topic t has an unreachable leader."""
    broker.call(lambda node: node.log_dir.create_topic("t", partitions=2))
    with tidelog.connect(broker.bootstrap_servers) as log:
        for partition in (0, 1):
            log.append("t", [NewRecord(value=b"x")] * RECORDS, partition=partition)
    led = Led(1)
    with Relay(broker.bootstrap_servers, led) as relay:
        led.address = relay.address
        yield relay.address


def failed(ask: Callable[[int], object], pattern: str = NAMED) -> None:
    """Assert that a call with a time limit in seconds fails with an error that matches the pattern.

    If the error doesn't match, the call is repeated with a higher limit. On a busy machine, two
    seconds may be too short to detect the unreachable leader.
    """

    def error(seconds: int) -> str:
        with pytest.raises(ClusterFailure) as caught:
            ask(seconds)
        return str(caught.value)

    _, text = with_time(error, lambda text: re.search(pattern, text) is not None, least_s=LEAST_S)
    names_it(text, pattern)


def fails(run_command: Callable[[str], tuple[int, bytes, str]]) -> None:
    """Assert that a command with a time limit fails; the error must name partition and address."""
    _, (code, out, err) = with_time(
        lambda seconds: run_command(f"{seconds}s"),
        lambda ran: re.search(NAMED, ran[2]) is not None,
        least_s=LEAST_S,
    )
    assert code == ExitCode.ERROR, out
    names_it(err)
    assert "Traceback" not in err


def names_it(text: str, pattern: str = NAMED) -> None:
    assert re.search(pattern, text), text


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
    def ask(seconds: int) -> None:
        with tidelog.connect(half, timeout_s=seconds) as log:
            QUESTIONS[asked](log)

    failed(ask)


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
    fails(lambda limit: Shell(half, timeout=limit).run(*command))


def test_a_spark_job_fails_when_it_is_planned(half: str) -> None:
    def ask(seconds: int, question: Callable[[Backend], object]) -> None:
        given = {
            "kafka.bootstrap.servers": half,
            "subscribe": "t",
            "kafka.request.timeout.ms": f"{seconds * 1000}",
            "fetchOffset.numRetries": "1",
        }
        with open_backend(read_source_options(given), ("value",)) as backend:
            question(backend)

    failed(partial(ask, question=lambda backend: backend.plan_batch(NO_LIMITS)))
    failed(partial(ask, question=lambda backend: backend.bounds([HERE, GONE])))


AUDITED = ReadScope(
    start_ms=None, end_ms=None, isolation=IsolationLevel.READ_COMMITTED, split_bytes=1, tasks=1
)
PLANS: dict[str, Callable[[Place, Place], object]] = {
    "mirror from it": lambda half, _: read_topic(
        half, "t", IsolationLevel.READ_COMMITTED, os_env()
    ),
    "mirror to it": lambda half, whole: _mirror_targets(whole, half),
    "audit": lambda half, _: plan_side(Side(letter="a", place=half), ["t"], AUDITED, ()),
    "replay": lambda half, _: find(ReplayQuestion(place=half, topic="t")),
    "replay of a range": lambda half, _: find(
        ReplayQuestion(place=half, topic="t", times=(0, None))
    ),
}


def _mirror_targets(source: Place, target: Place) -> object:
    plan = MirrorPlan(sources=(MirrorSource(source, {"t": "t"}),), target=target)
    env = os_env()
    facts = read_sources(plan, env)
    return find_targets(plan, facts, env, create=True, force=False, is_new_from=0)


@pytest.mark.parametrize("plan", PLANS)
def test_a_job_fails_when_it_is_planned(half: str, broker: Broker, plan: str) -> None:
    def ask(seconds: int) -> None:
        client = {"request.timeout.ms": f"{seconds * 1000}"}
        places = [
            Place.parse(f"kafka://{address}", client=client)
            for address in (half, broker.bootstrap_servers)
        ]
        PLANS[plan](*places)

    failed(ask)


@pytest.mark.parametrize("is_source", [True, False])
@pytest.mark.parametrize("more", [("--execute",), ("--verify",)])
def test_a_failover_fails(
    half: str, broker: Broker, more: tuple[str, ...], *, is_source: bool
) -> None:
    with tidelog.connect(half) as log:
        log.cluster.commit("g", {HERE: Committed(10), GONE: Committed(20)})
    whole = broker.bootstrap_servers
    places = ("--from", half, "--to", whole) if is_source else ("--from", whole, "--to", half)

    def fail_over(limit: str) -> tuple[int, bytes, str]:
        err = io.StringIO()
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
        wait = ("--timeout", limit, "--max-latency", "1m")
        code = run(["failover", "--group", "g", *places, *wait, *more], surroundings)
        return code, b"", err.getvalue()

    fails(fail_over)


def test_reachable_partitions_still_give_results(half: str) -> None:
    with tidelog.connect(half) as log:
        assert log.end_offsets([HERE]) == {HERE: RECORDS}
        assert len(list(log.cluster.records(HERE, 0, RECORDS))) == RECORDS


def test_a_partition_without_a_leader_is_named(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic("t", partitions=2))

    led = Led()

    def leaderless(request: ReceivedRequest, message: "DataclassInstance") -> None:
        led(request, message)
        if isinstance(message, MetadataResponse):
            for topic in message.topics:
                for part in topic.partitions[1:]:
                    part.leader_id, part.error_code = -1, ErrorCode.LEADER_NOT_AVAILABLE

    with Relay(broker.bootstrap_servers, leaderless) as relay:
        led.address = relay.address

        def ask(seconds: int) -> None:
            with tidelog.connect(relay.address, timeout_s=seconds) as log:
                log.count("t")

        failed(ask, "t-1: LEADER_NOT_AVAILABLE")
