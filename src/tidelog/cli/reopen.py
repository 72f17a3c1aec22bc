"""`tidelog reopen` and `tidelog accept-clock`: an operator lets a broker's appends go on."""

from dataclasses import dataclass
from typing import cast

from tidelog.cli.opening import open_directory
from tidelog.cli.problems import NO_DATA, UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.cli.targets import parse_target
from tidelog.control.client import find_holder
from tidelog.timespec import format_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenOptions:
    """What the command line said."""

    data: str | None
    target: str | None


def run(surroundings: Surroundings, options: ReopenOptions) -> int:
    """Ask whoever has the directory; says what was opened anew.

    Raises:
        UsageProblem: No directory was given, or nobody serves it.
        StorageFailure: The disk fails still.
        UnknownTopic: No such topic or partition.
    """
    if not options.data:
        raise UsageProblem(NO_DATA)
    topic, partition = (None, None) if options.target is None else parse_target(options.target)
    holder = find_holder(options.data)
    if holder is None:
        raise UsageProblem(
            f"{options.data}: no broker serves it; `tidelog serve` recovers what needs it anyhow"
        )
    with holder:
        answer = holder.ask("reopen", {"topic": topic, "partition": partition})
    names = cast("list[str]", answer["reopened"])
    for name in names:
        surroundings.stdout.write(f"{name}: open again\n")
    if not names:
        surroundings.say("note: nothing was offline")
    return 0


def accept_clock(surroundings: Surroundings, data: str | None) -> int:
    """Let appends go on although the clock jumped, by the directory's holder where it has one.

    Raises:
        UsageProblem: No directory was given, or there is none.
        TidelogError: The holder refuses, or the directory can't be opened or written to.
    """
    if not data:
        raise UsageProblem(NO_DATA)
    holder = find_holder(data)
    if holder is None:
        with open_directory(surroundings, data, writable=True) as directory:
            accepted_ms = directory.log_dir.accept_clock()
    else:
        with holder:
            accepted_ms = cast("int", holder.ask("accept_clock", {})["accepted_ms"])
    ahead = accepted_ms > surroundings.env.clock.now_ms()
    until = f" up to {format_ms(accepted_ms)}, which lies ahead of it" if ahead else ""
    surroundings.stdout.write(f"{data}: appends go on by the clock as it is{until}\n")
    return 0
