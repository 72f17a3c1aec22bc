"""`tidelog standby`, declared for click."""

from typing import Final

import click

from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.surroundings import Surroundings


@click.group(
    "standby",
    epilog=examples(
        "tidelog standby status --data standby",
        "tidelog standby flush --data standby",
        "tidelog standby promote --data standby --needs-all",
    ),
)
def _standby() -> None:
    """Ask the process that follows a leader (`tidelog follow`): status, flush, promote."""


@_standby.command("status", epilog=examples("tidelog standby status --data standby -o json"))
@data_option
@format_option
@click.pass_obj
def _status(surroundings: Surroundings, data: str | None, kind: Format) -> int:
    """Show where each partition is; exit code 2 where one stands still."""
    from tidelog.cli import follow

    return follow.status(surroundings, data, kind)


@_standby.command("flush", epilog=examples("tidelog standby flush --data standby"))
@data_option
@click.pass_obj
def _flush(surroundings: Surroundings, data: str | None) -> int:
    """Make durable what was copied so far."""
    from tidelog.cli import follow

    return follow.flush(surroundings, data)


@_standby.command(
    "promote",
    epilog=examples(
        "tidelog standby promote --data standby --needs-all && tidelog serve --data standby"
    ),
)
@data_option
@click.option(
    "--needs-all",
    is_flag=True,
    help="Only where every partition has all that the leader has shown; else it follows on.",
)
@format_option
@click.pass_obj
def _promote(surroundings: Surroundings, data: str | None, needs_all: bool, kind: Format) -> int:
    """End the following, and return when the directory can be opened for appends."""
    from tidelog.cli import follow

    return follow.promote(surroundings, data, kind, needs_all=needs_all)


COMMANDS: Final[tuple[click.Command, ...]] = (_standby,)
