"""ShareFetch and ShareAcknowledge from the client's side, one test per rule."""

import errno
from pathlib import Path

from tests.faults.hooked import HookedDisk
from tests.unit.server.loops import on_a_loop, turns
from tests.unit.server.shares.share_worlds import (
    GROUP,
    LOCK_MS,
    TOPIC,
    acquired,
    batches_of,
    begun,
    of,
    said,
    world,
)
from tests.worlds.brokers.running import share_states
from tests.worlds.brokers.topics import delete_topic

from tidelog.error_codes import ErrorCode
from tidelog.server.runtime.counters import Counters
from tidelog.server.shares.record_runs import AckType

ACCEPT, RELEASE, REJECT, RENEW = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW


@on_a_loop
async def test_records_are_acquired_with_the_timeout_of_their_locks(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        response = await it.member().fetch(0)
        assert acquired(response) == [(0, 9, 1)]
        assert response.acquisition_lock_timeout_ms == LOCK_MS
        data = of(response)
        assert data is not None
        (batch,) = batches_of(data)
        assert (batch.base_offset, batch.record_count) == (0, 10)


@on_a_loop
async def test_records_are_counted_at_each_delivery(path: Path) -> None:
    async with world(path) as it:
        it.node.metrics = counters = Counters()
        it.produce(10, 10)
        one = it.member()
        data = of(await one.fetch(0, records=5))
        assert data is not None
        size_bytes = sum(len(batch.view) for batch in batches_of(data))
        tally = counters.topics[TOPIC]
        assert (tally.records_out, tally.bytes_out) == (10, size_bytes)
        await one.say(said(0, 9, RELEASE))
        await one.fetch(records=5)
        assert (tally.records_out, tally.bytes_out) == (20, 2 * size_bytes)


@on_a_loop
async def test_two_members_get_different_records(path: Path) -> None:
    async with world(path) as it:
        it.produce(10, 10)
        one, two = it.member(), it.member()
        assert acquired(await one.fetch(0, records=5)) == [(0, 9, 1)]
        assert acquired(await two.fetch(0, records=5)) == [(10, 19, 1)]


@on_a_loop
async def test_each_fetch_of_a_session_begins_with_another_partition(path: Path) -> None:
    async with world(path) as it:
        for partition in range(3):
            it.produce(2, partition=partition)
        member, found = it.member(), []
        for fetched in ((0, 1, 2), (), ()):
            response = await member.fetch(*fetched, records=1, share_acquire_mode=1)
            found.append([acquired(response, partition) for partition in range(3)])
        assert found == [[[(0, 0, 1)], [], []], [[], [(0, 0, 1)], []], [[], [], [(0, 0, 1)]]]


@on_a_loop
async def test_the_maximum_of_records_applies_to_all_partitions_together(path: Path) -> None:
    async with world(path) as it:
        member = it.member()
        await member.fetch(0, 1)  # later fetches find both partitions open
        it.produce(4)
        it.produce(2, partition=1)
        response = await member.fetch(records=3, share_acquire_mode=1)  # reads partition 1 first
        assert [acquired(response, each) for each in (0, 1)] == [[(0, 0, 1)], [(0, 1, 1)]]


@on_a_loop
async def test_a_fetch_of_no_records_gets_a_response_at_once(path: Path) -> None:
    """A limit of 0 excludes even the first batch. Acknowledgements in the request are applied."""
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        assert acquired(await one.fetch(0, wait_ms=10_000, max_bytes=0)) == []
        assert acquired(await one.fetch(0, wait_ms=10_000, records=0)) == []
        assert acquired(await one.fetch(0)) == [(0, 9, 1)]
        told = of(await one.fetch(0, acks=[said(0, 9, RELEASE)], max_bytes=0))
        assert told is not None
        assert told.acknowledge_error_code == 0
        assert not told.acquired_records
        assert acquired(await one.fetch()) == [(0, 9, 2)]


@on_a_loop
async def test_only_batches_with_acquired_records_are_sent(path: Path) -> None:
    async with world(path) as it:
        it.produce(10, 10, 10)
        data = of(await it.member().fetch(0, records=15))
        assert data is not None
        batches = batches_of(data)
        assert [batch.base_offset for batch in batches] == [0, 10]


@on_a_loop
async def test_a_strict_member_gets_part_of_a_batch(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        assert acquired(await one.fetch(0, records=4, share_acquire_mode=1)) == [(0, 3, 1)]
        assert acquired(await one.fetch(records=4, share_acquire_mode=1)) == [(4, 7, 1)]


@on_a_loop
async def test_accepted_records_are_not_acquired_again(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        assert await one.say(said(0, 9, ACCEPT)) == 0
        assert acquired(await one.fetch()) == []
        await it.pass_time(2 * LOCK_MS)
        assert acquired(await it.member().fetch(0)) == []


@on_a_loop
async def test_a_fetch_acknowledges_records_of_the_last_one(path: Path) -> None:
    async with world(path) as it:
        it.produce(10, 10)
        one = it.member()
        await one.fetch(0, records=5)
        response = await one.fetch(0, acks=[said(0, 4, ACCEPT), said(5, 9, RELEASE)])
        data = of(response)
        assert data is not None
        assert data.acknowledge_error_code == 0
        assert acquired(response) == [(5, 9, 2), (10, 19, 1)]


@on_a_loop
async def test_an_acknowledgement_gets_a_response_if_no_records_are_acquired(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        data = of(await one.fetch(0, acks=[said(0, 10, ACCEPT)]))
        assert data is not None
        assert data.acknowledge_error_code == ErrorCode.INVALID_REQUEST
        assert data.acknowledge_error_message


@on_a_loop
async def test_records_with_expired_locks_are_acquired_again(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two = it.member(), it.member()
        await one.fetch(0)
        await it.pass_time(LOCK_MS - 1)
        assert acquired(await two.fetch(0)) == []
        await it.pass_time(1)
        assert acquired(await two.fetch()) == [(0, 9, 2)]
        assert await one.say(said(0, 9, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE


@on_a_loop
async def test_renewed_records_stay_acquired(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two = it.member(), it.member()
        await one.fetch(0)
        await it.pass_time(LOCK_MS - 1)
        assert await one.say(said(0, 9, RENEW), is_renew_ack=True) == 0
        await it.pass_time(LOCK_MS - 1)
        assert acquired(await two.fetch(0)) == []
        assert await one.say(said(0, 9, ACCEPT)) == 0


@on_a_loop
async def test_a_fetch_that_renews_requests_no_records(path: Path) -> None:
    async with world(path) as it:
        it.produce(10, 10)
        one = it.member()
        await one.fetch(0, records=5)
        renewal = [said(0, 9, RENEW)]
        response = await one.fetch(0, acks=renewal, is_renew_ack=True)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        one.epoch -= 1
        none = {"records": 0, "min_bytes": 0, "max_bytes": 0, "wait_ms": 0}
        for limit in none:
            response = await one.fetch(0, acks=renewal, is_renew_ack=True, **none | {limit: 1})
            assert response.error_code == ErrorCode.INVALID_REQUEST, limit
            one.epoch -= 1
        response = await one.fetch(0, acks=renewal, is_renew_ack=True, **none)
        assert acquired(response) == []
        assert await one.say(said(0, 9, RENEW)) == ErrorCode.INVALID_REQUEST


@on_a_loop
async def test_a_group_may_forbid_renewals(path: Path) -> None:
    async with world(path) as it:
        await it.set_group({"share.renew.acknowledge.enable": "false"})
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        code = await one.say(said(0, 9, RENEW), is_renew_ack=True)
        assert code == ErrorCode.INVALID_RECORD_STATE


@on_a_loop
async def test_records_delivered_too_often_are_not_delivered_again(path: Path) -> None:
    async with world(path) as it:
        await it.set_group({"share.delivery.count.limit": "2"})
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await it.pass_time(LOCK_MS)
        assert acquired(await one.fetch()) == [(0, 9, 2)]
        await it.pass_time(LOCK_MS)
        assert acquired(await one.fetch()) == []


@on_a_loop
async def test_acquired_records_are_bounded_by_the_groups_limit_of_locks(path: Path) -> None:
    async with world(path) as it:
        await it.set_group({"share.partition.max.record.locks": "100"})
        it.produce(100, 100)
        one = it.member()
        assert acquired(await one.fetch(0)) == [(0, 99, 1)]
        assert acquired(await one.fetch()) == []
        assert await one.say(said(0, 9, ACCEPT)) == 0
        assert acquired(await one.fetch()) == [(100, 199, 1)]


# -- the wait ------------------------------------------------------------------------------------


@on_a_loop
async def test_a_fetch_waits_for_records(path: Path) -> None:
    async with world(path) as it:
        waiting = await begun(it.member().fetch(0, wait_ms=500), it)
        it.produce(3)
        assert acquired(await waiting) == [(0, 2, 1)]


@on_a_loop
async def test_a_fetch_waits_no_longer_than_its_limit(path: Path) -> None:
    async with world(path) as it:
        waiting = await begun(it.member().fetch(0, wait_ms=500), it)
        await it.pass_time(499)
        assert not waiting.done()
        await it.pass_time(1)
        assert acquired(await waiting) == []


@on_a_loop
async def test_records_released_by_another_member_wake_a_fetch(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one, two = it.member(), it.member()
        await one.fetch(0)
        waiting = await begun(two.fetch(0, wait_ms=500), it)
        await one.say(said(3, 4, RELEASE))
        assert acquired(await waiting) == [(3, 4, 2)]


@on_a_loop
async def test_a_fetch_is_woken_by_a_lock_that_runs_out(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        await it.member().fetch(0)
        waiting = await begun(it.member().fetch(0, wait_ms=2 * LOCK_MS), it)
        await it.pass_time(LOCK_MS)
        assert acquired(await waiting) == [(0, 9, 2)]


@on_a_loop
async def test_no_record_is_acquired_before_min_bytes_are_available(path: Path) -> None:
    async with world(path) as it:
        it.produce(1)
        one, two = it.member(), it.member()
        waiting = await begun(one.fetch(0, wait_ms=500, min_bytes=10_000), it)
        assert acquired(await two.fetch(0)) == [(0, 0, 1)]
        await it.pass_time(500)
        assert acquired(await waiting) == []


@on_a_loop
async def test_the_deletion_of_a_topic_ends_the_wait(path: Path) -> None:
    async with world(path) as it:
        waiting = await begun(it.member().fetch(0, wait_ms=500), it)
        delete_topic(it.node, TOPIC)
        data = of(await waiting)
        assert data is not None
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- errors --------------------------------------------------------------------------------------


@on_a_loop
async def test_a_request_must_name_its_group_and_member(path: Path) -> None:
    async with world(path) as it:
        one = it.member()
        for change in ({"group_id": None}, {"member_id": None}, {"member_id": "x" * 37}):
            one.epoch = 0
            assert (await one.fetch(0, **change)).error_code == ErrorCode.INVALID_REQUEST
            assert await one.say(said(0, 0, ACCEPT), **change) == ErrorCode.INVALID_REQUEST


@on_a_loop
async def test_topics_and_partitions_that_do_not_exist(path: Path) -> None:
    async with world(path) as it:
        from uuid import UUID

        one = it.member()
        topics = it.topics([0, 7])
        topics += it.topics([0])
        topics[1].topic_id = UUID(int=7)
        response = await one.fetch(topics=topics)
        codes = {
            (topic.topic_id, data.partition_index): data.error_code
            for topic in response.responses
            for data in topic.partitions
        }
        assert codes[it.key().topic_id, 7] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes[UUID(int=7), 0] == ErrorCode.UNKNOWN_TOPIC_ID


@on_a_loop
async def test_an_error_names_no_leader(path: Path) -> None:
    """An error response with leader 0 and epoch 0 would send franz-go to a nonexistent broker."""
    async with world(path) as it:
        one = it.member()
        told = of(await one.fetch(7), 7)
        assert told is not None
        (refused,) = (await one.acknowledge(1, [said(0, 0, ACCEPT)])).responses[0].partitions
        for each in (told, refused):
            assert each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (each.current_leader.leader_id, each.current_leader.leader_epoch) == (-1, -1)


@on_a_loop
async def test_an_invalid_acknowledgement_is_refused(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        wrong = [[(5, 4, [1])], [(0, 3, [1, 1])], [(0, 3, [5])], [(0, 3, [-1])], [(0, 10, [1])]]
        wrong += [[(4, 5, [1]), (0, 3, [1])], [(0, 3, [])]]
        for each in wrong:
            assert await one.say(*each) == ErrorCode.INVALID_REQUEST, each
        assert await it.member().say(said(0, 0, ACCEPT)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await one.say(said(0, 9, ACCEPT)) == 0


@on_a_loop
async def test_acknowledgements_of_a_partition_that_was_never_fetched_are_refused(
    path: Path,
) -> None:
    async with world(path) as it:
        one = it.member()
        await one.fetch(0)
        response = await one.acknowledge(1, [said(0, 0, ACCEPT)])
        (told,) = response.responses[0].partitions
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- the start of a group, and its changes -------------------------------------------------------


@on_a_loop
async def test_a_group_starts_at_the_end_by_default(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member(group="others")
        assert acquired(await one.fetch(0)) == []
        it.produce(2)
        assert acquired(await one.fetch()) == [(10, 11, 1)]


@on_a_loop
async def test_a_group_begins_so_long_ago(path: Path) -> None:
    async with world(path) as it:
        await it.set_group({"share.auto.offset.reset": "by_duration:PT1H"})
        it.produce(10)
        it.clock.advance(3_600_001)
        it.produce(5)
        assert acquired(await it.member().fetch(0)) == [(10, 14, 1)]


@on_a_loop
async def test_a_group_starts_at_the_end_if_no_record_is_recent_enough(path: Path) -> None:
    async with world(path) as it:
        await it.set_group({"share.auto.offset.reset": "by_duration:PT1H"})
        it.produce(10)
        it.clock.advance(3_600_001)
        one = it.member()
        assert acquired(await one.fetch(0)) == []
        it.produce(5)
        assert acquired(await one.fetch()) == [(10, 14, 1)]


@on_a_loop
async def test_deleted_records_delay_no_later_ones(path: Path) -> None:
    async with world(path) as it:
        it.produce(10, 10)
        one = it.member()
        await one.fetch(0, records=5)
        it.node.partitions.get(TOPIC, 0).log.delete_records(15)
        assert acquired(await one.fetch()) == [(15, 19, 1)]
        assert await one.say(said(0, 9, ACCEPT)) == 0


@on_a_loop
async def test_deleting_the_state_topic_forgets_all_states(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        delete_topic(it.node, "__share_group_state")
        await turns()
        assert len(it.node.shares._live) == 0
        one.epoch = 0
        assert acquired(await one.fetch(0)) == [(0, 9, 1)]


@on_a_loop
async def test_the_state_of_a_topic_is_removed_with_it(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        one = it.member()
        await one.fetch(0)
        await one.say(said(0, 4, ACCEPT))
        assert len(share_states(it.node, GROUP)) == 1
        delete_topic(it.node, TOPIC)
        assert share_states(it.node, GROUP) == []
        it.node.log_dir.create_topic(TOPIC, partitions=3)


def fail_reads(call: str, path: str) -> None:
    """Hook of a disk that can no longer read the topic."""
    if call in {"pread", "map", "open"} and "/jobs-" in path:
        raise OSError(errno.EIO, "the disk fails", path)


@on_a_loop
async def test_a_group_does_not_begin_if_a_failing_disk_prevents_the_lookup_of_its_start(
    path: Path,
) -> None:
    disk = HookedDisk()
    async with world(path, files=disk) as it:
        it.produce(10)
        partition = it.node.partitions.get(TOPIC, 0)
        partition.log.roll()
        await partition.flushed()
        await it.set_group({"share.auto.offset.reset": "by_duration:PT1H"})
        disk.hook = fail_reads
        one = it.member()
        data = of(await one.fetch(0))
        assert data is not None
        assert data.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        disk.hook = lambda _call, _path: None
        assert acquired(await one.fetch(0)) == [(0, 9, 1)]


@on_a_loop
async def test_records_that_a_failing_disk_cannot_read_are_not_counted_as_delivered(
    path: Path,
) -> None:
    disk = HookedDisk()
    async with world(path, files=disk) as it:
        it.produce(10)
        one = it.member()
        assert acquired(await one.fetch(0, records=1)) != []
        it.produce(5)
        disk.hook = fail_reads
        data = of(await one.fetch(0))
        assert data is not None
        assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        disk.hook = lambda _call, _path: None
        assert acquired(await one.fetch(0)) == [(10, 14, 1)]
