"""Fixture of a disk that a test can block or fail."""

import pytest
from tests.faults.hooked import HookedDisk


@pytest.fixture
def disk() -> HookedDisk:
    return HookedDisk()
