"""The commands that run on Spark, declared for click: the group `tidelog spark`.

A command's module adds it here: `COMMANDS` is all that the group has.
"""

from typing import Final

import click

from tidelog.cli.app_spark_compact import compact_command
from tidelog.cli.app_spark_mirror import mirror_command
from tidelog.cli.app_spark_reports import JOBS as REPORTS
from tidelog.cli.options import (
    CODECS,
    PLACE_HELP,
    TIME_HELP,
    Format,
    Isolation,
    SparkAccess,
    clock_option,
    command_config_option,
    examples,
    format_option,
    one_of,
    report_option,
    spark_options,
    store_option,
    to_command_config_option,
    topic_argument,
    zone_option,
)
from tidelog.cli.surroundings import Surroundings
from tidelog.types import ClockName

_compression = click.option(
    "--compression", type=click.Choice(CODECS), help="Of batches, where the topic leaves it open."
)
_create_option = click.option(
    "--create", type=click.IntRange(min=1), metavar="N", help="Make the topic, with N partitions."
)
_config_option = click.option(
    "--config", "-c", "config", multiple=True, metavar="KEY=VALUE", help="Of a topic made."
)
_force = click.option("--force", is_flag=True, help="Go on although the target would lose records.")


@click.command(
    "replay",
    epilog=examples(
        "tidelog spark replay data flights --from -6h --to standby",
        "tidelog spark replay data flights --from 2013-02-08..+1d --zone America/New_York"
        " --to kafka://broker:9092 --to-topic storm --rate 5000/s --progress storm.json",
        "tidelog spark replay s3://logs/east flights --from -1d --clock append --to parquet:day",
        "tidelog spark replay kafka://broker:9092 flights --from -5m --to console",
    ),
)
@click.argument("source", metavar="SOURCE")
@topic_argument
@click.option(
    "--to", required=True, metavar="PLACE", help=f"{PLACE_HELP}, parquet:PATH, or console."
)
@click.option("--to-topic", metavar="TOPIC", help="Its name there; the same if left out.")
@click.option("--from", "start", metavar="TIME", help=f"First time, or a range A..B. {TIME_HELP}.")
@click.option("--until", "end", metavar="TIME", help="Up to and without this time.")
@clock_option
@one_of(
    "--isolation",
    kind=Isolation,
    default=Isolation.READ_COMMITTED,
    text="read_uncommitted replays open and aborted transactions, too.",
)
@click.option(
    "--partitions",
    type=click.Choice(["keep", "key"]),
    help="keep their numbers, or choose by key; kept if left out and both have as many.",
)
@click.option("--rate", metavar="N/s", help="At most 5000/s records, or 10MB/s, on average.")
@click.option(
    "--progress", metavar="FILE", help="Remember here how far it came: the same command goes on."
)
@_create_option
@_config_option
@_compression
@_force
@report_option
@command_config_option
@to_command_config_option
@store_option
@spark_options
@format_option
@zone_option
@click.pass_obj
def _replay(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    source: str,
    topic: str,
    to: str,
    to_topic: str | None,
    start: str | None,
    end: str | None,
    clock: ClockName,
    isolation: Isolation,
    partitions: str | None,
    rate: str | None,
    progress: str | None,
    create: int | None,
    config: tuple[str, ...],
    compression: str | None,
    force: bool,
    report: str | None,
    command_config: str | None,
    to_command_config: str | None,
    store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
    zone: str | None,
) -> int:
    """Write a range of time of a topic once more.

    Exactly the records of the range, with their times. SOURCE is a directory of topics, an object
    store's URL, or kafka://HOST:PORT. Before it starts, the target's settings are held against the
    records: where some would be refused or deleted at once it says how many, and ends with exit
    code 2 unless forced. A range is fixed by the first start; with --progress a killed replay goes
    on where it stopped, and no record comes twice.
    """
    from tidelog.cli import spark_replay

    request = spark_replay.Request(
        source=source,
        topic=topic,
        to=to,
        to_topic=to_topic,
        start=start,
        end=end,
        clock=clock,
        isolation=isolation.level,
        partitions=partitions,
        rate=rate,
        progress=progress,
        create=create,
        config=config,
        compression=compression,
        force=force,
        report=report,
        command_config=command_config,
        to_command_config=to_command_config,
        store=store,
        zone=zone,
    )
    access = SparkAccess(master=master, conf=conf)
    return spark_replay.replay(surroundings, access, request, kind)


@click.command(
    "bootstrap",
    epilog=examples(
        "tidelog spark bootstrap flights.parquet flights --to data --key tailnum --time departure"
        " --create 4 --config retention.ms=-1",
        "tidelog spark bootstrap orders.csv orders --to data --key id --time made --order key",
        "tidelog spark bootstrap jdbc:postgresql://db/shop orders --to data --key id --time made"
        " --option dbtable=orders --option user=reader",
    ),
)
@click.argument("table", metavar="TABLE")
@topic_argument
@click.option("--to", required=True, metavar="DIR", help="The directory of topics.")
@click.option(
    "--format",
    "-f",
    "input_format",
    metavar="NAME",
    help="parquet, csv, json, orc, jdbc or any of Spark's; by the table's name if left out.",
)
@click.option(
    "--option", "given", multiple=True, metavar="KEY=VALUE", help="Of that format; repeatable."
)
@click.option("--key", metavar="COL", help="Column of the key.")
@click.option("--time", metavar="COL", help="Column of the create time.")
@click.option("--value", metavar="COL", help="Column of the value; the row as JSON if left out.")
@click.option("--headers", metavar="COL", help="Column of headers, a map.")
@click.option("--partition", metavar="COL", help="Column of the partition; by key if left out.")
@click.option(
    "--order",
    type=click.Choice(["time", "key", "none"]),
    help="Of records in a partition; by time if left out and there is one.",
)
@click.option("--id", "job_id", metavar="NAME", help="Of the job; it loads a table once.")
@_create_option
@_config_option
@click.option("--tasks", type=click.IntRange(min=1), metavar="N", help="Build segments by N tasks.")
@click.option("--count/--no-count", default=True, help="Look at all keys and times beforehand.")
@_compression
@_force
@report_option
@spark_options
@one_of(
    "--output", "-o", "kind", kind=Format, default=Format.TABLE, text="How the result is written."
)
@zone_option
@click.pass_obj
def _bootstrap(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    table: str,
    topic: str,
    to: str,
    input_format: str | None,
    given: tuple[str, ...],
    key: str | None,
    time: str | None,
    value: str | None,
    headers: str | None,
    partition: str | None,
    order: str | None,
    job_id: str | None,
    create: int | None,
    config: tuple[str, ...],
    tasks: int | None,
    count: bool,
    compression: str | None,
    force: bool,
    report: str | None,
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
    zone: str | None,
) -> int:
    """Load a table into a topic, visible all at once.

    TABLE is a path or URL that Spark reads, or jdbc:... . Segments are built in parallel and
    attached by one commit. A job that is killed can be started again by the same command: what is
    there is not loaded twice (--id another loads the same table once more). Times in texts without
    a zone are those of --zone, or UTC.
    """
    from tidelog.cli import spark_bootstrap

    request = spark_bootstrap.Request(
        table=table,
        topic=topic,
        to=to,
        format=input_format,
        options=given,
        key=key,
        time=time,
        value=value,
        headers=headers,
        partition=partition,
        order=order,
        job_id=job_id,
        create=create,
        config=config,
        tasks=tasks,
        count=count,
        compression=compression,
        force=force,
        report=report,
        zone=zone,
    )
    access = SparkAccess(master=master, conf=conf)
    return spark_bootstrap.bootstrap(surroundings, access, request, kind)


_JOBS: Final[tuple[click.Command, ...]] = (
    _bootstrap,
    compact_command,
    mirror_command,
    *REPORTS,
    _replay,
)


@click.group(
    "spark",
    epilog=examples(
        "tidelog spark replay data flights --from -6h --to standby",
        "tidelog spark bootstrap flights.parquet flights --to data --key tailnum --time departure",
    ),
)
def spark() -> None:
    """Jobs on Spark: for more data than one process should read.

    A place is a directory of topics (a path, or a URL such as s3://bucket/logs) or a cluster,
    kafka://HOST:PORT. Without --master, Spark runs here, on all cores.
    """


for _job in _JOBS:
    spark.add_command(_job)

COMMANDS: Final[tuple[click.Command, ...]] = (spark,)
