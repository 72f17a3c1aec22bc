"""Finds functions repeated in several test files, and imports in the wrong direction."""

import ast
from collections import defaultdict
from collections.abc import Mapping

STATEMENTS_MIN = 4
WORLDS = ("tests/worlds/", "tests/faults/")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def repeated_functions(sources: Mapping[str, str]) -> list[str]:
    """Return functions of at least four statements that have equal bodies in several files.

    Docstrings, annotations, and the names of functions, arguments and local variables may differ.

    Args:
        sources: Path and text of each file.
    """
    places: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path, source in sources.items():
        # The comparison of an outer function also renames variables of its inner functions, so
        # inner functions are compared first.
        for node in reversed(list(ast.walk(ast.parse(source)))):
            if isinstance(node, Function) and (body := _body(node)):
                places[body].setdefault(path, f"{path}:{node.lineno} {node.name}")
    repeats = [sorted(found.values()) for found in places.values() if len(found) > 1]
    return sorted(" = ".join(found) for found in repeats)


def outward_imports(path: str, source: str) -> list[str]:
    """Return a shared helper's imports of test modules that are not shared helpers."""
    if not path.startswith(WORLDS):
        return []
    allowed = tuple(folder.replace("/", ".") for folder in WORLDS)
    modules = [
        (node.lineno, f"{node.module}.{alias.name}")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]
    return [
        f"{path}:{line} imports {name}"
        for line, name in modules
        if name.startswith("tests.") and not name.startswith(allowed)
    ]


def _body(function: Function) -> str:
    """Return the statements with uniform local names; empty for fewer than four statements."""
    statements = function.body[ast.get_docstring(function) is not None :]
    inner = [node for each in statements for node in ast.walk(each)]
    if sum(isinstance(node, ast.stmt) for node in inner) < STATEMENTS_MIN:
        return ""
    local = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    local |= {node.arg for node in inner if isinstance(node, ast.arg)}
    local |= {
        node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    local |= {node.name for node in inner if isinstance(node, Function)}
    return "\n".join(ast.unparse(_Renaming(local).visit(each)) for each in statements)


class _Renaming(ast.NodeTransformer):
    """Replaces local names by numbers in the order of their appearance."""

    def __init__(self, local: set[str]) -> None:
        self._local = local
        self._numbers: dict[str, str] = {}

    def _name(self, name: str) -> str:
        if name not in self._local:
            return name
        return self._numbers.setdefault(name, f"_{len(self._numbers)}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._name(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg, node.annotation = self._name(node.arg), None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self._name(node.name), None
        return self.generic_visit(node)
