"""What share groups need of the broker that they live in."""

from typing import TYPE_CHECKING, Protocol

from tidelog.server.groups.host import Host

if TYPE_CHECKING:
    from tidelog.server.groups.coordinator import GroupCoordinator
    from tidelog.server.work import Work


class ShareHost(Host, Protocol):
    """A broker, as far as share groups go; a `Node` is one."""

    @property
    def groups(self) -> "GroupCoordinator":
        """Which groups there are, and what they share."""
        ...

    @property
    def reads(self) -> "Work":
        """Threads for what has to be read from a disk or a store."""
        ...
