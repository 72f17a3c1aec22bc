"""What groups need of the broker that they live in."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from tidelog.config import BrokerConfig
    from tidelog.env import Env
    from tidelog.server.partitions.partitions import Partitions
    from tidelog.server.partitions.topics import Topics
    from tidelog.server.runtime.loop import Timers
    from tidelog.server.runtime.threads import Work
    from tidelog.storage.directory.log_dir import LogDir


LOGGER: Final = logging.getLogger("tidelog.server.groups")


class Host(Protocol):
    """A broker, as far as groups go; a `Node` is one."""

    @property
    def config(self) -> "BrokerConfig":
        """Settings."""
        ...

    @property
    def env(self) -> "Env":
        """Files, clock, randomness."""
        ...

    def group_texts(self, group_id: str) -> "Mapping[str, str]":
        """Settings of a group's own, as texts; none for a group that has none."""
        ...

    @property
    def log_dir(self) -> "LogDir":
        """The directory."""
        ...

    @property
    def timers(self) -> "Timers":
        """Things to do later."""
        ...

    @property
    def work(self) -> "Work":
        """Threads for what blocks."""
        ...

    @property
    def partitions(self) -> "Partitions":
        """Open logs."""
        ...

    @property
    def topics(self) -> "Topics":
        """Topics by name."""
        ...

    @property
    def closers(self) -> list[Callable[[], None]]:
        """Called before the directory is closed."""
        ...
