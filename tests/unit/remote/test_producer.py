"""Appends to a cluster: results of a call, its first error, reports without an offset."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import confluent_kafka
import pytest
from tests.worlds.waiting import PATIENCE_S, until_so

from tidelog.env import ManualClock
from tidelog.errors import Closed, ClusterFailure, InvalidRecord, InvalidTimestamp, MessageTooLarge
from tidelog.remote import producer
from tidelog.remote.cluster import Cluster, connect
from tidelog.remote.producer import (
    LANES_MAX,
    RECORD_BYTES,
    OnDelivery,
    Results,
    Row,
    Sender,
)
from tidelog.types import Codec


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery report as the client library passes it."""

    where: int
    at: int | None
    kind: int = 1
    ms: int = 5

    def partition(self) -> int:
        return self.where

    def offset(self) -> int | None:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.ms


@dataclass(slots=True)
class FakeProducer:
    """Accepts records, and delivers them at the given offsets in the next poll.

    While `codes` is not empty, the records fail with these codes instead. The first `refusals`
    records are refused, as if the queue were full for a moment. As in librdkafka, the length of the
    queue includes each record until the callback with its report has returned, and a poll within
    such a callback delivers no record of the outer poll.
    """

    offsets: dict[int, list[int | None]]
    kind: int = 1
    room: int = 1000
    refusals: int = 0
    codes: list[int] = field(default_factory=list)
    waiting: list[tuple[int, OnDelivery]] = field(default_factory=list)
    reporting: list[int] = field(default_factory=list)
    max_bytes: int = RECORD_BYTES
    polls: threading.Lock = field(default_factory=threading.Lock)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        hear: OnDelivery,
        *_: object,
    ) -> None:
        if value is not None and len(value) > self.max_bytes:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(TOO_LARGE))
        if self.refusals or len(self) >= self.room:
            self.refusals = max(self.refusals - 1, 0)
            raise BufferError
        self.waiting.append((partition, hear))

    def poll(self, _timeout_s: float) -> int:
        with self.polls:
            count = len(self.waiting)
            self.reporting.extend(partition for partition, _ in self.waiting[:count])
            reported = [self.waiting.pop(0) for _ in range(count)]
        for partition, hear in reported:
            if self.codes:
                error = confluent_kafka.KafkaError(self.codes.pop(0))
                hear(error, Message(partition, None))  # type: ignore[arg-type] # a stand-in
            else:
                hear(None, Message(partition, self.offsets[partition].pop(0), self.kind))  # type: ignore[arg-type] # a stand-in
            self.reporting.pop()
        return 0

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return len(self)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.reporting)


@dataclass(slots=True)
class Library:
    """The client library, which has one producer."""

    fake: FakeProducer
    cluster: Cluster
    given: list[Mapping[str, object]] = field(default_factory=list)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Deliver no record until the end of the block."""
        with self.fake.polls:
            yield

    def make(self, settings: Mapping[str, object], **_: object) -> FakeProducer:
        self.given.append(settings)
        limit = settings.get("message.max.bytes")
        if isinstance(limit, int):
            self.fake.max_bytes = limit
        return self.fake


def row(partition: int, time_ms: int = 7, size: int = 1) -> Row:
    return (partition, None, b"x" * size, time_ms, None)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Library:
    cluster = connect("nowhere:9092", timeout_s=1, clock=ManualClock(0))
    found = Library(FakeProducer({0: [4, 5, 9], 1: [7]}), cluster)
    monkeypatch.setattr(confluent_kafka, "Producer", found.make)
    return found


@pytest.fixture
def sender(client: Library) -> Iterator[Sender]:
    found = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    yield found
    found.close()


def test_a_record_that_the_client_refuses_is_named(sender: Sender, client: Library) -> None:
    rows = [row(0), row(1), row(0, time_ms=0), row(0)]
    with pytest.raises(InvalidTimestamp, match=r"flights-0: record 2: a record whose") as caught:
        sender.send("flights", rows, None).result(PATIENCE_S)
    assert [one.index for one in caught.value.record_errors] == [2]


def test_an_error_because_of_another_record_does_not_hide_the_cause(
    sender: Sender, client: Library
) -> None:
    """The other records of a refused batch have an error of their own."""
    client.fake.codes = [-138, -138, 87, -138]
    with pytest.raises(InvalidRecord, match="flights-0: INVALID_RECORD"):
        sender.send("flights", [row(0)] * 4, None).result(PATIENCE_S)


def test_the_advice_for_a_large_record_names_only_settings_that_are_not_followed(
    sender: Sender, client: Library
) -> None:
    """The producer's limit is taken from the topic's limit, so the user need not change it."""
    client.fake.codes = [10]
    with pytest.raises(MessageTooLarge, match=r"raise the topic's max\.message\.bytes") as caught:
        sender.send("flights", [row(0)], None).result(PATIENCE_S)
    assert "message.max.bytes" not in str(caught.value)


def test_the_result_has_first_and_last_offset(sender: Sender, client: Library) -> None:
    answer = sender.send("flights", [row(0), row(1), row(0), row(0)], None).result(PATIENCE_S)
    assert {n: (a.base_offset, a.last_offset) for n, a in answer.items()} == {0: (4, 9), 1: (7, 7)}
    assert {a.append_time_ms for a in answer.values()} == {-1}
    # the offsets 6 to 8 of partition 0 have records of other producers
    assert {n: a.record_count for n, a in answer.items()} == {0: 3, 1: 1}
    assert client.given[0]["compression.type"] == "lz4"
    assert client.given[0]["enable.idempotence"] is True


def test_stamps_of_brokers_are_append_times(sender: Sender, client: Library) -> None:
    client.fake.kind = 2
    (answer,) = sender.send("flights", [row(1)], Codec.NONE).result(PATIENCE_S).values()
    assert (answer.append_time_ms, answer.log_append_time_ms) == (5, 5)
    assert client.given[0]["compression.type"] == "none"


def test_a_delivery_without_an_offset_is_no_proof(sender: Sender, client: Library) -> None:
    client.fake.offsets[0][1] = None
    with pytest.raises(ClusterFailure, match="returned no offset for a retried record") as caught:
        sender.send("flights", [row(0), row(0), row(0)], None).result(PATIENCE_S)
    assert caught.value.__notes__ == [
        "despite this error, 2 records of the call were appended to the log: indexes 0, 2"
    ]


def test_an_error_names_a_limited_number_of_appended_records(
    sender: Sender, client: Library
) -> None:
    client.fake.offsets[0] = [at // 3 if at % 3 else None for at in range(99)][::-1]
    with pytest.raises(ClusterFailure) as caught:
        sender.send("flights", [row(0)] * 99, None).result(PATIENCE_S)
    (note,) = caught.value.__notes__
    assert ": indexes 0-1, 3-4, 6-7," in note
    assert note.endswith("54-55, 57-58, ...")


def test_a_refused_record_ends_the_call(sender: Sender, client: Library) -> None:
    sent = sender.send("flights", [row(0), row(0, time_ms=0), row(0)], None)
    with pytest.raises(InvalidTimestamp, match="flights-0"):
        sent.result(PATIENCE_S)
    assert client.fake.offsets[0] == [5, 9]


def test_a_full_queue_is_waited_for(sender: Sender, client: Library) -> None:
    client.fake.room = 1
    answer = sender.send("flights", [row(0), row(0), row(0)], None).result(PATIENCE_S)
    assert answer[0].last_offset == 9
    client.fake.room = 0
    with pytest.raises(MessageTooLarge, match=r"queue\.buffering\.max\.kbytes"):
        sender.send("flights", [row(1)], None).result(PATIENCE_S)


def test_a_queue_that_was_full_may_be_empty_at_the_next_attempt(
    sender: Sender, client: Library
) -> None:
    client.fake.refusals = 1
    assert sender.send("flights", [row(1)], None).result(PATIENCE_S)[1].base_offset == 7


def test_failing_rows_leave_no_open_call(sender: Sender) -> None:
    def rows() -> Iterator[Row]:
        yield row(0)
        raise KeyError("whoever makes the records")

    with pytest.raises(KeyError):
        sender.send("flights", rows(), None)
    sender.flush()
    answer = sender.send("flights", [row(1)], None).result(PATIENCE_S)
    assert answer[1].base_offset == 7


def test_a_closed_writer_sends_no_record(client: Library) -> None:
    sender = Sender(client.cluster, "none", lambda _topic: RECORD_BYTES)
    sender.send("flights", [row(1)], None)
    sender.close()
    sender.close()
    assert not client.fake.waiting
    with pytest.raises(Closed):
        sender.send("flights", [row(0)], None)


# librdkafka's error code after which a producer can't be used again.
FATAL: Final = -150

# Error code of a record above the producer's limit.
TOO_LARGE: Final = 10


def lane_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "tidelog-append"]


def test_producers_for_many_batch_sizes_do_not_accumulate(
    client: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each producer gets its own stand-in: a producer with undelivered records is not closed."""
    made: list[FakeProducer] = []

    def make(*_: object, **__: object) -> FakeProducer:
        made.append(FakeProducer({0: [1, 2]}))
        return made[-1]

    monkeypatch.setattr(confluent_kafka, "Producer", make)
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    before = len(lane_threads())
    for size in range(1, 2 * LANES_MAX + 1):
        sender.send("flights", [row(0)], None, size).result(PATIENCE_S)
        assert len(lane_threads()) - before <= LANES_MAX + 1
    sender.send("flights", [row(0)], None, 2 * LANES_MAX).result(PATIENCE_S)
    assert len(made) == 2 * LANES_MAX, "a recently used producer was closed"
    sender.send("flights", [row(0)], None, 1).result(PATIENCE_S)
    assert len(made) == 2 * LANES_MAX + 1
    sender.close()
    assert len(lane_threads()) == before


def test_a_callback_of_a_delivery_may_append_with_further_batch_sizes(
    sender: Sender, client: Library
) -> None:
    client.fake.offsets[0] = list(range(LANES_MAX + 2))
    later, have_appended = list[Future[Results]](), threading.Event()

    def append_more(_: Future[Results]) -> None:
        later.extend(sender.send("flights", [row(0)], None, 2 + n) for n in range(LANES_MAX + 1))
        have_appended.set()

    sender.send("flights", [row(0)], None, 1).add_done_callback(append_more)
    assert have_appended.wait(PATIENCE_S)
    offsets = sorted(each.result(PATIENCE_S)[0].base_offset for each in later)
    assert offsets == [*range(1, LANES_MAX + 2)]


def test_a_callback_of_a_fatal_error_may_append_again(
    client: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [FakeProducer({}, codes=[FATAL]), FakeProducer({0: [4, 5]})]
    remaining = iter(made)
    monkeypatch.setattr(confluent_kafka, "Producer", lambda *_, **__: next(remaining))
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    before = len(lane_threads())
    later, has_appended = list[Future[Results]](), threading.Event()

    def append_again(_: Future[Results]) -> None:
        later.append(sender.send("flights", [row(0)], None))
        has_appended.set()

    sender.send("flights", [row(0)], None).add_done_callback(append_again)
    assert has_appended.wait(PATIENCE_S)
    assert later[0].result(PATIENCE_S)[0].base_offset == 4
    until_so(lambda: not len(made[0]), "the first producer has handled its report")
    sender.send("flights", [row(0)], None).result(PATIENCE_S)
    assert len(lane_threads()) == before + 1, "the broken producer is still open"
    sender.close()
    assert len(lane_threads()) == before


def test_a_callback_may_append_a_record_above_the_producers_limit(client: Library) -> None:
    """The poll that runs the callback also has a second record, whose report comes afterwards."""
    client.fake.offsets[0] = [0, 1, 2]
    sender = Sender(client.cluster, "lz4", lambda _topic: 2 * RECORD_BYTES)
    later, has_appended = list[Future[Results]](), threading.Event()

    def append_large(_: Future[Results]) -> None:
        later.append(sender.send("flights", [row(0, size=RECORD_BYTES + 1)], None))
        has_appended.set()

    with client.holding():
        sender.send("flights", [row(0)], None).add_done_callback(append_large)
        second = sender.send("flights", [row(0)], None)
    assert has_appended.wait(PATIENCE_S)
    assert second.result(PATIENCE_S)[0].base_offset == 1
    assert later[0].result(PATIENCE_S)[0].base_offset == 2
    sender.close()


def test_a_callback_may_append_more_records_than_the_queue_has_room_for(client: Library) -> None:
    client.fake.offsets[0] = list(range(8))
    client.fake.room = 3
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    later, has_appended = list[Future[Results]](), threading.Event()

    def append_more(_: Future[Results]) -> None:
        later.append(sender.send("flights", [row(0)] * 5, None))
        has_appended.set()

    with client.holding():
        sender.send("flights", [row(0)], None).add_done_callback(append_more)
        sender.send("flights", [row(0)] * 2, None)
    assert has_appended.wait(PATIENCE_S)
    assert later[0].result(PATIENCE_S)[0].last_offset == 7
    sender.close()


def test_a_callback_may_flush_wait_and_close(client: Library) -> None:
    client.fake.offsets[0] = [0, 1]
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    offsets, is_closed = list[int](), threading.Event()

    def append_more(_: Future[Results]) -> None:
        sender.flush()
        offsets.append(sender.send("flights", [row(0)], None).result(PATIENCE_S)[0].base_offset)
        sender.close()
        is_closed.set()

    before = len(lane_threads())
    with client.holding():
        sender.send("flights", [row(0)], None).add_done_callback(append_more)
    assert is_closed.wait(PATIENCE_S)
    assert offsets == [1]
    assert len(lane_threads()) == before
    sender.flush()
    sender.close()


def test_callbacks_have_run_after_a_flush_and_after_a_close(client: Library) -> None:
    client.fake.offsets[0] = [0, 1]
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    offsets = list[int]()

    def note(future: Future[Results]) -> None:
        offsets.append(future.result()[0].base_offset)

    for wait in (sender.flush, sender.close):
        with client.holding():
            sender.send("flights", [row(0)], None).add_done_callback(note)
        wait()
    assert offsets == [0, 1]


def test_a_callback_that_fails_leaves_later_callbacks(
    sender: Sender, client: Library, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(future: Future[Results]) -> None:
        raise KeyError("first") if future.result()[0].base_offset == 4 else SystemExit

    offsets = list[int]()
    with client.holding():
        for _ in range(3):
            future = sender.send("flights", [row(0)], None)
            future.add_done_callback(fail)
            future.add_done_callback(lambda done: offsets.append(done.result()[0].base_offset))
    sender.flush()
    assert offsets == [4, 5, 9]
    assert "exception calling callback" in caplog.text


def test_calls_wait_while_too_many_callbacks_wait(
    client: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If calls did not wait, callbacks that are slower than deliveries would fill the memory."""
    monkeypatch.setattr(producer, "CALLBACKS_MAX", 2)
    client.fake.offsets[0] = list(range(8))
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)
    is_begun, may_end = threading.Event(), threading.Event()
    offsets = list[int]()

    def block(_: Future[Results]) -> None:
        is_begun.set()
        assert may_end.wait(PATIENCE_S)
        more = [sender.send("flights", [row(0)], None) for _ in range(3)]  # does not wait
        more[-1].result(PATIENCE_S)

    with client.holding():
        sender.send("flights", [row(0)], None).add_done_callback(block)
    assert is_begun.wait(PATIENCE_S)
    with client.holding():
        futures = [sender.send("flights", [row(0)], None) for _ in range(2)]
        for future in futures:
            future.add_done_callback(lambda done: offsets.append(done.result()[0].base_offset))
    until_so(lambda: not len(client.fake), "both reports have been handled")
    results = list[Results]()
    last = threading.Thread(
        target=lambda: results.append(sender.send("flights", [row(0)], None).result(PATIENCE_S))
    )
    last.start()
    last.join(0.3)
    assert last.is_alive()
    may_end.set()
    last.join(PATIENCE_S)
    assert len(results) == 1
    sender.close()
    assert offsets == [1, 2]


def test_a_refused_callback_thread_is_an_error_of_the_caller(
    sender: Sender, client: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No callback is lost, and later callbacks run."""
    offsets = list[int]()

    def note(future: Future[Results]) -> None:
        offsets.append(future.result()[0].base_offset)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with client.holding():
        future = sender.send("flights", [row(0)], None)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                future.add_done_callback(note)
        future.add_done_callback(note)
    sender.flush()
    assert offsets == [4]


def test_a_call_that_a_close_interrupts_ends_with_an_error(client: Library) -> None:
    client.fake.offsets[0] = [0, 1]
    sender = Sender(client.cluster, "lz4", lambda _topic: RECORD_BYTES)

    def rows() -> Iterator[Row]:
        yield row(0)
        sender.close()
        yield row(0)

    with pytest.raises(Closed) as caught:
        sender.send("flights", rows(), None).result(PATIENCE_S)
    assert caught.value.__notes__ == [
        "despite this error, 1 record of the call was appended to the log: index 0"
    ]


@pytest.mark.parametrize("time_ms", [0, -2, -5, -(2**63)])
def test_times_without_a_meaning_are_refused(sender: Sender, time_ms: int) -> None:
    with pytest.raises(InvalidTimestamp, match="flights-1"):
        sender.send("flights", [row(1, time_ms)], None).result(PATIENCE_S)
    assert sender.send("flights", [row(1, -1)], None).result(PATIENCE_S)[1].base_offset == 7


def test_a_time_that_is_no_number_is_refused(sender: Sender) -> None:
    with pytest.raises(InvalidRecord, match="flights-0"):
        sender.send("flights", [row(0, "2013")], None).result(PATIENCE_S)  # type: ignore[arg-type] # wrong on purpose
