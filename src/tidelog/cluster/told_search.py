"""Append times of offsets, and offsets by append time, as a broker of tidelog tells them.

Such a broker names append times beside the records of a fetch to a client that asks for them. They
never fall along a log, so a search is binary and fetches a batch at each step.

One owner. Where one broker of a cluster tells no append times, none is asked again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from tidelog.cluster.append_runs import AppendRuns
from tidelog.cluster.follow_transport import connect_socket
from tidelog.cluster.partition_fetch import FetchSeams, FetchSettings, PartitionFetch
from tidelog.cluster.view import Appended, Watermarks
from tidelog.env import Clock
from tidelog.errors import InvalidRequest
from tidelog.types import UNKNOWN_MS, OffsetAndTimestamp, TopicPartition


class ToldSearch:
    """Questions to the leaders of partitions."""

    def __init__(self, open_fetch: Callable[[TopicPartition], PartitionFetch] | None) -> None:
        """Nothing is asked yet.

        Args:
            open_fetch: Makes what asks a partition's leader for single batches; None where leaders
                can't be asked directly.
        """
        self._open_fetch = open_fetch

    def append_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return when the records at these offsets were appended, in ms, where that is told.

        Raises:
            OffsetOutOfRange, UnknownTopic, ClusterFailure: As `PartitionFetch.parts`.
        """
        found: dict[TopicPartition, int] = {}
        for name, offset in offsets.items():
            with self._asking(name) as fetch:
                known = None if fetch is None else self._time_at(fetch, offset)
            if known is not None and known != UNKNOWN_MS:
                found[name] = known
        return found

    def told_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, Appended]:
        """Return what brokers of ours say of a search by append time; no entry where none does.

        Raises:
            UnknownTopic, ClusterFailure: As `PartitionFetch.first_appended`.
        """
        found: dict[TopicPartition, Appended] = {}
        for name, mark in marks.items():
            if mark.start >= mark.end:
                found[name] = Appended(None, 0)  # whoever leads it
                continue
            with self._asking(name) as fetch:
                told = None if fetch is None else fetch.first_appended(time_ms)
            if told is not None:
                found[name] = Appended(*told)
        return found

    def first_appended(
        self, marks: Mapping[TopicPartition, Watermarks], time_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record appended at a time or later, where that is told.

        Args:
            marks: Where the partitions begin and end.
            time_ms: The time in ms.

        Returns:
            None for a partition without such a record, an empty one included; no entry where no
            append times are told.

        Raises:
            InvalidRequest: Records before the answer have no known append time.
            OffsetOutOfRange, UnknownTopic, ClusterFailure: As `PartitionFetch.parts`.
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for name, mark in marks.items():
            with self._asking(name) as fetch:
                if mark.start >= mark.end:
                    found[name] = None  # whoever leads it
                elif fetch is not None and self._time_at(fetch, mark.start) is not None:
                    found[name] = self._search(fetch, name, mark, time_ms)
        return found

    def _search(
        self, fetch: PartitionFetch, name: TopicPartition, mark: Watermarks, time_ms: int
    ) -> OffsetAndTimestamp | None:
        """Binary; a record whose time is unknown counts as earlier, and is looked at then."""
        low, high = mark.start, mark.end
        answer: int | None = None
        while low < high:
            middle = (low + high) // 2
            known = self._time_at(fetch, middle)
            if known is None or known >= time_ms:
                high, answer = middle, known
            else:
                low = middle + 1
        if low > mark.start and self._time_at(fetch, low - 1) == UNKNOWN_MS:
            raise InvalidRequest(
                f"{name}: records before offset {low} have no known append time, and may have been"
                f" appended at {time_ms} or later; use --clock record"
            )
        return None if answer is None or low == mark.end else OffsetAndTimestamp(low, answer, None)

    def _time_at(self, fetch: PartitionFetch, offset: int) -> int | None:
        """When the first record at an offset or behind it was appended; None where none is told."""
        part = next(fetch.parts(offset, offset + 1), None)
        if part is None:
            return None  # nothing is there any more
        rows = part.append_times
        if not rows:
            self._open_fetch = None
            return None
        return AppendRuns(rows).time_of(max(offset, rows[0]))

    @contextmanager
    def _asking(self, name: TopicPartition) -> Iterator[PartitionFetch | None]:
        if self._open_fetch is None:
            yield None
            return
        with closing(self._open_fetch(name)) as fetch:
            fetch.want_append_times()
            yield fetch


def batch_fetch(
    bootstrap: str, client_id: str, clock: Clock, timeout_s: float, name: TopicPartition
) -> PartitionFetch:
    """Return what fetches a partition's batches one by one: a single one always comes whole."""
    from tidelog.record.offset_order import reach_of

    connect = partial(connect_socket, timeout_s=timeout_s)
    seams = FetchSeams(connect=connect, clock=clock, reach=reach_of)
    timeout_ms = max(int(timeout_s * 1000), 1000)
    settings = FetchSettings(
        client_id=client_id, timeout_ms=timeout_ms, max_bytes=1, partition_max_bytes=1
    )
    return PartitionFetch(bootstrap, name, seams, settings=settings)
