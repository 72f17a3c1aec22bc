"""Produce requests for many partitions are processed in slices, with other work between them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest
from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.clocks import BusyClock

from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.record.builder import build_batch
from tidelog.record.header import ATTRIBUTES_AT, seal
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.produce import GROUP_PARTITIONS, SLICE_MS, produce
from tidelog.server.runtime.errors import UnansweredRequest
from tidelog.server.runtime.reply import start
from tidelog.types import Codec, NewRecord

COUNT = 45
BY_NAME, BY_ID = 12, 13
UNKNOWN, UNKNOWN_ID, UNSUPPORTED_COMPRESSION, INVALID_RECORD = 3, 100, 76, 87
CODEC_OF_NOBODY = 7
BEFORE_ZSTD = 3
BATCH = bytes(build_batch([NewRecord(value=b"v")]))
LARGER = bytes(build_batch([NewRecord(value=b"v")] * 3))


def make_topic(node: Node) -> None:
    node.log_dir.create_topic("t", partitions=COUNT)
    for number in range(COUNT):
        node.partitions.get("t", number)


def busy_clock() -> BusyClock:
    """Return a clock that advances by half the time of a slice at each read."""
    return BusyClock(1_700_000_000_000, SLICE_MS // 2)


# A broker with a topic whose partitions are all open.
node = node_fixture(clock=busy_clock, prepare=make_topic)


def request(
    numbers: Sequence[int] = range(COUNT), *, acks: int = 1, node: Node | None = None
) -> ProduceRequest:
    """Return a request with one batch per partition, and with the topic's id if `node` is given."""
    data = [
        PartitionProduceData(index=each, records=memoryview(bytearray(BATCH))) for each in numbers
    ]
    info = None if node is None else node.topics.find("t")
    topic = TopicProduceData(
        name="t" if info is None else "",
        topic_id=NO_UUID if info is None else info.topic_id or NO_UUID,
        partition_data=data,
    )
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=90_000, topic_data=[topic])


Answer: TypeAlias = "ProduceResponse | Awaitable[ProduceResponse | None] | None"


def ask(node: Node, asked: ProduceRequest, version: int = BY_NAME) -> Answer:
    context = RequestContext(node, PRODUCE, version, "t", ClientInfo(1, "t"))
    return start(produce(context, asked))


async def codes(
    said: Answer,
) -> list[tuple[int, int]]:
    """Return the index and the error code of each partition, in the order of the response."""
    answer = await said if isinstance(said, Awaitable) else said
    assert isinstance(answer, ProduceResponse)
    (topic,) = answer.responses
    return [(each.index, each.error_code) for each in topic.partition_responses]


def ends(node: Node) -> list[int]:
    return [node.partitions.get("t", number).log.log_end_offset for number in range(COUNT)]


def test_others_have_their_turn_between_slices(node: Node) -> None:
    async def story() -> int:
        said = ask(node, request())
        assert isinstance(said, Awaitable)
        turns, task = 0, asyncio.ensure_future(codes(said))
        while not task.done():
            assert sum(ends(node)) <= (turns + 1) * GROUP_PARTITIONS
            turns += 1
            assert turns < 100 * COUNT
            await asyncio.sleep(0)
        assert await task == [(number, 0) for number in range(COUNT)]
        return turns

    assert asyncio.run(story()) >= COUNT // GROUP_PARTITIONS
    assert ends(node) == [1] * COUNT


def test_a_request_of_one_slice_gets_a_response_at_once(node: Node) -> None:
    for numbers in (range(1), range(SLICE_MS // 2)):
        assert isinstance(ask(node, request(numbers)), ProduceResponse)


def test_slices_wait_for_a_hold_that_begins_between_them(node: Node) -> None:
    async def story() -> list[tuple[int, int]]:
        said = ask(node, request())
        before = ends(node)
        async with AsyncExitStack() as held:
            await held.enter_async_context(node.partitions.holds.hold(["t"], stops_appends=True))
            task = asyncio.ensure_future(codes(said))
            for _ in range(COUNT):
                await asyncio.sleep(0)
            assert ends(node) == before
        return await task

    assert asyncio.run(story()) == [(number, 0) for number in range(COUNT)]
    assert ends(node) == [1] * COUNT


@pytest.mark.parametrize("numbers", [range(1), range(2)])
@pytest.mark.parametrize(
    ("version", "code"),
    [(3, UNSUPPORTED_COMPRESSION), (6, UNSUPPORTED_COMPRESSION), (7, 0), (BY_NAME, 0)],
)
def test_zstd_needs_a_version_that_knows_it(
    node: Node, numbers: Sequence[int], version: int, code: int
) -> None:
    """Before Produce version 7, consumers may be as old as the producer and not know zstd."""
    asked = request(numbers)
    for each in asked.topic_data[0].partition_data:
        records = [NewRecord(value=b"v" * 99)]
        each.records = memoryview(build_batch(records, codec=Codec.ZSTD))
    found = asyncio.run(codes(ask(node, asked, version)))
    assert found == [(number, code) for number in numbers]
    assert sum(ends(node)) == (0 if code else len(numbers))


@pytest.mark.parametrize(("version", "code"), [(BY_NAME, UNKNOWN), (BY_ID, UNKNOWN_ID)])
def test_a_topic_that_is_deleted_between_slices(node: Node, version: int, code: int) -> None:
    async def story() -> tuple[int, list[tuple[int, int]]]:
        said = ask(node, request(node=node if version == BY_ID else None), version)
        done = sum(ends(node))
        delete_topic(node, "t")
        return done, await codes(said)

    done, found = asyncio.run(story())
    assert 0 < done < COUNT
    assert found == [(number, 0 if number < done else code) for number in range(COUNT)]


def test_records_for_an_id_are_never_written_to_a_later_topic_of_the_name(node: Node) -> None:
    async def story() -> list[int]:
        said = ask(node, request(node=node), BY_ID)
        delete_topic(node, "t")
        make_topic(node)
        return [code for _, code in await codes(said)]

    found = asyncio.run(story())
    assert set(found) == {0, UNKNOWN_ID}
    assert ends(node) == [0] * COUNT


@pytest.mark.parametrize("version", [BY_ID - 1, BY_ID])
def test_a_refusal_without_acknowledgement_is_known_at_the_end(node: Node, version: int) -> None:
    async def story() -> None:
        by_id = node if version == BY_ID else None
        said = ask(node, request([*range(COUNT), COUNT], acks=0, node=by_id), version)
        assert isinstance(said, Awaitable)
        with pytest.raises(UnansweredRequest, match=f"t-{COUNT}: error {UNKNOWN}"):
            await said

    asyncio.run(story())
    assert ends(node) == [1] * COUNT


def test_a_partition_that_is_named_twice_gets_the_last_records(node: Node) -> None:
    asked = request([0, 1, 0])
    asked.topic_data[0].partition_data[2].records = bytearray(LARGER)
    assert asyncio.run(_both(node, asked)) == [(0, 0), (1, 0)]
    assert ends(node)[:2] == [3, 1]


async def _both(node: Node, asked: ProduceRequest) -> list[tuple[int, int]]:
    return await codes(ask(node, asked))


@pytest.mark.parametrize(
    ("refused", "chosen"), [((), 2), ((0,), 0), ((1,), 1), ((0, 1), 1), ((2,), 2), ((0, 2), 2)]
)
def test_a_refused_batch_outweighs_others_of_the_same_partition(
    node: Node, refused: tuple[int, ...], chosen: int
) -> None:
    asked = request([5, 5, 5])
    for number, data in enumerate(asked.topic_data[0].partition_data):
        made = build_batch([NewRecord(value=b"v")] * (number + 1))
        if number in refused:
            made[ATTRIBUTES_AT + 1] = CODEC_OF_NOBODY
            seal(made, 0)
        data.records = made
    said = asyncio.run(codes_in(node, asked, BEFORE_ZSTD))
    assert said == [(5, UNSUPPORTED_COMPRESSION if chosen in refused else 0)]
    assert ends(node)[5] == (0 if chosen in refused else chosen + 1)


async def codes_in(node: Node, asked: ProduceRequest, version: int) -> list[tuple[int, int]]:
    return await codes(ask(node, asked, version))


LARGE = bytes(build_batch([NewRecord(value=bytes(5 << 20))]))
ROOM = {"max.message.bytes": str(8 << 20)}


def large_request(node: Node, version: int) -> ProduceRequest:
    """Return a request with records that a thread validates."""
    asked = request([0], node=node if version == BY_ID else None)
    asked.topic_data[0].partition_data[0].records = memoryview(bytearray(LARGE))
    return asked


async def when_checked(
    node: Node, version: int, change: Callable[[], object], config: Mapping[str, str] = ROOM
) -> int:
    """Change a new topic while a thread validates records for it; return the error code."""
    delete_topic(node, "t")
    node.log_dir.create_topic("t", partitions=1, config=config)
    node.partitions.get("t", 0)  # opens the partition, so that only the validation is awaited
    said = ask(node, large_request(node, version), version)
    assert isinstance(said, Awaitable)
    task = asyncio.ensure_future(said)
    await asyncio.sleep(0)  # the task now waits for the thread
    assert not task.done()
    change()
    ((_, code),) = await codes(task)
    return code


@pytest.mark.parametrize(("version", "code", "end"), [(BY_NAME, 0, 1), (BY_ID, UNKNOWN_ID, 0)])
def test_records_validated_by_a_thread_are_written_to_no_other_topic(
    node: Node, version: int, code: int, end: int
) -> None:
    """If the topic was recreated meanwhile, a request with the deleted topic's id fails."""

    def make_anew() -> None:
        delete_topic(node, "t")
        node.log_dir.create_topic("t", partitions=1, config=ROOM)

    assert asyncio.run(when_checked(node, version, make_anew)) == code
    assert node.partitions.get("t", 0).log.log_end_offset == end


def test_a_second_check_sees_the_records_as_they_came(node: Node) -> None:
    """Validation sets the flag LogAppendTime in a batch, but refuses batches with this flag.

    So a repeated validation needs the batches as the client sent them.
    """
    stamped = {**ROOM, "message.timestamp.type": "LogAppendTime"}

    def change() -> None:
        node.log_dir.alter_config("t", {"retention.ms": "1000"})

    assert asyncio.run(when_checked(node, BY_NAME, change, stamped)) == 0
    assert node.partitions.get("t", 0).log.log_end_offset == 1


def test_records_validated_by_a_thread_are_validated_again_after_new_settings(node: Node) -> None:
    def compact() -> None:
        node.log_dir.alter_config("t", {"cleanup.policy": "compact"})

    assert asyncio.run(when_checked(node, BY_NAME, compact)) == INVALID_RECORD
    assert node.partitions.get("t", 0).log.log_end_offset == 0
