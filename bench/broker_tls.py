"""Section of the broker's benchmark: throughput with TLS.

A second pair of brokers has a TLS listener with the same key and certificate (P-256). One client,
in Python's `ssl`, trusts the authority that signed the certificate. The client's own work for TLS
is the same with both brokers. The elapsed time includes this work, but the CPU time does not.
"""

import shutil
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tests.worlds.brokers.certificates import Authority

from bench import broker_wire as wire
from bench.broker_cells import Cell, Series, lines
from bench.broker_load import IN_FLIGHT, Address, connect, read_exactly
from bench.broker_pair import RIVAL, Brokers, Pair, figure, nothing
from bench.broker_servers import Kafka, MemoryWatch, Ours, Served, Topics, cpu_s
from bench.harness import Case, Work
from tidelog.types import Codec

BUFFER_BYTES: Final = 4 << 20
CELLS: Final = (Cell(100, Codec.NONE, 1), Cell(100, Codec.NONE, 1, small=True))
_SIZE: Final = struct.Struct(">i")


class HasTls(Served, Protocol):
    """A broker with a TLS listener."""

    tls_port: int


class TlsClient:
    """One TLS connection, which reads responses into one buffer."""

    def __init__(self, address: Address, authority: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        self._sock = context.wrap_socket(connect(address), server_hostname=address[0])
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    @property
    def cipher(self) -> str:
        """Negotiated version and cipher."""
        found = self._sock.cipher()
        assert found is not None
        return f"{found[1]} {found[0]}"

    def send(self, request: bytes) -> None:
        """Send a request."""
        self._sock.sendall(request)

    def read(self) -> memoryview:
        """Return the next response without its length; it begins with the correlation id.

        The result is valid until the next call.
        """
        read_exactly(self._sock, self._buffer[:4])
        size = _SIZE.unpack_from(self._buffer)[0]
        read_exactly(self._sock, self._buffer[:size])
        return self._buffer[:size]

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


@dataclass(slots=True)
class TlsSide:
    """One broker's part of a cell (a kind of load): a topic that is recreated for each round."""

    server: HasTls
    topics: Topics
    authority: Path
    cell: Cell
    volume_bytes: int
    produce_cpu: Series = field(default_factory=Series)
    consume_cpu: Series = field(default_factory=Series)
    batch: bytes = b""
    topic: str = ""
    _round: int = 0
    _is_empty: bool = True

    def __post_init__(self) -> None:
        self.batch = self.cell.batch()

    @property
    def count(self) -> int:
        """Number of batches of a round."""
        return max(1, self.volume_bytes // len(self.batch))

    def renew(self) -> None:
        """If the last round's topic was written to, replace it by an empty topic."""
        if self.topic and self._is_empty:
            return
        self._is_empty = True
        if self.topic:
            self.topics.drop(self.topic)
        self._round += 1
        self.topic = f"tls-{len(self.batch)}-{self._round}"
        self.topics.create(self.topic, 1)

    def client(self) -> TlsClient:
        """Return a new connection."""
        return TlsClient(("127.0.0.1", self.server.tls_port), self.authority)

    def fill(self) -> None:
        """Write a round's batches if the topic is empty."""
        if self._is_empty:
            with closing(self.client()) as client:
                self._write(client)

    def produce(self) -> float:
        """Return MB per second written and acknowledged; the time includes the handshake."""
        return self._measured(self._write, self.produce_cpu)

    def consume(self) -> float:
        """Return MB per second for reading what the last round wrote."""
        return self._measured(self._read, self.consume_cpu)

    def peak_mb(self) -> float:
        """Write and read a round's batches; return the broker's largest memory meanwhile, in MB.

        Memory is the proportional set size.
        """
        self.renew()
        with MemoryWatch(self.server.pid) as watch:
            self.produce()
            self.consume()
        return watch.peak_bytes / 1e6

    def _measured(self, action: Callable[[TlsClient], None], cpu: Series) -> float:
        size = self.count * len(self.batch)
        before, start = cpu_s(self.server.pid), time.perf_counter()
        with closing(self.client()) as client:
            action(client)
        wall_s = time.perf_counter() - start
        cpu.add((cpu_s(self.server.pid) - before) / (size / 1e9))
        return size / 1e6 / wall_s

    def _write(self, client: TlsClient) -> None:
        self._is_empty = False
        request = wire.produce(self.topic, [self.batch])
        check, sent = wire.Produced(self.topic, 1), 0
        for answered in range(self.count):
            while sent < min(self.count, answered + IN_FLIGHT):
                client.send(request)
                sent += 1
            check.check(client.read())

    def _read(self, client: TlsClient) -> None:
        offset, end = 0, self.count * self.cell.batch_records
        at = wire.first_partition_at(self.topic, 1, before=10)
        while offset < end:
            client.send(wire.fetch(self.topic, [offset]))
            _index, records, _used = wire.fetched_row(client.read(), at)
            if not records:
                raise RuntimeError(f"Fetch of {self.topic} at offset {offset} returned no records")
            offset += records // len(self.batch) * self.cell.batch_records


def tls(brokers: Brokers) -> Iterator[Case]:
    """Yield the cases of TLS: throughput, CPU and memory for each load, and kcat's rates."""
    folder = brokers.folder / "tls"
    folder.mkdir()
    authority = Authority(folder)
    key = authority.issue("broker")
    ours = Ours(folder / "ours", certificate=key)
    rival = Kafka(brokers.home, brokers.oracle, folder / "kafka", certificate=key)
    pair, servers = brokers.started(ours, rival), (ours, rival)
    size = brokers.size
    for cell in CELLS:
        sides = [
            TlsSide(server, pair.topics(server), authority.path, cell, size.volume_bytes // 2)
            for server in servers
        ]
        yield from _cell(sides[0], sides[1], size.warm_up_s / 2)
    yield from _kcat(brokers, pair, servers, authority.path)


def _warm_up(side: TlsSide, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        side.renew()
        side.produce()
        side.consume()


def _ciphers(*sides: TlsSide) -> str:
    found = []
    for side in sides:
        with closing(side.client()) as client:
            found.append(client.cipher)
    return " and ".join(dict.fromkeys(found))


def _cell(ours: TlsSide, rival: TlsSide, warm_up_s: float) -> Iterator[Case]:
    for side in (ours, rival):
        _warm_up(side, warm_up_s)
        side.produce_cpu, side.consume_cpu = Series(), Series()
    note = _ciphers(ours, rival)

    def renew() -> None:
        ours.renew()
        rival.renew()

    def fill() -> None:
        ours.fill()
        rival.fill()

    name = f"through TLS, {ours.cell.name}"
    yield Case(
        case=f"produce {name}",
        unit="MB per s",
        ours=ours.produce,
        rival=rival.produce,
        rival_name=RIVAL,
        goal=">= 1.0",
        note=note,
        prepare=renew,
    )
    yield Case(
        case=f"consume {name}",
        unit="MB per s",
        ours=ours.consume,
        rival=rival.consume,
        rival_name=RIVAL,
        goal=">= 1.0",
        note=note,
        prepare=fill,
    )
    unit = "CPU s per GB"
    yield figure(f"CPU of the broker, produce {name}", unit, ours.produce_cpu, rival.produce_cpu)
    yield figure(f"CPU of the broker, consume {name}", unit, ours.consume_cpu, rival.consume_cpu)
    peaks = (ours.peak_mb, rival.peak_mb)
    yield figure(f"memory, {name}", "MB", *peaks, note="largest while a round is written and read")


def _kcat(
    brokers: Brokers, pair: Pair, servers: tuple[HasTls, HasTls], authority: Path
) -> Iterator[Case]:
    """Yield kcat's rates, which include the client's own work."""
    if shutil.which("kcat") is None:
        return
    count, values = brokers.size.client_records // 3, lines(100)
    data = brokers.folder / "tls" / "lines"
    data.write_bytes(b"\n".join(values[n % len(values)] for n in range(count)))

    def run(server: HasTls, *arguments: str) -> Work:
        doors = ("-X", "security.protocol=ssl", "-X", f"ssl.ca.location={authority}")
        command = ["kcat", "-b", f"127.0.0.1:{server.tls_port}", "-q", *doors, *arguments]

        def call() -> float:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return float(count)

        return call

    for server in servers:
        for topic in ("kcat-in", "kcat-out"):
            pair.topics(server).create(topic, 1)
        run(server, "-P", "-t", "kcat-out", "-p", "0", "-l", str(data))()
    note = "a real client, its own start and CPU included"
    for what, arguments in (
        ("writes", ("-P", "-t", "kcat-in", "-p", "0", "-l", str(data))),
        ("reads", ("-C", "-t", "kcat-out", "-p", "0", "-o", "beginning", "-e")),
    ):
        ours, rival = (run(server, *arguments) for server in servers)
        yield Case(
            case=f"kcat {what} lines of 100 B through TLS",
            unit="records/s",
            ours=ours,
            rival=rival,
            rival_name=RIVAL,
            note=note,
            prepare=nothing,
        )
