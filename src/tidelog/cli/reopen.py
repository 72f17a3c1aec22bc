"""`tidelog reopen`: a running broker's partitions that went offline are opened anew."""

from dataclasses import dataclass
from typing import cast

from tidelog.cli.problems import NO_DATA, UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.cli.targets import parse_target
from tidelog.control.client import find_holder


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
