"""Fixtures of our broker in this process, for tests with real clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.brokers.running import SETTINGS, broker_fixture
from tests.worlds.waiting import PATIENCE_S

from tidelog.server.metrics import http
from tidelog.server.net import listener, sasl_session
from tidelog.server.security import bearer_tokens


@pytest.fixture(scope="session", autouse=True)
def patient_doors() -> Iterator[None]:
    """Extend the timeouts of SASL, TLS, HTTP and requests for keys, for machines that pause."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sasl_session, "DEADLINE_MS", PATIENCE_S * 1000)
        patch.setattr(listener, "TLS_TIMEOUT_S", PATIENCE_S)
        patch.setattr(http, "TIMEOUT_S", float(PATIENCE_S))
        patch.setattr(bearer_tokens, "TIMEOUT_S", PATIENCE_S)
        yield


# A running broker that was started on an empty directory.
broker = broker_fixture(SETTINGS)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Return the directory of one test's brokers."""
    return str(tmp_path / "data")
