"""Writers of rows: printed tables, and JSON lines and CSV for scripts."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Final

from tidelog.amounts import plural
from tidelog.cli.options import Format
from tidelog.cli.output.column import Cell, Column, Kind, Row, fields
from tidelog.cli.output.formatters import NONE, cell_text, count_text
from tidelog.cli.output.layout import (
    ELLIPSIS,
    GAP,
    Layout,
    common_start,
    cut,
    folded,
    headings,
    padded,
    plan,
    width_of,
    without_days,
    without_start,
)
from tidelog.cli.surroundings import Surroundings
from tidelog.html_cells import visible
from tidelog.record.exact_json import text_of

# Number of rows that are laid out and written together. Rows that follow may widen the columns.
ROWS_AT_ONCE: Final = 500
# A table with more rows than this ends with a line that states the number of its rows.
_ROWS_COUNTED: Final = 20
# Minimum width of a value in a block.
_VALUE_ROOM: Final = 10
# Display width at which the line below a table cuts the common start of a column's cells.
_START_WIDTH: Final = 120
_BOLD: Final = "\x1b[1m{}\x1b[0m"
_DIM: Final = "\x1b[2m{}\x1b[0m"
# Number of terminal columns that a live table leaves free on the right, because a terminal shows ^C
# there. Without this space, ^C would begin a new line.
_INTERRUPT: Final = 2


class Writer:
    """Writes rows to stdout; each row has a cell for every column.

    This base class writes JSON lines.
    """

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        self._surroundings = surroundings
        self._stdout = surroundings.stdout
        self._columns = columns
        self._zone = zone

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            print_object(self._surroundings, fields(self._columns, row, self._zone))
        self._stdout.flush()

    def close(self, total: int | None = None) -> None:
        """Write the lines below a table; if there were no rows, also write the heading.

        Args:
            total: Number of all rows, if a limit has left out some.
        """


def writer(
    surroundings: Surroundings,
    columns: Sequence[Column],
    kind: Format,
    *,
    zone: str | None = None,
) -> Writer:
    """Return a writer of rows to stdout."""
    make = {Format.TABLE: _Table, Format.CSV: _Csv}.get(kind, Writer)
    return make(surroundings, columns, zone)


def print_rows(
    surroundings: Surroundings,
    columns: Sequence[Column],
    rows: Iterable[Row],
    kind: Format,
    *,
    zone: str | None = None,
    total: int | None = None,
) -> None:
    """Write all rows to stdout.

    If a table has only one row and the row is too wide, it is written as a block.

    Args:
        surroundings: Its stdout gets the table.
        columns: The columns.
        rows: The rows.
        kind: The format.
        zone: Zone of the times; UTC if None.
        total: Number of all rows, if a limit has left out some.
    """
    source = iter(rows)
    first = list(islice(source, 2))
    is_single = kind is Format.TABLE and len(first) == 1
    if is_single and not _Table(surroundings, columns, zone).holds(first[0]):
        _print_block(surroundings, columns, first[0], zone, is_whole=False)
        return
    out = writer(surroundings, columns, kind, zone=zone)
    out.write(chain(first, source))
    out.close(total)


def print_summary(
    surroundings: Surroundings,
    columns: Sequence[Column],
    row: Row,
    kind: Format,
    *,
    zone: str | None = None,
) -> None:
    """Write one row to stdout.

    As a table, each column has a line. JSON and CSV are written as by `print_rows`.
    """
    if kind is Format.TABLE:
        _print_block(surroundings, columns, row, zone)
    else:
        print_rows(surroundings, columns, [row], kind, zone=zone)


def print_text(surroundings: Surroundings, text: str, *, hanging: int = 0) -> None:
    """Write a line of text to stdout; a line wider than the terminal is folded between words.

    Args:
        surroundings: Its stdout gets the text.
        text: Printable text.
        hanging: Indentation of its second and later lines.
    """
    room = surroundings.width
    lines = [text]
    if room is not None and width_of(text) > room:
        from textwrap import wrap

        indent = " " * min(hanging, room // 2)
        lines = wrap(text, room, subsequent_indent=indent, break_on_hyphens=False)
    surroundings.stdout.writelines(f"{line}\n" for line in lines)


def print_verdict(surroundings: Surroundings, sentence: str, kind: Format) -> None:
    """Write a command's result as one sentence: to stdout if a table follows, else to stderr."""
    if kind is Format.TABLE:
        print_text(surroundings, visible(sentence))
    else:
        surroundings.say(sentence)


def _print_block(
    surroundings: Surroundings,
    columns: Sequence[Column],
    row: Row,
    zone: str | None,
    *,
    is_whole: bool = True,
) -> None:
    """Write a row with a line for each column.

    If `is_whole` is false, the lines of optional columns without a value are left out. If no line
    would be left, all lines are written.
    """
    pairs = _visible(surroundings, columns, row)
    cells = [(column, cell_text(column, cell, zone)) for column, cell in pairs]
    if not is_whole:
        cells = [one for one in cells if not _is_empty(*one)] or cells
    names = [column.words_with(zone) for column, _ in cells]
    texts = [text for _, text in cells]
    surroundings.stdout.writelines(f"{line}\n" for line in _block(names, texts, surroundings.width))
    surroundings.stdout.flush()


def _block(names: Sequence[str], texts: Sequence[str], room: int | None) -> Iterator[str]:
    """Yield the lines of a block, each with a name and the text or a part of the text."""
    width = max(map(width_of, names))
    if room is not None:
        width = min(width, max(room - len(GAP) - _VALUE_ROOM, 1))
    for name, text in zip(names, texts, strict=True):
        lines = [text] if room is None else folded(text, max(room - width - len(GAP), 1))
        for title, line in zip_longest([cut(name, width)], lines, fillvalue=""):
            yield cut(f"{padded(title, width)}{GAP}{line}".rstrip(), room)


def _is_empty(column: Column, text: str) -> bool:
    """Whether a cell has no value, and its column is optional; see `Column.is_optional`."""
    return text == NONE and column.is_optional


def _visible(
    surroundings: Surroundings, columns: Sequence[Column], row: Row
) -> list[tuple[Column, object]]:
    """Return the columns with their cells; detail columns are included only with `--wide`."""
    pairs = zip(columns, row, strict=True)
    return [pair for pair in pairs if surroundings.is_wide or not pair[0].is_detail]


@contextmanager
def live(
    surroundings: Surroundings, columns: Sequence[Column], *, zone: str | None = None
) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Show a live table that fits the terminal; yields a function that shows new rows in it.

    At the end, or after Ctrl-C, the last table is printed.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    last: list[list[Row]] = []

    def show(rows: Iterable[Row]) -> None:
        last[:] = [list(rows)]
        page = io.StringIO()
        width = f"{max(console.width - _INTERRUPT, 1)}"
        variables = {**surroundings.variables, "COLUMNS": width}
        drawn = _Table(replace(surroundings, stdout=page, variables=variables), columns, zone)
        drawn.write(last[0])
        drawn.close()
        screen.update(Text(page.getvalue().rstrip(), no_wrap=True, overflow="crop"), refresh=True)

    console = Console(file=surroundings.stdout, no_color=not surroundings.wants_colour)
    try:
        with Live(console=console, auto_refresh=False, transient=True) as screen:
            yield show
    finally:
        for rows in last:
            print_rows(surroundings, columns, rows, Format.TABLE, zone=zone)


def print_object(surroundings: Surroundings, content: dict[str, Cell]) -> None:
    """Write a JSON object on one line of stdout."""
    surroundings.stdout.write(f"{text_of(content)}\n")


class _Csv(Writer):
    """Writes CSV with a heading. Null becomes an empty cell, empty text becomes `""`."""

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        super().__init__(surroundings, columns, zone)
        self._stdout.write(_csv_line(fields(columns, [None] * len(columns), zone)))

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            self._stdout.write(_csv_line(fields(self._columns, row, self._zone).values()))
        self._stdout.flush()


def _csv_line(cells: Iterable[object]) -> str:
    return f"{','.join(map(_csv_cell, cells))}\n"


def _csv_cell(cell: object) -> str:
    """Return a cell, quoted if needed. Python 3.11's writer does not quote a carriage return."""
    if cell is None:
        return ""
    text = cell if isinstance(cell, str) else text_of(cell)
    if text and not any(c in text for c in ',"\r\n'):
        return text
    quoted = text.replace('"', '""')
    return f'"{quoted}"'


class _Table(Writer):
    """Writes aligned columns under a heading, in the width of the terminal.

    Rows are written as they arrive. Later rows may make the columns wider. If the layout changes in
    more than the widths, for example because a column is dropped, the heading is written again.
    """

    def __init__(
        self, surroundings: Surroundings, columns: Sequence[Column], zone: str | None
    ) -> None:
        super().__init__(surroundings, columns, zone)
        self._room = surroundings.width
        self._shown = [one for one, _ in _visible(surroundings, columns, columns)]
        self._cells = [0] * len(self._shown)
        self._shorts = [0] * len(self._shown)
        # Indexes of the shown columns: the first column, columns that are always shown, and columns
        # in which a row has had a value so far.
        self._kept = {i for i, one in enumerate(self._shown) if not i or not one.is_optional}
        self._layout: Layout | None = None
        self._rows = 0
        self._cut: set[int] = set()  # columns whose cells were cut at the column's limit
        self._starts: dict[int, str] = {}  # common starts of columns, which "…" replaces

    def holds(self, row: Row) -> bool:
        """Whether a row fits into the width with all columns shown and no cell cut."""
        texts = self._limited(self._texts(row))
        layout = self._plan([texts], [texts])
        if layout is None or len(layout.shown) < len(self._kept):
            return False
        return all(
            width_of(texts[i]) <= width
            for i, width in zip(layout.shown, layout.widths, strict=True)
        )

    def _plan(self, chunk: list[list[str]], shorts: list[list[str]]) -> Layout | None:
        """Add rows, and return the layout for all rows so far; see `plan`."""
        for texts, short in zip(chunk, shorts, strict=True):
            self._cells = list(map(max, self._cells, map(width_of, texts)))
            self._shorts = list(map(max, self._shorts, map(width_of, short)))
        everything = set(range(len(self._shown)))
        if self._surroundings.is_wide:
            self._kept = everything
        elif self._room is None or not (chunk or self._rows):
            self._kept |= {i for i in everything if not self._shown[i].is_sparse}
        for texts in chunk:
            for i in everything - self._kept:
                if not _is_empty(self._shown[i], texts[i]):
                    self._kept.add(i)
        kept = sorted(self._kept)
        layout = plan(
            [self._shown[i] for i in kept],
            self._zone,
            [self._cells[i] for i in kept],
            [self._shorts[i] for i in kept],
            self._room,
        )
        if layout is None:
            return None
        return replace(layout, shown=tuple(kept[i] for i in layout.shown))

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        source = iter(rows)
        while chunk := list(islice(source, ROWS_AT_ONCE)):
            self._write_chunk([self._texts(row) for row in chunk])
            self._rows += len(chunk)
        self._stdout.flush()

    def close(self, total: int | None = None) -> None:
        """Write the number of rows and the names of dropped and cut columns; see `Writer`."""
        if self._layout is None and not self._rows:
            self._write_chunk([])
        cut_columns = sorted(self._cut_columns())
        if self._room is None:
            if cut_columns:  # the notes go to stderr, because a pipe gets only rows
                self._surroundings.note(self._wide_text([], cut_columns))
            return
        if total is not None and total > self._rows:
            self._note(f"{count_text(self._rows)} of {plural(total, 'row')}")
        elif self._rows > _ROWS_COUNTED:
            self._note(plural(self._rows, "row"))
        shown = self._layout.shown if self._layout is not None else self._kept
        hidden = sorted(self._kept.difference(shown))
        if hidden or cut_columns:
            self._note(self._wide_text(hidden, cut_columns))
        for i, start in self._starts.items():
            if i in shown:
                text = cut(start.rstrip(), _START_WIDTH)
                self._note(f"{ELLIPSIS} at the start of {self._shown[i].words} means {text}")
        self._stdout.flush()

    def _cut_columns(self) -> set[int]:
        """Return the indexes of the shown columns that have cut cells."""
        layout = self._layout
        if layout is None:
            return self._cut & self._kept
        cells = self._shorts if layout.is_short else self._cells
        return {
            i
            for i, width in zip(layout.shown, layout.widths, strict=True)
            if i in self._cut or (cells[i] > width and not self._shown[i].is_wrapped)
        }

    def _wide_text(self, hidden: Sequence[int], cut_columns: Sequence[int]) -> str:
        parts = [
            f"{what}: {', '.join(self._shown[i].words for i in columns)}"
            for what, columns in (("not shown", hidden), ("cut", cut_columns))
            if columns
        ]
        pronoun = "it" if len(hidden) + len(cut_columns) == 1 else "them"
        return f"{'; '.join(parts)}; --wide shows {pronoun}"

    def _note(self, text: str) -> None:
        """Write a line below the table."""
        for line in folded(text, self._room or width_of(text)):
            dim = _DIM.format(line) if self._surroundings.wants_colour else line
            self._stdout.write(f"{dim}\n")

    def _texts(self, row: Row) -> list[str]:
        """Return the cells of a row as text."""
        pairs = _visible(self._surroundings, self._columns, row)
        return [cell_text(column, cell, self._zone) for column, cell in pairs]

    def _limited(self, texts: list[str]) -> list[str]:
        """Return the cells of a row without the columns' common starts, cut at the limits."""
        if self._surroundings.is_wide:
            return texts
        shorter = list(texts)
        for i, start in self._starts.items():
            shorter[i] = without_start(texts[i], start)
        shown = [cut(text, one.limit) for text, one in zip(shorter, self._shown, strict=True)]
        if shown != shorter:
            self._cut.update(i for i, text in enumerate(shorter) if shown[i] != text)
        return shown

    def _find_starts(self, layout: Layout | None, rows: list[list[str]]) -> dict[int, str]:
        """Return the common starts of columns in which different cells would look alike.

        Only keys and values on a terminal have such starts. A start is searched until it is found,
        and is then used for all further rows.
        """
        if layout is None or self._room is None or self._surroundings.is_wide:
            return {}
        starts = {
            i: common_start([texts[i] for texts in rows], min(width, self._shown[i].limit or width))
            for i, width in zip(layout.shown, layout.widths, strict=True)
            if self._shown[i].kind is Kind.DATA and i not in self._starts
        }
        return {i: start for i, start in starts.items() if start}

    def _write_chunk(self, rows: list[list[str]]) -> None:
        before = self._layout
        known = self._cells, self._shorts, set(self._kept), set(self._cut)
        chunk, shorts, layout = self._laid_out(rows)
        if starts := self._find_starts(layout, rows):
            self._starts |= starts
            self._cells, self._shorts, self._kept, self._cut = known
            chunk, shorts, layout = self._laid_out(rows)
        self._layout = layout
        if layout is None:
            self._write_blocks(chunk)
            return
        if before is None or replace(before, widths=()) != replace(layout, widths=()):
            self._write_heading(layout)
        for texts in shorts if layout.is_short else chunk:
            self._stdout.writelines(f"{line}\n" for line in self._lines(layout, texts))

    def _laid_out(
        self, rows: list[list[str]]
    ) -> tuple[list[list[str]], list[list[str]], Layout | None]:
        """Return the cells of rows, the same cells in the short form, and the new layout."""
        chunk = shorts = [self._limited(texts) for texts in rows]
        if self._room is not None:
            shorts = [without_days(self._shown, texts) for texts in chunk]
        return chunk, shorts, self._plan(chunk, shorts)

    def _write_blocks(self, chunk: list[list[str]]) -> None:
        """Write each row as a block, with an empty line between blocks."""
        kept = sorted(self._kept)
        names = [self._shown[i].words_with(self._zone) for i in kept]
        for at, texts in enumerate(chunk, self._rows):
            self._stdout.write("\n" if at else "")
            lines = _block(names, [texts[i] for i in kept], self._room)
            self._stdout.writelines(f"{line}\n" for line in lines)

    def _write_heading(self, layout: Layout) -> None:
        words = headings(
            [self._shown[i] for i in layout.shown],
            self._zone,
            is_stacked=layout.is_stacked,
            rooms=layout.widths if layout.is_short else None,
        )
        of_column = dict(zip(layout.shown, words, strict=True))
        depth = max(map(len, words))
        for at in range(-depth, 0):
            texts = [
                lines[at] if len(lines := of_column.get(i, [])) >= -at else ""
                for i in range(len(self._shown))
            ]
            line = self._line(layout, texts)
            bold = _BOLD.format(line) if self._surroundings.wants_colour else line
            self._stdout.write(f"{bold}\n")

    def _lines(self, layout: Layout, texts: list[str]) -> list[str]:
        """Return a row's lines: several if a wrapped column is narrower than its text."""
        further = {
            i: folded(texts[i], width)
            for i, width in zip(layout.shown, layout.widths, strict=True)
            if self._shown[i].is_wrapped and width_of(texts[i]) > width
        }
        if not further:
            return [self._line(layout, texts)]
        lines = []
        for at in range(max(map(len, further.values()))):
            line = [text if not at else "" for text in texts]
            for i, parts in further.items():
                line[i] = parts[at] if at < len(parts) else ""
            lines.append(self._line(layout, line))
        return lines

    def _line(self, layout: Layout, texts: Sequence[str]) -> str:
        return GAP.join(
            padded(cut(texts[i], width), width, is_left=self._shown[i].kind.is_left)
            for i, width in zip(layout.shown, layout.widths, strict=True)
        ).rstrip()
