"""Loads flights: each departure is appended when it happened, by a clock that is set to it."""

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

import tidelog
from tidelog.demo.flights import Flights, Ints, Mask
from tidelog.env import Env, ManualClock
from tidelog.record.encode import encode_table
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.log import Log

TOPIC: Final = "flights"
PARTITIONS: Final = 4
# What the topic's settings are, and why.
SETTINGS: Final = {
    "retention.ms": ("-1", "records of 2013 are older than any usual limit: keep them"),
    "segment.ms": ("2592000000", "a segment for about each 30 days of flights"),
}
DEFAULTS_USED: Final = {
    "message.timestamp.after.max.ms": (
        "3600000",
        "create times may lie an hour ahead of the clock: flights leave up to 43 minutes early",
    ),
    "message.timestamp.before.max.ms": (
        "9223372036854775807",
        "and any time behind it: flights leave up to 22 hours late",
    ),
}
# One record a batch: a minute seldom has two departures for the same partition.
_BATCH_BYTES: Final = 1
# How many minutes pass between two looks at the progress bar.
_TICKS_PER_REPORT: Final = 2_000


def load(path: str, flights: Flights, partitions: Ints, advance: Callable[[int], None]) -> int:
    """Create the topic and append the flights; how many appends that took.

    All departures of one minute in one partition are one append, at the clock's time.

    Args:
        path: The directory of topics, made here.
        flights: In the order of departure.
        partitions: The partition of each.
        advance: Called with the number of flights appended since its last call.
    """
    clock = ManualClock(int(flights.departed_ms[0]))
    config = {key: value for key, (value, _) in SETTINGS.items()}
    with tidelog.open(path, writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic(TOPIC, partitions=PARTITIONS, config=config)
        logs = [directory.log(TOPIC, number) for number in range(PARTITIONS)]
        sources = [batches_of(flights, partitions == number) for number in range(PARTITIONS)]
        rows = (flights.departed_ms.tolist(), partitions.tolist())
        return _append_all(clock, logs, sources, rows, advance)


def batches_of(flights: Flights, wanted: Mask) -> Iterator[bytearray]:
    """The flights wanted as magic-2 batches of one record each, in order."""
    mine = flights.where(wanted)
    return encode_table(record_table(mine), now_ms=0, batch_bytes=_BATCH_BYTES)


def record_table(flights: Flights) -> pa.Table:
    """Flights as `append_table` and the encoder take records, in one chunk."""
    times = pa.chunked_array([pa.array(flights.scheduled_ms.tolist(), pa.timestamp("ms", "UTC"))])
    columns = [flights.key, flights.value, times]
    return pa.Table.from_arrays(columns, names=["key", "value", "timestamp"]).combine_chunks()


def _append_all(
    clock: ManualClock,
    logs: list[Log],
    sources: list[Iterator[bytearray]],
    rows: tuple[list[int], list[int]],
    advance: Callable[[int], None],
) -> int:
    """Go through the flights, given as departures and partitions, minute by minute."""
    departed_ms, partitions = rows
    appends = done = 0
    for tick, (first, end) in enumerate(_minutes(departed_ms)):
        pending: dict[int, bytearray] = {}
        for number in partitions[first:end]:
            batch = next(sources[number])
            pending[number] = pending[number] + batch if number in pending else batch
        clock.set(departed_ms[first])
        for number, data in pending.items():
            logs[number].append_batches(data, origin=AppendOrigin.SINK, owned=True, trusted=True)
        appends += len(pending)
        if tick % _TICKS_PER_REPORT == 0:
            advance(end - done)
            done = end
    advance(len(departed_ms) - done)
    return appends


def _minutes(departed_ms: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of flights that left at the same time; the list is sorted."""
    first = 0
    for at in range(1, len(departed_ms) + 1):
        if at == len(departed_ms) or departed_ms[at] != departed_ms[first]:
            yield first, at
            first = at
