"""`tidelog retain`: deletes what the topics' retention lets go, or shows it."""

from tidelog.cli import output
from tidelog.cli.options import Format
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


def retain(
    surroundings: Surroundings, data: str | None, topic: str | None, kind: Format, *, dry_run: bool
) -> None:
    """Apply retention to one topic or to all, and print the segments that went."""
    with open_directory(surroundings, data, writable=True) as directory:
        found = directory.retain(topic, dry_run=dry_run)
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
        for one in found
    ]
    output.print_rows(surroundings, _COLUMNS, rows, kind)
    total = sum(one.size_bytes for one in found)
    verb = "would be deleted" if dry_run else "deleted"
    surroundings.say(f"{len(found)} segments of {total} bytes {verb}")
    for name in unknown:
        surroundings.say(
            f"note: {name} has no retention.ms of its own, and no broker's default is known:"
            f" nothing of it goes by age; `tidelog config {name}{Place(data=data).words} --set"
            " retention.ms=MS` sets one"
        )
