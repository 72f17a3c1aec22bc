"""`tidelog groups`, declared for click; `app` takes it in."""

from typing import Final

import click

from tidelog.cli.options import Format, examples, format_option
from tidelog.cli.places import Access, cluster_options
from tidelog.cli.surroundings import Surroundings


@click.group(
    "groups",
    epilog=examples(
        "tidelog groups list -b broker:9092",
        "tidelog groups describe planes -b broker:9092",
        "tidelog groups delete planes -b broker:9092 --yes",
    ),
)
def _groups() -> None:
    """Consumer groups of a cluster: list, describe, delete.

    How far one is behind tells `tidelog lag`; `tidelog rewind` moves one.
    """


@_groups.command("list", epilog=examples("tidelog groups list -b broker:9092 -o json"))
@cluster_options
@format_option
@click.pass_obj
def _list(
    surroundings: Surroundings,
    bootstrap: str,
    command_config: str | None,
    timeout: str,
    kind: Format,
) -> None:
    """List all groups with their states."""
    from tidelog.cli import groups

    access = Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
    groups.list_groups(surroundings, access, kind)


@_groups.command(
    "describe", epilog=examples("tidelog groups describe planes -b broker:9092 -o json")
)
@click.argument("group", metavar="GROUP")
@cluster_options
@format_option
@click.pass_obj
def _describe(
    surroundings: Surroundings,
    group: str,
    bootstrap: str,
    command_config: str | None,
    timeout: str,
    kind: Format,
) -> None:
    """Show a group's members, and what it committed."""
    from tidelog.cli import groups

    access = Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
    groups.describe(surroundings, access, group, kind)


@_groups.command(
    "delete", epilog=examples("tidelog groups delete planes loader -b broker:9092 --yes")
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@cluster_options
@click.option("--yes", is_flag=True, help="Do it; else only say what would go.")
@click.pass_obj
def _delete(
    surroundings: Surroundings,
    names: tuple[str, ...],
    bootstrap: str,
    command_config: str | None,
    timeout: str,
    yes: bool,
) -> None:
    """Delete groups without members, with all offsets that they committed."""
    from tidelog.cli import groups

    access = Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
    groups.delete(surroundings, access, names, yes=yes)


COMMANDS: Final[tuple[click.Command, ...]] = (_groups,)
