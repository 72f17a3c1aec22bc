"""The same conversations about transactions with Kafka and our broker give the same responses."""

from collections.abc import Callable, Iterator

import pytest
from tests.peers.transaction_talk import (
    NOBODY,
    PARTITIONS,
    TOPIC,
    TransactionTalk,
)
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.kafka.broker import Broker

import tidelog
from tidelog.protocol.messages import FIND_COORDINATOR
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.shared import NamedPartitions

pytestmark = pytest.mark.kafka

UNKNOWN = NamedPartitions(name="nowhere", partitions=[0])
BEYOND = NamedPartitions(name=TOPIC, partitions=[0, 9])
ONE = NamedPartitions(name=TOPIC, partitions=[0])
INTERNAL = NamedPartitions(name="__consumer_offsets", partitions=[0])


def beginning(talk: TransactionTalk) -> None:
    """Send invalid and valid InitProducerId requests, also in old versions."""
    for version in range(6):
        talk.init(transactional_id="", version=version)
        for timeout_ms in (-1, 0, 900_001):
            talk.init(timeout_ms=timeout_ms, version=version)
    talk.describe()
    talk.init((5, -1))
    talk.init((-1, 5))
    first = talk.init(version=0)
    talk.describe()
    for version in (3, 4, 5):
        talk.init(NOBODY, version=version)
    second = talk.init(first)
    talk.init(first)  # a repeated request
    talk.init()
    for version in (3, 4):
        talk.init(second, version=version)
    talk.describe()


def classic(talk: TransactionTalk) -> None:
    """Clients run transactions, and add the partitions by AddPartitionsToTxn."""
    producer = talk.init()
    pid, epoch = producer
    for version in range(4):
        for commit in (True, False):
            talk.end(producer, commit=commit, version=version)
        talk.add(NOBODY, version=version)
        talk.add((pid, epoch + 1), version=version)
        talk.add(producer, [UNKNOWN, ONE], version=version)
        talk.add(producer, [BEYOND], version=version)
        talk.add(producer, [INTERNAL, ONE], version=version)
        talk.add(producer, transactional_id="", version=version)
        talk.end(NOBODY, commit=True, version=version)
        talk.end((pid, epoch + 1), commit=True, version=version)
        talk.end(producer, commit=True, version=version, transactional_id="")
        talk.end(producer, commit=True, version=version, transactional_id="unheard of")
        talk.add_offsets(NOBODY, version=version)
        talk.add_offsets((pid, epoch + 1), version=version)
    for version, commit in ((0, True), (1, False), (2, True), (3, False), (4, True)):
        talk.settle()
        talk.add(producer, version=min(version, 3))
        talk.add(producer, [ONE], version=min(version, 3))
        talk.describe()
        talk.add_offsets(producer, version=version)
        talk.end(producer, commit=commit, version=version)
        talk.settle()
        talk.end(producer, commit=commit, version=version)  # a repeated request
        talk.end(producer, commit=not commit, version=version)
        talk.describe()


def bumping(talk: TransactionTalk) -> None:
    """End transactions in each state, with old and new epochs; version 5 increases the epoch."""
    producer = talk.init()
    pid, epoch = producer
    talk.end((pid, epoch - 1), commit=False, version=5)
    talk.end((pid, epoch - 1), commit=True, version=5)
    talk.end(producer, commit=True, version=5)
    talk.end((pid, epoch + 1), commit=True, version=5)
    talk.end(NOBODY, commit=True, version=5)
    talk.end(producer, commit=True, version=5, transactional_id="")
    producer = talk.end(producer, commit=False, version=5)
    for commit in (True, False, True, False):
        talk.settle()
        talk.add(producer)
        talk.end((producer[0], producer[1] - 1), commit=commit, version=5)
        before, producer = producer, talk.end(producer, commit=commit, version=5)
        talk.settle()
        talk.end(before, commit=commit, version=5)  # a repeated request
        talk.end(before, commit=not commit, version=5)
        talk.end(producer, commit=True, version=5)
        talk.add(before)
        talk.describe()
        producer = talk.end(producer, commit=False, version=5)
        talk.settle()
        talk.end(before, commit=commit, version=5)
        talk.describe()


def fencing(talk: TransactionTalk) -> None:
    """A second producer with the same transactional id starts while a transaction is open."""
    old = talk.init()
    talk.add(old)
    new = talk.init()
    for version in (1, 2, 4):
        talk.end(old, commit=True, version=version)
        talk.add(old, version=min(version, 3))
        talk.add_offsets(old, version=version)
    talk.init(old)
    talk.describe()
    talk.add(new)
    newer = talk.init(new)
    talk.describe()
    talk.init(new)
    talk.end(newer, commit=False, version=5)


def verifying(talk: TransactionTalk) -> None:
    """Send requests in the form that brokers send to each other."""
    producer = talk.init()
    pid, epoch = producer
    for version in (4, 5):
        for verify_only in (True, False):
            talk.add(NOBODY, version=version, verify_only=verify_only)
            talk.add((pid, epoch + 1), version=version, verify_only=verify_only)
            talk.add(producer, transactional_id="", version=version, verify_only=verify_only)
            talk.add(producer, [UNKNOWN, ONE], version=version, verify_only=verify_only)
        talk.add(producer, version=version, verify_only=True)
    talk.add(producer, [ONE], version=4)
    for version in (4, 5):
        talk.add(producer, version=version, verify_only=True)
    talk.add(producer, version=5)
    talk.add(producer, version=5, verify_only=True)
    talk.end(producer, commit=True, version=4)
    talk.settle()
    talk.add(producer, version=5, verify_only=True)


def listing(talk: TransactionTalk) -> None:
    """List transactions with every kind of filter; only ids of this conversation match."""
    names = [f"{talk.transactional_id} {word}" for word in ("alpha", "beta", "gamma 1")]
    for name in names:
        talk.init(transactional_id=name)
    open_one = talk.init(transactional_id=names[0])
    talk.add(open_one, transactional_id=names[0])
    own = talk.transactional_id
    for pattern in (f"{own}.*", f"{own} [a-b].*", f"{own} \\w+", f"{own} gamma \\d", "nothing"):
        talk.listed(pattern)
    for refused in ("(", "[", "*a", "a{2,1}"):
        talk.listed(refused)
    talk.listed(f"{own}.*", "Ongoing")
    talk.listed(f"{own}.*", "Empty", "Ongoing")
    talk.listed(f"{own}.*", "Nonsense")
    talk.listed(f"{own}.*", "Nonsense", "empty", "Empty")
    talk.listed(f"{own}.*", "Ongoing", duration_ms=3_600_000)
    talk.listed(f"{own}.*", "Ongoing", duration_ms=0)
    talk.describe(names[0], "unheard of", "")
    talk.end(open_one, commit=False, transactional_id=names[0])


def finding(talk: TransactionTalk) -> None:
    """Send FindCoordinator; addresses of nodes are not compared."""
    for version in (1, 3):
        asked = FindCoordinatorRequest(key="x", key_type=1)
        found = talk._client.ask(FIND_COORDINATOR, version, asked)
        talk.told.append((found.error_code, found.error_message))
    several = FindCoordinatorRequest(key_type=1, coordinator_keys=["x", "", talk.transactional_id])
    for version in (4, 6):
        answer = talk._client.ask(FIND_COORDINATOR, version, several)
        talk.told.append([(c.key, c.error_code, c.error_message) for c in answer.coordinators])


SCRIPTS = (beginning, classic, bumping, fencing, verifying, listing, finding)


@pytest.fixture(scope="module")
def places(
    kafka_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Return the addresses of Kafka and our broker; both have the topic."""
    kafka_broker.create_topic(TOPIC, PARTITIONS)
    folder = tmp_path_factory.mktemp("ours")
    with tidelog.broker(str(folder), settings=SETTINGS) as ours:
        ours.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=PARTITIONS))
        yield kafka_broker.bootstrap, ours.bootstrap_servers


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_kafka_gives_the_same_responses(
    script: Callable[[TransactionTalk], None], places: tuple[str, str]
) -> None:
    told = []
    for bootstrap in places:
        talk = TransactionTalk(bootstrap, f"id of {script.__name__}")
        try:
            script(talk)
        finally:
            talk.close()
        told.append(talk.told)
    theirs, ours = told
    pairs = enumerate(zip(theirs, ours, strict=True))
    differ = [
        f"{number}: {our}\n   Kafka: {their}" for number, (their, our) in pairs if our != their
    ]
    assert not differ, "\n".join(differ)
