"""Tells coverage which test function runs; `./run coverage` loads this module into pytest.

Processes that a test starts read the function's name from their environment (`[tool.coverage.run]`
in pyproject.toml). `.cache/coverage/seconds` gets a line with the seconds of each function, in the
order in which the functions ran.
"""

import os
import time
from collections.abc import Generator

import coverage
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that measure memory or check the loaded modules, because coverage changes both."""
    for item in items:
        if item.get_closest_marker("unmeasured"):
            item.add_marker(pytest.mark.skip(reason="coverage takes memory and loads modules"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attribute the lines that run during this test to its function."""
    function, _, _ = item.nodeid.partition("[")
    os.environ["TIDELOG_TEST"] = function
    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.switch_context(function)
    began = time.monotonic()
    result = yield
    with (item.config.rootpath / ".cache/coverage/seconds").open("a") as out:
        out.write(f"{time.monotonic() - began:.4f} {function}\n")
    return result
