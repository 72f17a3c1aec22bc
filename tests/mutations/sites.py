"""Where the source can be changed so that it still runs: one change each, as a piece of text.

Five kinds: another comparison, another constant, a call that is left out, two calls in the other
order, two arguments in the other order. Annotations, docstrings, messages and what only a type
checker reads are left as they are.
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
    """One change.

    Attributes:
        path: File below the checkout.
        line: Where it begins, counted from 1.
        kind: `comparison`, `constant`, `dropped call`, `order of calls` or `swapped arguments`.
        start: Place of the first byte that changes, in the file's UTF-8.
        end: Place behind the last one.
        text: What stands there instead.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """Names it in one commit: file, place and kind."""
        return f"{self.path}:{self.line}:{self.start}:{self.kind.replace(' ', '-')}"

    def applied(self, source: bytes) -> bytes:
        """The file's content with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(root: Path, path: Path) -> list[Mutation]:
    """All changes of a file, in order of their places."""
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

    # -- what is left as it is --------------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The value only."""
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """No annotation."""

    def visit_If(self, node: ast.If) -> None:
        """Not what a type checker alone reads."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._order(node.body)
            self._order(node.orelse)
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """No message of an error."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """No message."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Types with brackets are no values."""
        if not (isinstance(node.value, ast.Name) and node.value.id[:1].isupper()):
            self.generic_visit(node)

    # -- changes ----------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        """Another comparison."""
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
        """A number that is one more, the other truth."""
        if isinstance(node.value, bool):
            self._add(node, "constant", self._span(node), str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, "constant", self._span(node), str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        """Two arguments in the other order."""
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
        """A call whose value nobody takes is left out."""
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            self._add(node, "dropped call", self._span(node), "pass")
        if not isinstance(value, ast.Constant):
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Look at a body's calls in pairs, too."""
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.If):
            self._order(body)
        super().generic_visit(node)

    def _order(self, body: Sequence[ast.stmt]) -> None:
        """Two calls, one behind the other, whose values nobody takes."""
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
    """The files of packages, in a fixed order."""
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))
