"""librdkafka renews sessions that expire while it works, on the same connection."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import Message, Producer
from confluent_kafka.cimpl import KafkaError
from tests.worlds.brokers.logins import MECHANISMS, SASL, add_users, key_of, place, settings_in
from tests.worlds.brokers.signing import RsaKey, key_set, token
from tests.worlds.clients.secured import TIMEOUT_S, Key, create_topic
from tests.worlds.clients.tokens import claims, now_s
from tests.worlds.waiting import Patience

import tidelog
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker

BEARER: Final = "OAUTHBEARER"
# Length of a session in seconds. It must be longer than 1 s, because the broker refuses a renewal
# within a second after the previous one.
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


def new_token(_: object) -> tuple[str, float]:
    """Return a token that is valid for `LIFETIME_S`, and the time of its end."""
    end_s = now_s() + LIFETIME_S
    return token(SIGNER, "RS256", claims(exp=end_s)), end_s


def settings_of(running: Broker, mechanism: str) -> dict[str, object]:
    if mechanism != BEARER:
        return dict(key_of(mechanism).librdkafka(place(running)))
    key = Key(protocol=SASL, mechanism=BEARER)
    return key.librdkafka(place(running)) | {"oauth_cb": new_token}


def counts(node: Node, mechanism: str) -> tuple[int, int]:
    """Return how many authentications by a mechanism succeeded, and the number of connections."""
    logins = dict(node.metrics.logins)
    return logins.get((mechanism, "ok"), 0), node.metrics.connections_opened


class Renewing:
    """A producer that authenticates by one mechanism; collects the results of its records."""

    def __init__(self, broker: Broker, mechanism: str) -> None:
        self.mechanism = mechanism
        self._broker = broker
        create_topic(broker.bootstrap_servers, Key(), mechanism)
        self._begun = broker.call(lambda node: counts(node, mechanism))
        self._producer = Producer(settings_of(broker, mechanism))
        self._sent = 0
        self._delivered: list[int] = []
        self._failed: list[object] = []

    def is_renewed(self) -> bool:
        """Send a record; return whether the producer's sessions have been renewed often enough."""
        self._producer.produce(self.mechanism, str(self._sent), on_delivery=self._on_delivery)
        self._sent += 1
        assert self._producer.flush(TIMEOUT_S) == 0
        logins, opened = self._broker.call(lambda node: counts(node, self.mechanism))
        return logins - self._begun[0] - (opened - self._begun[1]) >= RENEWALS

    def pause(self) -> None:
        self._producer.poll(PAUSE_S)

    def check(self) -> None:
        assert self._failed == [], self.mechanism
        assert self._delivered == list(range(self._sent)), self.mechanism
        failed = (self.mechanism, "failed")
        assert self._broker.call(lambda node: node.metrics.logins.get(failed)) is None

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
        else:
            self._delivered.append(message.offset() or 0)


def test_producers_renew_their_sessions(tmp_path: Path) -> None:
    """One producer per mechanism; all run at the same time, because they mostly wait."""
    with ExitStack() as brokers:
        producers = []
        for mechanism in (*MECHANISMS, BEARER):
            folder = tmp_path / mechanism
            folder.mkdir()
            broker = tidelog.broker(str(folder / "data"), settings=with_tokens(folder))
            add_users(brokers.enter_context(broker))
            producers.append(Renewing(broker, mechanism))
        patience, left = Patience(), producers
        while left := [producer for producer in left if not producer.is_renewed()]:
            patience.check([producer.mechanism for producer in left])
            left[0].pause()
        for producer in producers:
            producer.check()
