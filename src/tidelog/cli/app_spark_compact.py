"""`tidelog spark compact`, declared for click, for `app_spark`."""

import click

from tidelog.cli.options import Format, SparkAccess, examples, format_option, spark_options
from tidelog.cli.surroundings import Surroundings


@click.command(
    "compact",
    epilog=examples(
        "tidelog spark compact data",
        "tidelog spark compact /shared/data orders bills:3 --roll --part-bytes 268435456",
    ),
)
@click.argument("directory", metavar="DIRECTORY")
@click.argument("targets", metavar="[TOPIC[:P]]...", nargs=-1)
@click.option("--roll", is_flag=True, help="Finish the active segments first.")
@click.option("--if-due", is_flag=True, help="Only what the topics' settings call due.")
@click.option(
    "--part-bytes",
    type=click.IntRange(min=1),
    default=1 << 30,
    show_default=True,
    metavar="N",
    help="About how many bytes of log a task rewrites.",
)
@click.option(
    "--store-option",
    "store",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the stores of tiers; repeatable.",
)
@spark_options
@format_option
@click.pass_obj
def compact_command(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    directory: str,
    targets: tuple[str, ...],
    roll: bool,
    if_due: bool,
    part_bytes: int,
    store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    kind: Format,
) -> int:
    """Keep the last record of each key: the cleaner's work, side by side.

    For directories that are too large for `tidelog compact`, and for tiers; what stays is the same.
    Exit code 2 where a partition could not be cleaned to its end.
    """
    from tidelog.cli import spark_compact

    request = spark_compact.Request(
        directory=directory,
        targets=targets,
        roll=roll,
        if_due=if_due,
        part_bytes=part_bytes,
        store=store,
    )
    access = SparkAccess(master=master, conf=conf)
    return spark_compact.compact(surroundings, access, request, kind)
