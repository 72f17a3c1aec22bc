"""The explanation of a failed comparison: in CI too, it is short and names the first difference."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.tidy.checks import ROOT
from tests.worlds.differences import first_difference

# Pytest's diff of these values takes minutes.
LARGE = """
import random

def test_large():
    data = random.Random(1).randbytes(1_000_000)
    files = {"first": b"", "second": [data, 7]}
    assert files == {"first": b"", "second": [data[:700_000] + b"x" + data[700_001:], 7]}

def test_small():
    assert [1, 2] == [1, 3]
"""
LIMIT_S = 120


@dataclass
class Row:
    name: str
    times: list[int]
    cost: int = field(default=0, compare=False)


def test_large_values_are_explained_by_the_first_difference(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(LARGE)
    (tmp_path / "pytest.ini").touch()
    kept = {name: text for name, text in os.environ.items() if name[:7] != "PYTEST_"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.worlds.differences"],
        cwd=tmp_path,
        env={**kept, "CI": "true", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert "2 failed" in done.stdout
    assert "['second'][0] from 700000: b" in done.stdout
    assert "Full diff" in done.stdout, "of the small values"
    assert len(done.stdout) < 5_000


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (b"abc", b"abx", "values from 2: b'c' != b'x'"),
        ("abc", "abcd", "values from 3: '' != 'd' (lengths 3 and 4)"),
        ([1, [2, 3]], [1, [2, 4]], "[1][1]: 3 != 4"),
        ((1, 2), (1,), "values: only left [1], only right nothing"),
        ({"a": 1, "c": 2}, {"b": 1, "c": 2}, "values: only left ['a'], only right ['b']"),
        ({1, 2}, {2, 3}, "values: only left {1}, only right {3}"),
        (Row("a", [1, 2]), Row("a", [1, 3], 9), "['times'][1]: 2 != 3"),
        ([1], (1,), "values: [1] != (1,)"),
        ("x" * 300, None, f"values: '{'x' * 199}... (302 characters) != None"),
    ],
)
def test_the_first_difference(left: object, right: object, expected: str) -> None:
    assert first_difference(left, right) == expected
