"""Writes reports as one self-contained HTML file: a verdict, texts, lists, tables, plots, a footer.

This module has the page, its style sheet and its sections. `tidelog.plots` has the plots. A page
begins with one sentence that sums up the result, and ends with the data that a user needs to repeat
the command.

Invariants: all text from records or users is escaped, as in the terminal. A page has no script and
loads nothing from elsewhere. A table has at most `ROWS_MAX` rows, so that a page stays below a few
MB. A table shows its first `ROWS_FIRST` rows, and folds the other rows. Only `write_report` writes
a file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from html import escape
from typing import Final, TypeAlias

from tidelog.html_cells import html_text, visible
from tidelog.lazy_dataclass import dataclass
from tidelog.plots import Plot, Series, Steps, Unit, joined, steps_for

# Number of rows of a table that are not folded, and maximum number of rows of a table in a page,
# folded rows included.
ROWS_FIRST: Final = 50
ROWS_MAX: Final = 1_000
# `CELL_MAX` is the maximum number of characters of a cell, except for a text of several words,
# which a browser can break into lines. `_WHOLE_MAX` is the maximum for a text of several words, and
# for the text that a browser shows while the pointer is over a cut cell.
CELL_MAX: Final = 40
_WHOLE_MAX: Final = 1_000
# Number of lines of a list that are not folded.
_ITEMS_FIRST: Final = 20
_SECRETS: Final = ("--store-option", "--to-store-option", "--option", "--conf")


class Align(Enum):
    """Type of a column, which decides how its cells are aligned. The value is a CSS class."""

    TEXT = "t"
    NUMBER = "n"
    TIME = "d"


_NUMBER: Final = re.compile(r"[<>≤]?=?-?[\d,.]+( ?(%|[a-zA-Z]{1,5}))?([\d.]+[a-z]+)?( / [\d,.]+)?")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d.*|\d\d?:\d\d")
_NONE: Final = ("-", "")
# Matches times and options in sentences. Without markup, a browser might break them into lines at a
# hyphen or a space.
_UNBROKEN: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?: \d\d:\d\d(?::\d\d)?)?|(?<!\S)--?[a-z][a-z-]{0,30}(?!\S)"
)
# Number of characters of a row that fit the width of a phone. A phone shows each row of a wider
# table as a block.
_PHONE_WIDTH: Final = 38
# Match secret parts of URLs: the user with a password, and parameters such as a password.
_USER: Final = re.compile(r"://[^/\s]*@")
_PASSWORD: Final = re.compile(
    r"(?i)((?:pass|pwd|secret|token|credential|signature|(?:api|access|account)[_-]?key)\w*|\bsig)"
    r"=[^&;\s]*"
)


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    title: str = ""

    def html(self) -> str:
        """Return the paragraph as HTML."""
        return f"<p>{_prose(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of lines."""

    lines: Sequence[str]
    title: str = ""

    def html(self) -> str:
        """Return the list as HTML; a long list is folded, and a very long list is also cut."""
        rest = self.lines[_ITEMS_FIRST:ROWS_MAX]
        folded = ""
        if rest:
            folded = f"<details><summary>{len(rest):,} more</summary>{_list(rest)}</details>"
        left = len(self.lines) - ROWS_MAX
        cut = f"<p>{left:,} more lines are left out.</p>" if left > 0 else ""
        return f"{_list(self.lines[:_ITEMS_FIRST])}{folded}{cut}"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_prose(line)}</li>' for line in lines)}</ul>"


def _prose(text: str) -> str:
    """Escape a sentence; times and options in it stay on one line."""
    return _UNBROKEN.sub(r'<span class="d">\g<0></span>', html_text(text))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Attributes:
        columns: The headings.
        rows: The cells.
        title: Title above the table.
        aligned: Types of the columns. If empty, the types are derived from the cells.
        whole: Options that print all rows, e.g. `--show hours -o csv`.
        nothing: Sentence to show instead of a table without rows.
        hidden: Names of omitted columns, which only a command with the options `whole` prints.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    aligned: Sequence[Align] = ()
    whole: str = "-o csv"
    nothing: str = "No rows."
    hidden: Sequence[str] = ()

    def html(self) -> str:
        """Return the table as HTML; all rows except the first `ROWS_FIRST` are folded."""
        if not self.rows:
            return f"<p>{html_text(self.nothing)}</p>"
        aligned, is_wide = self.aligned or self._by_cells(), self._is_wide()
        name = self.title or "Table"
        parts = [self._table(self.rows[:ROWS_FIRST], aligned, name, is_wide)]
        if rest := self.rows[ROWS_FIRST:ROWS_MAX]:
            more = self._table(rest, aligned, f"{name}, more rows", is_wide)
            parts.append(f"<details><summary>{len(rest):,} more rows</summary>{more}</details>")
        count = len(self.rows)
        if count > ROWS_MAX:
            parts.append(
                f'<p class="note">{ROWS_MAX:,} of {count:,} rows are on this page;'
                f" <code>{_prose(self.whole)}</code> prints all.</p>"
            )
        if self.hidden:
            parts.append(
                f'<p class="note">Not shown: {html_text(", ".join(self.hidden))};'
                f" <code>{_prose(self.whole)}</code> prints"
                f" {'it' if len(self.hidden) == 1 else 'them'}.</p>"
            )
        return "".join(parts)

    def _by_cells(self) -> list[Align]:
        return [_align([row[number] for row in self.rows]) for number in range(len(self.columns))]

    def _table(
        self, rows: Sequence[Sequence[str]], aligned: Sequence[Align], name: str, is_wide: bool
    ) -> str:
        head = "".join(
            f'<th scope="col" class="{align.value}">{html_text(name)}</th>'
            for name, align in zip(self.columns, aligned, strict=True)
        )
        names = self.columns if is_wide else [""] * len(self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row, aligned, names))}</tr>" for row in rows)
        kind = ' class="blocks"' if is_wide else ""
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html_text(name)}">'
            f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _is_wide(self) -> bool:
        """Return whether the rows are too long for a phone."""
        widths = [max(map(len, name.split()), default=0) for name in self.columns]
        for row in self.rows[:ROWS_MAX]:
            widths = [max(w, min(len(c), CELL_MAX)) for w, c in zip(widths, row, strict=True)]
        return sum(widths) + 2 * len(widths) > _PHONE_WIDTH


def _align(cells: Sequence[str]) -> Align:
    values = [cell for cell in cells if cell not in _NONE]
    if values and all(_TIME.fullmatch(cell) for cell in values):
        return Align.TIME
    # The time for matching `_NUMBER` grows with a power of the text's length. So a text longer than
    # CELL_MAX, such as a long key of digits, is not matched.
    is_number = values and all(len(cell) <= CELL_MAX and _NUMBER.fullmatch(cell) for cell in values)
    return Align.NUMBER if is_number else Align.TEXT


def _cell(text: str, align: Align, name: str) -> str:
    """Return a cell as HTML. On narrow screens, the column's name is shown before the text."""
    opened = f'<td class="{align.value}"' + (f' data-name="{html_text(name)}"' if name else "")
    if not text:
        return f"{opened}>(empty)</td>"
    text = visible(text)
    if len(text) <= CELL_MAX:
        return f"{opened}>{escape(text)}</td>"
    whole = text if len(text) <= _WHOLE_MAX else f"{text[:_WHOLE_MAX]}…"
    cut = escape(f"{text[: CELL_MAX - 1]}…") if align is not Align.TEXT or " " not in text else None
    if cut is None:  # a text that is not cut is broken between words by the browser
        return f"{opened}>{escape(whole)}</td>"
    return f'{opened} title="{escape(whole)}">{cut}</td>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of a page: the data that a user needs to repeat the command.

    Attributes:
        time: Time at which the page was written, with the zone.
        version: Version of tidelog.
        command: The command line.
        locations: Maps the meaning of a location, such as `From`, to the location as the user named
            it, without secrets.
        span: The requested range; empty for everything.
        zone: Zone of the page's times.
    """

    time: str
    version: str
    command: str = ""
    locations: Mapping[str, str] = field(default_factory=dict)
    span: str = ""
    zone: str = "UTC"

    def html(self) -> str:
        """Return the page's footer."""
        lines = [
            ("Made", f"{self.time} by tidelog {self.version}"),
            *((name, location) for name, location in self.locations.items()),
            ("Range", self.span or "everything"),
            ("Times", f"in {self.zone}"),
        ]
        items = "".join(
            f"<dt>{html_text(name)}</dt><dd>{_prose(text)}</dd>" for name, text in lines
        )
        if self.command:
            items += f"<dt>Command</dt><dd><code>{_prose(self.command)}</code></dd>"
        return f"<footer><dl>{items}</dl></footer>"


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments, with `...` for possible secrets in options and in URLs."""
    words: list[str] = []
    for number, word in enumerate(arguments):
        name, equals, text = word.partition("=")
        if number and arguments[number - 1] in _SECRETS:
            words.append(f"{name}=..." if equals else "...")
        elif name in _SECRETS and equals:
            words.append(f"{name}={text.partition('=')[0]}=...")
        else:
            words.append(_PASSWORD.sub(r"\1=...", _USER.sub("://...@", word)))
    return words


Section: TypeAlias = Text | Items | Table | Plot


@dataclass(frozen=True, slots=True)
class Report:
    """A page.

    Attributes:
        title: Title of the page, to which the range of `origin` is added.
        sections: Sections, in order.
        verdict: Sentence below the title; empty for none.
        origin: Origin of the page, shown in the footer; None for no footer.
    """

    title: str
    sections: Sequence[Section]
    verdict: str = ""
    origin: Provenance | None = None

    def html(self) -> str:
        """Return the page as one HTML document."""
        span = self.origin.span if self.origin is not None else ""
        title = ", ".join(filter(None, (self.title, span)))
        verdict = f'<p class="verdict">{_prose(self.verdict)}</p>\n' if self.verdict else ""
        body = "\n".join(_parts(self.sections))
        footer = self.origin.html() if self.origin is not None else ""
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{html_text(title)}</title>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE}</style></head>\n<body><main><h1>{_prose(title)}</h1>\n{verdict}"
            f"{body}\n</main>{footer}</body></html>\n"
        )


def _parts(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        if section.title:
            yield f"<h2>{html_text(section.title)}</h2>"
        yield section.html()


# Tests check the contrast between the page and the colors of text and marks, in the light and in
# the dark scheme.
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #56626f; --line: #d9dfe5; --page: #fff;
  --shade: #f1f4f7; --edge: #00000055;
  --s0: #0072b2; --s1: #b87a00; --s2: #008560; --s3: #b8528f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #a3aeb9; --line: #33404d;
  --page: #12181f; --shade: #1c242d; --edge: #ffffff66;
  --s0: #56b4e9; --s1: #e69f00; --s2: #2fc59c; --s3: #d99cc0; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
.verdict { font-size: 1.15rem; font-weight: 600; }
.note, .axis, figcaption { color: var(--soft); font-size: .9rem; } .axis, .note { margin: 0; }
figcaption b { color: var(--ink); }
figure { margin: 1rem 0 1.4rem; } figure svg { display: block; height: auto; max-width: 100%; }
figure svg text { font-family: system-ui, sans-serif; paint-order: stroke;
  stroke: var(--page); stroke-width: 3px; stroke-linejoin: round; }
svg.narrow { display: none; }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 288px), 1fr));
  gap: 0 1rem; } .small figure { min-width: 0; }
@media (max-width: 900px) { svg.wide { display: none; } svg.narrow { display: block; width: 100%;
  max-width: 34rem; } .small { display: block; } svg.both { width: 100%; max-width: 34rem; } }
.legend { margin: 0 0 .2rem; } .legend span { margin-right: 1.4em; white-space: nowrap; }
.swatch { width: 26px; height: 10px; } .swatch rect { fill: currentColor; }
.swatch line { stroke: currentColor; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); }
.scroll { overflow: auto; max-width: 100%; scrollbar-width: thin;
  background: linear-gradient(90deg, var(--page) 30%, transparent) 0 0 / 40px 100% local,
    linear-gradient(270deg, var(--page) 30%, transparent) 100% 0 / 40px 100% local,
    linear-gradient(90deg, var(--edge), transparent) 0 0 / 14px 100%,
    linear-gradient(270deg, var(--edge), transparent) 100% 0 / 14px 100%;
  background-repeat: no-repeat; }
.scroll::-webkit-scrollbar { height: 9px; width: 9px; }
.scroll::-webkit-scrollbar-thumb { background: var(--soft); border-radius: 5px; }
details .scroll { max-height: 85vh; } details thead th { position: sticky; top: 0;
  background: var(--page); }
summary { cursor: pointer; padding: .3rem 0; color: var(--s0); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; } th { vertical-align: bottom; }
.n { text-align: right; white-space: nowrap; } .d { white-space: nowrap; }
th.n, th.d { white-space: normal; } td.t { overflow-wrap: break-word; max-width: 24rem; }
th { overflow-wrap: normal; } td + td, th + th { padding-left: .3rem; }
@media (max-width: 600px) { table { font-size: .82rem; }
  .blocks, .blocks tbody { display: block; }
  .blocks thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .blocks tr { display: flex; flex-wrap: wrap; gap: 0 .9rem; padding: .3rem 0;
    border-bottom: 1px solid var(--line); }
  .blocks tr > td { border: 0; padding: 0; text-align: left; max-width: 100%;
    overflow-wrap: anywhere; white-space: normal; }
  .blocks td::before { content: attr(data-name) " "; color: var(--soft); } }
li { margin: .2rem 0; } code { font-size: .92em; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: .88rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; min-width: 0; }
"""


def plot_by_hour(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    y_title: str,
    *,
    title: str = "",
    zone: str | None = None,
) -> Plot:
    """Return a plot with bars of counts by hour; if there are many hours, a bar has several hours.

    Each panel has its own axis. If records were created years before they were appended, hours
    would be too narrow to be visible on a common axis.

    Args:
        panels: For each panel, such as `append time`, and each of its series, the counts by hour
            since the epoch in UTC. A bar of several hours shows the sum of their counts.
        y_title: Meaning of the counts.
        title: Title above the plot; `{step}` becomes the length of a step.
        zone: Zone of the times on the axis, and of the days if a bar has the hours of a day; UTC if
            None.
    """
    axes, drawn = {}, {}
    for panel, series in panels.items():
        hours = [hour for values in series.values() for hour in values]
        axes[panel] = steps = panel_steps(panel, hours, zone)
        drawn[panel] = [Series(name, joined(values, steps)) for name, values in series.items()]
    return plot_by_step(drawn, axes, y_title, title=title)


def panel_steps(panel: str, hours: Sequence[int], zone: str | None) -> Steps:
    """Return the steps of a panel's time axis.

    The axis shows `hours`, which are hours since the epoch.
    """
    return steps_for(hours, zone, panel if panel.endswith((" time", "timestamp")) else "")


def plot_by_step(
    panels: Mapping[str, Sequence[Series]],
    axes: Mapping[str, Steps],
    y_title: str,
    *,
    title: str,
    unit: Unit = Unit.COUNT,
    is_stacked: bool = True,
) -> Plot:
    """Return a plot of values by step, with the steps of each panel.

    `{step}` in the title becomes the length of a step. With `is_stacked` the plot has stacked bars,
    else lines.
    """
    words = dict.fromkeys(axis.word for axis in axes.values())
    return Plot(
        panels=panels,
        y_title=y_title,
        axis=next(iter(axes.values()), Steps("hour")),
        unit=unit,
        is_stacked=is_stacked,
        title=title.replace("{step}", " and ".join(words)),
        axes=axes,
    )


def write_report(path: str, report: Report) -> None:
    """Write a report as one HTML file, replacing an existing file; raises OSError."""
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path as users give it
        file.write(report.html())
