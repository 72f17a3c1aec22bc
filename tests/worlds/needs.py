"""Programs and packages that a machine may lack."""

import os
import shutil

import pytest


def need(found: bool, what: str) -> None:
    """If `found` is false, skip the test, or fail it if TIDELOG_REQUIRE_KAFKA is set."""
    if found:
        return
    if os.environ.get("TIDELOG_REQUIRE_KAFKA"):
        pytest.fail(f"needs {what}, and TIDELOG_REQUIRE_KAFKA forbids skipping")
    pytest.skip(f"needs {what}")


def need_kcat() -> None:
    """Skip the test if kcat is missing, or if the environment declares it unavailable."""
    if os.environ.get("TIDELOG_WITHOUT_KCAT"):
        pytest.skip("TIDELOG_WITHOUT_KCAT is set: kcat can't be installed on this machine")
    need(shutil.which("kcat") is not None, "kcat (apt install kcat)")
