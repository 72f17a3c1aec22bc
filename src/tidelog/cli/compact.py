"""`tidelog compact` and `tidelog erase`: remove certain records by rewriting finished segments.

`compact` keeps the last record of each key. `compact --plan` shows what a compaction would do to
each segment, and how many bytes it would read and write. For segments that were never cleaned,
these figures are estimated from a sample of the segments' keys. `erase --execute` removes all
records of one key from a topic's files, except for a tombstone, and prints a receipt.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import plural
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
    one_of,
    show_option,
    shown_table,
    topic_argument,
    wide_option,
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
from tidelog.errors import CorruptData, InvalidRequest, MissingFile, TidelogError
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient
    from tidelog.control.verbs import CompactionResult
    from tidelog.directory import Directory
    from tidelog.storage.compaction.cleaning_plan import CleanerOptions, Preview
    from tidelog.storage.compaction.generations import GenerationPlan
    from tidelog.storage.erasure import Receipt


_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition", "base_offset"),
    output.size("bytes"),
    output.count("records", "keys"),
    output.size("garbage_bytes"),
    output.minor(output.number("cleaned_to", "runs"), output.size("freed_bytes")),
    "decision",
    output.minor(output.size("read_bytes", "written_bytes")),
    output.detail("blocked_by"),
)

_PLAN_TOPICS: Final = output.columns(
    "topic",
    output.count("partitions", "due"),
    output.minor(output.size("read_bytes", "written_bytes", "freed_bytes")),
    output.wrapped("reason"),
    output.detail("blocked_by"),
)


# Maximum number of partitions that the line of one reason names. If more partitions have the same
# reason, the line contains only their number and their topic.
_NAMES_MAX: Final = 3


class PlanShow(StrEnum):
    """Table that `--plan` prints."""

    TOPICS = "topics"
    SEGMENTS = "segments"


def show_plan(
    surroundings: Surroundings,
    directory: "Directory",
    names: list[TopicPartition],
    kind: Format,
    show: PlanShow | None,
) -> ExitCode:
    """Print which partitions are due for compaction and why, by topic or by finished segment."""
    from tidelog.storage.compaction.cleaning_plan import preview
    from tidelog.storage.compaction.generations.planning import plan_verdict

    previews: dict[TopicPartition, Preview] = {}
    code = ExitCode.OK
    for name in names:
        try:
            previews[name] = preview(directory.log_dir, name)
        except InvalidRequest as error:  # the partition has a tier; show the other partitions
            surroundings.fail(str(error))
            code = ExitCode.ERROR
    plans = {name: one.plan for name, one in previews.items()}
    if plans or not names:
        output.print_verdict(surroundings, plan_verdict([*plans.values()]), kind)
    if shown_table(show, PlanShow, kind) is PlanShow.SEGMENTS:
        rows = [row for name, one in previews.items() for row in _rows(name, one)]
        output.print_rows(surroundings, _COLUMNS, rows, kind)
        for line in _reasons(plans):
            surroundings.note(line)
    elif plans or kind is not Format.TABLE:
        output.print_rows(surroundings, _PLAN_TOPICS, _plan_topics(previews, kind), kind)
    for name, one in previews.items():
        if one.refusals:
            first, *others = one.refusals.values()
            more = f"; {plural(len(others), 'more segment')} also" if others else ""
            surroundings.note(f"{name} would not be compacted: {first}{more}")
        if one.has_versions:
            surroundings.say(
                f"{name}: keys and garbage are estimated as if the last record of each key were"
                " kept, but in this topic a timestamp or a header decides which record is kept"
            )
    return code


def _reasons(plans: "Mapping[TopicPartition, GenerationPlan]") -> Iterator[str]:
    """Yield a line for each topic and reason, with the partitions that have this reason."""
    names: dict[tuple[str, bool, str], list[TopicPartition]] = {}
    for name, plan in plans.items():
        names.setdefault((name.topic, plan.is_due, plan.reason), []).append(name)
    for (topic, is_due, reason), alike in names.items():
        few = len(alike) <= _NAMES_MAX
        subject = (
            ", ".join(map(str, alike)) if few else f"{plural(len(alike), 'partition')} of {topic}"
        )
        yield f"{subject}: {'due' if is_due else 'not due'}: {reason}"


def _plan_topics(previews: "Mapping[TopicPartition, Preview]", kind: Format) -> list[list[Cell]]:
    """Return the rows of `_PLAN_TOPICS`; the costs are sums over the partitions that are due.

    A table shows only the first reason of a topic and the number of its other reasons.
    """
    by_topic: dict[str, list[Preview]] = {}
    for name, one in previews.items():
        by_topic.setdefault(name.topic, []).append(one)
    rows: list[list[Cell]] = []
    for topic, parts in by_topic.items():
        of_topic = [one.plan for one in parts]
        due = [plan for plan in of_topic if plan.is_due]
        reasons = [*dict.fromkeys(plan.reason for plan in due or of_topic)]
        if kind is Format.TABLE and len(reasons) > 1:
            others = plural(len(reasons) - 1, "other reason")
            reasons[1:] = [f"{others} with --show segments"]
        rows.append(
            [
                topic,
                len(of_topic),
                len(due),
                sum(plan.read_bytes for plan in due),
                round(sum(plan.written_bytes for plan in due)),
                round(sum(plan.garbage_bytes for plan in due)),
                "; ".join(reasons),
                "; ".join(text for one in parts for text in one.refusals.values()) or None,
            ]
        )
    return rows


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
            row.freed_bytes,
            decision.value,
            segment.size_bytes * (int(is_moved) + int(is_mapped)),
            round(segment.live_bytes) if is_moved else 0,
            plan_preview.refusals.get(segment.base_offset),
        ]


_COUNTS: Final = (
    "segments_before",
    "segments_after",
    "records_before",
    "records_after",
    "bytes_before",
    "bytes_after",
    "cleaned_to",
)

COMPACTED_UNTIL_INTERRUPT: Final = (
    "compacted segments stay compacted, the others are unchanged; repeat the command to continue"
)

_ROW_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.count(*_COUNTS[:2])),
    output.count(*_COUNTS[2:4]),
    output.size(*_COUNTS[4:6]),
    output.minor(output.number(*_COUNTS[6:])),
    output.wrapped("reason"),
    output.minor(output.wrapped("stopped")),
)


def say_stopped(
    surroundings: Surroundings, stopped: Iterable[tuple[object, str | None]]
) -> ExitCode:
    """Print each item that was not completed, with its reason; return FINDINGS if there are any."""
    code = ExitCode.OK
    for name, reason in stopped:
        if reason is not None:
            surroundings.fail(f"{name} was not completed: {reason}")
            code = ExitCode.FINDINGS
    return code


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
@click.option("--roll", is_flag=True, help="Finish active segments first, to clean them too.")
@click.option(
    "--if-due",
    is_flag=True,
    help="Compact only partitions that are due by their topic's settings. Default: compact all"
    " finished segments.",
)
@click.option(
    "--accept-lost-times",
    is_flag=True,
    help="Also compact segments whose append times are damaged or lost; these append times become"
    " unknown.",
)
@click.option(
    "--plan",
    is_flag=True,
    help="Dry run: show which partitions are due by their settings, and the cost.",
)
@show_option(
    PlanShow,
    "Table of --plan. topics: one line per topic; segments: one line per finished segment.",
)
@format_option
@click.pass_obj
def compact(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    target: str | None,
    data: str | None,
    roll: bool,
    if_due: bool,
    accept_lost_times: bool,
    plan: bool,
    show: PlanShow | None,
    kind: Format,
) -> ExitCode:
    """Keep the last record of each key in compacted topics.

    Works on the directory itself, or through the broker that has it open. Without a topic, compacts
    all topics with cleanup.policy=compact. Offsets never change; active segments are not compacted.

    Exit code: 0 done, 1 failed, 2 a partition could not be cleaned to its end.
    """
    if show is not None and not plan:
        raise UsageProblem("--show does not apply without --plan")
    if plan and roll:
        raise UsageProblem("--roll does not apply with --plan, which changes nothing")
    if plan and accept_lost_times:
        raise UsageProblem("--accept-lost-times does not apply with --plan")
    if plan:
        with open_directory(surroundings, data) as directory:
            names = _compacted(surroundings, directory, data, target)
            return show_plan(surroundings, directory, names, kind, show)

    def here() -> "tuple[list[CompactionResult], list[TidelogError]]":
        from tidelog.storage.compaction.cleaning_plan import CleanerOptions

        with (
            interrupted_as(COMPACTED_UNTIL_INTERRUPT),
            open_directory(surroundings, data, writable=True) as directory,
        ):
            names = _compacted(surroundings, directory, data, target)
            options = CleanerOptions(is_asked=not if_due, accepts_lost_times=accept_lost_times)
            env = surroundings.env
            return _each(names, lambda name: _clean(env, directory, name, options, roll=roll))

    def by_holder(
        holder: "ControlClient",
    ) -> "tuple[list[CompactionResult], list[TidelogError]]":
        from tidelog.control.verbs import compact_arguments, read_compact_report

        if accept_lost_times:
            raise UsageProblem("--accept-lost-times needs the directory's lock: stop the broker")
        with open_directory(surroundings, data) as directory:
            names = _compacted(surroundings, directory, data, target)

        def requested(name: TopicPartition) -> "CompactionResult":
            arguments = compact_arguments(name, roll=roll, is_asked=not if_due)
            return read_compact_report(name, holder.call("compact", arguments))

        return _each(names, requested)

    return _show(surroundings, here_or_by_holder(data, "compact", here, by_holder), kind)


def _each(
    names: Iterable[TopicPartition], clean: Callable[[TopicPartition], "CompactionResult"]
) -> "tuple[list[CompactionResult], list[TidelogError]]":
    """Compact each partition, even after damage in an earlier one; return results and errors."""
    results: list[CompactionResult] = []
    errors: list[TidelogError] = []
    for name in names:
        try:
            results.append(clean(name))
        except (CorruptData, MissingFile) as error:
            errors.append(error)
    return results, errors


def _show(
    surroundings: Surroundings,
    done: "tuple[list[CompactionResult], list[TidelogError]]",
    kind: Format,
) -> ExitCode:
    """Print the results and errors of `_each`; raises the last error."""
    results, errors = done
    if results or not errors:
        output.print_rows(surroundings, _ROW_COLUMNS, map(_row, results), kind)
    code = say_stopped(surroundings, ((one.name, one.stopped) for one in results))
    for error in errors[:-1]:
        surroundings.fail(str(error))
    if errors:
        raise errors[-1]
    if not results:
        surroundings.note("no topic has cleanup.policy=compact")
    return code


def _clean(
    env: Env, directory: "Directory", name: TopicPartition, options: "CleanerOptions", *, roll: bool
) -> "CompactionResult":
    from tidelog.control.verbs import compacted
    from tidelog.storage.compaction.cleaner import clean_partition
    from tidelog.storage.compaction.worker import InProcess
    from tidelog.storage.segment.roll import RollReason

    log = directory.log_dir.log(name.topic, name.partition)
    if roll:
        log.roll(RollReason.REQUEST)
    log.flush()  # unsynced records prevent the removal of older records
    if log.tier is not None:
        from tidelog.storage.tier_manager.tier_compaction import compact_tier

        return compacted(compact_tier(directory.log_dir, name, options))
    return compacted(clean_partition(directory.log_dir, name, InProcess(env), options))


def _compacted(
    surroundings: Surroundings, directory: "Directory", data: str | None, target: str | None
) -> list[TopicPartition]:
    """Return the partitions of the target, or of all compacted topics; raises InvalidRequest.

    Partitions without files are left out, and noted.
    """
    if target is None:
        return all_partitions(surroundings, directory, lambda info: info.config.is_compacted)
    topic, number = parse_target(target)
    if not directory.topic(topic).config.is_compacted:
        words = f"config {topic}{Place(data=data).words}"
        raise InvalidRequest(
            f"{topic} is not a compacted topic; `tidelog {words} --set cleanup.policy=compact`"
            " makes it one"
        )
    return partitions_of(surroundings, directory, topic, number)


def _row(one: "CompactionResult") -> list[Cell]:
    counts: list[Cell] = [one.counts[name] for name in _COUNTS]
    return [one.name.topic, one.name.partition, *counts, one.reason or None, one.stopped or None]


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
@click.option(
    "--key", required=True, metavar="K", help="The key, interpreted according to --key-as."
)
@key_as_option
@click.option("--execute", is_flag=True, help="Apply the change. Default: dry run.")
@click.option(
    "--accept-lost-times",
    is_flag=True,
    help="Also rewrite segments whose append times are damaged or lost; these append times become"
    " unknown.",
)
@one_of(
    "--format",
    "-o",
    "kind",
    kind=Format,
    default=None,
    text="How the result is written.  [default: table, or json with --execute]",
)
@wide_option
@click.pass_obj
def erase(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    topic: str,
    data: str | None,
    key: str,
    key_as: Encoding,
    execute: bool,
    accept_lost_times: bool,
    kind: Format | None,
) -> ExitCode:
    """Erase all records of a key from a topic's files.

    Appends a tombstone, rewrites segments that hold the key, reads all files once more, and prints
    a receipt (JSON) with the digests of all searched files. Without --execute, changes nothing and
    shows the files that hold the key; -o json then prints the receipt. A process that has the
    directory open, such as a broker, executes the request itself.

    The tombstone contains the key until compaction or retention removes the tombstone. Afterwards,
    tables as of earlier times, and differences from such tables, are inexact.

    Exit code 2: a reachable file still holds a record of the key other than the tombstone. Copies
    that can't be reached are listed.
    """
    from tidelog.frames import needs_arrow

    needs_arrow()
    key_bytes = typed_bytes(key, key_as)

    def here() -> "Receipt":
        from tidelog.storage.erasure import erase as erase_key

        with open_directory(surroundings, data, writable=execute) as directory:
            done = erase_key(
                directory.log_dir,
                topic,
                key_bytes,
                execute=execute,
                accepts_lost_times=accept_lost_times,
            )
            return done.receipt()

    def by_holder(holder: "ControlClient") -> "Receipt":
        return holder.erase(topic, key_bytes, execute=execute, accepts_lost_times=accept_lost_times)

    receipt = here_or_by_holder(data, "erase", here, by_holder)
    default = Format.JSON if execute else Format.TABLE
    _show_erasure(surroundings, receipt, kind or default)
    return ExitCode.FINDINGS if receipt["not_reached"] else ExitCode.OK


_FILES: Final = output.columns(
    output.number("partition"), "file", output.count("records"), "offsets"
)
# Maximum number of offsets that the table lists for a file, unless --wide is given.
_OFFSETS_MAX: Final = 8


def _show_erasure(surroundings: Surroundings, receipt: "Receipt", kind: Format) -> None:
    """Print the verdict and the files with the key, or the receipt; notes go to stderr."""
    from tidelog.storage.erasure import erasure_verdict

    output.print_verdict(surroundings, erasure_verdict(receipt), kind)
    if kind is Format.JSON:
        surroundings.stdout.write(f"{json.dumps(receipt, indent=1)}\n")
    elif receipt["records"] or kind is Format.CSV:
        shortened = kind is Format.TABLE and not surroundings.is_wide
        most = _OFFSETS_MAX if shortened else None
        output.print_rows(surroundings, _FILES, _file_rows(receipt, most), kind)
    for line in receipt["not_reached"]:
        surroundings.note(f"not reached: {line}")
    for line in receipt["notes"]:
        surroundings.note(line)
    if receipt["executed"]:
        for line in receipt["out_of_reach"]:
            surroundings.note(f"not checked: {line}")


def _file_rows(receipt: "Receipt", most: int | None) -> Iterator[list[Cell]]:
    """Yield a row for each file with the key; a row lists at most `most` offsets."""
    for row in receipt["found"]:
        offsets = row["offsets"]
        listed = offsets[:most]
        text = ", ".join(map(str, listed)) + (", ..." if len(listed) < len(offsets) else "")
        yield [row["partition"], row["file"], len(offsets), text]
