"""A failover in one sentence, for the first line of the command and the head of a page."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tidelog.amounts import plural, verb
from tidelog.jobs.failover.job import FailoverPlan
from tidelog.jobs.failover.rules import StartKind
from tidelog.jobs.failover.verify import Verdict

_FOUND: Final = {
    StartKind.TIME: "by time",
    StartKind.MAP: "by the mirror's map",
    StartKind.BEGINNING: "at the beginning",
    StartKind.END: "at the end",
}


def failover_verdict(
    plan: FailoverPlan, verdicts: Sequence[Verdict] | None, *, executed: bool
) -> str:
    """Return where a group continues on B, what it would miss, and whether that was committed."""
    counts = Counter(start.kind for start in plan.starts)
    kinds = ", ".join(f"{counts[kind]:,} {words}" for kind, words in _FOUND.items() if counts[kind])
    partitions = plural(len(plan.starts), "partition")
    starts = "starts" if executed else "can start"
    parts = [f"group {plan.request.group} {starts} on B in {partitions}: {kinds or 'none'}"]
    if verdicts is not None:
        parts.append(_verified(verdicts))
    parts.append("committed" if executed else "nothing was committed")
    return "; ".join(parts)


def _verified(verdicts: Sequence[Verdict]) -> str:
    missed = sum(one.missed for one in verdicts)
    twice = sum(one.duplicates for one in verdicts)
    absent = sum(one.absent for one in verdicts)
    never = sum(one.never_on_a for one in verdicts)
    parts = [
        f"{plural(missed, 'record')} would be MISSED" if missed else "no record would be missed",
        *([f"{plural(twice, 'record')} {verb(twice, 'comes', 'come')} twice"] if twice else []),
        *([f"{plural(absent, 'record')} {verb(absent, 'is', 'are')} not on B"] if absent else []),
        *([f"{plural(never, 'record')} never reached A"] if never else []),
    ]
    return ", ".join(parts)
