"""Groups with server-side assignment: time, topics, failures, restarts, both protocols together."""

from collections.abc import Iterable
from uuid import UUID

import pytest
from tests.worlds.brokers.groups import GROUP, World, topic_id
from tests.worlds.brokers.groups import SESSION_MS as GROUP_SESSION_MS

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.group_records import (
    ASSIGNMENT,
    SUBSCRIPTION,
    ConsumerProtocolSubscription,
    OwnedPartitions,
)
from tidelog.protocol.messages.modern_group_records import PARTITION_METADATA
from tidelog.server.groups.modern_group import MemberState
from tidelog.server.groups.modern_records import group_key
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import (
    CommitRequest,
    HeartbeatRequest,
    HeartbeatResult,
    JoinResult,
    MemberRef,
    Owned,
    SyncRequest,
)
from tidelog.types import OFFSETS_TOPIC, NewRecord

SESSION_MS = 45_000
REBALANCE_MS = 60_000
ROUTES, STOPS = topic_id("routes"), topic_id("stops")


class Member:
    """A consumer that follows the protocol and gives up revoked partitions."""

    def __init__(self, world: World, name: str, **asked: object) -> None:
        self.world = world
        self.asked = HeartbeatRequest(
            group_id=GROUP,
            member_id=name,
            rebalance_timeout_ms=REBALANCE_MS,
            topics=frozenset({"routes"}),
            owned={},
        )._replace(**asked)  # type: ignore[arg-type]  # fields by name
        self.epoch = 0
        self.owned: Owned = {}
        self.join()

    def join(self) -> HeartbeatResult:
        """Join with epoch 0 and without partitions."""
        self.epoch, self.owned = 0, {}
        return self._take(self.world.heartbeats.heartbeat(self.asked).value)

    def beat(self, **changes: object) -> HeartbeatResult:
        """Send a heartbeat with the owned partitions, and apply the response."""
        asked = HeartbeatRequest(
            group_id=GROUP,
            member_id=self.asked.member_id,
            epoch=self.epoch,
            instance_id=self.asked.instance_id,
            owned=self.owned,
        )
        asked = asked._replace(**changes)  # type: ignore[arg-type]  # fields by name
        return self._take(self.world.heartbeats.heartbeat(asked).value)

    def leave(self, epoch: int = -1) -> HeartbeatResult:
        return self.world.heartbeats.heartbeat(self.asked._replace(epoch=epoch)).value

    def _take(self, beat: HeartbeatResult) -> HeartbeatResult:
        if beat.code is ErrorCode.NONE:
            self.epoch = beat.epoch
            if beat.assignment is not None:
                self.owned = beat.assignment
        return beat

    def numbers(self, topic: UUID = ROUTES) -> set[int]:
        return set(self.owned.get(topic, ()))


def settle(*members: Member) -> None:
    for _ in range(4):
        for member in members:
            assert member.beat().code is ErrorCode.NONE


@pytest.fixture
def world() -> World:
    made = World(group_consumer_assignment_interval_ms="0")
    made.make_topics(routes=5, stops=2)
    return made


def test_a_silent_member_is_fenced_and_its_partitions_are_reassigned(world: World) -> None:
    first, second = Member(world, "A"), Member(world, "B")
    settle(first, second)
    assert (len(first.numbers()), len(second.numbers())) == (3, 2)
    world.wait(SESSION_MS - 1)
    first.beat()
    world.wait(1)
    assert list(world.consumers.members) == ["A"]
    settle(first)
    assert first.numbers() == set(range(5))
    assert second.beat().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_s_own_settings_take_the_place_of_the_broker_s(world: World) -> None:
    """The group's settings apply from the next heartbeat on, within the broker's current limits."""
    first = Member(world, "A")
    texts = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "99000"}
    world.set_group(texts)
    assert first.beat().interval_ms == 15_000
    world.wait(49_999)
    assert list(world.consumers.members) == ["A"]
    world.wait(1)
    assert not world.consumers.members


def test_a_member_that_does_not_revoke_partitions_in_time_is_fenced(world: World) -> None:
    first = Member(world, "A")
    kept = first.owned
    second = Member(world, "B")
    first.beat()
    assert not second.numbers()
    for _ in range(REBALANCE_MS // 10_000):
        assert "A" in world.consumers.members
        world.wait(10_000)
        first.beat(owned=kept)
        second.beat()
    world.wait(1)
    assert list(world.consumers.members) == ["B"]
    settle(second)
    assert second.numbers() == set(range(5))


def test_new_partitions_topics_and_deletions_are_assigned(world: World) -> None:
    member = Member(world, "A", topics=frozenset({"routes", "later"}))
    assert member.numbers() == set(range(5))
    world.make_topics(routes=7)
    member.beat()
    assert member.numbers() == set(range(7))
    world.make_topics(routes=7, later=1)
    member.beat()
    assert member.numbers(topic_id("later")) == {0}
    world.make_topics(later=1)
    settle(member)
    assert set(member.owned) == {topic_id("later")}
    epoch = world.consumers.epoch
    world.make_topics(later=1, unread=3)
    member.beat()
    assert world.consumers.epoch == epoch


def test_a_new_target_waits_for_its_interval() -> None:
    world = World()
    world.clock.advance(1)
    world.make_topics(routes=4)
    first = Member(world, "A")
    second = Member(world, "B")
    assert world.consumers.state.value == "Assigning"
    assert second.epoch == world.consumers.target_epoch
    world.wait(1000)
    settle(first, second)
    assert (len(first.numbers()), len(second.numbers())) == (2, 2)
    assert world.consumers.state.value == "Stable"


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_restart_continues_in_the_former_state(world: World, *, is_settled: bool) -> None:
    members = [
        Member(world, "A"),
        Member(world, "B", instance_id="seat", rack_id="r1", assignor="range"),
        world.on_a_loop(lambda: Member(world, "C", topics=frozenset(), regex="st.*")),
    ]
    members[0].beat()
    if is_settled:
        settle(*members)
    before = world.consumers
    world.restart()
    after = world.consumers
    assert after is not before
    assert (after.epoch, after.metadata_hash) == (before.epoch, before.metadata_hash)
    assert (after.target_epoch, after.target_ms) == (before.target_epoch, before.target_ms)
    assert (after.members, after.targets, after.regexes) == (
        before.members,
        before.targets,
        before.regexes,
    )
    settle(*members)
    assert members[2].numbers(STOPS) == {0, 1}
    world.wait(SESSION_MS)
    assert after.is_empty


def test_a_write_that_fails_changes_nothing(world: World) -> None:
    member = Member(world, "A")
    before = world.consumers.members, world.consumers.epoch
    for is_new in (True, False):
        world.break_disk()
        beat = Member(world, "B").join() if is_new else member.leave()
        assert beat.code is ErrorCode.NOT_COORDINATOR
        world.mend_disk()
        assert (world.consumers.members, world.consumers.epoch) == before
        assert world.consumers.regexes == {}


def test_a_response_waits_until_its_state_is_synced() -> None:
    world = World(group_consumer_assignment_interval_ms="0", tidelog_durability="fsync")
    world.make_topics(routes=5)
    world.hold_syncs()
    asked = HeartbeatRequest(
        group_id=GROUP,
        member_id="A",
        rebalance_timeout_ms=1,
        topics=frozenset({"routes"}),
        owned={},
    )
    reply = world.heartbeats.heartbeat(asked)
    later = world.heartbeats.heartbeat(HeartbeatRequest(group_id=GROUP, member_id="A", epoch=2))
    assert not reply.is_done
    assert not later.is_done
    world.sync()
    assert (reply.value.epoch, later.value.epoch) == (2, 2)


def test_expressions_are_matched_again_for_new_topics_at_intervals(world: World) -> None:
    member = world.on_a_loop(lambda: Member(world, "A", topics=frozenset(), regex="r.*"))
    assert not member.owned
    member.beat()
    assert set(member.owned) == {ROUTES}
    world.make_topics(routes=5, stops=2, rails=1)
    world.on_a_loop(member.beat)
    member.beat()
    assert set(member.owned) == {ROUTES}
    world.wait(10_001)
    world.on_a_loop(member.beat)
    member.beat()
    assert set(member.owned) == {ROUTES, topic_id("rails")}
    member.beat(topics=frozenset({"rails"}), regex="")
    settle(member)
    assert set(member.owned) == {topic_id("rails")}
    assert not world.consumers.regexes


# -- both protocols --------------------------------------------------------------------------


def subscription(owned: Iterable[int] = ()) -> bytes:
    found = ConsumerProtocolSubscription(
        topics=["routes"],
        owned_partitions=[OwnedPartitions(topic="routes", partitions=list(owned))],
    )
    return SUBSCRIPTION.write(1, found)


def join(world: World, member_id: str = "", owned: Iterable[int] = ()) -> JoinResult:
    return world.ask_join(member_id, protocols=[("range", subscription(owned))]).value


def synced(world: World, member: JoinResult) -> set[int]:
    asked = SyncRequest(group_id=GROUP, member_id=member.member_id, generation=member.generation)
    found = world.members.sync(asked).value
    assert found.code is ErrorCode.NONE
    parts = ASSIGNMENT.read(found.assignment)[1].assigned_partitions
    return {number for part in parts for number in part.partitions}


def test_a_group_changes_to_the_new_protocol_and_back_with_its_members(world: World) -> None:
    reply = world.ask_join(protocols=[("range", subscription())])
    classic = world.join_all([reply])[0]
    world.ask_sync(classic, {classic.member_id: b"\0\0\0\0\0\0\xff\xff\xff\xff"})
    world.commit(5, classic)
    new = Member(world, "A")
    assert world.committed == 5
    assert world.heartbeat(classic) is ErrorCode.REBALANCE_IN_PROGRESS
    again = join(world, classic.member_id)
    has = synced(world, again)
    settle(new)
    assert new.numbers() | has == set(range(5))
    assert not new.numbers() & has
    world.restart()
    assert world.heartbeat(again) is ErrorCode.NONE
    new.leave()
    assert world.group.members.keys() == {classic.member_id}
    again = again._replace(generation=world.group.generation)
    assert world.heartbeat(again) is ErrorCode.REBALANCE_IN_PROGRESS
    world.restart()
    assert world.group.members.keys() == {classic.member_id}
    assert world.heartbeat(again) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.committed == 5


@pytest.mark.parametrize(("rack", "expected"), [("r1", "r1"), ("", None), (None, None)])
def test_a_classic_member_of_a_consumer_group_keeps_its_rack(
    world: World, rack: str | None, expected: str | None
) -> None:
    written = ConsumerProtocolSubscription(topics=["routes"], owned_partitions=[], rack_id=rack)
    data = SUBSCRIPTION.write(3, written)
    early = world.join_all([world.ask_join(protocols=[("range", data)])])[0]
    world.ask_sync(early, {early.member_id: b""})
    Member(world, "A")
    late = world.ask_join(protocols=[("range", data)]).value
    members = world.consumers.members
    racks = [members[each.member_id].subscription.rack_id for each in (early, late)]
    assert racks == [expected, expected]


def test_a_classic_member_that_does_not_join_again_is_fenced(world: World) -> None:
    new = Member(world, "A")
    classic = join(world)
    has = synced(world, classic)
    assert not has
    new.beat()
    new.beat()
    assert world.heartbeat(classic) is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(6):
        world.heartbeat(classic)
        new.beat()
        world.wait(900)
    assert classic.member_id not in world.consumers.members


def test_a_classic_member_that_changes_to_the_new_protocol_need_not_join_again(
    world: World,
) -> None:
    new = Member(world, "A")
    classic = join(world)
    assert not synced(world, classic)
    new.beat()
    new.beat()
    assert world.heartbeat(classic) is ErrorCode.REBALANCE_IN_PROGRESS
    moved = Member(world, classic.member_id)
    for _ in range(6):
        moved.beat()
        new.beat()
        world.wait(900)
    assert world.consumers.members.keys() == {"A", classic.member_id}


def test_a_static_member_that_returns_as_a_classic_one_changes_its_groups_protocol(
    world: World,
) -> None:
    new = Member(world, "A", instance_id="seat")
    classic = join(world)
    synced(world, classic)
    settle(new)
    again = join(world, classic.member_id)
    has = synced(world, again)
    settle(new)
    assert new.numbers() | has == set(range(5))
    back = world.ask_join(instance_id="seat", protocols=[("range", subscription())]).value
    assert back.code is ErrorCode.NONE
    assert world.group.members.keys() == {classic.member_id, back.member_id}
    assert new.beat().code is not ErrorCode.NONE
    assert synced(world, back) == new.numbers()
    world.restart()
    assert world.group.members.keys() == {classic.member_id, back.member_id}


def test_a_change_of_protocol_is_no_sign_of_life(world: World) -> None:
    silent = world.join_all([world.ask_join(protocols=[("range", subscription())])])[0]
    world.ask_sync(silent, {silent.member_id: b"\0\0\0\0\0\0\xff\xff\xff\xff"})
    numbers = set[int]()
    for name in "ABC":  # members of the consumer protocol join and leave one after the other
        new = Member(world, name)
        world.wait(400)
        settle(new)
        new.leave()
        numbers = new.numbers()
    group = world.found
    assert group is not None
    assert group.is_empty
    assert numbers == set(range(5))


def test_a_waiting_member_gets_a_full_session_when_the_protocol_changes(world: World) -> None:
    asked = [world.ask_join(protocols=[("range", subscription())], session_ms=10**5)]
    asked.append(world.ask_join(protocols=[("range", subscription())]))
    absent, waiting = world.join_all(asked)
    for each in absent, waiting:
        world.ask_sync(each, {absent.member_id: b"", waiting.member_id: b""})
    Member(world, "A").leave()
    reply = world.ask_join(waiting.member_id, protocols=[("range", subscription())])
    world.wait(2 * GROUP_SESSION_MS)
    Member(world, "A")
    assert reply.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    world.wait(GROUP_SESSION_MS - 1)
    assert waiting.member_id in world.consumers.members
    world.wait(1)
    assert world.consumers.members.keys() == {absent.member_id, "A"}


def test_policy_keeps_groups_as_they_are() -> None:
    world = World(group_consumer_migration_policy="disabled")
    world.make_topics(routes=1)
    world.form(1)
    asked = HeartbeatRequest(
        group_id=GROUP, member_id="A", rebalance_timeout_ms=1, topics=frozenset(), owned={}
    )
    assert world.heartbeats.heartbeat(asked).value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.group.members


def test_a_group_of_the_maximum_size_changes_its_protocol() -> None:
    world = World(group_consumer_max_size="1", group_max_size="1")
    world.make_topics(routes=5)
    (classic,) = world.join_all([world.ask_join(protocols=[("range", subscription())])])
    world.ask_sync(classic, {classic.member_id: b"\0\0\0\0\0\0\xff\xff\xff\xff"})
    Member(world, classic.member_id)
    assert world.consumers.members.keys() == {classic.member_id}
    world = World(group_max_size="1")
    world.make_topics(routes=5)
    new = Member(world, "A")
    classic = join(world)
    new.leave()
    assert world.group.members.keys() == {classic.member_id}


def test_a_group_above_the_maximum_size_keeps_its_protocol() -> None:
    world = World(group_consumer_max_size="1")
    world.make_topics(routes=5)
    asked = [world.ask_join(protocols=[("range", subscription())]) for _ in range(2)]
    first, _ = world.join_all(asked)
    beat = HeartbeatRequest(
        group_id=GROUP, member_id=first.member_id, rebalance_timeout_ms=1, owned={}
    )._replace(topics=frozenset({"routes"}))
    assert world.heartbeats.heartbeat(beat).value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(world.group.members) == 2
    world = World(group_max_size="1")
    world.make_topics(routes=5)
    new = Member(world, "A")
    members = {join(world).member_id, join(world).member_id}
    new.leave()
    assert world.consumers.members.keys() == members


def test_removing_members_by_instance(world: World) -> None:
    member = Member(world, "A", instance_id="seat")
    assert world.members.leave(GROUP, [MemberRef("", "seat"), MemberRef("x")]) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert member.beat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commits.delete_group(GROUP).value is ErrorCode.NONE
    world.restart()
    assert world.found is None


def test_between_equally_wanted_assignors_the_newest_wish_decides(world: World) -> None:
    first = Member(world, "B", assignor="uniform")
    assert world.consumers.assignor() == "uniform"
    Member(world, "A", assignor="range")
    # The assignor `range` gives the new member the first partitions. With `uniform`, the first
    # member would keep them.
    assert world.consumers.targets["A"] == {ROUTES: frozenset({0, 1, 2})}
    assert world.consumers.assignor() == "uniform"
    first.beat(assignor="range")
    assert world.consumers.assignor() == "range"


def test_a_returning_static_member_may_commit_in_older_epochs(world: World) -> None:
    member = Member(world, "A", instance_id="seat")
    assert world.consumers.members["A"].assignment.assignment_epoch(ROUTES, 0) == 2
    member.leave(epoch=-2)
    member.join()
    assert member.epoch == 2
    assert world.consumers.members["A"].assignment.assignment_epoch(ROUTES, 0) == 0


def test_a_classic_member_joins_again_for_a_new_target_and_not_for_an_epoch(world: World) -> None:
    first, second = Member(world, "A"), Member(world, "B")
    settle(first, second)
    classic = join(world)
    settle(first, second)
    classic = join(world, classic.member_id, synced(world, classic))
    assert world.heartbeat(classic) is ErrorCode.NONE
    second.leave()
    assert world.heartbeat(classic) is ErrorCode.NONE
    first.beat()
    assert world.heartbeat(classic) is ErrorCode.REBALANCE_IN_PROGRESS


def test_commits_of_members_are_accepted_in_the_epochs_of_their_partitions(world: World) -> None:
    """Source: KIP-848, KIP-1251."""
    first = Member(world, "A")
    second = Member(world, "B")
    settle(first, second)
    assert first.epoch == 3
    kept, gone = min(first.numbers()), min(second.numbers())

    def code(member_id: str, epoch: int, partition: int, *, is_late: bool = True) -> ErrorCode:
        request = CommitRequest(
            group_id=GROUP, member_id=member_id, generation=epoch, is_late_version=is_late
        )
        commit = Commit("routes", partition, 1, topic_id=ROUTES)
        return world.commits.commit(request, [commit]).value[0]

    assert [code("A", epoch, kept) for epoch in (1, 2, 3, 4)] == [
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.STALE_MEMBER_EPOCH,
    ]
    assert code("A", 2, gone) is ErrorCode.STALE_MEMBER_EPOCH
    assert code("A", 3, kept, is_late=False) is ErrorCode.UNSUPPORTED_VERSION
    assert code("nobody", 3, kept) is ErrorCode.UNKNOWN_MEMBER_ID

    third = Member(world, "C")
    first.beat(owned={ROUTES: frozenset(first.numbers())})
    state = world.consumers.members["A"].assignment
    (revoked,) = state.revoking[ROUTES]
    assert (state.epoch, third.numbers()) == (3, set())
    assert [code("A", epoch, revoked) for epoch in (1, 2, 3, 4)] == [
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.STALE_MEMBER_EPOCH,
    ]


@pytest.mark.parametrize(
    "owned",
    [None, {ROUTES: frozenset(range(5)), STOPS: frozenset({0, 1})}],
    ids=["unchanged", "all"],
)
@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_a_member_that_drops_a_topic_owns_its_partitions_until_it_reports_otherwise(
    owned: Owned | None, interval_ms: int
) -> None:
    """The member keeps the dropped topic's partitions even while the interval delays a target."""
    world = World(group_consumer_assignment_interval_ms=f"{interval_ms}")
    world.make_topics(routes=5, stops=2)
    first = Member(world, "A", topics=frozenset({"routes", "stops"}))
    settle(first)
    assert (first.numbers(), first.numbers(STOPS)) == (set(range(5)), {0, 1})
    first.beat(topics=frozenset({"routes"}), owned=owned)
    state = world.consumers.members["A"].assignment
    assert state.state is MemberState.UNREVOKED_PARTITIONS
    assert {topic: set(part) for topic, part in state.revoking.items()} == {STOPS: {0, 1}}
    settle(first)
    assert world.consumers.members["A"].assignment.revoking == {}


def test_topics_that_an_older_kafka_stored_are_deleted_once(world: World) -> None:
    """Kafka up to 4.1 stored a record of kind 4 with each group."""
    key = group_key(PARTITION_METADATA, GROUP)
    member = Member(world, "A")
    log = world.node.partitions.get(OFFSETS_TOPIC, 0).log
    log.append([NewRecord(key=key, value=b"\0\0\0\0")])
    world.restart()

    def stored() -> list[bytes | None]:
        records = world.node.partitions.get(OFFSETS_TOPIC, 0).log.records()
        return [each.value for each in records if each.key == key]

    assert stored() == [b"\0\0\0\0"]
    for topic in ("routes", "stops", "routes"):
        member.beat(topics=frozenset({topic}))
        assert stored() == [b"\0\0\0\0", None]
    world.restart()
    member.beat(topics=frozenset({"stops"}))
    assert stored() == [b"\0\0\0\0", None]


def test_an_epoch_without_a_member_id_is_refused(world: World) -> None:
    Member(world, "A")
    assert world.consumers.fetch_error(None, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.consumers.fetch_error("A", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.consumers.fetch_error("A", 2) is ErrorCode.NONE
    assert world.consumers.fetch_error(None, -1) is ErrorCode.NONE


def test_a_classic_member_with_an_old_epoch_gets_illegal_generation(world: World) -> None:
    Member(world, "A")
    member_id = join(world).member_id
    epoch = world.consumers.members[member_id].assignment.epoch
    assert world.consumers.fetch_error(member_id, epoch) is ErrorCode.NONE
    assert world.consumers.fetch_error(member_id, epoch - 1) is ErrorCode.ILLEGAL_GENERATION
