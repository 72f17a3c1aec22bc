"""With ACLs and quotas, repeated requests get the same bytes as requests on new connections.

Two brokers get the same requests. At the first broker, clients keep their connections. At the
second broker, each request has a new connection, so that no template exists.
"""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.unit.server.fetching import LENGTH_BYTES, NOW_MS, TOPICS
from tests.unit.server.fetching import Broker as Fetching
from tests.unit.server.steps import steps
from tests.worlds.brokers.topics import delete_topic

from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.protocol.messages import LIST_OFFSETS, PRODUCE
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.requests import ClientConnection
from tidelog.protocol.wire import NO_UUID
from tidelog.record.builder import build_batch
from tidelog.server.admin.quotas import QuotaManager
from tidelog.server.api.node import ClientInfo
from tidelog.server.security.authorizer import Acl, RuleTable
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.types import Buffer, NewRecord

ANNA, BERT = "User:anna", "User:bert"
PRODUCE_BY_ID, FETCH_BY_ID = 13, 13
FEW, MANY = 40.0, 1e9
CUSTOMER = (("user", None),)
Quotas = dict[str, float]
PLENTY: Quotas = dict.fromkeys(
    ("producer_byte_rate", "consumer_byte_rate", "request_percentage"), MANY
)


class Broker(Fetching):
    """A broker with ACLs and quotas.

    Attributes:
        repeats: Whether a client keeps its connection for all of its requests.
    """

    def __init__(self, folder: str, *, repeats: bool) -> None:
        super().__init__(folder, authorizer_class_name=STANDARD_AUTHORIZER)
        self.repeats = repeats
        self._throttles = QuotaManager(self.clock)
        self._connections: dict[tuple[str, bytes], ClientInfo] = {}
        self.allow([allowed(ANNA), allowed(BERT)])
        self.limit(PLENTY)

    def allow(self, acls: Sequence[Acl]) -> None:
        assert self.node.authorizer is not None
        self.node.authorizer.use(RuleTable(acls))

    def limit(self, quotas: Quotas) -> None:
        throttles = self._throttles
        self.node.throttles = throttles if throttles.use({CUSTOMER: quotas}) else None

    def take(self, principal: str, frame: bytes) -> tuple[bytes | str, int]:
        """Return the response, and the time for which the connection is muted."""
        key = principal, frame[1:2]
        connection = self._connections.get(key)
        if connection is None or not self.repeats:
            connection = self._connections[key] = ClientInfo(1, "somewhere", principal)
        said = self.say(connection, frame)
        muted_ms, connection.throttle_ms = connection.throttle_ms, 0
        return said, muted_ms

    def produce(self, version: int, topic: str, number: int, size: int) -> bytes:
        batch = bytes(build_batch([NewRecord(value=bytes(size), timestamp=NOW_MS)]))
        by_id = version >= PRODUCE_BY_ID
        asked = TopicProduceData(
            name="" if by_id else topic,
            topic_id=self.topic_id(topic) if by_id else NO_UUID,
            partition_data=[PartitionProduceData(index=number, records=batch)],
        )
        message = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[asked])
        return framed(ClientConnection("somebody").request(PRODUCE, version, message))

    def look_up(self, version: int, topic: str, number: int, time: int) -> bytes:
        asked = ListOffsetsPartition(partition_index=number, timestamp=time)
        message = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
        return framed(ClientConnection("somebody").request(LIST_OFFSETS, version, message))


def framed(pieces: Sequence[Buffer]) -> bytes:
    return b"".join(pieces)[LENGTH_BYTES:]


def allowed(
    principal: str,
    operation: Operation = Operation.ALL,
    topic: str = "*",
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        name=topic,
        pattern=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=operation,
        permission=permission,
    )


class Pair:
    """A broker with lasting connections, and one with a new connection for each request."""

    def __init__(self, folder: str) -> None:
        self.brokers = (
            Broker(f"{folder}/repeated", repeats=True),
            Broker(f"{folder}/once", repeats=False),
        )

    def compare(self, principal: str, *frames: bytes) -> tuple[bytes | str, int]:
        """Check that both brokers give the same response and mute time; return both values.

        If one frame is given, both brokers get it. If two are given, each broker gets one.
        """
        both = frames if len(frames) > 1 else frames * 2
        first, second = (
            broker.take(principal, frame) for broker, frame in zip(self.brokers, both, strict=True)
        )
        assert first == second
        return first

    def frames(self, topic: str = "t", version: int = 9) -> list[bytes]:
        """Return one Produce, one Fetch and one ListOffsets request."""
        broker = self.brokers[0]
        return [
            broker.produce(version, topic, 0, 10),
            broker.frame(version + 3, [(topic, [(0, 0)])]),
            broker.look_up(min(version, 8), topic, 0, NOW_MS),
        ]

    def close(self) -> None:
        for broker in self.brokers:
            broker.node.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(str(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("kind", range(3))
def test_the_second_of_its_kind_takes_fewer_steps(pair: Pair, kind: int) -> None:
    frame = pair.frames()[kind]
    for _ in range(2):
        pair.compare(ANNA, frame)
    again, once = (steps(partial(broker.take, ANNA, frame)) for broker in pair.brokers)
    assert again < once * 0.75


@pytest.mark.parametrize("kind", range(3))
def test_a_right_that_is_taken_back_is_missed_at_once(pair: Pair, kind: int) -> None:
    frame = pair.frames()[kind]
    said = [pair.compare(ANNA, frame) for _ in range(3)]
    for acls in ([], [allowed(ANNA), allowed(ANNA, topic="t", permission=Permission.DENY)]):
        for broker in pair.brokers:
            broker.allow(acls)
        assert pair.compare(ANNA, frame)[0] not in [each for each, _ in said]
        for broker in pair.brokers:
            broker.allow([allowed(ANNA)])
        pair.compare(ANNA, frame)


@pytest.mark.parametrize("kind", range(3))
def test_a_template_gives_no_client_the_rights_of_another(pair: Pair, kind: int) -> None:
    frame = pair.frames()[kind]
    for broker in pair.brokers:
        broker.allow([allowed(ANNA)])
    for _ in range(3):
        assert pair.compare(ANNA, frame)[0] != pair.compare(BERT, frame)[0]


@pytest.mark.parametrize(("kind", "key"), [(0, "producer_byte_rate"), (1, "consumer_byte_rate")])
def test_a_quota_has_effect_from_the_next_request_on(pair: Pair, kind: int, key: str) -> None:
    frame = pair.frames()[kind]
    for _ in range(3):
        pair.compare(ANNA, frame)
    for quotas in (PLENTY | {key: 1.0}, {key: 1.0}):
        for broker in pair.brokers:
            broker.limit(quotas)
        assert pair.compare(ANNA, frame)[1] > 0
        for broker in pair.brokers:
            broker.limit({})
        assert pair.compare(ANNA, frame)[1] == 0


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("version", [9, 13])
def test_cut_and_changed_frames_get_the_codecs_responses(
    pair: Pair, kind: int, version: int
) -> None:
    frame = pair.frames(version=version)[kind]
    pair.compare(ANNA, frame)
    for at in range(len(frame)):
        for change in (1, 0x80, 0xFF):
            pair.compare(ANNA, frame[:at] + bytes((frame[at] ^ change,)) + frame[at + 1 :])
        pair.compare(ANNA, frame[:at])
        pair.compare(ANNA, frame)
    pair.compare(ANNA, frame + b"behind")


class Life:
    """Random changes of ACLs, quotas, topics and time; random requests, some of them damaged."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.rng = random.Random(seed)
        self.sent: list[bytes] = []

    def step(self) -> None:
        change = self.rng.choice((self.rights, self.quotas, self.time, self.time, self.topics))
        change()
        version = self.rng.choice((9, 12, 13))
        kind = self.rng.randrange(3)
        for _ in range(4):
            self.ask(kind, version)

    def rights(self) -> None:
        acls = [
            allowed(principal, operation, topic, permission)
            for principal in (ANNA, BERT)
            for topic in (*TOPICS, "*")
            for operation in (Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE)
            for permission in (Permission.ALLOW, Permission.ALLOW, Permission.DENY)
            if self.rng.random() < 0.15
        ]
        for broker in self.pair.brokers:
            broker.allow(acls or [allowed(ANNA), allowed(BERT)])

    def quotas(self) -> None:
        quotas = {key: self.rng.choice((FEW, 5000.0, MANY)) for key in PLENTY}
        quotas = {key: value for key, value in quotas.items() if self.rng.random() < 0.7}
        for broker in self.pair.brokers:
            broker.limit(quotas)

    def time(self) -> None:
        ms = self.rng.choice((0, 7, 1000, 20_000))
        for broker in self.pair.brokers:
            broker.clock.advance(ms)

    def topics(self) -> None:
        topic = self.rng.choice(TOPICS)
        if self.rng.random() < 0.3:
            for broker in self.pair.brokers:
                delete_topic(broker.node, topic)
                broker.create(topic)

    def ask(self, kind: int, version: int) -> None:
        principal = self.rng.choice((ANNA, ANNA, BERT))
        frame = self.request(kind, version)
        if self.rng.random() < 0.1:
            frame = self.rng.choice((frame, *self.sent))
        self.sent = [*self.sent[-5:], frame]
        if self.rng.random() < 0.15:
            at = self.rng.randrange(2, len(frame))
            other = bytes((self.rng.randrange(256),))
            frame = self.rng.choice((frame[:at], frame[:at] + other + frame[at + 1 :]))
        number = self.rng.randbytes(4)
        self.pair.compare(principal, frame[:4] + number + frame[8:] if len(frame) > 8 else frame)

    def request(self, kind: int, version: int) -> bytes:
        broker, rng = self.pair.brokers[0], self.rng
        topic, number = rng.choice(TOPICS), rng.randrange(2)
        if kind == 0:
            return broker.produce(version, topic, number, rng.choice((3, 200, 20_000)))
        if kind == 1:
            end = broker.partition(topic, number).high_watermark
            rows = [(number, rng.randint(0, end))]
            asked = [(topic, rows)] if rng.random() < 0.7 else [("t", rows), ("another", [(0, 0)])]
            return broker.frame(
                version, asked, min_bytes=rng.choice((0, 1)), wait_ms=rng.choice((0, 10))
            )
        return broker.look_up(rng.choice((1, 5, 7, 8)), topic, number, NOW_MS + rng.randint(-3, 1))


@examples(12)
@given(st.integers(0, 1 << 32))
def test_both_brokers_give_the_same_responses_after_any_events(seed: int) -> None:
    with TemporaryDirectory() as folder:
        pair = Pair(folder)
        try:
            life = Life(pair, seed)
            for _ in range(40):
                life.step()
        finally:
            pair.close()
