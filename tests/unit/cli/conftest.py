"""A command line on an empty directory, and one on a directory with a topic."""

from pathlib import Path

import pytest
from tests.worlds.command_line import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def flights(cli: Cli) -> Cli:
    """With the topic `flights` of one partition."""
    cli.ok("create", "flights", "--config", "retention.ms=-1")
    return cli
