"""Fixtures of the command line: one on an empty directory, one on a directory with a topic."""

from pathlib import Path

import pytest
from tests.worlds.command_line import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def flights(cli: Cli) -> Cli:
    """Create the topic `flights` with one partition."""
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    return cli
