"""Sessions whose tokens expire during a connection, with Kafka and our broker.

Both brokers accept a token for a while after it has expired. The session of such a token ends as
soon as it starts.
"""

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from tests.worlds.brokers.doors import BEARER, Door, kafkas_sasl, our_sasl
from tests.worlds.brokers.logins import is_served, say, shake
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.tokens import bearer, now_s
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.messages.metadata import ApiVersionsRequest

pytestmark = pytest.mark.kafka
# Time in seconds for which brokers accept an expired token; so large that a token's state doesn't
# depend on the machine's speed.
SKEW_S: Final = 600
SHORT_S: Final = 3
# Maximum difference, in seconds, between the wall clock and the clock that ends sessions.
TOLERANCE_S: Final = 0.1
ENDED: Final = ("say", 0, "", 0)
GOES_ON: Final = ("say", 0, "", "some")
SHAKEN: Final = ("shake", 0)
CLOSED: Final = "closed"


@pytest.fixture(scope="module")
def doors(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Door, Door]]:
    """Kafka's broker and ours, both with sessions that end when the token expires."""
    folders = [tmp_path_factory.mktemp(name) for name in ("kafka", "ours")]
    more = {
        "sasl.oauthbearer.clock.skew.seconds": str(SKEW_S),
        "connection.failed.authentication.delay.ms": "0",
    }
    with (
        kafkas_sasl(kafka_jars, kafka_oracle, folders[0], more) as kafka,
        our_sasl(folders[1], more) as ours,
    ):
        yield kafka, ours


class Holder:
    """A client that authenticates by tokens, and the responses that it received."""

    def __init__(self, door: Door, client: RawClient) -> None:
        assert door.token is not None
        self._make = door.token
        self._client = client
        self.heard: list[object] = []

    def shake(self, mechanism: str = BEARER) -> None:
        self.heard.append(("shake", shake(self._client, mechanism).error_code))

    def show(self, version: int = 2, **claims: object) -> None:
        """Send a token; record the response. Any session length but 0 is recorded as "some"."""
        told = say(self._client, bearer(self._make(**claims)), version)
        lasts = told.session_lifetime_ms and "some"
        self.heard.append(("say", told.error_code, told.error_message, lasts))

    def show_ended(self, version: int = 2, **claims: object) -> None:
        """Send a token that has expired, but is still accepted."""
        self.show(version, iat=now_s() - SKEW_S / 2, exp=now_s() - 1, **claims)

    def renew_twice(self) -> None:
        for _ in range(3):
            self.shake()
            self.show_ended()

    def ask(self) -> None:
        self.heard.append(("ask", is_served(self._client)))

    def ask_versions(self) -> None:
        told = self._client.ask(API_VERSIONS, 0, ApiVersionsRequest())
        self.heard.append(("versions", told.error_code))


Story = Callable[[Holder], None]


def heard(door: Door, story: Story) -> list[object]:
    with RawClient(door.bootstrap) as client:
        holder = Holder(door, client)
        try:
            story(holder)
        except ConnectionError:
            holder.heard.append(CLOSED)
        return holder.heard


def same(doors: tuple[Door, Door], story: Story) -> list[object]:
    """Assert that both brokers give the same responses; return these responses."""
    kafka, ours = (heard(door, story) for door in doors)
    assert ours == kafka
    return ours


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_with_an_ended_session_is_disconnected(
    doors: tuple[Door, Door], version: int
) -> None:
    def story(holder: Holder) -> None:
        holder.shake()
        holder.show_ended(version)
        holder.ask()

    assert same(doors, story) == [SHAKEN, ENDED, ("ask", False)]


@pytest.mark.parametrize(
    "next_one", [Holder.ask_versions, Holder.show, Holder.show_ended], ids=lambda it: it.__name__
)
def test_after_the_end_only_a_handshake_gets_a_response(
    doors: tuple[Door, Door], next_one: Story
) -> None:
    def story(holder: Holder) -> None:
        holder.shake()
        holder.show_ended()
        next_one(holder)

    assert same(doors, story) == [SHAKEN, ENDED, CLOSED]


def test_a_session_that_has_ended_is_renewed(doors: tuple[Door, Door]) -> None:
    def story(holder: Holder) -> None:
        holder.shake()
        holder.show_ended()
        holder.shake()
        holder.show()
        holder.ask()

    assert same(doors, story) == [SHAKEN, ENDED, SHAKEN, GOES_ON, ("ask", True)]


def test_a_renewed_session_may_end_sooner_than_the_first(doors: tuple[Door, Door]) -> None:
    def story(holder: Holder) -> None:
        holder.shake()
        holder.show()
        holder.shake()
        holder.show_ended()
        holder.ask()

    assert same(doors, story) == [SHAKEN, GOES_ON, SHAKEN, ENDED, ("ask", False)]


def test_a_second_reauthentication_within_a_second_disconnects(doors: tuple[Door, Door]) -> None:
    """The token has expired, and the client reauthenticates twice within a second."""
    for door in doors:
        begun_s = now_s()
        told = heard(door, Holder.renew_twice)
        is_slow = now_s() - begun_s >= 1
        assert told == [SHAKEN, ENDED, SHAKEN, ENDED, CLOSED] or is_slow


def test_a_token_of_another_principal_is_refused(doors: tuple[Door, Door]) -> None:
    def story(holder: Holder) -> None:
        holder.shake()
        holder.show()
        holder.shake()
        holder.show(sub="bob")
        holder.ask()

    told = same(doors, story)
    text = "Cannot change principals during re-authentication from User.alice: User.bob"
    assert told == [SHAKEN, GOES_ON, SHAKEN, ("say", 58, text, 0), ("ask", False)]


@pytest.mark.parametrize("fraction_s", [0, 0.9])
def test_a_session_lasts_until_its_token_ends(doors: tuple[Door, Door], fraction_s: float) -> None:
    """The token is valid for some seconds of wall time, because Kafka's clock can't be set."""
    for door in doors:
        with RawClient(door.bootstrap) as client:
            holder = Holder(door, client)
            holder.shake()
            end_s = int(now_s()) + SHORT_S
            holder.show(exp=end_s + fraction_s)
            patience = Patience()
            while is_served(client):
                patience.check("closed at the token's end")
            assert now_s() >= end_s - TOLERANCE_S
            assert holder.heard in ([SHAKEN, GOES_ON], [SHAKEN, ENDED])
