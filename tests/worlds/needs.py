"""Programs, packages and features of the system that a machine may lack.

Only these functions may skip a test (checked by tests/tidy/test_files.py). In CI, `need` and
`skip_or_fail` fail the test instead.
"""

import os
import shutil
from typing import NoReturn

import pytest

REQUIRED = "TIDELOG_REQUIRE_KAFKA"


def need(found: bool, what: str) -> None:
    """If `found` is false, skip the test, or fail it if TIDELOG_REQUIRE_KAFKA is set."""
    if not found:
        skip_or_fail(what)


def skip_or_fail(what: str) -> NoReturn:
    """Skip the test because `what` is missing; if TIDELOG_REQUIRE_KAFKA is set, fail it instead."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"needs {what}, and {REQUIRED} forbids skipping", pytrace=False)
    pytest.skip(f"needs {what}")


def need_kcat() -> None:
    """Skip the test if kcat is missing; in CI, fail it."""
    need(shutil.which("kcat") is not None, "kcat (apt install kcat)")


def variable(name: str) -> str:
    """Return an environment variable that enables a slow test; skip the test if it is not set."""
    found = os.environ.get(name)
    if not found:
        pytest.skip(f"{name} is not set (docs/testing.md, Object stores and clusters)")
    return found
