"""A broker of ours in this process, for tests with real clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.conftest import quick_path
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.server import gate, metrics_http, tls_listener
from tidelog.server.in_process import Broker
from tidelog.server.security import key_sources

__all__ = ["quick_path"]

# Groups wait three seconds for more members by default; retention comes after half a minute, to
# records of long ago, as many tests write them.
SETTINGS = {
    "log.initial.task.delay.ms": "3600000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "3",
}


@pytest.fixture(scope="session", autouse=True)
def patient_doors() -> Iterator[None]:
    """Ten seconds to come in are few where the machine stands still between two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "DEADLINE_MS", PATIENCE_S * 1000)
        patch.setattr(tls_listener, "TLS_TIMEOUT_S", PATIENCE_S)
        patch.setattr(metrics_http, "TIMEOUT_S", float(PATIENCE_S))
        patch.setattr(key_sources, "TIMEOUT_S", PATIENCE_S)
        yield


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A running broker on an empty directory."""
    with tidelog.broker(str(tmp_path / "data"), settings=SETTINGS) as running:
        yield running
