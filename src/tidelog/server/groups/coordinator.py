"""The group coordinator: what handlers ask. It knows which groups are loaded, and what time it is.

Source: Kafka 4.3's group coordinator.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.server.groups.codes import Code
from tidelog.server.groups.commits import Commits
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.host import Host
from tidelog.server.groups.membership import Membership
from tidelog.server.groups.rebalance import GroupTable, Rebalances
from tidelog.server.groups.shards import Shards
from tidelog.server.topics import OFFSETS_TOPIC

# How long groups are looked at, for expiry or a deleted topic, before others run.
SLICE_MS: Final = 3


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What metrics tell of a group.

    Attributes:
        group_id: Its name.
        state: Where it stands, in Kafka's words.
        members: How many there are.
        offsets: Topic, partition and next offset of each commit.
    """

    group_id: str
    state: str
    members: int
    offsets: Sequence[tuple[str, int, int]]


class GroupCoordinator:
    """All groups of the broker. Belongs to the loop's thread.

    Attributes:
        members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
        commits: OffsetCommit, OffsetFetch, OffsetDelete.
        shards: Where groups are kept.
    """

    def __init__(self, node: Host) -> None:
        clock, config = node.env.clock, node.config
        self._timers = node.timers
        self._clock = clock
        self._check_ms = config.offsets_retention_check_interval_ms
        self._table = GroupTable(clock)
        self.shards = Shards(node)
        self._rebalances = Rebalances(self._table, self.shards, node.timers, clock, config)
        self.members = Membership(
            self._table, self._rebalances, self.shards, clock, node.env.random, config
        )
        self.commits = Commits(self._table, self._rebalances, self.shards, clock, config)
        self.shards.on_loaded = self._take_loaded
        self.shards.on_lost = self._let_go
        self.resume()
        node.topics.on_deleted.append(self.forget_topic)
        node.timers.after(self._check_ms, self._expire)

    def resume(self) -> None:
        """Begin to read the groups that there were, once."""
        self.shards.resume()

    # -- groups come and go ------------------------------------------------------------------

    def _take_loaded(self, groups: Sequence[ClassicGroup]) -> None:
        for group in groups:
            self._table.groups[group.group_id] = group
            self._rebalances.resume(group)

    def _let_go(self, number: int | None) -> None:
        """Groups of a partition, or of all, can't be served any more."""
        for group in tuple(self._table.groups.values()):
            if number is None or self.shards.number_of(group.group_id) == number:
                del self._table.groups[group.group_id]
                self._rebalances.unload(group, Code.NOT_COORDINATOR)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: nobody's offsets of it are kept."""
        if topic == OFFSETS_TOPIC:
            self.shards.forget_topic()
            return
        self._sweep(lambda group: self.commits.forget_topic(group, topic))

    def _expire(self) -> None:
        self._sweep(self.commits.expire)
        self._timers.after(self._check_ms, self._expire)

    def _sweep(self, action: Callable[[ClassicGroup], None]) -> None:
        """Do something to all groups, a few milliseconds at a time."""
        left = iter(tuple(self._table.groups.values()))

        def go_on() -> None:
            end_ms = self._clock.monotonic_ms() + SLICE_MS
            for group in left:
                if self._table.get(group.group_id) is group:
                    action(group)
                if self._clock.monotonic_ms() >= end_ms:
                    self._timers.after(1, go_on)
                    return

        go_on()

    # -- questions ---------------------------------------------------------------------------

    def find(self, group_id: str) -> ClassicGroup | None:
        """A loaded group, None where there is none."""
        return self._table.get(group_id)

    def groups(self) -> Iterable[ClassicGroup]:
        """All loaded groups."""
        return self._table.groups.values()

    def facts(self) -> Iterator[GroupFacts]:
        """What metrics tell of all loaded groups."""
        for group in self._table.groups.values():
            offsets = [(topic, number, found.offset) for topic, number, found in group.offsets]
            yield GroupFacts(group.group_id, group.state.value, len(group.members), offsets)
