"""The commands about time in one directory, declared for click; `app` takes them in."""

from typing import Final

import click

from tidelog.cli.options import Format, data_option, examples, format_option, zone_option
from tidelog.cli.surroundings import Surroundings


@click.command(
    "why",
    epilog=examples(
        "tidelog why flights --data data",
        "tidelog why flights:0 --zone America/New_York",
        "tidelog why flights -o json | jq 'select(.due)'",
    ),
)
@click.argument("target", metavar="TOPIC[:P]")
@data_option
@format_option
@zone_option
@click.pass_obj
def _why(
    surroundings: Surroundings, target: str, data: str | None, kind: Format, zone: str | None
) -> None:
    """Explain each segment: why it was rolled, and until when it is kept.

    Which record and which rule keep it, what would delete it, and how long Kafka's own rule would
    keep it. With `-o json` an object for each segment.
    """
    from tidelog.cli import why

    why.why(surroundings, data, target, kind, zone)


@click.command(
    "retain",
    epilog=examples(
        "tidelog retain --dry-run --data data",
        "tidelog retain flights --data data",
    ),
)
@click.argument("topic", required=False, metavar="[TOPIC]")
@data_option
@click.option("--dry-run", is_flag=True, help="Delete nothing; show what would go.")
@format_option
@click.pass_obj
def _retain(
    surroundings: Surroundings, topic: str | None, data: str | None, dry_run: bool, kind: Format
) -> None:
    """Delete the segments that the topics' retention settings let go.

    For a directory that no broker serves: a broker applies retention by itself. Takes the
    directory's lock. Without a topic all are looked at. `tidelog why` explains each segment.
    """
    from tidelog.cli import retain

    retain.retain(surroundings, data, topic, kind, dry_run=dry_run)


COMMANDS: Final[tuple[click.Command, ...]] = (_why, _retain)
