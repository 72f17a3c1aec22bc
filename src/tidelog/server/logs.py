"""The broker's log lines, as text or JSON. They never contain contents of records.

Fields in addition to the text are given by `extra=`: `client` (address), `connection`, `api`,
`error_code`, `address` (of the broker). Floods of similar lines are limited: in one time window,
`BURST` lines of a kind are written, and further lines of this kind are only counted. The next
written line of this kind reports how many lines were left out.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from tidelog.env import Clock

LogFormat = Literal["text", "json"]

FIELDS: Final = ("client", "connection", "api", "error_code", "address")
# Value of `extra=` for lines at start and stop, which are never limited.
LOGGED_ONCE: Final = {"is_logged_once": True}
# Fields that text lines don't add, because the message already contains them.
_IN_THE_TEXT: Final = frozenset({"client", "connection", "address"})
# Maximum number of lines of one kind (one place in the code) in a window of `WINDOW_MS` ms.
BURST: Final = 20
WINDOW_MS: Final = 10_000


@contextmanager
def logging_to(stream: TextIO, kind: LogFormat, clock: Clock) -> Iterator[None]:
    """Log lines of level INFO and above to a stream until the `with` block ends."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    handler.addFilter(FloodGate(clock))
    logger = logging.getLogger("tidelog")
    before = (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields that are set."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        content: dict[str, object] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= _fields(record)
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Time, level, message, and the fields that the message does not contain.

    Control characters are escaped, so that no client can forge log lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        values = {k: v for k, v in _fields(record).items() if k not in _IN_THE_TEXT}
        fields = "".join(f" {name}={value}" for name, value in values.items())
        message = f"{record.getMessage()}{fields}"
        line = f"{_iso(record.created)} {record.levelname.lower()} {_escaped(message)}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            line = "\n".join((line, *map(_escaped, lines)))
        return line


def _escaped(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _iso(created_s: float) -> str:
    return datetime.fromtimestamp(created_s, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    values = {name: getattr(record, name, None) for name in FIELDS}
    left_out = getattr(record, "left_out", 0)
    return {name: value for name, value in values.items() if value is not None} | (
        {"left_out": left_out} if left_out else {}
    )


class FloodGate(logging.Filter):
    """Limits each place in the code to `BURST` lines in `WINDOW_MS`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        # Start of the window (monotonic, in ms), number of lines written, and number of lines left
        # out, for each place in the code.
        self._kinds: dict[tuple[str, int], tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if getattr(record, "is_logged_once", False):
            return True
        kind = (record.pathname, record.lineno)
        now_ms = self._clock.monotonic_ms()
        began_ms, count, left_out = self._kinds.get(kind, (now_ms, 0, 0))
        if now_ms - began_ms >= WINDOW_MS:
            began_ms, count = now_ms, 0
        if count >= BURST:
            self._kinds[kind] = (began_ms, count, left_out + 1)
            return False
        self._kinds[kind] = (began_ms, count + 1, 0)
        if left_out:
            record.left_out = left_out
        return True
