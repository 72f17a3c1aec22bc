"""Chooses the columns that a table shows in a given width, and their widths.

Widths are display widths: a wide character takes two columns of the terminal, and a combining mark
takes none. rich measures them; ASCII text, the usual case, is measured without importing rich.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from tidelog.cli.output.column import Column, Kind
from tidelog.cli.output.formatters import EMPTY, NULL
from tidelog.lazy_dataclass import dataclass

GAP: Final = "  "
# Minimum widths to which cells are shortened: in the last text column, in columns of keys and
# values, and in all other text columns.
_LAST_TEXT: Final = 16
_DATA: Final = 12
_OTHER_TEXT: Final = 10
ELLIPSIS: Final = "…"
# Shortest common start of a column's cells that an ellipsis replaces.
_START_LEAST: Final = 8
# Characters between fields, and between a field's name and its value.
_FIELD_ENDS: Final = ",;{[|&"
_NAME_ENDS: Final = ":= "


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
        return f"{text[: width - 1]}{ELLIPSIS}"
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1)}{ELLIPSIS}"


def without_start(text: str, start: str) -> str:
    """Replace `start` by an ellipsis in a text that begins with it; return other texts as is."""
    return f"{ELLIPSIS}{text[len(start) :]}" if text.startswith(start) else text


def common_start(texts: Iterable[str], width: int) -> str:
    """Return a common start of a column's cells that should be replaced by an ellipsis.

    Return "" if all different cells differ in the first `width` columns of the terminal, or if
    their common start is short. Cells without a value may lack the start.

    The start ends between two fields, so that the first shown field keeps its name. The start ends
    before a value, or between any two characters, only if more cells then differ.
    """
    cells = {text for text in texts if text not in (NULL, EMPTY)}
    seen = len({cut(text, width) for text in cells})
    if seen == len(cells):
        return ""
    longest = _shared_start(min(cells), max(cells))
    best = ""
    for start in (_up_to(_FIELD_ENDS, longest), _up_to(_NAME_ENDS, longest), longest):
        if len(start) >= _START_LEAST:
            different = len({cut(without_start(text, start), width) for text in cells})
            if different > seen:
                best, seen = start, different
    return best


def _shared_start(first: str, last: str) -> str:
    """Return the common start of two texts; all texts between them in sorted order have it, too."""
    pairs = enumerate(zip(first, last, strict=False))
    end = next((at for at, (one, other) in pairs if one != other), min(len(first), len(last)))
    return first[:end]


def _up_to(ends: str, text: str) -> str:
    """Return the text up to the last of these characters, with the spaces after it."""
    end = 1 + max(map(text.rfind, ends))
    return text[: len(text) - len(text[end:].lstrip(" "))]


def folded(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width`: ASCII text between words, other text anywhere."""
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


def without_days(columns: Sequence[Column], texts: Sequence[str]) -> list[str]:
    """Return a row's cells in the short form: a day that all times share is shown once.

    The first time keeps the day, and the later times are shortened to the time of day. If the times
    of a row are on several days, each time keeps its day; a time without a day is therefore never
    ambiguous.
    """
    short = list(texts)
    times = [i for i, one in enumerate(columns) if one.kind is Kind.TIME and " " in texts[i]]
    if len({texts[i].partition(" ")[0] for i in times}) == 1:
        for i in times[1:]:
            short[i] = texts[i].partition(" ")[2]
    return short


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that a table shows.

    Attributes:
        shown: Indexes of the shown columns among all columns, in order.
        widths: Widths of the shown columns.
        is_stacked: Whether each word of a heading is on a separate line.
        is_short: Whether the table has the short form: `without_days` shortens the cells, and the
            headings of all time columns but the first omit the zone if the zone would widen the
            column.
    """

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    is_stacked: bool = False
    is_short: bool = False


def headings(
    columns: Sequence[Column],
    zone: str | None,
    *,
    is_stacked: bool = True,
    rooms: Sequence[int] | None = None,
) -> list[list[str]]:
    """Return the lines of each column's heading.

    Args:
        columns: The columns.
        zone: Zone of times.
        is_stacked: Whether each word is on a separate line.
        rooms: Width of each column in the short form (`Layout.is_short`); None for the long form.
    """
    if not is_stacked:
        return [[column.heading(zone)] for column in columns]
    times = [i for i, column in enumerate(columns) if column.kind is Kind.TIME]
    lines = [column.stacked_heading(zone) for column in columns]
    if rooms is not None:
        for i in times[1:]:
            if len(lines[i][-1]) > rooms[i]:
                lines[i].pop()
    return lines


def plan(
    columns: Sequence[Column],
    zone: str | None,
    cells: Sequence[int],
    shorts: Sequence[int],
    room: int | None,
) -> Layout | None:
    """Return the layout of a table; None if columns of sentences don't fit uncut.

    If a table is too wide, headings are stacked, and text columns that are not wrapped take at most
    half of the room. If the table is still too wide, these steps are taken in order until it fits:

    1. Shorten the last text column, wrapped columns, keys and values. Also use the short form
       (`Layout.is_short`) if it makes columns narrower.
    2. Return to the long form, and drop minor columns.
    3. Shorten the other text columns.
    4. Drop other columns.

    Columns further to the left have priority. In steps 2 and 4, a column is dropped only if it does
    not fit beside the columns that have priority over it, so a wide column may be dropped while
    narrower columns to the right of it are shown. After step 4, minor columns are shown only if no
    text column has to be shortened for them, except those of step 1. The first column is never
    dropped, but it is cut if necessary. Columns of sentences are neither cut nor dropped.

    Args:
        columns: All columns.
        zone: Zone of times, which is part of their headings.
        cells: Width of each column's widest cell.
        shorts: Width of each column's widest cell in the short form, see `without_days`.
        room: Width of the terminal; None for no limit.
    """
    everything = tuple(range(len(columns)))
    widths = [max(len(one.heading(zone)), cell) for one, cell in zip(columns, cells, strict=True)]
    if room is None or _total(widths) <= room:
        return Layout(everything, tuple(widths))
    texts = [i for i in reversed(everything) if columns[i].kind in (Kind.TEXT, Kind.DATA)]
    data = [*texts[:1], *(i for i in texts[1:] if _is_data(columns[i]))]
    sizes = _sizes(columns, zone, cells, room)
    fitted = _fitted(*sizes, everything, [], room)
    if fitted is not None:
        return Layout(everything, fitted, is_stacked=True)
    short = _sizes(columns, zone, shorts, room, is_short=True)
    forms = [(True, short)] if sum(short[0]) < sum(sizes[0]) else []
    for is_short, some in (*forms, (False, sizes)):
        fitted = _fitted(*some, everything, data, room)
        if fitted is not None:
            return Layout(everything, fitted, is_stacked=True, is_short=is_short)
    least = _sizes(columns, zone, cells, room, is_least=True)

    def fit(shown: Sequence[int], *, is_least: bool) -> tuple[int, ...] | None:
        some, flexible = (least, texts) if is_least else (sizes, data)
        return _fitted(*some, shown, [i for i in flexible if i in shown], room)

    shown = _kept(columns, fit)
    fitted = fit(shown, is_least=False) or fit(shown, is_least=True)
    if fitted is not None:
        return Layout(tuple(shown), fitted, is_stacked=True)
    has_prose = any(column.kind is Kind.PROSE for column in columns)
    return None if has_prose else Layout((0,), (room,), is_stacked=True)


class _Fit(Protocol):
    """Function that returns the widths of the shown columns; None if they don't fit."""

    def __call__(self, shown: Sequence[int], *, is_least: bool) -> tuple[int, ...] | None: ...


def _kept(columns: Sequence[Column], fit: _Fit) -> list[int]:
    """Return the columns that a table keeps if not all of them fit; see steps 2 to 4 of `plan`.

    With `is_least`, `fit` shortens all text columns, otherwise only those of step 1.
    """

    def filled(shown: Sequence[int], more: Sequence[int], *, is_least: bool) -> list[int]:
        """Return `shown` and the columns of `more` that also fit; earlier columns have priority."""
        chosen = [*shown]
        for i in more:
            if fit(sorted([*chosen, i]), is_least=is_least) is not None:
                chosen.append(i)
        return sorted(chosen)

    minors = [i for i, one in enumerate(columns) if i and one.is_minor]
    minors = [i for i in minors if columns[i].kind is not Kind.PROSE]
    shown = [i for i in range(len(columns)) if i not in minors]
    has_prose = any(column.kind is Kind.PROSE for column in columns)
    is_fitting = fit(shown, is_least=False) is not None or fit(shown, is_least=True) is not None
    if not is_fitting and not has_prose:
        shown = filled(shown[:1], shown[1:], is_least=True)
    return filled(shown, minors, is_least=False)


def _sizes(
    columns: Sequence[Column],
    zone: str | None,
    cells: Sequence[int],
    room: int,
    *,
    is_short: bool = False,
    is_least: bool = False,
) -> tuple[list[int], list[int]]:
    """Return the widths of columns under stacked headings, and their minimum widths.

    If `is_least` is true, a wrapped column has the same minimum width as other text columns.
    """
    rooms = cells if is_short else None
    words = [max(map(len, lines)) for lines in headings(columns, zone, rooms=rooms)]
    widths = [*map(max, words, cells)]
    floors = list(widths)
    texts = [i for i, one in enumerate(columns) if one.kind in (Kind.TEXT, Kind.DATA)]
    for i in texts:
        usual = _LAST_TEXT if i == texts[-1] else _DATA if _is_data(columns[i]) else _OTHER_TEXT
        least = usual if is_least and columns[i].is_wrapped else columns[i].least or usual
        most = room if columns[i].is_wrapped else room // 2
        widths[i] = min(widths[i], max(words[i], least, most))
        floors[i] = min(widths[i], max(words[i], least))
    return widths, floors


def _is_data(column: Column) -> bool:
    """Whether a column holds keys or values, or is wrapped.

    `plan` shortens such a column, and the last text column, before it drops minor columns.
    """
    return column.kind is Kind.DATA or column.is_wrapped


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

    If the columns are too wide, those in `flexible` are narrowed one after the other, but none
    below its minimum width in `floors`.
    """
    fitted = list(widths)
    excess = _total([widths[i] for i in shown]) - room
    for i in flexible:
        less = min(max(excess, 0), widths[i] - floors[i])
        fitted[i] -= less
        excess -= less
    return None if excess > 0 else tuple(fitted[i] for i in shown)
