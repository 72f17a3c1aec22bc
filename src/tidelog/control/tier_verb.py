"""The verb `tier`: one partition's run to an object store and away from it, asked from outside."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.control.verbs import Arguments, Result, is_count, is_partition, is_topic
from tidelog.errors import CorruptMessage
from tidelog.storage.tiering import MoveOptions, MoveReport, tier_partition
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


def wishes(name: TopicPartition, options: MoveOptions) -> dict[str, object]:
    """A run as JSON; `on_copied` stays here."""
    return {
        "topic": name.topic,
        "partition": name.partition,
        "url": options.url,
        "grace_ms": options.grace_ms,
        "takes_over": options.takes_over,
        "drops_theirs": options.drops_theirs,
        "roll": options.roll,
    }


def read_wishes(
    arguments: Arguments, on_copied: Callable[[int], None]
) -> tuple[TopicPartition, MoveOptions]:
    """Which partition, and how; raises CorruptMessage.

    Args:
        arguments: From outside.
        on_copied: Called after each segment with the bytes of log copied so far.
    """
    topic, partition, url = arguments.get("topic"), arguments.get("partition"), arguments.get("url")
    grace_ms = arguments.get("grace_ms")
    takes_over, roll = arguments.get("takes_over"), arguments.get("roll")
    drops_theirs = arguments.get("drops_theirs", False)
    if not is_topic(topic) or not is_partition(partition):
        raise CorruptMessage(f"tier: no partition {str(topic)[:80]!r}-{str(partition)[:20]!r}")
    if not (url is None or isinstance(url, str)) or not is_count(grace_ms):
        raise CorruptMessage(f"tier: url {str(url)[:80]!r}, grace_ms {str(grace_ms)[:20]!r}")
    if not all(isinstance(flag, bool) for flag in (takes_over, drops_theirs, roll)):
        raise CorruptMessage("tier: `takes_over`, `drops_theirs` and `roll` are true or false")
    options = MoveOptions(
        url=url,
        grace_ms=int(str(grace_ms)),
        takes_over=bool(takes_over),
        drops_theirs=bool(drops_theirs),
        roll=bool(roll),
        on_copied=on_copied,
    )
    return TopicPartition(str(topic), int(str(partition))), options


def run_tier(log_dir: "LogDir", name: TopicPartition, options: MoveOptions) -> Result:
    """Do it; errors as `tier_partition`."""
    report = tier_partition(log_dir, name, options)
    return {
        "copied": report.copied,
        "copied_bytes": report.copied_bytes,
        "deleted": report.deleted_count,
        "released": report.released,
        "removed": report.removed,
        "stopped": report.stopped,
    }


def read_report(name: TopicPartition, told: Mapping[str, object]) -> MoveReport:
    """What a run has done, from JSON; raises CorruptMessage for what is none."""
    names = ("copied", "copied_bytes", "deleted", "released", "removed")
    stopped = told.get("stopped")
    if not all(is_count(told.get(each)) for each in names):
        raise CorruptMessage(f"no answer to tier: {str(told)[:200]}")
    if not (stopped is None or isinstance(stopped, str)):
        raise CorruptMessage(f"no answer to tier: {str(told)[:200]}")
    count = {each: int(str(told[each])) for each in names}
    return MoveReport(
        topic_partition=name,
        copied=count["copied"],
        copied_bytes=count["copied_bytes"],
        told_deleted=count["deleted"],
        released=count["released"],
        removed=count["removed"],
        stopped=stopped,
    )


__all__ = ["MoveReport", "read_report", "read_wishes", "run_tier", "wishes"]
