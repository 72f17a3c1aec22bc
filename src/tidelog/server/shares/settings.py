"""What holds for a share group: its own settings, else the broker's.

Source: KIP-932; Kafka 4.3's `GroupConfig`, `ShareGroupConfig`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog.config import BrokerConfig
from tidelog.config.group import (
    SHARE_DELIVERY_LIMIT,
    SHARE_ISOLATION,
    SHARE_LOCK_DURATION,
    SHARE_LOCKS,
    SHARE_RENEW,
    SHARE_RESET,
    group_text,
    group_value,
)
from tidelog.config.values import parse_reset
from tidelog.server.shares.record_runs import Limits
from tidelog.types import IsolationLevel


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Looked up each time: a change holds from the next use on.

    Attributes:
        config: The broker's settings as they are now.
        texts: A group's own settings, by its name.
    """

    config: Callable[[], BrokerConfig]
    texts: Callable[[str], Mapping[str, str]]

    def limits(self, group_id: str) -> Limits:
        """How many records may be in flight, how often each is delivered, and for how long."""
        given, config = self.texts(group_id), self.config()
        return Limits(
            locks_max=group_value(SHARE_LOCKS, given, config),
            deliveries_max=group_value(SHARE_DELIVERY_LIMIT, given, config),
            lock_ms=group_value(SHARE_LOCK_DURATION, given, config),
            may_renew=group_text(SHARE_RENEW, given).lower() == "true",
        )

    def isolation(self, group_id: str) -> IsolationLevel:
        """Whether records of open and aborted transactions are seen."""
        is_committed = group_text(SHARE_ISOLATION, self.texts(group_id)) == "read_committed"
        return IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED

    def reset(self, group_id: str) -> tuple[str, int]:
        """Where a group begins: `earliest`, `latest`, or `by_duration` and how many ms ago."""
        return parse_reset(group_text(SHARE_RESET, self.texts(group_id)))
