"""The broker's counters: what each hook counts."""

from tidelog.server.metrics import LATENCY_BUCKETS_S, NO_METRICS, Counters, Histogram


def test_a_bucket_holds_its_bound() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        found.observe(value)
    assert found.counts == [2, 2, 1]
    assert found.total == 14.0


def test_requests_are_counted_by_api() -> None:
    counters = Counters()
    counters.request("Produce", 0.0002, 100, 20)
    counters.request("Produce", 0.0002, 50, 20)
    counters.request("Fetch", 60.0, 1, 2)
    produce, fetch = counters.apis["Produce"], counters.apis["Fetch"]
    assert (sum(produce.seconds.counts), produce.bytes_in, produce.bytes_out) == (2, 150, 40)
    assert fetch.seconds.counts[-1] == 1


def test_connections_come_and_go() -> None:
    counters = Counters()
    counters.connection_opened()
    counters.connection_opened()
    counters.connection_closed()
    counters.connection_refused()
    counters.malformed()
    assert (counters.connections, counters.connections_opened) == (1, 2)
    assert (counters.connections_refused, counters.malformed_requests) == (1, 1)


def test_topics_are_counted_and_forgotten() -> None:
    counters = Counters()
    counters.records_in("flights", 10, 1000)
    counters.records_out("flights", 20, 2000)
    tally = counters.topics["flights"]
    assert (tally.records_in, tally.bytes_in) == (10, 1000)
    assert (tally.records_out, tally.bytes_out) == (20, 2000)
    counters.forget_topic("flights")
    counters.forget_topic("flights")
    assert not counters.topics


def test_latency_is_counted_where_both_times_are_known() -> None:
    counters = Counters()
    counters.appended("flights", 5_000, 4_000)
    counters.appended("flights", 5_000, 6_000)
    counters.appended("flights", -1, 4_000)
    counters.appended("flights", 5_000, -1)
    latency = counters.topics["flights"].latency
    assert sum(latency.counts) == 2
    assert latency.counts[LATENCY_BUCKETS_S.index(1.0)] == 1
    assert latency.counts[0] == 1
    assert latency.total == 0.0


def test_no_metrics_takes_every_call() -> None:
    NO_METRICS.request("Fetch", 0.1, 1, 1)
    NO_METRICS.connection_opened()
    NO_METRICS.connection_closed()
    NO_METRICS.connection_refused()
    NO_METRICS.malformed()
    NO_METRICS.records_in("flights", 1, 1)
    NO_METRICS.records_out("flights", 1, 1)
    NO_METRICS.appended("flights", 1, 1)
