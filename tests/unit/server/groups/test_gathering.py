"""In a loop iteration, the first group record is written at once, later records in batches."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.worlds.brokers.groups import World

from tidelog.error_codes import ErrorCode
from tidelog.server.coordinator.state_topic import (
    GATHERED_BYTES_MAX,
    GATHERED_REPLIES_MAX,
    KeyValue,
)
from tidelog.server.runtime.reply import Reply
from tidelog.types import OFFSETS_TOPIC

PRODUCER = (7, 0)


class Log:
    """An offsets topic with two partitions; tests append records as groups do."""

    def __init__(self, **settings: str) -> None:
        self.world = World(1, offsets_topic_num_partitions="2", **settings)
        self.shards = self.world.node.groups.topic
        named = {self.shards.number_of(name): name for name in map(str, range(20))}
        self.groups = [named[0], named[1]]

    def append(self, number: int, key: str, size: int = 0) -> Reply[ErrorCode]:
        """Append one record for a group of partition `number`."""
        return self.shards.append(self.groups[number], [KeyValue(key.encode(), bytes(size))])

    def batches(self, number: int) -> list[list[bytes | None]]:
        """Return the keys of each batch."""
        log = self.world.node.partitions.get(OFFSETS_TOPIC, number).log
        found = [batch for part in log.slices() for _, batch in part.batches()]
        return [[record.key for record in batch.records()] for batch in found]


def on_a_loop(test: Callable[[Log], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        log = Log()

        async def whole() -> None:
            await test(log)

        asyncio.run(whole())

    return run


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@on_a_loop
async def test_the_first_record_of_a_loop_iteration_is_written_at_once(log: Log) -> None:
    assert log.append(0, "a").value is ErrorCode.NONE
    assert log.append(1, "b").value is ErrorCode.NONE
    await turn()
    assert log.append(0, "c").value is ErrorCode.NONE
    assert (log.batches(0), log.batches(1)) == ([[b"a"], [b"c"]], [[b"b"]])


@on_a_loop
async def test_later_records_are_written_at_the_end_of_the_iteration(log: Log) -> None:
    log.append(0, "a")
    replies = [log.append(0, key) for key in "bcd"]
    settled = log.shards.settled(log.groups[0])
    assert log.shards.settled(log.groups[1]).value is ErrorCode.NONE
    assert log.batches(0) == [[b"a"]]
    assert not any(each.is_done for each in (*replies, settled))
    assert [await each for each in (*replies, settled)] == [ErrorCode.NONE] * 4
    assert log.batches(0) == [[b"a"], [b"b", b"c", b"d"]]
    assert log.shards.settled(log.groups[0]).value is ErrorCode.NONE


@on_a_loop
async def test_a_separate_write_follows_the_gathered_records(log: Log) -> None:
    log.append(0, "a")
    reply = log.append(0, "b")
    group = log.groups[0]
    guard = log.shards.guard(group, PRODUCER, raises_epochs=False).guard
    record = KeyValue(b"of a transaction", b"")
    pending = log.shards.append_pending(group, [record], PRODUCER, guard)
    assert (reply.value, pending.value) == (ErrorCode.NONE, ErrorCode.NONE)
    assert log.batches(0) == [[b"a"], [b"b"], [b"of a transaction"]]


@on_a_loop
async def test_a_batch_has_a_bound(log: Log) -> None:
    size = GATHERED_BYTES_MAX // 2
    replies = [log.append(0, key, size) for key in "abc"]
    large = log.append(0, "d", GATHERED_BYTES_MAX)
    assert [each.value for each in (*replies, large)] == [ErrorCode.NONE] * 4
    assert log.batches(0) == [[b"a"], [b"b"], [b"c"], [b"d"]]


@on_a_loop
async def test_a_number_of_responses_is_sent_before_the_end_of_the_loop_iteration(log: Log) -> None:
    keys = [f"{number}" for number in range(GATHERED_REPLIES_MAX + 2)]
    replies = [log.append(0, key) for key in keys]
    assert [each.is_done for each in replies] == [True] * (len(keys) - 1) + [False]
    first, *gathered = (key.encode() for key in keys[:-1])
    assert log.batches(0) == [[first], gathered]
    assert await replies[-1] is ErrorCode.NONE


def test_responses_wait_until_their_batch_is_durable() -> None:
    log = Log(tidelog_durability="fsync")
    log.world.hold_syncs()

    async def story() -> None:
        replies = [log.append(0, key) for key in "abc"]
        await turn()
        assert log.batches(0) == [[b"a"], [b"b", b"c"]]
        assert not any(each.is_done for each in replies)
        log.world.sync()
        assert [each.value for each in replies] == [ErrorCode.NONE] * 3
        replies = [log.append(0, key) for key in "abc"]
        await turn()
        log.world.break_disk()
        log.world.sync()
        assert [each.value for each in replies] == [ErrorCode.NOT_COORDINATOR] * 3
        assert log.shards.error_for(log.groups[0]) is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


@on_a_loop
async def test_a_partition_whose_gathered_records_are_refused_is_loaded_again(log: Log) -> None:
    log.append(0, "a")
    reply = log.append(0, "b")
    log.world.refuse_records()
    assert await reply is ErrorCode.NOT_COORDINATOR
    assert log.shards.error_for(log.groups[0]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert log.shards.error_for(log.groups[1]) is ErrorCode.NONE


@on_a_loop
async def test_a_failed_log_refuses_records_at_once(log: Log) -> None:
    log.append(0, "a")
    log.world.break_disk()
    assert log.append(0, "large", GATHERED_BYTES_MAX).value is ErrorCode.NOT_COORDINATOR
    assert log.append(0, "b").value is ErrorCode.NOT_COORDINATOR
    assert log.batches(0) == [[b"a"]]


def test_without_a_loop_everything_is_written_at_once() -> None:
    log = Log()
    assert [log.append(0, key).value for key in "ab"] == [ErrorCode.NONE] * 2
    assert log.batches(0) == [[b"a"], [b"b"]]


@on_a_loop
async def test_a_record_appended_from_the_callback_of_a_full_batch_is_written(log: Log) -> None:
    again: list[Reply[ErrorCode]] = []
    log.append(0, "first")
    told = log.append(0, "told")
    told.then(lambda _: again.append(log.append(0, "again")))
    others = [log.append(0, "other") for _ in range(GATHERED_REPLIES_MAX)]
    assert await others[-1] is ErrorCode.NONE
    assert [each.is_done for each in again] == [True]
    assert log.batches(0)[-1] == [b"again", b"other"]
