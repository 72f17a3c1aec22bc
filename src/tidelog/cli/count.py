"""`tidelog count`: how many records lie in a range of time, exactly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli import output, times
from tidelog.cli.options import (
    Format,
    clock_option,
    examples,
    format_option,
    given,
    isolation_option,
    option,
    target_argument,
    with_options,
    zone_cache_option,
    zone_option,
)
from tidelog.cli.places import Place, open_topics, parse_choice, place_options
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.timespec import TIME_HELP
from tidelog.types import ClockName, IsolationLevel

if TYPE_CHECKING:
    from tidelog.cli.output import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOptions:
    """The options of `tidelog count`."""

    target: str = given(target_argument)
    start: str | None = option(
        "--from", metavar="TIME", help=f"First time, or a range A..B. {TIME_HELP}."
    )
    end: str | None = option("--to", metavar="TIME", help="Up to and without this time.")
    place: Place = given(place_options)
    clock: ClockName = given(clock_option)
    isolation: IsolationLevel = given(isolation_option)
    zone_cache: str | None = given(zone_cache_option)
    kind: Format = given(format_option)
    zone: str | None = given(zone_option)


@click.command(
    "count",
    epilog=examples(
        "tidelog count flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
        "tidelog count flights:0 --from -6h --clock append -o json",
        "tidelog count flights --isolation read_committed",
        "tidelog count flights --from -6h --bootstrap broker:9092",
    ),
)
@with_options(CountOptions)
def count(surroundings: Surroundings, options: CountOptions) -> None:
    """Count the records of a range of time, exactly.

    Zone maps tell most of it; only what the range cuts is read, and with read_committed what
    belongs to transactions. "told" says how many were not read.
    """
    if options.place.access is not None and options.zone_cache is not None:
        raise UsageProblem("--zone-cache is about a directory's files; leave it out")
    start_ms, end_ms = times.read_bounds(surroundings, options.start, options.end, options.zone)
    with open_topics(surroundings, options.place) as directory:
        scan = directory.scan(
            parse_choice(options.target),
            start=start_ms,
            end=end_ms,
            clock=options.clock,
            isolation=options.isolation,
        )
        counts = scan.counts(zone_cache=options.zone_cache)
    rows: list[list[Cell]] = [
        [name.partition, one.records, one.without_time, one.told, one.log_bytes, one.sidecar_bytes]
        for name, one in counts.partitions.items()
    ]
    if options.kind is Format.TABLE and len(rows) > 1:
        columns = ([row[index] for row in rows] for index in range(1, 6))
        rows.append([None, *(_sum(column) for column in columns)])
    names = ("partition", "records", "without_time", "told", "log_bytes_read", "sidecar_bytes_read")
    output.print_rows(surroundings, [output.number(name) for name in names], rows, options.kind)
    for line in counts.reports:
        surroundings.say(f"note: {line}")
    if any(one.without_time is None for one in counts.partitions.values()):
        surroundings.say("brokers don't tell how many records have no known append time")
    elif counts.without_time:
        number = f"{'at least ' if counts.is_least else ''}{counts.without_time}"
        surroundings.say(
            f"{number} records have no time on the {options.clock} clock and lie in no range"
        )


def _sum(column: "list[Cell]") -> int | None:
    """The sum of a column, None where a number of it is not known."""
    return None if None in column else sum(int(str(cell)) for cell in column)
