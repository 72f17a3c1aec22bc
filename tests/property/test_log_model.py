"""The log compared with a list: any order of appends, rolls, cuts, deletions, crashes and restarts.

There are eight tests with different settings. Together they run 400 sequences of 15 steps, and
50,000 in a sweep. log_machine.py defines the steps and the checks after each step.
"""

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.property.log_machine import Configs, LogMachine

from tidelog.config import RetentionClock

SEQUENCES = {"ci": 400, "quick": 400, "sweep": 50_000}
STEPS = 15
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "100"}
STAMPED = {"message.timestamp.type": "LogAppendTime"}


class SmallSegments(LogMachine):
    """Segments of 700 bytes, with an index entry for almost every batch."""

    CONFIGS: ClassVar[Configs] = (SMALL, {**SMALL, "index.interval.bytes": "0"})


class LargeSegments(LogMachine):
    """Many batches between two index entries; almost all rolls are explicit."""

    CONFIGS: ClassVar[Configs] = (
        {},
        {"internal.segment.bytes": "3000", "index.interval.bytes": "400"},
    )


class LogAppendTime(LogMachine):
    """Timestamps and append times are equal; segments roll by time or by size."""

    CONFIGS: ClassVar[Configs] = ({**STAMPED, "segment.ms": "5000"}, {**STAMPED, **SMALL})


class CreateTimeRolls(LogMachine):
    """Segments roll by timestamps; in one configuration, a jitter makes them roll earlier."""

    CONFIGS: ClassVar[Configs] = (
        {"segment.ms": "5000", "index.interval.bytes": "0"},
        {"segment.ms": "9000", "segment.jitter.ms": "4000"},
    )


class FullIndexes(LogMachine):
    """The time index is full after two entries; a full index rolls the segment."""

    CONFIGS: ClassVar[Configs] = ({"segment.index.bytes": "36", "index.interval.bytes": "1"},)


class Retention(LogMachine):
    """Retention deletes records by age, on each retention clock."""

    CONFIGS: ClassVar[Configs] = tuple(
        {**config, "tidelog.retention.clock": clock.value}
        for clock in RetentionClock
        for config in (
            {**SMALL, "retention.ms": "0"},
            {**SMALL, "retention.ms": "86400000"},
            {"segment.ms": "5000", "retention.ms": "15000", **STAMPED},
        )
    )


class FlushedAppends(LogMachine):
    """Every acknowledged record survives a power loss."""

    CONFIGS: ClassVar[Configs] = ({**SMALL, "flush.messages": "1"}, {"flush.messages": "1"})


class Kernels(LogMachine):
    """Searches use compiled kernels instead of the plain Python code."""

    CONFIGS: ClassVar[Configs] = (
        SMALL,
        {"internal.segment.bytes": "3000", "index.interval.bytes": "0"},
    )
    USES_KERNELS: ClassVar[bool] = True


MACHINES = (
    SmallSegments,
    LargeSegments,
    LogAppendTime,
    CreateTimeRolls,
    FullIndexes,
    Retention,
    FlushedAppends,
    Kernels,
)


@pytest.mark.timeout(3_600)  # a sweep runs 6,250 sequences in each test
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_log_equals_the_model(machine: type[LogMachine]) -> None:
    profile = settings.get_current_profile_name()
    run_state_machine_as_test(
        machine,
        settings=settings(
            # The phase that shrinks a failure is left out, because it would take minutes.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            max_examples=SEQUENCES.get(profile, settings().max_examples) // len(MACHINES),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
