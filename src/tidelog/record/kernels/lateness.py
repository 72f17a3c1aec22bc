"""Latency by hour on two clocks, and lateness, of records whose two times are arrays.

One pass over times as the decoder hands them out, where a zone map is not there or can't tell:
lateness depends on the order of the records. The plain rules are those of `scan.latency` and
`scan.lateness`.
"""

from typing import Final, NamedTuple

from tidelog.record.kernels.arithmetic import add_wrapping, subtract_wrapping
from tidelog.record.kernels.compiler import inlined, kernel
from tidelog.record.kernels.layout import DONE, FULL
from tidelog.record.kernels.memory import Longs
from tidelog.record.kernels.zones import BUCKET_MAX, bucket_of, distance
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP

# Spans of time counted before the caller takes them away; a power of two, since a span's number
# says where to look for it.
SLOTS: Final = 256
_PROBES: Final = 16

SPAN: Final = 0
SPAN_MIN: Final = 1
SPAN_MAX: Final = 2
SPAN_COUNT: Final = 3  # 0 says that the slot is free
SPAN_FIELDS: Final = 4

# Places in `facts`: the record to go on with, and what has been met so far.
AT: Final = 0
BOTH: Final = 1  # records with both times
TIMED: Final = 2  # records with a create time
LATE: Final = 3  # records with an earlier create time than one before them
LATE_MIN: Final = 4
LATE_MAX: Final = 5
LARGEST: Final = 6  # create times; goes in as that of the records before
SMALLEST: Final = 7
FACTS: Final = 8


class HourCounts(NamedTuple):
    """Latencies by span of one clock's time; the caller takes them away and clears them.

    Attributes:
        step_ms: Length of a span.
        spans: int64[SLOTS, SPAN_FIELDS]: number of the span, smallest, largest, count.
        buckets: int64[SLOTS, BUCKETS]: how many fell into each.
    """

    step_ms: int
    spans: Longs
    buckets: Longs


class LateCounts(NamedTuple):
    """Late records.

    Attributes:
        buckets: int64[BUCKETS]: lateness in ms of the records out of order.
        delays: int64[d], ascending, in ms.
        passed: int64[d + 1]: how many are late by more than so many of the delays, and no more.
    """

    buckets: Longs
    delays: Longs
    passed: Longs


@kernel
def count_times(
    append_ms: Longs,
    create_ms: Longs,
    by_append: HourCounts,
    by_create: HourCounts,
    late: LateCounts,
    facts: Longs,
) -> int:
    """Count records from `facts[AT]` on, in their order.

    Shape:
        append_ms, create_ms: int64[n], -1 for unknown.
        facts: int64[FACTS].

    Returns:
        DONE; FULL where one clock's spans have no room: the caller takes both away and goes on.
    """
    number, largest = facts[AT], facts[LARGEST]
    smallest, timed, both = facts[SMALLEST], 0, 0
    append_slot, create_slot, status = -1, -1, DONE
    # The spans [start, end) that were met last: most records lie in those.
    append_start = append_end = create_start = create_end = 0
    while number < append_ms.size:
        append, create = append_ms[number], create_ms[number]
        if create != NO_TIMESTAMP:
            if append != NO_TIMESTAMP:
                if append < append_start or append >= append_end:
                    append_slot = _slot_of(append, by_append)
                    append_start, append_end = _span_of(append, by_append.step_ms)
                if create < create_start or create >= create_end:
                    create_slot = _slot_of(create, by_create)
                    create_start, create_end = _span_of(create, by_create.step_ms)
                if append_slot < 0 or create_slot < 0:
                    status = FULL
                    break
                latency = distance(append, create)
                bucket = BUCKET_MAX + bucket_of(latency)
                _count(by_append, append_slot, latency, bucket)
                _count(by_create, create_slot, latency, bucket)
                both += 1
            timed += 1
            if create < largest:
                _count_late(late, facts, distance(largest, create))
            else:
                largest = create
            smallest = min(smallest, create)
        number += 1
    facts[AT], facts[LARGEST], facts[SMALLEST] = number, largest, smallest
    facts[BOTH] += both
    facts[TIMED] += timed
    return status


@inlined
def _slot_of(time_ms: int, hours: HourCounts) -> int:
    """The slot of the span that a time lies in; -1 without room."""
    number, spans = time_ms // hours.step_ms, hours.spans
    for probe in range(_PROBES):
        slot = (number + probe) & (SLOTS - 1)
        if spans[slot, SPAN_COUNT] == 0:
            spans[slot, SPAN] = number
            spans[slot, SPAN_MIN], spans[slot, SPAN_MAX] = INT64_MAX, INT64_MIN
            return int(slot)
        if spans[slot, SPAN] == number:
            return int(slot)
    return -1


@inlined
def _span_of(time_ms: int, step_ms: int) -> tuple[int, int]:
    """Start and end of the span that a time lies in; one that int64 can't hold contains nothing."""
    start = subtract_wrapping(time_ms, time_ms % step_ms)
    return start, add_wrapping(start, step_ms)


@inlined
def _count(hours: HourCounts, slot: int, latency: int, bucket: int) -> None:
    spans = hours.spans
    spans[slot, SPAN_MIN] = min(spans[slot, SPAN_MIN], latency)
    spans[slot, SPAN_MAX] = max(spans[slot, SPAN_MAX], latency)
    spans[slot, SPAN_COUNT] += 1
    hours.buckets[slot, bucket] += 1


@inlined
def _count_late(late: LateCounts, facts: Longs, late_ms: int) -> None:
    facts[LATE] += 1
    facts[LATE_MIN] = min(facts[LATE_MIN], late_ms)
    facts[LATE_MAX] = max(facts[LATE_MAX], late_ms)
    late.buckets[BUCKET_MAX + bucket_of(late_ms)] += 1
    passed = 0
    for slot in range(late.delays.size):  # to the end: a branch that is guessed wrong takes longer
        passed += late_ms > late.delays[slot]
    late.passed[passed] += 1
