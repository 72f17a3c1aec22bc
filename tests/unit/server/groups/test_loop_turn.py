"""One assignment serves all members that join in the same loop iteration."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.unit.server.groups.test_consumer_groups import Member, settle
from tests.worlds.brokers.groups import GROUP, World

from tidelog.server.groups.requests import HeartbeatRequest
from tidelog.server.runtime.loop import LoopTurn


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    return lambda: asyncio.run(_whole(test))


async def _whole(test: Callable[[], Awaitable[None]]) -> None:
    await test()


@on_a_loop
async def test_one_is_the_first_of_each_turn() -> None:
    turn: LoopTurn[str] = LoopTurn()
    assert [turn.is_first(key) for key in "abab"] == [True, True, False, False]
    await asyncio.sleep(0)
    assert [turn.is_first(key) for key in "bab"] == [True, True, False]


@on_a_loop
async def test_the_callback_runs_at_the_end_of_an_iteration_with_calls() -> None:
    ends = list[str]()
    turn: LoopTurn[str] = LoopTurn(lambda: ends.append("end"))
    await asyncio.sleep(0)
    assert not ends
    turn.is_first("a")
    turn.is_first("b")
    assert not ends
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ends == ["end"]


def test_without_a_loop_each_question_is_a_turn() -> None:
    turn: LoopTurn[str] = LoopTurn()
    assert [turn.is_first(key) for key in "aa"] == [True, True]


def _world() -> World:
    world = World(group_consumer_assignment_interval_ms="0")
    world.make_topics(routes=6)
    return world


def _joining(name: str, group: str = GROUP) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group,
        member_id=name,
        rebalance_timeout_ms=1000,
        topics=frozenset({"routes"}),
        owned={},
    )


def _together(world: World, *asked: HeartbeatRequest) -> list[int]:
    """Send heartbeats in one loop iteration; return how many partitions each member gets."""

    async def run() -> list[int]:
        replies = [world.heartbeats.heartbeat(each) for each in asked]
        beats = [await reply for reply in replies]
        return [sum(map(len, (beat.assignment or {}).values())) for beat in beats]

    return asyncio.run(run())


def test_of_many_that_join_in_a_turn_the_first_is_assigned_to() -> None:
    world = _world()
    assert _together(world, *map(_joining, "ABC")) == [6, 0, 0]
    assert (world.consumers.epoch, world.consumers.target_epoch) == (4, 2)


def test_the_first_request_of_the_next_iteration_assigns_for_all_members() -> None:
    world = _world()
    _together(world, *map(_joining, "ABC"))
    Member(world, "B")
    assert world.consumers.target_epoch == world.consumers.epoch
    members = [Member(world, name) for name in "ABC"]
    settle(*members)
    assert [len(each.numbers()) for each in members] == [2, 2, 2]


def test_another_group_is_assigned_to_in_the_same_turn() -> None:
    assert _together(_world(), _joining("A"), _joining("B", "another")) == [6, 6]
