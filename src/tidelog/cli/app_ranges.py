"""The commands about ranges of time in one topic, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.cli.options import (
    TIME_HELP,
    Format,
    Isolation,
    clock_option,
    data_option,
    examples,
    format_option,
    isolation_option,
    zone_option,
)
from tidelog.cli.places import Place, place_options
from tidelog.cli.surroundings import Surroundings
from tidelog.types import ClockName

_target = click.argument("target", metavar="TOPIC[:P]")
_end = click.option("--to", "end", metavar="TIME", help="Up to and without this time.")
_zone_cache = click.option(
    "--zone-cache",
    metavar="DIR",
    help="Keep zone maps here for segments that have none, such as Kafka's.",
)


@click.command(
    "count",
    epilog=examples(
        "tidelog count flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
        "tidelog count flights:0 --from -6h --clock append -o json",
        "tidelog count flights --isolation read_committed",
        "tidelog count flights --from -6h --bootstrap broker:9092",
    ),
)
@_target
@click.option("--from", "start", metavar="TIME", help=f"First time, or a range A..B. {TIME_HELP}.")
@_end
@place_options
@clock_option
@isolation_option
@_zone_cache
@format_option
@zone_option
@click.pass_obj
def _count(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    target: str,
    start: str | None,
    end: str | None,
    place: Place,
    clock: ClockName,
    isolation: Isolation,
    zone_cache: str | None,
    kind: Format,
    zone: str | None,
) -> None:
    """Count the records of a range of time, exactly.

    Zone maps tell most of it; only what the range cuts is read, and with read_committed what
    belongs to transactions. "told" says how many were not read.
    """
    from tidelog.cli import count

    question = count.Question(
        start=start,
        end=end,
        clock=clock,
        isolation=isolation.level,
        zone=zone,
        zone_cache=zone_cache,
    )
    count.count(surroundings, place, target, question, kind)


@click.command(
    "latency",
    epilog=examples(
        "tidelog latency flights",
        "tidelog latency flights --from -1d -o json",
        "tidelog latency flights --late",
        "tidelog latency flights --late --delay 5m --delay 1h",
    ),
)
@_target
@click.option(
    "--from", "start", metavar="TIME", help=f"First append time, or a range A..B. {TIME_HELP}."
)
@_end
@click.option("--late", is_flag=True, help="What watermark delays would lose; reads all records.")
@click.option(
    "--delay", "delays", multiple=True, metavar="TIME", help="A delay to count for; repeatable."
)
@data_option
@_zone_cache
@format_option
@zone_option
@click.pass_obj
def _latency(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    target: str,
    start: str | None,
    end: str | None,
    late: bool,
    delays: tuple[str, ...],
    data: str | None,
    zone_cache: str | None,
    kind: Format,
    zone: str | None,
) -> None:
    """Show how long records took from their making to the log, by hour of append time.

    Latency is append time - create time. Whole hours count, also at the ends of a range. A negative
    latency says that a producer's clock was ahead: "skew" is the largest. Finished segments are
    told by their zone maps; the active one is read. With --late: how many records a watermark with
    a delay would lose.
    """
    from tidelog.cli import latency

    question = latency.Question(
        start=start,
        end=end,
        late=late or bool(delays),
        delays=delays,
        zone=zone,
        zone_cache=zone_cache,
    )
    latency.latency(surroundings, data, target, question, kind)


COMMANDS: Final[tuple[click.Command, ...]] = (_count, _latency)
