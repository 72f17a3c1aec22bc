"""Share sessions from the client's side, one test per rule."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import acquired, of, said, world

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.shared import IdPartitions
from tidelog.server.shares import share_partitions
from tidelog.server.shares.record_runs import AckType
from tidelog.server.shares.share_partitions import (
    SessionKey,
    SharedPartition,
    ShareSession,
    ShareSessions,
)

ACCEPT, RELEASE, REJECT, RENEW = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW


@on_a_loop
async def test_a_session_remembers_its_partitions_and_forgets_them(path: Path) -> None:
    async with world(path) as it:
        one = it.member()
        await one.fetch(0, 1)
        it.produce(1, partition=0)
        it.produce(1, partition=1)
        response = await one.fetch()
        assert acquired(response, 0) == acquired(response, 1) == [(0, 0, 1)]
        it.produce(1, partition=0)
        it.produce(1, partition=1)
        gone = IdPartitions(topic_id=it.key().topic_id, partitions=[0])
        response = await one.fetch(forgotten_topics_data=[gone])
        assert (acquired(response, 0), acquired(response, 1)) == ([], [(1, 1, 1)])


@on_a_loop
async def test_a_partition_added_to_a_session_is_in_one_response(path: Path) -> None:
    async with world(path) as it:
        one = it.member()
        assert of(await one.fetch(0)) is None
        assert of(await one.fetch(1), 1) is not None
        assert of(await one.fetch(), 1) is None


@on_a_loop
async def test_epochs_of_a_session(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        one.epoch = 1
        assert (await one.fetch(0)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await one.say(said(0, 0, ACCEPT)) == ErrorCode.SHARE_SESSION_NOT_FOUND
        one.epoch = -1
        assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        one.epoch = 0
        assert (await one.fetch(0)).error_code == 0
        one.epoch = 2
        assert (await one.fetch()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await one.say(said(0, 0, ACCEPT)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        one.epoch = 0
        assert await one.say(said(0, 0, ACCEPT)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        one.epoch = 1
        assert await one.say(said(0, 0, ACCEPT)) == 0
        assert (await one.fetch()).error_code == 0


@on_a_loop
async def test_acknowledgements_at_the_start_of_a_session_are_refused(path: Path) -> None:
    async with world(path) as it:
        response = await it.member().fetch(0, acks=[said(0, 0, ACCEPT)])
        assert response.error_code == ErrorCode.INVALID_REQUEST


@on_a_loop
async def test_the_last_fetch_acknowledges_some_records_and_releases_the_others(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two = it.member(), it.member()
        await one.fetch(0)
        one.epoch = -1
        response = await one.fetch(0, acks=[said(0, 4, ACCEPT)])
        data = of(response)
        assert data is not None
        assert data.acknowledge_error_code == 0
        assert acquired(await two.fetch(0)) == [(5, 9, 2)]
        one.epoch = 1
        assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


@on_a_loop
async def test_the_last_acknowledgement_releases_all_other_records(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two = it.member(), it.member()
        await one.fetch(0)
        one.epoch = -1
        assert await one.say(said(0, 4, ACCEPT)) == 0
        assert acquired(await two.fetch(0)) == [(5, 9, 2)]


@on_a_loop
async def test_the_last_acknowledgement_ends_no_session_begun_since(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, again = it.member("one"), it.member("one")
        await one.fetch(0)
        one.epoch = -1
        ending = one.begin_acknowledging(0, [said(0, 4, ACCEPT)])
        assert isinstance(ending, Awaitable)
        assert (await again.fetch(0)).error_code == 0
        assert (await ending).error_code == 0
        assert (await again.fetch()).error_code == 0


@on_a_loop
async def test_a_closed_connection_releases_all_records(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two = it.member(), it.member()
        await one.fetch(0)
        one.connection.close()
        assert acquired(await two.fetch(0)) == [(0, 9, 2)]
        assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


@on_a_loop
async def test_a_connection_that_closes_late_ends_no_session_begun_since(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member("one")
        await one.fetch(0)
        again = it.member("one")
        await again.fetch(0)
        one.connection.close()
        assert (await again.fetch()).error_code == 0


@on_a_loop
async def test_as_many_sessions_as_there_may_be(path: Path) -> None:
    async with world(path, group_share_max_share_sessions="1") as it:
        await it.member().fetch(0)
        waiting = asyncio.ensure_future(it.member().fetch(0, wait_ms=100))
        await it.pass_time(99)
        assert not waiting.done()
        await it.pass_time(1)
        assert (await waiting).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


@on_a_loop
async def test_a_leaving_member_releases_its_records_in_a_batch_shared_with_another(
    path: Path,
) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two, three = it.member(), it.member(), it.member()
        await one.fetch(0, records=5, share_acquire_mode=1)
        await two.fetch(0, records=5, share_acquire_mode=1)
        two.epoch = -1
        await two.fetch()
        assert acquired(await three.fetch(0)) == [(5, 9, 2)]


def test_all_sessions_together_remember_a_limited_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_partitions, "PARTITIONS_MAX", 6)
    named = [SharedPartition(UUID(int=1), number) for number in range(7)]
    one, two = SessionKey("g", "one"), SessionKey("g", "two")
    known = ShareSessions(10)
    assert known.begin(one, named) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(known.begin(one, named[2:-1]), ShareSession)
    assert known.begin(two, named[:3]) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(known.begin(two, named[:2]), ShareSession)
    assert known.advance(two, 1, named[:3]) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert known._partitions == 6
    known.end(one)
    assert isinstance(known.advance(two, 1, named[:3]), ShareSession)
    assert known._partitions == 3
