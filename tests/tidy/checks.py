"""The checks of tests/tidy as functions from text to findings.

Because they take text, tests can also call a check with text that has a planted problem. A finding
is one line: file, line, problem.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FUNCTION_LINES_MAX: Final = 70

# The words are joined from parts, so that this file does not contain them.
_BANNED: Final = (
    ("a machine's path", r"(?<![\w.])/(?:wor" + r"k|roo" + r"t|home/\w+|Use" + r"rs/\w+)/"),
    (
        "a registry's address",
        r"pypi\." + r"org|pythonhosted\." + r"org|repo\d?\.maven",
    ),
    ("a registry's address", r"crates\." + r"io|npmjs\." + r"(?:org|com)|deb\." + r"debian"),
    ("a pinned index", r"--(?:extra-)?index" + r"-url|--find" + r"-links"),
    ("who wrote it", r"(?i)\b(?:cla" + r"ude|chat" + r"gpt|co" + r"pilot|anthro" + r"pic)\b"),
    ("an unnumbered note", r"\b(?:FIX" + r"ME|XX" + r"X)\b|\bTO" + r"DO\b(?!\(#?\w+-?\d+\))"),
    ("a mock", r"unittest\." + r"mock|\bmon" + r"keypatch\.setattr\(tidelog"),
    ("a word of no meaning here", r"\bLS" + r"O\b|OFFSET_OFF" + r"SET"),
)


def project_files(*suffixes: str) -> list[Path]:
    """Return the project's text files with one of these suffixes, also untracked ones, sorted."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {ROOT / name for name in listed.splitlines() if name.endswith(suffixes)}
    return sorted(path for path in found if path.is_file())


def name_of(path: Path) -> str:
    """Return the path from the root of the checkout."""
    return str(path.relative_to(ROOT))


# ------------------------------------------------------------------------------------- Sizes


def long_functions(source: str) -> list[str]:
    """Return functions of more than 70 lines."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    if not _may_have_long_functions(source):
        return []  # parsing every file takes seconds
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, functions)]
    sizes = [(node, (node.end_lineno or node.lineno) - node.lineno + 1) for node in found]
    return [
        f"{node.lineno}: {node.name} has {size} lines, at most {FUNCTION_LINES_MAX}"
        for node, size in sizes
        if size > FUNCTION_LINES_MAX
    ]


def _may_have_long_functions(source: str) -> bool:
    """Whether a `def` has more than 70 lines before the next line of its own indentation."""
    first: list[tuple[int, int]] = []
    for number, line in enumerate([*source.split("\n"), "end"]):
        text = line.lstrip()
        # Closing brackets and comments don't end a function, although they may have its
        # indentation.
        if not text or text[0] in ")]#":
            continue
        indent = len(line) - len(text)
        while first and first[-1][1] >= indent:
            if number - first.pop()[0] > FUNCTION_LINES_MAX:
                return True
        if text.startswith(("def ", "async def ")):
            first.append((number, indent))
    return False


# ------------------------------------------------------------------------------------- Numbers


def numbers_named(source: str, names: set[str]) -> list[str]:
    """Return the constants and enum members with these names whose value is a number."""
    found: list[str] = []
    if names.isdisjoint(re.findall(r"[A-Z][A-Z0-9_]+", source)):
        return found  # parsing every file takes seconds
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                pass
            case ast.Assign(targets=[ast.Name(name)], value=value):
                pass
            case _:
                continue
        number = value.operand if isinstance(value, ast.UnaryOp) else value
        is_number = isinstance(number, ast.Constant) and type(number.value) is int
        if is_number and name.lstrip("_") in names:
            found.append(f"{node.lineno}: {name} is in tidelog.error_codes")
    return found


# ------------------------------------------------------------------------------------- Words


def banned_words(text: str) -> list[str]:
    """Return words that are not allowed in any file of the project."""
    present = [
        (what, pattern) for what, pattern in _BANNED if re.search(pattern, text, re.MULTILINE)
    ]
    return [
        f"{number}: {what}: {match[0]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in present
        for match in re.finditer(pattern, line)
    ]


_SKIP: Final = re.compile(r"\bmark\.(?:skip|xfail)|pytest\.(?:skip|xfail|importorskip)\(|SkipTest")


def own_skips(source: str) -> list[str]:
    """Return the lines that skip a test by other means than tests/worlds/needs.py."""
    lines = enumerate(source.splitlines(), 1)
    return [f"{number}: use tests.worlds.needs" for number, line in lines if _SKIP.search(line)]


# ------------------------------------------------------------------------------------- Links

_LINK: Final = re.compile(r"\[[^\]]*\]\(\s*([^)\s]+)\s*\)")
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def anchors(markdown: str) -> set[str]:
    """Return the anchors that GitHub creates for a document's headings."""
    lines = _FENCE.sub("", markdown).splitlines()
    titles = [line.lstrip("#").strip() for line in lines if re.match(r"#{1,6} ", line)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path, markdown: str) -> list[str]:
    """Return links to missing files or headings; web addresses are not checked."""
    text = _FENCE.sub("", markdown)
    targets = [link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    return [f"no such target: {target}" for target in targets if not _resolves(path, target)]


def unlinked_pages(front: Path, markdown: str, pages: Iterable[Path]) -> list[str]:
    """Return the pages, except `front`, to which the text of `front` has no link."""
    targets = {link.partition("#")[0] for link in _LINK.findall(_FENCE.sub("", markdown))}
    linked = {(front.parent / target).resolve() for target in targets}
    missing = sorted({page.resolve() for page in pages} - linked - {front.resolve()})
    home = front.parent.resolve()
    return [f"not linked: {page.relative_to(home).as_posix()}" for page in missing]


def first_paragraph(markdown: str) -> str:
    """Return the paragraph directly below a page's title, on one line; empty without one."""
    found = re.match(r"# [^\n]+\n\n(?![#|`])(.+?)(?:\n\n|\Z)", markdown, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def missing_documents(text: str) -> list[str]:
    """Return the documents that code names by their path but that don't exist."""
    named = sorted(set(re.findall(r"\bdocs/[\w/-]+\.md\b", text)))
    return [f"no such document: {name}" for name in named if not (ROOT / name).exists()]


def _resolves(path: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    file = (path.parent / name) if name else path
    if not file.exists():
        return False
    return not anchor or anchor in anchors(file.read_text(encoding="utf-8"))


# ------------------------------------------------------------------------- Differences, by test


def table_rows(markdown: str) -> Iterator[list[str]]:
    """Yield the cells of each row of each table, without headings and rules."""
    lines = markdown.splitlines()
    for number, line in enumerate(lines):
        is_heading = number + 1 < len(lines) and re.match(r"\|[\s:|-]+\|$", lines[number + 1])
        if line.startswith("|") and not is_heading and not re.match(r"\|[\s:|-]+\|$", line):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def missing_tests(markdown: str) -> list[str]:
    """Return rows whose last cell has no link `[x](../path.py "test_name")` to an existing test."""
    findings = []
    for cells in table_rows(markdown):
        links = re.findall(r'\]\(\.\./([\w/.-]+\.py) "([\w:]+)"\)', cells[-1])
        ids = [f"{path}::{name}" for path, name in links]
        if not ids:
            findings.append(f"no test named: {cells[0]}")
        findings += [f"no such test: {test_id}" for test_id in ids if not is_test(test_id)]
    return findings


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_test(test_id: str) -> bool:
    """Whether `path.py::name` or `path.py::Class::name` is defined."""
    path, *names = test_id.split("::")
    file = ROOT / path
    if not file.exists() or not names[-1].startswith("test_"):
        return False
    body = _parsed(file).body
    for name in names:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((n for n in body if isinstance(n, kinds) and n.name == name), None)
        if node is None:
            return False
        body = node.body
    return True


# ------------------------------------------------------------------- Names in backticks, in text

_TICKED: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_QUIET: Final = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


class CodeNames:
    """The modules of a package, and the names in the code of each of them.

    A name exists if it occurs in code or in a string that is not a docstring. A private name has to
    occur in the same file as the text.
    """

    def __init__(self, package: Path) -> None:
        self.package = package
        files = sorted(package.rglob("*.py"))
        self.modules = {_module_of(path, package): path for path in files}
        self.stems = {name[-1] for name in self.modules}
        parsed = [names_and_texts(path.read_text(encoding="utf-8")) for path in files]
        self.everywhere = frozenset[str]().union(*(names for names, _ in parsed))

    def stale_names(self, path: Path) -> list[str]:
        """Return the names in backticks that a file's text has, but the code does not have."""
        module = _module_of(path, self.package)
        names, texts = names_and_texts(path.read_text(encoding="utf-8"))
        return [
            f"{first + text[: ticked.start()].count(chr(10))}: names nothing: {ticked[0]}"
            for number, (first, text) in enumerate(texts)
            for ticked in _TICKED.finditer(text)
            if not self._is_known(ticked[1].removesuffix("()"), module, names, number == 0)
        ]

    def _is_known(
        self, name: str, module: tuple[str, ...], names: frozenset[str], at_top: bool
    ) -> bool:
        if name in names or re.search(r"(?:^|\.)[a-z]+[A-Z]", name):
            return True  # an existing name, or a Java name in camel case
        if re.fullmatch(r"_[A-Za-z]\w+", name):
            return False  # a private name of another file
        if re.fullmatch(r"[a-z_]+(/[a-z_]+)*(\.py|/)", name):
            homes = [self.package.joinpath(*module[1:length]) for length in range(len(module) + 1)]
            return any((home / name).exists() for home in [*homes, ROOT])
        if re.fullmatch(r"[A-Z]?[a-z]\w*(\.\w+)+", name):
            return name in self.everywhere or self._is_path(name.split("."), module, names)
        if re.fullmatch(r"[a-z]+(_[a-z\d]+)+", name):
            return name in self.everywhere - self.stems or bool(self._near(name, module))
        # A single word is taken as a module's name only in a file's docstring, because such
        # docstrings name modules near the file.
        return not at_top or name not in self.stems or bool(self._near(name, module))

    def _is_path(self, parts: list[str], module: tuple[str, ...], names: frozenset[str]) -> bool:
        near = self._near(parts[0], module)
        if near:
            return any(self._holds(home, parts[1:]) for home in near)
        return self.everywhere.issuperset(parts) and (parts[0][0].isupper() or parts[0] in names)

    def _holds(self, home: tuple[str, ...], parts: list[str]) -> bool:
        if not parts:
            return True
        if (*home, parts[0]) in self.modules:
            return self._holds((*home, parts[0]), parts[1:])
        names, _ = names_and_texts(self.modules[home].read_text(encoding="utf-8"))
        return parts[0] in names and self.everywhere.issuperset(parts)

    def _near(self, name: str, module: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the modules of this name inside `module`, beside it, or beside its packages."""
        near = [(*module[:length], name) for length in range(len(module), -1, -1)]
        return [path for path in near if path in self.modules]


def _module_of(path: Path, package: Path) -> tuple[str, ...]:
    *homes, last = path.relative_to(package.parent).with_suffix("").parts
    return tuple(homes) if last == "__init__" else (*homes, last)


@cache
def names_and_texts(source: str) -> tuple[frozenset[str], tuple[tuple[int, str], ...]]:
    """Return the names in code, and each docstring and comment with its first line's number.

    The docstring of the module is the first of the texts.
    """
    names, texts = set[str](), [(1, "")]
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append((token.start[0], token.string))
        elif token.type == tokenize.STRING and begins:
            text = (token.start[0], token.string)
            if len(texts) == 1 and not names:
                texts[0] = text
            else:
                texts.append(text)
        elif token.type == tokenize.NAME:
            names.add(token.string)
        else:
            names.update(re.findall(r"\w+", token.string))
            names.update(re.findall(r"\w+(?:\.\w+)+", token.string))
        if token.type not in _QUIET:
            begins = token.type == tokenize.NEWLINE
    return frozenset(names), tuple(texts)
