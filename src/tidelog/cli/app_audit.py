"""`tidelog audit`, declared for click."""

from typing import Final

import click

from tidelog.cli.options import (
    TIME_HELP,
    AuditShow,
    Encoding,
    Format,
    Isolation,
    SparkAccess,
    command_config_option,
    examples,
    format_option,
    key_as_option,
    one_of,
    spark_options,
    store_option,
    to_command_config_option,
    zone_option,
)
from tidelog.cli.surroundings import Surroundings

KINDS: Final = (
    "missing",
    "extra",
    "reordered",
    "stale",
    "ahead",
    "changed",
    "duplicated",
    "versions",
    "undelivered",
)


@click.command(
    "audit",
    epilog=examples(
        "tidelog audit kafka://east:9092 kafka://west:9092 --topic orders --state /shared/orders",
        "tidelog audit data s3://backup/data --from 2013-02-01Z --to 2013-03-01Z --html audit.html",
        "tidelog audit data standby --topic 'flights.*' -o json",
        "tidelog audit kafka://broker:9092 --group loader --topic orders",
        "tidelog audit kafka://east:9092 data --map mirror/offsets.map",
    ),
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--topic", "topics", multiple=True, metavar="PATTERN", help="Of whole names on A; repeatable."
)
@click.option(
    "--rename", "renames", multiple=True, metavar="TOPIC=NAME", help="Its name on B; repeatable."
)
@click.option("--group", metavar="G", help="Keys whose last record this group has not read.")
@click.option(
    "--from",
    "start",
    metavar="TIME",
    help=f"First record timestamp, or a range A..B. {TIME_HELP}.",
)
@click.option("--to", "end", metavar="TIME", help="Up to and without this record timestamp.")
@click.option("--map", "offset_map", metavar="FILE", help="The offset map of a mirror from A to B.")
@click.option(
    "--state", metavar="FOLDER", help="Keep what was read: the next audit reads what is new."
)
@click.option(
    "--history/--no-history",
    default=None,
    help="Compare records before each key's last one; if left out, where no log is compacted.",
)
@click.option(
    "--ignore", multiple=True, type=click.Choice(KINDS), help="Not a difference; repeatable."
)
@one_of(
    "--isolation",
    kind=Isolation,
    default=Isolation.READ_COMMITTED,
    text="read_committed leaves out open and aborted transactions.",
)
@click.option(
    "--keys",
    "keys_max",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="How many keys of each kind and topic are told; all are counted.",
)
@one_of("--show", kind=AuditShow, default=AuditShow.DIFFERENCES, text="Which table goes to stdout.")
@click.option("--html", metavar="FILE", help="Write an HTML page with tables and plots as well.")
@command_config_option
@to_command_config_option
@store_option
@click.option(
    "--to-store-option", "to_store", multiple=True, metavar="KEY=VALUE", help="Of B; repeatable."
)
@spark_options
@key_as_option
@format_option
@zone_option
@click.pass_obj
def _audit(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    a: str,
    b: str | None,
    topics: tuple[str, ...],
    renames: tuple[str, ...],
    group: str | None,
    start: str | None,
    end: str | None,
    offset_map: str | None,
    state: str | None,
    history: bool | None,
    ignore: tuple[str, ...],
    isolation: Isolation,
    keys_max: int,
    show: AuditShow,
    html: str | None,
    command_config: str | None,
    to_command_config: str | None,
    store: tuple[str, ...],
    to_store: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    key_as: Encoding,
    kind: Format,
    zone: str | None,
) -> int:
    """Follow every key from A to B: what is missing, stale, in another order, or there twice.

    A and B are places: a directory of topics, an object store's URL, or kafka://HOST:PORT. Runs on
    Spark, on all cores of this machine without --master. Exact: every record is read, unless
    --state says that it has been. Exit code 0: equal; 1: differences; 2: an error; 3: usage.
    """
    from tidelog.cli import audit

    request = audit.Request(
        a=a,
        b=b,
        topics=topics,
        renames=renames,
        group=group,
        start=start,
        end=end,
        offset_map=offset_map,
        state=state,
        history=history,
        ignore=ignore,
        isolation=isolation.level,
        keys_max=keys_max,
        show=show,
        html=html,
        command_config=command_config,
        to_command_config=to_command_config,
        store=store,
        to_store=to_store,
        key_as=key_as,
        zone=zone,
    )
    return audit.audit(surroundings, SparkAccess(master=master, conf=conf), request, kind)


COMMANDS: Final[tuple[click.Command, ...]] = (_audit,)
