"""What transactions need of the broker that they live in."""

import logging
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.server.groups.host import Host

if TYPE_CHECKING:
    from tidelog.server.producer_ids import ProducerIds

LOGGER: Final = logging.getLogger("tidelog.server.transactions")


class TransactionHost(Host, Protocol):
    """A broker, as far as transactions go; a `Node` is one."""

    @property
    def producer_ids(self) -> "ProducerIds":
        """Ids that nobody has."""
        ...
