"""What must not be found in a history: the faults that Jepsen looks for in Kafka, and their names.

Everything is judged by what clients were told. Source: the Jepsen reports on Kafka-like systems,
whose names of faults these are; the checks are written anew.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tests.histories.history import History, Outcome, Place, Transaction, Write


class Fault(Enum):
    """A kind of fault."""

    LOST_WRITE = "a committed value is not there"
    ABORTED_READ = "a value of an aborted transaction was read"
    DIRTY_READ = "a value was read before its commit was asked for"
    INTERMEDIATE_READ = "a part of a transaction is there, and a part is not"
    INCONSISTENT_OFFSET = "an offset has two values, or a value another offset than was said"
    NON_MONOTONIC_POLL = "a reader went back"
    NON_MONOTONIC_SEND = "what a producer sent later stands before what it sent earlier"
    SKIPPED = "a reader went on without a committed value"
    DUPLICATE = "a value is there twice"
    UNKNOWN_VALUE = "a value that nobody has sent"
    COPIED_WRONG = "a copy lacks an input before its committed offset, or has one behind it"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A fault, and where."""

    fault: Fault
    detail: str


@dataclass(slots=True)
class _Known:
    """The history by value and place."""

    history: History
    owners: dict[int, Transaction]
    writes: dict[int, Write]

    def reads(self) -> Iterator[tuple[str, int | None, Place, int, int]]:
        """Who read what: the reader, when (None for the end), place, offset and value."""
        for poll in self.history.polls:
            for offset, value in poll.records:
                yield poll.process, poll.time, poll.place, offset, value
        for place, records in self.history.final.items():
            for offset, value in records:
                yield "final", None, place, offset, value


def check(history: History) -> list[Anomaly]:
    """All that is wrong with a history; nothing where nothing is."""
    owners = {write.value: each for each in history.transactions for write in each.writes}
    writes = {write.value: write for each in history.transactions for write in each.writes}
    known = _Known(history, owners, writes)
    found: list[Anomaly] = []
    for rule in (_reads, _offsets, _whole, _sends, _polls, _skips, _copies):
        found += rule(known)
    return found


def _reads(known: _Known) -> Iterator[Anomaly]:
    """Values that may not be read, or not yet."""
    for reader, time, place, offset, value in known.reads():
        where = f"{reader}: {value} at {place}@{offset}"
        owner = known.owners.get(value)
        if owner is None:
            yield Anomaly(Fault.UNKNOWN_VALUE, where)
        elif owner.outcome is Outcome.ABORTED:
            yield Anomaly(Fault.ABORTED_READ, where)
        elif time is not None and (owner.commit_asked is None or time < owner.commit_asked):
            yield Anomaly(Fault.DIRTY_READ, where)


def _offsets(known: _Known) -> Iterator[Anomaly]:
    """One value at each offset, one offset for each value, the one that was said."""
    values: dict[tuple[Place, int], int] = {}
    places: dict[int, tuple[Place, int]] = {}
    for reader, _, place, offset, value in known.reads():
        where = f"{reader}: {value} at {place}@{offset}"
        if values.setdefault((place, offset), value) != value:
            yield Anomaly(Fault.INCONSISTENT_OFFSET, f"{where}, before {values[place, offset]}")
        elif places.setdefault(value, (place, offset)) != (place, offset):
            yield Anomaly(Fault.DUPLICATE, f"{where}, and at {places[value]}")
        write = known.writes.get(value)
        if write is not None and write.offset not in (None, offset) and write.place == place:
            yield Anomaly(Fault.INCONSISTENT_OFFSET, f"{where}, {write.offset} was said")


def _whole(known: _Known) -> Iterator[Anomaly]:
    """Committed transactions are there in the end, all others whole or not at all."""
    there = {value for records in known.history.final.values() for _, value in records}
    for each in known.history.transactions:
        said = [write.value for write in each.writes if write.offset is not None]
        missing = [value for value in said if value not in there]
        if each.outcome is Outcome.COMMITTED:
            for value in missing:
                yield Anomaly(Fault.LOST_WRITE, f"{each.process}: {value}")
        if missing and len(missing) < len(said):
            yield Anomaly(Fault.INTERMEDIATE_READ, f"{each.process}: {said} without {missing}")


def _sends(known: _Known) -> Iterator[Anomaly]:
    """A producer's offsets only go up."""
    last: dict[tuple[str, Place], int] = {}
    for each in known.history.transactions:
        for write in each.writes:
            if write.offset is None:
                continue
            before = last.get((each.process, write.place), -1)
            if write.offset <= before:
                where = f"{each.process}: {write.value} at {write.place}@{write.offset}"
                yield Anomaly(Fault.NON_MONOTONIC_SEND, f"{where}, behind {before}")
            last[each.process, write.place] = write.offset


def _polls(known: _Known) -> Iterator[Anomaly]:
    """A reader only goes on, until it begins anew."""
    positions: dict[tuple[str, int, Place], int] = {}
    for poll in known.history.polls:
        at = positions.get((poll.process, poll.run, poll.place), poll.begin)
        for offset, value in poll.records:
            if offset < at:
                where = f"{poll.process}: {value} at {poll.place}@{offset}, position {at}"
                yield Anomaly(Fault.NON_MONOTONIC_POLL, where)
            at = max(at, offset + 1)
        positions[poll.process, poll.run, poll.place] = max(at, poll.end)


def _skips(known: _Known) -> Iterator[Anomaly]:
    """What is there in the end was read by whoever went past it."""
    seen: dict[tuple[str, int, Place], set[int]] = defaultdict(set)
    spans: dict[tuple[str, int, Place], tuple[int, int]] = {}
    for poll in known.history.polls:
        key = (poll.process, poll.run, poll.place)
        seen[key].update(offset for offset, _ in poll.records)
        first, end = spans.get(key, (poll.begin, poll.end))
        spans[key] = (first, max(end, poll.end))
    for key, (first, end) in spans.items():
        for offset, value in known.history.final.get(key[2], ()):
            if first <= offset < end and offset not in seen[key]:
                yield Anomaly(Fault.SKIPPED, f"{key[0]}: {value} at {key[2]}@{offset}")


def _copies(known: _Known) -> Iterator[Anomaly]:
    """Each input below the committed offset was copied, once, in order; none behind it."""
    for source, (target, offset) in known.history.copied.items():
        wanted = [-value for at, value in known.history.final.get(source, ()) if at < offset]
        found = [value for _, value in known.history.final.get(target, ())]
        if wanted != found:
            yield Anomaly(Fault.COPIED_WRONG, f"{target}: {found}, {wanted} expected")
