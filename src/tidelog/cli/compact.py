"""`tidelog compact` and `tidelog erase`: rewrite finished segments without removed records.

`compact` keeps the last record of each key; its `--plan` shows what a compaction would do to each
segment, and what it would cost. Figures of segments that were never cleaned come from a sample of
their keys. `erase` removes one key from all files and prints a receipt.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

import click

from tidelog.cli import output
from tidelog.cli.cells import typed_bytes
from tidelog.cli.options import (
    Encoding,
    Format,
    data_option,
    examples,
    format_option,
    key_as_option,
    maybe_target_argument,
    topic_argument,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import (
    Place,
    all_partitions,
    here_or_by_holder,
    open_directory,
    parse_target,
    partitions_of,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem, interrupted_as
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient
    from tidelog.control.verbs import CompactionResult
    from tidelog.directory import Directory
    from tidelog.storage.compaction.cleaning_plan import Preview


_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition", "base_offset"),
    output.size("bytes"),
    output.count("records", "keys"),
    output.size("garbage_bytes"),
    output.minor(output.number("cleaned_to", "runs"), output.size("found_bytes")),
    "decision",
    output.minor(output.size("read_bytes", "written_bytes")),
)


def show_plan(
    surroundings: Surroundings, directory: "Directory", names: list[TopicPartition], kind: Format
) -> ExitCode:
    """Print a row for each finished segment, and what is due, and why, for each partition."""
    from tidelog.storage.compaction.cleaning_plan import preview

    rows: list[list[Cell]] = []
    code = ExitCode.OK
    for name in names:
        try:
            plan_preview = preview(directory.log_dir, name)
        except InvalidRequest as error:  # it has a tier; plans of the others are shown
            surroundings.fail(str(error))
            code = ExitCode.ERROR
            continue
        rows.extend(_rows(name, plan_preview))
        plan = plan_preview.plan
        surroundings.say(
            f"{name}: {'due' if plan.is_due else 'not due'}: {plan.reason};"
            f" {plan.read_bytes} bytes to read, {plan.written_bytes:.0f} to write,"
            f" {plan.garbage_bytes:.0f} to free"
        )
        if plan_preview.has_versions:
            surroundings.note(
                f"{name}: keys and garbage are counted as if the last record of a key won"
            )
    if not names:
        surroundings.note("no topic has cleanup.policy=compact")
    output.print_rows(surroundings, _COLUMNS, rows, kind)
    return code


def _rows(name: TopicPartition, plan_preview: "Preview") -> Iterator[list[Cell]]:
    from tidelog.storage.compaction.generations import Decision

    plan = plan_preview.plan
    for segment, decision in zip(plan.segments, plan.decisions, strict=True):
        row = plan_preview.generations.row(segment.base_offset)
        is_moved = decision in (Decision.CLEAN, Decision.MERGE)
        is_mapped = plan.is_due and plan.map_from < segment.end_offset <= plan.map_to
        yield [
            name.topic,
            name.partition,
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


_SHOWN: Final = (
    "segments_before",
    "segments_after",
    "records_before",
    "records_after",
    "bytes_before",
    "bytes_after",
    "cleaned_to",
)


COMPACTED_UNTIL_INTERRUPT: Final = (
    "segments already compacted stay so, the others are unchanged; repeat the command to continue"
)


_ROW_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.count(*_SHOWN[:4]),
    output.size(*_SHOWN[4:6]),
    output.minor(output.number(*_SHOWN[6:])),
    "reason",
    "stopped",
)


@click.command(
    "compact",
    epilog=examples(
        "tidelog compact flights --data data",
        "tidelog compact flights:0 --data data --roll",
        "tidelog compact --data data --if-due -o json",
        "tidelog compact flights --data data --plan",
    ),
)
@maybe_target_argument
@data_option
@click.option("--roll", is_flag=True, help="Finish active segments first, so that all is cleaned.")
@click.option("--if-due", is_flag=True, help="Only where the topic's settings ask for it now.")
@click.option("--plan", is_flag=True, help="Only show what the settings ask for now.")
@format_option
@click.pass_obj
def compact(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    target: str | None,
    data: str | None,
    roll: bool,
    if_due: bool,
    plan: bool,
    kind: Format,
) -> ExitCode:
    """Keep the last record of each key in compacted topics.

    Takes the directory's lock, or asks the broker that has it. Without a topic all that have
    cleanup.policy=compact are looked at. Offsets never change; the active segment is left alone.

    Exit code: 0 done, 1 failed, 2 a head could not be cleaned to its end.
    """
    if plan and roll:
        raise UsageProblem("--plan changes nothing, so it can't --roll")
    if plan:
        with open_directory(surroundings, data) as directory:
            return show_plan(surroundings, directory, _compacted(directory, data, target), kind)

    def here() -> "list[CompactionResult]":
        with (
            interrupted_as(COMPACTED_UNTIL_INTERRUPT),
            open_directory(surroundings, data, writable=True) as directory,
        ):
            names = _compacted(directory, data, target)
            env = surroundings.env
            return [_clean(env, directory, name, roll=roll, if_due=if_due) for name in names]

    def by_holder(holder: "ControlClient") -> "list[CompactionResult]":
        from tidelog.control.verbs import compact_wishes, read_compact_report

        with open_directory(surroundings, data) as directory:
            names = _compacted(directory, data, target)
        wishes = [compact_wishes(name, roll=roll, is_asked=not if_due) for name in names]
        return [
            read_compact_report(name, holder.ask("compact", one))
            for name, one in zip(names, wishes, strict=True)
        ]

    done = here_or_by_holder(data, "compact", here, by_holder)
    output.print_rows(surroundings, _ROW_COLUMNS, map(_row, done), kind)
    if not done:
        surroundings.note("no topic has cleanup.policy=compact")
    is_whole = all(one.stopped is None for one in done)
    return ExitCode.OK if is_whole else ExitCode.FINDINGS


def _clean(
    env: Env, directory: "Directory", name: TopicPartition, *, roll: bool, if_due: bool
) -> "CompactionResult":
    from tidelog.control.verbs import compacted
    from tidelog.storage.compaction.cleaner import clean_partition
    from tidelog.storage.compaction.cleaning_plan import CleanerOptions
    from tidelog.storage.compaction.worker import InProcess
    from tidelog.storage.segment.roll import RollReason

    log = directory.log_dir.log(name.topic, name.partition)
    if roll:
        log.roll(RollReason.REQUEST)
    log.flush()  # records not yet on disk block removal of older ones
    options = CleanerOptions(is_asked=not if_due)
    if log.tier is not None:
        from tidelog.storage.tier_manager.tier_compaction import compact_tier

        return compacted(compact_tier(directory.log_dir, name, options))
    return compacted(clean_partition(directory.log_dir, name, InProcess(env), options))


def _compacted(
    directory: "Directory", data: str | None, target: str | None
) -> list[TopicPartition]:
    """Return the partitions of the target or all compacted topics; raises InvalidRequest."""
    if target is None:
        return all_partitions(directory, lambda info: info.config.is_compacted)
    topic, number = parse_target(target)
    if not directory.topic(topic).config.is_compacted:
        words = f"config {topic}{Place(data=data).words}"
        raise InvalidRequest(
            f"{topic} is not compacted: `tidelog {words} --set cleanup.policy=compact` makes it so"
        )
    return partitions_of(directory, topic, number)


def _row(one: "CompactionResult") -> list[Cell]:
    counts: list[Cell] = [one.counts[name] for name in _SHOWN]
    return [one.name.topic, one.name.partition, *counts, one.reason or None, one.stopped or None]


Receipt = Mapping[str, object]


@click.command(
    "erase",
    epilog=examples(
        "tidelog erase flights --key N14228",
        "tidelog erase flights --key N14228 --execute > receipt.json",
        "tidelog erase orders --key 42 --key-as int64 --execute",
    ),
)
@topic_argument
@data_option
@click.option("--key", required=True, metavar="K", help="The key; how it is read says --key-as.")
@key_as_option
@click.option("--execute", is_flag=True, help="Do it; otherwise only report what would be done.")
@click.pass_obj
def erase(
    surroundings: Surroundings,
    topic: str,
    data: str | None,
    key: str,
    key_as: Encoding,
    execute: bool,
) -> ExitCode:
    """Erase all records of a key from a topic's files.

    Appends a tombstone, writes segments anew that hold the key, reads all files once more, and
    prints a receipt (JSON) with the digests of what was searched. What can't be reached from here
    is named; the exit code is 2 where a file in reach still holds the key.
    """
    from tidelog.frames import needs_arrow

    needs_arrow()
    key_bytes = typed_bytes(key, key_as)

    def here() -> Receipt:
        from tidelog.storage.erasure import erase as erase_key

        with open_directory(surroundings, data, writable=execute) as directory:
            return erase_key(directory.log_dir, topic, key_bytes, execute=execute).receipt()

    receipt = here_or_by_holder(
        data, "erase", here, lambda holder: holder.erase(topic, key_bytes, execute=execute)
    )
    surroundings.stdout.write(f"{json.dumps(receipt, indent=1)}\n")
    _say(surroundings, receipt)
    return ExitCode.FINDINGS if receipt["not_reached"] else ExitCode.OK


def _say(surroundings: Surroundings, receipt: Receipt) -> None:
    for line in cast("list[str]", receipt["not_reached"]):
        surroundings.note(f"not reached: {line}")
    for line in cast("list[str]", receipt["out_of_reach"]):
        surroundings.note(f"nobody has looked at: {line}")
    count = receipt["records"]
    if not count:
        surroundings.note(f"no record of the key in {receipt['topic']}")
    elif not receipt["executed"]:
        surroundings.note(f"{count} records of the key; --execute erases them")
    elif receipt["complete"]:
        surroundings.say(f"{count} records of the key erased from {receipt['topic']}")
