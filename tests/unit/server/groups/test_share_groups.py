"""Share groups: assignment, epochs, time, topics, failures, restarts, other protocols."""

import pytest
from tests.worlds.brokers.groups import GROUP, World, topic_id

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.modern_group import SharedTopic, ShareGroupState
from tidelog.server.groups.requests import (
    HeartbeatRequest,
    HeartbeatResult,
    MemberRef,
    Owned,
    SyncRequest,
)
from tidelog.server.runtime.errors import Refusal

SESSION_MS = 45_000
ROUTES, STOPS = topic_id("routes"), topic_id("stops")


class Member:
    """A member that applies its assignments."""

    def __init__(self, world: World, name: str, *topics: str) -> None:
        self.world = world
        names = frozenset(topics or ("routes",))
        self.asked = HeartbeatRequest(group_id=GROUP, member_id=name, topics=names)
        self.epoch = 0
        self.assigned: Owned = {}
        self.join()

    def join(self) -> HeartbeatResult:
        return self._take(self.world.shares.heartbeat(self.asked).value)

    def beat(self, **changes: object) -> HeartbeatResult:
        asked = self.asked._replace(epoch=self.epoch, topics=None)
        asked = asked._replace(**changes)  # type: ignore[arg-type]  # fields by name
        return self._take(self.world.shares.heartbeat(asked).value)

    def leave(self) -> HeartbeatResult:
        return self.world.shares.heartbeat(self.asked._replace(epoch=-1)).value

    def _take(self, beat: HeartbeatResult) -> HeartbeatResult:
        if beat.code is ErrorCode.NONE:
            self.epoch = beat.epoch
            if beat.assignment is not None:
                self.assigned = beat.assignment
        return beat


@pytest.fixture
def world() -> World:
    made = World(group_share_assignment_interval_ms="0")
    made.make_topics(routes=4, stops=2)
    return made


def test_a_single_member_gets_all_partitions(world: World) -> None:
    beat = Member(world, "A", "routes", "nowhere").join()
    assert beat == HeartbeatResult(
        member_id="A", epoch=2, interval_ms=5000, assignment={ROUTES: frozenset(range(4))}
    )
    assert world.sharers.state is ShareGroupState.STABLE


def test_members_share_partitions_evenly_and_each_has_a_reader(world: World) -> None:
    members = [Member(world, name) for name in "ABCDEF"]
    for member in members:
        member.beat()
    counts = [len(member.assigned[ROUTES]) for member in members]
    # Six members read four partitions, and each partition has two members.
    assert sorted(counts) == [1, 1, 1, 1, 2, 2]
    readers = [sum(number in member.assigned[ROUTES] for member in members) for number in range(4)]
    assert readers == [2, 2, 2, 2]


def test_an_assignment_is_sent_when_it_changes_or_is_requested(world: World) -> None:
    first = Member(world, "A")
    assert first.beat().assignment is None
    assert first.beat(topics=frozenset({"routes"})).assignment == first.assigned
    Member(world, "B")
    told = first.beat()
    assert told.epoch == 3
    assert told.assignment is not None
    assert len(told.assignment[ROUTES]) == 2


def test_another_subscription_begins_an_epoch(world: World) -> None:
    first = Member(world, "A")
    told = first.beat(topics=frozenset({"stops"}))
    assert (told.epoch, told.assignment) == (3, {STOPS: frozenset(range(2))})
    # The state of the unsubscribed topic stays, because the group may subscribe to it again.
    assert set(world.sharers.shared) == {ROUTES, STOPS}


def test_the_epoch_before_is_taken_and_others_are_fenced(world: World) -> None:
    first = Member(world, "A")
    Member(world, "B")
    assert first.beat().epoch == 3
    assert first.beat(epoch=2).epoch == 3
    assert first.beat(epoch=1).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert first.beat(epoch=4).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert first.join().epoch == 3


@pytest.mark.parametrize(
    "asked",
    [
        HeartbeatRequest(group_id=GROUP, topics=frozenset({"routes"})),
        HeartbeatRequest(group_id=" ", member_id="A", topics=frozenset({"routes"})),
        HeartbeatRequest(group_id=GROUP, member_id="A"),
        HeartbeatRequest(group_id=GROUP, member_id="A", topics=frozenset()),
        HeartbeatRequest(group_id=GROUP, member_id="A", epoch=-2),
        HeartbeatRequest(group_id=GROUP, member_id="A", epoch=1, rack_id=""),
    ],
)
def test_an_invalid_heartbeat_is_refused(world: World, asked: HeartbeatRequest) -> None:
    assert world.shares.heartbeat(asked).value.code is ErrorCode.INVALID_REQUEST
    assert not world.written


def test_only_a_join_creates_a_group(world: World) -> None:
    for epoch in (-1, 1):
        asked = HeartbeatRequest(group_id=GROUP, member_id="A", epoch=epoch)
        assert world.shares.heartbeat(asked).value.code is ErrorCode.GROUP_ID_NOT_FOUND
    first = Member(world, "A")
    for epoch in (-1, 2):
        code = first.beat(member_id="B", epoch=epoch).code
        assert code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_new_members(world: World) -> None:
    world = World(group_share_max_size="1")
    first = Member(world, "A")
    assert Member(world, "B").join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.join().code is ErrorCode.NONE


def test_partitions_of_a_leaving_member_are_assigned_to_others(world: World) -> None:
    first, second = Member(world, "A"), Member(world, "B")
    assert second.leave() == HeartbeatResult(member_id="B", epoch=-1)
    assert first.beat().epoch == 4
    assert first.assigned == {ROUTES: frozenset(range(4))}
    assert second.beat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.leave().code is ErrorCode.NONE
    assert world.sharers.state is ShareGroupState.EMPTY
    world.wait(2 * SESSION_MS)
    assert world.sharers.epoch == 5


def test_a_silent_member_is_removed(world: World) -> None:
    first, second = Member(world, "A"), Member(world, "B")
    world.wait(SESSION_MS - 1)
    first.beat()
    world.wait(1)
    assert list(world.sharers.members) == ["A"]
    assert second.beat().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_s_own_settings_take_the_place_of_the_broker_s(world: World) -> None:
    texts = {"share.session.timeout.ms": "50000", "share.heartbeat.interval.ms": "99000"}
    world.set_group(texts)
    first = Member(world, "A")
    assert first.beat().interval_ms == 15_000
    world.wait(49_999)
    assert list(world.sharers.members) == ["A"]
    world.wait(1)
    assert not world.sharers.members


def test_a_new_group_waits_for_members_that_start_together() -> None:
    """Without the wait, the first member would get all available records."""
    world = World()
    world.wait(1)
    world.make_topics(routes=4)
    first = Member(world, "A")
    assert first.join() == HeartbeatResult(member_id="A", epoch=1, interval_ms=1000, assignment={})
    world.wait(300)
    second = Member(world, "B")
    assert second.beat().interval_ms == 700
    world.wait(700)
    told = [first.beat(), second.beat()]
    assert [(beat.epoch, beat.interval_ms) for beat in told] == [(3, 5000)] * 2
    assert [len(member.assigned[ROUTES]) for member in (first, second)] == [2, 2]


def test_a_stored_group_does_not_wait_for_members() -> None:
    world = World()
    world.wait(1)
    world.make_topics(routes=4)
    Member(world, "A").leave()
    world.restart()
    assert Member(world, "B").assigned == {ROUTES: frozenset(range(4))}


def grown() -> tuple[World, Member]:
    """Create a group of one member with its first assignment."""
    world = World()
    world.wait(1)
    world.make_topics(routes=4, stops=2)
    first = Member(world, "A", "routes", "stops")
    world.wait(1000)
    first.beat()
    return world, first


def test_assignments_are_made_at_most_so_often() -> None:
    world, first = grown()
    second = Member(world, "B")
    assert (second.epoch, second.assigned) == (2, {})
    told = first.beat()
    assert (told.epoch, told.interval_ms) == (2, 1000)
    world.wait(1000)
    assert second.beat().epoch == 3
    assert len(second.assigned[ROUTES]) == 2


def test_partitions_of_unsubscribed_topics_are_revoked_before_the_next_assignment() -> None:
    _, first = grown()
    told = first.beat(topics=frozenset({"stops"}))
    assert (told.epoch, told.assignment) == (2, {STOPS: frozenset(range(2))})


def test_new_and_growing_topics_are_assigned(world: World) -> None:
    first = Member(world, "A", "routes", "zones")
    assert set(first.assigned) == {ROUTES}
    world.make_topics(routes=5, stops=2, zones=1)
    assert first.beat().epoch == 3
    assert first.assigned == {ROUTES: frozenset(range(5)), topic_id("zones"): frozenset({0})}
    world.make_topics(routes=5, stops=3, zones=1)
    assert first.beat().epoch == 3


def test_a_deleted_topic_is_forgotten(world: World) -> None:
    first = Member(world, "A", "routes", "stops")
    world.make_topics(routes=4)
    assert set(world.sharers.shared) == {ROUTES}
    first.beat()
    assert first.assigned == {ROUTES: frozenset(range(4))}
    world.make_topics(routes=4, stops=2)  # a new topic, of which the group has no state
    written = world.written
    world.make_topics(routes=4)
    assert world.written == written


def test_tools_change_the_topics_of_a_group_without_members(world: World) -> None:
    topics = world.share_topics
    with pytest.raises(Refusal) as missing:
        topics.idle_group(GROUP)
    assert missing.value.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    group = topics.idle_group(GROUP, may_be_new=True)
    begun = {ROUTES: SharedTopic("routes", frozenset({0}))}
    assert topics.share(group, begun).value is ErrorCode.NONE
    assert (
        topics.share(group, {ROUTES: SharedTopic("routes", frozenset({3}))}).value is ErrorCode.NONE
    )
    world.restart()
    assert world.sharers.shared == {ROUTES: SharedTopic("routes", frozenset({0, 3}))}
    assert world.share_topics.unshare(world.sharers, [ROUTES, STOPS]).value is ErrorCode.NONE
    assert world.sharers.shared == {}
    Member(world, "A")
    with pytest.raises(Refusal) as busy:
        world.share_topics.idle_group(GROUP)
    assert busy.value.error_code == ErrorCode.NON_EMPTY_GROUP


def test_members_that_read_different_topics_share_each_by_itself(world: World) -> None:
    both, one = Member(world, "A", "routes", "stops"), Member(world, "B", "stops")
    both.beat()
    assert both.assigned[ROUTES] == frozenset(range(4))
    assert (len(both.assigned[STOPS]), len(one.assigned[STOPS])) == (1, 1)
    assert not both.assigned[STOPS] & one.assigned[STOPS]


def test_no_change_has_effect_before_it_is_written() -> None:
    world = World(group_share_assignment_interval_ms="0", tidelog_durability="fsync")
    world.make_topics(routes=4, stops=2)
    first = Member(world, "A")
    world.break_disk()
    assert Member(world, "B").join().code is ErrorCode.NOT_COORDINATOR
    world.mend_disk()
    assert list(world.sharers.members) == ["A"]
    world.hold_syncs()
    reply = world.shares.heartbeat(first.asked._replace(member_id="B"))
    assert not reply.is_done
    world.sync()
    assert reply.value.code is ErrorCode.NONE


def test_a_restart_changes_nothing(world: World) -> None:
    first, second = Member(world, "A"), Member(world, "B", "stops")
    first.beat()
    before = world.sharers
    world.restart()
    after = world.sharers
    assert (after.members, after.targets, after.shared) == (
        before.members,
        before.targets,
        before.shared,
    )
    assert (after.epoch, after.target_epoch, after.target_ms, after.metadata_hash) == (
        before.epoch,
        before.target_epoch,
        before.target_ms,
        before.metadata_hash,
    )
    assert first.beat().epoch == 3
    world.wait(SESSION_MS - 1)
    second.beat()
    world.wait(1)
    assert list(world.sharers.members) == ["B"]


def test_a_deleted_group_does_not_exist_after_a_restart(world: World) -> None:
    first = Member(world, "A")
    assert world.commits.delete_group(GROUP).value is ErrorCode.NON_EMPTY_GROUP
    first.leave()
    world.commits.expire(world.sharers)
    assert world.commits.delete_group(GROUP).value is ErrorCode.NONE
    assert world.found is None
    world.restart()
    assert world.found is None


def test_other_protocols_are_not_spoken_to_a_share_group(world: World) -> None:
    first = Member(world, "A")
    group = world.sharers
    ref = MemberRef("A")
    assert world.commit(7) is ErrorCode.GROUP_ID_NOT_FOUND
    assert group.fetch_error("A", 2) is ErrorCode.GROUP_ID_NOT_FOUND
    assert group.fetch_error(None, -1) is ErrorCode.NONE
    assert world.commits.delete_offsets(GROUP, [("routes", 0)]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.ask_join().value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    synced = world.members.sync(SyncRequest(group_id=GROUP, member_id="A", generation=2))
    assert synced.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.members.heartbeat(GROUP, ref, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.members.leave(GROUP, [ref]) == [ErrorCode.UNKNOWN_MEMBER_ID]
    asked = HeartbeatRequest(
        group_id=GROUP,
        member_id="C",
        rebalance_timeout_ms=1000,
        topics=frozenset({"routes"}),
        owned={},
    )
    assert world.heartbeats.heartbeat(asked).value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert first.beat().code is ErrorCode.NONE


def test_a_share_member_is_not_taken_by_a_group_of_another_protocol(world: World) -> None:
    world.form(1)
    refused = world.shares.heartbeat(
        HeartbeatRequest(group_id=GROUP, member_id="A", topics=frozenset({"routes"}))
    ).value
    assert refused.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.message == f"Group {GROUP} is not a share group."
