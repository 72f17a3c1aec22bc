"""The commands about other people's brokers, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.cli.choices import ClockName, Format
from tidelog.cli.cluster_options import (
    Access,
    cluster_options,
    own_data_option,
    topics_option,
)
from tidelog.cli.options import TIME_HELP, clock_option, examples, format_option, zone_option
from tidelog.cli.surroundings import Surroundings


@click.command(
    "rewind",
    epilog=examples(
        "tidelog rewind -b broker:9092 --group planes --to -6h",
        "tidelog rewind -b broker:9092 --group planes --topic flights:3 --to earliest --execute",
        "tidelog rewind -b broker:9092 --group planes --to 2013-02-08T12:00Z --max-skew 2m",
        "tidelog rewind -b broker:9092 --group planes --to -1h --clock append --data data",
    ),
)
@cluster_options
@click.option("--group", "-g", required=True, metavar="GROUP", help="The consumer group.")
@topics_option
@click.option("--to", required=True, metavar="TIME", help=f"{TIME_HELP}; or earliest, latest.")
@clock_option
@click.option(
    "--max-skew", metavar="TIME", help="Producers' clocks may be behind by so much; go back more."
)
@click.option("--to-end", is_flag=True, help="Where no record is so late, go to the end.")
@click.option("--forward", is_flag=True, help="Go on even past records that were not read.")
@click.option("--count", is_flag=True, help="Count records exactly, by reading them.")
@own_data_option
@click.option("--execute", is_flag=True, help="Commit; else only show what would be.")
@format_option
@zone_option
@click.pass_obj
def _rewind(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    bootstrap: str,
    command_config: str | None,
    timeout: str,
    group: str,
    topics: tuple[str, ...],
    to: str,
    clock: ClockName,
    max_skew: str | None,
    to_end: bool,
    forward: bool,
    count: bool,
    data: str | None,
    execute: bool,
    kind: Format,
    zone: str | None,
) -> int:
    """Move a consumer group back in time.

    Shows for each partition the old and the new offset and how many records would be read again;
    commits nothing without --execute. Exit code 2: a partition stays, since going on would skip
    records that were not read.
    """
    from tidelog.cli import rewind

    access = Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
    options = rewind.RewindOptions(
        group=group,
        topics=topics,
        to=to,
        clock=clock,
        max_skew=max_skew,
        to_end=to_end,
        forward=forward,
        count=count,
        data=data,
        execute=execute,
        zone=zone,
    )
    return rewind.rewind(surroundings, access, options, kind)


COMMANDS: Final[tuple[click.Command, ...]] = (_rewind,)
