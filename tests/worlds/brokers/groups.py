"""Groups without a broker: a clock that stands still, a journal in memory, members that we play."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from uuid import NAMESPACE_DNS, UUID, uuid5

from tidelog.config import BrokerConfig, TopicConfig
from tidelog.env import ManualClock
from tidelog.record.builder import build_batch
from tidelog.record.views import walk
from tidelog.server.groups.codes import Code
from tidelog.server.groups.commit_checks import Commit
from tidelog.server.groups.commits import Commits
from tidelog.server.groups.consumer.group import ConsumerGroup
from tidelog.server.groups.consumer_classic import ClassicMembers
from tidelog.server.groups.consumer_fencing import Fencing
from tidelog.server.groups.consumer_heartbeats import Heartbeats
from tidelog.server.groups.consumer_parts import Parts
from tidelog.server.groups.consumer_regexes import Meanings, Regexes, find_meanings
from tidelog.server.groups.consumer_steps import Steps
from tidelog.server.groups.conversion import Conversion
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.group_settings import GroupSettings
from tidelog.server.groups.membership import Membership
from tidelog.server.groups.rebalance import Rebalances
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.replay import Replay, revive
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.results import CommitAsked, JoinAsked, Joined, MemberRef, SyncAsked
from tidelog.server.groups.share.group import ShareGroup
from tidelog.server.groups.share_heartbeats import ShareHeartbeats
from tidelog.server.groups.share_topics import ShareTopics
from tidelog.server.groups.table import GroupTable
from tidelog.server.timers import Timers
from tidelog.storage.topic_info import TopicInfo
from tidelog.types import NewRecord

GROUP = "readers"
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
SESSION_MS = 1000
REBALANCE_MS = 5000


class MemoryJournal:
    """Records in memory.

    Attributes:
        data: Batches as a log would have them.
        failure: What appends are answered with instead of being written.
        is_slow: Whether records become safe only when `settle` says so.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.failure = Code.NONE
        self.is_slow = False
        self._count = 0
        self._waiting: list[Reply[Code]] = []

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> Reply[Code]:
        assert group_id
        if self.failure is not Code.NONE:
            return Reply.of(self.failure)
        made = [NewRecord(key=each.key, value=each.value, timestamp=0) for each in records]
        self.data += build_batch(made, base_offset=self._count)
        self._count += len(made)
        if not self.is_slow:
            return Reply.of(Code.NONE)
        self._waiting.append(Reply())
        return self._waiting[-1]

    def settled(self, group_id: str) -> Reply[Code]:
        assert group_id
        if not self._waiting:
            return Reply.of(Code.NONE)
        self._waiting.append(Reply())
        return self._waiting[-1]

    def settle(self, code: Code = Code.NONE) -> None:
        """What was written is safe, or is not."""
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply.complete(code)


class TopicsMade:
    """The topics that a test says that there are."""

    def __init__(self) -> None:
        self.made: dict[str, TopicInfo] = {}

    def all(self) -> Mapping[str, TopicInfo]:
        return self.made


def topic_id(name: str) -> UUID:
    """An id that a name always has."""
    return uuid5(NAMESPACE_DNS, name)


class World:
    """Groups and all that they need."""

    def __init__(self, seed: int = 1, **settings: str) -> None:
        named = {name.replace("_", "."): text for name, text in settings.items()}
        self.config = BrokerConfig.parse(SETTINGS | named)[0]
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.random = Random(seed)
        self.journal = MemoryJournal()
        self.topics = TopicsMade()
        self.looked_up: list[Callable[[], None]] = []
        self.group_texts: dict[str, dict[str, str]] = {}
        self._start()

    def _start(self) -> None:
        self.table = GroupTable(self.clock)
        parts = self.table, self.journal, self.timers, self.clock, self.config
        self.rebalances = Rebalances(*parts)
        self.commits = Commits(self.table, self.rebalances, self.journal, self.clock, self.config)
        settings = GroupSettings(self.config, lambda group_id: self.group_texts.get(group_id, {}))
        steps = Steps(self.table, self.journal, self.timers, self.clock, settings, self.topics)
        conversion = Conversion(steps, self.rebalances)
        self.fencing = Fencing(steps, conversion)
        regexes = Regexes(steps, self.look_up)
        consumers = Parts(steps, self.fencing, conversion, regexes, self.random)
        self.heartbeats = Heartbeats(consumers)
        self.shares = ShareHeartbeats(steps)
        self.share_topics = ShareTopics(steps)
        self.members = Membership(
            self.table,
            self.rebalances,
            self.journal,
            self.random,
            self.config,
            ClassicMembers(consumers),
        )

    def restart(self) -> None:
        """A new process reads what the last one wrote."""
        for group in self.table.groups.values():
            if isinstance(group, ConsumerGroup | ShareGroup):
                group.unload()
            else:
                self.rebalances.unload(group, Code.NOT_COORDINATOR)
        self._start()
        replay = Replay()
        for batch in walk(bytes(self.journal.data)):
            replay.add(batch)
        assert not replay.skipped
        for group_id, loaded in replay.groups().items():
            group = revive(group_id, loaded, self.clock.now_ms())
            self.table.put(group)
            if isinstance(group, ConsumerGroup):
                self.fencing.resume(group)
            elif isinstance(group, ShareGroup):
                self.shares.resume(group)
            else:
                self.rebalances.resume(group)

    def wait(self, ms: int) -> None:
        """Let time pass; what is due in between is done at its time."""
        end = self.clock.monotonic_ms() + ms
        while (delay := self.timers.next_delay_ms()) is not None:
            if self.clock.monotonic_ms() + delay > end:
                break
            self.clock.advance(delay)
            self.timers.run_due()
        self.clock.advance(end - self.clock.monotonic_ms())

    @property
    def group(self) -> ClassicGroup:
        """The group."""
        found = self.table.classic(GROUP)
        assert found is not None
        return found

    @property
    def consumers(self) -> ConsumerGroup:
        """The group, as one whose coordinator assigns."""
        found = self.table.consumer(GROUP)
        assert found is not None
        return found

    @property
    def sharers(self) -> ShareGroup:
        """The group, as a share group."""
        found = self.table.share(GROUP)
        assert found is not None
        return found

    # -- topics ------------------------------------------------------------------------------

    def make_topics(self, **partitions: int) -> None:
        """These topics are there, and no others; each has an id by its name."""
        self.topics.made = {
            name: TopicInfo(
                name=name,
                topic_id=topic_id(name),
                partitions=count,
                present=tuple(range(count)),
                config=TopicConfig(),
            )
            for name, count in partitions.items()
        }

    def look_up(
        self,
        regexes: Iterable[str],
        names: Iterable[str],
        told: Callable[[Meanings], None],
    ) -> None:
        """Expressions are looked up when a test says so."""
        meanings = find_meanings(regexes, names)
        self.looked_up.append(lambda: told(meanings))

    def tell_meanings(self) -> None:
        """What was being looked up is known."""
        waiting, self.looked_up = self.looked_up, []
        for tell in waiting:
            tell()

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
    ) -> Reply[Joined]:
        """Join; the answer may come later."""
        return self.members.join(
            JoinAsked(
                group_id=GROUP,
                member_id=member_id,
                instance_id=instance_id,
                client_id="us",
                client_host="/here",
                protocol_type=protocol_type,
                protocols=tuple(protocols),
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=REBALANCE_MS,
                needs_member_id=needs_member_id,
                knows_skipping=knows_skipping,
            )
        )

    def join_all(self, replies: Sequence[Reply[Joined]]) -> list[Joined]:
        """The answers, once the first rebalance has waited."""
        self.wait(0)
        return [reply.value for reply in replies]

    def form(self, count: int, instances: Sequence[str] = ()) -> list[Joined]:
        """A stable group of so many members; each is assigned its own id."""
        names: list[str | None] = [*instances, *[None] * (count - len(instances))]
        joined = self.join_all([self.ask_join(instance_id=name) for name in names])
        self.assign(joined)
        return joined

    def assign(self, joined: Sequence[Joined]) -> None:
        """All sync, and the leader gives each its own id."""
        given = {member.member_id: member.member_id.encode() for member in joined}
        for member in joined:
            is_leader = member.leader == member.member_id
            self.ask_sync(member, given if is_leader else {})

    def ask_sync(
        self, member: Joined, assignments: Mapping[str, bytes] | None = None
    ) -> "Reply[tuple[Code, bytes]]":
        """Sync; code and assignment may come later."""
        asked = SyncAsked(
            group_id=GROUP,
            member_id=member.member_id,
            generation=member.generation,
            assignments=tuple((assignments or {}).items()),
        )
        found = Reply[tuple[Code, bytes]]()
        self.members.sync(asked).then(lambda said: found.complete((said.code, said.assignment)))
        return found

    def heartbeat(self, member: Joined, instance_id: str | None = None) -> Code:
        """Say that a member is there."""
        ref = MemberRef(member.member_id, instance_id)
        return self.members.heartbeat(GROUP, ref, member.generation)

    # -- offsets -----------------------------------------------------------------------------

    def commit(self, offset: int, member: Joined | None = None, **more: int) -> Code:
        """Commit for partition 0 of a topic, at once."""
        asked = CommitAsked(
            group_id=GROUP,
            member_id="" if member is None else member.member_id,
            generation=-1 if member is None else member.generation,
            retention_ms=more.get("retention_ms", -1),
        )
        return self.commits.commit(asked, [Commit("flights", 0, offset)]).value[0]

    @property
    def committed(self) -> int | None:
        """What was committed for partition 0, None where nothing is kept."""
        group = self.table.get(GROUP)
        found = None if group is None else group.offsets.get("flights", 0)
        return None if found is None else found.offset
