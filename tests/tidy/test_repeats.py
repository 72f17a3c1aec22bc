"""A helper that several tests share is in one file, in tests/worlds if several folders use it."""

import pytest
from tests.tidy import checks
from tests.tidy.repeats import outward_imports, repeated_functions

SOURCES = {
    checks.name_of(path): path.read_text(encoding="utf-8")
    for path in checks.project_files(".py")
    if path.is_relative_to(checks.ROOT / "tests")
}


def test_no_function_stands_in_two_files() -> None:
    assert repeated_functions(SOURCES) == [], "keep one, and import it: tests/worlds"


def test_shared_helpers_import_no_folder_of_tests() -> None:
    found = [line for path, source in SOURCES.items() for line in outward_imports(path, source)]
    assert found == []


# ---------------------------------------------------------- the checks find planted problems

FIRST = '''
def fill(log, count: int) -> None:
    """A docstring."""
    for number in range(count):
        log.append(number)
    log.roll()
    log.flush()
'''


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        (FIRST, True),
        (FIRST.replace("log", "it").replace("number", "n").replace("fill", "put"), True),
        (FIRST.replace('    """A docstring."""\n', "").replace(": int", ""), True),
        ("class Log:\n" + FIRST.replace("\n", "\n    "), True),
        (FIRST.replace("log.roll", "log.close"), False),
        (FIRST.replace("    log.roll()\n", ""), False),
    ],
)
def test_a_function_that_stands_twice_is_found(other: str, is_found: bool) -> None:
    shorter = FIRST.replace("    log.roll()\n", "")
    assert repeated_functions({"a.py": FIRST, "b.py": FIRST.replace("range", "iter")}) == []
    assert bool(repeated_functions({"a.py": FIRST, "c.py": other})) is is_found
    assert repeated_functions({"a.py": shorter, "b.py": shorter}) == []


def test_an_import_from_a_folder_of_tests_is_found() -> None:
    source = "from tests.worlds import waiting\nfrom tests.server.test_tls import is_let_in\n"
    assert outward_imports("tests/worlds/a.py", source) == [
        "tests/worlds/a.py:2 imports tests.server.test_tls.is_let_in"
    ]
    assert outward_imports("tests/server/a.py", source) == []
