"""What metrics tell of a partition: offsets, sizes and times, from what lies in memory anyway.

No record is opened but for the first batch's header, and that once for each log start. Belongs to
the loop's thread.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidelog.errors import TidelogError
from tidelog.server.partitions import Partition
from tidelog.storage.log import Log
from tidelog.types import NO_TIMESTAMP, TopicPartition

# Asking one may open its time index: so many at a time.
_SEGMENTS_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition now; times in ms, None where there is none or it is not known.

    Attributes:
        name: Topic and number.
        log_start_offset: First offset that can be read.
        high_watermark: Offset behind the last record that consumers may see.
        last_stable_offset: Offset below which no transaction is open.
        log_end_offset: Offset behind the last record.
        producers: How many with an id are remembered.
        open_transactions: How many have not been ended.
        segments: How many, those in a tier included.
        size_bytes: Of their log files.
        is_offline: The disk failed it: it takes no appends until it is opened anew.
        oldest_record_ms: Largest create time of the first batch.
        newest_record_ms: Largest create time of all.
        oldest_append_ms: Append time of the first record.
        newest_append_ms: Append time of the last record.
        last_roll_ms: When the active segment took its first record, where others lie before it.
        last_deletion_ms: When retention last took segments since the start.
    """

    name: TopicPartition
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    producers: int
    open_transactions: int
    segments: int
    size_bytes: int
    is_offline: bool
    oldest_record_ms: int | None = None
    newest_record_ms: int | None = None
    oldest_append_ms: int | None = None
    newest_append_ms: int | None = None
    last_roll_ms: int | None = None
    last_deletion_ms: int | None = None


class FactFinder:
    """Finds the facts of one partition again and again."""

    def __init__(self) -> None:
        self._largest: dict[int, int] = {}
        self._first: tuple[int, int | None, int | None] = (-1, None, None)

    def look(self, partition: Partition) -> Iterator[None]:
        """Ask finished segments that were not asked yet; others may run between two steps.

        They don't change, so each is asked once; what the disk fails is left out.
        """
        finished = tuple(partition.log.segments[:-1])
        if len(self._largest) > 2 * len(finished) + _SEGMENTS_AT_ONCE:
            bases = {segment.base_offset for segment in finished}
            self._largest = {base: ms for base, ms in self._largest.items() if base in bases}
        asked = 0
        for segment in finished:
            if segment.base_offset not in self._largest:
                with suppress(OSError, TidelogError):
                    self._largest[segment.base_offset] = segment.largest_timestamp
                asked += 1
                if not asked % _SEGMENTS_AT_ONCE:
                    yield

    def find(self, partition: Partition) -> PartitionFacts:
        """The facts, with what `look` found; times are left out where the disk fails them."""
        log, states = partition.log, partition.log.producer_states()
        times: dict[str, int | None] = {}
        size_bytes = 0
        with suppress(OSError, TidelogError):
            size_bytes = log.size_bytes()
            times = self._times(log)
        return PartitionFacts(
            name=partition.name,
            log_start_offset=log.log_start_offset,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_end_offset=log.log_end_offset,
            producers=len(states),
            open_transactions=states.open_count,
            segments=len(log.segments),
            size_bytes=size_bytes,
            is_offline=partition.failure is not None,
            last_deletion_ms=partition.last_deletion_ms,
            **times,
        )

    def _times(self, log: Log) -> dict[str, int | None]:
        start, end = log.log_start_offset, log.log_end_offset
        if start >= end:
            return {}
        if self._first[0] != start:
            self._first = (start, *_first_times(log, start))
        active = log.segments[-1]
        has_rolled = len(log.segments) > 1 and active.end_offset > active.base_offset
        first = log.segments[0].base_offset
        finished = (ms for base, ms in self._largest.items() if base >= first)
        return {
            "oldest_record_ms": self._first[1],
            "oldest_append_ms": self._first[2],
            "newest_record_ms": _known(max([*finished, active.largest_timestamp])),
            "newest_append_ms": log.append_time_of(end - 1),
            "last_roll_ms": log.append_time_of(active.base_offset) if has_rolled else None,
        }


def _first_times(log: Log, start: int) -> tuple[int | None, int | None]:
    """Create time and append time at the log's start."""
    append_ms = log.append_time_of(start)
    for part in log.slices(start, start + 1):
        for _, batch in part.batches():
            return _known(batch.max_timestamp), append_ms
    return None, append_ms


def _known(ms: int) -> int | None:
    return None if ms == NO_TIMESTAMP else ms
