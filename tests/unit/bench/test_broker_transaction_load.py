"""Transactions of the load generator, decoded by the broker's codecs."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest
from bench import broker_transaction_load as load
from bench.broker_transactions import RECORDS, Kind, batch_of

from tidelog.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
)
from tidelog.protocol.requests import read_request, write_response
from tidelog.record.batch_walk import walk

TOPIC, NAME, PARTITIONS = "t", "payments", 2
PRODUCER_ID, EPOCH = 1 << 40, 7


class Peer:
    """The broker's end of a producer's connection."""

    def __init__(self, listening: socket.socket) -> None:
        self._sock = listening.accept()[0]

    def answer(self, *codes: int) -> "AddPartitionsToTxnRequest | ProduceRequest | EndTxnRequest":
        """Receive and return a request.

        Respond with one error code for each partition; for EndTxn, with a single code.
        """
        size = struct.unpack(">i", self._sock.recv(4, socket.MSG_WAITALL))[0]
        got = read_request(self._sock.recv(size, socket.MSG_WAITALL))
        message = got.message
        assert isinstance(message, AddPartitionsToTxnRequest | ProduceRequest | EndTxnRequest)
        found: AddPartitionsToTxnResponse | ProduceResponse | EndTxnResponse
        if isinstance(message, AddPartitionsToTxnRequest):
            found = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[_added(codes)])
        elif isinstance(message, ProduceRequest):
            found = ProduceResponse(responses=[_produced(codes)])
        else:
            found = EndTxnResponse(
                error_code=codes[0], producer_id=PRODUCER_ID, producer_epoch=EPOCH + 1
            )
        self._sock.sendall(b"".join(write_response(got, found)))
        return message

    def close(self) -> None:
        self._sock.close()


def _added(codes: tuple[int, ...]) -> AddPartitionsToTxnTopicResult:
    rows = [
        AddPartitionsToTxnPartitionResult(partition_index=n, partition_error_code=code)
        for n, code in enumerate(codes)
    ]
    return AddPartitionsToTxnTopicResult(name=TOPIC, results_by_partition=rows)


def _produced(codes: tuple[int, ...]) -> TopicProduceResponse:
    rows = [
        PartitionProduceResponse(index=n, error_code=code, base_offset=100)
        for n, code in enumerate(codes)
    ]
    return TopicProduceResponse(name=TOPIC, partition_responses=rows)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def producer(listening: socket.socket, *, classic: bool) -> load.Producer:
    who = load.Identity(NAME, PRODUCER_ID, EPOCH)
    batch = batch_of(RECORDS // PARTITIONS)
    address = listening.getsockname()
    return load.Producer(address, who, TOPIC, range(PARTITIONS), batch, classic=classic)


def headers(asked: object) -> list[tuple[int, int, int, int | None]]:
    """Return producer id, epoch, sequence and record count of each batch after validating it."""
    assert isinstance(asked, ProduceRequest)
    assert asked.transactional_id == NAME
    found = []
    for each in asked.topic_data[0].partition_data:
        assert each.records is not None
        (batch,) = walk(bytes(each.records))
        batch.ensure_valid()
        found.append(
            (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count)
        )
    return found


def test_version_2_continues_with_the_epoch_of_the_response(listening: socket.socket) -> None:
    one = producer(listening, classic=False)
    with closing(one), closing(Peer(listening)) as peer:
        for epoch in (EPOCH, EPOCH + 1):
            one.send()
            assert headers(peer.answer(0, 0)) == [(PRODUCER_ID, epoch, 0, 50)] * 2
            one.receive()
            one.send()
            asked = peer.answer(0)
            one.receive()
            assert isinstance(asked, EndTxnRequest)
            assert (asked.transactional_id, asked.committed) == (NAME, True)
            assert (asked.producer_id, asked.producer_epoch) == (PRODUCER_ID, epoch)
        assert one.ended == 2


def test_classic_adds_partitions_first_and_counts_sequences_on(listening: socket.socket) -> None:
    one = producer(listening, classic=True)
    with closing(one), closing(Peer(listening)) as peer:
        for sequence in (0, 50):
            one.send()
            asked = peer.answer(0, 0)
            one.receive()
            assert isinstance(asked, AddPartitionsToTxnRequest)
            assert asked.v3_and_below_topics[0].partitions == [0, 1]
            one.send()
            assert headers(peer.answer(0, 0)) == [(PRODUCER_ID, EPOCH, sequence, 50)] * 2
            one.receive()
            one.send()
            peer.answer(0)
            one.receive()
        assert one.ended == 2


@pytest.mark.parametrize("classic", [False, True])
def test_a_request_during_a_concurrent_transaction_is_repeated(
    listening: socket.socket, classic: bool
) -> None:
    one = producer(listening, classic=classic)
    with closing(one), closing(Peer(listening)) as peer:
        kinds = []
        for codes in ((0, 51), (0, 0)):
            one.send()
            kinds.append(type(peer.answer(*codes)))
            one.receive()
        assert kinds[0] is kinds[1]
        assert (one.asked_again, one.ended) == (1, 0)


def test_a_refusal_is_an_error(listening: socket.socket) -> None:
    one = producer(listening, classic=False)
    with closing(one), closing(Peer(listening)) as peer:
        one.send()
        peer.answer(0, 90)
        with pytest.raises(load.Refused, match="90"):
            one.receive()


def test_kinds_have_names_of_their_own() -> None:
    kinds = [Kind(1), Kind(2), Kind(1, partitions=2), Kind(1, classic=True)]
    assert len({kind.name for kind in kinds}) == len(kinds)
