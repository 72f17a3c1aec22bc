"""Members of one group join, sync, stay, leave, fail and return on a manual clock."""

import pytest
from tests.worlds.brokers.groups import GROUP, REBALANCE_MS, SESSION_MS, World

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import GroupState
from tidelog.server.groups.classic_members import (
    MEMBER_ID_BYTES,
    MEMBER_METADATA_BYTES,
    PENDING_MAX,
)
from tidelog.server.groups.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest, MemberRef


class TestFirstRebalance:
    def test_waits_its_delay_for_more_members(self) -> None:
        world = World(group_initial_rebalance_delay_ms="3000")
        first = world.ask_join()
        world.wait(2999)
        assert not first.is_done
        world.wait(1)
        assert first.value.generation == 1

    def test_each_newcomer_extends_the_wait_up_to_the_rebalance_timeout(self) -> None:
        world = World(group_initial_rebalance_delay_ms="2000")
        replies = [world.ask_join()]
        for _ in range(4):
            world.wait(1200)
            replies.append(world.ask_join())
        assert not any(reply.is_done for reply in replies)
        world.wait(REBALANCE_MS - 4 * 1200)
        assert {reply.value.generation for reply in replies} == {1}

    def test_only_the_leader_gets_the_members_and_each_member_its_assignment(self) -> None:
        world = World()
        joined = world.join_all([world.ask_join() for _ in range(3)])
        leader = [member for member in joined if member.leader == member.member_id]
        assert [len(member.members) for member in joined].count(0) == 2
        assert len(leader[0].members) == 3
        answers = [world.ask_sync(member) for member in joined if member not in leader]
        assert not any(answer.is_done for answer in answers)
        world.assign(leader)
        assert world.group.state is GroupState.STABLE
        assert [answer.value for answer in answers] == [(ErrorCode.NONE, b"")] * 2

    def test_a_client_that_needs_a_member_id_gets_it_before_it_joins(self) -> None:
        world = World()
        asked = world.ask_join(needs_member_id=True).value
        assert asked.code is ErrorCode.MEMBER_ID_REQUIRED
        assert asked.member_id.startswith("us-")
        assert world.join_all([world.ask_join(asked.member_id)])[0].code is ErrorCode.NONE

    @pytest.mark.parametrize("name", ["n" * 32_767, "\U0001f600" * 8_191, "n" * 32_730])
    @pytest.mark.parametrize("is_static", [True, False])
    def test_a_member_id_fits_into_responses_despite_a_long_name(
        self, name: str, is_static: bool
    ) -> None:
        world = World()
        instance_id = name if is_static else None
        asked = [world.ask_join(client_id=name, instance_id=instance_id), world.ask_join()]
        joined = world.join_all(asked)
        assert len({member.member_id for member in joined}) == 2
        assert all(len(member.member_id.encode()) <= MEMBER_ID_BYTES for member in joined)
        assert joined[0].member_id.startswith(name[:8_000])

    def test_an_unused_member_id_delays_others_for_one_session_only(self) -> None:
        world = World()
        members = world.form(1)
        world.ask_join(needs_member_id=True)
        again = world.ask_join(members[0].member_id)
        world.wait(SESSION_MS - 1)
        assert not again.is_done
        world.wait(1)
        assert again.value.generation == 2


class TestRefusals:
    def test_session_timeout_outside_the_limits(self) -> None:
        world = World()
        for ms in (99, 1_800_001):
            assert world.ask_join(session_ms=ms).value.code is ErrorCode.INVALID_SESSION_TIMEOUT

    def test_a_join_without_a_common_protocol_is_refused(self) -> None:
        world = World()
        world.join_all([world.ask_join(protocols=[("range", b""), ("sticky", b"")])])
        for protocols in ([("other", b"")], []):
            refused = world.ask_join(protocols=protocols).value
            assert refused.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert not world.ask_join(protocols=[("sticky", b"")]).is_done

    def test_protocol_that_most_prefer_is_chosen(self) -> None:
        world = World()
        both = [("range", b"1"), ("sticky", b"2")]
        replies = [world.ask_join(protocols=both)]
        replies += [world.ask_join(protocols=both[::-1]) for _ in range(2)]
        joined = world.join_all(replies)
        assert {member.protocol_name for member in joined} == {"sticky"}
        assert {one.metadata for one in joined[0].members} == {b"2"}

    def test_group_that_is_full(self) -> None:
        world = World(group_max_size="2")
        first, second = world.form(2)
        assert world.ask_join().value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert world.heartbeat(first) is ErrorCode.NONE
        again = world.ask_join(first.member_id)
        assert not again.is_done
        assert not world.ask_join(second.member_id).value.code

    def test_more_protocol_data_than_a_member_may_bring(self) -> None:
        world = World()
        large = [("range", bytes(MEMBER_METADATA_BYTES))]
        assert world.ask_join(protocols=large).value.code is ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_a_member_of_a_nonexistent_group_is_unknown(self) -> None:
        assert World().ask_join("somebody").value.code is ErrorCode.UNKNOWN_MEMBER_ID


class TestRebalance:
    def test_a_new_member_makes_all_members_rejoin(self) -> None:
        world = World()
        (first,) = world.form(1)
        second = world.ask_join()
        assert world.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
        again = world.ask_join(first.member_id)
        assert (again.value.generation, second.value.generation) == (2, 2)
        assert world.heartbeat(first) is ErrorCode.ILLEGAL_GENERATION

    def test_a_member_that_does_not_rejoin_in_time_is_removed(self) -> None:
        world = World()
        first, second = world.form(2)
        third = world.ask_join()
        world.ask_join(first.member_id)
        for _ in range(6):
            world.wait(REBALANCE_MS // 6 + 1)
            world.heartbeat(second)
        assert third.value.generation == 2
        assert world.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
        assert len(world.group.members) == 2

    def test_a_waiting_sync_gets_a_response_at_the_next_rebalance(self) -> None:
        world = World()
        joined = world.join_all([world.ask_join() for _ in range(2)])
        follower = next(one for one in joined if one.leader != one.member_id)
        answer = world.ask_sync(follower)
        world.ask_join()
        assert answer.value == (ErrorCode.REBALANCE_IN_PROGRESS, b"")

    def test_a_member_that_leaves_while_it_waits_gets_unknown_member_id(self) -> None:
        world = World()
        joined = world.join_all([world.ask_join() for _ in range(2)])
        follower = next(one for one in joined if one.leader != one.member_id)
        answer = world.ask_sync(follower)
        world.members.leave(GROUP, [MemberRef(follower.member_id)])
        assert answer.value == (ErrorCode.UNKNOWN_MEMBER_ID, b"")

    def test_member_that_does_not_sync_is_out_after_the_rebalance_timeout(self) -> None:
        world = World()
        joined = world.join_all([world.ask_join(session_ms=60_000) for _ in range(2)])
        leader = next(one for one in joined if one.leader == one.member_id)
        world.assign([leader])
        assert world.group.state is GroupState.STABLE
        world.wait(REBALANCE_MS)
        assert list(world.group.members) == [leader.member_id]
        assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_leader_that_joins_a_stable_group_begins_a_rebalance(self) -> None:
        world = World()
        members = world.form(2)
        leader = next(one for one in members if one.leader == one.member_id)
        follower = next(one for one in members if one is not leader)
        assert world.ask_join(follower.member_id).value.generation == 1
        assert not world.ask_join(leader.member_id).is_done

    def test_a_second_request_replaces_the_first_one(self) -> None:
        world = World()
        first, _ = world.form(2)
        world.ask_join()
        asked = world.ask_join(first.member_id)
        again = world.ask_join(first.member_id)
        assert asked.value.code is ErrorCode.REBALANCE_IN_PROGRESS
        assert not again.is_done


class TestFailures:
    def test_silent_member_is_out_after_its_session(self) -> None:
        world = World()
        first, second = world.form(2)
        world.wait(SESSION_MS - 1)
        assert world.heartbeat(first) is ErrorCode.NONE
        world.wait(1)
        assert world.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
        assert world.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_members_that_wait_for_us_are_not_silent(self) -> None:
        world = World()
        first, second = world.form(2)
        world.ask_join(first.member_id)
        for _ in range(3):
            world.wait(SESSION_MS - 1)
            world.heartbeat(second)
        assert set(world.group.members) == {first.member_id, second.member_id}

    def test_a_new_member_whose_join_takes_too_long_is_removed(self) -> None:
        world = World(group_initial_rebalance_delay_ms="900000")
        reply = world.ask_join()
        world.wait(NEW_MEMBER_JOIN_TIMEOUT_MS)
        assert reply.value.code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_group_is_empty_after_its_last_member_was_removed(self) -> None:
        world = World()
        world.form(1)
        world.wait(SESSION_MS)
        assert world.group.state is GroupState.EMPTY
        assert world.group.generation == 2

    def test_record_that_cannot_be_written_begins_a_rebalance(self) -> None:
        world = World()
        (member,) = world.join_all([world.ask_join()])
        world.refuse_records()
        answer = world.ask_sync(member, {member.member_id: b"x"})
        assert answer.value == (ErrorCode.UNKNOWN_SERVER_ERROR, b"")
        assert world.group.state is GroupState.PREPARING_REBALANCE

    def test_group_that_cannot_be_written_is_not_made(self) -> None:
        world = World()
        world.break_disk()
        assert world.ask_join().value.code is ErrorCode.NOT_COORDINATOR
        assert world.found is None

    def test_an_assignment_is_sent_once_it_is_synced(self) -> None:
        world = World(tidelog_durability="fsync")
        (member,) = world.join_all([world.ask_join()])
        world.hold_syncs()
        answer = world.ask_sync(member, {member.member_id: b"x"})
        assert not answer.is_done
        assert world.group.state is GroupState.COMPLETING_REBALANCE
        world.sync()
        assert answer.value == (ErrorCode.NONE, b"x")


class TestRestart:
    def test_members_continue_in_their_former_state(self) -> None:
        world = World()
        members = world.form(3, ["seat"])
        world.restart()
        for member in members:
            assert world.heartbeat(member) is ErrorCode.NONE
            assert world.ask_sync(member).value == (ErrorCode.NONE, member.member_id.encode())
        assert world.heartbeat(members[0], "seat") is ErrorCode.NONE

    def test_sessions_start_again(self) -> None:
        world = World()
        members = world.form(2)
        world.restart()
        world.wait(SESSION_MS)
        assert world.heartbeat(members[0]) is ErrorCode.UNKNOWN_MEMBER_ID
        assert world.group.state is GroupState.EMPTY

    def test_a_generation_without_an_assignment_is_lost(self) -> None:
        world = World()
        joined = world.join_all([world.ask_join()])
        world.restart()
        assert world.heartbeat(joined[0]) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_group_above_a_lowered_limit_rebalances(self) -> None:
        world = World()
        members = world.form(3)
        world.restart(group_max_size="2")
        assert world.heartbeat(members[0]) is ErrorCode.REBALANCE_IN_PROGRESS
        replies = [world.ask_join(member.member_id) for member in members]
        assert [reply.is_done for reply in replies].count(True) >= 1
        assert len(world.group.members) == 2

    def test_waiting_members_of_an_unloaded_group_get_a_response(self) -> None:
        world = World()
        members = world.form(2)
        waiting = world.ask_join(members[0].member_id)
        if waiting.is_done:
            waiting = world.ask_join(members[1].member_id)
        world.break_disk()
        other = CommitRequest(group_id="of the same partition")
        failed = world.commits.commit(other, [Commit("flights", 0, 1)])
        assert failed.value == [ErrorCode.NOT_COORDINATOR]
        assert waiting.value.code is ErrorCode.NOT_COORDINATOR


def test_the_cost_of_a_storm_of_joins_is_linear() -> None:
    """The number of timers grows at most linearly with the number of joins."""
    world = World(group_initial_rebalance_delay_ms="1000")
    replies = [world.ask_join() for _ in range(2000)]
    assert len(world.timers._heap) < 2 * 2000 + 10
    world.wait(2000)
    joined = [reply.value for reply in replies]
    world.assign(joined)
    assert world.group.state is GroupState.STABLE


class TestOddMembers:
    def test_protocol_named_twice_counts_once(self) -> None:
        world = World()
        twice = (("range", b"1"), ("range", b"2"), ("sticky", b"3"))
        joined = world.join_all([world.ask_join(protocols=twice)])
        assert joined[0].protocol_name == "range"
        assert world.ask_join(protocols=(("own", b""),)).value.code is (
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )
        world.ask_join(protocols=(("sticky", b""),))
        world.ask_join(joined[0].member_id, protocols=twice)
        assert world.group.protocol_name == "sticky"

    def test_empty_protocols_have_a_size_too(self) -> None:
        names = tuple((f"{number}", b"") for number in range(70_000))
        assert World().ask_join(protocols=names).value.code is ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_the_number_of_unused_member_ids_is_bounded(self) -> None:
        world = World()
        codes = [world.ask_join(needs_member_id=True).value.code for _ in range(PENDING_MAX + 1)]
        assert set(codes[:-1]) == {ErrorCode.MEMBER_ID_REQUIRED}
        assert codes[-1] is ErrorCode.GROUP_MAX_SIZE_REACHED
        world.wait(SESSION_MS)
        assert world.ask_join(needs_member_id=True).value.code is ErrorCode.MEMBER_ID_REQUIRED

    def test_a_static_member_removed_while_its_new_id_is_written_gets_an_error(self) -> None:
        world = World(tidelog_durability="fsync")
        joined = world.join_all([world.ask_join(instance_id=name) for name in ("a", "b")])
        leader = next(each for each in joined if each.leader == each.member_id)
        world.ask_sync(leader)
        world.hold_syncs()
        other = "b" if leader is joined[0] else "a"
        back = world.ask_join(instance_id=other)
        world.wait(REBALANCE_MS)
        assert back.is_done
        world.sync()
        assert world.group.awaiting_join >= 0
