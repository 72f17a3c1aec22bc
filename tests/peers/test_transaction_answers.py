"""Odd steps of transactions have the same codes and effects with Kafka and our broker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic

import pytest
from tests.peers.test_transactions import (
    Names,
    Said,
    Side,
    described_producers,
    make,
    record,
    sides,
)
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import TIMEOUT_MS, Transacting, committed, until

from tidelog.protocol.messages import DESCRIBE_PRODUCERS, PRODUCE, WRITE_TXN_MARKERS
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.shared import NamedIndexes
from tidelog.protocol.messages.transactions import (
    DescribeProducersRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from tidelog.record.builder import build_batch

pytestmark = pytest.mark.kafka

__all__ = ["sides"]  # the fixture

SHORT_MS = 4000
UNKNOWN_SERVER_ERROR, UNKNOWN = -1, 3
INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING = 47, 49

Steps = Callable[[Side, str], Sequence[object]]


def producer(side: Side, topic: str, *, own_epochs: bool = False) -> Transacting:
    made = Transacting(side.client, f"{topic}-writer", has_own_epochs=own_epochs)
    assert made.init() == 0
    return made


def both(sides: tuple[Side, Side], topic: str, steps: Steps) -> None:
    """Assert that both brokers give the same results."""
    told = []
    for side in sides:
        make(side, topic)
        told.append(list(steps(side, topic)))
    assert told[0] == told[1]


def test_batches_outside_of_any_transaction_get_the_same_codes(sides: tuple[Side, Side]) -> None:
    def steps(side: Side, topic: str) -> list[Said]:
        said: list[Said] = []
        writer = producer(side, topic)
        for version in (9, 11):
            answer = writer.produce(topic, [record(0)], version=version)
            places = (answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)
            said.append((version, answer.error_code, answer.error_message is None, *places))
        stranger = Transacting(side.client, "nobody-knows", producer_id=writer.producer_id, epoch=0)
        for version in (9, 11, 12):
            code = stranger.produce(topic, [record(0)], version=version).error_code
            said.append(("stranger", version, code))
        for pid, epoch in ((writer.producer_id + 1, 0), (writer.producer_id, writer.epoch + 1)):
            other = Transacting(side.client, writer.transactional_id)
            other.producer_id, other.epoch = pid, epoch
            for version in (9, 11, 12):
                code = other.produce(topic, [record(0)], version=version).error_code
                said.append(("other", version, code))
        said.append(("end", side.client.list_offsets(topic, -1)[0].offset))
        return said

    both(sides, "unknown-to-transactions", steps)


def test_epochs_and_sequences(sides: tuple[Side, Side]) -> None:
    def steps(side: Side, topic: str) -> list[Said]:
        writer = producer(side, topic)
        said: list[Said] = [tuple(writer.add(topic, 0))]

        def send(name: str, sequence: int, records: int = 2, epoch: int | None = None) -> None:
            sent = Transacting(side.client, writer.transactional_id)
            sent.producer_id = writer.producer_id
            sent.epoch = writer.epoch if epoch is None else epoch
            answer = sent.send(topic, sent.batch([record(n) for n in range(records)], sequence))
            said.append((name, answer.error_code, answer.base_offset))

        send("first", 0)
        send("again", 0)
        send("gap", 5)
        send("next", 2)
        plain = build_batch(
            [record(9)],
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=4,
        )
        said.append(("outside", side.client.produce(topic, bytes(plain)).error_code))
        said.append(("end", writer.end(commit=True)))
        writer.until_ended(topic)
        send("late", 4)
        old = writer.epoch
        said.append(("init", writer.init(), writer.epoch))
        said.append(tuple(writer.add(topic, 0)))
        send("fenced", 4, epoch=old)
        send("not from 0", 7)
        send("from 0", 0)
        said.append(("end", writer.end(commit=False)))
        writer.until_ended(topic)
        return said + described_producers(side.client, topic, Names(writer.producer_id))

    both(sides, "epochs-of-transactions", steps)


def test_own_epochs(sides: tuple[Side, Side]) -> None:
    def steps(side: Side, topic: str) -> list[Said]:
        writer = producer(side, topic, own_epochs=True)
        said: list[Said] = []
        late = writer.send(topic, writer.batch([record(0)], 5))
        said.append(("not from 0", late.error_code))
        for number in range(3):
            answer = writer.produce(topic, [record(number)])
            said.append(("produce", answer.error_code, answer.base_offset))
            first = writer.epoch
            said.append(("end", writer.end(commit=number != 1), writer.epoch - first))
            writer.until_ended(topic)
            stale = Transacting(side.client, writer.transactional_id)
            stale.producer_id, stale.epoch = writer.producer_id, first
            answer = stale.send(topic, stale.batch([record(7)], 1), version=12)
            said.append(("stale", answer.error_code))
        return said + described_producers(side.client, topic, Names(writer.producer_id))

    both(sides, "own-epochs", steps)


def test_two_producers_in_one_request(sides: tuple[Side, Side]) -> None:
    def steps(side: Side, topic: str) -> list[Said]:
        made = [Transacting(side.client, f"{topic}-{number}") for number in range(2)]
        for each in made:
            each.init()
            each.add(topic, 0)
        data = [
            PartitionProduceData(index=number, records=bytes(each.batch([record(0)], 0)))
            for number, each in enumerate(made)
        ]
        request = ProduceRequest(
            transactional_id=made[0].transactional_id,
            acks=-1,
            timeout_ms=90_000,
            topic_data=[TopicProduceData(name=topic, partition_data=data[:1])],
        )
        other = TopicProduceData(name=f"{topic}-other", partition_data=[data[1]])
        other.partition_data[0].index = 0
        request.topic_data.append(other)
        make(side, f"{topic}-other")
        answer = side.client.ask(PRODUCE, 11, request)
        return sorted(
            (topic.name, row.error_code, row.error_message)
            for topic in answer.responses
            for row in topic.partition_responses
        )

    both(sides, "two-transactions", steps)


def mark(
    client: RawClient,
    topic: str,
    writer: Transacting,
    *,
    coordinator: int,
    epoch: int,
    version: int = 0,
) -> list[int]:
    """Write an abort marker for partitions 0 and 7; return the partitions' error codes."""
    marker = WritableTxnMarker(
        producer_id=writer.producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=[NamedIndexes(name=topic, partition_indexes=[0, 7])],
        coordinator_epoch=coordinator,
        transaction_version=version,
    )
    answer = client.ask(WRITE_TXN_MARKERS, 2, WriteTxnMarkersRequest(markers=[marker]))
    rows = answer.markers[0].topics[0].partitions
    return [row.error_code for row in sorted(rows, key=lambda row: row.partition_index)]


def test_markers_by_hand(sides: tuple[Side, Side]) -> None:
    def steps(side: Side, topic: str) -> list[Said]:
        client = side.client
        writer = producer(side, topic)
        assert writer.init() == 0  # a second call, so that an earlier epoch exists
        said: list[Said] = [tuple(writer.add(topic, 0))]
        said.append(("produce", writer.produce(topic, [record(0)]).error_code))
        epoch = writer.epoch
        for name, coordinator, marked, version in (
            ("old epoch", 50, epoch - 1, 0),
            ("same epoch, own epochs", 50, epoch, 2),
            ("abort", 50, epoch, 0),
            ("again", 50, epoch, 0),
            ("again, own epochs", 50, epoch, 2),
            ("old coordinator", 49, epoch, 0),
            ("later epoch", 51, epoch + 1, 2),
            ("epoch before", 51, epoch, 0),
        ):
            codes = mark(
                client, topic, writer, coordinator=coordinator, epoch=marked, version=version
            )
            end = client.list_offsets(topic, -1)[0].offset
            stable = client.list_offsets(topic, -1, isolation_level=1)[0].offset
            said.append((name, *codes, end, stable))
        return said + described_producers(client, topic, Names(writer.producer_id))

    both(sides, "markers-by-hand", steps)


def test_producers_of_missing_partitions_get_equal_errors(sides: tuple[Side, Side]) -> None:
    def ask(side: Side) -> list[Said]:
        asked = DescribeProducersRequest(
            topics=[
                NamedIndexes(name="described-nobody", partition_indexes=[0]),
                NamedIndexes(name="described", partition_indexes=[0, 5]),
                *(
                    NamedIndexes(name=name, partition_indexes=[0, 5])
                    for name in ("", ".", "a b", "x" * 250)
                ),
            ]
        )
        answer = side.client.ask(DESCRIBE_PRODUCERS, 0, asked)
        return [
            (topic.name, row.partition_index, row.error_code, row.error_message)
            for topic in answer.topics
            for row in topic.partitions
        ]

    for side in sides:
        make(side, "described")
    assert ask(sides[1]) == ask(sides[0])


@pytest.mark.parametrize("own_epochs", [False, True])
def test_offsets_of_groups(sides: tuple[Side, Side], own_epochs: bool) -> None:
    def steps(side: Side, topic: str) -> list[Said]:
        client, group = side.client, f"{topic}-group"
        writer = producer(side, topic, own_epochs=own_epochs)
        said: list[Said] = [("nothing", committed(client, group, topic, stable=True))]

        def look(name: str) -> None:
            plain = committed(client, group, topic, stable=False)
            said.append((name, plain, committed(client, group, topic, stable=True)))

        if not own_epochs:
            said.append(("not added", writer.commit_offset(group, topic, 1)))
            said.append(("not added, v4", writer.commit_offset(group, topic, 1, version=4)))
        for offset, commit in ((11, True), (22, False), (33, True)):
            if not own_epochs:
                said.append(("add", writer.add_offsets(group)))
            said.append(("offset", writer.commit_offset(group, topic, offset)))
            look("pending")
            said.append(("no such topic", writer.commit_offset(group, f"{topic}-x", 1)))
            code = writer.commit_offset(
                group, topic, 1, generation_id=3, member_id="nobody", group_instance_id=None
            )
            said.append(("stranger", code))
            said.append(("end", writer.end(commit=commit)))
            until(
                lambda: committed(client, group, topic, stable=True), lambda found: found[1] != 88
            )
            look("ended")
        said.append(("no group", writer.commit_offset("", topic, 1, version=4)))
        return said

    both(sides, f"offsets-in-transactions-{own_epochs}".lower(), steps)


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction with a short timeout, in a separate topic.

    Attributes:
        topic: The topic.
        writer: The producer of the transaction.
        said: The broker's responses so far.
        took_s: Upper bound, in seconds, of the transaction's age at the last of these responses.
    """

    topic: str
    writer: Transacting
    said: list[Said]
    took_s: float


def begin_short(side: Side, topic: str, *, own_epochs: bool) -> Begun:
    """Start a transaction with a batch and never end it, so that it times out."""
    numbers = count()

    def begin() -> Begun:
        place = f"{topic}-{next(numbers)}"
        make(side, place)
        name = f"{place}-writer"
        writer = Transacting(side.client, name, has_own_epochs=own_epochs, timeout_ms=SHORT_MS)
        said: list[Said] = [("init", writer.init())]
        begun_s = monotonic()
        if not own_epochs:
            said.append(tuple(writer.add(place, 0)))
        said.append(("produce", writer.produce(place, [record(0)]).error_code))
        return Begun(place, writer, said, monotonic() - begun_s)

    return until(begin, lambda begun: begun.took_s * 1000 < SHORT_MS)


def go_on_late(begun: Begun) -> list[Said]:
    """Return the responses to the producer after the timeout, and in its next transaction."""
    topic, writer = begun.topic, begun.writer
    writer.until_ended(topic)
    said: list[Said] = [*described_producers(writer.client, topic, Names(writer.producer_id))]
    said.append(("late", writer.produce(topic, [record(1)]).error_code))
    said.append(("end", writer.end(commit=True)))
    writer.timeout_ms = TIMEOUT_MS
    said.append(("init", writer.init(), writer.epoch))
    if not writer.has_own_epochs:
        said.append(tuple(writer.add(topic, 0)))
    said.append(("produce", writer.produce(topic, [record(2)]).base_offset))
    said.append(("end", writer.end(commit=True)))
    writer.until_ended(topic)
    return said + described_producers(writer.client, topic, Names(writer.producer_id))


def test_timed_out_transactions_get_the_same_codes(sides: tuple[Side, Side]) -> None:
    """All four transactions are open at once, so that the test waits only once for timeouts."""
    topics = {False: "timed-out-classic", True: "timed-out-newer"}
    begun = [
        begin_short(side, topic, own_epochs=own_epochs)
        for own_epochs, topic in topics.items()
        for side in sides
    ]
    told = [[*each.said, *go_on_late(each)] for each in begun]
    assert told[0] == told[1]
    assert told[2] == told[3]


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [(5_000, -1, INVALID_PRODUCER_EPOCH), (-1, 0, INVALID_PRODUCER_ID_MAPPING)],
)
def test_markers_of_impossible_producers_are_not_written(
    sides: tuple[Side, Side], producer_id: int, epoch: int, code: int
) -> None:
    """The partition has no state of the producer, so the epochs can't be compared."""
    told = []
    topic = f"marked-{producer_id}-{epoch}"
    for side in sides:
        make(side, topic)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[NamedIndexes(name=topic, partition_indexes=[0, 7])],
        )
        asked = WriteTxnMarkersRequest(markers=[marker])
        (found,) = side.client.ask(WRITE_TXN_MARKERS, 2, asked).markers
        codes = {row.partition_index: row.error_code for row in found.topics[0].partitions}
        told.append((codes, side.client.list_offsets(topic, -1)[0].offset))
    failed = dict.fromkeys((0, 7), UNKNOWN_SERVER_ERROR)
    assert told == [(failed, 0), ({0: code, 7: UNKNOWN}, 0)]


def test_only_kafka_refuses_a_marker_of_version_minus_1(sides: tuple[Side, Side]) -> None:
    told = []
    for side in sides:
        make(side, "marked-by-none")
        writer = producer(side, "marked-by-none")
        writer.add("marked-by-none", 0)
        assert writer.produce("marked-by-none", [record(0)]).error_code == 0
        codes = mark(side.client, "marked-by-none", writer, coordinator=50, epoch=0, version=-1)
        told.append((codes[0], side.client.list_offsets("marked-by-none", -1)[0].offset))
    assert told == [(UNKNOWN_SERVER_ERROR, 1), (0, 2)]


def test_a_marker_of_an_epoch_below_0_kafka_stumbles_over_it(sides: tuple[Side, Side]) -> None:
    told = []
    for side in sides:
        make(side, "marked-below-0")
        writer = producer(side, "marked-below-0")
        writer.add("marked-below-0", 0)
        assert writer.produce("marked-below-0", [record(0)]).error_code == 0
        codes = mark(side.client, "marked-below-0", writer, coordinator=50, epoch=-1)
        told.append((codes[0], side.client.list_offsets("marked-below-0", -1)[0].offset))
    assert told == [(UNKNOWN_SERVER_ERROR, 1), (INVALID_PRODUCER_EPOCH, 1)]
