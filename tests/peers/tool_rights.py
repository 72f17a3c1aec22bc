"""A table of rights on transactions, share groups and features, and steps of clients and tools.

A row consists of a user of rights_talk and a step, which a client takes as this user. The plain
model (rights_model) decides whether the step is allowed. Tests compare the results that the client
gets from Kafka and from our broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final, cast

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPlace
from aiokafka import errors as aio_errors
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import errors as py_errors
from tests.peers.admin_table import ACLS, HERE, SEEN, Need
from tests.worlds.clients.rights_drivers import key_of
from tests.worlds.clients.rights_process_drivers import java_config
from tests.worlds.clients.rights_talk import (
    CLUSTER,
    GROUP,
    GROUPS,
    IDS,
    LENT,
    TOPIC,
    TRANSACTION,
)
from tests.worlds.clients.secured import TIMEOUT_S
from tests.worlds.kafka.oracle import Oracle

from tidelog.server.security.operations import Operation, ResourceType

# An error code of the protocol, or the text that a client shows in place of the code.
Shown = int | str


class Step(StrEnum):
    """Step of a client; Java's driver uses the same names."""

    WRITE = "write"
    COMMIT_OFFSETS = "commit-offsets"
    LIST = "list-transactions"
    DESCRIBE = "describe-transactions"
    ABORT = "abort-transaction"
    FENCE = "fence-producers"
    TERMINATE = "terminate-transaction"
    SHARE = "share"
    DESCRIBE_LENT = "describe-lent"
    LENT_OFFSETS = "lent-offsets"
    SET_LENT_OFFSETS = "set-lent-offsets"
    DROP_LENT_OFFSETS = "drop-lent-offsets"
    DROP_LENT = "drop-lent"
    FEATURES = "features"
    SET_FEATURE = "set-feature"


Told = dict[Step, Shown]
# Some error codes can't be compared. UNTOLD replaces a code that the client hides; DENIED replaces
# a code where either of two errors may occur.
UNTOLD: Final = "failed"
DENIED: Final = "denied"
_DENIALS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}


def _of(kind: ResourceType, name: str, *words: str) -> tuple[Need, ...]:
    return tuple(Need(kind, name, Operation[word]) for word in words)


_TO_TRANSACT: Final = _of(IDS, TRANSACTION, "DESCRIBE", "WRITE")
_TO_SEE: Final = _of(IDS, TRANSACTION, "DESCRIBE")
# All rights that each step needs with a real client.
NEEDS: Final[Mapping[Step, tuple[Need, ...]]] = {
    Step.WRITE: (*_TO_TRANSACT, *_of(TOPIC, SEEN, "DESCRIBE", "WRITE")),
    Step.COMMIT_OFFSETS: (
        *_TO_TRANSACT,
        *_of(GROUPS, GROUP, "DESCRIBE", "READ"),
        *_of(TOPIC, SEEN, "READ"),
    ),
    Step.LIST: _TO_SEE,
    Step.DESCRIBE: _TO_SEE,
    Step.ABORT: (*_of(TOPIC, SEEN, "DESCRIBE"), *_of(ResourceType.CLUSTER, CLUSTER, "ALTER")),
    Step.FENCE: _TO_TRANSACT,
    Step.TERMINATE: _TO_TRANSACT,
    Step.SHARE: (
        *_of(GROUPS, LENT, "DESCRIBE", "READ"),
        *_of(TOPIC, SEEN, "DESCRIBE", "READ"),
    ),
    Step.DESCRIBE_LENT: _of(GROUPS, LENT, "DESCRIBE"),
    Step.LENT_OFFSETS: (*_of(GROUPS, LENT, "DESCRIBE"), *_of(TOPIC, SEEN, "DESCRIBE")),
    Step.SET_LENT_OFFSETS: (*_of(GROUPS, LENT, "DESCRIBE", "READ"), *_of(TOPIC, SEEN, "READ")),
    Step.DROP_LENT_OFFSETS: (*_of(GROUPS, LENT, "DESCRIBE", "DELETE"), *_of(TOPIC, SEEN, "READ")),
    Step.DROP_LENT: _of(GROUPS, LENT, "DESCRIBE", "DELETE"),
    Step.FEATURES: (),
    Step.SET_FEATURE: _of(ResourceType.CLUSTER, CLUSTER, "ALTER"),
}
# The right to act as a broker. The step ABORT needs it, or the right to alter the cluster.
_ACTION: Final = Need(ResourceType.CLUSTER, CLUSTER, Operation.CLUSTER_ACTION)
# Users with ACLs on the resources of these steps, and users with similar ACLs.
TOOL_USERS: Final = (
    "nobody",
    "all",
    "but-reading",
    "but-seeing",
    "but-writing",
    "but-all",
    "but-star",
    "by-prefix",
    "consumer",
    "producer",
    "processor",
    "lender",
    "lending",
    "lenders-watcher",
    "lenders-boss",
    "topic-read",
    "topic-write",
    "group-read",
    "transactional_id-write",
    "transactional_id-describe",
    "cluster-alter",
    "cluster-cluster_action",
    "cluster-all",
)


def is_allowed(user: str, step: Step) -> bool:
    """Whether the user may take the step."""

    def may(need: Need) -> bool:
        return ACLS.may(f"User:{user}", HERE, need.operation, need.kind, need.name)

    needs = NEEDS[step]
    if step is Step.ABORT and may(_ACTION):
        needs = needs[:-1]
    return all(map(may, needs))


# -- Java ----------------------------------------------------------------------------------------


def by_java(oracle: Oracle, bootstrap: str, user: str) -> Told:
    """Run Kafka's own producer, share consumer and admin client, in the oracle's JVM."""
    config = java_config(bootstrap, user)
    told = oracle.ask(
        "tool_rights", config=config, seen=SEEN, group=GROUP, id=TRANSACTION, lent=LENT
    )
    found: Told = {Step(name): code for name, code in cast("dict[str, int]", told).items()}
    # If the user lacks rights on both topic and group, the error is about the one that the client
    # names first, which varies.
    return found | ({Step.SHARE: DENIED} if found[Step.SHARE] in _DENIALS else {})


# -- confluent-kafka -----------------------------------------------------------------------------


def by_confluent(bootstrap: str, user: str) -> Told:
    """Run librdkafka's transactions through confluent-kafka."""
    config = key_of(user).librdkafka(bootstrap)
    return {
        Step.WRITE: _code_of(lambda: _write(config)),
        Step.COMMIT_OFFSETS: _code_of(lambda: _commit_offsets(config)),
    }


_Config = dict[str, str | int | float | bool]


def _begun(config: _Config) -> Producer:
    producer = Producer(config | {"transactional.id": TRANSACTION})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    return producer


def _write(config: _Config) -> None:
    told: list[KafkaError | None] = []
    producer = _begun(config)
    producer.produce(SEEN, b"t", partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    if told[0] is not None:
        raise KafkaException(told[0])
    producer.commit_transaction(TIMEOUT_S)


def _commit_offsets(config: _Config) -> None:
    producer = _begun(config)
    consumer = Consumer(config | {"group.id": GROUP})
    try:
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(SEEN, 0, 1)], group, TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
    finally:
        consumer.close()


def _code_of(call: Callable[[], None]) -> int:
    try:
        call()
    except KafkaException as refused:
        return cast("KafkaError", refused.args[0]).code()
    return 0


# -- aiokafka ------------------------------------------------------------------------------------


def by_aiokafka(bootstrap: str, user: str) -> Told:
    """Run aiokafka's transactions."""
    return asyncio.run(_by_aiokafka(key_of(user).aiokafka(bootstrap)))


async def _by_aiokafka(settings: Mapping[str, object]) -> Told:
    async def write(producer: AIOKafkaProducer) -> None:
        await producer.send_and_wait(SEEN, b"t", partition=0)

    async def commit(producer: AIOKafkaProducer) -> None:
        await producer.send_offsets_to_transaction({AioPlace(SEEN, 0): 1}, GROUP)

    return {
        Step.WRITE: await _in_transaction(settings, write),
        Step.COMMIT_OFFSETS: await _in_transaction(settings, commit),
    }


async def _in_transaction(
    settings: Mapping[str, object], act: Callable[[AIOKafkaProducer], Awaitable[None]]
) -> Shown:
    producer = AIOKafkaProducer(**settings, transactional_id=TRANSACTION)
    try:
        await asyncio.wait_for(producer.start(), TIMEOUT_S)
        async with producer.transaction():
            await asyncio.wait_for(act(producer), TIMEOUT_S)
    except aio_errors.KafkaError as refused:
        # If the client's sender task failed, the broker's error is the cause of the raised error.
        cause = refused if hasattr(refused, "errno") else refused.__cause__
        return cast("Shown", getattr(cause, "errno", UNTOLD))
    finally:
        await producer.stop()
    return 0


# -- kafka-python --------------------------------------------------------------------------------


def by_kafka_python(bootstrap: str, user: str) -> Told:
    """Run the steps that kafka-python's admin client supports."""
    client = KafkaAdminClient(**key_of(user).kafka_python(bootstrap))
    try:
        return {step: _heard(call, client) for step, call in KAFKA_PYTHON.items()}
    finally:
        client.close()


def _heard(call: Callable[[KafkaAdminClient], bool], client: KafkaAdminClient) -> Shown:
    try:
        return 0 if call(client) else UNTOLD
    except py_errors.KafkaError as refused:
        return cast("int", refused.errno)


def _lists(client: KafkaAdminClient) -> bool:
    """Whether a list has the transaction; brokers list only those that the user may describe."""
    listed = client.list_transactions().values()
    return any(found.transactional_id == TRANSACTION for some in listed for found in some)


KAFKA_PYTHON: Final[Mapping[Step, Callable[[KafkaAdminClient], bool]]] = {
    Step.LIST: _lists,
    Step.DESCRIBE: lambda client: TRANSACTION in client.describe_transactions([TRANSACTION]),
    Step.FEATURES: lambda client: "transaction.version" in client.describe_features(),
    Step.SET_FEATURE: lambda client: (
        client.update_features({"transaction.version": 2}) == {"transaction.version": "OK"}
    ),
}
