"""Sessions that end while a real client works: librdkafka renews them on the same connection."""

from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.cimpl import KafkaError
from tests.worlds.brokers.logins import MECHANISMS, SASL, add_users, key_of, place, settings_in
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.brokers.signing import RsaKey, key_set, token
from tests.worlds.clients.secured import TIMEOUT_S, Key, create_topic
from tests.worlds.clients.tokens import claims, now_s
from tests.worlds.waiting import Patience

from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker

BEARER: Final = "OAUTHBEARER"
# More than a second, within which nobody may renew twice.
LIFETIME_S: Final = 2
RENEWALS: Final = 2
PAUSE_S: Final = 0.05
SIGNER: Final = RsaKey("k")


def with_tokens(folder: Path) -> dict[str, str]:
    (folder / "keys.json").write_bytes(key_set(SIGNER.shown()))
    return settings_in(folder) | {
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, BEARER)),
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "connections.max.reauth.ms": str(1000 * LIFETIME_S),
    }


broker = broker_fixture(with_tokens, prepare=add_users, scope="module")


def new_token(_: object) -> tuple[str, float]:
    """A token of a session's length, and when it ends."""
    end_s = now_s() + LIFETIME_S
    return token(SIGNER, "RS256", claims(exp=end_s)), end_s


def settings_of(running: Broker, mechanism: str) -> dict[str, object]:
    if mechanism != BEARER:
        return dict(key_of(mechanism).librdkafka(place(running)))
    key = Key(protocol=SASL, mechanism=BEARER)
    return key.librdkafka(place(running)) | {"oauth_cb": new_token}


def counts(node: Node, mechanism: str) -> tuple[int, int]:
    """How often somebody has logged in, and how often one has come."""
    logins = dict(node.metrics.logins)
    return logins.get((mechanism, "ok"), 0), node.metrics.connections_opened


@pytest.mark.parametrize("mechanism", [*MECHANISMS, BEARER])
def test_a_producer_renews_its_sessions(broker: Broker, mechanism: str) -> None:
    create_topic(broker.bootstrap_servers, Key(), mechanism)
    begun = broker.call(lambda node: counts(node, mechanism))
    delivered: list[int] = []
    failed: list[object] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        failed.append(error) if error is not None else delivered.append(message.offset() or 0)

    producer = Producer(settings_of(broker, mechanism))
    patience, sent = Patience(), 0
    while True:
        producer.produce(mechanism, str(sent), on_delivery=on_delivery)
        sent += 1
        assert producer.flush(TIMEOUT_S) == 0
        logins, opened = broker.call(lambda node: counts(node, mechanism))
        if logins - begun[0] - (opened - begun[1]) >= RENEWALS:
            break
        producer.poll(PAUSE_S)
        patience.check("log-ins on connections that were there")
    assert failed == []
    assert delivered == list(range(sent))
    assert broker.call(lambda node: node.metrics.logins.get((mechanism, "failed"))) is None
