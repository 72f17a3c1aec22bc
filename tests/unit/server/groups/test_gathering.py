"""What groups write in one turn of the loop: the first at once, the rest in one batch behind it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tidelog.server.groups.codes import Code
from tidelog.server.groups.gathering import GATHERED_BYTES_MAX, GATHERED_REPLIES_MAX, Gathering
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.reply import Reply
from tidelog.server.handlers.waiting import arrival


class FakeTopic:
    """A topic in memory.

    Attributes:
        batches: Partition and keys of each batch.
        code: What writes are answered with; None for "not yet".
        is_taken: Whether anything may be written.
        lost: Partitions that were given up.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[bytes]]] = []
        self.code: Code | None = Code.NONE
        self.is_taken = True
        self.lost: list[int] = []
        self.waiting: list[Reply[Code]] = []

    def takes(self, number: int) -> bool:
        return self.is_taken and number not in self.lost

    def lose(self, number: int) -> None:
        self.lost.append(number)

    def write(self, number: int, records: Sequence[GroupRecord]) -> Reply[Code]:
        self.batches.append((number, [each.key for each in records]))
        if self.code is not None:
            return Reply.of(self.code)
        self.waiting.append(Reply())
        return self.waiting[-1]


def record(key: str, size: int = 0) -> list[GroupRecord]:
    return [GroupRecord(key.encode(), bytes(size))]


def on_a_loop(test: Callable[[FakeTopic, Gathering], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def whole() -> None:
            topic = FakeTopic()
            await test(topic, Gathering(topic, topic.write))

        asyncio.run(whole())

    return run


@on_a_loop
async def test_who_is_alone_in_a_turn_is_written_at_once(topic: FakeTopic, log: Gathering) -> None:
    assert log.append(0, record("a")).value is Code.NONE
    assert log.append(1, record("b")).value is Code.NONE
    await asyncio.sleep(0)
    assert log.append(0, record("c")).value is Code.NONE
    assert topic.batches == [(0, [b"a"]), (1, [b"b"]), (0, [b"c"])]


@on_a_loop
async def test_who_comes_behind_is_written_with_the_turns_end(
    topic: FakeTopic, log: Gathering
) -> None:
    log.append(0, record("a"))
    replies = [log.append(0, record(key)) for key in "bcd"]
    settled = log.pending(0)
    assert settled is not None
    assert log.pending(1) is None
    assert topic.batches == [(0, [b"a"])]
    assert not any(each.is_done for each in (*replies, settled))
    assert [await arrival(each) for each in (*replies, settled)] == [Code.NONE] * 4
    assert topic.batches == [(0, [b"a"]), (0, [b"b", b"c", b"d"])]
    assert log.pending(0) is None


@on_a_loop
async def test_what_is_not_gathered_comes_behind_what_is(topic: FakeTopic, log: Gathering) -> None:
    log.append(0, record("a"))
    reply = log.append(0, record("b"))
    log.flush(0)
    assert reply.value is Code.NONE
    assert topic.batches == [(0, [b"a"]), (0, [b"b"])]


@on_a_loop
async def test_a_batch_has_a_bound(topic: FakeTopic, log: Gathering) -> None:
    size = GATHERED_BYTES_MAX // 2
    replies = [log.append(0, record(key, size)) for key in "abc"]
    large = log.append(0, record("d", GATHERED_BYTES_MAX))
    assert [each.value for each in (*replies, large)] == [Code.NONE] * 4
    assert topic.batches == [(0, [key]) for key in (b"a", b"b", b"c", b"d")]


@on_a_loop
async def test_so_many_are_answered_before_the_turn_is_over(
    topic: FakeTopic, log: Gathering
) -> None:
    keys = [f"{number}" for number in range(GATHERED_REPLIES_MAX + 2)]
    replies = [log.append(0, record(key)) for key in keys]
    assert [each.is_done for each in replies] == [True] * (len(keys) - 1) + [False]
    first, *gathered = (key.encode() for key in keys[:-1])
    assert topic.batches == [(0, [first]), (0, gathered)]
    assert await arrival(replies[-1]) is Code.NONE


@on_a_loop
async def test_answers_wait_until_their_batch_is_safe(topic: FakeTopic, log: Gathering) -> None:
    topic.code = None
    replies = [log.append(0, record(key)) for key in "abc"]
    log.flush_all()
    topic.waiting[1].complete(Code.NOT_COORDINATOR)
    assert [each.is_done for each in replies] == [False, True, True]
    assert replies[2].value is Code.NOT_COORDINATOR
    assert not topic.lost  # who writes knows that himself


@on_a_loop
async def test_a_partition_is_lost_whose_gathered_records_are_refused(
    topic: FakeTopic, log: Gathering
) -> None:
    log.append(0, record("a"))
    reply = log.append(0, record("b"))
    topic.code = Code.UNKNOWN_SERVER_ERROR
    assert await arrival(reply) is Code.NOT_COORDINATOR
    assert topic.lost == [0]


@on_a_loop
async def test_what_takes_nothing_is_answered_at_once(topic: FakeTopic, log: Gathering) -> None:
    log.append(0, record("a"))
    topic.is_taken = False
    assert log.append(0, record("b")).value is Code.NOT_COORDINATOR
    assert len(topic.batches) == 1


def test_without_a_loop_everything_is_written_at_once() -> None:
    topic = FakeTopic()
    log = Gathering(topic, topic.write)
    assert [log.append(0, record(key)).value for key in "ab"] == [Code.NONE] * 2
    assert topic.batches == [(0, [b"a"]), (0, [b"b"])]


@on_a_loop
async def test_who_is_told_of_a_full_batch_and_writes_at_once_is_not_forgotten(
    topic: FakeTopic, log: Gathering
) -> None:
    again: list[Reply[Code]] = []
    log.append(0, record("first"))
    told = log.append(0, record("told"))
    told.then(lambda _: again.append(log.append(0, record("again"))))
    others = [log.append(0, record("other")) for _ in range(GATHERED_REPLIES_MAX)]
    assert await arrival(others[-1]) is Code.NONE
    assert [each.is_done for each in again] == [True]
    assert topic.batches[-1] == (0, [b"again", b"other"])
