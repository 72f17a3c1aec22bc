"""rpk's `@` forms: `@A`, `@A:`, `@A:B`, `@:B`, `@A:end`.

In them 10 digits are seconds and 13 are ms, dates are UTC, and a length without a sign lies ahead.
B counts from A where A is an absolute time, else from now. `end` is no bound.

Source: behaviour of `rpk topic consume --offset`, which turns the ends into offsets; ours are
exact to the record.
"""

import re
from collections.abc import Callable
from datetime import UTC
from typing import Final

from tidelog.errors import InvalidTime
from tidelog.timespec.points import checked_ms, read_moment
from tidelog.timespec.units import NS_PER_SECOND, parse_duration
from tidelog.types import NS_PER_MS

# Each side ends at a colon or at the end of the text; the times have colons of their own.
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z"
_SIDE: Final = rf"({_TIME}|[^:]*)"
_FORM: Final = re.compile(rf"@{_SIDE}(?::{_SIDE})?", re.ASCII)
_FORMS: Final = (
    "after @ comes 13 digits (ms), 10 digits (s), YYYY-MM-DD, YYYY-MM-DDTHH:MM:SSZ or a length"
    " such as -48h; after a colon the end likewise, or `end`"
)


def parse_rpk_point(text: str, *, now_ms: int) -> int:
    """`@A` in ms since the epoch; raises InvalidTime."""
    first, second = _split(text)
    if second is not None or not first:
        raise InvalidTime(text, "a range, where one point in time is needed")
    return checked_ms(text, _read_side(text, first, now_ms, now_ms * NS_PER_MS)[0])


def parse_rpk_range(text: str, *, now_ms: int, open_range: tuple[int, int]) -> tuple[int, int]:
    """Any of the forms, as [start, end) in ms since the epoch.

    Args:
        text: From the `@` on.
        now_ms: What lengths count from.
        open_range: Start and end where there is no bound.

    Raises:
        InvalidTime: It can't be read.
    """
    first, second = _split(text)
    start, end = open_range
    base_ns = now_ms * NS_PER_MS
    if first:
        start_ns, is_absolute = _read_side(text, first, now_ms, base_ns)
        start = checked_ms(text, start_ns)
        base_ns = start_ns if is_absolute else base_ns
    if second and second != "end":
        end = checked_ms(text, _read_side(text, second, now_ms, base_ns)[0])
    return start, end


def _split(text: str) -> tuple[str, str | None]:
    found = _FORM.fullmatch(text)
    if found is None or found[1] == "end" or text == "@":
        raise InvalidTime(text, _FORMS)
    return found[1], found[2]


def _read_side(text: str, side: str, now_ms: int, base_ns: int) -> tuple[int, bool]:
    """The instant in ns, and whether it is absolute; lengths count from `base_ns`."""
    for pattern, read in _ABSOLUTE:
        if re.fullmatch(pattern, side, re.ASCII):
            return read(side, now_ms), True
    sign = -1 if side[0] == "-" else 1
    try:
        return base_ns + sign * parse_duration(side.lstrip("-") if sign < 0 else side), False
    except InvalidTime:
        raise InvalidTime(text, f"{side!r} can't be read; {_FORMS}") from None


def _read_utc(side: str, now_ms: int) -> int:
    return read_moment(side, now_ms).resolve(now_ms * NS_PER_MS, UTC)


_ABSOLUTE: Final[tuple[tuple[str, Callable[[str, int], int]], ...]] = (
    (r"[0-9]{13}", lambda side, _: int(side) * NS_PER_MS),
    (r"[0-9]{10}", lambda side, _: int(side) * NS_PER_SECOND),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", _read_utc),
    (_TIME, _read_utc),
)
