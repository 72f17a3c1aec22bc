"""Marks test cases that only repeat other cases; marked cases run only in the sweep."""

import pytest
from _pytest.mark import ParameterSet


def rarely(*values: object) -> ParameterSet:
    """Return a case of a parametrized test that only the sweep runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
