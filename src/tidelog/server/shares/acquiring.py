"""One acquisition: which of what was read a member is given, until it has enough.

Source: KIP-932, KIP-1206; Kafka 4.3's SharePartition (cuts at batches, isolation of bad records).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from tidelog.server.shares.runs import Run
from tidelog.server.shares.states import Acquired, Limits, Offered, Wish

# Offsets that one acquisition gives at most, though a batch of the log be larger: what members say
# of them one by one has to fit into a record of `__share_group_state`. As many as locks may be.
ACQUIRED_MAX: Final = 10_000


class Lender(Protocol):
    """Records that can be given; a `SharePartition` is one."""

    limits: Limits

    def runs_again(self, first: int, last: int) -> list[Run]:
        """Runs in a range that a member may be given."""
        ...

    def lock(self, first: int, last: int, member: str, deadline_ms: int) -> int:
        """Give a member a part of one run; the delivery's number."""
        ...

    def lock_new(self, first: int, last: int, member: str, deadline_ms: int) -> None:
        """Give a member what was never delivered; the log has nothing between `end` and it."""
        ...


class Taking:
    """One acquisition: what a member is given, until it has enough."""

    def __init__(
        self,
        records: Lender,
        member: str,
        offered: Offered,
        wish: Wish,
        most: int,
        deadline_ms: int,
    ) -> None:
        self._records = records
        self._member = member
        self._batches = offered.batches
        self._wish = wish
        self._left = most
        # So many more may go, that a batch goes whole.
        self._spare = ACQUIRED_MAX - most
        self._deadline_ms = deadline_ms
        self.acquired: list[Acquired] = []

    def again(self, first: int, last: int) -> None:
        """Give what was delivered before, in a range."""
        limits = self._records.limits
        for run in self._records.runs_again(first, last):
            is_isolated = run.count >= limits.isolation_count
            if self._left <= 0 or (is_isolated and self.acquired):
                self._left = 0
                return
            low = max(run.first, first)
            high = self._cut(low, min(run.last, last))
            if is_isolated:
                high = min(high, low + _isolated_size(run, limits) - 1)
            count = self._records.lock(low, high, self._member, self._deadline_ms)
            self._take(low, high, count)
            if is_isolated:
                self._left = 0

    def new(self, first: int, last: int) -> None:
        """Give what was never delivered, in a range."""
        if self._left <= 0 or first > last:
            return
        high = self._cut(first, last)
        for low, behind in self._pieces(first, high):
            self._records.lock_new(low, behind, self._member, self._deadline_ms)
            self._note(low, behind, 1)
        self._left = 0

    def _take(self, first: int, last: int, count: int) -> None:
        for low, high in self._pieces(first, last):
            self._note(low, high, count)

    def _note(self, first: int, last: int, count: int) -> None:
        self.acquired.append(Acquired(first, last, count))
        self._left -= last - first + 1

    def _cut(self, first: int, last: int) -> int:
        """The last offset of a range that may be given: that of its batch, unless it is huge."""
        wanted = first + self._left - 1
        if wanted >= last:
            return last
        if self._wish.is_strict:
            return wanted
        inside = (high for low, high in self._batches if low <= wanted <= high)
        return min(next(inside, wanted), wanted + self._spare, last)

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """A range, cut at batches of the log once a piece has as many records as are wanted."""
        size = max(self._wish.batch_records, 1)
        if not self._wish.is_strict:
            for base, _ in self._batches:
                if base > last:
                    break
                if base - first >= size:
                    yield first, base - 1
                    first = base
        yield first, last


def _isolated_size(run: Run, limits: Limits) -> int:
    """How many of records that were delivered often are given at a time: in the end one."""
    if limits.deliveries_max > 2 and run.count >= limits.deliveries_max - 1:
        return 1
    return max(1, run.batch_records >> (run.count - limits.isolation_count + 1))


def without(acquired: Iterable[Acquired], hidden: Sequence[tuple[int, int]]) -> Iterator[Acquired]:
    """What was acquired but for ranges of it that nobody shall see; these are in order."""
    for each in acquired:
        first = each.first
        for low, high in hidden:
            if high < first or low > each.last:
                continue
            if low > first:
                yield Acquired(first, low - 1, each.count)
            first = high + 1
        if first <= each.last:
            yield Acquired(first, each.last, each.count)
