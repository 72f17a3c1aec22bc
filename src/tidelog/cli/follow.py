"""`tidelog follow`: a standby that copies a leader's partitions and shows its lag.

`tidelog standby` sends a request to the process that runs `tidelog follow`, and shows the response.
The package `tidelog.standby` contains the code that copies.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import click

from tidelog.amounts import plural
from tidelog.cli import output, times
from tidelog.cli.command_groups import CommandGroup
from tidelog.cli.options import (
    Format,
    argument,
    data_option,
    declared_by,
    examples,
    format_option,
    option,
    with_options,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import named
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem, stopped_by_signals
from tidelog.errors import ClusterFailure, CorruptMessage
from tidelog.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient
    from tidelog.standby.follower import Follower, FollowOptions, Seams


DEFAULT_PORT: Final = 9092

# Pause in seconds between two attempts to reach a leader that is down.
_RETRY_S: Final = 1.0

Show: TypeAlias = Callable[[Sequence[output.Row]], None]

COLUMNS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.number("leader", "leader_epoch", "start")),
    output.number("end"),
    output.minor(output.number("high_watermark")),
    output.count("lag"),
    output.size("copied_bytes"),
    output.count("dropped", "lost"),
    output.wrapped("problem"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyOptions:
    """Options of `tidelog follow`."""

    leader: str = argument(metavar="HOST:PORT")
    data: str | None = declared_by(data_option)
    topics: tuple[str, ...] = option(
        "--topic",
        "-t",
        multiple=True,
        metavar="T",
        help="A topic, or a pattern with * and ?; repeatable. Default: all topics except internal"
        " ones.",
    )
    once: bool = option(
        "--once", is_flag=True, help="Stop after catching up. Default: follow until Ctrl-C."
    )
    settings: tuple[str, ...] = option(
        "--config",
        "-c",
        multiple=True,
        metavar="KEY=VALUE",
        help="A topic setting of the standby; repeatable. Default: the leader's settings.",
    )
    every: str = option(
        "--every", default="5s", show_default=True, metavar="TIME", help="Time between reports."
    )
    retain: bool = option(
        "--retain/--no-retain",
        default=True,
        show_default=True,
        help="Apply retention on the standby.",
    )
    kind: Format = declared_by(format_option)


@click.command(
    "follow",
    epilog=examples(
        "tidelog follow broker:9092 --data standby",
        "tidelog follow broker:9092 --data standby --topic 'flights*' --once",
        "tidelog follow broker:9092 --data standby --config retention.ms=-1 -o json",
    ),
)
@with_options(StandbyOptions)
def follow(surroundings: Surroundings, options: StandbyOptions) -> ExitCode:
    """Run a standby: copy a leader's topics into a directory.

    The copy has the same bytes, offsets, leader epochs, timestamps, topic ids, settings and group
    offsets. A restarted command continues the copy; records that the leader never had are removed
    from the copy. Exit code 2: a partition has stalled; the reason is shown.
    """
    from tidelog.remote.broker_connection import connect_socket
    from tidelog.server.logs import logging_to
    from tidelog.standby.follower import Seams

    stopped = threading.Event()
    connect = partial(connect_socket, is_stopped=stopped.is_set)
    seams = Seams(env=surroundings.env, connect=connect, pause=stopped.wait)
    lines = logging_to(surroundings.stderr, "text", surroundings.env.clock)
    with lines, stopped_by_signals(stopped, again_ends=False):
        try:
            return run(surroundings, options, seams=seams, stopped=stopped)
        except ClusterFailure as error:
            if stopped.is_set():
                surroundings.fail(f"{error}")
                return ExitCode.INTERRUPTED
            surroundings.fail(
                f"{error}", "check that the leader is running and that HOST:PORT is its address"
            )
            return ExitCode.ERROR


def run(
    surroundings: Surroundings,
    options: StandbyOptions,
    *,
    seams: "Seams",
    stopped: threading.Event,
) -> ExitCode:
    """Run `follow` with a given network and stop event."""
    from tidelog.standby.follower import Follower

    data = named(options.data)
    every_ms = times.duration_ms(options.every)
    if every_ms <= 0:
        raise UsageProblem("--every must be above 0; try --every 5s")
    host, port = address(options.leader)
    follow_options = _follow_options(options)
    with (
        Follower.open(data, host, port, follow_options, seams=seams) as follower,
        _row_printer(surroundings, options) as show,
    ):
        reporter = _Reporter(surroundings, follower, show, every_ms)
        reporter.report()
        failed = ""
        if options.once:
            _catch_up(follower, reporter, stopped)
        else:
            failed = _follow_until_stopped(follower, reporter, stopped, seams)
        reporter.report()
        code = _verdict(surroundings, follower, options, stopped)
        if failed and code is ExitCode.OK:
            surroundings.fail(
                "records appended to the leader since the last successful round may be missing:"
                f" {failed}"
            )
            return ExitCode.ERROR
        return code


def address(text: str) -> tuple[str, int]:
    """Parse `HOST[:PORT]`; the default port is `DEFAULT_PORT`. Raises UsageProblem."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not is_number or not 0 < int(port) < 1 << 16:
        raise UsageProblem(f"{text!r} is not HOST:PORT; try 127.0.0.1:{DEFAULT_PORT}")
    return host.strip("[]"), int(port)


def _follow_options(options: StandbyOptions) -> "FollowOptions":
    from tidelog.config import TopicConfig, amounts_in_errors, normalize, plain_settings
    from tidelog.standby.follower import FollowOptions
    from tidelog.standby.topic_sync import TopicChoice

    settings = {}
    for text in options.settings:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageProblem(f"--config {text!r}: write KEY=VALUE, e.g. retention.ms=7d")
        settings[key] = value
    plain = plain_settings(settings)
    with amounts_in_errors(settings):
        TopicConfig.parse(plain)
    choice = TopicChoice(patterns=options.topics, overrides=normalize(plain)[0])
    return FollowOptions(choice=choice, retain=options.retain, control=True)


class _Reporter:
    """Shows the state of every partition at regular intervals."""

    def __init__(
        self, surroundings: Surroundings, follower: "Follower", show: Show, every_ms: int
    ) -> None:
        self._surroundings = surroundings
        self._follower = follower
        self._show = show
        self._every_ms = every_ms
        self._report_ms: int | None = None
        self._last: Sequence[output.Row] = ()

    def update(self) -> None:
        """Print new notes; show the partitions if the interval between reports has passed."""
        notes, self._follower.notes = self._follower.notes, []
        for line in notes:
            self._surroundings.note(f"{line}")
        now = self._surroundings.env.clock.monotonic_ms()
        if self._report_ms is None or now - self._report_ms >= self._every_ms:
            self.report()

    def report(self) -> None:
        """Show all partitions, if anything has changed since they were last shown."""
        self._report_ms = self._surroundings.env.clock.monotonic_ms()
        table = rows(self._follower)
        if table != self._last:
            self._last = table
            self._show(table)


def rows(follower: "Follower") -> list[list[Cell]]:
    """Return a row of `COLUMNS` for each partition."""
    return [
        [
            copy.name.topic,
            copy.name.partition,
            copy.led.leader_id,
            copy.led.leader_epoch,
            copy.log.log_start_offset,
            copy.log.log_end_offset,
            copy.high_watermark,
            copy.lag,
            copy.counts.size_bytes,
            sum(cut.end - cut.start for cut in copy.counts.truncations),
            sum(lost.end - lost.start for lost in copy.counts.lost),
            copy.reason,
        ]
        for _, copy in sorted(follower.copies.items())
    ]


def _catch_up(follower: "Follower", reporter: _Reporter, stopped: threading.Event) -> None:
    try:
        for _ in follower.rounds_to_catch_up():
            reporter.update()
            if stopped.is_set():
                return
    except ClusterFailure:
        if not stopped.is_set():
            raise


def _follow_until_stopped(
    follower: "Follower", reporter: _Reporter, stopped: threading.Event, seams: "Seams"
) -> str:
    """Copy round by round until the follower is stopped or promoted; retry if the leader is down.

    Returns:
        The error text of the last completed round; empty if that round succeeded.
    """
    failed = ""
    while not stopped.is_set() and not follower.is_promoted:
        try:
            follower.round()
            failed = ""
        except ClusterFailure as error:
            if stopped.is_set():
                break
            if str(error) != failed:
                failed = str(error)
                follower.notes.append(f"{failed}; trying again")
            seams.pause(_RETRY_S)
        reporter.update()
    return failed


def _verdict(
    surroundings: Surroundings,
    follower: "Follower",
    options: StandbyOptions,
    stopped: threading.Event,
) -> ExitCode:
    problems = follower.problems
    for name, problem in sorted(problems.items()):
        reason = f"{problem}".removeprefix(f"{name}: ")
        surroundings.fail(f"{name} has stalled: {reason}")
    if problems:
        return ExitCode.FINDINGS
    if options.once and stopped.is_set() and not follower.is_caught_up:
        return ExitCode.INTERRUPTED
    groups, copies = follower.group_count, follower.copies.values()
    # The leader's log end is unknown before the first Fetch response.
    begun = sum(copy.high_watermark is not None for copy in copies)
    partitions = plural(len(copies), "partition")
    copied = f"{begun} of {partitions}" if begun < len(copies) else partitions
    if follower.is_promoted:
        surroundings.note("stopped by `tidelog standby promote`")
    surroundings.say(
        f"{copied} of {follower.leader_address} copied to {options.data},"
        f" with the offsets of {plural(groups, 'group')}"
    )
    return ExitCode.OK


@contextmanager
def _row_printer(surroundings: Surroundings, options: StandbyOptions) -> Iterator[Show]:
    """Yield a function that shows rows.

    On a terminal, the function updates one table; otherwise it appends rows to the output.
    Exception: a table with `--once` is printed only at the end, with the last rows.
    """
    kind = options.kind
    if kind is Format.TABLE and surroundings.stdout.isatty() and not options.once:
        with output.live(surroundings, COLUMNS) as show:
            yield show
        return
    if kind is Format.TABLE and options.once:
        last: list[Sequence[output.Row]] = [()]
        yield lambda table: last.__setitem__(0, table)
        output.print_rows(surroundings, COLUMNS, last[0], kind)
        return
    writer = output.writer(surroundings, COLUMNS, kind)
    yield writer.write
    writer.close()


STANDBY_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.number("start")),
    output.number("end", "high_watermark"),
    output.count("lag"),
    output.wrapped("problem"),
)


@click.group(
    "standby",
    cls=CommandGroup,
    epilog=examples(
        "tidelog standby status --data standby",
        "tidelog standby flush --data standby",
        "tidelog standby promote --data standby --needs-all",
    ),
)
def standby() -> None:
    """Control a running standby: status, flush, promote."""


@standby.command("status", epilog=examples("tidelog standby status --data standby -o json"))
@data_option
@format_option
@click.pass_obj
def status(surroundings: Surroundings, data: str | None, kind: Format) -> ExitCode:
    """Show up to which offset each partition is copied.

    Exit code 2: a partition has stalled; the column PROBLEM states why.
    """
    with _follower(surroundings, data) as holder:
        state = holder.status()
    code = _show(surroundings, state, kind)
    groups = plural(cast("int", state["groups"]), "group")
    surroundings.say(
        f"process {state['pid']} follows {state['follows']} and copies the offsets of {groups}"
    )
    return code


@standby.command("flush", epilog=examples("tidelog standby flush --data standby"))
@data_option
@click.pass_obj
def flush(surroundings: Surroundings, data: str | None) -> ExitCode:
    """Sync the records copied so far to disk."""
    with _follower(surroundings, data) as holder:
        holder.flush()
    surroundings.say(f"all records copied to {data} are synced to disk")
    return ExitCode.OK


@standby.command(
    "promote",
    epilog=examples(
        "tidelog standby promote --data standby --needs-all && tidelog serve --data standby"
    ),
)
@data_option
@click.option(
    "--needs-all",
    is_flag=True,
    help="Promote only if every partition has all records up to the leader's high watermark;"
    " otherwise keep following.",
)
@format_option
@click.pass_obj
def promote(
    surroundings: Surroundings, data: str | None, needs_all: bool, kind: Format
) -> ExitCode:
    """Stop following, so that the directory accepts appends."""
    with _follower(surroundings, data) as holder:
        state = holder.call("promote", {"needs_all": needs_all})
        holder.await_release()
    code = _show(surroundings, state, kind)
    surroundings.say(
        f"{data} no longer follows {state['follows']}; it can now be opened for appends"
    )
    return code


def _follower(surroundings: Surroundings, data: str | None) -> "ControlClient":
    from tidelog.control.client import find_holder

    data = named(data)
    holder = find_holder(data)
    if holder is None and not surroundings.env.files.exists(data):
        raise UsageProblem(f"{data}: no such directory")
    if holder is None:
        raise UsageProblem(
            f"{data}: no follower is running for this directory; start one with"
            " `tidelog follow HOST:PORT`"
        )
    try:
        if "follows" not in holder.status():
            raise UsageProblem(f"{data}: the process that has it open is not a follower")
    except BaseException:
        holder.close()
        raise
    return holder


def _show(surroundings: Surroundings, state: Mapping[str, object], kind: Format) -> ExitCode:
    rows = _rows(state)
    output.print_rows(surroundings, STANDBY_COLUMNS, rows, kind)
    return ExitCode.FINDINGS if any(row[-1] is not None for row in rows) else ExitCode.OK


def _rows(state: Mapping[str, object]) -> list[list[Cell]]:
    partitions = state.get("partitions")
    if not isinstance(partitions, list):
        raise CorruptMessage(f"no partitions in the follower's state: {str(state)[:200]}")
    return [[one.get(column.name) for column in STANDBY_COLUMNS] for one in partitions]
