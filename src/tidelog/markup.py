"""Small HTML for notebooks: a caption and a table, everything escaped.

Pure. Owns no page and no style sheet: what a notebook has is used.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

# What one cell may show: a record's value may be a megabyte.
CELL_LIMIT: Final = 80


def shown(text: str) -> str:
    """Return the text for HTML: escaped, and what can't be seen as escapes (NUL, ESC, U+202E)."""
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
        )
    return escape(text)


def html_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    note: str = "",
) -> str:
    """A table; numbers to the right, None as a dash, long cells cut.

    Args:
        caption: A line above it.
        headings: One for each column.
        rows: Cells; whatever they are, their text is shown.
        note: A line below it.
    """
    head = "".join(f"<th>{shown(text)}</th>" for text in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    below = f"<div>{shown(note)}</div>" if note else ""
    return f"<div><b>{shown(caption)}</b>{table}{below}</div>"


def _cell(content: object) -> str:
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    style = ' style="text-align:right"' if is_number else ""
    return f"<td{style}>{shown(_text(content))}</td>"


def _text(content: object) -> str:
    if content is None:
        return "-"
    if isinstance(content, int) and not isinstance(content, bool):
        return f"{content:,}"
    if isinstance(content, bytes):
        content = content[: CELL_LIMIT + 1].decode("utf-8", "replace")
    text = str(content)
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def bytes_text(size_bytes: int) -> str:
    """A size for people: `1.5 GB`, in powers of 1000."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
