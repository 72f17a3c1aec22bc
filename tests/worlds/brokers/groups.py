"""Groups of a broker without sockets, on a disk in memory, with a manual clock.

The tests act as the members of groups. No event loop runs between calls: a group's records are
written at once, and time passes only in `wait`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from uuid import NAMESPACE_DNS, UUID, uuid5

from tests.faults import Fault, FaultKind, seeded_env
from tests.faults.later import Later
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import Patience, turn_until

from tidelog.config import BrokerConfig
from tidelog.error_codes import ErrorCode
from tidelog.server.api.node import Node
from tidelog.server.groups.classic_group import ClassicGroup
from tidelog.server.groups.modern_group import ConsumerGroup, ShareGroup
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.replay import AnyGroup
from tidelog.server.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    MemberRef,
    SyncRequest,
)
from tidelog.server.runtime.reply import Reply
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.durability import Done, Work
from tidelog.types import OFFSETS_TOPIC

GROUP = "readers"
ROOT = "/data"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "1",
}
SESSION_MS = 1000
REBALANCE_MS = 5000

T = TypeVar("T")


class Syncs(Later):
    """Runs the deferred work of logs at once, unless a test holds it back.

    Attributes:
        is_held: Whether deferred work waits for `settle`.
    """

    is_held = False

    def defer(self, work: Work, done: Done) -> None:
        super().defer(work, done)
        if not self.is_held:
            self.settle()


def _defer(made: list[Syncs]) -> Syncs:
    made.append(Syncs())
    return made[-1]


def topic_id(name: str) -> UUID:
    """Return the id of a topic by its name."""
    return uuid5(NAMESPACE_DNS, name)


class World:
    """The groups of one broker, by default with one partition of the offsets topic.

    Attributes:
        node: The broker.
    """

    def __init__(self, seed: int = 1, **settings: str) -> None:
        self.env = seeded_env(seed)
        self.clock = self.env.clock
        self._settings = SETTINGS
        self._open(settings)

    def _open(self, changed: Mapping[str, str]) -> None:
        named = {name.replace("_", "."): text for name, text in changed.items()}
        self._settings = self._settings | named
        config = BrokerConfig.parse(self._settings)[0]
        self._syncs: list[Syncs] = []
        options = LogDirOptions(create=True, deferrals=partial(_defer, self._syncs))
        log_dir = LogDir.open(ROOT, env=self.env, options=options)
        if OFFSETS_TOPIC not in log_dir.topics():
            count = config.offsets_topic_num_partitions
            settings = {"cleanup.policy": "compact"}
            log_dir.create_topic(OFFSETS_TOPIC, partitions=count, config=settings)
        # The node's threads end when its executor is deleted. A finalizer must not wait for these
        # threads: garbage collection could run the finalizer while a thread starts, and the wait
        # would never end.
        self.node = Node(log_dir, config)
        asyncio.run(self._load())
        groups = self.node.groups
        self.timers = self.node.timers
        self.members, self.commits = groups.members, groups.commits
        self.heartbeats, self.shares = groups.heartbeats, groups.shares
        self.share_topics = groups.share_topics

    async def _load(self) -> None:
        shards = self.node.groups.topic
        await turn_until(lambda: not shards.is_loading)
        assert shards.error_for(GROUP) is ErrorCode.NONE

    def restart(self, **settings: str) -> None:
        """Restart the broker's process on the same files, with changed settings."""
        self.node.close()
        self._open(settings)

    def on_a_loop(self, action: Callable[[], T]) -> T:
        """Run an action on an event loop until all tasks have ended; return the action's result."""

        async def run() -> T:
            found = action()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
            return found

        return asyncio.run(run())

    # -- the disk ----------------------------------------------------------------------------

    @property
    def written(self) -> int:
        """End offset of the log of partition 0 of the offsets topic."""
        return self.node.partitions.get(OFFSETS_TOPIC, 0).log.log_end_offset

    def hold_syncs(self) -> None:
        """Delay all further syncs until `sync` is called; this matters with `fsync` durability."""
        for each in self._syncs:
            each.is_held = True

    def sync(self) -> None:
        """Sync everything written so far."""
        for each in self._syncs:
            each.settle()

    def refuse_records(self, *, refuse: bool = True) -> None:
        """Let the offsets topic refuse all records: its `max.message.bytes` becomes too small."""
        log_dir = self.node.log_dir
        log_dir.topic_admin.alter(OFFSETS_TOPIC, {"max.message.bytes": "1" if refuse else None})
        log_dir.open_partitions.follow_settings(OFFSETS_TOPIC)

    def break_disk(self) -> None:
        """Let the disk fail: the next write takes the partition offline."""
        self.env.files.writes.fault = Fault(self.env.files.calls, FaultKind.EIO, sticky=True)

    def mend_disk(self) -> None:
        """Repair the disk, reopen the partition and load the partition's groups."""
        self.env.files.writes.fault = None

        async def run() -> None:
            log = self.node.log_dir.reopen(OFFSETS_TOPIC, 0)
            self.node.partitions.get(OFFSETS_TOPIC, 0).use(log)
            await self._load()

        asyncio.run(run())

    def wait(self, ms: int) -> None:
        """Advance the clock by `ms`; run each timer exactly at its due time."""
        end = self.clock.monotonic_ms() + ms
        patience = Patience()
        while (delay := self.timers.next_delay_ms()) is not None:
            patience.check("no timer is due")
            if self.clock.monotonic_ms() + delay > end:
                break
            self.clock.advance(delay)
            self.timers.run_due()
        self.clock.advance(end - self.clock.monotonic_ms())

    # -- groups and topics -------------------------------------------------------------------

    @property
    def found(self) -> AnyGroup | None:
        """The group `GROUP`, None if it does not exist."""
        return self.node.groups.find(GROUP)

    @property
    def group(self) -> ClassicGroup:
        """The group, which must be of the classic protocol."""
        found = self.found
        assert isinstance(found, ClassicGroup)
        return found

    @property
    def consumers(self) -> ConsumerGroup:
        """The group, which must be of the consumer protocol."""
        found = self.found
        assert isinstance(found, ConsumerGroup)
        return found

    @property
    def sharers(self) -> ShareGroup:
        """The group, which must be a share group."""
        found = self.found
        assert isinstance(found, ShareGroup)
        return found

    def set_group(self, texts: Mapping[str, str]) -> None:
        """Set the group's settings, without the check that they are within the broker's bounds."""
        change = self.node.cluster.change
        asyncio.run(change(lambda state: state._replace(groups={GROUP: dict(texts)})))

    def make_topics(self, **partitions: int) -> None:
        """Create, extend and delete topics until only these exist; a topic's name gives its id."""
        log_dir, known = self.node.log_dir, self.node.topics
        for name in set(known.names()) - {OFFSETS_TOPIC, *partitions}:
            delete_topic(self.node, name)
        for name, count in partitions.items():
            info = known.find(name)
            if info is None:
                log_dir.create_topic(name, partitions=count, topic_id=topic_id(name))
            elif info.partitions < count:
                log_dir.add_partitions(name, count)

    # -- members -----------------------------------------------------------------------------

    def ask_join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        *,
        protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
        protocol_type: str = "consumer",
        needs_member_id: bool = False,
        knows_skipping: bool = True,
        session_ms: int = SESSION_MS,
        client_id: str = "us",
    ) -> Reply[JoinResult]:
        """Send a JoinGroup request; return its reply, which may get its value later."""
        return self.members.join(
            JoinRequest(
                group_id=GROUP,
                member_id=member_id,
                instance_id=instance_id,
                client_id=client_id,
                client_host="/here",
                protocol_type=protocol_type,
                protocols=tuple(protocols),
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=REBALANCE_MS,
                needs_member_id=needs_member_id,
                knows_skipping=knows_skipping,
            )
        )

    def join_all(self, replies: Sequence[Reply[JoinResult]]) -> list[JoinResult]:
        """Wait for the first rebalance; return the responses to these joins."""
        self.wait(0)
        return [reply.value for reply in replies]

    def form(self, count: int, instances: Sequence[str] = ()) -> list[JoinResult]:
        """Form a stable group of `count` members; each member's assignment is the member's id."""
        names: list[str | None] = [*instances, *[None] * (count - len(instances))]
        joined = self.join_all([self.ask_join(instance_id=name) for name in names])
        self.assign(joined)
        return joined

    def assign(self, joined: Sequence[JoinResult]) -> None:
        """Sync all members; each member is assigned its own id."""
        given = {member.member_id: member.member_id.encode() for member in joined}
        for member in joined:
            is_leader = member.leader == member.member_id
            self.ask_sync(member, given if is_leader else {})

    def ask_sync(
        self, member: JoinResult, assignments: Mapping[str, bytes] | None = None
    ) -> "Reply[tuple[ErrorCode, bytes]]":
        """Send a SyncGroup request; return its reply: the error code and the assignment."""
        asked = SyncRequest(
            group_id=GROUP,
            member_id=member.member_id,
            generation=member.generation,
            assignments=tuple((assignments or {}).items()),
        )
        found = Reply[tuple[ErrorCode, bytes]]()
        self.members.sync(asked).then(lambda said: found.complete((said.code, said.assignment)))
        return found

    def heartbeat(self, member: JoinResult, instance_id: str | None = None) -> ErrorCode:
        """Send a member's heartbeat."""
        ref = MemberRef(member.member_id, instance_id)
        return self.members.heartbeat(GROUP, ref, member.generation)

    # -- offsets -----------------------------------------------------------------------------

    def commit(self, offset: int, member: JoinResult | None = None, **more: int) -> ErrorCode:
        """Commit an offset for partition 0 of a topic; return the error code."""
        asked = CommitRequest(
            group_id=GROUP,
            member_id="" if member is None else member.member_id,
            generation=-1 if member is None else member.generation,
            retention_ms=more.get("retention_ms", -1),
        )
        return self.commits.commit(asked, [Commit("flights", 0, offset)]).value[0]

    @property
    def committed(self) -> int | None:
        """Committed offset of partition 0, None if there is none."""
        group = self.found
        found = None if group is None else group.offsets.get("flights", 0)
        return None if found is None else found.offset
