"""Which quota holds for whom. Pure.

Of all quotas that fit, the most particular one: that of a user and a client id, of a user, of any
user, of a client id; a name before the default. Connections with the same name share what they
may use, also where their quota is a default.

Source: KIP-55, KIP-257's order; Kafka 4.3's ClientQuotaManager.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.storage.cluster_file import Entity, Quotas

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"


class Limit(NamedTuple):
    """What holds for a client.

    Attributes:
        user: Of whom all connections share it; None for those of any user.
        client_id: Likewise.
        per_second: How much.
    """

    user: str | None
    client_id: str | None
    per_second: float


class Limits:
    """All quotas of one kind, such as `producer_byte_rate`."""

    def __init__(self, quotas: Quotas, key: str) -> None:
        self._found = {entity: values[key] for entity, values in quotas.items() if key in values}

    def __bool__(self) -> bool:
        return bool(self._found)

    def find(self, user: str, client_id: str) -> Limit | None:
        """What holds for a user's client, None where nothing does."""
        for entity, shared_user, shared_client in _candidates(user, client_id):
            per_second = self._found.get(entity)
            if per_second is not None:
                return Limit(shared_user, shared_client, per_second)
        return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[Entity, str | None, str | None]]:
    """Entities by falling precedence, each with those who share its quota.

    A client without an id has no part in quotas of client ids, not even in their default.
    """
    for name in (user, None):
        if client_id:
            yield ((CLIENT_ID, client_id), (USER, name)), user, client_id
            yield ((CLIENT_ID, None), (USER, name)), user, client_id
        yield ((USER, name),), user, None
    if client_id:
        yield ((CLIENT_ID, client_id),), None, client_id
        yield ((CLIENT_ID, None),), None, client_id
