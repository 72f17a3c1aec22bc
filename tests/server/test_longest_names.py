"""Every API responds to requests whose names and texts have the longest possible length.

Responses repeat names, also inside other texts, and no text in a response may be longer than the
longest text in a request. If a text were longer, the broker would have to close the connection.
"""

from typing import Final

import pytest
from tests.server.longest import Long, request_of
from tests.worlds.clients.raw import RawClient

from tidelog.protocol.wire import STRING_BYTES_MAX
from tidelog.server.api.table import ROWS
from tidelog.server.embedded import Broker

# Texts of the longest length in bytes, in characters of one, two, three and four bytes.
TEXTS: Final = [
    character * (STRING_BYTES_MAX // len(character.encode()))
    for character in ("z", "\u00e9", "\u20ac", "\U0001f600")
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[0]))
def test_every_api_responds(broker: Broker, text: str) -> None:
    silent = []
    for row in ROWS:
        for version in range(row.api.first, row.api.last + 1):
            request = request_of(Long(row.api, version, ()), 1, text)
            with RawClient(broker.bootstrap_servers, "z" * STRING_BYTES_MAX) as client:
                client.send(row.api, version, request)
                try:
                    assert isinstance(client.receive(), row.api.response)
                except ConnectionError:
                    silent.append(f"{row.api.name} v{version}")
    assert silent == []
