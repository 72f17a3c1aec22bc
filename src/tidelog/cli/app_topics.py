"""The commands about topics, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.cli.options import Format, examples, format_option, topic_argument, zone_option
from tidelog.cli.places import Place, place_options
from tidelog.cli.surroundings import Surroundings


@click.command(
    "topics",
    epilog=examples("tidelog topics --data data", "tidelog topics -b broker:9092 -o json"),
)
@place_options
@format_option
@click.pass_obj
def _topics(surroundings: Surroundings, place: Place, kind: Format) -> None:
    """List the topics of a directory or a cluster."""
    from tidelog.cli import topics

    topics.list_topics(surroundings, place, kind)


@click.command(
    "create",
    epilog=examples(
        "tidelog create flights --partitions 4",
        "tidelog create audit --config retention.ms=-1 --config cleanup.policy=compact",
        "tidelog create flights --partitions 4 --bootstrap broker:9092",
    ),
)
@topic_argument
@place_options
@click.option("--partitions", "-p", type=int, default=1, show_default=True, help="How many.")
@click.option(
    "--config", "-c", "given", multiple=True, metavar="KEY=VALUE", help="A setting; repeatable."
)
@click.pass_obj
def _create(
    surroundings: Surroundings,
    topic: str,
    place: Place,
    partitions: int,
    given: tuple[str, ...],
) -> None:
    """Create a topic, and the directory where it is missing."""
    from tidelog.cli import topics

    topics.create(surroundings, place, topic, partitions=partitions, settings=given)


@click.command("delete", epilog=examples("tidelog delete flights --yes"))
@topic_argument
@place_options
@click.option("--yes", is_flag=True, help="Do it; else only say what would go.")
@click.pass_obj
def _delete(
    surroundings: Surroundings,
    topic: str,
    place: Place,
    yes: bool,
) -> None:
    """Delete a topic and all its records."""
    from tidelog.cli import topics

    topics.delete(surroundings, place, topic, yes=yes)


@click.command(
    "describe",
    epilog=examples("tidelog describe flights", "tidelog describe flights -o json | jq .settings"),
)
@topic_argument
@place_options
@format_option
@zone_option
@click.pass_obj
def _describe(
    surroundings: Surroundings, topic: str, place: Place, kind: Format, zone: str | None
) -> None:
    """Show one topic, its partitions and clocks."""
    from tidelog.cli import topics as describe

    describe.describe(surroundings, place, topic, kind, zone)


@click.command(
    "config",
    epilog=examples(
        "tidelog config flights --all",
        "tidelog config flights --set segment.bytes=104857600 --unset retention.ms",
    ),
)
@topic_argument
@place_options
@click.option(
    "--set", "given", multiple=True, metavar="KEY=VALUE", help="Change a setting; repeatable."
)
@click.option(
    "--unset", "cleared", multiple=True, metavar="KEY", help="Back to the default; repeatable."
)
@click.option("--all", "show_all", is_flag=True, help="Show defaults too.")
@format_option
@click.pass_obj
def _config(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    place: Place,
    given: tuple[str, ...],
    cleared: tuple[str, ...],
    show_all: bool,
    kind: Format,
) -> None:
    """Show a topic's settings, or change them first."""
    from tidelog.cli import topics

    changes = topics.changes_of(given, cleared)
    topics.config(surroundings, place, topic, changes=changes, show_all=show_all, kind=kind)


COMMANDS: Final[tuple[click.Command, ...]] = (_topics, _create, _delete, _describe, _config)
