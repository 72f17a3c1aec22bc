"""The tests that `./run mutations` runs for a change: `tests.mutations.trial.Reach`."""

from collections.abc import Mapping
from pathlib import Path

import coverage
import pytest
from tests.mutations.sites import Mutation
from tests.mutations.trial import Reach

LOG = "src/tidelog/storage/log.py"
KERNEL = "src/tidelog/record/kernels/sums.py"
USER = "src/tidelog/record/columns.py"
SOURCES = {
    LOG: (
        "LIMIT = 5\n\ndef roll(size):\n    return size > LIMIT\n\n"
        "def close():\n    return 2\n\ndef open():\n    return 3\n"
    ),
    KERNEL: "def add(a, b):\n    return a + b\n",
    USER: "from tidelog.record.kernels import sums\n\ndef total(a):\n    return sums.add(a, a)\n",
}
NEAR = "tests/unit/storage/test_log.py::test_roll"
FAR = "tests/unit/cli/test_read.py::test_read"
SLOW = "tests/property/test_model.py::test_model"
CLOSE = "tests/unit/storage/test_log.py::TestClose::test_close"
TOTAL = "tests/unit/record/test_columns.py::test_total"
# For each test, the lines that it runs. The key "" has the lines that run only while modules are
# imported.
RUNS: Mapping[str, Mapping[str, list[int]]] = {
    "": {LOG: [1, 3, 6, 9], KERNEL: [1], USER: [1, 3]},
    NEAR: {LOG: [4]},
    FAR: {LOG: [4]},
    SLOW: {LOG: [4]},
    CLOSE: {LOG: [7]},
    TOTAL: {USER: [4]},
}


@pytest.fixture
def reach(tmp_path: Path) -> Reach:
    """Record `RUNS` as coverage, and seconds of tests; return the `Reach` that reads both."""
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    folder = tmp_path / ".cache/coverage"
    folder.mkdir(parents=True)
    data = coverage.CoverageData(str(folder / "data"))
    for test, lines in RUNS.items():
        data.set_context(test)
        data.add_lines(lines)
    data.write()
    # The two cases of NEAR together take longer than FAR.
    (folder / "seconds").write_text(f"0.4 {NEAR}\n0.4 {NEAR}\n0.5 {FAR}\n9 {SLOW}\n0.1 {CLOSE}\n")
    return Reach(tmp_path)


def names(reach: Reach, path: str, line: int) -> list[str]:
    return reach.tests(Mutation(path, line, "constant", 0, 1, "6"), line)


def test_tests_of_the_package_run_first_and_fast_ones_before_slow_ones(reach: Reach) -> None:
    assert names(reach, LOG, 4) == [NEAR, FAR, SLOW]


def test_a_line_outside_functions_is_reached_by_all_tests_of_its_module(reach: Reach) -> None:
    assert names(reach, LOG, 1) == [CLOSE, NEAR, FAR, SLOW]


def test_a_kernel_is_reached_by_the_tests_of_the_modules_that_import_it(reach: Reach) -> None:
    assert names(reach, KERNEL, 2) == [TOTAL]


def test_a_line_that_no_test_runs(reach: Reach) -> None:
    assert names(reach, LOG, 10) == []
