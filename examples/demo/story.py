"""Output of the demo: lines, bars and sentences in the terminal, and the report with two plots."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd
from examples.demo.flights import DEFAULTS_USED, FLIGHTS_TOPIC, SETTINGS, ZONE
from examples.demo.questions import AIRCRAFT_TOPIC, Answer, Checks, Crossing
from examples.demo.questions import SETTINGS as AIRCRAFT_SETTINGS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text as RichText

import tidelog
from tidelog.amounts import share_text
from tidelog.lazy_dataclass import dataclass
from tidelog.pages import Items, Provenance, Section, Table, Text
from tidelog.pages import Report as Page
from tidelog.plots import Numbers, Plot, Series, Unit
from tidelog.timespec import format_ms

if TYPE_CHECKING:
    from tidelog.scan import ScanPlan


LEAD: Final = (
    "A blizzard reached New York around noon. These are the flights that were due on that day, as"
    " read back from the log: each record has the time when the flight was due (create time) and"
    " the time when the log appended it, which is when the flight left (append time)."
)

WHY_BYTES: Final = (
    "On the append clock, a time range is an offset range, so only these offsets are read. On the"
    " record clock, any batch may contain a flight of that day. The segments' zone maps show which"
    " batches can contain one. All flights in these batches are read, so the answer is exact."
)

# Line width in characters if stdout is not a terminal.
_WIDTH: Final = 100


class Printer:
    """Prints the demo's progress and results on stdout; progress bars only on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        width = None if sys.stdout.isatty() else _WIDTH
        self._console = console or Console(highlight=False, width=width)

    def say(self, text: str) -> None:
        """Print a paragraph after an empty line."""
        self._console.print(f"\n{text}")

    def checked(self, checks: Checks) -> None:
        """Print how many checks passed on one line, and one line for each failed check."""
        count, equal = len(checks.lines), len(checks.lines) - len(checks.failed)
        style = "bold red" if checks.failed else "green"
        line = f"\nchecked: {equal} of {count} figures equal those of the source file"
        self._console.print(line, style=style)
        for failed in checks.failed:
            self._console.print(f"  {failed}", style=style)

    def day(self, title: str, day: "pd.DataFrame") -> None:
        """Print a day as bars: one line for each scheduled hour, all airports together."""
        self._console.print(f"\n{title}", style="bold")
        self._console.print(RichText.assemble("  hour   ", ("█ left", _LEFT), "  ", _CANCELLED_KEY))
        hours = day.groupby("hour")[["departures", "cancelled"]].sum()
        most = int(hours.sum(axis=1).max())
        for hour, (left, cancelled) in hours.astype(int).iterrows():
            bars = [_bar(count, most) for count in (left, cancelled)]
            line = RichText.assemble(
                f"  {hour:>2}:00  ", ("█" * bars[0], _LEFT), ("░" * bars[1], _CANCELLED)
            )
            figures = [f"{count} {word}" for count, word in _figures(left, cancelled)]
            self._console.print(line.append(f" {', '.join(figures)}"))

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step of unknown length while it runs, then show its duration."""
        began = time.perf_counter()
        with self._console.status(f"{title} ..."):
            yield
        self._done(title, began)

    def _done(self, title: str, began: float) -> None:
        took = f"{time.perf_counter() - began:.1f} s"
        self._console.print(f"{title:<{_STEP_WIDTH}} {took:>8}", style="dim")

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar; yields a function that advances it by a number of units."""
        began = time.perf_counter()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda count: progress.advance(task, count)
        self._done(title, began)

    def end(self, out: Path, seconds: float) -> None:
        """Print what the user can do next, beginning with the report."""
        self._console.print(f"\nDone in {seconds:.0f} s. Now try:", style="bold")
        log = f"--data {out}/log"
        noon = f"--from '2013-02-08 12:00 {ZONE}'"
        for command in (
            f"{_OPEN} {out}/report.html",
            f"./run tidelog offsets {FLIGHTS_TOPIC} {log} --at '2013-02-08 12:00 {ZONE}'",
            f"./run tidelog read {FLIGHTS_TOPIC} {log} --clock append {noon} --limit 5",
        ):
            self._console.print(f"  {command}", soft_wrap=True)


# The command that opens a file in the browser.
_OPEN: Final = "open" if sys.platform == "darwin" else "xdg-open"

# Width of a step's title, so that the durations are in one column.
_STEP_WIDTH: Final = 76

_LEFT: Final = "cyan"
_CANCELLED: Final = "yellow"
_CANCELLED_KEY: Final = ("░ canceled", _CANCELLED)

# Length of the longest bar in characters.
_BAR: Final = 50


def _bar(count: int, most: int) -> int:
    """Return the length of the bar for a count; it is at least 1 for a count of 1 or more."""
    return -(-count * _BAR // most) if most else 0


def _figures(left: int, cancelled: int) -> Iterator[tuple[int, str]]:
    if left or not cancelled:
        yield left, "left"
    if cancelled:
        yield cancelled, "canceled"


def local(ms: int) -> str:
    """Format a time as New York's local time."""
    return format_ms(ms, ZONE).replace("T", " ")[:16]


def record_count(path: str) -> int:
    """Return the number of records in the topic, computed from the partitions' offsets."""
    with tidelog.open(path) as directory:
        names = directory.log_dir.partitions(FLIGHTS_TOPIC)
        starts, ends = directory.beginning_offsets(names), directory.end_offsets(names)
    return sum(ends[name] - starts[name] for name in names)


def files_table(path: str) -> Table:
    """Return a table with the number and size of the log's files of each kind."""
    sizes: dict[str, list[int]] = {}
    for file in sorted(Path(path).rglob("*")):
        if file.is_file():
            kind = file.suffix if file.stem.isdigit() else "checkpoints, ids, settings"
            sizes.setdefault(kind, []).append(file.stat().st_size)
    rows = [
        [_KINDS.get(kind, kind), f"{len(of_kind):,}", f"{sum(of_kind):,}"]
        for kind, of_kind in sorted(sizes.items(), key=lambda item: -sum(item[1]))
    ]
    total = [size for of_kind in sizes.values() for size in of_kind]
    return Table(["file", "count", "bytes"], [*rows, ["all", f"{len(total):,}", f"{sum(total):,}"]])


_KINDS: Final = {
    ".log": ".log: the records",
    ".index": ".index: offsets to positions",
    ".timeindex": ".timeindex: create times to offsets",
    ".appendtime": ".appendtime: append times of the records",
    ".snapshot": ".snapshot: producers",
}


def clocks_table(answers: Sequence[Answer]) -> Table:
    """Return a table of the lookups on both clocks, by partition."""
    columns = [
        "partition",
        "departed at",
        "due at",
        "first offset by record clock",
        "first offset by append clock",
    ]
    rows = [
        [
            str(answer.partition),
            local(answer.append.timestamp),
            local(answer.record.timestamp),
            f"{answer.record.offset:,}",
            f"{answer.append.offset:,}",
        ]
        for answer in answers
    ]
    return Table(columns, rows)


def why(answers: Sequence[Answer], crossing: Crossing) -> list[str]:
    """Explain why the offsets on the two clocks differ, with figures of the day."""
    gaps = [answer.append.offset - answer.record.offset for answer in answers]
    early, late = crossing.due_after_left_before, crossing.due_before_left_after
    record_first = (
        "The record clock gives the first offset whose flight was due at noon or later, the append"
        " clock the first whose flight left at noon or later. Flights are in the log in the order"
        f" in which they left, and {early} flights left before noon although they were due at noon"
        f" or later. So the record clock's offsets are {min(gaps)} to {max(gaps)} lower than the"
        " append clock's."
    )
    still_there = (
        f"Conversely, {late} flights of that day were due before noon and left at noon or later. A"
        " replay from noon by timestamp does not contain these flights; a replay by append time"
        " does."
    )
    return [record_first, still_there]


def three_sentences(day: "pd.DataFrame", crossing: Crossing, share: float) -> list[str]:
    """Return three sentences on what the demo shows, with its figures.

    Args:
        day: The replayed day by hour and airport.
        crossing: Numbers of flights that are before noon on one clock and after noon on the other
            clock.
        share: Share of the log's bytes that the replay read, 0 to 1.
    """
    left, canceled = (int(day[name].sum()) for name in ("departures", "cancelled"))
    clocks = (
        "Each flight has two times in the log: when it was due (create time), and when it left,"
        " which is when the log appended it (append time)."
    )
    noon = (
        f'So "before noon" has two exact answers: {crossing.due_before_left_after} flights of the'
        f" storm day were due before noon but left at noon or later, and"
        f" {crossing.due_after_left_before} left before noon but were due at noon or later."
    )
    replayed = (
        f"Spark replayed the {left + canceled:,} flights that were due on that day ({left:,} left,"
        f" {canceled:,} were canceled) and read only {share_text(share)} of the log's bytes."
    )
    return [clocks, noon, replayed]


def settings_table() -> Table:
    """Return a table of the topics' settings, with the reasons."""
    rows = [
        [topic, key, value, why]
        for topic, settings in (
            (FLIGHTS_TOPIC, SETTINGS),
            (FLIGHTS_TOPIC, {k: (f"{v} (default)", why) for k, (v, why) in DEFAULTS_USED.items()}),
            (AIRCRAFT_TOPIC, AIRCRAFT_SETTINGS),
        )
        for key, (value, why) in settings.items()
    ]
    return Table(["topic", "setting", "value", "why"], rows)


def reads_table(reads: Sequence[tuple[int, "ScanPlan"]]) -> Table:
    """Return a table of the day's reads by each clock: rows, bytes read, bytes in the topic."""
    columns = ["read", "rows", "bytes read", "bytes in the topic", "share"]
    rows = []
    for name, (count, plan) in zip(("by timestamp", "by append time"), reads, strict=True):
        share = share_text(plan.scan_bytes / plan.log_bytes)
        rows.append([name, f"{count:,}", f"{plan.scan_bytes:,}", f"{plan.log_bytes:,}", share])
    return Table(columns, rows)


# Maximum number of aircraft in the table. It lists only aircraft that had flown by the first date.
_AIRCRAFT_MAX: Final = 8


def aircraft_table(then: "pd.DataFrame", last: "pd.DataFrame") -> Table:
    """Return a table of the last flight of some aircraft, as of two dates."""
    columns = ["aircraft", "due", "flight", "due at the year's end", "flight at the year's end"]
    both = then.join(last, rsuffix="_last", how="inner")
    rows = [
        [
            str(row["tailnum"]),
            local(int(row["due_ms"])),
            "{carrier} {flight} {origin}-{dest}".format_map(row),
            local(int(row["due_ms_last"])),
            "{carrier_last} {flight_last} {origin_last}-{dest_last}".format_map(row),
        ]
        for row in both.head(_AIRCRAFT_MAX).reset_index().to_dict("records")
    ]
    return Table(columns, rows)


def why_aircraft(written: int, remaining: int, aircraft: int) -> str:
    """Explain the table of aircraft, with figures from it."""
    return (
        f"The table has {min(_AIRCRAFT_MAX, aircraft):,} of {aircraft:,} aircraft. {written:,}"
        " flights by all aircraft were written to a compacted topic. Before compaction a table can"
        f" be read as of any date. Compaction left {remaining:,} records, the last of each aircraft"
        " among them. Earlier states are lost: the table as of an earlier date is refused with an"
        " error that names the earliest exact date."
    )


HOURS: Final = Numbers(title="scheduled hour, New York", name="{}:00".format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Content of the report.

    Attributes:
        title: Heading of the report.
        lead: Introduction.
        day: The replayed day by hour and airport, the result of `sparkjob.by_hour_and_airport`.
        clocks: Lookups on both clocks.
        why: Explanation of why the two lookups differ, one item per paragraph.
        reads: Rows and bytes read by each clock, and bytes in the topic.
        why_bytes: Explanation of the difference in bytes, a paragraph.
        aircraft: The last flight of some aircraft, as of two dates.
        why_aircraft: Explanation of the table of aircraft, a paragraph.
        files: The files of the log.
        settings: The topics' settings.
        settings_notes: Notes on how the topics were filled, one item per paragraph.
        checked: One line for each figure that was checked.
        origin: How the page was made.
    """

    title: str
    lead: str
    day: pd.DataFrame
    clocks: Table
    why: Sequence[str]
    reads: Table
    why_bytes: str
    aircraft: Table
    why_aircraft: str
    files: Table
    settings: Table
    settings_notes: Sequence[str]
    checked: Sequence[str]
    origin: Provenance | None = None


def write_report(path: Path, report: Report) -> None:
    """Write the report as one HTML file."""
    path.write_text(page(report).html(), encoding="utf-8")


def page(report: Report) -> Page:
    """Return the report as a page."""
    return Page(report.title, _sections(report), verdict(report.day), report.origin)


def _sections(report: Report) -> list[Section]:
    return [
        Text(report.lead),
        Plot(
            panels=departure_panels(report.day),
            y_title="flights",
            axis=HOURS,
            is_small=True,
            title="Departures and cancellations",
        ),
        Plot(
            panels=lateness_panels(report.day),
            y_title="lateness",
            axis=HOURS,
            unit=Unit.MINUTES,
            is_stacked=False,
            is_small=True,
            title="Lateness: append time minus create time",
        ),
        _titled(report.clocks, "12:00 on two clocks"),
        *map(Text, report.why),
        _titled(report.reads, "What was read"),
        Text(report.why_bytes),
        _titled(report.aircraft, "Where each aircraft was last"),
        Text(report.why_aircraft),
        _titled(report.files, "Files of the log"),
        _titled(report.settings, "Settings of the topics"),
        *map(Text, report.settings_notes),
        Items(report.checked, "How the figures were checked"),
    ]


def verdict(day: pd.DataFrame) -> str:
    """Return one sentence about the day: the last departures, and the worst hour."""
    flown = day[day["departures"] > 0]
    last = flown.groupby("origin")["hour"].max()
    parts = [
        f"no flight due after {hour}:59 left {_NAMES.get(str(airport), airport)}"
        for airport, hour in last.sort_values().items()
        if hour < day["hour"].max()
    ]
    late = day[day["late_p90"].notna()]
    if not late.empty:
        worst = max(late.to_dict("records"), key=lambda row: float(row["late_p90"]))
        airport = str(worst["origin"])
        parts.append(
            f"lateness was worst at {_NAMES.get(airport, airport)} at {worst['hour']}:00, where one"
            f" flight in ten was more than {worst['late_p90']:.0f} minutes late"
        )
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


_NAMES: Final = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}


def _titled(table: Table, title: str) -> Table:
    return Table(table.columns, table.rows, title)


def departure_panels(day: pd.DataFrame) -> Mapping[str, Sequence[Series]]:
    """Return the departed and canceled flights of each airport, by scheduled hour."""
    return {
        airport: [
            Series("departed", _values(rows, "departures")),
            Series("canceled", _values(rows, "cancelled")),
        ]
        for airport, rows in _by_airport(day)
    }


def lateness_panels(day: pd.DataFrame) -> Mapping[str, Sequence[Series]]:
    """Return the median and 90th percentile of lateness at each airport, by scheduled hour."""
    return {
        airport: [
            Series("median", _values(rows, "late_p50")),
            Series("90th percentile", _values(rows, "late_p90")),
        ]
        for airport, rows in _by_airport(day)
    }


def _by_airport(day: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(airport), rows) for airport, rows in day.groupby("origin")]


def _values(rows: pd.DataFrame, column: str) -> dict[int, float]:
    present = rows[rows[column].notna()]
    return {int(h): float(v) for h, v in zip(present["hour"], present[column], strict=True)}
