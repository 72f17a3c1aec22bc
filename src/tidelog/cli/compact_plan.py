"""`tidelog compact --plan`: what a compaction would do to each segment now, and what it would cost.

Nothing is changed. Figures of segments that were never cleaned come from a sample of their keys.
"""

from collections.abc import Iterator
from typing import Final

from tidelog.cli import output
from tidelog.cli.choices import Format
from tidelog.cli.output import Cell
from tidelog.cli.problems import ExitCode
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory
from tidelog.errors import InvalidRequest
from tidelog.storage.compaction.generations import Decision
from tidelog.storage.compaction.previewing import Preview, preview
from tidelog.types import TopicPartition

_COLUMNS: Final = [
    output.text("partition"),
    output.number("base_offset"),
    output.number("bytes"),
    output.number("records"),
    output.number("keys"),
    output.number("garbage_bytes"),
    output.number("cleaned_to"),
    output.number("runs"),
    output.number("found_bytes"),
    output.text("decision"),
    output.number("read_bytes"),
    output.number("written_bytes"),
]


def show_plan(
    surroundings: Surroundings, directory: Directory, names: list[TopicPartition], kind: Format
) -> ExitCode:
    """A row for each finished segment; what is due, and why, in a line for each partition."""
    rows: list[list[Cell]] = []
    code = ExitCode.OK
    for name in names:
        try:
            found = preview(directory.log_dir, name)
        except InvalidRequest as error:  # it has a tier: the others are told all the same
            surroundings.say(str(error))
            code = ExitCode.ERROR
            continue
        rows.extend(_rows(name, found))
        plan = found.plan
        surroundings.say(
            f"{name}: {'due' if plan.is_due else 'not due'}: {plan.reason};"
            f" {plan.read_bytes} bytes to read, {plan.written_bytes:.0f} to write,"
            f" {plan.garbage_bytes:.0f} to free"
        )
        if found.has_versions:
            surroundings.say(f"{name}: keys and garbage are told as if the last record won")
    if not names:
        surroundings.say("no topic has cleanup.policy=compact")
    output.print_rows(surroundings, _COLUMNS, rows, kind)
    return code


def _rows(name: TopicPartition, found: Preview) -> Iterator[list[Cell]]:
    plan = found.plan
    for segment, decision in zip(plan.segments, plan.decisions, strict=True):
        row = found.generations.row(segment.base_offset)
        is_moved = decision in (Decision.CLEAN, Decision.MERGE)
        is_mapped = plan.is_due and plan.map_from < segment.end_offset <= plan.map_to
        yield [
            str(name),
            segment.base_offset,
            segment.size_bytes,
            segment.records,
            round(segment.keys),
            round(segment.garbage_bytes),
            segment.cleaned_to,
            row.runs,
            row.found_bytes,
            decision.value,
            segment.size_bytes * (int(is_moved) + int(is_mapped)),
            round(segment.live_bytes) if is_moved else 0,
        ]
