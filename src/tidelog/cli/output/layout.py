"""Which columns a table shows in a given width, and how wide. Pure.

Widths are display widths: a wide character takes two columns of the terminal, a combining mark
none. rich measures them; text of ASCII alone, the usual case, needs no import of it.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.cli.output.column import Column, Kind
from tidelog.lazy_dataclass import dataclass

GAP: Final = "  "
# Text is shortened to these widths, not further: the last text column, keys and values, others.
_LAST_TEXT: Final = 16
_DATA: Final = 12
_OTHER_TEXT: Final = 10
_ELLIPSIS: Final = "…"


def width_of(text: str) -> int:
    """Return how many columns of a terminal printable text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int | None) -> str:
    """Return text that is at most so wide; an ellipsis marks what was cut. None means no limit."""
    if width is None or width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    if text.isascii():
        return f"{text[: width - 1]}{_ELLIPSIS}"
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1)}{_ELLIPSIS}"


def folded(text: str, width: int) -> list[str]:
    """Return text as lines that are at most so wide, broken between words if they are ASCII."""
    if width_of(text) <= width:
        return [text]
    if text.isascii():
        from textwrap import wrap

        return wrap(text, width, break_on_hyphens=False) or [""]
    from rich.cells import chop_cells

    return chop_cells(text, width)


def padded(text: str, width: int, *, is_left: bool = True) -> str:
    """Return text padded to a width."""
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
    """Return the layout of a table, None if sentences don't fit whole.

    Where it does not fit, headings are stacked, and no text takes more than half of the room; then
    the last text column, keys and values are shortened, minor columns are dropped from the right,
    the other text columns are shortened, and columns are dropped from the right. The first one
    stays, cut if it must be. Columns of sentences are neither cut nor dropped.

    Args:
        columns: All columns.
        zone: Zone of times, which their headings name.
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
    """Return the widths of columns, those of flexible ones reduced; None if they don't fit."""
    fitted = list(widths)
    excess = _total([widths[i] for i in shown]) - room
    for i in flexible:
        less = min(max(excess, 0), widths[i] - floors[i])
        fitted[i] -= less
        excess -= less
    return None if excess > 0 else tuple(fitted[i] for i in shown)
