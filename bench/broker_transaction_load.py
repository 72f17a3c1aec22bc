"""Transactional producers for the load generator: prepared requests, in which a few bytes change.

A transaction consists of one batch for each of a few partitions, and then EndTxn. With transactions
of version 2 (KIP-890), Produce adds the partitions to the transaction, and each transaction has its
own epoch, which the response to EndTxn returns. With the classic protocol, AddPartitionsToTxn adds
the partitions first. In each of these steps, a producer has one request in flight, as real clients
do. While a broker is still ending the previous transaction, it returns an error, and the producer
repeats the request without delay. Before such a retry, real clients wait 20 ms or more.

Requests are encoded by hand as in bench/broker_wire.py: AddPartitionsToTxn v3, Produce v11 and
v12, EndTxn v4 and v5. Source: the message definitions of Apache Kafka 4.3.
"""

import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench import broker_wire as wire
from bench.broker_load import SOCKET_TIMEOUT_S, Address, Answers, connect
from tidelog.record.coding import crc32c

if TYPE_CHECKING:
    import socket

ADD_PARTITIONS, END_TXN = 24, 26
# Codes of errors after which a request is repeated: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS
# (which Produce returns instead of CONCURRENT_TRANSACTIONS), CONCURRENT_TRANSACTIONS.
AGAIN: Final = frozenset({6, 19, 51})
# Positions of three fields in a batch: the CRC, the attributes and the producer id. The CRC covers
# the batch from the attributes on. After the producer id come the epoch and the sequence.
CRC_AT, ATTRIBUTES_AT, PRODUCER_AT = 17, 21, 43
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")
_ENDED: Final = struct.Struct(">ihqh")
_PRODUCED_ERROR: Final = struct.Struct(">ih")


class Refused(RuntimeError):
    """A broker's response in a transaction has an error after which a retry doesn't help."""


@dataclass(slots=True)
class Identity:
    """Identity of a producer at a broker.

    Attributes:
        transactional_id: The transactional id.
        producer_id: The producer id that the broker has assigned.
        epoch: Producer epoch. With transactions of version 2, the producer epoch changes with each
            transaction.
    """

    transactional_id: str
    producer_id: int
    epoch: int


def add_partitions(who: Identity, topic: str, partitions: Sequence[int]) -> bytes:
    """Encode AddPartitionsToTxn v3."""
    rows = wire.array([struct.pack(">i", number) for number in partitions])
    topics = wire.array([wire.text(topic) + rows + b"\0"])
    head = wire.text(who.transactional_id) + struct.pack(">qh", who.producer_id, who.epoch)
    return wire.frame(ADD_PARTITIONS, 3, head + topics + b"\0")


def added_code(answer: memoryview, topic: str, partitions: int) -> int:
    """Return the first error of a response to AddPartitionsToTxn v3, or 0."""
    at = wire.first_partition_at(topic, partitions, before=4)
    codes = [struct.unpack_from(">ih", answer, at + 7 * n)[1] for n in range(partitions)]
    return next((code for code in codes if code), 0)


def end_transaction(who: Identity, *, version: int) -> bytes:
    """Encode EndTxn v4 or v5 for a commit."""
    head = wire.text(who.transactional_id) + struct.pack(">qh?", who.producer_id, who.epoch, True)
    return wire.frame(END_TXN, version, head + b"\0")


def produced_code(answer: memoryview, topic: str, partitions: int) -> int:
    """Return the first error of a Produce response, or 0.

    Partitions after the first error are not read.
    """
    at = wire.first_partition_at(topic, partitions, before=0)
    for _ in range(partitions):
        code = int(_PRODUCED_ERROR.unpack_from(answer, at)[1])
        if code:
            return code
        at += wire.PRODUCED_SIZE
    return 0


class Producer:
    """Transactional producer with its connection; each step is a request and its response."""

    def __init__(
        self,
        address: Address,
        who: Identity,
        topic: str,
        partitions: Sequence[int],
        batch: bytes,
        *,
        classic: bool,
    ) -> None:
        """Each partition gets a copy of `batch`, in which the producer sets its id and sequence."""
        self.sock: socket.socket = connect(address)
        self._answers = Answers(self.sock)
        self._who, self._topic, self._partitions = who, topic, list(partitions)
        self._classic = classic
        self._records = struct.unpack_from(">i", batch, PRODUCER_AT + _PRODUCER.size)[0]
        self._prepare(batch)
        self._sequence = 0
        self._steps = self._classic_steps() if classic else self._steps_of_2()
        self._at = 0
        self.ended = self.asked_again = 0

    def _prepare(self, batch: bytes) -> None:
        """Encode the Produce request for all transactions, and locate its batches."""
        name, first = self._who.transactional_id, self._partitions[0]
        assert self._partitions == list(range(first, first + len(self._partitions)))
        version = 11 if self._classic else 12
        batches = [batch] * len(self._partitions)
        made = wire.produce(self._topic, batches, first, version=version, transactional_id=name)
        self._request = memoryview(bytearray(made))
        self._places, at = list[int](), 0
        for _ in batches:
            at = made.index(batch, at)
            self._places.append(at)
            at += len(batch)
        self._batch_bytes = len(batch)

    def _classic_steps(self) -> list[tuple[Callable[[], bytes | memoryview], Callable[..., int]]]:
        count = len(self._partitions)
        added = add_partitions(self._who, self._topic, self._partitions)
        ended = end_transaction(self._who, version=4)
        return [
            (lambda: added, lambda answer: added_code(answer, self._topic, count)),
            (self._batches, self._took_batches),
            (lambda: ended, self._took_end),
        ]

    def _steps_of_2(self) -> list[tuple[Callable[[], bytes | memoryview], Callable[..., int]]]:
        return [
            (self._batches, self._took_batches),
            (lambda: end_transaction(self._who, version=5), self._took_end),
        ]

    def _batches(self) -> memoryview:
        """Return the Produce request with the current epoch and sequence."""
        who = self._who
        for place in self._places:
            view = self._request[place : place + self._batch_bytes]
            _PRODUCER.pack_into(view, PRODUCER_AT, who.producer_id, who.epoch, self._sequence)
            _CRC.pack_into(view, CRC_AT, crc32c(view[ATTRIBUTES_AT:]))
        return self._request

    def _took_batches(self, answer: memoryview) -> int:
        code = produced_code(answer, self._topic, len(self._partitions))
        if not code:
            self._sequence += self._records
        return code

    def _took_end(self, answer: memoryview) -> int:
        # Correlation id, tags and throttle time are before the error code.
        code = int(struct.unpack_from(">h", answer, 9)[0])
        if not code and not self._classic:
            _throttle, _code, self._who.producer_id, self._who.epoch = _ENDED.unpack_from(answer, 5)
            self._sequence = 0
        self.ended += not code
        return code

    def send(self) -> None:
        """Send the request of the current step."""
        self.sock.sendall(self._steps[self._at][0]())

    def receive(self) -> None:
        """Handle the response; the step is repeated if the broker was not ready.

        Raises:
            Refused: The response has an error that is not in `AGAIN`.
        """
        code = self._steps[self._at][1](self._answers.read())
        if not code:
            self._at = (self._at + 1) % len(self._steps)
        elif code in AGAIN:
            self.asked_again += 1
        else:
            raise Refused(f"step {self._at} of a transaction: error {code}")

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


def run_all(producers: Sequence[Producer], seconds: float) -> int:
    """Let each producer commit transactions for `seconds`; return the number of all commits."""
    before = sum(each.ended for each in producers)
    goals = {each.sock.fileno(): _Goal(each, time.perf_counter() + seconds) for each in producers}
    waiting = select.epoll()
    for descriptor, goal in goals.items():
        waiting.register(descriptor, select.EPOLLIN)
        goal.producer.send()
    while goals:
        ready = waiting.poll(SOCKET_TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"no answer within {SOCKET_TIMEOUT_S} s")
        for descriptor, _event in ready:
            if goals[descriptor].go_on():
                waiting.unregister(descriptor)
                del goals[descriptor]
    waiting.close()
    return sum(each.ended for each in producers) - before


@dataclass(slots=True)
class _Goal:
    producer: Producer
    end: float

    def go_on(self) -> bool:
        """Handle a response; send the next request unless the producer has reached its end time.

        Returns:
            True if the response has ended a transaction and the time `end` is reached.
        """
        before = self.producer.ended
        self.producer.receive()
        if self.producer.ended > before and time.perf_counter() >= self.end:
            return True
        self.producer.send()
        return False
