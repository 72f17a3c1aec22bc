"""`tidelog retain`: deletes what the topics' retention lets go, or shows it."""

import click

from tidelog.cli import output
from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.places import Place, open_directory
from tidelog.cli.surroundings import Surroundings

_COLUMNS = [
    output.text("partition"),
    output.number("base_offset"),
    output.number("end_offset"),
    output.number("bytes"),
    output.text("rule"),
    output.text("reason"),
]


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
def retain(
    surroundings: Surroundings, topic: str | None, data: str | None, dry_run: bool, kind: Format
) -> None:
    """Delete the segments that the topics' retention settings let go.

    For a directory that no broker serves: a broker applies retention by itself. Takes the
    directory's lock. Without a topic all are looked at. `tidelog why` explains each segment.
    """
    with open_directory(surroundings, data, writable=True) as directory:
        due = directory.retain(topic, dry_run=dry_run)
        names = directory.topics() if topic is None else [topic]
        unknown = [name for name in sorted(names) if not directory.log_dir.knows_age_limit(name)]
    rows: list[list[output.Cell]] = [
        [
            str(one.partition),
            one.base_offset,
            one.end_offset,
            one.size_bytes,
            str(one.rule),
            one.reason,
        ]
        for one in due
    ]
    output.print_rows(surroundings, _COLUMNS, rows, kind)
    total = sum(one.size_bytes for one in due)
    verb = "would be deleted" if dry_run else "deleted"
    surroundings.say(f"{len(due)} segments of {total} bytes {verb}")
    for name in unknown:
        surroundings.say(
            f"note: {name} has no retention.ms of its own, and no broker's default is known:"
            f" nothing of it goes by age; `tidelog config {name}{Place(data=data).words} --set"
            " retention.ms=MS` sets one"
        )
