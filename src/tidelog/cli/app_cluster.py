"""The commands about other people's brokers, declared for click; `app` takes them in."""

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
from tidelog.cli.places import (
    Access,
    cluster_options,
    own_data_option,
    timeout_option,
    topics_option,
)
from tidelog.cli.surroundings import Surroundings
from tidelog.types import ClockName


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


@click.command(
    "failover",
    epilog=examples(
        "tidelog failover --group planes --from east:9092 --to west:9092 --max-latency 2m",
        "tidelog failover --group planes --from east:9092 --to west:9092 --verify",
        "tidelog failover --group planes --from east:9092 --to west:9092 --sample-for 5m --execute",
        "tidelog failover --group planes --to west:9092 --topic flights --at -10m --max-latency 2m",
        "tidelog failover --group planes --from east:9092 --to west:9092 --map mirror/offsets.map",
    ),
)
@click.option("--group", "-g", required=True, metavar="GROUP", help="The consumer group.")
@click.option(
    "--from", "from_", metavar="HOST:PORT", help="A, where it comes from; --at can do without."
)
@click.option("--to", required=True, metavar="HOST:PORT", help="B, where it goes.")
@click.option("--topic", "-t", "topics", multiple=True, metavar="T", help="All if left out.")
@click.option(
    "--at",
    metavar="TIME",
    help=f"It had consumed what A took before this, whatever it committed. {TIME_HELP}.",
)
@click.option(
    "--max-latency",
    default="measured",
    show_default=True,
    metavar="TIME",
    help="From creation to append, at most; or measured at the tails of A and B.",
)
@click.option(
    "--max-skew",
    default="0s",
    show_default=True,
    metavar="TIME",
    help="So far producers' clocks may be ahead.",
)
@click.option(
    "--sample-for", default="30s", show_default=True, metavar="TIME", help="How long to measure."
)
@click.option(
    "--sample-records",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Fewer of a topic and cluster are too few to tell the largest latency.",
)
@click.option(
    "--mapping",
    type=click.Choice(["auto", "same", "any"]),
    default="auto",
    show_default=True,
    help="Whether partition N holds the same keys on both; auto looks at keys.",
)
@click.option(
    "--map",
    "map_",
    metavar="FILE",
    help="What the mirror of A on B wrote down (tidelog spark mirror); no latency is needed then.",
)
@click.option("--verify", is_flag=True, help="Compare the records of A and B.")
@click.option(
    "--look-back",
    metavar="TIME",
    help="So far before the start on B --verify looks for records that never reached A.",
)
@click.option("--execute", is_flag=True, help="Commit on B; else only show what would be.")
@click.option("--from-config", metavar="FILE", help="Client settings for A.")
@click.option("--to-config", metavar="FILE", help="Client settings for B.")
@timeout_option
@format_option
@zone_option
@click.pass_obj
def _failover(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    group: str,
    from_: str | None,
    to: str,
    topics: tuple[str, ...],
    at: str | None,
    max_latency: str,
    max_skew: str,
    sample_for: str,
    sample_records: int,
    mapping: str,
    map_: str | None,
    verify: bool,
    look_back: str | None,
    execute: bool,
    from_config: str | None,
    to_config: str | None,
    timeout: str,
    kind: Format,
    zone: str | None,
) -> int:
    """Move a consumer group to another cluster without missing a record.

    Finds the offsets on B by the time at the group's positions on A, less the largest latency, or
    by the map that a mirror wrote; commits nothing without --execute. Exit code 2: --verify found
    records that would be missed, that B does not have, or that never reached A.
    """
    from tidelog.cli import failover

    access_a = None
    if from_ is not None:
        access_a = Access(bootstrap=from_, command_config=from_config, timeout=timeout)
    access_b = Access(bootstrap=to, command_config=to_config, timeout=timeout)
    options = failover.FailoverOptions(
        group=group,
        topics=topics,
        at=at,
        max_latency=max_latency,
        max_skew=max_skew,
        sample_for=sample_for,
        sample_records=sample_records,
        mapping=mapping,
        map_file=map_,
        verify=verify,
        look_back=look_back,
        execute=execute,
        zone=zone,
    )
    return failover.failover(surroundings, access_a, access_b, options, kind)


@click.command(
    "lag",
    epilog=examples(
        "tidelog lag planes -b broker:9092",
        "tidelog lag planes -b broker:9092 --data /var/lib/tidelog --watch --every 2s",
        "tidelog lag planes -b broker:9092 --max-seconds 60 -o json || page-somebody",
    ),
)
@click.argument("group", metavar="GROUP")
@cluster_options
@topics_option
@own_data_option
@click.option("--count", is_flag=True, help="Count records exactly, by reading them.")
@isolation_option
@click.option("--watch", "-w", is_flag=True, help="Look again and again; Ctrl-C ends it.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Look so often, then end.")
@click.option("--every", default="5s", show_default=True, metavar="TIME", help="Between two looks.")
@click.option("--max-lag", type=click.IntRange(min=0), metavar="N", help="Exit code 2 above.")
@click.option("--max-seconds", type=click.FloatRange(min=0), metavar="S", help="Exit code 2 above.")
@format_option
@zone_option
@click.pass_obj
def _lag(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    group: str,
    bootstrap: str,
    command_config: str | None,
    timeout: str,
    topics: tuple[str, ...],
    data: str | None,
    count: bool,
    isolation: Isolation,
    watch: bool,
    samples: int | None,
    every: str,
    max_lag: int | None,
    max_seconds: float | None,
    kind: Format,
    zone: str | None,
) -> int:
    """Show how far a consumer group is behind.

    In offsets, in records really left, in seconds (the age of the first unread record; which clock
    tells it is said), and from the second look on its speed and the time until it has caught up.
    Exit code 2: --max-lag or --max-seconds is broken in a partition at the last look.
    """
    from tidelog.cli import lag

    access = Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
    options = lag.LagOptions(
        group=group,
        topics=topics,
        data=data,
        count=count,
        isolation=isolation.level,
        watch=watch,
        samples=samples,
        every=every,
        max_lag=max_lag,
        max_seconds=max_seconds,
        zone=zone,
    )
    return lag.lag(surroundings, access, options, kind)


@click.command(
    "follow",
    epilog=examples(
        "tidelog follow broker:9092 --data standby",
        "tidelog follow broker:9092 --data standby --topic 'flights*' --once",
        "tidelog follow broker:9092 --data standby --config retention.ms=-1 -o json",
    ),
)
@click.argument("leader", metavar="HOST:PORT")
@data_option
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="T",
    help="A topic, or a pattern with * and ?; repeatable. All but internal ones if left out.",
)
@click.option("--once", is_flag=True, help="Catch up and stop; else go on until Ctrl-C.")
@click.option(
    "--config", "-c", "settings", multiple=True, metavar="KEY=VALUE", help="Wins over the leader's."
)
@click.option("--every", default="5s", show_default=True, metavar="TIME", help="Between reports.")
@click.option("--retain/--no-retain", default=True, show_default=True, help="Run retention here.")
@format_option
@click.pass_obj
def _follow(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    leader: str,
    data: str | None,
    topics: tuple[str, ...],
    once: bool,
    settings: tuple[str, ...],
    every: str,
    retain: bool,
    kind: Format,
) -> int:
    """Copy a leader's topics into a directory, as a standby.

    Same bytes, offsets, leader epochs and timestamps; topic ids, settings and group offsets too.
    Goes on where it stopped; drops what the leader never had. Exit code 2: a partition stands
    still, with its reason.
    """
    from tidelog.cli import follow

    options = follow.StandbyOptions(
        leader=leader,
        data=data,
        topics=topics,
        settings=settings,
        once=once,
        every=every,
        retain=retain,
        control=True,
    )
    return follow.follow(surroundings, options, kind)


COMMANDS: Final[tuple[click.Command, ...]] = (_lag, _rewind, _failover, _follow)
