"""What holds for a group whose coordinator assigns: its own settings, else the broker's."""

from collections.abc import Callable, Mapping

from tidelog.config import BrokerConfig
from tidelog.config.group_keys import (
    ASSIGNMENT,
    HEARTBEAT,
    SESSION,
    SHARE_ASSIGNMENT,
    SHARE_HEARTBEAT,
    SHARE_SESSION,
    group_value,
)


class GroupSettings:
    """Looked up each time: a change holds from the next use on. Belongs to the loop's thread.

    Attributes:
        config: The broker's settings.
    """

    def __init__(self, config: BrokerConfig, kept: Callable[[str], Mapping[str, str]]) -> None:
        """`kept` gives the texts of a group's own settings, by its name."""
        self.config = config
        self._kept = kept

    def session_timeout_ms(self, group_id: str) -> int:
        """After so long a silent member is given up."""
        return group_value(SESSION, self._kept(group_id), self.config)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """So often members are told to say that they are there."""
        return group_value(HEARTBEAT, self._kept(group_id), self.config)

    def assignment_interval_ms(self, group_id: str) -> int:
        """A new assignment is made at most so often."""
        return group_value(ASSIGNMENT, self._kept(group_id), self.config)

    # -- share groups ------------------------------------------------------------------------

    def share_session_timeout_ms(self, group_id: str) -> int:
        """After so long a silent member of a share group is given up."""
        return group_value(SHARE_SESSION, self._kept(group_id), self.config)

    def share_heartbeat_interval_ms(self, group_id: str) -> int:
        """So often members of a share group are told to say that they are there."""
        return group_value(SHARE_HEARTBEAT, self._kept(group_id), self.config)

    def share_assignment_interval_ms(self, group_id: str) -> int:
        """A share group gets a new assignment at most so often."""
        return group_value(SHARE_ASSIGNMENT, self._kept(group_id), self.config)
