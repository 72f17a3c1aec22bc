"""Commands with `--bootstrap`, and `tidelog.connect`, on a broker of ours."""

from collections.abc import Iterator

import pytest
from tests.commanding import Commands, Shell
from tests.connecting import Suite
from tests.server.conftest import SETTINGS

import tidelog
from tidelog.cluster.remote_directory import RemoteDirectory
from tidelog.server.in_process import Broker


@pytest.fixture(scope="module")
def ours() -> Iterator[Broker]:
    with tidelog.broker(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def shell(ours: Broker) -> Shell:
    return Shell(ours.bootstrap_servers)


@pytest.fixture
def log(ours: Broker) -> Iterator[RemoteDirectory]:
    with tidelog.connect(ours.bootstrap_servers) as found:
        yield found


class TestCommandsOnOurs(Commands):
    """See `Commands`."""


class TestConnectToOurs(Suite):
    """See `Suite`."""
