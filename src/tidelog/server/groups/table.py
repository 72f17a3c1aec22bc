"""The groups that are loaded, of all protocols, and where they are written."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.groups.by_partition import ByPartition
from tidelog.server.groups.consumer.group import ConsumerGroup
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.share.group import ShareGroup

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup


class Journal(Protocol):
    """Where groups are written."""

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> Reply[ErrorCode]:
        """Write records; when they are safe, or why they were not written.

        A failure that is known at once is answered at once: then nothing was written.
        """
        ...

    def settled(self, group_id: str) -> Reply[ErrorCode]:
        """When all that was written of a group is safe."""
        ...


class GroupTable:
    """The groups that are loaded, by name. Belongs to the loop's thread.

    Attributes:
        groups: All of them; only to be read.
    """

    def __init__(self, clock: Clock, number_of: Callable[[str], int] = lambda _: 0) -> None:
        """No groups yet; `number_of` says which partition of the topic keeps one."""
        self._clock = clock
        self._kept: ByPartition[AnyGroup] = ByPartition(number_of)
        self.groups: Mapping[str, AnyGroup] = self._kept.all

    def put(self, group: AnyGroup) -> None:
        """A group that is there from now on, in the place of one of its name."""
        self._kept.put(group.group_id, group)

    def put_all(self, number: int, groups: Mapping[str, AnyGroup]) -> None:
        """The groups of a partition, by name."""
        self._kept.put_all(number, groups)

    def remove(self, group_id: str) -> None:
        """A group that has gone; fine where there was none."""
        self._kept.remove(group_id)

    def take_out(self, number: int | None) -> list[AnyGroup]:
        """Let go of the groups of a partition, or of all (None); which these were."""
        return self._kept.take_out(number)

    def get(self, group_id: str) -> AnyGroup | None:
        """A group, None where there is none."""
        return self.groups.get(group_id)

    def classic(self, group_id: str) -> ClassicGroup | None:
        """A group of the classic protocol, None where there is none."""
        found = self.groups.get(group_id)
        return found if isinstance(found, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        """A group whose coordinator assigns, None where there is none."""
        found = self.groups.get(group_id)
        return found if isinstance(found, ConsumerGroup) else None

    def share(self, group_id: str) -> ShareGroup | None:
        """A share group, None where there is none."""
        found = self.groups.get(group_id)
        return found if isinstance(found, ShareGroup) else None

    def get_or_create(self, group_id: str) -> AnyGroup:
        """A group, a classic one without members where there was none."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.new_classic(group_id)
            self.put(found)
        return found

    def new_classic(self, group_id: str) -> ClassicGroup:
        """A classic group without members, which is not in the table yet."""
        return ClassicGroup(group_id, self._clock.now_ms())
