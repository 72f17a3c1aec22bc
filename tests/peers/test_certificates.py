"""Certificates that are replaced while clients are connected, with Kafka and our broker.

Our broker checks the files in each handshake. Kafka reads the files again some time after a request
that sets the names of the files, even to their current values. Kafka reports an unusable file only
in its log.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from tests.worlds.brokers.certificates import Authority
from tests.worlds.brokers.doors import started
from tests.worlds.clients.secured import TIMEOUT_S, Key
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import until_so

import tidelog

pytestmark = pytest.mark.kafka
API_VERSIONS: Final = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
KAFKAS: Final = {
    "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    # One thread, because several threads would start to use new certificates at different times.
    "num.network.threads": "1",
}


class House:
    """A broker with a TLS listener; its `reload` makes the broker read the certificates again."""

    def __init__(self, folder: Path, *, is_ours: bool) -> None:
        self.is_ours = is_ours
        (folder / "other").mkdir()
        self.authority = Authority(folder)
        self.other = Authority(folder / "other", "stranger")
        self.keystore = self.authority.issue("server")
        self.truststore = folder / "trusted.pem"
        self.truststore.write_bytes(self.authority.path.read_bytes())
        self.settings = {
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.location": str(self.truststore),
            "ssl.client.auth": "required",
        }
        self.friend = self._key(self.authority.issue("friend"))
        self.stranger = self._key(self.other.issue("mallory"))
        self.bootstrap = ""
        self.reload: Callable[[], object] = lambda: None

    def _key(self, certificate: Path) -> Key:
        return Key(protocol="SSL", authority=self.authority.path, certificate=certificate)

    def connect(self, key: Key) -> ssl.SSLSocket:
        """Return a connection that gets a response; raises OSError if the broker refuses it."""
        context = key.context()
        assert context is not None
        host, _, port = self.bootstrap.rpartition(":")
        sock = context.wrap_socket(socket.socket(), server_hostname=host)
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect((host, int(port)))
            ensure_served(sock)
        except OSError:
            sock.close()
            raise
        return sock

    def serial(self) -> str:
        """Return the serial number of the certificate for new connections."""
        with self.connect(self.friend) as sock:
            found = sock.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    def ensure_told(self, caplog: pytest.LogCaptureFixture, what: str) -> None:
        """Assert that our broker has logged the problem since the last check, without secrets."""
        if self.is_ours:
            (line,) = (each for each in caplog.messages if "can't load new certificates" in each)
            assert "location=" in line, what
            assert "PRIVATE" not in line
            caplog.clear()

    def is_let_in(self, key: Key) -> bool:
        try:
            self.connect(key).close()
        except OSError:
            return False
        return True


def ensure_served(sock: ssl.SSLSocket) -> None:
    """Assert that ApiVersions gets a response; raises OSError otherwise."""
    sock.sendall(API_VERSIONS)
    size = int.from_bytes(taken(sock, 4), "big")
    assert taken(sock, size)[:4] == b"\0\0\0\1"


def taken(sock: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise ConnectionError("the broker closed the connection")
        found += more
    return found


@contextmanager
def ours(folder: Path) -> Iterator[House]:
    house = House(folder, is_ours=True)
    with tidelog.broker(settings=house.settings | {"listeners": "SSL://127.0.0.1:0"}) as running:
        house.bootstrap = running.bootstrap_servers
        yield house


@contextmanager
def kafkas(folder: Path, home: KafkaHome, oracle: Oracle) -> Iterator[House]:
    house = House(folder, is_ours=False)
    given = house.settings | KAFKAS
    with started(Broker(home, oracle, folder / "kafka", settings=given)) as broker:
        house.bootstrap = broker.bootstrap
        # One connection for all reloads, which doesn't use the tested certificates.
        admin = AdminClient(house.friend.librdkafka(house.bootstrap))
        house.reload = lambda: tell_to_reload(admin, house)
        yield house


def tell_to_reload(admin: AdminClient, house: House) -> None:
    """Set the settings to their current values, which makes Kafka read its files again."""
    changes = [
        ConfigEntry(
            f"listener.name.plaintext.{name}",
            house.settings[name],
            incremental_operation=AlterConfigOpType.SET,
        )
        for name in ("ssl.keystore.location", "ssl.truststore.location")
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=changes)
    (told,) = admin.incremental_alter_configs([resource]).values()
    told.result(timeout=TIMEOUT_S)


@pytest.fixture(params=["ours", "kafka"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        if request.param == "ours":
            yield stack.enter_context(ours(tmp_path))
        else:
            needed = map(request.getfixturevalue, ("kafka_jars", "kafka_oracle"))
            yield stack.enter_context(kafkas(tmp_path, *needed))


def test_a_new_certificate_is_for_newcomers(house: House) -> None:
    with house.connect(house.friend) as old:
        first = house.serial()
        house.authority.issue("server")
        house.reload()
        until_so(lambda: house.serial() != first, "the new certificate is shown")
        ensure_served(old)


CERTIFICATE: Final = b"-----BEGIN CERTIFICATE"


def broken(house: House) -> dict[str, bytes]:
    """Return unusable contents of the keystore, by error."""
    good = house.keystore.read_bytes()
    key, _, certificate = good.partition(CERTIFICATE)
    another_key = house.authority.issue("spare").read_bytes().partition(CERTIFICATE)[0]
    return {
        "nothing": b"",
        "no PEM": b"no certificate at all\n",
        "no key": house.authority.path.read_bytes(),
        "no certificate": key,
        "half of it": good[:-200],
        "another key": another_key + CERTIFICATE + certificate,
        "locked": house.authority.issue("spare", password="locked").read_bytes(),
    }


def test_a_broken_one_is_refused_and_the_old_one_stays(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with house.connect(house.friend) as old:
        shown = house.serial()
        for name, text in broken(house).items():
            house.keystore.write_bytes(text)
            house.reload()
            assert house.serial() == shown, name
            ensure_served(old)
            house.ensure_told(caplog, name)
        house.keystore.unlink()
        house.reload()
        assert house.serial() == shown
        house.ensure_told(caplog, "gone")
        house.authority.issue("server")
        house.reload()
        until_so(lambda: house.serial() != shown, "the new certificate is shown")
        ensure_served(old)


def test_a_reloaded_truststore_changes_the_accepted_authorities(house: House) -> None:
    both = house.authority.path.read_bytes() + house.other.path.read_bytes()
    assert not house.is_let_in(house.stranger)
    house.truststore.write_bytes(both)
    house.reload()
    until_so(lambda: house.is_let_in(house.stranger), "the stranger is let in")
    with house.connect(house.stranger) as old:
        house.truststore.write_bytes(b"nobody\n")
        house.reload()
        assert house.is_let_in(house.stranger)
        house.truststore.write_bytes(house.authority.path.read_bytes())
        house.reload()
        until_so(lambda: not house.is_let_in(house.stranger), "the stranger is kept out")
        assert house.is_let_in(house.friend)
        ensure_served(old)  # existing connections stay
