"""Docstrings and comments name only existing modules, functions and settings."""

from pathlib import Path

import pytest
from tests.tidy import checks

from tidelog.config import BROKER_CONFIGS, TOPIC_CONFIGS

PACKAGE = checks.ROOT / "src" / "tidelog"
TESTS = checks.ROOT / "tests"


def test_names_in_docstrings_and_comments_are_those_of_the_code() -> None:
    code, tests = checks.CodeNames(PACKAGE), checks.CodeNames(TESTS)
    code.everywhere |= {key.name for key in (*BROKER_CONFIGS, *TOPIC_CONFIGS)}  # fields in the code
    tests.everywhere |= code.everywhere
    findings = {
        path: package.stale_names(path)
        for package in (code, tests)
        for path in package.modules.values()
    }
    assert [
        f"{checks.name_of(path)}:{line}" for path, lines in findings.items() for line in lines
    ] == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Create a package `house` with the modules `house.rooms.hall` and `house.rooms.kitchen`."""
    rooms = tmp_path / "house" / "rooms"
    rooms.mkdir(parents=True)
    for home in (rooms.parent, rooms):
        (home / "__init__.py").write_text("")
    (rooms / "kitchen.py").write_text(
        'STOVE_KEY = "stove.gas.bar"\n_shelf = _SHELVES = 1\nclass Pan:\n    def lift(): ...\n'
    )
    return rooms.parent


def stale(package: Path, source: str) -> list[str]:
    hall = package / "rooms" / "hall.py"
    hall.write_text(source)
    return checks.CodeNames(package).stale_names(hall)


@pytest.mark.parametrize(
    "name",
    [
        "rooms.attic",
        "house.rooms.kitchen.Bowl",
        "kitchen.bowl",
        "rooms.kitchen.Pan.drop()",
        "old_kitchen.pan",
        "Bowl.lift",
        "kitchen.BigBowl",
        "kitchen.BOWL",
        "old_kitchen",
        "attic.py",
        "attic/",
        "_shelf",
        "_SHELVES",
    ],
)
def test_stale_name_is_found(package: Path, name: str) -> None:
    source = f'"""The hall."""\n\n\ndef walk():\n    """Walk.\n\n    See `{name}`.\n    """\n'
    assert stale(package, source) == [f"7: names nothing: `{name}`"]
    assert stale(package, f'"""The hall."""\nx = 1  # `{name}`\n') == [
        f"2: names nothing: `{name}`"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "rooms.kitchen",
        "house.rooms.kitchen.Pan",
        "kitchen.Pan.lift()",
        "Pan.lift",
        "stove.gas.bar",
        "own_name",
        "own_name.lift",
        "kitchen.py",
        "rooms/kitchen.py",
        "house.rooms",
        "NAME.rooms",
        "HashMap.putIfAbsent",
        "attic",
    ],
)
def test_name_of_the_code_passes(package: Path, name: str) -> None:
    assert stale(package, f'"""The hall."""\nown_name = 1  # `{name}`\n') == []


def test_word_at_the_top_of_a_file_is_a_module_within_reach(package: Path) -> None:
    (package / "cellar").mkdir()
    (package / "cellar" / "__init__.py").write_text("")
    (package / "cellar" / "wine.py").write_text("")
    assert stale(package, '"""Beside `kitchen`, over `cellar`; `attic` is any word."""\n') == []
    assert stale(package, '"""Over `wine`."""\n') == ["1: names nothing: `wine`"]
