"""Draws sentences for review: `PYTHONPATH=src:. python tools/prose_sample.py SEED [NUMBER]`.

Prints numbered sentences of docs, docstrings, comments and messages with file and line. Below each
sentence are the lines around it, because a sentence is judged where it is read. The same seed and
tree give the same sentences. An editor marks sentences that need a second reading. The share of
marked sentences is a measure of the prose: compare it before and after a rewrite, with different
seeds.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from tools.prose import ROOT, files, prose_of

NUMBER: Final = 300
# Minimum number of words in a sentence. Shorter texts are headings, cells and names.
_WORDS_MIN: Final = 5
# End of a sentence. A colon or semicolon does not end a sentence, because half a sentence can't be
# judged.
_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
# Marks at the beginning of a line that don't belong to the sentence: marks of comments, lists and
# tables. A list's mark must be followed by a space: `-1` is a number, and `**` begins bold text.
_MARK: Final = re.compile(r'^[ \t]*(?:#+:?|[-*>](?=\s)|\d+\.(?!\d)|\||f?r?"+)?[ \t]*')
# Beginning of a list item, of a table's row, or of an argument's or attribute's description in a
# docstring. Each is a paragraph.
_ITEM: Final = re.compile(r"[ \t]*(?:(?:[-*>|]|\d+\.) |[*]{0,2}[A-Za-z_]\w*(?:, \w+)*: [A-Z`])")
# The characters of code that follow a text at the end of a line.
_CODE: Final = re.compile(r'"[" ,]*$')
# Number of lines that are printed before and after the line in which a sentence begins.
_BEFORE: Final = 6
_AFTER: Final = 4


class Sentence(NamedTuple):
    """A sentence, with the file and the line where it begins."""

    name: str
    line: int
    text: str


def sentences(name: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    Rows of tables, items of lists, and descriptions of arguments count as paragraphs. A comment and
    a string that follow each other belong to different paragraphs.
    """
    shown, whole = prose_of(name, text).split("\n"), text.split("\n")
    starts = _first_lines(text) if name.endswith(".py") else frozenset()
    paragraph: list[str] = []
    start = 0
    for number, line in enumerate([*shown, ""], 1):
        is_empty = not line.strip(' \t#"')
        is_item = _ITEM.match(line) is not None
        if paragraph and (is_empty or is_item or number in starts):
            yield from _split(name, start, paragraph)
            paragraph = []
        if not is_empty:
            start = start if paragraph else number
            # `prose_of` masks code in backticks, so the sentence is taken from the original line.
            is_text = name.endswith(".md") or _masked(whole[number - 1]) == line.rstrip()
            kept = whole[number - 1] if is_text else line
            paragraph.append(_CODE.sub("", _MARK.sub("", kept)).rstrip())


def _first_lines(text: str) -> frozenset[int]:
    """Return the lines of a module in which a string or a comment begins.

    Adjacent strings are one string, and comments on successive lines are one comment.
    """
    starts: set[int] = set()
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE):
            continue
        row, column = token.start
        if token.type == tokenize.COMMENT and token.line[:column].strip():
            starts.update((row, row + 1))  # the comment belongs to the code of its line
            before = tokenize.OP
            continue
        if token.type in (tokenize.STRING, tokenize.COMMENT) and token.type != before:
            starts.add(row)
        before = token.type
    return frozenset(starts)


def _masked(line: str) -> str:
    return re.sub(r"(`+)[^`]+\1", lambda found: " " * len(found[0]), line).rstrip()


def _split(name: str, start: int, lines: Sequence[str]) -> Iterator[Sentence]:
    for text in _END.split(" ".join(lines)):
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= _WORDS_MIN:
            yield Sentence(name, start, " ".join(text.split()))


def draw(seed: int, number: int) -> list[Sentence]:
    """Return a sample of all sentences, in the order of files."""
    every = [
        sentence
        for name in files()
        for sentence in sentences(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    return sorted(Random(seed).sample(every, min(number, len(every))))


if __name__ == "__main__":
    sample = draw(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else NUMBER)
    for at, sentence in enumerate(sample, 1):
        print(f"{at}. {sentence.name}:{sentence.line}: {sentence.text}")
        lines = (ROOT / sentence.name).read_text(encoding="utf-8").split("\n")
        first = max(0, sentence.line - 1 - _BEFORE)
        print(*(f"    | {line}" for line in lines[first : sentence.line + _AFTER]), "", sep="\n")
