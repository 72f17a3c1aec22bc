"""Shell completion of topics, partitions and settings.

The shell starts a separate process for each completion, in which click calls these functions.
`topics` and `targets` read the directory of `--data` or TIDELOG_DATA without a lock. If the
directory can't be read, nothing is completed, because an error message would appear in the middle
of the command line. Directories in object stores are not read.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def topics(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Return the directory's topics whose names begin with a text."""
    return _matches(_partitions(context), start)


def targets(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Return the topics whose names begin with a text; after `TOPIC:`, the partitions of TOPIC."""
    partitions = _partitions(context)
    topic, colon, _ = start.partition(":")
    if not colon:
        return _matches(partitions, start)
    return _matches((f"{topic}:{number}" for number in range(partitions.get(topic, 0))), start)


def topic_settings(
    _context: click.Context, parameter: click.Parameter, start: str
) -> "list[CompletionItem]":
    """Return names of topics' settings, with `=` after each if the option takes KEY=VALUE."""
    from tidelog.config import TOPIC_CONFIGS

    return _settings((key.name for key in TOPIC_CONFIGS), parameter, start)


def broker_settings(
    _context: click.Context, parameter: click.Parameter, start: str
) -> "list[CompletionItem]":
    """Return names of a broker's settings, with `=` after each if the option takes KEY=VALUE."""
    from tidelog.config import BROKER_CONFIGS

    return _settings((key.name for key in BROKER_CONFIGS), parameter, start)


def _settings(
    names: Iterable[str], parameter: click.Parameter, start: str
) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    sign = "=" if "=" in (parameter.metavar or "") else ""
    return [CompletionItem(f"{name}{sign}") for name in _matches(names, start)]


def _matches(names: Iterable[str], start: str) -> list[str]:
    return sorted(name for name in names if name.startswith(start))


def _partitions(context: click.Context) -> dict[str, int]:
    """Return the topics of `--data`, each with its count of partitions.

    The result is empty if the directory can't be read, or is in an object store.
    """
    from tidelog.directory import Directory

    data = context.params.get("data")
    if not data or "://" in data:  # otherwise each press of Tab would list the objects of a store
        return {}
    try:
        with Directory.open(data) as directory:
            return {name: info.partitions for name, info in directory.topics().items()}
    except (TidelogError, OSError):
        return {}
