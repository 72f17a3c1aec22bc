"""Fixtures: a standby's environment, and a leader with an empty topic."""

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.worlds.clusters.fake_leader import FakeLeader


@pytest.fixture
def env() -> SeededEnv:
    return seeded_env(3)


@pytest.fixture
def leader() -> FakeLeader:
    found = FakeLeader()
    found.create()
    return found
