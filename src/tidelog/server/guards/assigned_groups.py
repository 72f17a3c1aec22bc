"""What guards of consumer and of share groups have in common: whose members the broker assigns.

Source: Kafka 4.3's KafkaApis.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from tidelog.error_codes import ErrorCode
from tidelog.server.guards.common import DENIED_TEXT, Asker
from tidelog.server.handlers.groups import GROUP_OPERATIONS
from tidelog.server.security.authorizer import Operation, ResourceType

_HIDDEN: Final = "The group described uses topics that the client is not authorized to describe."


class Described(Protocol):
    """A group in an answer."""

    error_code: int
    group_id: str
    authorized_operations: int


Group = TypeVar("Group", bound=Described)


def heartbeat_refusal(asker: Asker, group_id: str, names: Iterable[str] | None) -> int:
    """Why a member's heartbeat is refused, 0 for not: READ on the group, DESCRIBE on its topics."""
    if not asker.may_group(Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return 0 if all(map(asker.may_describe, names or ())) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class Shown(Generic[Group]):
    """What is told of groups.

    Attributes:
        asker: To whom.
        topics_of: The topics that a group's members read or ask for.
        refused: A group of which nothing is told but its name: name, code and text.
    """

    asker: Asker
    topics_of: Callable[[Group], Iterable[str]]
    refused: Callable[[str, int, str], Group]

    def groups(
        self, found: Iterable[Group], denied: Iterable[str], *, with_operations: bool
    ) -> list[Group]:
        """Those that were found, each whole or by its name; behind them those that were denied.

        Args:
            found: Those that may be described.
            denied: Names of the others.
            with_operations: Whether what the asker may do is told too.
        """
        shown = [self._shown(each, with_operations=with_operations) for each in found]
        text = DENIED_TEXT[ErrorCode.GROUP_AUTHORIZATION_FAILED]
        return shown + [
            self.refused(name, ErrorCode.GROUP_AUTHORIZATION_FAILED, text)
            for name in dict.fromkeys(denied)
        ]

    def _shown(self, group: Group, *, with_operations: bool) -> Group:
        if not all(map(self.asker.may_describe, set(self.topics_of(group)))):
            return self.refused(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN)
        if with_operations and not group.error_code:
            kind = ResourceType.GROUP
            group.authorized_operations = self.asker.bits(kind, group.group_id, GROUP_OPERATIONS)
        return group
