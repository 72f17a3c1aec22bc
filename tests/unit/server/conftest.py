"""A disk that a test holds up or fails."""

import pytest
from tests.faults.hooked import HookedDisk


@pytest.fixture
def disk() -> HookedDisk:
    return HookedDisk()
