"""Commands of texts, parsed without running them."""

from typing import Final

import click

from tidelog.cli import times
from tidelog.cli.app import app
from tidelog.cli.surroundings import Surroundings
from tidelog.env import os_env
from tidelog.timespec import parse_duration

# Words that some options accept instead of a time.
_WORDS: Final = {"earliest", "latest", "max", "measured"}


def parse(words: list[str]) -> None:
    """Parse a command and its times without running it.

    Raises:
        click.ClickException: A name or value is unknown.
        InvalidTime: A time is invalid, for example because it has no zone.
    """
    surroundings = Surroundings(env=os_env())
    context, command = click.Context(app, info_name="tidelog", obj=surroundings), app
    found: click.Command = command
    while isinstance(found, click.Group):
        name, found_or_none, words = found.resolve_command(context, words)
        assert found_or_none is not None
        found = found_or_none
        if isinstance(found, click.Group):
            context = click.Context(found, info_name=name, parent=context)
    _parse_times(surroundings, found.make_context(found.name, words, parent=context))


def _parse_times(surroundings: Surroundings, context: click.Context) -> None:
    zone = context.params.get("zone")
    given = {
        one.name: context.params[one.name]
        for one in context.command.params
        if one.metavar in {"TIME", "RANGE"} and isinstance(context.params.get(one.name), str)
    }
    start, end, during = (given.pop(name, None) for name in ("start", "end", "during"))
    times.read_bounds(surroundings, start, end, zone, during=during)
    for name, text in given.items():
        if name == "timestamps":
            times.read_bounds(surroundings, None, None, zone, during=text)
        elif text in _WORDS:
            continue
        elif name in {"at", "before", "to"}:
            times.read_point(surroundings, text, zone)
        else:
            parse_duration(text)
