"""The commands on Spark that look at logs and report, declared for click, for `app_spark`."""

from typing import Final

import click

from tidelog.cli.options import (
    TIME_HELP,
    Format,
    Isolation,
    LagShow,
    LatencyShow,
    ReindexShow,
    SparkAccess,
    command_config_option,
    examples,
    format_option,
    isolation_option,
    one_of,
    report_option,
    spark_options,
    store_option,
    zone_option,
)
from tidelog.cli.surroundings import Surroundings

_directory = click.argument("source", metavar="DIRECTORY")
_targets = click.argument("targets", metavar="[TOPIC[:P]]...", nargs=-1)


@click.command(
    "latency",
    epilog=examples(
        "tidelog spark latency data",
        "tidelog spark latency s3://logs/east flights --from -7d --report latency.html",
        "tidelog spark latency data flights --show watermarks --delay 5m --delay 1h -o json",
    ),
)
@click.argument("source", metavar="PLACE")
@_targets
@click.option(
    "--from", "start", metavar="TIME", help=f"First append time, or a range A..B. {TIME_HELP}."
)
@click.option("--to", "end", metavar="TIME", help="Up to and without this time.")
@click.option(
    "--delay", "delays", multiple=True, metavar="TIME", help="A watermark delay; repeatable."
)
@one_of(
    "--show",
    kind=LatencyShow,
    default=LatencyShow.HOURS,
    text="hours: latency by hour, on both clocks; watermarks: what delays would lose; topics.",
)
@report_option
@command_config_option
@store_option
@spark_options
@format_option
@zone_option
@click.pass_obj
def _latency(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    source: str,
    targets: tuple[str, ...],
    start: str | None,
    end: str | None,
    delays: tuple[str, ...],
    show: LatencyShow,
    report: str | None,
    command_config: str | None,
    store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
    zone: str | None,
) -> None:
    """Show how long records took to the log, by topic and hour, and what watermarks would lose.

    Every record is read once, and reduced where it is read. Latency is append time - create time; a
    negative one says that a producer's clock was ahead: "skew" is the largest. Whole hours count.
    Each latency stands twice: under the hour of its append time, and of its create time (record).
    PLACE is a directory, an object store's URL, or kafka://HOST:PORT, where append times are known
    of topics with LogAppendTime alone.
    """
    from tidelog.cli import spark_latency

    request = spark_latency.Request(
        source=source,
        targets=targets,
        start=start,
        end=end,
        delays=delays,
        show=show,
        report=report,
        command_config=command_config,
        store=store,
        zone=zone,
    )
    spark_latency.latency(surroundings, SparkAccess(master=master, conf=conf), request, kind)


@click.command(
    "lag",
    epilog=examples(
        "tidelog spark lag kafka://broker:9092",
        "tidelog spark lag kafka://broker:9092 --data /var/lib/kafka --report lag.html",
        "tidelog spark lag kafka://broker:9092 --group loader --show hours -o json",
        "tidelog spark lag standby --topic flights --max-lag 100000",
        "tidelog spark lag /var/lib/kafka --report lag.html",
    ),
)
@click.argument("source", metavar="PLACE")
@click.option(
    "--group", "-g", "groups", multiple=True, help="A group; repeatable. All if left out."
)
@click.option("--topic", "-t", "topics", multiple=True, help="A topic; repeatable.")
@click.option(
    "--data", "-d", metavar="DIR", help="The cluster's own directory, for append times and speed."
)
@one_of(
    "--show",
    kind=LagShow,
    default=LagShow.PARTITIONS,
    text="partitions: as `tidelog lag`; hours: unread records by hour, on both clocks.",
)
@click.option("--max-lag", type=int, metavar="N", help="Exit code 2 where more records are left.")
@click.option(
    "--max-seconds", type=float, metavar="S", help="Exit code 2 where one is further behind."
)
@isolation_option
@report_option
@command_config_option
@store_option
@spark_options
@format_option
@zone_option
@click.pass_obj
def _lag(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    source: str,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    data: str | None,
    show: LagShow,
    max_lag: int | None,
    max_seconds: float | None,
    isolation: Isolation,
    report: str | None,
    command_config: str | None,
    store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
    zone: str | None,
) -> int:
    """Show how far all consumer groups are behind, by partition or by hour.

    PLACE is kafka://HOST:PORT, or a directory that knows of groups: a broker's, Kafka's too,
    whether it runs or not, or a standby's. Each unread record is read once, however many groups
    wait for it: by the cluster's own directory where --data names it, else from the brokers.
    """
    from tidelog.cli import spark_lag

    request = spark_lag.Request(
        source=source,
        groups=groups,
        topics=topics,
        data=data,
        show=show,
        max_lag=max_lag,
        max_seconds=max_seconds,
        isolation=isolation.level,
        report=report,
        command_config=command_config,
        store=store,
        zone=zone,
    )
    return spark_lag.lag(surroundings, SparkAccess(master=master, conf=conf), request, kind)


@click.command(
    "reindex",
    epilog=examples(
        "tidelog spark reindex data --verify",
        "tidelog spark reindex data flights",
        "tidelog spark reindex /var/lib/kafka --zone-cache /var/cache/zones --report maps.html",
    ),
)
@_directory
@_targets
@click.option("--verify", is_flag=True, help="Only look, as `tidelog doctor`; write nothing.")
@click.option(
    "--zone-cache",
    metavar="DIR",
    help="Zone maps go here, and the directory stays untouched: for other programs' directories.",
)
@one_of(
    "--show",
    kind=ReindexShow,
    default=ReindexShow.FINDINGS,
    text="findings: what is or was wrong; partitions: what was done.",
)
@report_option
@store_option
@spark_options
@format_option
@click.pass_obj
def _reindex(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    source: str,
    targets: tuple[str, ...],
    verify: bool,
    zone_cache: str | None,
    show: ReindexShow,
    report: str | None,
    store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
) -> int:
    """Build the indexes and zone maps of a directory anew where they are missing or wrong.

    Exit codes as of `tidelog doctor`: 0 sound, 1 something is wrong, 2 something could not be
    looked at. Our own directories are mended under their lock. A directory of Apache Kafka or in an
    object store is never written to: with --zone-cache its maps go into a folder elsewhere.
    """
    from tidelog.cli import spark_reindex

    request = spark_reindex.Request(
        source=source,
        targets=targets,
        verify=verify,
        zone_cache=zone_cache,
        show=show,
        report=report,
        store=store,
    )
    access = SparkAccess(master=master, conf=conf)
    return spark_reindex.reindex(surroundings, access, request, kind)


JOBS: Final[tuple[click.Command, ...]] = (_lag, _latency, _reindex)
