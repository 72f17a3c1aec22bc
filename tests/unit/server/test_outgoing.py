"""Answers as pieces of files: bounded while a client takes nothing, whole when it does."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from tests.waiting import PATIENCE_S

from tidelog.env import os_env
from tidelog.server.file_pieces import FilePiece
from tidelog.server.outgoing import CHUNK_BYTES, GATHER_BYTES, Outgoing
from tidelog.server.work import Work

SIZE = 24 << 20
HELD_MAX = CHUNK_BYTES


class Side(asyncio.Protocol):
    """A broker's side of a connection with nothing but what sends."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.failures: list[Exception] = []
        self.emptied = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.out = Outgoing(transport, self.work, self.emptied.set, self.failures.append)

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()


def piece(path: Path, content: bytes, size: int | None = None) -> FilePiece:
    path.write_bytes(content)
    file = os_env().files.open(str(path))
    return FilePiece(file, str(path), 0, len(content) if size is None else size)


def run(scene: Callable[[Side, socket.socket], object]) -> None:
    async def main() -> None:
        work = Work()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, side = await loop.create_connection(lambda: Side(work), sock=ours)
        try:
            found = scene(side, theirs)
            if asyncio.iscoroutine(found):
                await found
        finally:
            side.out.close()
            transport.abort()
            theirs.close()
            work.close()

    asyncio.run(main())


async def received(theirs: socket.socket, size: int) -> bytes:
    loop, found = asyncio.get_running_loop(), bytearray()
    while len(found) < size:
        data = await asyncio.wait_for(loop.sock_recv(theirs, 1 << 20), PATIENCE_S)
        assert data
        found += data
    return bytes(found)


def test_slow_client_costs_no_memory_and_gets_all(tmp_path: Path) -> None:
    content = os.urandom(SIZE)

    async def scene(side: Side, theirs: socket.socket) -> None:
        side.out.send([b"head", piece(tmp_path / "log", content), b"tail"])
        assert side.out.is_full
        assert side.transport.get_write_buffer_size() + side.out.held_bytes <= HELD_MAX
        assert await received(theirs, SIZE + 8) == b"head" + content + b"tail"
        await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        assert not side.out.is_full

    run(scene)


def test_file_that_is_not_the_machines_is_read_in_threads(tmp_path: Path) -> None:
    content = os.urandom(1 << 20)

    async def scene(side: Side, theirs: socket.socket) -> None:
        made = piece(tmp_path / "log", content)
        made._local = None
        side.out.send([made, b"tail"])
        assert await received(theirs, len(content) + 4) == content + b"tail"

    run(scene)


def test_file_that_was_cut_is_a_failure(tmp_path: Path) -> None:
    def scene(side: Side, _theirs: socket.socket) -> None:
        side.out.send([piece(tmp_path / "log", b"x" * 50_000, size=100_000)])
        assert "ends before byte" in str(side.failures[0])

    run(scene)


def test_answers_that_follow_each_other_go_together(tmp_path: Path) -> None:
    def nothing_yet(theirs: socket.socket) -> bool:
        try:
            return not theirs.recv(100)
        except BlockingIOError:
            return True

    def scene(side: Side, theirs: socket.socket) -> None:
        side.out.send([b"a", b"b"], more=True)
        assert nothing_yet(theirs)
        side.out.send([b"c"])
        assert theirs.recv(100) == b"abc"
        side.out.send([b"d"], more=True)
        side.out.flush()
        assert theirs.recv(100) == b"d"
        side.out.send([bytes(GATHER_BYTES)], more=True)
        assert len(theirs.recv(2 * GATHER_BYTES)) == GATHER_BYTES
        side.out.send([b"e"], more=True)
        side.out.send([piece(tmp_path / "log", b"f" * 20_000)])
        assert theirs.recv(30_000) == b"e" + b"f" * 20_000
        assert not side.out.is_full

    run(scene)


def test_memory_that_waits_is_counted_until_it_is_taken() -> None:
    async def scene(side: Side, theirs: socket.socket) -> None:
        side.out.send([bytes(SIZE)])
        assert side.out.is_full
        assert 0 < side.out.held_bytes <= SIZE
        assert await received(theirs, SIZE) == bytes(SIZE)
        await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        assert side.out.held_bytes == 0

    run(scene)


def test_client_that_has_gone_is_a_failure_of_the_connection() -> None:
    def scene(side: Side, theirs: socket.socket) -> None:
        theirs.close()
        side.out.send([bytes(100)])
        assert isinstance(side.failures[0], ConnectionError)

    run(scene)
