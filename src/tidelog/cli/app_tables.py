"""The commands about topics by key, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.arguments import Inexact
from tidelog.cli.options import (
    TIME_HELP,
    Encoding,
    ReadFormat,
    clock_option,
    data_option,
    examples,
    inexact_option,
    key_as_option,
    one_of,
    topic_argument,
    value_as_option,
    zone_option,
)
from tidelog.cli.places import Place, place_options
from tidelog.cli.surroundings import Surroundings
from tidelog.types import ClockName


@click.command(
    "diff",
    epilog=examples(
        "tidelog diff flights --from -1d",
        "tidelog diff flights --from 2013-02-08 --to 2013-02-09 --zone America/New_York -o json",
        "tidelog diff flights --from -1h --clock append --bootstrap broker:9092",
    ),
)
@topic_argument
@place_options
@click.option("--from", "start", required=True, metavar="TIME", help=f"Earlier time. {TIME_HELP}.")
@click.option("--to", "end", metavar="TIME", help="Later time; all that is there if left out.")
@clock_option
@click.option("--partition", type=int, metavar="N", help="This partition alone.")
@inexact_option
@one_of(
    "--format",
    "-o",
    "kind",
    kind=ReadFormat,
    default=ReadFormat.TABLE,
    text="How rows are written.",
)
@key_as_option
@value_as_option
@click.option("--wide", is_flag=True, help="Tables with whole values.")
@zone_option
@click.pass_obj
def _diff(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    place: Place,
    start: str,
    end: str | None,
    clock: ClockName,
    partition: int | None,
    inexact: Inexact,
    kind: ReadFormat,
    key_as: Encoding,
    value_as: Encoding,
    wide: bool,
    zone: str | None,
) -> None:
    """Print which keys were added, changed and deleted between two times.

    Compares the topic's tables as of both (see `tidelog read --table`).
    """
    from tidelog.cli import table

    options = table.DiffOptions(
        start=start,
        end=end,
        clock=clock,
        partition=partition,
        inexact=inexact,
        format=kind,
        zone=zone,
        key=key_as,
        value=value_as,
        wide=wide,
    )
    table.diff(surroundings, place, topic, options)


@click.command(
    "erase",
    epilog=examples(
        "tidelog erase flights --key N14228",
        "tidelog erase flights --key N14228 --execute > receipt.json",
        "tidelog erase orders --key 42 --key-as int64 --execute",
    ),
)
@topic_argument
@data_option
@click.option("--key", required=True, metavar="K", help="The key; how it is read says --key-as.")
@key_as_option
@click.option("--execute", is_flag=True, help="Do it; else only what would be done is told.")
@click.pass_obj
def _erase(
    surroundings: Surroundings,
    topic: str,
    data: str | None,
    key: str,
    key_as: Encoding,
    execute: bool,
) -> int:
    """Take every record of a key out of a topic's files.

    Appends a tombstone, writes segments anew that hold the key, reads all files once more, and
    prints a receipt (JSON) with the digests of what was searched. What can't be reached from here
    is named; the exit code is 2 where a file in reach still holds the key.
    """
    from tidelog.cli import erase
    from tidelog.cli.output import typed_bytes

    return erase.erase(surroundings, data, topic, typed_bytes(key, key_as), execute=execute)


COMMANDS: Final[tuple[click.Command, ...]] = (_diff, _erase)
