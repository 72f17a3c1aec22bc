"""Real clients can write and read exactly the topics to which their users have rights."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
)
from aiokafka import TopicPartition as AioPlace
from aiokafka.errors import TopicAuthorizationFailedError as AioDenied
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyPlace
from kafka.errors import TopicAuthorizationFailedError
from tests.contracts.broker_commands import Shell
from tests.server.test_acls import BATCH, PASSWORD, login
from tests.worlds.brokers.logins import SASL, place
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.rights_talk import AclFields, allow, creation, deny
from tests.worlds.clients.secured import TIMEOUT_S, Key

from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.errors import ClusterFailure, NotAuthorized, UnknownTopic
from tidelog.protocol.messages import CREATE_ACLS
from tidelog.protocol.messages.security import CreateAclsRequest
from tidelog.remote.cluster import Cluster, connect
from tidelog.server.embedded import Broker
from tidelog.server.security.operations import ResourceType
from tidelog.spark.broker_sink import Claim, WriteOutcome, send
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.pushdown import NO_LIMITS
from tidelog.spark.sink_options import SinkOptions
from tidelog.types import TopicPartition as Place

# For each user: its ACLs, the topics that it may write, and the topics that it may read.
USERS: Final[dict[str, tuple[list[AclFields], str, str]]] = {
    "nobody": ([], "", "open"),
    "reader": ([allow("READ")], "", "flights open"),
    "writer": ([allow("WRITE")], "flights", "open"),
    "prefixed": (
        [allow("READ", name="fl", prefix=True), allow("WRITE", name="flee", prefix=True)],
        "fleet",
        "flights fleet open",
    ),
    "all": ([allow("ALL", name="*")], "flights fleet secret open", "flights fleet secret open"),
    "but-flights": (
        [allow("ALL", name="*"), deny("ALL")],
        "fleet secret open",
        "fleet secret open",
    ),
    "but-writing": (
        [allow("ALL", name="*"), deny("WRITE", name="*")],
        "",
        "flights fleet secret open",
    ),
    "from-there": ([allow("ALL", name="*", host="10.1.2.3")], "", "open"),
}
# Seconds for which a test waits to be sure that a reader without rights gets no record.
DENIED_S: Final = 2
# Maximum number of reads until librdkafka reports that its group is refused.
ATTEMPTS_MAX: Final = 20
TOPICS: Final = ("flights", "fleet", "secret", "open")
QUICK: Final = frozenset({("reader", "flights"), ("writer", "flights")})


def with_users(folder: Path) -> dict[str, str]:
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in ("boss", *USERS)))
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "tidelog.sasl.plain.users.file": str(users),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:boss",
    }


def add_acls(broker: Broker) -> None:
    with login(broker, "boss") as boss:
        _add_acls(broker, boss)


def _add_acls(broker: Broker, boss: RawClient) -> None:
    acls = [creation(user, acl) for user, (some, _, _) in USERS.items() for acl in some]
    acls.append(creation("*", allow("READ", name="open")))
    # Every user may read the group `none`: librdkafka always looks up its group's coordinator.
    acls.append(creation("*", allow("READ", ResourceType.GROUP, "none")))
    said = boss.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=acls))
    assert not any(each.error_code for each in said.results)
    broker.call(lambda node: [node.log_dir.create_topic(name, partitions=1) for name in TOPICS])
    for name in TOPICS:
        assert boss.produce(name, BATCH).error_code == 0


broker = broker_fixture(with_users, prepare=add_acls, scope="module")


def _librdkafka_writes(bootstrap: str, key: Key, topic: str) -> bool:
    told: list[KafkaError | None] = []
    producer = Producer(key.librdkafka(bootstrap) | {"message.timeout.ms": TIMEOUT_S * 1000})
    producer.produce(topic, b"w", on_delivery=lambda error, _: told.append(error))
    producer.flush(TIMEOUT_S)
    (error,) = told
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return error is None


def _librdkafka_reads(bootstrap: str, key: Key, topic: str, wait_s: int) -> bool:
    consumer = Consumer(key.librdkafka(bootstrap) | {"group.id": "none"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(wait_s)
        if message is None:
            return False
        error = message.error()
        assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        return error is None
    finally:
        consumer.close()


def _kafka_python_writes(bootstrap: str, key: Key, topic: str) -> bool:
    settings = key.kafka_python(bootstrap) | {"enable_idempotence": False}
    producer = KafkaProducer(**settings)
    try:
        producer.send(topic, b"w").get(timeout=TIMEOUT_S)
    except TopicAuthorizationFailedError:
        return False
    finally:
        producer.close()
    return True


def _kafka_python_reads(bootstrap: str, key: Key, topic: str, wait_s: int) -> bool:
    consumer = KafkaConsumer(**key.kafka_python(bootstrap))
    try:
        consumer.assign([PyPlace(topic, 0)])
        consumer.seek(PyPlace(topic, 0), 0)
        return bool(consumer.poll(timeout_ms=wait_s * 1000))
    except TopicAuthorizationFailedError:
        return False
    finally:
        consumer.close()


def _aiokafka_writes(bootstrap: str, key: Key, topic: str) -> bool:
    async def run() -> bool:
        producer = AIOKafkaProducer(**key.aiokafka(bootstrap))
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait(topic, b"w", partition=0), TIMEOUT_S)
        except AioDenied:
            return False
        finally:
            await producer.stop()
        return True

    return asyncio.run(run())


def _aiokafka_reads(bootstrap: str, key: Key, topic: str, wait_s: int) -> bool:
    async def run() -> bool:
        consumer = AIOKafkaConsumer(**key.aiokafka(bootstrap))
        await consumer.start()
        try:
            consumer.assign([AioPlace(topic, 0)])
            consumer.seek(AioPlace(topic, 0), 0)
            await asyncio.wait_for(consumer.getone(), wait_s)
        except (AioDenied, TimeoutError):
            return False
        finally:
            await consumer.stop()
        return True

    return asyncio.run(run())


Write = Callable[[str, Key, str], bool]
Read = Callable[[str, Key, str, int], bool]
CLIENTS: Final[dict[str, tuple[Write, Read]]] = {
    "librdkafka": (_librdkafka_writes, _librdkafka_reads),
    "kafka-python": (_kafka_python_writes, _kafka_python_reads),
    "aiokafka": (_aiokafka_writes, _aiokafka_reads),
}
ROWS: Final = [
    pytest.param(
        user, topic, id=f"{user}-{topic}", marks=() if (user, topic) in QUICK else pytest.mark.slow
    )
    for user in USERS
    for topic in TOPICS
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("user", "topic"), ROWS)
def test_acls_decide_who_writes_and_reads(
    broker: Broker, user: str, topic: str, client: str
) -> None:
    _, writable, readable = USERS[user]
    key = Key(protocol=SASL, mechanism="PLAIN", user=user, password=PASSWORD)
    writes, reads = CLIENTS[client]
    may_read = topic in readable.split()
    # This client retries forever and reports nothing if its user must not see a topic.
    wait_s = TIMEOUT_S if may_read else DENIED_S
    assert writes(place(broker), key, topic) == (topic in writable.split())
    assert reads(place(broker), key, topic, wait_s) == may_read


def reader_of(broker: Broker) -> AbstractContextManager[Cluster]:
    """Connect as the user `reader` without rights on groups."""
    key = Key(protocol=SASL, mechanism="PLAIN", user="reader", password=PASSWORD)
    client = {option: str(text) for option, text in key.librdkafka(place(broker)).items()}
    return connect(place(broker), client)


def test_reading_without_a_group_needs_no_rights_on_groups(broker: Broker) -> None:
    """The error about librdkafka's placeholder group may arrive before or after a record."""
    name = Place("flights", 0)
    with reader_of(broker) as cluster:
        for _ in range(ATTEMPTS_MAX):
            assert cluster.first_records({name: 0})[name] is not None


@pytest.mark.parametrize("more", [{}, {"kafka.group.id": "mine"}, {"groupIdPrefix": "mine"}])
def test_a_read_in_spark_needs_no_rights_on_groups(broker: Broker, more: dict[str, str]) -> None:
    """The tasks commit nothing, so an error about the group, early or late, does not matter."""
    assert rows_read(broker, "reader", more, times=ATTEMPTS_MAX) == ATTEMPTS_MAX


@pytest.mark.parametrize("user", ["writer", "nobody"])
def test_a_read_in_spark_reports_the_missing_right_to_the_topic(broker: Broker, user: str) -> None:
    expected = {
        "writer": (NotAuthorized, "flights-0: TOPIC_AUTH"),
        "nobody": (UnknownTopic, "no topic flights"),
    }
    kind, text = expected[user]
    with pytest.raises(kind, match=text):
        rows_read(broker, user, {}, times=1)


def rows_read(broker: Broker, user: str, more: dict[str, str], *, times: int) -> int:
    """Read the topic flights as Spark's tasks do, with a user's password; return the rows."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    options = read_source_options(
        {
            "kafka.bootstrap.servers": place(broker),
            "subscribe": "flights",
            "kafka.security.protocol": SASL,
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{module} username="{user}" password="{PASSWORD}";',
            "maxRecordsPerPartition": "1",
            **more,
        }
    )
    count = 0
    with open_backend(options, ("offset", "value")) as backend:
        for _ in range(times):
            (task, *_) = backend.plan_batch(NO_LIMITS).tasks
            count += sum(batch.num_rows for batch in task.read())
    return count


def test_a_denied_group_is_an_error_of_the_cluster(broker: Broker) -> None:
    with reader_of(broker) as cluster, closing(cluster.consumer("denied")) as consumer:
        consumer.assign([TopicPartition("flights", 0, 0)])

        def read() -> None:
            while (message := consumer.poll(TIMEOUT_S)) is not None:
                cluster.partition_of(message)

        with pytest.raises(ClusterFailure) as refused:
            read()
    assert refused.value.error_code == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_a_sink_without_rights_reports_the_missing_right(broker: Broker) -> None:
    def write(user: str, topic: str, claim: Claim | None) -> WriteOutcome:
        key = Key(protocol=SASL, mechanism="PLAIN", user=user, password=PASSWORD)
        client = {name: str(text) for name, text in key.librdkafka(place(broker)).items()}
        options = SinkOptions(
            bootstrap=client.pop("bootstrap.servers"),
            topic=topic,
            exactly_once=claim is not None,
            client=client,
        )
        rows = pa.record_batch({"value": [b"row"]})
        return send(options, iter([rows]), task=0, claim=claim)

    assert write("writer", "flights", None).records == 1
    with pytest.raises(NotAuthorized, match="flights"):
        write("prefixed", "flights", None)
    with pytest.raises(NotAuthorized, match="begin a transaction"):
        write("all", "flights", Claim("test/flights/0", 0))


def settings_of(user: str, folder: Path) -> tuple[str, str]:
    """Write the client settings of a user to a file; return the option that names this file."""
    settings = folder / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username={user}\nsasl.password={PASSWORD}\n"
    )
    return "--command-config", str(settings)


def test_a_user_who_may_only_write_can_produce(broker: Broker, tmp_path: Path) -> None:
    shell, config = Shell(broker.bootstrap_servers), settings_of("writer", tmp_path)
    for options in ((), ("--check",)):
        code, _, err = shell.run("produce", "flights", *config, *options, stdin=b"one\ntwo\n")
        assert code == 0, err
    code, _, err = shell.run("produce", "secret", *config, stdin=b"one\n")
    assert code == 1
    assert "has no topic secret" in err


def test_a_user_who_may_only_read_needs_no_right_to_settings(
    broker: Broker, tmp_path: Path
) -> None:
    shell, config = Shell(broker.bootstrap_servers), settings_of("reader", tmp_path)
    start = "2020-01-01T00:00Z"
    for command in (
        ("read", "flights", "--from", start),
        ("read", "flights", "--offset", "0..1"),
        ("count", "flights", "--from", start),
        ("offsets", "flights", "--at", start),
        ("describe", "flights"),
    ):
        code, _, err = shell.run(*command, *config)
        assert code == 0, (command, err)
        is_noted = "unknown, because the settings of flights can't be read" in err
        assert is_noted == (command[0] != "describe"), err
    for words in ("read flights --table", "diff flights --from -1h --inexact mark"):
        code, _, err = shell.run(*words.split(), *config)
        assert code == 0, (words, err)
        assert "whether flights has another compaction rule is unknown" in err
    code, _, err = shell.run("read", "flights", "--table", "--at", "-1h", *config)
    assert code == 1
    assert "whether it was compacted is unknown, because its settings can't be read" in err
    assert [row["topic"] for row in shell.rows("topics", *config)] == ["flights", "open"]
    code, _, err = shell.run("config", "flights", *config)
    assert code == 1
    assert "could not read the settings of flights: TOPIC_AUTHORIZATION_FAILED" in err
