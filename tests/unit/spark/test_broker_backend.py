"""Requests of a query to brokers: attempts if no broker responds, and lookups by time."""

from types import SimpleNamespace

import pytest
from tests.worlds.clusters.fake_cluster import FLIGHTS_0, FakeCluster
from tests.worlds.kafka.broker import free_port

from tidelog.errors import ClusterFailure
from tidelog.remote.broker_connection import Transport
from tidelog.remote.partition_fetch import FetchSettings
from tidelog.spark import broker_backend
from tidelog.spark.broker_backend import BrokerEpochs
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options


def test_each_retry_is_logged_before_its_pause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, int]] = []

    def wait(pause_s: float) -> None:
        pauses.append((pause_s, caplog.text.count("retrying in 1500 ms: ")))

    events = SimpleNamespace(Event=lambda: SimpleNamespace(wait=wait))
    monkeypatch.setattr(broker_backend, "threading", events)
    given = {
        "kafka.bootstrap.servers": f"127.0.0.1:{free_port()}",
        "subscribe": "any",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "1500",
        "kafka.request.timeout.ms": "100",
    }
    with open_backend(read_source_options(given), ()) as backend, pytest.raises(ClusterFailure):
        backend.partitions()
    assert pauses == [(1.5, 1), (1.5, 2)]
    assert caplog.text.count("retrying in 1500 ms: ") == 2


def test_the_timeout_of_requests_for_epochs_is_in_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[tuple[str, int, float]] = []

    def connect(host: str, port: int, *, timeout_s: float) -> Transport:
        attempts.append((host, port, timeout_s))
        raise OSError("unreachable")

    monkeypatch.setattr(broker_backend, "connect_socket", connect)
    epochs = BrokerEpochs("one:9092,two:9093", FetchSettings(timeout_ms=1_500))
    with pytest.raises(ClusterFailure, match="two:9093"):
        epochs.ends_of({FLIGHTS_0: 0})
    assert attempts == [("one", 9092, 1.5), ("two", 9093, 1.5)]


def test_brokers_that_search_by_append_time_are_read_for_a_create_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster().with_log(FLIGHTS_0, 10, 50, 20, 40, 30)
    cluster.settings["flights"] = {"tidelog.lookup.clock": "append"}
    cluster.logs[FLIGHTS_0].hides_matches = True
    monkeypatch.setattr(broker_backend, "connect", lambda *_, **_more: cluster)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "flights"}
    backend = open_backend(read_source_options(given), ())
    found = {ms: backend.offsets_for_times({FLIGHTS_0: ms}) for ms in (9, 10, 11, 50, 51)}
    expected = {9: 0, 10: 0, 11: 1, 50: 1, 51: None}
    assert found == {ms: {FLIGHTS_0: offset} for ms, offset in expected.items()}
