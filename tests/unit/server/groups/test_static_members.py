"""Static members have an instance id; they are recognized, replaced, fenced and removed."""

from tests.worlds.brokers.groups import GROUP, REBALANCE_MS, SESSION_MS, World

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.classic_group import GroupState
from tidelog.server.groups.requests import JoinResult, MemberRef


class TestStaticMembers:
    def come_back(self, world: World, *, knows_skipping: bool = True) -> JoinResult:
        return world.ask_join(instance_id="seat", knows_skipping=knows_skipping).value

    def test_one_returns_without_a_rebalance(self) -> None:
        world = World()
        world.form(2, ["seat"])
        back = self.come_back(world)
        assert back.generation == 1
        assert world.group.state is GroupState.STABLE
        assert back.skip_assignment == (back.leader == back.member_id)
        assert world.ask_sync(back).value[0] is ErrorCode.NONE

    def test_an_old_client_that_leads_gets_its_old_id_so_that_it_does_not_assign(self) -> None:
        world = World()
        (first,) = world.form(1, ["seat"])
        back = self.come_back(world, knows_skipping=False)
        assert back.leader == first.member_id != back.member_id
        assert not back.members

    def test_old_id_is_fenced(self) -> None:
        world = World()
        (first,) = world.form(1, ["seat"])
        self.come_back(world)
        assert world.heartbeat(first, "seat") is ErrorCode.FENCED_INSTANCE_ID
        assert world.ask_join(first.member_id, "seat").value.code is ErrorCode.FENCED_INSTANCE_ID

    def test_a_waiting_join_with_the_old_member_id_is_fenced_at_once(self) -> None:
        world = World()
        first, _ = world.form(2, ["seat"])
        world.ask_join()
        waiting = world.ask_join(first.member_id, "seat")
        assert not waiting.is_done
        back = world.ask_join(instance_id="seat")
        assert waiting.value.code is ErrorCode.FENCED_INSTANCE_ID
        assert not back.is_done

    def test_a_static_member_that_returns_before_it_syncs_may_sync_under_its_new_id(self) -> None:
        world = World()
        leader, seat = world.join_all([world.ask_join(), world.ask_join(instance_id="seat")])
        world.ask_sync(leader, {seat.member_id: b"ours"})
        back = self.come_back(world)
        assert world.ask_sync(back).value == (ErrorCode.NONE, b"ours")
        for _ in range(12):
            world.wait(REBALANCE_MS // 10)
            assert world.heartbeat(leader) is world.heartbeat(back, "seat") is ErrorCode.NONE

    def test_a_static_member_that_returns_and_never_syncs_is_removed_in_time(self) -> None:
        world = World()
        leader, _ = world.join_all([world.ask_join(), world.ask_join(instance_id="seat")])
        world.ask_sync(leader)
        back = self.come_back(world)
        for _ in range(9):
            world.wait(REBALANCE_MS // 10)
            assert world.heartbeat(leader) is world.heartbeat(back, "seat") is ErrorCode.NONE
        world.wait(REBALANCE_MS // 10)
        assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
        assert world.heartbeat(back, "seat") is ErrorCode.UNKNOWN_MEMBER_ID

    def test_id_that_cannot_be_written_is_taken_back(self) -> None:
        world = World()
        (first,) = world.form(1, ["seat"])
        world.refuse_records()
        assert self.come_back(world).code is ErrorCode.UNKNOWN_SERVER_ERROR
        world.refuse_records(refuse=False)
        assert world.heartbeat(first, "seat") is ErrorCode.NONE
        assert not world.group.awaiting_join

    def test_a_member_whose_new_id_cannot_be_written_is_removed_after_its_old_session(self) -> None:
        world = World()
        (first,) = world.form(1, ["seat"])
        world.refuse_records()
        world.ask_join(instance_id="seat", session_ms=5 * SESSION_MS, knows_skipping=True)
        world.refuse_records(refuse=False)
        world.wait(SESSION_MS - 1)
        assert world.group.members.keys() == {first.member_id}
        world.wait(1)
        assert not world.group.members

    def test_static_member_keeps_its_place_in_a_rebalance_that_it_misses(self) -> None:
        world = World()
        joined = world.join_all(
            [world.ask_join(instance_id="seat", session_ms=60_000), world.ask_join()]
        )
        world.assign(joined)
        again = world.ask_join()
        world.ask_join(joined[1].member_id)
        world.wait(REBALANCE_MS)
        assert again.value.generation == 2
        assert joined[0].member_id in world.group.members

    def test_a_static_member_that_changes_the_preferred_protocol_begins_a_rebalance(self) -> None:
        world = World()
        both = [("range", b""), ("sticky", b"")]
        joined = world.join_all(
            [
                world.ask_join(instance_id="seat", protocols=both),
                world.ask_join(protocols=both),
                world.ask_join(protocols=both[::-1]),
            ]
        )
        world.assign(joined)
        assert world.group.protocol_name == "range"
        back = world.ask_join(instance_id="seat", protocols=both[::-1])
        assert not back.is_done
        assert world.group.state is GroupState.PREPARING_REBALANCE

    def test_a_leader_that_misses_a_rebalance_loses_its_role(self) -> None:
        world = World()
        leader, other = world.form(2, ["seat"])
        assert leader.leader == leader.member_id
        world.ask_join(other.member_id, protocols=[("range", b"changed")])
        for _ in range(6):
            world.wait(REBALANCE_MS // 6 + 1)
            world.heartbeat(leader, "seat")
        assert world.group.state is GroupState.COMPLETING_REBALANCE
        assert world.group.leader == other.member_id
        assert leader.member_id in world.group.members

    def test_administrator_removes_one_by_its_instance(self) -> None:
        world = World()
        world.form(1, ["seat"])
        codes = world.members.leave(GROUP, [MemberRef("", "seat"), MemberRef("", "none")])
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert world.group.state is GroupState.EMPTY
