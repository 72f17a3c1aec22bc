"""What consumers say that they read, from the bytes that they join with."""

from collections.abc import Iterable

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.data_messages import SUBSCRIPTION


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of all subscriptions, None where one can't be read."""
    found: set[str] = set()
    try:
        for data in subscriptions:
            found.update(SUBSCRIPTION.read(data)[1].topics)
    except (CorruptMessage, UnsupportedVersion):
        return None
    return frozenset(found)
