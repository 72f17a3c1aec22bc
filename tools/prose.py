"""Checks the prose of docs, docstrings, comments and messages.

`./run check` runs this script on all files; arguments limit it to the named files. proselint
searches for the patterns of tidelog's checks (`CHECKS`) in the text that people read: Markdown
without code, link targets and HTML; docstrings and comments of Python, and in src, examples and
bench also messages and help texts; texts and code of notebooks; comments and messages of shell
scripts. Spaces replace all other text, so that lines have the same numbers as in the file. Columns
are the same too, except in notebooks. docs/decisions/0030-prose-by-proselint.md has the reasons.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from proselint.registry.checks import Check, types
from proselint.registry.checks.engine import Fancy, RegexOptions
from proselint.tools import LintFile

ROOT: Final = Path(__file__).resolve().parents[1]

# Directories and files that are checked. The file with the accepted reasons of the corpus
# (CHANGES.md) is excluded, because the reasons stay as they were written.
_ROOTS: Final = (
    *("src", "tests", "tools", "bench", "examples", "docs", "run", ".ci/run", ":(glob)*.md"),
    ":(exclude)tests/corpus/CHANGES.md",
)

# Folders whose strings are messages and help texts for users.
_MESSAGES: Final = ("src/", "examples/", "bench/")

# Matches comments that are directives for tools.
_DIRECTIVE: Final = re.compile(r"# ?(?:noqa|type:|mypy:|ruff:)")


class Style(NamedTuple):
    """A check: patterns of sentences that are hard to read.

    Attributes:
        name: Name of the check.
        patterns: Regular expressions of Python.
        instead: Advice for the writer.
        ignore_case: Whether the patterns ignore case.
    """

    name: str
    patterns: tuple[str, ...]
    instead: str
    ignore_case: bool = True

    @property
    def pattern(self) -> str:
        """All patterns joined into one.

        A phrase may continue on the next line, even in a comment.
        """
        joined = "|".join(self.patterns)
        return joined.replace(" ", r"[\s#]+") if self.ignore_case else joined


# Beginning of a docstring, a comment, a line, a list item or a row of a table.
_BEGINNING: Final = r'(?:"""|(?<=\n)(?:[ \t]*# |- |\d\. |\| )?)'

STYLES: Final = (
    Style(
        "beginning",
        (_BEGINNING + r"(?:What|Who|Whoever|Those|That which|Likewise|How|Where)\b",),
        "begin with a noun phrase or a verb that names the thing",
        ignore_case=False,
    ),
    Style(
        "subject",
        (
            r"\b(?:whoever|somebody|anybody|nobody)\b",
            r"\bwho (?:has|asks|sends|reads|wants|uses)\b",
        ),
        "name the subject: the client, the process, the reader",
    ),
    Style(
        "clock", (r"\brecord times?\b",), "write timestamp, the name of a time on the record clock"
    ),
    Style("again", (r"\banew\b",), "write 'again', or a verb: recreate, rebuild, replan"),
    Style("likewise", (r"\blikewise\b",), "repeat what holds, or say 'too' with its subject"),
    Style(
        "told",
        (
            r"\b(?:is|are|was|were|be|being|been) told\b",
            r"\btells? (?:of|what|how|where|whether)\b",
        ),
        "write returns, shows, reports or states, with the subject",
    ),
    Style(
        "said",
        (
            r"\bwhat (?:it|they|he|she|\w+) says?\b",
            r"\b(?:is|are|was) said\b",
            r"\bsaid (?:of|about)\b",
        ),
        "write states, returns or contains, or name the value",
    ),
    Style(
        "existence",
        (
            r"\bthat there (?:is|are|was|were)\b",
            r"\b(?:all|what) (?:that )?(?:is|was) there\b",
            r"\bwhere there (?:is|are) (?:none|no|one|some)\b",
        ),
        "write 'existing', 'all', 'if there is', or 'without'",
    ),
    Style(
        "measure",
        (
            r"\bso (?:many|much|long|often) (?:of|as these|at most|after|before)\b",
            r"\b(?:waits?|for) so long\b",
        ),
        "give the number, the limit or the name of the value",
    ),
    Style(
        "position",
        (
            r"\bstands? (?:in|at|on|beside|behind|below|above|there|alone|twice)\b",
            r"\blies? (?:beside|behind|there)\b",
        ),
        "write 'is in', 'is after' or the verb of the field",
    ),
    Style(
        "comparison",
        (
            r"\bheld against\b",
            r"\bhold(?:s|ing)? (?:\w+ ){1,3}against\b",
            r"\b(?:is|are|was|were) taken for\b",
        ),
        "write 'compared with' or 'treated as'",
    ),
    Style(
        "attention",
        (
            r"\b(?:is|are|was|were|be|been) looked at\b",
            r"\bheeds?\b",
            r"\bheeded\b",
            r"\bobeys?\b",
            r"\bobeyed\b",
        ),
        "write checked, read, used or applied",
    ),
    Style(
        "repeat",
        (r"\b(?:comes?|came) again\b", r"\bfor ever\b", r"\bbeforehand\b"),
        "write 'is repeated', 'forever' or 'before'",
    ),
    Style("repair", (r"\bmend(?:s|ed|ing)?\b",), "write fix, fixed, repair or repaired"),
    Style(
        "british",
        (
            r"\b(?:neighbour|behaviour|colour|favour|honour)\w*",
            r"\b(?:summaris|recognis|optimis|organis|initialis|normalis|analys)(?:e|ed|es|ing)\b",
        ),
        "use American spelling",
    ),
)

CHECKS: Final = tuple(
    Check(
        check_type=types.ExistenceSimple(pattern=style.pattern),
        engine=Fancy(RegexOptions(case_insensitive=style.ignore_case)),
        path=f"tidelog.{style.name}",
        message=f"'{{}}': {style.instead}",
    )
    for style in STYLES
)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def markdown_prose(text: str) -> str:
    """Return a Markdown page with code, link targets and HTML replaced by spaces."""
    lines = text.splitlines(keepends=True)
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in {"fence", "code_block", "html_block"} and token.map is not None:
            for number in range(*token.map):
                lines[number] = _blank(lines[number])
    shown = "".join(lines)
    for pattern in (r"<!--.*?-->", r"(`+)(?:(?!\1).)+?\1", r"(?<=\])\([^()\s]*(?: \"[^\"]*\")?\)"):
        shown = re.sub(pattern, lambda found: _blank(found[0]), shown, flags=re.DOTALL)
    return shown


class _Mask:
    """Copy of a text with all characters replaced by spaces; pieces can be restored."""

    def __init__(self, text: str) -> None:
        self.lines: Final = text.splitlines(keepends=True)
        self._cells: Final = [list(_blank(line)) for line in self.lines]

    def show(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Restore the text between two positions (line from 1, column from 0 in characters)."""
        for number in range(start[0] - 1, end[0]):
            line = self.lines[number]
            first = start[1] if number == start[0] - 1 else 0
            last = end[1] if number == end[0] - 1 else len(line)
            self._cells[number][first:last] = line[first:last]

    def column(self, line: int, byte: int) -> int:
        """Return the column in characters for a column in bytes of UTF-8."""
        return len(self.lines[line - 1].encode()[:byte].decode())

    def __str__(self) -> str:
        return "".join(map("".join, self._cells))


def _constants(tree: ast.AST, *, messages: bool) -> Iterator[ast.Constant]:
    """Yield the docstrings and, with `messages`, all strings of three words or more."""
    for node in ast.walk(tree):
        if messages and isinstance(node, ast.Constant) and isinstance(node.value, str):
            if len(node.value.split()) > 2:
                yield node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def python_prose(text: str, *, messages: bool = False) -> str:
    """Return a module with all but docstrings, comments and messages replaced by spaces."""
    mask = _Mask(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            mask.show(token.start, token.end)
    for node in _constants(ast.parse(text), messages=messages):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        # Columns of the syntax tree are in bytes.
        mask.show((first[0], mask.column(*first)), (last[0], mask.column(*last)))
    return re.sub(r"(`+)[^`\n]+\1", lambda found: _blank(found[0]), str(mask))


def shell_prose(text: str) -> str:
    """Return a script with all but comments, here-documents and messages replaced by spaces.

    A message is a text in quotes with three words or more, within a line.
    """
    shown = []
    end = ""  # the line that ends a here-document
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("#") or (end and line.strip() != end):
            shown.append(line)
            continue
        begins = None if end else re.search(r"<<-?\s*['\"]?(\w+)", line)
        end = begins[1] if begins else ""
        cells = list(_blank(line))
        for found in re.finditer(r"\"[^\"]*\"|'[^']*'", line):
            if len(found[0].split()) > 2:
                cells[slice(*found.span())] = found[0]
        shown.append("".join(cells))
    return "".join(shown)


def notebook_prose(text: str) -> str:
    """Return the prose of a notebook's texts and code, in the lines of the notebook's file.

    The file has one line for each line of a cell.
    """
    lines = text.splitlines()
    shown = [""] * len(lines)
    at = 0
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if not source:
            continue
        at = lines.index('   "source": [', at) + 1
        prose = markdown_prose if cell["cell_type"] == "markdown" else python_prose
        own = prose(source).split("\n")
        shown[at : at + len(own)] = own
    return "\n".join(shown)


def prose_of(name: str, text: str) -> str:
    """Return the prose of a file, at its original lines."""
    if name.endswith(".md"):
        return markdown_prose(text)
    if name.endswith(".py"):
        return python_prose(text, messages=name.startswith(_MESSAGES))
    if name.endswith(".ipynb"):
        return notebook_prose(text)
    return shell_prose(text)


def problems(name: str, text: str) -> Iterator[str]:
    """Yield a line for each match in a file: its position, the phrase and the advice."""
    is_book = name.endswith(".ipynb")
    if not is_book and not any(True for check in CHECKS for _ in check.check(f"\n{text}")):
        return  # most files have no match, so they need not be parsed
    file = LintFile(name, prose_of(name, text))
    for check in CHECKS:
        for result in check.check(file.content):
            line, _ = file.line_col_of(result.span[0])
            yield f"{name}:{line}: {' '.join(result.message.split())}"


def files() -> list[str]:
    """Return the names of the checked files in git's index."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *_ROOTS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [name for name in listed if name.endswith((".md", ".py", ".ipynb", "run"))]


def main(arguments: Sequence[str]) -> int:
    """Print the problems of the named files, or of all files; return 1 if there are any."""
    count = 0
    for name in arguments or files():
        for line in problems(name, (ROOT / name).read_text(encoding="utf-8")):
            print(line)
            count += 1
    if count:
        print(f"prose: {count} phrases to rewrite", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
