"""`tidelog reopen` and `tidelog accept-clock`, declared for click."""

from typing import Final

import click

from tidelog.cli.options import data_option, examples
from tidelog.cli.surroundings import Surroundings


@click.command(
    "reopen",
    epilog=examples(
        "tidelog reopen --data data",
        "tidelog reopen flights:0 --data data",
    ),
)
@click.argument("target", required=False, metavar="[TOPIC[:P]]")
@data_option
@click.pass_obj
def _reopen(surroundings: Surroundings, target: str | None, data: str | None) -> int:
    """Open a broker's partitions anew that went offline, once their disk has room or works.

    What was acknowledged is recovered first; others are left alone.
    """
    from tidelog.cli import serve as command

    return command.run(surroundings, command.ReopenOptions(data=data, target=target))


@click.command(
    "accept-clock",
    epilog=examples("tidelog accept-clock --data data"),
)
@data_option
@click.pass_obj
def _accept_clock(surroundings: Surroundings, data: str | None) -> int:
    """Let appends go on although the clock jumped.

    Appends wait where the clock jumps ahead by over an hour, or where the last append time lies
    so far ahead of it. What is accepted is remembered over restarts. Asks the broker, or another
    process, that has the directory open; else opens it.
    """
    from tidelog.cli import serve as command

    return command.accept_clock(surroundings, data)


COMMANDS: Final[tuple[click.Command, ...]] = (_reopen, _accept_clock)
