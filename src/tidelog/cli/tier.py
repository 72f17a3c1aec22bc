"""`tidelog tier`: moves segments to an object store, and shows, checks and repairs tiers."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import click

from tidelog.cli import output
from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.output import Cell
from tidelog.cli.places import open_directory, parse_target, partitions_of
from tidelog.cli.surroundings import NO_DATA, ExitCode, Surroundings, UsageProblem, byte_progress
from tidelog.errors import CorruptData, DirectoryLocked
from tidelog.timespec import parse_duration
from tidelog.types import NS_PER_MS, TopicPartition

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient
    from tidelog.directory import Directory
    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.directory.topic_registry import TopicInfo
    from tidelog.storage.tier_manager.mover import MoveReport, TierStatus

Prepare = Callable[["LogDir"], None]
_STATUS: Final = [
    output.text("partition"),
    *map(
        output.number,
        (
            "log_start",
            "local_start",
            "tier_end",
            "log_end",
            "tier_segments",
            "tier_bytes",
            "local_segments",
            "local_bytes",
            "waiting_segments",
            "waiting_bytes",
            "garbage_segments",
        ),
    ),
    output.text("url"),
]
_MOVED: Final = [
    output.text("partition"),
    *map(
        output.number,
        ("copied", "copied_bytes", "released", "deleted", "removed", "local_start", "tier_end"),
    ),
    output.text("stopped"),
]
_KEPT: Final = (
    "{}: nothing was deleted by age: the topic has no retention.ms of its own, and its broker's is"
    " not known without the broker"
)


# Actions that each option supports; '' is a move.
_WITH: Final = {
    "--to": ("", "--dry-run", "--restore"),
    "--roll": ("",),
    "--take-over": ("", "--restore"),
    "--drop-theirs": ("",),
    "--sizes": ("--verify",),
    "--dry-run": ("--collect",),
}


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
@click.argument("target", required=False, metavar="[TOPIC[:P]]")
@data_option
@click.option("--to", "url", metavar="URL", help="Store to use from now on, such as s3://b/logs.")
@click.option("--dry-run", is_flag=True, help="Only say what would be copied or removed.")
@click.option("--roll", is_flag=True, help="Finish active segments first, so that all is copied.")
@click.option("--status", is_flag=True, help="Say what lies where; nothing is changed.")
@click.option("--verify", is_flag=True, help="Read all objects and compare their checksums.")
@click.option("--sizes", is_flag=True, help="With --verify: compare lengths only, reading nothing.")
@click.option("--collect", is_flag=True, help="Remove objects that no manifest names.")
@click.option("--restore", is_flag=True, help="Make a partition's damaged or lost record anew.")
@click.option("--take-over", is_flag=True, help="Go on with what another directory has written.")
@click.option(
    "--drop-theirs",
    is_flag=True,
    help="With --take-over: remove records of the store that local files lack or contradict.",
)
@click.option(
    "--grace",
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="What left a manifest, or was never in one, stays so long for readers and writers.",
)
@format_option
@click.pass_obj
def tier(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    target: str | None,
    data: str | None,
    url: str | None,
    dry_run: bool,
    roll: bool,
    status: bool,
    verify: bool,
    sizes: bool,
    collect: bool,
    restore: bool,
    take_over: bool,
    drop_theirs: bool,
    grace: str,
    kind: Format,
) -> ExitCode:
    """Move finished segments to an object store, and let local copies go.

    Copies what is finished and not yet there, reads it back, notes it in the partition's manifest,
    then applies retention: total retention to both tiers, local.retention.* to local copies. Topics
    with remote.storage.enable=true take part; --to sets that, and tidelog.tier.url.

    Credentials come from the environment (AWS_ACCESS_KEY_ID ...) or --store-option.

    Exit code: 0 done, 1 failed, 2 a damaged segment was left behind, or --verify found something.
    """
    named = [("--status", status), ("--verify", verify), ("--collect", collect)]
    chosen = [name for name, is_set in [*named, ("--restore", restore)] if is_set]
    if len(chosen) > 1:
        raise UsageProblem(f"{' and '.join(chosen)} are different things; give one of them")
    action = chosen[0] if chosen else "--dry-run" if dry_run else ""
    given = {"--to": url, "--roll": roll, "--take-over": take_over, "--sizes": sizes}
    given["--drop-theirs"] = drop_theirs
    given["--dry-run"] = dry_run and bool(chosen)
    for name in (name for name, is_set in given.items() if is_set):
        if action not in _WITH[name]:
            raise UsageProblem(f"{name} {_meaningless(name, action)}")
    if drop_theirs and not take_over:
        raise UsageProblem("--drop-theirs has no meaning without --take-over")
    command = TierCommand(surroundings, data, target, kind, grace)
    if status:
        return command.status()
    if verify:
        return command.verify(sizes_only=sizes)
    if collect:
        return command.collect(dry_run=dry_run)
    if restore:
        return command.restore(url, takes_over=take_over)
    return command.move(
        MoveWishes(url, dry_run=dry_run, roll=roll, takes_over=take_over, drops_theirs=drop_theirs)
    )


def _meaningless(name: str, action: str) -> str:
    """Return why an option does not apply to an action."""
    if name == "--sizes":
        return "has no meaning without --verify"
    return f"has no meaning with {action}"


@dataclass(frozen=True, slots=True)
class MoveWishes:
    """Options of a move, see the command's options."""

    url: str | None
    dry_run: bool
    roll: bool
    takes_over: bool
    drops_theirs: bool


@dataclass(frozen=True, slots=True)
class TierCommand:
    """One call of the command."""

    surroundings: Surroundings
    data: str | None
    target: str | None
    kind: Format
    grace: str

    @property
    def grace_ms(self) -> int:
        """Value of `--grace` in ms; raises InvalidTime."""
        if re.fullmatch("0+", self.grace):
            return 0
        return parse_duration(self.grace) // NS_PER_MS

    # -- moving ------------------------------------------------------------------------------

    def move(self, wishes: MoveWishes) -> ExitCode:
        """Copy, verify, apply retention and clean; or print what would be copied."""
        if wishes.url is not None and self.target is None:
            raise UsageProblem("--to is for a topic: `tidelog tier TOPIC --to URL`")
        if wishes.dry_run:
            return self._dry_run(wishes)
        try:
            reports, rows = self._move_all(wishes)
        except DirectoryLocked:
            holder = self._holder()
            if holder is None:
                raise
            with holder:
                reports, rows = self._move_by(holder, wishes)
        self._print(_MOVED, rows)
        if not rows:
            self.surroundings.say("no topic has remote.storage.enable=true; see --to")
        for report in reports:
            if report.keeps_all_ages:
                self.surroundings.say(_KEPT.format(report.topic_partition))
        is_whole = all(report.stopped is None for report in reports)
        return ExitCode.OK if is_whole else ExitCode.FINDINGS

    def _move_all(self, wishes: MoveWishes) -> "tuple[list[MoveReport], list[list[Cell]]]":
        grace_ms = self.grace_ms
        with open_directory(self.surroundings, self.data, writable=True) as directory:
            self._enable(directory, wishes.url)
            names = self._moved(directory)
            reports = [self._move(directory, name, wishes, grace_ms) for name in names]
            return reports, [_moved_row(directory, report) for report in reports]

    def _holder(self) -> "ControlClient | None":
        """Return the broker that has the directory and serves moves; None without one."""
        from tidelog.control.client import find_holder

        holder = find_holder(self.data or "")
        if holder is not None and "tier" not in cast("list[str]", holder.status()["verbs"]):
            holder.close()
            return None
        return holder

    def _move_by(
        self, holder: "ControlClient", wishes: MoveWishes
    ) -> "tuple[list[MoveReport], list[list[Cell]]]":
        """Let the broker that has the directory open move segments, partition by partition."""
        from tidelog.control import verbs
        from tidelog.storage.tier_manager.mover import MoveOptions

        options = MoveOptions(
            url=wishes.url,
            grace_ms=self.grace_ms,
            takes_over=wishes.takes_over,
            drops_theirs=wishes.drops_theirs,
            roll=wishes.roll,
        )
        with open_directory(self.surroundings, self.data) as directory:
            names = self._moved(directory)
        told = [holder.ask("tier", verbs.tier_wishes(name, options)) for name in names]
        reports = [verbs.read_tier_report(name, one) for name, one in zip(names, told, strict=True)]
        with open_directory(self.surroundings, self.data) as directory:
            return reports, [_moved_row(directory, report) for report in reports]

    def _enable(self, directory: "Directory", url: str | None) -> None:
        if url is None:
            return
        topic, _ = parse_target(self.target or "")
        given = {"remote.storage.enable": "true", "tidelog.tier.url": url}
        directory.alter_config(topic, dict(given))

    def _move(
        self, directory: "Directory", name: TopicPartition, wishes: MoveWishes, grace_ms: int
    ) -> "MoveReport":
        from tidelog.storage.tier_manager.mover import MoveOptions, tier_partition, tier_status

        waiting = tier_status(directory.log_dir, name).waiting_bytes
        with byte_progress(self.surroundings, str(name), waiting) as done:
            options = MoveOptions(
                grace_ms=grace_ms,
                takes_over=wishes.takes_over,
                drops_theirs=wishes.drops_theirs,
                roll=wishes.roll,
                on_copied=done,
            )
            return tier_partition(directory.log_dir, name, options)

    def _dry_run(self, wishes: MoveWishes) -> ExitCode:
        from tidelog.storage.tier_manager.mover import tier_status

        columns = [
            output.text("partition"),
            output.number("segments"),
            output.number("bytes"),
            output.text("to"),
        ]
        with open_directory(self.surroundings, self.data) as directory:
            rows: list[list[Cell]] = []
            for name in self._moved(directory, any_topic=wishes.url is not None):
                found = tier_status(directory.log_dir, name)
                given = wishes.url or directory.topic(name.topic).config.tidelog_tier_url
                to = found.url or given
                rows.append([str(name), found.waiting_segments, found.waiting_bytes, to])
        self._print(columns, rows)
        return ExitCode.OK

    # -- status and checks -------------------------------------------------------------------

    def status(self) -> ExitCode:
        """Print the local and remote segments of each partition."""
        from tidelog.storage.tier_manager.mover import tier_status

        with open_directory(self.surroundings, self.data) as directory:
            found = [tier_status(directory.log_dir, name) for name in self._all(directory)]
        self._print(_STATUS, [_status_row(one) for one in found])
        return ExitCode.OK

    def verify(self, *, sizes_only: bool) -> ExitCode:
        """Compare objects with manifests; print the differences."""
        from tidelog.storage.tier_manager.tier_store import verify

        columns = [
            output.text("partition"),
            output.number("first_offset"),
            output.number("end_offset"),
            output.text("is_local"),
            output.text("problem"),
            output.text("where"),
        ]
        with open_directory(self.surroundings, self.data) as directory:
            rows: list[list[Cell]] = [
                [
                    str(one.topic_partition),
                    one.first_offset,
                    one.end_offset,
                    one.is_local,
                    one.text,
                    one.where,
                ]
                for one in verify(directory.log_dir, self._all(directory), sizes_only=sizes_only)
            ]
        self._print(columns, rows)
        if not rows:
            self.surroundings.say("all objects are as their manifests say")
        return ExitCode.FINDINGS if rows else ExitCode.OK

    # -- repair ------------------------------------------------------------------------------

    def collect(self, *, dry_run: bool) -> ExitCode:
        """Remove orphans."""
        from tidelog.storage.tier_manager.orphans import collect

        grace_ms = self.grace_ms
        with open_directory(self.surroundings, self.data, writable=True) as directory:
            found = collect(
                directory.log_dir, self._all(directory), grace_ms=grace_ms, dry_run=dry_run
            )
        self._print(
            [output.text("removed" if not dry_run else "would_remove")],
            [[folder] for folder in found.folders],
        )
        what = "would be removed" if dry_run else "removed"
        self.surroundings.say(f"{found.objects} objects of {found.size_bytes} bytes {what}")
        return ExitCode.OK

    def restore(self, url: str | None, *, takes_over: bool) -> ExitCode:
        """Rebuild partitions' tier records before any log is opened; then open these logs.

        Opening removes local files that end before the tier does, so readers see the whole tier at
        once.
        """
        from tidelog.storage.tier_manager.orphans import restore

        if self.target is None:
            raise UsageProblem("--restore is for one topic: `tidelog tier TOPIC[:P] --restore`")
        topic, number = parse_target(self.target)
        restored: list[TopicPartition] = []

        def prepare(state: "LogDir") -> None:
            names = state.partitions(topic)
            for name in names if number is None else [TopicPartition(topic, number)]:
                restore(state, name, url, takes_over=takes_over)
                restored.append(name)

        with self._prepared(prepare) as state:
            for name in restored:
                state.log(name.topic, name.partition)
        self._print([output.text("restored")], [[str(name)] for name in restored])
        return ExitCode.OK

    @contextmanager
    def _prepared(self, prepare: Prepare) -> "Iterator[LogDir]":
        from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

        if not self.data:
            raise UsageProblem(NO_DATA)
        options = LogDirOptions(writable=True, prepare=prepare)
        with LogDir.open(self.data, env=self.surroundings.env, options=options) as state:
            yield state

    # -- choice of partitions ----------------------------------------------------------------

    def _all(self, directory: "Directory") -> list[TopicPartition]:
        """Return the partitions of the target, or all partitions."""
        if self.target is not None:
            return partitions_of(directory, *parse_target(self.target))
        return [
            TopicPartition(info.name, number)
            for info in directory.topics().values()
            for number in info.present
        ]

    def _moved(self, directory: "Directory", *, any_topic: bool = False) -> list[TopicPartition]:
        """Return the partitions to move: the target's, or those that have or should get a tier."""
        names = self._all(directory)
        if self.target is not None or any_topic:
            return names
        topics = directory.topics()
        return [name for name in names if _takes_part(directory, name, topics[name.topic])]

    def _print(self, columns: list[output.Column], rows: list[list[Cell]]) -> None:
        output.print_rows(self.surroundings, columns, rows, self.kind)


def _takes_part(directory: "Directory", name: TopicPartition, info: "TopicInfo") -> bool:
    """Whether a partition has a tier, or its topic's settings ask for one."""
    try:
        has_tier = directory.partition(name.topic, name.partition).tier is not None
    except CorruptData:
        return True  # the move reports the damage
    return has_tier or (info.config.remote_storage_enable and bool(info.config.tidelog_tier_url))


def _moved_row(directory: "Directory", report: "MoveReport") -> list[Cell]:
    from tidelog.storage.tier_manager.mover import tier_status

    found = tier_status(directory.log_dir, report.topic_partition)
    return [
        str(report.topic_partition),
        report.copied,
        report.copied_bytes,
        report.released,
        report.deleted_count,
        report.removed,
        found.local_start_offset,
        found.tier_end_offset,
        report.stopped or "",
    ]


def _status_row(found: "TierStatus") -> list[Cell]:
    return [
        str(found.topic_partition),
        found.log_start_offset,
        found.local_start_offset,
        found.tier_end_offset,
        found.log_end_offset,
        found.tier_segments,
        found.tier_bytes,
        found.local_segments,
        found.local_bytes,
        found.waiting_segments,
        found.waiting_bytes,
        found.garbage_segments,
        found.url,
    ]
