"""What consumers say that they read, from the bytes that they join with.

As Kafka's coordinator reads them: as version 0, which all versions begin with, since there are
clients that name a later version than they write.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.data_messages import SUBSCRIPTION, VERSION_BYTES

_FIRST_VERSION: Final = bytes(VERSION_BYTES)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of all subscriptions, None where one can't be read."""
    found: set[str] = set()
    try:
        for data in subscriptions:
            found.update(SUBSCRIPTION.read(_FIRST_VERSION + data[VERSION_BYTES:])[1].topics)
    except (CorruptMessage, UnsupportedVersion):
        return None
    return frozenset(found)
