"""Append times of records that came through librdkafka, which does not see what our broker tells.

The same batches are fetched once more for the times alone; a broker that tells none is not asked
again. What can't be had is unknown, and the records go on coming.

Life cycle: time_of* -> close. One owner.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.cluster.append_runs import AppendRuns
from tidelog.cluster.partition_fetch import Fetched, PartitionFetch
from tidelog.env import Clock
from tidelog.errors import OffsetOutOfRange, TidelogError
from tidelog.record.append_stamp import stamp_of
from tidelog.record.record import Record
from tidelog.types import UNKNOWN_MS, TopicPartition

# Each has two connections; of a topic with more partitions the latest have them.
_OPEN_MAX: Final = 32
_NOTHING: Final = AppendRuns(())


@dataclass(slots=True)
class _Told:
    """What was told of the offsets [start, end) of a partition."""

    fetch: PartitionFetch
    start: int = 0
    end: int = 0
    runs: AppendRuns = _NOTHING
    asks_from_ms: int = 0

    def keep(self, part: Fetched) -> None:
        """Remember what an answer told."""
        self.start, self.end = part.offset, part.next_offset
        self.runs = AppendRuns(part.append_times)


class ToldTimes:
    """When records of any partition were appended."""

    def __init__(
        self,
        open_fetch: Callable[[TopicPartition], PartitionFetch] | None,
        clock: Clock,
        *,
        rest_ms: int,
    ) -> None:
        """Nothing is asked yet.

        Args:
            open_fetch: Makes what asks a partition's leader; None where leaders can't be asked.
            clock: For rests.
            rest_ms: How long a partition's leader is not asked after a question that failed.
        """
        self._open_fetch = open_fetch
        self._clock = clock
        self._rest_ms = rest_ms
        self._told: dict[TopicPartition, _Told] = {}

    def time_of(self, name: TopicPartition, record: Record) -> int | None:
        """When it was appended, in ms: what the broker tells, else the stamp that it bears."""
        ms = UNKNOWN_MS if self._open_fetch is None else self._ask(name, record.offset)
        return stamp_of(record) if ms == UNKNOWN_MS else ms

    def _ask(self, name: TopicPartition, offset: int) -> int:
        told = self._of(name)
        if not told.start <= offset < told.end:
            self._fetch(told, offset)
        return told.runs.time_of(offset) if told.start <= offset < told.end else UNKNOWN_MS

    def _of(self, name: TopicPartition) -> _Told:
        """What is known of a partition, which counts as the latest from now on."""
        told = self._told.pop(name, None) or self._opened(name)
        self._told[name] = told
        if len(self._told) > _OPEN_MAX:
            self._told.pop(next(iter(self._told))).fetch.close()
        return told

    def _opened(self, name: TopicPartition) -> _Told:
        assert self._open_fetch is not None
        fetch = self._open_fetch(name)
        fetch.want_append_times()
        return _Told(fetch)

    def _fetch(self, told: _Told, offset: int) -> None:
        """Learn what the leader tells of the batches from an offset on."""
        if self._clock.monotonic_ms() < told.asks_from_ms:
            return
        try:
            part = next(told.fetch.parts(offset, offset + 1), None)
        except OffsetOutOfRange:
            return  # deleted meanwhile; the next record may be there
        except TidelogError:
            told.fetch.close()
            told.asks_from_ms = self._clock.monotonic_ms() + self._rest_ms
            return
        if part is None:
            return
        told.keep(part)
        if not part.append_times:
            self.close()
            self._open_fetch = None

    def close(self) -> None:
        """Close all connections."""
        for told in self._told.values():
            told.fetch.close()
        self._told.clear()
