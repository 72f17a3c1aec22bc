"""Parses lengths of time, such as `90s` or `1d12h`, to whole nanoseconds.

Decimals are computed with integers, and fractions of a nanosecond are refused. A day is 24 hours, a
week 7 days; months and years have no fixed length and are refused.
"""

import re
from typing import Final

from tidelog.errors import InvalidTime
from tidelog.types import NS_PER_MS

NS_PER_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * NS_PER_SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_WEEK: Final = 7 * _DAY

_UNITS: Final = {
    "ns": 1,
    "us": 1000,
    "µs": 1000,
    "ms": NS_PER_MS,
    "s": NS_PER_SECOND,
    "m": _MINUTE,
    "min": _MINUTE,
    "h": _HOUR,
    "d": _DAY,
    "w": _WEEK,
}
_WORDS: Final = {
    "millisecond": NS_PER_MS,
    "second": NS_PER_SECOND,
    "minute": _MINUTE,
    "hour": _HOUR,
    "day": _DAY,
    "week": _WEEK,
}
EPOCH_UNITS: Final = {"s": NS_PER_SECOND, "ms": NS_PER_MS, "us": 1000, "µs": 1000, "ns": 1}

_NUMBER: Final = r"([0-9]{1,19})(?:[.,]([0-9]{1,18}))?"
# Words for units may have capital letters. Abbreviations must not have capital letters, because M
# could mean months.
_PART: Final = re.compile(
    _NUMBER
    + r"\s*(?:(?i:(millisecond|second|minute|hour|day|week)s?)|(ns|us|µs|ms|min|[smhdw]))\s*",
    re.ASCII,
)
_ISO: Final = re.compile(
    rf"P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?",
    re.ASCII,
)
# None means that the length of the unit depends on the calendar.
_ISO_UNITS: Final = (None, None, _WEEK, _DAY, _HOUR, _MINUTE, NS_PER_SECOND)

FORMS: Final = "write it like 6h, 90s, 1d12h, 90 minutes or PT6H"


def parse_duration(text: str) -> int:
    """Parse a length of time without a sign to ns.

    Args:
        text: A length such as `6h`, `1d12h`, `1.5h`, `90 minutes`, or ISO 8601 (`P1DT12H`).

    Raises:
        InvalidTime: The text has none of these forms, has months or years, or has a fraction of a
            nanosecond.
    """
    if text[:1] in ("P", "p"):
        return _parse_iso(text)
    at, total = 0, 0
    while match := _PART.match(text, at):
        unit_ns = _WORDS[match[3].lower()] if match[3] else _UNITS[match[4]]
        total += scaled(text, match[1], match[2], unit_ns)
        at = match.end()
    if at < len(text) or not text:
        rest = f" (stopped at {text[at:]!r})" if at else ""
        raise InvalidTime(text, f"not a length of time{rest}; {FORMS}")
    return total


def _parse_iso(text: str) -> int:
    match = _ISO.fullmatch(text.upper())
    numbers = match.groups() if match else ()
    if not any(numbers) or text[-1] in "Tt":
        raise InvalidTime(text, f"not an ISO 8601 duration; {FORMS}")
    total = 0
    for unit, whole, decimals in zip(_ISO_UNITS, numbers[::2], numbers[1::2], strict=True):
        if whole is not None:
            if unit is None:
                raise InvalidTime(text, "months and years have no fixed length; write days")
            total += scaled(text, whole, decimals, unit)
    return total


def scaled(text: str, whole: str, decimals: str | None, unit_ns: int) -> int:
    """Return `whole.decimals` units in ns; raises InvalidTime for fractions of a nanosecond."""
    digits = decimals or ""
    scale = int("1" + "0" * len(digits))
    total, rest = divmod(int(whole + digits) * unit_ns, scale)
    if rest:
        raise InvalidTime(text, "finer than a nanosecond")
    return total
