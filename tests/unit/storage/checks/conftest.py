"""What each check is given: a sound directory, which a test damages."""

import pytest
from tests.faults import SeededEnv
from tests.worlds.directories.sick import mended_log


@pytest.fixture
def env() -> SeededEnv:
    """A sound directory of three segments with their zone maps."""
    return mended_log()
