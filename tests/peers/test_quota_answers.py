"""Real Kafka and our broker respond equally to valid and invalid quotas.

Requests that we refuse intentionally are not compared (docs/differences.md).
"""

from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import until_equal

from tidelog.protocol.messages import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    PRODUCE,
)
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaFilterComponent,
    QuotaOperation,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from tidelog.server.embedded import Broker as Ours

pytestmark = pytest.mark.kafka

Parts = tuple[tuple[str, str | None], ...]
Values = tuple[tuple[str, float | None], ...]
Filter = tuple[tuple[str, int, str | None], ...]
TOPIC = "quota-answers"
USER, CLIENT = ("user", "qa-alice"), ("client-id", "qa-app")
ANY_USER, ANY_CLIENT = ("user", None), ("client-id", None)
RATE = ("producer_byte_rate", 1e9)
LATER, NO_RATE = ("client-id", "qa-later"), ("producer_byte_rate", None)
ours = broker_fixture(is_temporary=True, scope="module")


def alter(
    client: RawClient, *entries: tuple[Parts, Values], trial: bool = False, version: int = 1
) -> list[tuple[object, ...]]:
    asked = [
        QuotaAlteration(
            entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in parts],
            ops=[
                QuotaOperation(key=key, value=value or 0.0, remove=value is None)
                for key, value in values
            ],
        )
        for parts, values in entries
    ]
    request = AlterClientQuotasRequest(entries=asked, validate_only=trial)
    told = client.ask(ALTER_CLIENT_QUOTAS, version, request)
    return sorted(
        (
            sorted(repr((part.entity_type, part.entity_name)) for part in entry.entity),
            entry.error_code,
            entry.error_message,
        )
        for entry in told.entries
    )


def describe(client: RawClient, *components: tuple[str, int, str | None], strict: bool) -> object:
    asked = [
        QuotaFilterComponent(entity_type=kind, match_type=match, match=name)
        for kind, match, name in components
    ]
    request = DescribeClientQuotasRequest(components=asked, strict=strict)
    told = client.ask(DESCRIBE_CLIENT_QUOTAS, 1, request)
    entries = (
        None
        if told.entries is None
        else sorted(
            (
                repr(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
                sorted((value.key, value.value) for value in entry.values),
            )
            for entry in told.entries
        )
    )
    return told.error_code, told.error_message, entries


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        ((USER,), (RATE,)),
        ((USER,), ()),
        ((), (RATE,)),
        ((("ip", "1.2.3.4"),), (RATE,)),
        ((("user", ""),), (RATE,)),
        ((("group", "x"),), (RATE,)),
        ((USER,), (("nope", 1.0),)),
        ((USER,), (("nope", None),)),
        ((USER,), (("producer_byte_rate", 0.0),)),
        ((USER,), (("producer_byte_rate", -1.5),)),
        ((USER,), (("producer_byte_rate", 1.5),)),
        ((USER,), (("producer_byte_rate", 1000.0000001),)),
        ((USER,), (("producer_byte_rate", 1000.00001),)),
        ((USER,), (("producer_byte_rate", 999.9999999),)),
        ((USER,), (("producer_byte_rate", 2.0**63),)),
        ((USER,), (("producer_byte_rate", 9.3e18),)),
        ((USER,), (("consumer_byte_rate", float("inf")),)),
        ((USER,), (("request_percentage", 0.5),)),
        ((CLIENT, USER), (("request_percentage", 200.0), RATE)),
        ((USER,), (("request_percentage", 1e300),)),
        ((USER,), (("request_percentage", 0.0),)),
        ((("ip", "1.2.3.4"),), (("request_percentage", 1.0),)),
        ((USER,), (("connection_creation_rate", 1.0),)),
        ((CLIENT,), (("connection_creation_rate", 1.0),)),
        ((USER,), (("SCRAM-SHA-256", 1.0),)),
        ((USER,), (RATE, RATE)),
        ((USER,), (RATE, ("nope", 1.0))),
        ((USER, USER), (RATE,)),
        ((USER, ("user", "qa-bob")), (RATE,)),
        ((CLIENT, USER), (RATE,)),
        ((ANY_USER, ANY_CLIENT), (RATE,)),
        ((USER, ANY_CLIENT), (RATE,)),
        ((CLIENT,), (RATE,)),
        ((ANY_CLIENT,), (RATE,)),
    ],
    ids=repr,
)
def test_each_change_has_the_same_result(
    clients: tuple[RawClient, RawClient], parts: Parts, values: Values
) -> None:
    kafka, ours = clients
    expected = alter(kafka, (parts, values), trial=True)
    assert alter(ours, (parts, values), trial=True) == expected
    assert alter(ours, (parts, values), trial=True, version=0) == expected


def test_an_entity_is_named_once(clients: tuple[RawClient, RawClient]) -> None:
    kafka, ours = clients
    twice = ((USER,), (RATE,)), ((USER,), (("consumer_byte_rate", 5e9),))
    assert alter(ours, *twice, trial=True) == alter(kafka, *twice, trial=True)


KEPT: list[tuple[Parts, Values]] = [
    ((USER,), (RATE,)),
    ((CLIENT, USER), (RATE,)),
    ((ANY_CLIENT, USER), (RATE,)),
    (((("client-id", "qa-other"), ("user", "qa-bob"))), (("consumer_byte_rate", 5e9), RATE)),
    ((CLIENT,), (RATE,)),
]
FILTERS: list[Filter] = [
    (),
    (("user", 0, "qa-alice"),),
    (("user", 1, None),),
    (("user", 2, None),),
    (("client-id", 2, None),),
    (("client-id", 1, None),),
    (("ip", 2, None),),
    (("user", 2, None), ("client-id", 2, None)),
    (("user", 0, "qa-alice"), ("client-id", 0, "qa-app")),
    (("user", 0, "qa-alice"), ("client-id", 1, None)),
    (("user", 0, "qa-alice"), ("client-id", 2, None)),
    (("user", 2, None), ("ip", 2, None)),
    (("nope", 2, None),),
    (("", 2, None),),
    (("user", 3, None),),
    (("user", 0, None),),
    (("user", 1, "x"),),
    (("user", 2, "x"),),
    (("user", 2, None), ("user", 2, None)),
    (("user", 0, "nobody"),),
]


def test_stored_quotas_are_described_equally(clients: tuple[RawClient, RawClient]) -> None:
    kafka, ours = clients
    assert alter(ours, *KEPT) == alter(kafka, *KEPT)
    for asked in FILTERS:
        for strict in (False, True):
            # Kafka's broker applies a change a moment after its controller has answered.
            expected = describe(ours, *asked, strict=strict)
            until_equal(expected, partial(describe, kafka, *asked, strict=strict))
    gone = [(parts, tuple((key, None) for key, _ in values)) for parts, values in KEPT]
    assert alter(ours, *gone) == alter(kafka, *gone)
    until_equal((0, "", []), lambda: describe(kafka, strict=False))
    assert describe(ours, strict=False) == (0, "", [])


def apply(admin: RawClient, parts: Parts, values: Values) -> None:
    """Change a quota, and return when the broker applies it.

    When Kafka's broker shows a change, all earlier changes are in effect, but the shown change may
    not be in effect yet. So two more changes are sent, one after another, and the function
    waits until each is shown.
    """
    for entity, quotas in ((parts, values), ((LATER,), (RATE,)), ((LATER,), (NO_RATE,))):
        alter(admin, (entity, quotas))
        kept = sorted((key, value) for key, value in quotas if value is not None)
        until_equal(kept, partial(shown, admin, entity))


def shown(admin: RawClient, parts: Parts) -> object:
    """Return the quotas of one entity."""
    asked = [
        QuotaFilterComponent(entity_type=kind, match_type=0, match=name) for kind, name in parts
    ]
    request = DescribeClientQuotasRequest(components=asked, strict=True)
    entries = admin.ask(DESCRIBE_CLIENT_QUOTAS, 1, request).entries or ()
    return sorted((value.key, value.value) for entry in entries for value in entry.values)


def wait_of(client: RawClient) -> int:
    """Return the throttle time, in ms, of a Produce request of some 600 bytes."""
    batch = bytes(build_batch([NewRecord(value=b"v" * 500)]))
    answer = client.ask(PRODUCE, 9, produce_request(TOPIC, batch))
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


def test_a_client_over_a_quota_is_throttled_equally_long(
    kafka_broker: Broker, ours: "Ours", clients: tuple[RawClient, RawClient]
) -> None:
    """One Produce request alone exceeds the quota, so the result does not depend on a clock."""
    kafka_broker.create_topic(TOPIC)
    ours.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=1))
    rates = (("producer_byte_rate", 1.0), ("consumer_byte_rate", 1e9))
    waits = []
    try:
        for admin, bootstrap in zip(
            clients, (kafka_broker.bootstrap, ours.bootstrap_servers), strict=True
        ):
            apply(admin, (CLIENT,), rates)
            with RawClient(bootstrap, CLIENT[1]) as client:
                waits.append(wait_of(client))
    finally:
        for admin in clients:
            apply(admin, (CLIENT,), tuple((name, None) for name, _ in rates))
    assert waits[0] == waits[1]
    assert waits[0] > 60_000


def test_a_fetch_over_the_quota_returns_no_records(
    kafka_broker: Broker, ours: "Ours", clients: tuple[RawClient, RawClient]
) -> None:
    name, found = f"{TOPIC}-fetched", []
    kafka_broker.create_topic(name)
    ours.call(lambda node: node.log_dir.create_topic(name, partitions=1))
    try:
        for admin, bootstrap in zip(
            clients, (kafka_broker.bootstrap, ours.bootstrap_servers), strict=True
        ):
            assert admin.produce(name, bytes(build_batch([NewRecord(value=b"v")]))).error_code == 0
            apply(admin, (CLIENT,), (("consumer_byte_rate", 1.0),))
            with RawClient(bootstrap, CLIENT[1]) as client:
                wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                asked = FetchRequest(
                    session_epoch=-1,
                    max_bytes=1 << 20,
                    topics=[FetchTopic(topic=name, partitions=[wanted])],
                )
                told = client.ask(FETCH, 12, asked)
                found.append((told.throttle_time_ms, told.error_code, told.responses))
    finally:
        for admin in clients:
            apply(admin, (CLIENT,), (("consumer_byte_rate", None),))
    assert found[0] == found[1]
    assert found[0][0] > 0
    assert found[0][2] == []


def test_a_client_over_its_request_quota_waits_for_one_window(
    kafka_broker: Broker, ours: "Ours", clients: tuple[RawClient, RawClient]
) -> None:
    """However large the excess, the throttle time is one window; both brokers list equal quotas."""
    rates = (("producer_byte_rate", 1e9), ("request_percentage", 1e-9), ("consumer_byte_rate", 1e9))
    found: list[object] = []
    try:
        for admin, bootstrap in zip(
            clients, (kafka_broker.bootstrap, ours.bootstrap_servers), strict=True
        ):
            apply(admin, (CLIENT,), rates)
            asked = DescribeClientQuotasRequest(
                components=[
                    QuotaFilterComponent(entity_type=CLIENT[0], match_type=0, match=CLIENT[1])
                ]
            )
            with RawClient(bootstrap, CLIENT[1]) as client:
                told = client.ask(DESCRIBE_CLIENT_QUOTAS, 1, asked)
                assert told.entries is not None
                kinds = [value.key for entry in told.entries for value in entry.values]
                found.append((told.throttle_time_ms, kinds))
    finally:
        for admin in clients:
            apply(admin, (CLIENT,), tuple((name, None) for name, _ in rates))
    assert found[0] == found[1]
    assert found[1] == (1000, ["consumer_byte_rate", "request_percentage", "producer_byte_rate"])
