"""Kafka and our broker respond equally to requests in unsupported versions."""

import socket
import struct
from typing import Final

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.kafka.broker import Broker as KafkaBroker

from tidelog.protocol.messages import API_VERSIONS
from tidelog.protocol.messages import BY_KEY as APIS
from tidelog.server.api.table import BY_KEY
from tidelog.server.embedded import Broker

pytestmark = pytest.mark.kafka

TIMEOUT_S: Final = 90
CORRELATION_ID: Final = 7
UNSUPPORTED_VERSION: Final = 35
PRODUCE, FETCH, METADATA = 0, 1, 3
FLEXIBLE_SINCE: Final = 3
INT16_MAX: Final = 2**15 - 1
# Key and version. Requests consist only of the header, because both brokers refuse them before they
# read more.
UNSERVED: Final = [
    (PRODUCE, 0),
    (PRODUCE, 2),
    (PRODUCE, 99),
    (FETCH, 0),
    (FETCH, 3),
    (FETCH, 99),
    (METADATA, -1),
    (METADATA, INT16_MAX),
    (9999, 0),
    (-1, 0),
    (API_VERSIONS.key, 99),
    (API_VERSIONS.key, -1),
]

ours = broker_fixture(scope="module")


def header(key: int, version: int) -> bytes:
    client_id = b"old"
    fields = struct.pack(">hhih", key, version, CORRELATION_ID, len(client_id))
    # From version 3 on, headers of ApiVersions have tagged fields; here their list is empty.
    tags = b"\0" if key == API_VERSIONS.key and version >= FLEXIBLE_SINCE else b""
    return fields + client_id + tags


def response_to(bootstrap: str, key: int, version: int) -> tuple[bytes, bool]:
    """Return the response to one request, and whether the broker then closes the connection."""
    host, _, port = bootstrap.rpartition(":")
    request = header(key, version)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as found:
        found.sendall(struct.pack(">i", len(request)) + request)
        # A valid request afterwards shows whether the connection is still open.
        probe = header(API_VERSIONS.key, 0)
        answer = b""
        try:
            found.sendall(struct.pack(">i", len(probe)) + probe)
            answer = frame(found)
            frame(found)
        except ConnectionError:
            return answer, True
    return answer, False


def frame(found: socket.socket) -> bytes:
    """Return the next response; raises ConnectionError at the end."""
    (size,) = struct.unpack(">i", exactly(found, 4))
    return exactly(found, size)


def exactly(found: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = found.recv(size - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


@pytest.mark.parametrize(("key", "version"), UNSERVED)
def test_responses_are_kafkas(
    key: int, version: int, ours: Broker, kafka_broker: KafkaBroker
) -> None:
    expected = response_to(kafka_broker.bootstrap, key, version)
    found = response_to(ours.bootstrap_servers, key, version)
    assert found[1] == expected[1]
    # Only the first six bytes are compared, because Kafka's response to ApiVersions has more APIs.
    assert found[0][:6] == expected[0][:6]
    if key == API_VERSIONS.key:
        assert found[0][:6] == struct.pack(">ih", CORRELATION_ID, UNSUPPORTED_VERSION)


def test_every_api_closes_the_connection_above_and_below_its_versions(ours: Broker) -> None:
    for api in APIS.values():
        row = BY_KEY.get(api.key)
        if row is None or api is API_VERSIONS:
            continue
        for version in (api.last + 1, api.first - 1):
            assert response_to(ours.bootstrap_servers, api.key, version) == (b"", True)
