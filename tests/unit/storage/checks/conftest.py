"""Fixture of the checks' tests: an undamaged directory, which each test damages."""

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.sick import mended_log


@pytest.fixture
def env() -> SeededEnv:
    """Return an undamaged directory of three segments with their zone maps."""
    return mended_log()
