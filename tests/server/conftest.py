"""A broker of ours in this process, for tests with real clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.conftest import quick_path

import tidelog
from tidelog.server.in_process import Broker

__all__ = ["quick_path"]

# Groups wait three seconds for more members by default.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "3",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A running broker on an empty directory."""
    with tidelog.broker(str(tmp_path / "data"), settings=SETTINGS) as running:
        yield running
