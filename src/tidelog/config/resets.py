"""Where a group begins that has not begun: `earliest`, `latest`, `by_duration:PT1H`.

Source: KIP-1106; ISO 8601 durations as Java's `Duration.parse` takes them, without months.
"""

import re
from typing import Final

from tidelog.config.values import ValueKind

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BY_DURATION: Final = "by_duration"

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+)(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_UNITS_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}
# A number of so many digits is beyond all time.
_DIGITS_MAX: Final = 18


def parse_reset(text: str) -> tuple[str, int]:
    """The kind and, by duration, how many ms ago; raises ValueError."""
    kind, _, duration = text.partition(":")
    if text in (EARLIEST, LATEST):
        return text, 0
    if kind != BY_DURATION:
        raise ValueError(text)
    return kind, _duration_ms(duration)


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None or found["time"] in ("T", "t") or len(text) == 1:
        raise ValueError(text)
    parts = {name: found[name] or "0" for name in _UNITS_MS}
    if any(len(part) > _DIGITS_MAX for part in parts.values()):
        raise ValueError(text)
    whole_ms = sum(int(parts[name]) * unit for name, unit in _UNITS_MS.items())
    return whole_ms + int((found["fraction"] or "").ljust(3, "0")[:3])


def _parse(text: str) -> str:
    parse_reset(text.strip())
    return text.strip()


RESET: Final = ValueKind("string", "earliest, latest or by_duration:PnDTnHnMn.nS", _parse)
