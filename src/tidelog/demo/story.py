"""Output of the demo: progress, tables, explanations, and the report with two plots."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

import tidelog
from tidelog.demo.flights import FLIGHTS_TOPIC, ZONE
from tidelog.demo.questions import Answer, Crossing
from tidelog.report import Axis, Items, Plot, Section, Series, Table, Text
from tidelog.report import Report as Page
from tidelog.timespec import format_ms

if TYPE_CHECKING:
    from tidelog.scan import ScanPlan


LEAD: Final = (
    "A blizzard reached New York around noon. These are the flights that were due on that day, as"
    " read back from the log: each record has the time when the flight was due (create time) and"
    " the time when the log took it, which is when it left (append time)."
)


WHY_BYTES: Final = (
    "By append time a range of time is a range of offsets, so only that is read. By record time"
    " any batch may hold a flight of that day: the zone maps of the segments say which of them can,"
    " whatever the order, and every flight in those is looked at, so that the answer is exact."
)


# Line width if stdout is not a terminal.
_WIDTH: Final = 110


class Teller:
    """Prints the demo's progress and results on stdout. Without a terminal it shows no bars."""

    def __init__(self, console: Console | None = None) -> None:
        width = None if sys.stdout.isatty() else _WIDTH
        self._console = console or Console(highlight=False, width=width)
        self.all_checked: list[str] = []

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._console.print(text)

    def checked(self, line: str) -> None:
        """Print the result of a check."""
        self.all_checked.append(line.removeprefix("checked: "))
        self._console.print(line, style="green" if line.endswith(": equal") else "bold red")

    def settings(
        self,
        topic: str,
        given: Mapping[str, tuple[str, str]],
        defaults: Mapping[str, tuple[str, str]],
    ) -> None:
        """Print a topic's settings, with the reasons."""
        rows = [[key, value, why] for key, (value, why) in given.items()]
        rows += [[key, f"{value} (default)", why] for key, (value, why) in defaults.items()]
        self.table(f"Settings of topic {topic}", Table(["setting", "value", "why"], rows))

    def table(self, title: str, table: Table) -> None:
        """Print a table under its title."""
        shown = RichTable(title=title, title_justify="left", title_style="bold")
        for number, name in enumerate(table.columns):
            is_number = all(_is_number(row[number]) for row in table.rows)
            shown.add_column(name, justify="right" if is_number else "left")
        for row in table.rows:
            shown.add_row(*row)
        self._console.print(shown)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step of unknown length, then its duration."""
        began = time.perf_counter()
        with self._console.status(f"{title} ..."):
            yield
        self._console.print(f"{title}: {time.perf_counter() - began:.1f} s", style="dim")

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar; yields a function that advances it by a number of units."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda count: progress.advance(task, count)

    def end(self, out: Path, seconds: float) -> None:
        """Print the paths of all output."""
        self._console.print(f"\nDone in {seconds:.1f} s. Everything is in {out}:", style="bold")
        self._console.print(f"  {out}/report.html   the report, for any browser")
        self._console.print(f"  {out}/log           the log, in Apache Kafka's files; try")
        noon = f"--from '2013-02-08 12:00 {ZONE}' --limit 5"
        for command in (f"describe {FLIGHTS_TOPIC}", f"read {FLIGHTS_TOPIC} --clock append {noon}"):
            line = f"      ./run tidelog {command} --data {out}/log"
            self._console.print(line, soft_wrap=True)


def _is_number(text: str) -> bool:
    return not text.strip("-%0123456789,./: ")


def local(ms: int) -> str:
    """Format a time as New York's local time."""
    return format_ms(ms, ZONE).replace("T", " ")[:16]


def record_count(path: str) -> int:
    """Return the number of records in the topic, by the partitions' offsets."""
    with tidelog.open(path) as directory:
        places = directory.log_dir.partitions(FLIGHTS_TOPIC)
        starts, ends = directory.beginning_offsets(places), directory.end_offsets(places)
    return sum(ends[place] - starts[place] for place in places)


def files_table(path: str) -> Table:
    """Return a table of the log's files by kind, with numbers and sizes."""
    sizes: dict[str, list[int]] = {}
    for file in sorted(Path(path).rglob("*")):
        if file.is_file():
            kind = file.suffix if file.stem.isdigit() else "checkpoints, ids, settings"
            sizes.setdefault(kind, []).append(file.stat().st_size)
    rows = [
        [_KINDS.get(kind, kind), f"{len(found):,}", f"{sum(found):,}"]
        for kind, found in sorted(sizes.items(), key=lambda item: -sum(item[1]))
    ]
    total = [size for found in sizes.values() for size in found]
    return Table(["file", "count", "bytes"], [*rows, ["all", f"{len(total):,}", f"{sum(total):,}"]])


_KINDS: Final = {
    ".log": ".log: the records",
    ".index": ".index: offsets to positions",
    ".timeindex": ".timeindex: create times to offsets",
    ".appendtime": ".appendtime: when each record was taken",
    ".snapshot": ".snapshot: producers",
}


def clocks_table(answers: Sequence[Answer]) -> Table:
    """Return a table of the lookups on both clocks, by partition."""
    columns = ["partition", "record clock", "due at", "append clock", "left at"]
    rows = [
        [
            str(answer.partition),
            f"{answer.record.offset:,}",
            local(answer.record.timestamp),
            f"{answer.append.offset:,}",
            local(answer.append.timestamp),
        ]
        for answer in answers
    ]
    return Table(columns, rows)


def why(answers: Sequence[Answer], crossing: Crossing) -> list[str]:
    """Explain why the two offsets differ, with the day's own figures."""
    gaps = [answer.append.offset - answer.record.offset for answer in answers]
    early, late = crossing.due_after_left_before, crossing.due_before_left_after
    record_first = (
        "The record clock gives the first offset whose flight was due at noon or later, the append"
        " clock the first whose flight left at noon or later. Flights are in the log in the order"
        f" in which they left, and {early} that were due at noon or later had left before it: so"
        f" the record clock's answers come {min(gaps)} to {max(gaps)} offsets earlier."
    )
    still_there = (
        f"The other way round, {late} flights of that day were due before noon and left after it."
        " They lie behind both answers; a replay by record time leaves them out, a replay by append"
        " time holds them."
    )
    return [record_first, still_there]


def day_table(day: "pd.DataFrame") -> Table:
    """Return the replayed day as a table: a line for each hour, columns for the airports."""
    airports = sorted(set(day["origin"]))
    columns = ["hour"]
    for airport in airports:
        columns += [f"{airport} left/cancelled", "late 50 %", "late 90 %"]
    cells = {(row.hour, row.origin): row for row in day.itertuples()}
    rows = []
    for hour in sorted(set(day["hour"])):
        line = [f"{hour}:00"]
        for airport in airports:
            row = cells.get((hour, airport))
            line += ["-"] * 3 if row is None else _cells(row)
        rows.append(line)
    return Table(columns, rows)


def _cells(row: object) -> list[str]:
    left, cancelled = getattr(row, "departures", 0), getattr(row, "cancelled", 0)
    late = [_minutes(getattr(row, name, math.nan)) for name in ("late_p50", "late_p90")]
    return [f"{left} / {cancelled}", *late]


def _minutes(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def reads_table(reads: Sequence[tuple[int, "ScanPlan"]]) -> Table:
    """Return a table of rows and bytes read by each clock's read of the day, and in the topic."""
    columns = ["read", "rows", "bytes read", "bytes in the topic", "share"]
    rows = []
    for name, (count, plan) in zip(("by record time", "by append time"), reads, strict=True):
        share = 100 * plan.scan_bytes / plan.log_bytes
        rows.append(
            [name, f"{count:,}", f"{plan.scan_bytes:,}", f"{plan.log_bytes:,}", f"{share:.1f} %"]
        )
    return Table(columns, rows)


# Number of aircraft shown, of those that flew on both dates.
_AIRCRAFT_SHOWN: Final = 8


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
        for row in both.head(_AIRCRAFT_SHOWN).reset_index().to_dict("records")
    ]
    return Table(columns, rows)


def why_aircraft(written: int, kept: int, aircraft: int) -> str:
    """Explain the table of aircraft, with its own figures."""
    return (
        f"{written:,} flights by {aircraft:,} aircraft were written to a compacted topic. Before"
        " compaction every date can be asked for. Compaction left"
        f" {kept:,} records, the last of each aircraft among them: what the log said of an earlier"
        " date is gone then, and a question for it is refused, with the date from which on answers"
        " are exact."
    )


HOURS: Final = Axis("scheduled hour", "{}:00".format, every=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Content of the report.

    Attributes:
        title: Its heading.
        lead: Introduction.
        day: The replayed day by hour and airport, the result of `sparkjob.by_hour_and_airport`.
        clocks: Lookups on both clocks.
        why: Explanation of their difference, one item per paragraph.
        reads: Rows and bytes that were read, and those in the topic.
        why_bytes: Explanation of their difference, a paragraph.
        aircraft: The last flight of some aircraft, as of two dates.
        why_aircraft: Explanation of this table, a paragraph.
        files: The files of the log.
        checked: One line for each figure that was checked.
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
    checked: Sequence[str]


def write_report(path: Path, report: Report) -> None:
    """Write the report as one HTML file."""
    path.write_text(Page(report.title, _sections(report)).html(), encoding="utf-8")


def _sections(report: Report) -> list[Section]:
    return [
        Text(report.lead),
        Plot(
            panels=departure_panels(report.day),
            y_title="flights",
            axis=HOURS,
            title="Departures and cancellations",
        ),
        Plot(
            panels=lateness_panels(report.day),
            y_title="minutes",
            axis=HOURS,
            is_stacked=False,
            title="Lateness: append time minus create time",
        ),
        _titled(report.clocks, "12:00 on two clocks"),
        *map(Text, report.why),
        _titled(report.reads, "What was read"),
        Text(report.why_bytes),
        _titled(report.aircraft, "Where each aircraft was last"),
        Text(report.why_aircraft),
        _titled(report.files, "Files of the log"),
        Items(report.checked, "How the figures were checked"),
    ]


def _titled(table: Table, title: str) -> Table:
    return Table(table.columns, table.rows, title)


def departure_panels(day: pd.DataFrame) -> Mapping[str, Sequence[Series]]:
    """Return for each airport the departed and canceled flights, by scheduled hour."""
    return {
        airport: [
            Series("left", "s0", _values(rows, "departures")),
            Series("cancelled", "s1", _values(rows, "cancelled")),
        ]
        for airport, rows in _by_airport(day)
    }


def lateness_panels(day: pd.DataFrame) -> Mapping[str, Sequence[Series]]:
    """Return for each airport the median and 90th percentile of lateness, by scheduled hour."""
    return {
        airport: [
            Series("median", "s0", _values(rows, "late_p50")),
            Series("90th percentile", "s1", _values(rows, "late_p90")),
        ]
        for airport, rows in _by_airport(day)
    }


def _by_airport(day: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(airport), rows) for airport, rows in day.groupby("origin")]


def _values(rows: pd.DataFrame, column: str) -> dict[int, float]:
    known = rows[rows[column].notna()]
    return {int(h): float(v) for h, v in zip(known["hour"], known[column], strict=True)}
