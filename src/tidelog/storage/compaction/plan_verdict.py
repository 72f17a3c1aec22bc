"""Forecasts of cleanings in one sentence, for the first line of a command."""

from collections.abc import Sequence
from typing import Protocol

from tidelog.amounts import bytes_text, plural, verb


class Forecast(Protocol):
    """Part of a `GenerationPlan` that a verdict needs."""

    @property
    def reason(self) -> str:
        """Why a cleaning is due, or why not."""

    @property
    def is_due(self) -> bool:
        """Whether there is anything to clean."""

    @property
    def read_bytes(self) -> int:
        """Bytes that are expected to be read."""

    @property
    def written_bytes(self) -> float:
        """Bytes that are expected to be written."""

    @property
    def garbage_bytes(self) -> float:
        """Bytes that are expected to be freed."""


def plan_verdict(plans: Sequence[Forecast]) -> str:
    """Return how many partitions are due for compaction, what it costs and what it frees."""
    due = [plan for plan in plans if plan.is_due]
    if not plans:
        return "nothing to compact: no topic has cleanup.policy=compact"
    if not due:
        reasons = {plan.reason for plan in plans}
        reason = f": {reasons.pop()}" if len(reasons) == 1 else ""
        count = len(plans)
        return f"nothing to compact: {_of(0, count)} due{reason}"
    read, written, freed = (
        sum(values)
        for values in zip(
            *((plan.read_bytes, plan.written_bytes, plan.garbage_bytes) for plan in due),
            strict=True,
        )
    )
    return (
        f"{_of(len(due), len(plans))} due: {bytes_text(read)} to read, {bytes_text(written)} to"
        f" write, {bytes_text(freed)} to free"
    )


def _of(due: int, partitions: int) -> str:
    if partitions == 1:
        return f"the partition is{'' if due else ' not'}"
    are = verb(due, "is", "are")
    return f"{due or 'none'} of {plural(partitions, 'partition')} {are if due else 'is'}"
