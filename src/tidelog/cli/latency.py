"""`tidelog latency`: shows ingestion latency by hour, and the cost of late records."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli import output, times
from tidelog.cli.options import (
    Format,
    data_option,
    examples,
    format_option,
    given,
    option,
    target_argument,
    with_options,
    zone_cache_option,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import open_directory, parse_target, partitions_of
from tidelog.cli.surroundings import Surroundings
from tidelog.storage.clocks.latency import LOST_SHARES, PERCENTS, RELATIVE_ERROR, LatencyHistogram
from tidelog.timespec import TIME_HELP, parse_duration

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.scan.latency import TopicLatency, TopicLateness
    from tidelog.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """Options of `tidelog latency`."""

    target: str = given(target_argument)
    start: str | None = option(
        "--from", metavar="TIME", help=f"First append time, or a range A..B. {TIME_HELP}."
    )
    end: str | None = given(times.to_option)
    during: str | None = given(times.during_option)
    late: bool = option(
        "--late", is_flag=True, help="What watermark delays would lose; reads all records."
    )
    delays: tuple[str, ...] = option(
        "--delay", multiple=True, metavar="TIME", help="A delay to count for; repeatable."
    )
    data: str | None = given(data_option)
    zone_cache: str | None = given(zone_cache_option)
    kind: Format = given(format_option)
    zone: str | None = given(zone_option)


@click.command(
    "latency",
    epilog=examples(
        "tidelog latency flights",
        "tidelog latency flights --from -1d -o json",
        "tidelog latency flights --late",
        "tidelog latency flights --late --delay 5m --delay 1h",
    ),
)
@with_options(LatencyOptions)
def latency(surroundings: Surroundings, options: LatencyOptions) -> None:
    """Show ingestion latency: append time minus create time.

    Latency is append time - create time. Whole hours count, also at the ends of a range. A negative
    latency says that a producer's clock was ahead: "skew" is the largest. Finished segments are
    told by their zone maps; the active one is read. With --late: how many records a watermark with
    a delay would lose.
    """
    from tidelog.scan.latency import TopicLatency
    from tidelog.scan.latency import latency as measure

    topic, number = parse_target(options.target)
    start_ms, end_ms = times.read_bounds(
        surroundings, options.start, options.end, options.zone, during=options.during
    )
    with open_directory(surroundings, options.data) as directory:
        partitions = partitions_of(directory, topic, number)
        if options.late or options.delays:
            _print_late(surroundings, directory, partitions, options, (start_ms, end_ms))
            return
        by_topic = measure(
            directory.log_dir,
            partitions,
            start_ms=start_ms,
            end_ms=end_ms,
            zone_cache=options.zone_cache,
        )
    measured = by_topic.get(topic, TopicLatency())
    rows = list(_hour_rows(topic, measured))
    output.print_rows(surroundings, HOURS, rows, options.kind, zone=options.zone)
    _say(surroundings, topic, measured)


HOURS: Final = output.columns(
    "topic",
    output.time("hour"),
    output.count("hours", "records"),
    output.duration(*(f"p{percent:g}_ms".replace(".", "") for percent in PERCENTS)),
    output.duration("max_ms", "min_ms"),
    output.minor(output.duration("skew_ms_max")),
    output.detail(output.share("percentile_error")),
)


def _hour_rows(topic: str, measured: "TopicLatency") -> Iterator[list[Cell]]:
    hours = measured.by_hour.step_ms // 3_600_000
    for hour_ms, histogram in measured.by_hour.items():
        yield [
            topic,
            hour_ms,
            hours,
            histogram.count,
            *(histogram.percentile(percent) for percent in PERCENTS),
            histogram.max_ms,
            histogram.min_ms,
            skew_ms(histogram),
            RELATIVE_ERROR,
        ]


def skew_ms(histogram: LatencyHistogram) -> int | None:
    """Return how far a producer's clock was ahead: the most negative latency, None without one."""
    return -histogram.min_ms if histogram.min_ms < 0 else None


def _say(surroundings: Surroundings, topic: str, measured: "TopicLatency") -> None:
    if not measured.total.count:
        surroundings.note(f"{topic}: no record of the range has both an append and a create time")
        return
    surroundings.note(
        f"{topic}: percentiles are off by at most {RELATIVE_ERROR:.1%} of their value; min and max"
        f" are exact; {measured.told} of {measured.told + measured.stats.rows} records by zone maps"
    )
    skew = skew_ms(measured.total)
    if skew is not None:
        surroundings.note(f"{topic}: producers' clocks were ahead, by up to {skew} ms")
    if measured.without:
        surroundings.note(f"{topic}: {measured.without} records lack one of the two times")


def _print_late(
    surroundings: Surroundings,
    directory: "Directory",
    partitions: "list[TopicPartition]",
    options: LatencyOptions,
    bounds: tuple[int | None, int | None],
) -> None:
    from tidelog.scan.latency import TopicLateness, lateness
    from tidelog.scan.split import RequestedRange
    from tidelog.storage.clocks.latency import DELAYS_MS

    delays = [parse_duration(text) // 1_000_000 for text in options.delays] or list(DELAYS_MS)
    append_times = RequestedRange(start_ms=bounds[0], end_ms=bounds[1]).times
    by_topic = lateness(
        directory.log_dir,
        partitions,
        delays_ms=delays,
        append_range=append_times and (max(append_times[0], 0), append_times[1]),
    )
    topic = partitions[0].topic if partitions else ""
    late = by_topic.get(topic, TopicLateness())
    columns = output.columns(
        "topic",
        output.duration("delay_ms"),
        output.count("lost", "records"),
        output.share("lost_share"),
    )
    rows: list[list[Cell]] = [
        [
            topic,
            delay,
            lost,
            late.records,
            lost / late.records if late.records else None,
        ]
        for delay, lost in late.lost.items()
    ]
    output.print_rows(surroundings, columns, rows, options.kind)
    _say_late(surroundings, topic, late)


def _say_late(surroundings: Surroundings, topic: str, late: "TopicLateness") -> None:
    surroundings.say(
        f"{topic}: {late.out_of_order} of {late.records} records are behind one before them in"
        f" their partition, by up to {late.late_ms_max} ms"
    )
    for share in LOST_SHARES:
        error = f", off by at most {RELATIVE_ERROR:.1%}" if share else ""
        surroundings.say(
            f"{topic}: a watermark delay of {late.delay_for(share)} ms loses at most"
            f" {share:.2%}{error}"
        )
    if late.without_time:
        surroundings.note(f"{topic}: {late.without_time} records have no create time")
