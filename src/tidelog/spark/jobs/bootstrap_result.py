"""Where a bootstrap's records went, as its directory remembers it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.env import Env
from tidelog.spark.jobs.checks import when
from tidelog.storage import writers
from tidelog.storage.log_dir import LogDir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.storage.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """Outcome of one partition.

    Attributes:
        partition: Its number.
        first_offset: Offset of the first record loaded.
        end_offset: Offset behind the last one.
        size_bytes: Bytes of the log files that hold them; of those that are there.
        segments: How many those are.
        append_ms: Append time of all of them, -1 where the append clock is off.
    """

    partition: int
    first_offset: int
    end_offset: int
    size_bytes: int
    segments: int
    append_ms: int

    @property
    def records(self) -> int:
        """Number of records that were loaded: a table has no gaps."""
        return self.end_offset - self.first_offset


@dataclass(frozen=True, slots=True)
class Done:
    """A job that was committed, in ms of the directory's clock."""

    committed_ms: int

    @property
    def when(self) -> str:
        """The time for people."""
        return when(self.committed_ms)


def written_before(path: str, topic: str, writer: str, *, env: Env) -> Done | None:
    """When a writer's first version was committed to a topic, None where it wasn't."""
    if not env.files.exists(path):
        return None
    mark = writers.find_topic_mark(writers.read_marks(env.files, path), writer, topic, 0)
    return None if mark is None else Done(mark.committed_ms)


def written_now(path: str, topic: str, writer: str, *, env: Env) -> tuple[PartitionResult, ...]:
    """Where the records of a writer's last version to a topic went; empty where it had none."""
    mark = writers.find_topic_mark(writers.read_marks(env.files, path), writer, topic, 0)
    if mark is None:
        return ()
    with LogDir.open(path, env=env) as log_dir:
        return tuple(
            _result(log_dir.reader(topic, number).segments, number, first, end, append_ms)
            for name, number, first, end, append_ms in mark.ranges
            if name == topic
        )


def _result(
    segments: "Sequence[Segment]", number: int, first: int, end: int, append_ms: int
) -> PartitionResult:
    mine = [segment for segment in segments if first <= segment.base_offset < end]
    return PartitionResult(
        partition=number,
        first_offset=first,
        end_offset=end,
        size_bytes=sum(segment.size_bytes for segment in mine),
        segments=len(mine),
        append_ms=append_ms,
    )
