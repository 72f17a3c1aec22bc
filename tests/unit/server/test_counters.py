"""Counters of the broker, and the events that change them."""

from tests.worlds.records.batches import batch

from tidelog.server.runtime.counters import REQUEST_BUCKETS_S, Counters
from tidelog.storage.log.append_types import AppendResult


def test_a_bucket_includes_its_bound() -> None:
    counters = Counters()
    first, second, *_, last = REQUEST_BUCKETS_S
    for seconds in (first / 2, first, second, last, 2 * last):
        counters.request("Fetch", seconds, 1, 2)
    counts = counters.apis["Fetch"].seconds.counts
    assert (counts[:2], counts[-2:], sum(counts)) == ([2, 1], [1, 1], 5)


def test_requests_are_counted_by_api() -> None:
    counters = Counters()
    counters.request("Produce", 0.0002, 100, 20)
    counters.request("Produce", 0.0002, 50, 20)
    counters.request("Fetch", 60.0, 1, 2)
    produce, fetch = counters.apis["Produce"], counters.apis["Fetch"]
    assert (sum(produce.seconds.counts), produce.bytes_in, produce.bytes_out) == (2, 150, 40)
    assert fetch.seconds.counts[-1] == 1


def test_opened_closed_and_refused_connections_are_counted() -> None:
    counters = Counters()
    counters.connection_opened()
    counters.connection_opened()
    counters.connection_closed()
    counters.connection_refused()
    counters.malformed()
    assert (counters.connections, counters.connections_opened) == (1, 2)
    assert (counters.connections_refused, counters.malformed_requests) == (1, 1)


def result(append_ms: int = -1, stamp_ms: int = -1, *, is_duplicate: bool = False) -> AppendResult:
    return AppendResult(5, 14, append_ms, stamp_ms, 0, is_duplicate)


def test_topics_are_counted_and_forgotten() -> None:
    counters = Counters()
    data = batch(b"x", timestamp=1_000)
    counters.produced("flights", data, result())
    counters.produced("flights", data, result(is_duplicate=True))
    counters.fetched("flights", 20, 2000)
    tally = counters.topics["flights"]
    assert (tally.records_in, tally.bytes_in) == (10, len(data))
    assert (tally.records_out, tally.bytes_out) == (20, 2000)
    counters.forget_topic("flights")
    counters.forget_topic("flights")
    assert not counters.topics
