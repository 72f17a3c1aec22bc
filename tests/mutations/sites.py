"""Finds small changes of the source, as replacements of text; the changed source still compiles.

The five kinds are: another comparison, another constant, a removed call, two swapped calls, and two
swapped arguments. Annotations, docstrings, messages and code that only a type checker reads are not
changed.
"""

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of the source.

    Attributes:
        path: File below the checkout.
        line: Line of the first changed byte, counted from 1.
        kind: `comparison`, `constant`, `dropped call`, `order of calls` or `swapped arguments`.
        start: Position of the first changed byte in the file's UTF-8.
        end: Position after the last changed byte.
        text: The new text.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """Name of the change, unique in one commit: file, position and kind."""
        return f"{self.path}:{self.line}:{self.start}:{self.kind.replace(' ', '-')}"

    def applied(self, source: bytes) -> bytes:
        """Return the file's content with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(root: Path, path: Path) -> list[Mutation]:
    """Return all changes of a file, in the order of their positions."""
    source = path.read_bytes()
    finder = _Finder(str(path.relative_to(root)), source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda one: (one.start, one.end, one.kind))


class _Finder(ast.NodeVisitor):
    """Collects the changes of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self.found: list[Mutation] = []

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, node: ast.expr | ast.stmt, kind: str, span: tuple[int, int], text: str) -> None:
        self.found.append(Mutation(self._path, node.lineno, kind, *span, text))

    # -- code that is not changed -----------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit only the value."""
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip the annotations."""

    def visit_If(self, node: ast.If) -> None:
        """Skip code that only a type checker reads."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._order(node.body)
            self._order(node.orelse)
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip the messages of errors."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip messages."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Skip types with arguments, such as `Mapping[str, int]`, which are not values."""
        if not (isinstance(node.value, ast.Name) and node.value.id[:1].isupper()):
            self.generic_visit(node)

    # -- changes ----------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        """Add a change of the comparison to another comparison."""
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            span = (self._span(left)[1], self._span(right)[0])
            between = self._source[slice(*span)].decode()
            old = _symbol(operator)
            if between.strip() == old:
                self._add(
                    node, "comparison", span, between.replace(old, _COMPARISONS[type(operator)])
                )
            left = right
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add a change of an integer to the next integer, or of a truth value to its opposite."""
        if isinstance(node.value, bool):
            self._add(node, "constant", self._span(node), str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, "constant", self._span(node), str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        """Add a swap of two arguments."""
        plain = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
        if len(plain) >= 2 and len(plain) == len(node.args):
            first, second = plain[:2]
            if ast.dump(first) != ast.dump(second) and _func(node) not in ("isinstance", "cast"):
                start, end = self._span(first)[0], self._span(second)[1]
                between = self._source[self._span(first)[1] : self._span(second)[0]].decode()
                text = f"{self._text(second)}{between}{self._text(first)}"
                self._add(node, "swapped arguments", (start, end), text)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Add the removal of a call whose value is unused."""
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            self._add(node, "dropped call", self._span(node), "pass")
        if not isinstance(value, ast.Constant):
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit a node's children; in a body of statements, also add swaps of neighboring calls."""
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.If):
            self._order(body)
        super().generic_visit(node)

    def _order(self, body: Sequence[ast.stmt]) -> None:
        """Add swaps of two consecutive calls whose values are unused."""
        for first, second in itertools.pairwise(body):
            if _is_call(first) and _is_call(second) and ast.dump(first) != ast.dump(second):
                (start, until), (since, end) = self._span(first), self._span(second)
                between = self._source[until:since].decode()
                text = f"{self._text(second)}{between}{self._text(first)}"
                self._add(first, "order of calls", (start, end), text)


def _is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _func(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _symbol(operator: ast.cmpop) -> str:
    shown = ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")]))
    return shown.removeprefix("a ").removesuffix(" b")


def modules(root: Path, packages: Sequence[str]) -> Iterator[Path]:
    """Return the files of packages, in a fixed order."""
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))
