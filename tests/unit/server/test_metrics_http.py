"""Slow or silent clients of the metrics server don't prevent others from getting pages."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

import pytest
from tests.worlds.waiting import PATIENCE_S, turn_until

from tidelog.server.metrics import http
from tidelog.server.metrics.exposition import Exposition
from tidelog.server.metrics.http import (
    CONNECTIONS_MAX,
    SCRAPES_MAX,
    MetricsServer,
    read_head,
    takes_gzip,
)
from tidelog.server.runtime.threads import Work

HEALTH = b"GET /healthz HTTP/1.1\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the timeout, so that a slow machine causes no disconnects."""
    monkeypatch.setattr(http, "TIMEOUT_S", 600.0)


class Page(Exposition):
    """A page whose content is available when the test allows it."""

    def __init__(self, text: str = "up 1\n") -> None:
        self.may_go_on = asyncio.Event()
        self.asked = 0
        self._text = text

    async def pieces(self) -> AsyncIterator[str]:
        self.asked += 1
        await self.may_go_on.wait()
        yield self._text


class Pages:
    """The server under test, and the connections of its clients."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.work = Work()
        self.server = MetricsServer(page, self.work, lambda: True)
        self.port = 0
        self.open: list[Stream] = []

    async def ask(self, request: bytes) -> Stream:
        """Connect and send a request."""
        stream = await asyncio.open_connection("127.0.0.1", self.port)
        self.open.append(stream)
        stream[1].write(request)
        await stream[1].drain()
        return stream

    async def health(self) -> bytes:
        """Return the response to a health probe."""
        return await read_to_end(await self.ask(HEALTH))


async def read_to_end(stream: Stream) -> bytes:
    """Read to the end of the stream."""
    data = bytearray()
    with suppress(ConnectionError):
        while piece := await stream[0].read(1 << 20):
            data += piece
    return bytes(data)


def run(story: Callable[[Pages], Awaitable[None]], text: str = "up 1\n") -> None:
    async def all_of_it() -> None:
        pages = Pages(Page(text))
        pages.port = await pages.server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(pages)
        finally:
            pages.page.may_go_on.set()
            await pages.server.stop()
            for _, writer in pages.open:
                writer.transport.abort()
            pages.work.close()

    asyncio.run(all_of_it())


def test_silent_connections_prevent_no_other_response() -> None:
    async def story(pages: Pages) -> None:
        silent = [await pages.ask(b"GET /") for _ in range(CONNECTIONS_MAX)]
        assert b" 200 OK" in await pages.health()
        assert await read_to_end(silent[0]) == b""  # the oldest connection was closed

    run(story)


def test_connections_that_stay_open_prevent_no_other_response() -> None:
    async def story(pages: Pages) -> None:
        for _ in range(CONNECTIONS_MAX):
            reader, _ = await pages.ask(HEALTH)
            assert b" 200 OK" in await reader.readuntil(b"alive\n")
        assert b" 200 OK" in await pages.health()

    run(story)


def test_a_client_that_got_a_response_stays_while_others_are_silent() -> None:
    async def story(pages: Pages) -> None:
        slow = await pages.ask(HEALTH)
        assert b" 200 OK" in await slow[0].readuntil(b"alive\n")
        for _ in range(CONNECTIONS_MAX + 1):
            await pages.ask(b"GET /")
        assert b" 200 OK" in await pages.health()
        slow[1].write(b"more")  # the server still reads the open connection
        await slow[1].drain()
        slow[1].write_eof()
        assert await read_to_end(slow) == b""
        assert slow[0].exception() is None

    run(story)


def are_done(answers: Sequence[asyncio.Future[bytes]], count: int) -> bool:
    """Return whether exactly `count` responses have arrived."""
    return sum(each.done() for each in answers) == count


def test_scrapes_leave_room_for_probes() -> None:
    async def story(pages: Pages) -> None:
        for _ in range(2):  # in round 2, connections of round 1 are not counted
            pages.page.asked = 0
            pages.page.may_go_on.clear()
            asked = [await pages.ask(METRICS) for _ in range(CONNECTIONS_MAX)]
            answers = [asyncio.ensure_future(read_to_end(each)) for each in asked]
            refused = CONNECTIONS_MAX - SCRAPES_MAX
            await turn_until(partial(are_done, answers, refused))
            assert {b" 503 " in each.result() for each in answers if each.done()} == {True}
            assert b" 200 OK" in await pages.health()
            assert pages.page.asked == 1  # pages are built one at a time
            pages.page.may_go_on.set()
            found = await asyncio.gather(*answers)
            assert sum(b"up 1\n" in each for each in found) == SCRAPES_MAX

    run(story)


def test_a_response_that_is_not_received_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 2.0)
    size = 64 << 20

    async def story(pages: Pages) -> None:
        pages.page.may_go_on.set()
        reader, writer = await pages.ask(METRICS[:-2])
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        writer.write(METRICS[-2:])
        await turn_until(lambda: pages.page.asked == 1 and not pages.server._tasks)
        cast("asyncio.ReadTransport", writer.transport).resume_reading()
        assert len(await read_to_end((reader, writer))) < size

    run(story, "x" * size)


def without_length(head: bytes) -> bytes:
    """Remove the content length, which varies because the process's metrics vary."""
    assert re.search(rb"\r\nContent-Length: [1-9][0-9]*\r\n", head)
    return re.sub(rb"Content-Length: [0-9]+", b"", head)


@pytest.mark.parametrize("page", [b"/healthz", b"/readyz", b"/metrics", b"/nothing"])
def test_head_gets_the_headers_of_get_without_the_page(page: bytes) -> None:
    """RFC 9110, 9.1: a server that supports GET supports HEAD."""

    async def story(pages: Pages) -> None:
        pages.page.may_go_on.set()
        asked = b" %b HTTP/1.1\r\nHost: x\r\n\r\n" % page
        whole = await read_to_end(await pages.ask(b"GET" + asked))
        head, _, body = whole.partition(b"\r\n\r\n")
        assert body
        alone = await read_to_end(await pages.ask(b"HEAD" + asked))
        assert without_length(alone) == without_length(head + b"\r\n\r\n")

    run(story)


def test_an_unsupported_method_gets_the_allowed_ones() -> None:
    async def story(pages: Pages) -> None:
        answer = await read_to_end(await pages.ask(b"PUT /healthz HTTP/1.1\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nAllow: GET, HEAD\r\n" in answer

    run(story)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/healthz", "/healthz"),
        ("/healthz?full=1", "/healthz"),
        ("http://x/healthz", "/healthz"),
        ("HTTP://x:9404/healthz?a=b", "/healthz"),
        ("http://x", "/"),
        ("*", "*"),
    ],
)
def test_the_page_may_be_named_in_full(target: str, path: str) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    assert read_head(head)[:2] == ("GET", path)


@pytest.mark.parametrize(
    ("accepted", "may"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip ; q=1.000", True),
        ("x-gzip", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*;q=0", False),
        ("identity, gzipped", False),
        ("gzip;q=much", False),
    ],
)
def test_accept_encoding_decides_on_gzip(accepted: str, may: bool) -> None:
    assert takes_gzip(accepted) is may
