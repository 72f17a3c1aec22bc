"""`tidelog spark mirror`, declared for click, for `app_spark`."""

import click

from tidelog.cli.options import (
    CODECS,
    PLACE_HELP,
    Format,
    Isolation,
    SparkAccess,
    command_config_option,
    examples,
    format_option,
    one_of,
    report_option,
    spark_options,
    store_option,
    to_command_config_option,
)
from tidelog.cli.surroundings import Surroundings


@click.command(
    "mirror",
    epilog=examples(
        "tidelog spark mirror kafka://east:9092 orders --to kafka://west:9092 --checkpoint m",
        "tidelog spark mirror kafka://east:9092 kafka://north:9092 orders bills --to data"
        " --checkpoint m --create --continuous",
        "tidelog spark mirror kafka://east:9092 --pattern 'shop\\..*' --name east.{topic}"
        " --to kafka://west:9092 --checkpoint m --create --continuous --settings sync",
        "tidelog spark mirror s3://logs/east flights --to standby --checkpoint m"
        " --rename flights=east.flights --partitions key --report mirror.html",
        "tidelog failover --group planes --from east:9092 --to west:9092 --map m/offsets.map",
    ),
)
@click.argument("names", metavar="FROM... [TOPIC...]", nargs=-1, required=True)
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Topics with such whole names too, also those made while it runs.",
)
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    metavar="REGEX",
    help="But none of these of the pattern.",
)
@click.option(
    "--name", metavar="NAME", help="Name there of those the pattern finds, {topic} for their own."
)
@click.option(
    "--settings",
    type=click.Choice(["report", "sync"]),
    default="report",
    show_default=True,
    help="Where those of a topic and its copy differ: say so, or set the copy's.",
)
@click.option("--to", required=True, metavar="PLACE", help=f"{PLACE_HELP}; no object store.")
@click.option(
    "--checkpoint",
    required=True,
    metavar="FOLDER",
    help="What a restart needs, and the offset map; of this mirror alone.",
)
@click.option("--continuous", is_flag=True, help="Go on until stopped; else what is there now.")
@click.option(
    "--partitions",
    type=click.Choice(["kept", "key"]),
    default="kept",
    show_default=True,
    help="Keep their numbers, or choose anew by key.",
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new mirror begins.",
)
@click.option(
    "--rename", "renames", multiple=True, metavar="[FROM/]TOPIC=NAME", help="Its name there."
)
@click.option(
    "--create", is_flag=True, help="Make missing topics and partitions, like their source."
)
@one_of(
    "--isolation",
    kind=Isolation,
    default=Isolation.READ_COMMITTED,
    text="read_uncommitted copies open and aborted transactions, too.",
)
@click.option(
    "--batch-records",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Of each source, in one batch.",
)
@click.option(
    "--trigger-ms",
    type=click.IntRange(min=0),
    default=1_000,
    show_default=True,
    metavar="N",
    help="With --continuous: look for new records so often.",
)
@click.option(
    "--compression", type=click.Choice(CODECS), help="Of batches, where the topic leaves it open."
)
@click.option("--force", is_flag=True, help="Go on although the target would lose records.")
@report_option
@command_config_option
@to_command_config_option
@store_option
@spark_options
@format_option
@click.pass_obj
def mirror_command(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    names: tuple[str, ...],
    pattern: str | None,
    excluded: tuple[str, ...],
    name: str | None,
    settings: str,
    to: str,
    checkpoint: str,
    continuous: bool,
    partitions: str,
    start: str,
    renames: tuple[str, ...],
    create: bool,
    isolation: Isolation,
    batch_records: int,
    trigger_ms: int,
    compression: str | None,
    force: bool,
    report: str | None,
    command_config: str | None,
    to_command_config: str | None,
    store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
) -> int:
    """Copy topics from one or more places into those of another, exactly once.

    Create times are kept, offsets and append times are the target's own; an offset map says what
    went where. FROM is a directory (write ./data where it is not there yet), an object store's URL
    or kafka://HOST:PORT. The same command goes on where it stopped, also after a kill. Where the
    target would lose records or their times it says so and ends with exit code 2.
    """
    from tidelog.cli import spark_mirror

    request = spark_mirror.Request(
        names=names,
        pattern=pattern,
        excluded=excluded,
        name=name,
        settings=settings,
        to=to,
        checkpoint=checkpoint,
        partitions=partitions,
        start=start,
        renames=renames,
        isolation=isolation.level,
        continuous=continuous,
        batch_records=batch_records,
        trigger_ms=trigger_ms,
        create=create,
        force=force,
        compression=compression,
        report=report,
        command_config=command_config,
        to_command_config=to_command_config,
        store=store,
    )
    access = SparkAccess(master=master, conf=conf)
    return spark_mirror.mirror(surroundings, access, request, kind)
