"""Fixtures of the command line's tests: a directory, and a directory that a broker serves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.command_line import Cli

import tidelog


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def flights(cli: Cli) -> Cli:
    """Create the topic `flights` with one partition."""
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    return cli


@pytest.fixture(params=["directory", "cluster"])
def place(request: pytest.FixtureRequest, hours: Cli) -> Iterator[tuple[str, ...]]:
    """Yield options to read the records of the fixture `hours` from disk, then from a broker.

    Each module that uses this fixture defines `hours`.
    """
    if request.param == "directory":
        yield ("--data", str(hours.data))
        return
    with tidelog.broker(str(hours.data)) as broker:
        yield ("--bootstrap", broker.bootstrap_servers)
