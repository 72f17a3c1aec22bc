"""Mutations of `./run mutations`: all kinds of changes; each changed file is valid Python."""

import ast
from pathlib import Path

from tests.mutations.sites import mutations

SOURCE = '''
"""Text with 1 == 2."""
LIMIT: Final[Literal[7]] = 5

def roll(log: "Log", size: int = 3) -> bool:
    """Says 4 < 5."""
    log.sync()
    log.close(True)
    if size <= LIMIT and log not in (1, log):
        raise ValueError("é", size < 2)
    match size:
        case 4:
            return move(log, *log, "é", 9) is None
    return copy(size, log, key="é")
'''


def changes(tmp_path: Path) -> dict[str, set[str]]:
    """Return the changed lines of each mutation, by kind."""
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    before = SOURCE.encode()
    found: dict[str, set[str]] = {}
    for one in mutations(tmp_path, path):
        after = one.applied(before)
        ast.parse(after)
        lines = set(after.decode().splitlines()) - set(SOURCE.splitlines())
        found.setdefault(one.kind, set()).add(" / ".join(sorted(line.strip() for line in lines)))
    return found


def test_each_kind_of_change_and_nothing_else(tmp_path: Path) -> None:
    assert changes(tmp_path) == {
        "constant": {
            "LIMIT: Final[Literal[7]] = 6",
            'def roll(log: "Log", size: int = 4) -> bool:',
            "log.close(False)",
            "if size <= LIMIT and log not in (2, log):",
            "case 5:",
            'return move(log, *log, "é", 10) is None',
        },
        "comparison": {
            "if size < LIMIT and log not in (1, log):",
            "if size <= LIMIT and log in (1, log):",
            'return move(log, *log, "é", 9) is not None',
        },
        "dropped call": {"pass"},
        "order of calls": {""},
        "swapped arguments": {'return copy(log, size, key="é")'},
    }


def test_names_of_mutations_are_unique_and_stable(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    names = [one.name for one in mutations(tmp_path, path)]
    assert len(set(names)) == len(names)
    assert names == [one.name for one in mutations(tmp_path, path)]
