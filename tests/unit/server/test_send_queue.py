"""Responses with file pieces are sent completely, and take bounded memory for slow clients."""

import asyncio
import os
import random
import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from tests.faults.hooked import HookedDisk
from tests.worlds.waiting import PATIENCE_S

from tidelog.env import File, os_env
from tidelog.server.net.send_queue import (
    CHUNK_BYTES,
    CLOSE_PROBE_BYTES,
    GATHER_BYTES,
    TURN_BYTES,
    Piece,
    SendQueue,
)
from tidelog.server.partitions.file_pieces import PROBE_BYTES, PROBE_RARELY_BYTES, FilePiece
from tidelog.server.runtime.threads import Work
from tidelog.types import Buffer

SIZE = 24 << 20
HELD_MAX = CHUNK_BYTES


class Side(asyncio.Protocol):
    """The broker's side of a connection; it only sends."""

    def __init__(self, work: Work, watched: selectors.BaseSelector) -> None:
        self.work = work
        self.watched = watched
        self.failures: list[Exception] = []
        self.emptied = asyncio.Event()
        self.reported: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.out = SendQueue(
            transport, self.work, self.emptied.set, self.failures.append, self._report
        )

    def _report(self) -> None:
        self.reported.append(self.out.queued_bytes)

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()


def piece(path: Path, content: bytes, size: int | None = None) -> FilePiece:
    path.write_bytes(content)
    file = os_env().files.open(str(path))
    return FilePiece(file, str(path), 0, len(content) if size is None else size)


def run(scene: Callable[[Side, socket.socket], object]) -> None:
    selector = selectors.DefaultSelector()

    async def main() -> None:
        work = Work()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, side = await loop.create_connection(lambda: Side(work, selector), sock=ours)
        try:
            found = scene(side, theirs)
            if asyncio.iscoroutine(found):
                await found
        finally:
            side.out.close()
            transport.abort()
            theirs.close()
            work.close()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(main())


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
        assert side.transport.get_write_buffer_size() + side.out.queued_bytes <= HELD_MAX
        assert await received(theirs, SIZE + 8) == b"head" + content + b"tail"
        await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        assert not side.out.is_full

    run(scene)


def test_file_that_is_not_the_machines_is_read_in_threads(tmp_path: Path) -> None:
    content = os.urandom(1 << 20)

    async def scene(side: Side, theirs: socket.socket) -> None:
        (tmp_path / "log").write_bytes(content)
        file = HookedDisk().open(str(tmp_path / "log"), write=True)
        side.out.send([FilePiece(file, "log", 0, len(content)), b"tail"])
        assert await received(theirs, len(content) + 4) == content + b"tail"

    run(scene)


def test_file_that_was_cut_is_a_failure(tmp_path: Path) -> None:
    def scene(side: Side, _theirs: socket.socket) -> None:
        side.out.send([piece(tmp_path / "log", b"x" * 50_000, size=100_000)])
        assert "ends before byte" in str(side.failures[0])

    run(scene)


def test_heads_between_files_are_sent_completely_and_in_order(tmp_path: Path) -> None:
    content, heads = os.urandom(300_000), [os.urandom(size) for size in (39, 2_000_000, 1, 39)]

    async def scene(side: Side, theirs: socket.socket) -> None:
        pieces = [piece(tmp_path / str(number), content) for number in range(len(heads))]
        side.out.send([each for pair in zip(heads, pieces, strict=True) for each in pair])
        assert side.out.is_full
        assert 0 < side.out.queued_bytes <= sum(map(len, heads))
        expected = b"".join(head + content for head in heads)
        assert await received(theirs, len(expected)) == expected
        await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        assert side.out.queued_bytes == 0

    run(scene)


class LocalStandIn:
    """A local file that can only be sent."""

    def read_cached(self, size: int, position: int) -> Buffer | None:
        raise NotImplementedError

    def is_cached(self, positions: Iterable[int]) -> bool:
        raise NotImplementedError

    def send(self, socket: int, size: int, position: int) -> int:
        raise NotImplementedError


class Memory(LocalStandIn):
    """Records the positions of cache checks; all bytes below `end` are cached."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.looks: list[int] = []

    def is_cached(self, positions: Iterable[int]) -> bool:
        self.looks += positions
        return max(self.looks) < self.end


@pytest.mark.parametrize("probe_bytes", [PROBE_BYTES, PROBE_RARELY_BYTES])
@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize(
    "size", [20_000, PROBE_BYTES, PROBE_BYTES + 1, 1 << 20, (1 << 20) + 7, 5 << 20]
)
def test_pages_are_probed_once_at_each_distance(
    size: int, is_begun: bool, probe_bytes: int
) -> None:
    start = 5_000
    memory = Memory(start + size)
    made = FilePiece(cast("File", memory), "log", start, size, is_begun=is_begun)
    half = size // 2
    assert made.is_cached(half, probe_bytes)
    assert made.is_cached(half, probe_bytes)
    made.skip(half // 2)
    assert made.is_cached(half - half // 2, probe_bytes)
    assert len(memory.looks) == len(set(memory.looks))
    seen = sorted({start, *memory.looks})
    assert is_begun or memory.looks[0] == start
    assert seen[-1] == start + half - 1
    assert max(b - a for a, b in pairwise(seen)) <= probe_bytes
    # No position is checked twice, because the results of earlier checks are kept.
    assert len(memory.looks) <= half // probe_bytes + 1 + (not is_begun)
    memory.end = 0
    assert not made.is_cached(made.size_bytes)


class Fading(LocalStandIn):
    """A file with some parts that are not cached.

    Checks whose index is in `missing` find a position that is not cached. For each check, `looks`
    has the number of positions that were checked.
    """

    def __init__(self, missing: set[int], taken_bytes: int, inner: File) -> None:
        self.missing = missing
        self.taken_bytes = taken_bytes
        self._inner = inner
        self.looks: list[int] = []

    def is_cached(self, positions: Iterable[int]) -> bool:
        self.looks.append(len(list(positions)))
        return len(self.looks) - 1 not in self.missing

    def send(self, _socket: int, size: int, _position: int) -> int:
        return min(size, self.taken_bytes)

    def pread(self, size: int, position: int) -> bytes:
        return self._inner.pread(size, position)


@pytest.mark.parametrize("taken_bytes", [1 << 20, 1 << 18])
def test_behind_a_part_that_is_not_in_memory_it_looks_more_closely(
    tmp_path: Path, taken_bytes: int
) -> None:
    async def scene(side: Side, theirs: socket.socket) -> None:
        part, each = 1 << 20, taken_bytes // PROBE_BYTES
        size = CLOSE_PROBE_BYTES + 8 * part
        (tmp_path / "log").write_bytes(b"")
        os.truncate(tmp_path / "log", size)
        local = Fading({3}, taken_bytes, os_env().files.open(str(tmp_path / "log")))
        side.out.send([FilePiece(cast("File", local), "log", 0, size)])
        await asyncio.wait_for(received(theirs, CHUNK_BYTES), PATIENCE_S)
        await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        # The first check covers two positions, its start and its end. Each later check covers one,
        # because it starts at the end of the check before it.
        assert local.looks[:4] == [2, 1, 1, 1]
        closely = CLOSE_PROBE_BYTES // taken_bytes
        assert set(local.looks[5 : 4 + closely]) == {each}
        assert set(local.looks[4 + closely + 1 :]) == {1}

    run(scene)


def test_held_pieces_never_overtake_waiting_ones() -> None:
    async def scene(side: Side, theirs: socket.socket) -> None:
        pieces = [os.urandom(12_000) for _ in range(40)]
        side.out.send(pieces, more=True)
        got = theirs.recv(100_000)
        side.out.flush()
        expected = b"".join(pieces)
        assert got + await received(theirs, len(expected) - len(got)) == expected

    run(scene)


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_client_receives_everything_in_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "log").write_bytes(content := rng.randbytes(300_000))
    expected, got = bytearray(), bytearray()

    def some(*, of_file: bool) -> Piece:
        size = rng.choice((1, 39, 3_000, 12_000))
        if of_file and rng.random() < 0.2:
            at = rng.randrange(100_000)
            expected.extend(content[at : at + size])
            file = os_env().files.open(str(tmp_path / "log"))
            return FilePiece(file, str(tmp_path / "log"), at, size)
        data = rng.randbytes(size)
        expected.extend(data)
        return data

    def take(theirs: socket.socket) -> None:
        with suppress(BlockingIOError):
            got.extend(theirs.recv(rng.choice((100, 5_000, 100_000))))

    async def scene(side: Side, theirs: socket.socket) -> None:
        for _ in range(300):
            step = rng.random()
            if step < 0.4:
                of_file = rng.random() < 0.1
                pieces = [some(of_file=of_file) for _ in range(rng.choice((1, 2, 20, 20)))]
                side.out.send(pieces, more=rng.random() < 0.9)
            elif step < 0.6:
                side.out.flush()
            elif step < 0.9:
                take(theirs)
            else:
                await asyncio.sleep(0)
        side.out.flush()
        got.extend(await received(theirs, len(expected) - len(got)))
        assert got == expected

    run(scene)


def test_consecutive_responses_are_sent_together(tmp_path: Path) -> None:
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
        assert not side.out.is_full
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
        assert 0 < side.out.queued_bytes <= SIZE
        assert await received(theirs, SIZE) == bytes(SIZE)
        await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        assert side.out.queued_bytes == 0

    run(scene)


def test_memory_that_waits_for_the_next_turn_is_reported_at_once(tmp_path: Path) -> None:
    def scene(side: Side, _theirs: socket.socket) -> None:
        (tmp_path / "log").write_bytes(b"")
        local = Fading(set(), TURN_BYTES, os_env().files.open(str(tmp_path / "log")))
        side.out.send([FilePiece(cast("File", local), "log", 0, 2 * TURN_BYTES), b"tail"])
        assert side.reported == [len(b"tail")]

    run(scene)


def test_a_closed_client_is_a_failure_of_the_connection() -> None:
    def scene(side: Side, theirs: socket.socket) -> None:
        theirs.close()
        side.out.send([bytes(100)])
        assert isinstance(side.failures[0], ConnectionError)

    run(scene)


@pytest.mark.parametrize("is_read", [True, False])
def test_loop_watches_for_room_only_while_something_waits(is_read: bool) -> None:
    """A loop that watched a socket with free buffer space would wake up endlessly."""

    def awaits_room(side: Side) -> bool:
        return any(key.events & selectors.EVENT_WRITE for key in side.watched.get_map().values())

    async def scene(side: Side, theirs: socket.socket) -> None:
        assert not awaits_room(side)
        side.out.send([bytes(SIZE)])
        assert awaits_room(side)
        if is_read:
            await received(theirs, SIZE)
            await asyncio.wait_for(side.emptied.wait(), PATIENCE_S)
        else:
            side.out.close()
        assert not awaits_room(side)

    run(scene)
