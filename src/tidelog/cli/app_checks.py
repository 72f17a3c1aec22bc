"""The commands that look after a directory, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.surroundings import Surroundings


@click.command(
    "doctor",
    epilog=examples(
        "tidelog doctor data",
        "tidelog doctor flights:0 --data data -o json",
        "tidelog doctor /var/lib/kafka/data",
        "tidelog doctor data --repair",
    ),
)
@click.argument("target", required=False, metavar="DIR|TOPIC[:P]")
@data_option
@click.option(
    "--repair", is_flag=True, help="Build damaged files anew that can be; takes the lock."
)
@format_option
@click.pass_obj
def _doctor(
    surroundings: Surroundings, target: str | None, data: str | None, repair: bool, kind: Format
) -> int:
    """Find what is damaged in a directory of topics, and what to do about it.

    Holds every file of a partition against the others, and changes nothing. With --repair,
    indexes, snapshots, zone maps and checkpoints are built anew from a sound log; records and
    append times are never touched.

    Exit code: 0 sound (notes do not count), 1 findings, 2 it could not look everywhere.
    """
    from tidelog.cli import doctor

    return doctor.doctor(surroundings, target, data, kind, mends=repair)


COMMANDS: Final[tuple[click.Command, ...]] = (_doctor,)
