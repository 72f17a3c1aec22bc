"""Checks of a history: the faults that Jepsen looks for in Kafka, with their names.

The checks judge only responses that clients got. The names of the faults come from the Jepsen
reports on Kafka-like systems; the code of the checks does not.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.histories.history import History, Outcome, Partition, Transaction, Write, original_of


class Fault(Enum):
    """A kind of fault."""

    LOST_WRITE = "a value that was committed, acknowledged or read is missing"
    ABORTED_READ = "a value of an aborted transaction was read"
    DIRTY_READ = "a value was read before its commit was requested"
    INTERMEDIATE_READ = "only a part of a transaction is visible"
    INCONSISTENT_OFFSET = "an offset has two values, or a value is not at its acknowledged offset"
    NON_MONOTONIC_POLL = "a reader went back"
    NON_MONOTONIC_SEND = "a producer's later value is before its earlier value"
    SKIPPED = "a reader passed a value without getting it"
    DUPLICATE = "a value is at two offsets"
    UNKNOWN_VALUE = "a value that nobody has sent"
    COPIED_WRONG = "the copies are not those of the inputs before the committed offset, in order"
    FENCED_WRITE = "a producer wrote or committed after another one had taken its transactional id"
    REFUSED = "a producer was refused that was not fenced and had not timed out"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A fault, and its details as text."""

    fault: Fault
    detail: str


class _Read(NamedTuple):
    """A value that a reader got; `time` is None for a read at the end of the history."""

    reader: str
    time: int | None
    partition: Partition
    offset: int
    value: int
    is_committed: bool

    def __str__(self) -> str:
        return f"{self.reader}: {self.value} at {self.partition}@{self.offset}"


@dataclass(slots=True)
class _Known:
    """A history, with its transactions and its writes indexed by value, and all of its reads."""

    history: History
    owners: dict[int, Transaction] = field(init=False)
    writes: dict[int, Write] = field(init=False)
    reads: Sequence[_Read] = field(init=False)

    def __post_init__(self) -> None:
        all_of = self.history.transactions
        self.owners = {write.value: each for each in all_of for write in each.writes}
        self.writes = {write.value: write for each in all_of for write in each.writes}
        self.reads = [*self._polled(), *self._found("final", self.history.final)]
        self.reads += self._found("stored", self.history.stored)

    def _polled(self) -> Iterator[_Read]:
        for poll in self.history.polls:
            for offset, value in poll.records:
                facts = (poll.process, poll.time, poll.partition)
                yield _Read(*facts, offset, value, poll.is_committed)

    @staticmethod
    def _found(name: str, lists: dict[Partition, list[tuple[int, int]]]) -> Iterator[_Read]:
        for partition, records in lists.items():
            for offset, value in records:
                yield _Read(name, None, partition, offset, value, name == "final")

    def ends(self, *, is_committed: bool) -> dict[Partition, list[tuple[int, int]]]:
        """Return the records at the end of the history, by partition: committed ones or all."""
        return self.history.final if is_committed else self.history.stored


def check(history: History) -> list[Anomaly]:
    """Return all faults of a history."""
    known = _Known(history)
    found: list[Anomaly] = []
    rules = (_reads, _said, _offsets, _whole, _kept, _sends, _fenced, _polls, _skips, _copies)
    for rule in rules:
        found += rule(known)
    return found


def _reads(known: _Known) -> Iterator[Anomaly]:
    """Yield reads of unknown values, and committed reads of aborted or not yet committed ones."""
    for read in known.reads:
        owner = known.owners.get(read.value)
        if owner is None:
            yield Anomaly(Fault.UNKNOWN_VALUE, str(read))
        elif not read.is_committed:
            continue
        elif owner.outcome is Outcome.ABORTED:
            yield Anomaly(Fault.ABORTED_READ, str(read))
        elif read.time is not None and (
            owner.commit_asked is None or read.time < owner.commit_asked
        ):
            yield Anomaly(Fault.DIRTY_READ, str(read))


def _said(known: _Known) -> Iterator[Anomaly]:
    """Yield offsets that responses gave to two writes, even if their transactions were aborted."""
    values: dict[tuple[Partition, int], int] = {}
    for write in known.writes.values():
        if write.offset is None:
            continue
        before = values.setdefault((write.partition, write.offset), write.value)
        if before != write.value:
            where = f"{write.partition}@{write.offset}"
            detail = f"{where} was said of {before} and {write.value}"
            yield Anomaly(Fault.INCONSISTENT_OFFSET, detail)


def _offsets(known: _Known) -> Iterator[Anomaly]:
    """Yield offsets with two values, values at two offsets, and reads that contradict responses."""
    values: dict[tuple[Partition, int], int] = {}
    first_seen: dict[int, tuple[Partition, int]] = {}
    for read in known.reads:
        at = (read.partition, read.offset)
        if values.setdefault(at, read.value) != read.value:
            yield Anomaly(Fault.INCONSISTENT_OFFSET, f"{read}, before {values[at]}")
        elif first_seen.setdefault(read.value, at) != at:
            yield Anomaly(Fault.DUPLICATE, f"{read}, and at {first_seen[read.value]}")
        write = known.writes.get(read.value)
        if write is None:
            continue
        if write.partition != read.partition or write.offset not in {None, read.offset}:
            where = f"{write.partition}@{write.offset}"
            yield Anomaly(Fault.INCONSISTENT_OFFSET, f"{read}, {where} was said")


def _whole(known: _Known) -> Iterator[Anomaly]:
    """Yield missing writes of committed transactions, and transactions that are partly visible."""
    there = {
        (partition, value) for partition, found in known.history.final.items() for _, value in found
    }
    for each in known.history.transactions:
        # Writes that got no response count only if the transaction is committed.
        is_all = each.outcome is Outcome.COMMITTED
        sent = [write for write in each.writes if is_all or write.offset is not None]
        missing = [write.value for write in sent if (write.partition, write.value) not in there]
        if each.outcome is Outcome.COMMITTED:
            for value in missing:
                yield Anomaly(Fault.LOST_WRITE, f"{each.process}: {value}")
        if missing and len(missing) < len(sent):
            said = [write.value for write in sent]
            yield Anomaly(Fault.INTERMEDIATE_READ, f"{each.process}: {said} without {missing}")


def _kept(known: _Known) -> Iterator[Anomaly]:
    """Yield values that were read or acknowledged, but are missing at the end of the history."""
    final, stored = (
        {partition: {value for _, value in rows} for partition, rows in lists.items()}
        for lists in (known.history.final, known.history.stored)
    )
    for read in known.reads:
        there = (final if read.is_committed else stored).get(read.partition)
        if there is not None and read.value not in there:
            yield Anomaly(Fault.LOST_WRITE, f"{read}, and never again")
        if read.value not in stored.get(read.partition, {read.value}):
            yield Anomaly(Fault.LOST_WRITE, f"{read}, and it is not stored")
    for write in known.writes.values():
        there = stored.get(write.partition)
        if write.offset is not None and there is not None and write.value not in there:
            yield Anomaly(Fault.LOST_WRITE, f"{write} was acknowledged")


def _sends(known: _Known) -> Iterator[Anomaly]:
    """Yield a producer's values whose offsets, in responses or in reads, don't increase."""
    found = {read.value: read.offset for read in known.reads}
    last: dict[tuple[str, Partition], int] = {}
    for each in known.history.transactions:
        for write in each.writes:
            offset = found.get(write.value) if write.offset is None else write.offset
            if offset is None:
                continue
            before = last.get((each.process, write.partition), -1)
            if offset <= before:
                where = f"{each.process}: {write.value} at {write.partition}@{offset}"
                yield Anomaly(Fault.NON_MONOTONIC_SEND, f"{where}, behind {before}")
            last[each.process, write.partition] = offset


def _fenced(known: _Known) -> Iterator[Anomaly]:
    """Yield accepted writes and commits of a fenced client, and refusals without a reason."""
    for each in known.history.transactions:
        if each.refused is not None:
            yield Anomaly(Fault.REFUSED, f"{each.process}: error {each.refused}, {each.writes}")
        if each.fenced is None:
            continue
        for write in each.writes:
            if write.offset is not None and (write.asked or 0) > each.fenced:
                yield Anomaly(Fault.FENCED_WRITE, f"{each.process}: {write.value}")
        is_late = each.commit_asked is not None and each.commit_asked > each.fenced
        if is_late and each.outcome is Outcome.COMMITTED:
            yield Anomaly(Fault.FENCED_WRITE, f"{each.process}: commit of {each.writes}")


def _polls(known: _Known) -> Iterator[Anomaly]:
    """Yield records that a reader got below its position; the final reads are checked, too."""
    positions: dict[tuple[str, int, Partition], int] = {}
    for poll in known.history.polls:
        key = (poll.process, poll.run, poll.partition)
        at = positions.get(key, poll.begin)
        yield from _going_back(poll.process, poll.partition, poll.records, at)
        ends = [offset + 1 for offset, _ in poll.records]
        positions[key] = max([at, poll.end, *ends])
    for name, lists in (("final", known.history.final), ("stored", known.history.stored)):
        for partition, records in lists.items():
            yield from _going_back(name, partition, records, 0)


def _going_back(
    reader: str, partition: Partition, records: Sequence[tuple[int, int]], at: int
) -> Iterator[Anomaly]:
    for offset, value in records:
        if offset < at:
            where = f"{reader}: {value} at {partition}@{offset}, position {at}"
            yield Anomaly(Fault.NON_MONOTONIC_POLL, where)
        at = max(at, offset + 1)


def _skips(known: _Known) -> Iterator[Anomaly]:
    """Yield an anomaly for each record of the log that a reader skipped between its positions."""
    seen: dict[tuple[str, int, Partition, bool], set[int]] = defaultdict(set)
    spans: dict[tuple[str, int, Partition, bool], tuple[int, int]] = {}
    for poll in known.history.polls:
        key = (poll.process, poll.run, poll.partition, poll.is_committed)
        seen[key].update(offset for offset, _ in poll.records)
        first, end = spans.get(key, (poll.begin, poll.end))
        spans[key] = (first, max(end, poll.end))
    for key, (first, end) in spans.items():
        process, _, partition, is_committed = key
        for offset, value in known.ends(is_committed=is_committed).get(partition, ()):
            if first <= offset < end and offset not in seen[key]:
                yield Anomaly(Fault.SKIPPED, f"{process}: {value} at {partition}@{offset}")


def _copies(known: _Known) -> Iterator[Anomaly]:
    """Yield target partitions whose copies aren't exactly the values below the committed offset."""
    for source, (target, offset) in known.history.copied.items():
        wanted = [value for at, value in known.history.final.get(source, ()) if at < offset]
        found = [original_of(copy) for _, copy in known.history.final.get(target, ())]
        if wanted != found:
            yield Anomaly(Fault.COPIED_WRONG, f"{target}: {found}, {wanted} expected")
