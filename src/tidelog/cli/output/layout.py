"""Chooses the columns that a table shows in a given width, and their widths. Pure.

Widths are display widths: a wide character takes two columns of the terminal, a combining mark
none. rich measures them; ASCII text, the usual case, is measured without importing rich.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.cli.output.column import Column, Kind
from tidelog.lazy_dataclass import dataclass

GAP: Final = "  "
# Minimum widths to which cells are shortened: in the last text column, in columns of keys and
# values, and in other text columns.
_LAST_TEXT: Final = 16
_DATA: Final = 12
_OTHER_TEXT: Final = 10
_ELLIPSIS: Final = "…"


def width_of(text: str) -> int:
    """Return the display width of printable text: the number of columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int | None) -> str:
    """Cut text to a display width; an ellipsis marks the cut. None means no limit."""
    if width is None or width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    if text.isascii():
        return f"{text[: width - 1]}{_ELLIPSIS}"
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1)}{_ELLIPSIS}"


def folded(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width`; ASCII text breaks between words, other anywhere."""
    if width_of(text) <= width:
        return [text]
    if text.isascii():
        from textwrap import wrap

        return wrap(text, width, break_on_hyphens=False) or [""]
    from rich.cells import chop_cells

    return chop_cells(text, width)


def padded(text: str, width: int, *, is_left: bool = True) -> str:
    """Pad text to a display width: on the right if `is_left`, else on the left."""
    space = " " * (width - width_of(text))
    return f"{text}{space}" if is_left else f"{space}{text}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that a table shows.

    Attributes:
        shown: Their indexes among all columns, in order.
        widths: Their widths.
        is_stacked: Whether each word of a heading has a line of its own.
    """

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    is_stacked: bool


def plan(
    columns: Sequence[Column], zone: str | None, cells: Sequence[int], room: int | None
) -> Layout | None:
    """Return the layout of a table; None if columns of sentences don't fit uncut.

    If a table is too wide, headings are stacked, and no text takes more than half of the room. If
    it is still too wide, these steps follow until it fits: shorten the last text column, keys and
    values; drop minor columns from the right; shorten the other text columns; drop columns from the
    right. The first column stays, cut if necessary. Columns of sentences are neither cut nor
    dropped.

    Args:
        columns: All columns.
        zone: Zone of times, which is part of their headings.
        cells: Width of each column's widest cell.
        room: Width of the terminal; None for as much as is needed.
    """
    everything = tuple(range(len(columns)))
    widths = [max(len(one.heading(zone)), cell) for one, cell in zip(columns, cells, strict=True)]
    if room is None or _total(widths) <= room:
        return Layout(everything, tuple(widths), False)
    words = [max(map(len, column.stacked_heading(zone))) for column in columns]
    widths = [*map(max, words, cells)]
    texts = [i for i in reversed(everything) if columns[i].kind in (Kind.TEXT, Kind.DATA)]
    data = [i for i in texts[1:] if columns[i].kind is Kind.DATA]
    floors = list(widths)
    for i in texts:
        least = _DATA if i in data else _LAST_TEXT if i == texts[0] else _OTHER_TEXT
        widths[i] = min(widths[i], max(words[i], least, room // 2))
        floors[i] = min(widths[i], max(words[i], least))
    droppable = [i for i in everything[:0:-1] if columns[i].kind is not Kind.PROSE]
    has_prose = any(column.kind is Kind.PROSE for column in columns)
    minors = [i for i in droppable if columns[i].is_minor]
    others = [i for i in droppable if not columns[i].is_minor]
    shown = list(everything)
    for flexible, dropped in (
        *(([*texts[:1], *data], i) for i in [None, *minors]),
        *((texts, i) for i in [None, *([] if has_prose else others)]),
    ):
        if dropped is not None:
            shown.remove(dropped)
        kept = [i for i in flexible if i in shown]
        fitted = _fitted(widths, floors, shown, kept, room)
        if fitted is not None:
            return Layout(tuple(shown), fitted, True)
    return None if has_prose else Layout((0,), (room,), True)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fitted(
    widths: Sequence[int],
    floors: Sequence[int],
    shown: Sequence[int],
    flexible: Sequence[int],
    room: int,
) -> tuple[int, ...] | None:
    """Return the widths of the columns in `shown`; None if they don't fit.

    Columns in `flexible` are reduced in this order, each down to its floor.
    """
    fitted = list(widths)
    excess = _total([widths[i] for i in shown]) - room
    for i in flexible:
        less = min(max(excess, 0), widths[i] - floors[i])
        fitted[i] -= less
        excess -= less
    return None if excess > 0 else tuple(fitted[i] for i in shown)
