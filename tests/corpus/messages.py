"""Lists the messages that users can cause, and messages in the source that no test contains.

The list has each message of the kept entries once, with the entries that cause it:

- lines of stderr with a label (`error:`, `warning:`, `note:`), the `hint:` lines below them, and
  lines without a label;
- log lines of a broker or a standby, with their level;
- findings of `tidelog doctor` and the remedy of each;
- typed errors of the library, of Spark and of the control channel, with the name of their class;
- error texts in responses to Kafka clients.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.corpus.book import Entry

ENTRIES_SHOWN_MAX: Final = 3
SOURCE: Final = Path(__file__).parents[2] / "src" / "tidelog"
TESTS: Final = Path(__file__).parents[1]

_STDERR: Final = re.compile(r" *! ?(.*)")
_HINT: Final = "hint: "
_LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT\S+ (info|warning|error) (.+)")
_TYPED: Final = re.compile(r"(?:= raised | *(?:! )?|.*\braises )([A-Z][A-Za-z]+): (.+)")
_WIRE_TEXT: Final = re.compile(r'< .*message: (".+")')
_CONTROL_TEXT: Final = re.compile(r"< '(\{\"version\":\d+,\"error\":.*\})'")
_FINDING: Final = re.compile(r'\| (\{"severity": .*\})')

# Functions that print or log a message.
_PRINTING: Final = frozenset({"fail", "hint", "note", "report", "say", "info", "warning", "error"})
_NOT_FOR_USERS: Final = frozenset({"AssertionError", "NotImplementedError", "AttributeError"})
# Shorter texts are not compared: they are only words between two values.
TEXT_CHARS_MIN: Final = 12


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A message for users.

    Attributes:
        label: `error`, `warning`, `note` or `hint`, `stderr` for a line without a label, `log`
            with the level, `finding` with the severity, `response`, or the class of a typed error.
        text: The message, on one line.
        hints: Texts of the `hint:` lines below it; the remedy of a finding.
    """

    label: str
    text: str
    hints: tuple[str, ...] = ()

    def lines(self, entries: Iterable[str]) -> Iterator[str]:
        """Yield the message, its hints, and the names of the entries that cause it."""
        yield f"{self.label}: {self.text}"
        yield from (f"  {_HINT}{hint}" for hint in self.hints)
        names = sorted(entries)
        more = len(names) - ENTRIES_SHOWN_MAX
        shown = ", ".join(names[:ENTRIES_SHOWN_MAX])
        yield f"    {shown}{f' and {more} more' if more > 0 else ''}"


def list_messages(entries: Iterable[Entry], typed: frozenset[str]) -> dict[Message, set[str]]:
    """Return each message, sorted, with the names of the entries that cause it.

    Args:
        entries: Kept entries.
        typed: Names of the classes of typed errors (`typed_errors`).
    """
    found: defaultdict[Message, set[str]] = defaultdict(set)
    for entry in entries:
        for message in _messages_of(entry.text.split("\n"), typed):
            found[message].add(entry.name)
    return dict(sorted(found.items()))


def typed_errors(surface: Iterable[str]) -> frozenset[str]:
    """Return the names of the errors' classes, from the names of the entries of `surface`."""
    page = "surface/errors/"
    own = (name.removeprefix(page) for name in surface if name.startswith(page))
    return frozenset(own) | {"OSError", "TypeError", "ValueError"}


def _messages_of(lines: list[str], typed: frozenset[str]) -> Iterator[Message]:
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if (stderr := _STDERR.fullmatch(line)) and stderr[1]:
            hints = []
            while number < len(lines) and (hint := _STDERR.fullmatch(lines[number])):
                if not hint[1].startswith(_HINT):
                    break
                hints.append(hint[1].removeprefix(_HINT))
                number += 1
            yield _of_stderr(stderr[1], tuple(hints))
        elif (error := _TYPED.fullmatch(line)) and error[1] in typed:
            yield Message(error[1], error[2])
        elif wire := _WIRE_TEXT.fullmatch(line):
            yield Message("response", json.loads(wire[1]))
        elif control := _CONTROL_TEXT.fullmatch(line):
            refused = json.loads(ast.literal_eval(f"'{control[1]}'"))["error"]
            yield Message(refused["type"], refused["text"])
        elif finding := _FINDING.fullmatch(line):
            row = json.loads(finding[1])
            yield Message(f"finding {row['severity']}", row["damage"], (row["remedy"],))


def _of_stderr(text: str, hints: tuple[str, ...]) -> Message:
    label, colon, rest = text.partition(": ")
    if colon and label in ("error", "warning", "note", "hint"):
        return Message(label, rest, hints)
    if log := _LOG_LINE.fullmatch(text):
        return Message(f"log {log[1]}", log[2], hints)
    if text.startswith('{"time":'):
        row = json.loads(text)
        return Message(f"log {row['level']}", row["message"], hints)
    return Message("stderr", text, hints)


@dataclass(frozen=True, slots=True)
class SourceText:
    """A constant text of a message in the source.

    Attributes:
        path: Path of the module, relative to the parent of the source directory.
        line: Number of the line where the text begins.
        text: The text, without values.
    """

    path: Path
    line: int
    text: str


def missing_texts(
    entries: Iterable[Entry], source: Path = SOURCE, tests: Path = TESTS
) -> list[SourceText]:
    """Return texts of messages in the source that are in no kept entry and no test.

    Of an f-string, only the longest constant part is compared.
    """
    known = [_plain(entry.text) for entry in entries]
    for path in tests.rglob("*.py"):
        constants = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant))
        known += [_plain(node.value) for node in constants if isinstance(node.value, str)]
    everything = "\n".join(known)
    return [
        SourceText(path.relative_to(source.parent), line, text)
        for path in sorted(source.rglob("*.py"))
        for line, text in _source_texts(path)
        if _plain(text) not in everything
    ]


def _source_texts(path: Path) -> list[tuple[int, str]]:
    """Return lines and texts of raised errors and of printed and logged messages of a module."""
    found: set[tuple[int, str]] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Raise) and node.exc and _name_of(node.exc) not in _NOT_FOR_USERS:
            found.update(_texts(node.exc))
        elif isinstance(node, ast.Call) and _name_of(node) in _PRINTING:
            found.update(text for argument in node.args for text in _texts(argument))
    return sorted(found)


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each constant, and of the longest part of each f-string."""
    if isinstance(node, ast.JoinedStr):
        parts = (one.value for one in node.values if isinstance(one, ast.Constant))
        longest = max((part for part in parts if isinstance(part, str)), key=len, default="")
        if len(longest) >= TEXT_CHARS_MIN:
            yield node.lineno, longest
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and len(node.value) >= TEXT_CHARS_MIN:
            yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _name_of(node: ast.expr) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _plain(text: str) -> str:
    return " ".join(text.split())
