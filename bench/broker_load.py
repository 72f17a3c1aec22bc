"""The load generator: replays prepared requests over raw sockets, without work for each record.

A memory file holds the requests, and `sendfile` sends them. The operating system discards received
records (`MSG_TRUNC`) in parts of up to 1 MiB, as soon as a part is complete (`SO_RCVLOWAT`). The
generator reads only the fields around the records. So it uses much less CPU than the brokers that
it measures. The generator has one thread. With one connection, it uses a blocking socket; with
several connections, one `epoll` waits for all of them.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench import broker_wire as wire

Address = tuple[str, int]

IN_FLIGHT: Final = 5
SOCKET_TIMEOUT_S: Final = 60
BUFFER_BYTES: Final = 1 << 20
# Number of bytes per read of the fields between records.
HEAD_BYTES: Final = 64
_SIZE: Final = struct.Struct(">i")
_TIMEOUT: Final = struct.Struct("@ll")
_DROP: Final = socket.MSG_TRUNC | socket.MSG_DONTWAIT


def connect(address: Address) -> socket.socket:
    """Return a connection without Nagle's delay.

    The operating system applies the timeout of the blocking calls, so no system call is needed to
    wait with a timeout.
    """
    sock = socket.create_connection(address, SOCKET_TIMEOUT_S)
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT.pack(SOCKET_TIMEOUT_S, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_exactly(sock: socket.socket, view: memoryview) -> None:
    """Receive until `view` is full."""
    done = 0
    while done < len(view):
        got = sock.recv_into(view[done:])
        if not got:
            raise ConnectionError("the broker closed the connection")
        done += got


class Answers:
    """Reads whole responses of a connection into one buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def read(self) -> memoryview:
        """Return the next response without its length; it begins with the correlation id.

        The result is valid until the next call.
        """
        read_exactly(self._sock, self._buffer[:4])
        size = _SIZE.unpack_from(self._buffer)[0]
        read_exactly(self._sock, self._buffer[:size])
        return self._buffer[:size]


class Stream:
    """Reads responses that consist mostly of records; returns the fields and skips the records."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._head = b""
        self._room = select.poll()
        self._room.register(sock, select.POLLIN)

    def ahead(self, least: int) -> bytes:
        """Return at least the next `least` bytes without consuming them."""
        while len(self._head) < least:
            got = self._sock.recv(HEAD_BYTES)
            if not got:
                raise ConnectionError("the broker closed the connection")
            self._head += got
        return self._head

    def take(self, size: int) -> bytes:
        """Return and consume the next `size` bytes."""
        taken = self.ahead(size)[:size]
        self._head = self._head[size:]
        return taken

    def drop(self, size: int) -> None:
        """Skip `size` bytes without copying them."""
        have = min(size, len(self._head))
        self._head = self._head[have:]
        size -= have
        while size > 0:
            part = min(size, BUFFER_BYTES)
            self._wake_at(part)
            # Wait for the whole part before the read: a blocking read would take the bytes that
            # have already arrived, and then wait for SO_RCVLOWAT further bytes.
            self._room.poll(SOCKET_TIMEOUT_S * 1000)
            got = self._sock.recv_into(self._buffer, part, _DROP)
            if not got:
                raise ConnectionError("the broker closed the connection")
            size -= got
        self._wake_at(1)

    def _wake_at(self, size: int) -> None:
        """Make the socket readable only when `size` bytes have arrived."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


class Replay:
    """Sends one prepared Produce request repeatedly, with a limited number in flight."""

    def __init__(self, address: Address, request: bytes, check: wire.Produced) -> None:
        self._sock = connect(address)
        self._answers = Answers(self._sock)
        self._check = check
        self._size = len(request)
        self._file = os.memfd_create("requests")
        with open(self._file, "wb", closefd=False) as out:
            out.write(request)

    def run(self, count: int, in_flight: int = IN_FLIGHT) -> None:
        """Send `count` requests; returns after the last response."""
        sent = acknowledged = 0
        while acknowledged < count:
            while sent < count and sent - acknowledged < in_flight:
                self._send()
                sent += 1
            self._check.check(self._answers.read())
            acknowledged += 1

    def _send(self) -> None:
        at = 0
        while at < self._size:
            try:
                at += os.sendfile(self._sock.fileno(), self._file, at, self._size - at)
            except BlockingIOError:
                select.select([], [self._sock], [])

    def close(self) -> None:
        """Close the connection and the file."""
        self._sock.close()
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Shape that all batches of a topic have: size in bytes, and number of records."""

    size: int
    records: int


class Reading:
    """Fetches a topic of equal batches from its start, with one request in flight."""

    def __init__(self, address: Address, topic: str, partitions: int, shape: BatchShape) -> None:
        self._sock = connect(address)
        self._stream = Stream(self._sock)
        self._topic, self._partitions, self._shape = topic, partitions, shape

    def run(self, end: int) -> int:
        """Read each partition up to offset `end`, exclusive; return the records' size in bytes."""
        offsets = [0] * self._partitions
        total = 0
        while min(offsets) < end:
            self._sock.sendall(wire.fetch(self._topic, offsets))
            total += self._read(offsets)
        return total

    def _read(self, offsets: list[int]) -> int:
        stream = self._stream
        left = _SIZE.unpack(stream.take(4))[0]
        head = wire.first_partition_at(self._topic, self._partitions, before=10)
        stream.take(head)
        left -= head
        total = 0
        for _ in offsets:
            index, records, used = self._row(left)
            stream.take(used)
            stream.drop(records)
            stream.take(1)
            left -= used + records + 1
            offsets[index] += records // self._shape.size * self._shape.records
            total += records
        stream.take(left)
        return total

    def _row(self, left: int) -> tuple[int, int, int]:
        """Return a partition's index, the size of its records, and the size of its fields.

        `left` is how many bytes of the response are unread.
        """
        row = self._stream.ahead(min(wire.FETCHED_SIZE + wire.VARINT_MAX_BYTES, left))
        return wire.fetched_row(row)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


def ask(address: Address, request: bytes) -> bytes:
    """Return the response to one request on a new connection."""
    with connect(address) as sock:
        sock.sendall(request)
        return bytes(Answers(sock).read())


def ping_pong(address: Address, request: bytes, check: wire.Produced, count: int) -> list[float]:
    """Return the seconds that each of `count` requests took, with one in flight."""
    with connect(address) as sock:
        answers = Answers(sock)
        took = []
        for _ in range(count):
            start = time.perf_counter()
            sock.sendall(request)
            answer = answers.read()
            took.append(time.perf_counter() - start)
            check.check(answer)
    return took


def many_clients(address: Address, requests: Sequence[bytes], clients: int, count: int) -> None:
    """Send `count` requests, with one in flight on each of `clients` connections."""
    socks = [connect(address) for _ in range(clients)]
    by_fd = {sock.fileno(): sock for sock in socks}
    waiting = select.epoll()
    for sock in socks:
        waiting.register(sock.fileno(), select.EPOLLIN)
        sock.setblocking(False)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    sent = done = 0
    for sock in socks:
        sock.send(requests[sent % len(requests)])
        sent += 1
    while done < count:
        for descriptor, _event in waiting.poll(SOCKET_TIMEOUT_S):
            sock = by_fd[descriptor]
            got = sock.recv_into(buffer)
            if got < 4 or _SIZE.unpack_from(buffer)[0] != got - 4:
                raise ConnectionError(f"a response was received in parts: {got} bytes")
            done += 1
            if sent < count:
                sock.send(requests[sent % len(requests)])
                sent += 1
    waiting.close()
    for sock in socks:
        sock.close()


class Paced:
    """Writes one record per request at a fixed rate; another connection reads with long polls."""

    def __init__(self, address: Address, topic: str, batch: bytes, base: int) -> None:
        """`base` is the partition's log end offset before the first record."""
        self._producer, self._consumer = connect(address), connect(address)
        self._topic, self._base, self._batch_bytes = topic, base, len(batch)
        self._request = wire.produce(topic, [batch])
        self._acks, self._fetched = Answers(self._producer), Answers(self._consumer)
        self._check = wire.Produced(topic, 1)
        self._sent: list[float] = []
        self.latencies: list[float] = []

    def run(self, count: int, rate: int) -> list[float]:
        """Return the seconds from sending to receiving of `count` records."""
        start = time.perf_counter()
        self._ask()
        while len(self.latencies) < count:
            due = start + len(self._sent) / rate
            late = due - time.perf_counter()
            if late <= 0 and len(self._sent) < count:
                self._sent.append(time.perf_counter())
                self._producer.sendall(self._request)
                continue
            wait = late if len(self._sent) < count else SOCKET_TIMEOUT_S
            self._serve(select.select([self._producer, self._consumer], [], [], wait)[0])
        self._producer.close()
        self._consumer.close()
        return self.latencies

    def _ask(self) -> None:
        offset = self._base + len(self.latencies)
        self._consumer.sendall(wire.fetch(self._topic, [offset]))

    def _serve(self, ready: Sequence[socket.socket]) -> None:
        if self._consumer in ready:
            answer = self._fetched.read()
            now = time.perf_counter()
            at = wire.first_partition_at(self._topic, 1, before=10)
            _index, records, _used = wire.fetched_row(answer, at)
            first = len(self.latencies)
            news = self._sent[first : first + records // self._batch_bytes]
            self.latencies += [now - sent for sent in news]
            self._ask()
        if self._producer in ready:
            self._check.check(self._acks.read())
