"""One point in time on both clocks, and why the answers differ."""

from dataclasses import dataclass

import numpy as np

import tidelog
from tidelog.demo.flights import Flights, Ints, Longs
from tidelog.demo.load import TOPIC
from tidelog.types import ClockName, OffsetAndTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What both clocks say of one partition.

    Attributes:
        partition: Its number.
        record: First offset whose flight was due at that time or later.
        append: First offset whose flight had left then or later.
    """

    partition: int
    record: OffsetAndTimestamp
    append: OffsetAndTimestamp


@dataclass(frozen=True, slots=True)
class Crossing:
    """Flights of a day on whose side of a moment the clocks disagree.

    Attributes:
        due_before_left_after: Due before it, gone after it.
        due_after_left_before: Due at it or later, gone before it.
    """

    due_before_left_after: int
    due_after_left_before: int


def look_up(path: str, at_ms: int) -> list[Answer]:
    """Both clocks' answers for each partition, from the log."""
    with tidelog.open(path) as directory:
        record = directory.offsets_at(TOPIC, at_ms, clock=ClockName.RECORD)
        append = directory.offsets_at(TOPIC, at_ms, clock=ClockName.APPEND)
    return [
        Answer(partition=place.partition, record=_found(found), append=_found(append[place]))
        for place, found in record.items()
    ]


def _found(answer: OffsetAndTimestamp | None) -> OffsetAndTimestamp:
    assert answer is not None  # the year goes on after any moment that the demo asks for
    return answer


def count_crossing(path: str, at_ms: int, start_ms: int, end_ms: int) -> Crossing:
    """Flights that the clocks put on different sides of a moment, among those of [start, end).

    Both are read from the log: by append time from the moment on, by record time from it on.
    """
    with tidelog.open(path) as directory:
        after = directory.read(
            TOPIC, start=at_ms, end=end_ms, clock=ClockName.APPEND, columns=["timestamp"]
        )
        due = np.concatenate([_millis(batch.column(0)) for batch in after])
        later = directory.read(
            TOPIC, start=at_ms, end=end_ms, clock=ClockName.RECORD, columns=["appendTimestamp"]
        )
        left = np.concatenate([_millis(batch.column(0)) for batch in later])
    return Crossing(
        int(((due < at_ms) & (due >= start_ms)).sum()),
        int((left < at_ms).sum()),
    )


def _millis(column: object) -> Longs:
    return np.asarray(column).astype("datetime64[ms]").astype(np.int64)


def expected_answers(flights: Flights, partitions: Ints, at_ms: int) -> list[tuple[int, int]]:
    """The offsets that both clocks must find, counted in the flights themselves."""
    found = []
    for number in np.unique(partitions).tolist():
        mine = partitions == number
        record = np.flatnonzero(flights.scheduled_ms[mine] >= at_ms)[0]
        append = np.flatnonzero(flights.departed_ms[mine] >= at_ms)[0]
        found.append((int(record), int(append)))
    return found
