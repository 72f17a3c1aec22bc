"""`tidelog tier`: moves segments to an object store, and shows, checks and repairs tiers."""

import re
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from tidelog.cli import output
from tidelog.cli.compact import say_stopped
from tidelog.cli.options import (
    Format,
    data_option,
    declared_by,
    examples,
    format_option,
    maybe_target_argument,
    option,
    show_option,
    shown_table,
    with_options,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import (
    all_partitions,
    here_or_by_holder,
    named,
    open_directory,
    parse_target,
    partitions_of,
)
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem, byte_progress
from tidelog.errors import CorruptData, CorruptMessage, TierConflict, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import parse_duration
from tidelog.types import NS_PER_MS, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tidelog.control.client import ControlClient
    from tidelog.directory import Directory
    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.directory.topic_registry import TopicInfo
    from tidelog.storage.tier.tier_record import TierRecord
    from tidelog.storage.tier_manager.mover import MoveOptions, MoveReport, TierStatus

Moved: TypeAlias = "tuple[list[MoveReport], list[list[Cell]]]"
_STATUS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.number("log_start")),
    output.number("local_start", "tier_end"),
    output.minor(output.number("log_end"), output.count("tier_segments")),
    output.size("tier_bytes"),
    output.minor(output.count("local_segments")),
    output.size("local_bytes"),
    output.minor(output.count("waiting_segments")),
    output.size("waiting_bytes"),
    output.minor(output.count("garbage_segments")),
    "url",
    output.minor(output.wrapped("refused")),
)
_STATUS_TOPICS: Final = output.columns(
    "topic",
    output.count("partitions"),
    output.size("tier_bytes", "local_bytes"),
    output.count("waiting_segments"),
    output.size("waiting_bytes"),
)
_MOVED: Final = output.columns(
    "topic",
    output.number("partition"),
    output.titled(segments_copied=output.count("copied"), size=output.size("copied_bytes")),
    output.count("released", "deleted", "removed"),
    output.number("local_start", "tier_end"),
    output.minor(output.wrapped("stopped")),
)
_RESTORED: Final = output.columns(
    "topic",
    output.number("partition"),
    output.count("segments"),
    output.number("log_start", "local_start", "tier_end"),
)
_NO_AGE_LIMIT: Final = (
    "{}: nothing was deleted by age, because the topic has no retention.ms and the broker's"
    " default is unknown"
)

# Maps an option to the actions that support the option; the action '' is a move.
_WITH: Final = {
    "--to": ("", "--dry-run", "--restore"),
    "--roll": ("",),
    "--accept-lost-times": ("",),
    "--take-over": ("", "--restore"),
    "--drop-theirs": ("",),
    "--sizes": ("--verify",),
    "--show": ("--status",),
    "--dry-run": ("--collect",),
}


class TierShow(StrEnum):
    """Table of `--status` to print."""

    TOPICS = "topics"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """The options of `tidelog tier`."""

    target: str | None = declared_by(maybe_target_argument)
    data: str | None = declared_by(data_option)
    url: str | None = option(
        "--to",
        metavar="URL",
        help="Object store to use from now on, such as s3://bucket/logs. Default: the topic's"
        " tidelog.tier.url.",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Only show what would be copied or removed."
    )
    roll: bool = option(
        "--roll", is_flag=True, help="Finish active segments first, to copy them too."
    )
    status: bool = option(
        "--status",
        is_flag=True,
        help="Only show which segments are local, and which are in the store.",
    )
    show: TierShow | None = declared_by(
        show_option(
            TierShow,
            "With --status. topics: one line per topic with a tier; partitions: one line per"
            " partition, with or without a tier.",
        )
    )
    verify: bool = option(
        "--verify", is_flag=True, help="Only verify: read all objects and compare their checksums."
    )
    sizes: bool = option(
        "--sizes",
        is_flag=True,
        help="With --verify: compare lengths only, without reading objects.",
    )
    collect: bool = option(
        "--collect", is_flag=True, help="Remove objects that no manifest names; do nothing else."
    )
    restore: bool = option(
        "--restore",
        is_flag=True,
        help="Rebuild a partition's damaged or missing tidelog-tier.json from the store.",
    )
    take_over: bool = option(
        "--take-over",
        is_flag=True,
        help="Take over writing to a tier that another directory has written.",
    )
    drop_theirs: bool = option(
        "--drop-theirs",
        is_flag=True,
        help="With --take-over: remove from the store the records that are missing from local files"
        " or differ from them.",
    )
    accept_lost_times: bool = option(
        "--accept-lost-times",
        is_flag=True,
        help="Also copy segments whose append times are damaged or lost; these append times become"
        " unknown.",
    )
    grace: str = option(
        "--grace",
        metavar="TIME",
        default="1h",
        show_default=True,
        help="Minimum age of unreferenced objects before they are removed.",
    )
    kind: Format = declared_by(format_option)

    @property
    def grace_ms(self) -> int:
        """Value of `--grace` in ms; raises InvalidTime."""
        if re.fullmatch("0+", self.grace):
            return 0
        return parse_duration(self.grace) // NS_PER_MS


@click.command(
    "tier",
    epilog=examples(
        "tidelog tier flights --data data --to s3://bucket/logs",
        "tidelog tier --data data",
        "tidelog tier flights:0 --data data --dry-run",
        "tidelog tier --data data --status -o json",
        "tidelog tier --data data --collect",
        "tidelog tier flights --data data --verify",
    ),
)
@with_options(TierOptions)
def tier(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    """Move finished segments to an object store.

    Copies finished segments that are not yet in the store, reads them back, and adds them to the
    partition's manifest. Then applies retention: retention.* to all segments, local.retention.* to
    local copies. Default: all topics with remote.storage.enable=true. --to sets
    remote.storage.enable and tidelog.tier.url.

    Credentials come from --store-option or the environment (AWS_ACCESS_KEY_ID ...).

    Exit code: 0 done, 1 failed, 2 a damaged segment was not copied, or --verify found something.
    """
    actions = {
        "--status": (options.status, _status),
        "--verify": (options.verify, _verify),
        "--collect": (options.collect, _collect),
        "--restore": (options.restore, _restore),
    }
    chosen = [name for name, (is_set, _) in actions.items() if is_set]
    if len(chosen) > 1:
        raise UsageProblem(f"{' and '.join(chosen)} can't be combined; give one of them")
    action = chosen[0] if chosen else "--dry-run" if options.dry_run else ""
    values = {
        "--to": options.url,
        "--roll": options.roll,
        "--accept-lost-times": options.accept_lost_times,
        "--take-over": options.take_over,
        "--sizes": options.sizes,
        "--show": options.show is not None,
        "--drop-theirs": options.drop_theirs,
        "--dry-run": options.dry_run and chosen,
    }
    for name, is_set in values.items():
        if is_set and action not in _WITH[name]:
            # --sizes applies only to --verify, and --show only to --status; the error says so.
            helps = {"--sizes": "--verify", "--show": "--status"}.get(name)
            other = f"without {helps}" if helps else f"with {action}"
            raise UsageProblem(f"{name} does not apply {other}")
    if options.drop_theirs and not options.take_over:
        raise UsageProblem("--drop-theirs does not apply without --take-over")
    if chosen:
        return actions[action][1](surroundings, options)
    if options.url is not None and options.target is None:
        raise UsageProblem("--to needs a topic: `tidelog tier TOPIC --to URL`")
    return (_dry_run if options.dry_run else _move)(surroundings, options)


# -- moving --------------------------------------------------------------------------------------


def _move(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    """Move segments to the store, in this process or in the process that has the directory open.

    A move copies segments, verifies the copies, applies retention and removes garbage.
    """

    def here() -> "Moved":
        move = _move_options(options)
        with open_directory(surroundings, options.data, writable=True) as directory:
            _enable(directory, options)
            names = _taking_part(surroundings, directory, options)
            reports = [
                _unless_refused(name, partial(_move_partition, surroundings, directory, name, move))
                for name in names
            ]
            return reports, [_moved_row(directory, report) for report in reports]

    def by_holder(holder: "ControlClient") -> "Moved":
        from tidelog.control import verbs

        move = _move_options(options)
        with open_directory(surroundings, options.data) as directory:
            names = _taking_part(surroundings, directory, options)

        def moved(name: TopicPartition) -> "MoveReport":
            response = holder.call("tier", verbs.tier_arguments(name, move))
            return verbs.read_tier_report(name, response)

        reports = [_unless_refused(name, partial(moved, name)) for name in names]
        with open_directory(surroundings, options.data) as directory:
            return reports, [_moved_row(directory, report) for report in reports]

    reports, rows = here_or_by_holder(options.data, "tier", here, by_holder)
    output.print_rows(surroundings, _MOVED, rows, options.kind)
    if not rows:
        surroundings.note("no topic has remote.storage.enable=true; see --to")
    for report in reports:
        if report.keeps_all_ages:
            surroundings.note(_NO_AGE_LIMIT.format(report.topic_partition))
    return say_stopped(surroundings, ((one.topic_partition, one.stopped) for one in reports))


def _move_options(options: TierOptions) -> "MoveOptions":
    from tidelog.storage.tier_manager.mover import MoveOptions

    return MoveOptions(
        url=options.url,
        grace_ms=options.grace_ms,
        takes_over=options.take_over,
        drops_theirs=options.drop_theirs,
        roll=options.roll,
        accepts_lost_times=options.accept_lost_times,
    )


def _enable(directory: "Directory", options: TierOptions) -> None:
    if options.url is not None:
        topic, _ = parse_target(options.target or "")
        changes = {"remote.storage.enable": "true", "tidelog.tier.url": options.url}
        directory.alter_config(topic, dict(changes))


def _unless_refused(name: TopicPartition, move: "Callable[[], MoveReport]") -> "MoveReport":
    """Run a move; if the tier can't be changed, return a report with the error's text."""
    from tidelog.storage.tier_manager.mover import MoveReport

    try:
        return move()
    except CorruptMessage:  # the response of the broker is damaged, not a file of the partition
        raise
    except (TierConflict, CorruptData, UnsupportedVersion) as error:
        return MoveReport(topic_partition=name, stopped=str(error))


def _move_partition(
    surroundings: Surroundings, directory: "Directory", name: TopicPartition, move: "MoveOptions"
) -> "MoveReport":
    from tidelog.storage.tier_manager.mover import tier_partition, tier_status

    waiting = tier_status(directory.log_dir, name).waiting_bytes
    with byte_progress(surroundings, str(name), waiting) as done:
        # `url=None`, because the topic's settings already have the store's URL.
        return tier_partition(directory.log_dir, name, replace(move, url=None, on_copied=done))


def _dry_run(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    from tidelog.storage.tier_manager.mover import tier_status

    rows: list[list[Cell]] = []
    with open_directory(surroundings, options.data) as directory:
        for name in _taking_part(surroundings, directory, options):
            status = tier_status(directory.log_dir, name)
            url = options.url or directory.topic(name.topic).config.tidelog_tier_url
            to = status.url or url
            waiting = status.waiting_segments, status.waiting_bytes
            rows.append([name.topic, name.partition, *waiting, to or None])
    columns = output.columns(
        "topic", output.number("partition"), output.count("segments"), output.size("bytes"), "to"
    )
    output.print_rows(surroundings, columns, rows, options.kind)
    return ExitCode.OK


# -- status and verification ---------------------------------------------------------------------


def _status(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    """Print how much of each topic or partition is in local files and in the store."""
    from tidelog.storage.tier_manager.mover import tier_status, tier_verdict

    kind, show = options.kind, shown_table(options.show, TierShow, options.kind)
    with open_directory(surroundings, options.data) as directory:
        names = _partitions(surroundings, directory, options)
        topics, log_dir = directory.topics(), directory.log_dir
        part = {name: _takes_part(directory, name, topics[name.topic]) for name in names}
        statuses = [tier_status(log_dir, name, checks_times=part[name]) for name in names]
        active = [one for one in statuses if one.url or part[one.topic_partition]]
    output.print_verdict(surroundings, tier_verdict(active, len(statuses)), kind)
    if show is TierShow.PARTITIONS:
        output.print_rows(surroundings, _STATUS, map(_status_row, statuses), kind)
    elif active or kind is not Format.TABLE:
        output.print_rows(surroundings, _STATUS_TOPICS, _status_topics(active), kind)
    for one in active:
        if one.refused is not None:
            surroundings.note(f"{one.topic_partition} is not copied completely: {one.refused}")
    return ExitCode.OK


def _status_topics(statuses: "Iterable[TierStatus]") -> list[list[Cell]]:
    """Return the rows of `_STATUS_TOPICS`."""
    by_topic: dict[str, list[TierStatus]] = {}
    for one in statuses:
        by_topic.setdefault(one.topic_partition.topic, []).append(one)
    return [
        [
            topic,
            len(of_topic),
            sum(one.tier_bytes for one in of_topic),
            sum(one.local_bytes for one in of_topic),
            sum(one.waiting_segments for one in of_topic),
            sum(one.waiting_bytes for one in of_topic),
        ]
        for topic, of_topic in by_topic.items()
    ]


def _verify(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    """Compare objects with their manifests."""
    from tidelog.storage.tier_manager.tier_store import verify

    with open_directory(surroundings, options.data) as directory:
        names = _partitions(surroundings, directory, options)
        rows = [
            [
                one.topic_partition.topic,
                one.topic_partition.partition,
                one.first_offset,
                one.end_offset,
                one.is_local,
                one.text,
                one.where,
            ]
            for one in verify(directory.log_dir, names, sizes_only=options.sizes)
        ]
    offsets = output.number("partition", "first_offset", "end_offset")
    columns = output.columns(
        "topic", offsets, output.minor("is_local"), output.wrapped("problem", "where")
    )
    output.print_rows(surroundings, columns, rows, options.kind)
    if not rows:
        surroundings.say("all objects match their manifests")
    return ExitCode.FINDINGS if rows else ExitCode.OK


# -- repair --------------------------------------------------------------------------------------


def _collect(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    """Remove objects that no manifest names."""
    from tidelog.storage.tier_manager.orphans import collect

    grace_ms, is_dry = options.grace_ms, options.dry_run
    with open_directory(surroundings, options.data, writable=not is_dry) as directory:
        names = _partitions(surroundings, directory, options)
        orphans = collect(directory.log_dir, names, grace_ms=grace_ms, dry_run=is_dry)
    columns = output.columns("would_remove" if is_dry else "removed")
    output.print_rows(surroundings, columns, [[one] for one in orphans.folders], options.kind)
    verb = "would be removed" if is_dry else "removed"
    objects = output.plural(orphans.objects, "object")
    surroundings.say(f"{objects} of {output.bytes_text(orphans.size_bytes)} {verb}")
    return say_stopped(surroundings, orphans.refused.items())


def _restore(surroundings: Surroundings, options: TierOptions) -> ExitCode:
    """Rebuild `tidelog-tier.json` of each selected partition from the store, then open the logs.

    The logs are opened last, because opening a log deletes local files that end within the tier's
    range: the tier has all records of these files.
    """
    from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
    from tidelog.storage.tier_manager.orphans import restore

    if options.target is None:
        raise UsageProblem("--restore needs a topic: `tidelog tier TOPIC[:P] --restore`")
    topic, number = parse_target(options.target)
    restored: dict[TopicPartition, TierRecord] = {}

    def prepare(log_dir: "LogDir") -> None:
        names = log_dir.partitions(topic) if number is None else [TopicPartition(topic, number)]
        for name in names:
            record = restore(log_dir, name, options.url, takes_over=options.take_over)
            restored[name] = record

    writable = LogDirOptions(writable=True, prepare=prepare)
    with LogDir.open(named(options.data), env=surroundings.env, options=writable) as log_dir:
        for name in restored:
            log_dir.log(name.topic, name.partition)
    rows = [
        [
            name.topic,
            name.partition,
            len(record.manifest.segments),
            record.log_start_offset,
            record.local_start_offset,
            record.manifest.end_offset,
        ]
        for name, record in restored.items()
    ]
    output.print_rows(surroundings, _RESTORED, rows, options.kind)
    partitions = output.plural(len(rows), "partition")
    surroundings.say(f"tidelog-tier.json of {partitions} rebuilt from the store")
    return ExitCode.OK


# -- which partitions ----------------------------------------------------------------------------


def _partitions(
    surroundings: Surroundings, directory: "Directory", options: TierOptions
) -> list[TopicPartition]:
    """Return the partitions that the argument names; without an argument, all partitions.

    Partitions without files are left out, and noted.
    """
    if options.target is not None:
        return partitions_of(surroundings, directory, *parse_target(options.target))
    return all_partitions(surroundings, directory, lambda _info: True)


def _taking_part(
    surroundings: Surroundings, directory: "Directory", options: TierOptions
) -> list[TopicPartition]:
    """Return the partitions that a move handles.

    An argument selects the partitions of a topic, or one partition. Without an argument, the result
    is every partition that has a tier, and every partition of a topic whose settings enable a tier.
    """
    names = _partitions(surroundings, directory, options)
    if options.target is not None:
        return names
    topics = directory.topics()
    return [name for name in names if _takes_part(directory, name, topics[name.topic])]


def _takes_part(directory: "Directory", name: TopicPartition, info: "TopicInfo") -> bool:
    """Return whether a partition has a tier (even if damaged), or its settings enable a tier."""
    try:
        has_tier = directory.partition(name.topic, name.partition).tier is not None
    except CorruptData:
        return True  # the move reports the damage
    return has_tier or (info.config.remote_storage_enable and bool(info.config.tidelog_tier_url))


def _moved_row(directory: "Directory", report: "MoveReport") -> list[Cell]:
    from tidelog.storage.tier_manager.mover import tier_status

    offsets: list[Cell] = [None, None]
    try:
        status = tier_status(directory.log_dir, report.topic_partition)
        offsets = [status.local_start_offset, status.tier_end_offset]
    except CorruptData:
        if report.stopped is None:
            raise
    return [
        report.topic_partition.topic,
        report.topic_partition.partition,
        report.copied,
        report.copied_bytes,
        report.released,
        report.deleted_count,
        report.removed,
        *offsets,
        report.stopped or None,
    ]


def _status_row(status: "TierStatus") -> list[Cell]:
    return [
        status.topic_partition.topic,
        status.topic_partition.partition,
        status.log_start_offset,
        status.local_start_offset,
        status.tier_end_offset,
        status.log_end_offset,
        status.tier_segments,
        status.tier_bytes,
        status.local_segments,
        status.local_bytes,
        status.waiting_segments,
        status.waiting_bytes,
        status.garbage_segments,
        status.url or None,
        status.refused,
    ]
