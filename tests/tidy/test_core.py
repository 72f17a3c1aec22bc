"""The core, which `./run test` runs: its lists name existing tests, and its selection is stable."""

from pathlib import Path

import pytest
from tests import core

ROOT = Path(__file__).parents[2]


REPLACING = sorted({name for names in core.LEFT_OUT.values() for name in names})
# Rules for maintainers, which no user can notice.
FOR_MAINTAINERS = "tests/tidy/"


@pytest.mark.parametrize("name", [*core.CASES, *core.LEFT_OUT, *REPLACING])
def test_each_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert (ROOT / path).exists()
    last = function.rpartition("::")[2].partition("[")[0]
    assert not last or f"def {last}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("name", core.LEFT_OUT)
def test_a_test_that_is_left_out_has_replacing_tests_in_the_core(name: str) -> None:
    names = core.LEFT_OUT[name]
    assert bool(names) != name.startswith(FOR_MAINTAINERS)
    assert core.chosen(names) == set(names), "left out, too"


def test_each_test_function_keeps_as_many_cases_as_its_folder_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        core,
        "CASES",
        {
            "tests/a": 2,
            "tests/a/b": 1,
            "tests/a/b/test_all.py": 99,
            "tests/ab/test_x.py::test_y": 3,
        },
    )
    monkeypatch.setattr(
        core, "LEFT_OUT", {"tests/c/test_long.py": (), "tests/c/test_d.py::test_e": ()}
    )
    cases = [
        *(f"tests/a/test_x.py::test_y[{n}]" for n in range(9)),
        "tests/a/test_x.py::test_z",
        *(f"tests/a/b/test_x.py::test_y[{n}]" for n in range(9)),
        *(f"tests/a/b/test_all.py::test_y[{n}]" for n in range(9)),
        *(f"tests/ab/test_x.py::test_y[{n}]" for n in range(9)),
        *(f"tests/ab/test_x.py::test_yy[{n}]" for n in range(2)),
        "tests/c/test_long.py::test_y",
        "tests/c/test_d.py::test_e[1]",
        "tests/c/test_d.py::test_ee",
    ]
    found = core.chosen(cases)
    counts: dict[str, int] = {}
    for name in found:
        counts[name.partition("[")[0]] = counts.get(name.partition("[")[0], 0) + 1
    assert counts == {
        "tests/a/test_x.py::test_y": 2,
        "tests/a/test_x.py::test_z": 1,
        "tests/a/b/test_x.py::test_y": 1,
        "tests/a/b/test_all.py::test_y": 9,
        "tests/ab/test_x.py::test_y": 3,
        "tests/ab/test_x.py::test_yy": 2,
        "tests/c/test_d.py::test_ee": 1,
    }
    assert core.chosen(cases) == found
    assert core.chosen(cases[::-1]) == found
