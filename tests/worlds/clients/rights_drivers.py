"""Drivers for Python's client libraries. A driver finds out a user's rights through a library.

A driver runs all steps of one user with few connections. A client must report each denial by the
right error; another error, or no response, fails the test. rights_process_drivers has more drivers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPlace
from aiokafka import errors as aio_errors
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
)
from kafka import TopicPartition as PyPlace
from kafka import errors as py_errors
from tests.worlds.clients.rights_table import OPEN, Step
from tests.worlds.clients.rights_talk import PASSWORD
from tests.worlds.clients.secured import TIMEOUT_S, Key
from tests.worlds.waiting import Patience, until_so

Asked = Mapping[Step, Sequence[str]]
Told = dict[tuple[Step, str], bool]
Config = Mapping[str, str | int | float | bool]

DENIED: Final = {
    Step.SEE: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    Step.COMMIT: KafkaError.GROUP_AUTHORIZATION_FAILED,
    Step.BEGIN: KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Step.NUMBER: KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
TIMEOUT_MS: Final = TIMEOUT_S * 1000


class Driver(Protocol):
    """Runs steps with one client library."""

    def ask(self, bootstrap: str, user: str, asked: Asked) -> Told:
        """Return, for each step and each name, whether the user has the right."""
        ...


def key_of(user: str) -> Key:
    """Return a user's credentials."""
    return Key(protocol="SASL_PLAINTEXT", mechanism="PLAIN", user=user, password=PASSWORD)


# -- confluent-kafka -----------------------------------------------------------------------------


def _is_allowed(error: KafkaError | None, denial: int) -> bool:
    assert error is None or error.code() == denial, error
    return error is None


class Confluent:
    """Driver of librdkafka through confluent-kafka."""

    def ask(self, bootstrap: str, user: str, asked: Asked) -> Told:
        """Run all steps, see `Driver`."""
        config = key_of(user).librdkafka(bootstrap)
        admin = AdminClient(config)
        told: Told = {}
        for name in asked[Step.SEE]:
            seen = admin.describe_topics(TopicCollection([name]))[name]
            told[Step.SEE, name] = self._heard(seen.result, DENIED[Step.SEE])
        self._write(config, asked[Step.WRITE], told)
        self._read(config, asked[Step.READ], told)
        self._groups(admin, asked, told)
        for name in asked[Step.BEGIN]:
            producer = Producer(config | {"transactional.id": name})
            told[Step.BEGIN, name] = self._heard(producer.init_transactions, DENIED[Step.BEGIN])
        for name in asked[Step.NUMBER]:
            told[Step.NUMBER, name] = self._is_numbered(config)
        return told

    @staticmethod
    def _heard(call: Callable[[float], object], denial: int) -> bool:
        try:
            call(TIMEOUT_S)
        except KafkaException as refused:
            return _is_allowed(cast("KafkaError", refused.args[0]), denial)
        return True

    @staticmethod
    def _write(config: Config, names: Sequence[str], told: Told) -> None:
        def deliver(name: str) -> Callable[[KafkaError | None, object], None]:
            def tell(error: KafkaError | None, _: object) -> None:
                told[Step.WRITE, name] = _is_allowed(error, DENIED[Step.SEE])

            return tell

        producer = Producer({**config, "message.timeout.ms": TIMEOUT_MS})
        for name in names:
            producer.produce(name, b"w", on_delivery=deliver(name))
        assert producer.flush(TIMEOUT_S) == 0

    @staticmethod
    def _read(config: Config, names: Sequence[str], told: Told) -> None:
        # `close` waits until the session times out if the user must not look up the group's
        # coordinator, so the timeout is short.
        consumer = Consumer({**config, "group.id": "none", "session.timeout.ms": 1000})
        patience = Patience()
        try:
            waiting = set()
            for name in names:
                # If the user must not describe a topic, a consumer retries forever and reports
                # nothing.
                error = consumer.list_topics(name, TIMEOUT_S).topics[name].error
                told[Step.READ, name] = _is_allowed(error, DENIED[Step.SEE])
                waiting |= {name} if error is None else set()
            consumer.assign([TopicPartition(name, 0, 0) for name in sorted(waiting)])
            while waiting:
                patience.check(waiting)
                message = consumer.poll(1)
                # Errors about the group are skipped: the consumer looks up the group's coordinator,
                # but doesn't need it.
                topic = "" if message is None else message.topic() or ""
                if message is None or topic not in waiting:
                    continue
                waiting.discard(topic)
                told[Step.READ, topic] = _is_allowed(message.error(), DENIED[Step.SEE])
        finally:
            consumer.close()

    def _groups(self, admin: AdminClient, asked: Asked, told: Told) -> None:
        denial = DENIED[Step.COMMIT]
        for name in asked[Step.COMMITTED]:
            wanted = [ConsumerGroupTopicPartitions(name)]
            found = admin.list_consumer_group_offsets(wanted)[name]
            told[Step.COMMITTED, name] = self._heard(found.result, denial)
        for name in asked[Step.COMMIT]:
            given = [ConsumerGroupTopicPartitions(name, [TopicPartition(OPEN, 0, 1)])]
            made = admin.alter_consumer_group_offsets(given)[name]
            told[Step.COMMIT, name] = self._heard(made.result, denial) and all(
                _is_allowed(place.error, denial) for place in made.result().topic_partitions
            )

    @staticmethod
    def _is_numbered(config: Config) -> bool:
        """Whether a producer gets a producer id; a refused write to the topic doesn't matter."""
        told: list[KafkaError | None] = []
        producer = Producer({**config, "enable.idempotence": True})
        producer.produce(OPEN, b"n", on_delivery=lambda error, _: told.append(error))

        def is_told() -> bool:
            try:
                producer.poll(0.1)
            except KafkaException as fatal:
                told.append(cast("KafkaError", fatal.args[0]))
            return bool(told)

        until_so(is_told, "an idempotent producer's record or its fatal error")
        if told[0] is None or told[0].code() == DENIED[Step.SEE]:
            return True
        return _is_allowed(told[0], DENIED[Step.NUMBER])


# -- kafka-python --------------------------------------------------------------------------------


class KafkaPython:
    """Driver of kafka-python."""

    def ask(self, bootstrap: str, user: str, asked: Asked) -> Told:
        """Run all steps, see `Driver`."""
        settings = key_of(user).kafka_python(bootstrap)
        told: Told = {}
        admin = KafkaAdminClient(**settings)
        try:
            told.update(self._see(admin, asked[Step.SEE]))
            self._groups(admin, asked, told)
        finally:
            admin.close()
        self._write(settings, asked[Step.WRITE], told)
        self._read(settings, asked[Step.READ], told)
        for name in asked[Step.BEGIN]:
            told[Step.BEGIN, name] = self._begins(settings, name)
        for name in asked[Step.NUMBER]:
            told[Step.NUMBER, name] = self._is_numbered(settings)
        return told

    @staticmethod
    def _see(admin: KafkaAdminClient, names: Sequence[str]) -> Told:
        found = {each["name"]: each["error_code"] for each in admin.describe_topics(list(names))}
        assert set(found.values()) <= {0, DENIED[Step.SEE]}, found
        return {(Step.SEE, name): found[name] == 0 for name in names}

    @staticmethod
    def _heard(call: Callable[[], object], denial: type[Exception]) -> bool:
        try:
            call()
        except denial:
            return False
        return True

    def _groups(self, admin: KafkaAdminClient, asked: Asked, told: Told) -> None:
        denial = py_errors.GroupAuthorizationFailedError
        for name in asked[Step.COMMITTED]:
            found = partial(admin.list_group_offsets, name)
            told[Step.COMMITTED, name] = self._heard(found, denial)
        given = {PyPlace(OPEN, 0): OffsetAndMetadata(1, "", -1)}
        for name in asked[Step.COMMIT]:
            try:
                errors = set(admin.alter_group_offsets(name, given).values())
            except denial:
                errors = {denial}
            assert errors in ({py_errors.NoError}, {denial}), errors
            told[Step.COMMIT, name] = denial not in errors

    def _write(self, settings: Mapping[str, object], names: Sequence[str], told: Told) -> None:
        producer = KafkaProducer(**settings, enable_idempotence=False, max_block_ms=TIMEOUT_MS)
        try:
            for name in names:
                sent = partial(self._write_one, producer, name)
                denial = py_errors.TopicAuthorizationFailedError
                told[Step.WRITE, name] = self._heard(sent, denial)
        finally:
            producer.close()

    def _read(self, settings: Mapping[str, object], names: Sequence[str], told: Told) -> None:
        consumer = KafkaConsumer(**settings)
        try:
            for name in names:
                # The consumer reports nothing about a topic that the user must not see.
                read = partial(self._read_one, consumer, PyPlace(name, 0))
                denial = py_errors.TopicAuthorizationFailedError
                told[Step.READ, name] = told[Step.SEE, name] and self._heard(read, denial)
        finally:
            consumer.close()

    @staticmethod
    def _write_one(producer: KafkaProducer, name: str) -> None:
        producer.send(name, b"w", partition=0).get(timeout=TIMEOUT_S)

    @staticmethod
    def _read_one(consumer: KafkaConsumer, place: PyPlace) -> None:
        consumer.assign([place])
        consumer.seek(place, 0)
        until_so(lambda: bool(consumer.poll(timeout_ms=1000)), f"a record of {place}")

    def _begins(self, settings: Mapping[str, object], name: str) -> bool:
        producer = KafkaProducer(**settings, transactional_id=name, max_block_ms=TIMEOUT_MS)
        try:
            denial = py_errors.TransactionalIdAuthorizationFailedError
            return self._heard(producer.init_transactions, denial)
        finally:
            producer.close(timeout=0)

    @staticmethod
    def _is_numbered(settings: Mapping[str, object]) -> bool:
        producer = KafkaProducer(**settings, enable_idempotence=True, max_block_ms=TIMEOUT_MS)
        try:
            producer.send(OPEN, b"n", partition=0).get(timeout=TIMEOUT_S)
        except py_errors.TopicAuthorizationFailedError:
            return True
        except py_errors.KafkaError as refused:
            # The client raises its own error, whose text contains the broker's error.
            if "ClusterAuthorizationFailed" not in repr(refused):
                raise
            return False
        finally:
            producer.close(timeout=0)
        return True


# -- aiokafka ------------------------------------------------------------------------------------


class AioKafka:
    """Driver of aiokafka."""

    def ask(self, bootstrap: str, user: str, asked: Asked) -> Told:
        """Run all steps, see `Driver`."""
        return asyncio.run(self._ask(key_of(user).aiokafka(bootstrap), asked))

    async def _ask(self, settings: Mapping[str, object], asked: Asked) -> Told:
        told: Told = {}
        denial = aio_errors.TopicAuthorizationFailedError
        async with AIOKafkaProducer(**settings) as producer:
            for name in asked[Step.SEE]:
                told[Step.SEE, name] = await _heard(producer.partitions_for(name), denial)
            for name in asked[Step.WRITE]:
                sent = producer.send_and_wait(name, b"w", partition=0)
                told[Step.WRITE, name] = await _heard(sent, denial)
        await self._read(settings, asked[Step.READ], told)
        await self._groups(settings, asked, told)
        for name in asked[Step.BEGIN]:
            made = AIOKafkaProducer(**settings, transactional_id=name)
            refusal = aio_errors.TransactionalIdAuthorizationFailed
            told[Step.BEGIN, name] = await self._starts(made, refusal)
        for name in asked[Step.NUMBER]:
            made = AIOKafkaProducer(**settings, enable_idempotence=True)
            refusal = aio_errors.ClusterAuthorizationFailedError
            told[Step.NUMBER, name] = await self._starts(made, refusal)
        return told

    @staticmethod
    async def _starts(producer: AIOKafkaProducer, denial: type[Exception]) -> bool:
        """Return whether the producer gets its producer id."""
        try:
            return await _heard(producer.start(), denial)
        finally:
            await producer.stop()

    @staticmethod
    async def _read(settings: Mapping[str, object], names: Sequence[str], told: Told) -> None:
        # The consumer reports nothing about topics that the user must not see, so it reads only
        # topics that the user may see. If the user may see none of them, no consumer is created,
        # because a consumer that was never used can't be stopped.
        told.update({(Step.READ, name): False for name in names})
        seen = [name for name in names if told[Step.SEE, name]]
        if not seen:
            return
        async with AIOKafkaConsumer(**settings) as consumer:
            for name in seen:
                consumer.assign([AioPlace(name, 0)])
                consumer.seek(AioPlace(name, 0), 0)
                denial = aio_errors.TopicAuthorizationFailedError
                told[Step.READ, name] = await _heard(consumer.getone(), denial)

    @staticmethod
    async def _groups(settings: Mapping[str, object], asked: Asked, told: Told) -> None:
        denial = aio_errors.GroupAuthorizationFailedError
        admin = AIOKafkaAdminClient(**settings)
        await admin.start()
        try:
            for name in asked[Step.COMMITTED]:
                found = admin.list_consumer_group_offsets(name)
                told[Step.COMMITTED, name] = await _heard(found, denial)
        finally:
            await admin.close()
        for name in asked[Step.COMMIT]:
            if not told[Step.COMMITTED, name]:
                # If the user must not read the group's commits, a consumer fails when it looks up
                # the group's coordinator.
                told[Step.COMMIT, name] = False
                continue
            async with AIOKafkaConsumer(
                **settings, group_id=name, enable_auto_commit=False
            ) as consumer:
                consumer.assign([AioPlace(OPEN, 0)])
                made = consumer.commit({AioPlace(OPEN, 0): 1})
                told[Step.COMMIT, name] = await _heard(made, denial)


async def _heard(call: Awaitable[object], denial: type[Exception]) -> bool:
    try:
        await asyncio.wait_for(call, TIMEOUT_S)
    except denial:
        return False
    return True
