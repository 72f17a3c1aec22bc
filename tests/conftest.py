"""Configures all tests: how many examples hypothesis tries, and which tests run or are skipped.

Profiles of hypothesis: `quick` is the default. `ci` tries fixed examples, which depend only on the
commit, so that a new failure is due to a new commit. `sweep` (`./run sweep`) tries many more
examples, new ones in each run. The environment variable `TIDELOG_HYPOTHESIS` names another profile.
A failure prints a line with `@reproduce_failure`.
"""

import gc
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests import core
from tests.worlds import class_archives
from tests.worlds.differences import pytest_assertrepr_compare
from tests.worlds.kafka.home import Unavailable, kafka_home
from tests.worlds.kafka.oracle import kafka_jars, kafka_oracle
from tests.worlds.memory_folder import quick_path
from tests.worlds.needs import REQUIRED, need
from tests.worlds.waiting import until_kernels_loaded

from tidelog.gc_pauses import collection_paused, take_as_old

# Fixtures and a hook for the tests of all folders. `kafka_oracle` starts one JVM with Kafka's
# classes per test process.
__all__ = ["kafka_jars", "kafka_oracle", "pytest_assertrepr_compare", "quick_path"]

# Examples have no deadline, because on two shared cores slow examples would exceed any deadline by
# chance. pytest-timeout ends tests that hang.
settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True, database=None)
settings.register_profile("core", settings.get_profile("quick"), max_examples=25)
settings.register_profile("sweep", settings.get_profile("quick"), max_examples=2_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--sweep` (run slow tests, too), `--core`, and `--seeds` (run a part of a long sweep)."""
    parser.addoption(
        "--sweep", action="store_true", help="run the slow tests too, with many more examples"
    )
    parser.addoption(
        "--core", action="store_true", help="run only the tests that tests/core.py selects"
    )
    parser.addoption(
        "--seeds",
        metavar="FROM:TO",
        help="run only these seeds of the sweep's simulated histories (TO is exclusive)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis's profile; with `--core`, let tests simulate crashes at fewer points."""
    settings.load_profile(_profile(config))
    if config.getoption("core"):
        core.begin()


def _profile(config: pytest.Config) -> str:
    if named := os.environ.get("TIDELOG_HYPOTHESIS"):
        return named
    for option in ("sweep", "core"):
        if config.getoption(option):
            return option
    return "ci" if os.environ.get("CI") else "quick"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause the garbage collector while pytest collects tests: it would scan a million objects."""
    with collection_paused():
        result = yield
        take_as_old()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests outside the sweep, and with `--core` also all tests outside the core."""
    if config.getoption("--sweep"):
        return
    kept = [item for item in items if "slow" not in item.keywords]
    if config.getoption("--core"):
        names = core.chosen([item.nodeid for item in kept])
        kept = [item for item in kept if item.nodeid in names]
    left = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs Java if Java is missing, unless the run requires Java."""
    if "spark" in item.keywords or "kafka" in item.keywords:
        need(_has_java(), "Java 17 or newer on the PATH or in JAVA_HOME")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fetch Apache Kafka's jars if required, so that no test's time limit includes the download.

    If fetching fails, the tests that need the jars report it. Before a run in several processes,
    also create archives of Java's classes, once per checkout.
    """
    if hasattr(session.config, "workerinput"):
        return
    if os.environ.get(REQUIRED):
        with suppress(Unavailable):
            kafka_home()
    if session.config.getoption("numprocesses", None):
        class_archives.main()


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Wait until kernels are loaded, and collect garbage, so that neither disturbs the next test.

    The first broker of a process loads kernels in a thread that outlives the broker, while the next
    test may measure memory or patch functions. Sockets that Spark has left open are reported only
    when the garbage collector finds them, which could be during another test.
    """
    until_kernels_loaded()
    if _may_leave_open(item) and not (nextitem is not None and _may_leave_open(nextitem)):
        gc.collect()


def _may_leave_open(item: pytest.Item) -> bool:
    """Whether the test uses a library (Spark, Jupyter) that may leave sockets open."""
    marks = item.iter_markers("filterwarnings")
    return any("ResourceWarning" in str(given) for mark in marks for given in mark.args)


@cache
def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        return False
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return version is not None and int(version[1]) >= 17
