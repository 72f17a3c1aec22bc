"""The verb `compact`: one partition's compaction, asked from outside."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.control.verbs import Arguments, Result, is_count, is_partition, is_topic
from tidelog.errors import CorruptMessage
from tidelog.storage.compaction.runner import CleaningReport
from tidelog.types import TopicPartition

_COUNTS: Final = (
    "passes",
    "segments_before",
    "segments_after",
    "bytes_before",
    "bytes_after",
    "records_before",
    "records_after",
    "bytes_read",
    "bytes_written",
    "cleaned_to",
)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a run has done, as it is told.

    Attributes:
        name: The partition.
        counts: Numbers by their names in `CleaningReport`.
        reason: Why it was done, or why nothing was.
        stopped: Why it did not come to the end of what is dirty; None where it did.
    """

    name: TopicPartition
    counts: Mapping[str, int]
    reason: str
    stopped: str | None


def compacted(report: CleaningReport) -> Compacted:
    """What a report says."""
    counts = {name: int(getattr(report, name)) for name in _COUNTS}
    return Compacted(report.name, counts, report.verdict.reason, report.stopped)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is asked for.

    Attributes:
        name: The partition.
        roll: Finish its active segment first.
        is_asked: Clean it although that is not due.
    """

    name: TopicPartition
    roll: bool = False
    is_asked: bool = True


def wishes(name: TopicPartition, *, roll: bool, is_asked: bool) -> dict[str, object]:
    """What is asked for, as JSON."""
    return {
        "topic": name.topic,
        "partition": name.partition,
        "roll": roll,
        "is_asked": is_asked,
    }


def read_wishes(arguments: Arguments) -> Wishes:
    """What is asked for; raises CorruptMessage."""
    topic, partition = arguments.get("topic"), arguments.get("partition")
    roll, is_asked = arguments.get("roll"), arguments.get("is_asked")
    if not is_topic(topic) or not is_partition(partition):
        raise CorruptMessage(f"compact: no partition {str(topic)[:80]!r}-{str(partition)[:20]!r}")
    if not isinstance(roll, bool) or not isinstance(is_asked, bool):
        raise CorruptMessage("compact: `roll` and `is_asked` are true or false")
    return Wishes(TopicPartition(str(topic), int(str(partition))), roll, is_asked)


def encode_report(report: CleaningReport) -> Result:
    """What a run has done, as JSON."""
    told = compacted(report)
    return {**told.counts, "reason": told.reason, "stopped": told.stopped}


def read_report(name: TopicPartition, told: Mapping[str, object]) -> Compacted:
    """The same from JSON; raises CorruptMessage for what is none."""
    reason, stopped = told.get("reason"), told.get("stopped")
    is_right = all(is_count(told.get(each)) for each in _COUNTS) and isinstance(reason, str)
    if not is_right or not (stopped is None or isinstance(stopped, str)):
        raise CorruptMessage(f"no answer to compact: {str(told)[:200]}")
    counts = {each: int(str(told[each])) for each in _COUNTS}
    return Compacted(name, counts, str(reason), None if stopped is None else str(stopped))
