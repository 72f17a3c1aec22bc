"""Declares options for times and parses their texts (docs/time.md). `output` formats times."""

import re
from typing import Final, TypedDict, cast

import click

from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.timespec import (
    OPEN_END,
    OPEN_START,
    TIME_HELP,
    parse_duration,
    parse_point,
    parse_range,
    parse_sides,
)
from tidelog.types import INT64_MIN, NS_PER_MS, ClockName

from_option: Final = click.option(
    "--from",
    "start",
    metavar="TIME",
    help=f"Start time (inclusive), or a range A..B. {TIME_HELP}. Default: no limit.",
)

to_option: Final = click.option(
    "--to", "end", metavar="TIME", help="End time (exclusive). Default: no limit."
)

during_option: Final = click.option(
    "--during",
    metavar="RANGE",
    help="Both ends in one option: a whole day or month in a zone (2013-02-08Z, 2013-02Z,"
    " 'yesterday UTC'), or a range A..B ('2013-02-08 12:00..13:00 America/New_York',"
    " 2013-02-08Z..+7d)."
    " Default: no limit.",
)

timestamps_option: Final = click.option(
    "--timestamps",
    metavar="RANGE",
    help="With a range and --clock append: only records whose timestamps are in this second range,"
    " too ('..2013-02-08 12:00 America/New_York': created before noon). Default: no limit.",
)


def read_point(surroundings: Surroundings, text: str, zone: str | None) -> int:
    """Parse a point in time; return it in ms, rounded up for a search; raises InvalidTime."""
    return parse_point(text, now_ms=surroundings.env.clock.now_ms(), zone=zone)


def read_create_time(surroundings: Surroundings, text: str, zone: str | None) -> int:
    """Parse a record's create time; return it in ms, rounded down; raises InvalidTime."""
    return parse_point(text, now_ms=surroundings.env.clock.now_ms(), zone=zone, down=True)


def read_bounds(
    surroundings: Surroundings,
    start: str | None,
    end: str | None,
    zone: str | None,
    *,
    during: str | None = None,
) -> tuple[int | None, int | None]:
    """Return the range [start, end) in ms of `--from`, `--to`, `--during`.

    None means that the range has no start or no end.

    The text of `--from` may also be a whole range A..B.

    Raises:
        InvalidTime: A start or end can't be parsed, or the range is empty.
        UsageProblem: `--to` is given although `--from` is a range, or `--during` is combined with
            `--from` or `--to`.
    """
    if during is not None and (start is not None or end is not None):
        raise UsageProblem(f"--during {during} is a whole range; leave --from and --to out")
    if start is None and end is None and during is None:
        return None, None
    is_range = start is not None and _is_range(start)
    if is_range and end is not None:
        raise UsageProblem(f"--from {start} is a range already; leave --to out")
    now_ms = surroundings.env.clock.now_ms()
    if during is not None or is_range:
        first_ms, end_ms = parse_range(during or start or "", now_ms=now_ms, zone=zone)
    else:
        first_ms, end_ms = parse_sides(start or "", end or "", now_ms=now_ms, zone=zone)
    return None if first_ms == OPEN_START else first_ms, None if end_ms == OPEN_END else end_ms


def read_timestamps(
    surroundings: Surroundings,
    text: str | None,
    zone: str | None,
    clock: str,
    bounds: tuple[int | None, int | None],
) -> tuple[int, int] | None:
    """Return the range [start, end) in ms of `--timestamps`, for a scan's `timestamps`.

    None means that the option is not given.

    Args:
        surroundings: The command's clock.
        text: The option's value.
        zone: Value of `--zone`.
        clock: Value of `--clock`.
        bounds: Result of `read_bounds`.

    Raises:
        InvalidTime: The range can't be parsed, or is empty.
        UsageProblem: The option is given without a range of append times.
    """
    if text is None:
        return None
    if clock != ClockName.APPEND:
        raise UsageProblem(
            f"--timestamps {text} is a second range beside a range of append times; add --clock"
            " append, or use --during RANGE for timestamps alone"
        )
    if bounds == (None, None):
        raise UsageProblem(
            f"--timestamps {text} is a second range beside a range of append times; add --during"
            " RANGE, or use --during with --clock record for timestamps alone"
        )
    first_ms, end_ms = parse_range(text, now_ms=surroundings.env.clock.now_ms(), zone=zone)
    return INT64_MIN if first_ms == OPEN_START else first_ms, end_ms


class _Range(TypedDict, total=False):
    start: int | str | None
    end: int | str | None


def fix_range(
    surroundings: Surroundings, options: _Range, zone: str | None, *, during: str | None
) -> None:
    """Convert `--from`, `--to` and `--during` to ms; raises the errors of `read_bounds`."""
    start, end = (cast("str | None", options[side]) for side in ("start", "end"))
    bounds = read_bounds(surroundings, start, end, zone, during=during)
    options["start"], options["end"] = bounds


def _is_range(text: str) -> bool:
    """Whether the text is a range: A..B, or @A:B as in rpk."""
    without_clock = re.sub(r"T[0-9]{2}:[0-9]{2}:[0-9]{2}", "", text)
    return ".." in text or (text.startswith("@") and ":" in without_clock)


def duration_ms(text: str) -> int:
    """Parse a duration; return it in ms, rounded up; raises InvalidTime."""
    return -(-parse_duration(text) // NS_PER_MS)
