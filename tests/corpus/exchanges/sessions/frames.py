"""Frames that no client sends: some get a response, some make the broker close the connection."""

import struct
from pathlib import Path

from tests.corpus.exchanges.registry import flights
from tests.corpus.exchanges.session import Stage


def head(key: int, version: int, client: bytes = b"\0\1c", tags: bytes = b"") -> bytes:
    """Return a request's header."""
    return struct.pack(">hhi", key, version, 7) + client + tags


def play(home: Path) -> Stage:
    """Send invalid frames, one per connection, then three pipelined requests on one connection."""
    with Stage(home, is_measured=True) as stage:
        flights(stage)
        stage.chapter("heads")
        line = stage.line("odd")
        line.raw(b"", "an empty frame")
        line.raw(b"\0", "one byte")
        line.raw(b"\0\3\0\0\0\0\0", "half a header")
        line.raw(head(3, 99), "a version that is not there")
        line.raw(head(3, -1), "a version below 0")
        line.raw(head(999, 0), "an API that nobody knows")
        line.raw(head(-1, 0), "an API below 0")
        line.raw(head(4, 0), "an API between brokers")
        line.raw(head(7, 0), "an API of former brokers")
        line.raw(head(18, 99), "ApiVersions of a later client")
        line.raw(head(18, 0, b"\xff\xff"), "no client id")
        line.raw(head(18, 0, b"\0\0"), "an empty client id")
        line.raw(head(18, 0, b"\0\2\xff\xfe"), "a client id that is no UTF-8")
        line.raw(head(18, 0, b"\x7f\xff"), "a client id that is cut")
        line.raw(head(18, 0) + b"more", "bytes behind the message")
        stage.chapter("bodies")
        line.raw(head(3, 1) + b"\xff\xff\xff\xfe", "an array of -2")
        line.raw(head(3, 1) + b"\x7f\xff\xff\xff", "an array of 2^31-1")
        line.raw(head(3, 1) + b"\0\0\0\1\xff\xff", "a null that may not be")
        line.raw(head(3, 1) + b"\0\0\0\1\0\1\xff", "a string that is no UTF-8")
        line.raw(head(3, 9, tags=b"\0") + b"\1\1\0\0\1\x63\2ab", "an unknown tagged field")
        line.raw(head(3, 9, tags=b"\1\x63\1a") + b"\1\1\0\0\0", "one in the header")
        line.raw(head(3, 9, tags=b"\0") + b"\1\1\0\0\2\1\0\0\0", "tags that go down")
        line.raw(head(3, 9, tags=b"\0") + b"\xff\xff\xff\xff\xff\xff", "a varint without an end")
        line.raw(head(3, 9, tags=b"\0") + b"\1\2\0\0\0", "a flag of 2")
        stage.chapter("lengths")
        for size in (-1, 2**31 - 1, (100 << 20) + 1):
            odd = stage.line(f"size {size}")
            odd.length(size)
            odd.close()
        stage.chapter("pipelined")
        pipe = stage.line("pipe")
        for version in (1, 4, 9):
            pipe.send("metadata", version, {"topics": []})
        for _ in range(3):
            pipe.receive()
    return stage
