"""Log output of the broker: lines and JSON objects, their fields, and limits on floods."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidelog.env import ManualClock
from tidelog.server.logs import BURST, WINDOW_MS, LogFormat, logging_to

LOGGER = logging.getLogger("tidelog.server")


@contextmanager
def logged(kind: LogFormat, clock: ManualClock | None = None) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with logging_to(stream, kind, clock or ManualClock(0)):
        yield stream


def warn(host: str = "10.0.0.1") -> None:
    extra = {"client": host, "connection": 7, "api": "Produce", "error_code": 2}
    LOGGER.warning("closed connection %d from %s: %s", 7, host, "why", extra=extra)


def test_json_has_the_fields_that_there_are() -> None:
    with logged("json") as stream:
        warn()
        LOGGER.info("plain")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "warning",
        "logger": "tidelog.server",
        "message": "closed connection 7 from 10.0.0.1: why",
        "client": "10.0.0.1",
        "connection": 7,
        "api": "Produce",
        "error_code": 2,
    }
    assert set(second) == {"time", "level", "logger", "message"}


def test_control_characters_of_clients_are_escaped_in_log_lines() -> None:
    with logged("text") as stream:
        LOGGER.warning("topic %s", "a\nb\x1b[2J")
        warn()
    first, second = stream.getvalue().splitlines()
    assert first.endswith("warning topic a\\nb\\x1b[2J")
    assert second.endswith(": why api=Produce error_code=2")


def test_an_exception_is_logged_completely() -> None:
    with logged("json") as stream:
        try:
            raise ValueError("odd")
        except ValueError:
            LOGGER.exception("failed")
    told = json.loads(stream.getvalue())
    assert "ValueError: odd" in told["exception"]


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_flood_is_cut_and_counted(kind: LogFormat) -> None:
    clock = ManualClock(0)
    with logged(kind, clock) as stream:
        for _ in range(BURST + 5):
            warn()
        LOGGER.warning("another kind")
        clock.advance(WINDOW_MS)
        warn()
    lines = stream.getvalue().splitlines()
    assert len(lines) == BURST + 2
    assert "left_out" not in lines[-2]
    assert "left_out=5" in lines[-1] or '"left_out": 5' in lines[-1]


def test_an_exceptions_lines_have_no_control_characters() -> None:
    with logged("text") as stream:
        try:
            raise ValueError("\x1b[31mred")
        except ValueError:
            LOGGER.exception("failed")
    assert "\\x1b[31mred" in stream.getvalue()
    assert all(line.isprintable() for line in stream.getvalue().splitlines())
