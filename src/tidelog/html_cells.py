"""Makes cells of tables in HTML, and small tables for notebooks.

`html_table` makes a caption and a table; the notebook adds the styles. `tidelog.pages` makes whole
HTML pages. Invariant: all text from records or users is escaped, as in the terminal.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Final

# Maximum number of characters in a cell. A limit is needed because a record's value may be a
# megabyte.
CELL_LIMIT: Final = 80


def visible(text: str) -> str:
    """Return text with escape sequences for characters that can't be seen (NUL, ESC, U+202E)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def html_text(text: str) -> str:
    """Escape text for HTML; invisible characters become escape sequences, as in the terminal."""
    from html import escape  # the import takes 2 ms, and the terminal does not need it

    return escape(visible(text))


def html_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    note: str = "",
) -> str:
    """Return an HTML table; numbers are right-aligned, None is a dash, long cells are cut.

    Args:
        caption: A line above the table.
        headings: Headings, one for each column.
        rows: Cells: numbers, bytes, None, or any object, which is shown as text.
        note: A line below the table.
    """
    head = "".join(f"<th>{html_text(text)}</th>" for text in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    below = f"<div>{html_text(note)}</div>" if note else ""
    return f"<div><b>{html_text(caption)}</b>{table}{below}</div>"


def _cell(content: object) -> str:
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    style = ' style="text-align:right"' if is_number else ""
    return f"<td{style}>{html_text(_text(content))}</td>"


def _text(content: object) -> str:
    if content is None:
        return "-"
    if isinstance(content, int) and not isinstance(content, bool):
        return f"{content:,}"
    if isinstance(content, bytes):
        content = bytes_cell(content)
    text = str(content)
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def bytes_cell(data: bytes) -> str:
    """Return bytes as in the terminal: text if they are UTF-8, else the first bytes in base64."""
    if not data:
        return "(empty)"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f'{{"base64": "{b64encode(data[:CELL_LIMIT]).decode("ascii")}"}}'
