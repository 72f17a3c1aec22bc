"""Requests of a query to brokers that can't be reached: number of attempts, pauses, log lines."""

from types import SimpleNamespace

import pytest
from tests.worlds.kafka.broker import free_port

from tidelog.errors import ClusterFailure
from tidelog.spark import broker_backend
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
