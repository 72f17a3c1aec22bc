"""Only share groups that have members are in memory, and only while they are used."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import GROUP, TOPIC, Member, acquired, of, said, world
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import turn_until

from tidelog.error_codes import ErrorCode
from tidelog.server.api.node import ClientInfo
from tidelog.server.shares.record_runs import AckType
from tidelog.server.shares.share_partitions import SessionKey
from tidelog.server.shares.state_topic import ShareKey


@on_a_loop
async def test_no_partition_is_opened_for_a_group_without_members(path: Path) -> None:
    async with world(path) as it:
        it.produce(1)
        forged = Member(it, "one", ClientInfo(1, "127.0.0.1"), group="forged")
        data = of(await forged.fetch(0))
        assert data is not None
        assert data.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert len(it.node.shares._live) == 0


@on_a_loop
async def test_a_group_that_is_not_loaded_is_left_out(path: Path) -> None:
    async with world(path) as it:
        it.produce(1)
        one = it.member()
        delete_topic(it.node, "__consumer_offsets")
        response = await one.fetch(0)
        assert (response.error_code, response.responses) == (0, [])
        assert len(it.node.shares._live) == 0


@on_a_loop
async def test_a_closed_session_leaves_nothing_in_memory_once_written(path: Path) -> None:
    async with world(path, tidelog_durability="fsync") as it:
        partition = it.node.partitions.get(TOPIC, 0)
        it.produce(10)
        await turn_until(lambda: partition.high_watermark == 10)
        one = it.member()
        await turn_until(lambda: it.node.groups.find(GROUP) is not None)
        assert acquired(await one.fetch(0)) == [(0, 9, 1)]
        assert await one.say(said(0, 4, AckType.ACCEPT)) == 0
        one.epoch = -1
        await one.fetch()
        await turn_until(lambda: len(it.node.shares._live) == 0)


@on_a_loop
async def test_a_session_that_ends_elsewhere_is_held_by_no_connection(path: Path) -> None:
    async with world(path) as it:
        begins, ends, again = it.member("one"), it.member("one"), it.member("one")
        await begins.fetch(0, 1, 2)
        key = SessionKey(GROUP, "one")
        session = it.node.shares.sessions.find(key)
        assert session is not None
        ends.epoch = -1
        await ends.fetch()
        assert it.node.shares.sessions._partitions == len(session.partitions) == 0
        assert begins.connection.closers == ends.connection.closers == {}
        begins.epoch = 0
        await begins.fetch(0)
        await again.fetch(0)
        assert begins.connection.closers == {}
        again.connection.close()
        assert it.node.shares.sessions.find(key) is None


@on_a_loop
async def test_partitions_unloaded_while_a_fetch_opens_others_are_left_out(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        it.produce(10, partition=1)
        one, two = it.member(), it.member()
        await two.fetch(0)
        assert await two.say(said(0, 4, AckType.ACCEPT)) == 0
        shares, gate, asked = it.node.shares, asyncio.Event(), asyncio.Event()
        is_ready = shares.is_ready

        async def held(key: ShareKey) -> bool:
            asked.set()
            await gate.wait()
            return await is_ready(key)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shares, "is_ready", held)
            fetch = asyncio.ensure_future(one.fetch(0, 1))
            await asked.wait()
            session = shares.sessions.find(SessionKey(GROUP, two.name))
            assert session is not None
            shares.drop_session(session)
            assert len(shares._live) == 0
            gate.set()
            assert acquired(await fetch, 0) == []
        assert acquired(await one.fetch(), 0) == [(5, 9, 2)]
