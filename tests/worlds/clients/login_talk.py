"""Runs valid and invalid authentications, message by message, with Kafka and our broker."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest
from tests.worlds.brokers.doors import BEARER, Door, kafkas_sasl, our_sasl
from tests.worlds.brokers.logins import MECHANISMS, PASSWORD, is_served, plain, say, shake
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.tokens import BearerKey
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

LIFETIME_MS: Final = 3_600_000
SCRAM: Final = MECHANISMS[1:]
NONCE: Final = "fyko+d2lbbFgONRv9qkxdawL"
UNSUPPORTED, ILLEGAL, REFUSED = 33, 34, 58
# The list that a connection records: responses, and `closed` at the end.
Heard = list[object]
Story = Callable[["Visitor"], None]


class LastMessage(NamedTuple):
    """Parts of a client's last SCRAM message; a test may replace a part by a wrong value."""

    binding: str
    nonce: str
    proof: str

    def text(self) -> str:
        return f"c={self.binding},r={self.nonce},p={self.proof}"


Change = Callable[[LastMessage], str]


class Visitor:
    """A connection that records all responses."""

    def __init__(self, door: Door, client: RawClient) -> None:
        self._door = door
        self._client = client
        self.heard: Heard = []

    def shake(self, mechanism: str, version: int = 1) -> None:
        """Send a SASL handshake; record the response."""
        told = shake(self._client, mechanism, version)
        self.heard.append(("shake", told.error_code, sorted(told.mechanisms)))

    def say(self, token: bytes) -> bytes:
        """Send a SASL token; record and return the response's token."""
        told = say(self._client, token)
        lifetime = told.session_lifetime_ms
        # A token that expires earlier ends the session earlier; the remaining time differs in each
        # run.
        word = lifetime if lifetime in (0, LIFETIME_MS) else "some"
        text = (told.error_message or "").split(":")[0]
        self.heard.append(("say", told.error_code, word, text))
        return bytes(told.auth_bytes)

    def ask(self) -> None:
        """Send a request that requires authentication; record whether there is a response."""
        self.heard.append(("ask", is_served(self._client)))

    def log_in(self, mechanism: str, password: str = PASSWORD) -> None:
        """Authenticate in the usual way."""
        self.shake(mechanism)
        self.prove(mechanism, password)

    def prove(self, mechanism: str, password: str = PASSWORD) -> None:
        """Send the SASL tokens of an authentication, without the handshake."""
        if mechanism == BEARER:
            key = self._door.good[BEARER] if password == PASSWORD else self._door.bad[EXPIRED]
            assert isinstance(key, BearerKey)
            said = self.say(f"n,,\x01auth=Bearer {key.made}\x01\x01".encode())
            self.heard.append(said)
            if said:
                self.say(b"\x01")
        elif mechanism == "PLAIN":
            self.say(plain(password=password))
        else:
            self.scram(mechanism, password=password)

    def scram(
        self,
        mechanism: str,
        first: str = "n,,n={user},r={nonce}",
        change: Change = LastMessage.text,
        password: str = PASSWORD,
    ) -> None:
        """Send both SCRAM messages of a client; `change` makes the text of the second one."""
        text = first.format(user=f"{mechanism}-user", nonce=NONCE)
        answer = self.say(text.encode()).decode()
        if answer:
            final = last_message(mechanism, text, answer, password)
            self.say(change(final).encode())


EXPIRED: Final = f"{BEARER}-expired"


def last_message(mechanism: str, first: str, answer: str, password: str) -> LastMessage:
    """Return a client's correct second SCRAM message (RFC 5802, section 3)."""
    name = "sha256" if mechanism.endswith("256") else "sha512"
    said = dict(part.partition("=")[::2] for part in answer.split(","))
    salted = hashlib.pbkdf2_hmac(
        name, password.encode(), base64.b64decode(said["s"]), int(said["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", name)
    header = ",".join(first.split(",")[:2]) + ","
    binding = base64.b64encode(header.encode()).decode()
    covered = f"{first.removeprefix(header)},{answer},c={binding},r={said['r']}"
    signature = hmac.digest(hashlib.new(name, client_key).digest(), covered.encode(), name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return LastMessage(binding, said["r"], base64.b64encode(proof).decode())


@pytest.fixture(scope="module")
def doors(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Door, Door]]:
    """Run Kafka and our broker, both with sessions of limited length."""
    folders = [tmp_path_factory.mktemp(name) for name in ("kafka", "ours")]
    more = {
        "connections.max.reauth.ms": str(LIFETIME_MS),
        "connection.failed.authentication.delay.ms": "0",
    }
    with (
        kafkas_sasl(kafka_jars, kafka_oracle, folders[0], more) as kafka,
        our_sasl(folders[1], more) as ours,
    ):
        yield kafka, ours


def heard(door: Door, story: Story) -> Heard:
    """Run a case; return all responses, with `closed` at the end if the broker disconnected."""
    with RawClient(door.bootstrap) as client:
        visitor = Visitor(door, client)
        try:
            story(visitor)
            visitor.ask()
        except ConnectionError:
            visitor.heard.append("closed")
        return visitor.heard


def same(doors: tuple[Door, Door], story: Story) -> Heard:
    """Run a case with both brokers; assert that the responses are equal, and return them."""
    kafka, ours = (heard(door, story) for door in doors)
    assert ours == kafka
    return ours
