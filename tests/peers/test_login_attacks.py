"""SCRAM and OAUTHBEARER messages that have one error each, with Kafka and our broker."""

import base64
from collections.abc import Mapping
from typing import Final

import pytest
from tests.worlds.brokers.doors import BEARER, Door
from tests.worlds.clients.login_talk import (
    LIFETIME_MS,
    NONCE,
    REFUSED,
    SCRAM,
    Change,
    Heard,
    LastMessage,
    Visitor,
    doors,
    heard,
    same,
)
from tests.worlds.clients.tokens import BearerKey

__all__ = ["doors"]
pytestmark = pytest.mark.kafka

FIRST: Final = (
    "n,a={user},n={user},r={nonce}",
    "n,a=other,n={user},r={nonce}",
    "p=tls-unique,,n={user},r={nonce}",
    "y,,n={user},r={nonce}",
    "y,a={user},n={user},r={nonce}",
    "n,,n={user},r={nonce},ext=1",
    "n,,n={user},r={nonce},tokenauth=true",
    "n,,n={user}",
    "n,,r={nonce},n={user}",
    "n,,n={user},r=",
    "n,,n=,r={nonce}",
    "n,,n=a=b,r={nonce}",
    "n={user},r={nonce}",
    ",,n={user},r={nonce}",
    "",
    "\x00",
    "c=biws,r={nonce},p=AAAA",
)
LAST: Final[Mapping[str, Change]] = {
    "as it should be": LastMessage.text,
    "another nonce": lambda it: it._replace(nonce=NONCE + "x").text(),
    "its own nonce": lambda it: it._replace(nonce=NONCE).text(),
    "a longer nonce": lambda it: it._replace(nonce=it.nonce + "x").text(),
    "no nonce": lambda it: it._replace(nonce="").text(),
    "another binding": lambda it: it._replace(binding="eSws").text(),
    "no binding": lambda it: it._replace(binding="").text(),
    "a flipped proof": lambda it: it._replace(proof=swapped(it.proof)).text(),
    "a proof that is no base64": lambda it: it._replace(proof="*" * 44).text(),
    "no proof": lambda it: it.text().rpartition(",p=")[0],
    "an end behind the proof": lambda it: it.text() + ",x=1",
    "nothing": lambda _: "",
    "the first one again": lambda _: f"n,,n=SCRAM-SHA-256-user,r={NONCE}",
}


def swapped(proof: str) -> str:
    """Return a proof with one wrong bit."""
    raw = bytearray(base64.b64decode(proof))
    raw[0] ^= 1
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("first", FIRST)
def test_first_messages(doors: tuple[Door, Door], mechanism: str, first: str) -> None:
    def story(visitor: Visitor) -> None:
        visitor.shake(mechanism)
        visitor.scram(mechanism, first)

    same(doors, story)


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("what", LAST)
def test_last_messages(doors: tuple[Door, Door], mechanism: str, what: str) -> None:
    def story(visitor: Visitor) -> None:
        visitor.shake(mechanism)
        visitor.scram(mechanism, change=LAST[what])

    told = same(doors, story)
    assert (told[-1] == ("ask", True)) == (what == "as it should be")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_message_after_a_completed_exchange_is_refused(
    doors: tuple[Door, Door], mechanism: str
) -> None:
    def story(visitor: Visitor) -> None:
        visitor.log_in(mechanism)
        visitor.say(b"again")

    same(doors, story)


def answers(doors: tuple[Door, Door], mechanism: str, *message: object) -> list[object]:
    """Return Kafka's responses and ours to changed SCRAM messages, without the handshake's."""

    def story(visitor: Visitor) -> None:
        visitor.shake(mechanism)
        visitor.heard.clear()
        visitor.scram(mechanism, *message)  # type: ignore[arg-type]  # as `scram` has them

    return [heard(door, story) for door in doors]


GOES_ON: Final = ("say", 0, 0, "")
IS_IN: Final = [GOES_ON, ("say", 0, LIFETIME_MS, ""), ("ask", True)]


def refusal(mechanism: str, *before: object) -> list[object]:
    text = "Authentication failed during authentication due to invalid credentials"
    said = ("say", REFUSED, 0, f"{text} with SASL mechanism {mechanism}")
    return [*before, said, ("ask", False)]


USUAL: Final = "n,,n={user},r={nonce}"


@pytest.mark.parametrize("mechanism", SCRAM)
def test_only_kafka_reveals_unknown_users(doors: tuple[Door, Door], mechanism: str) -> None:
    early, late = refusal(mechanism), refusal(mechanism, GOES_ON)
    assert answers(doors, mechanism, "n,,n=nobody,r={nonce}") == [early, late]


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("proof", ["AAAA", "", "AAAA" * 40])
def test_kafka_stumbles_over_a_proof_of_another_length(
    doors: tuple[Door, Door], mechanism: str, proof: str
) -> None:
    told = answers(doors, mechanism, USUAL, lambda it: it._replace(proof=proof).text())
    assert told == [[GOES_ON, "closed"], refusal(mechanism, GOES_ON)]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_extension_that_must_be_understood_is_refused_earlier_than_by_kafka(
    doors: tuple[Door, Door], mechanism: str
) -> None:
    early, late = refusal(mechanism), refusal(mechanism, GOES_ON)
    assert answers(doors, mechanism, "n,,m=ext,n={user},r={nonce}") == [late, early]


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("extension", [",x=1,p=", ",p=AAAA,p="])
def test_only_kafka_accepts_extensions_that_the_proof_does_not_cover(
    doors: tuple[Door, Door], mechanism: str, extension: str
) -> None:
    """Kafka's proof omits extensions, although RFC 5802 requires a proof over the whole message."""
    told = answers(doors, mechanism, USUAL, lambda it: it.text().replace(",p=", extension))
    assert told == [IS_IN, refusal(mechanism, GOES_ON)]


# -- OAUTHBEARER ---------------------------------------------------------------------------------

MESSAGES: Final = (
    "",
    "n,,",
    "n,,\x01\x01",
    "\x01",
    "p=x,,\x01auth=Bearer {}\x01\x01",
    "y,,\x01auth=Bearer {}\x01\x01",
    "y,a=alice,\x01auth=Bearer {}\x01\x01",
    "n,alice,\x01auth=Bearer {}\x01\x01",
    "n,a=other,\x01auth=Bearer {}\x01\x01",
    "n,,\x01auth=Bearer \x01\x01",
    "n,,\x01auth=Bearer x\x01\x01",
    "n,,\x01host=h\x01port=1\x01auth=Bearer {}\x01\x01",
)


def bearers(doors: tuple[Door, Door], message: str) -> list[Heard]:
    """Return Kafka's responses and ours to a message of OAUTHBEARER, without the handshake."""

    def told(door: Door) -> Heard:
        key = door.good[BEARER]
        assert isinstance(key, BearerKey)

        def story(visitor: Visitor) -> None:
            visitor.shake(BEARER)
            visitor.heard.clear()
            if visitor.say(message.format(key.made).encode()):
                visitor.say(b"\x01")

        return heard(door, story)

    return [told(door) for door in doors]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_of_bearers(doors: tuple[Door, Door], message: str) -> None:
    kafka, ours = bearers(doors, message)
    assert ours == kafka


def test_kafka_stumbles_over_another_scheme(doors: tuple[Door, Door]) -> None:
    other_scheme = bearers(doors, "n,,\x01auth=Basic {}\x01\x01")
    assert other_scheme == [["closed"], refusal(BEARER)]
