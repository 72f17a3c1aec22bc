"""Blocks of code in the pages of the documentation, and the brokers and files that they need."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt

import tidelog

ROOT: Final = Path(__file__).parents[2]


class Block(NamedTuple):
    """A block of code of a page, numbered from 1 in the page."""

    page: str
    number: int
    language: str
    text: str


# Languages of blocks that tests run. For some blocks, test_docs.py states why they don't run.
CODE: Final = {"sh", "python", "sql"}
# Languages of other blocks: output and diagrams (text), and files. Tests in tests/tidy check "hex".
_NOT_CODE: Final = {"text", "hex", "json", "properties", "dockerfile"}
# The beginning of a line in a block without a stated language, and the block's language.
_BEGINNINGS: Final = {"tidelog ": "sh", "./run ": "sh", ">>> ": "pycon"}


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield all blocks of a page; the language of a block is empty if it is unknown."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    code = [one for one in tokens if one.type in {"fence", "code_block"}]
    for number, token in enumerate(code, 1):
        lines = token.content.split("\n")
        languages = [
            language
            for beginning, language in _BEGINNINGS.items()
            if any(line.startswith(beginning) for line in lines)
        ]
        stated = token.info.split()[:1] or languages[:1] or [""]
        yield Block(page, number, stated[0], token.content)


def _pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield ROOT / "ARCHITECTURE.md"
    yield ROOT / "CONTRIBUTING.md"
    yield ROOT / "SECURITY.md"
    yield from sorted((ROOT / "examples").glob("*.ipynb"))


def _markdown(path: Path) -> str:
    """Return the text of a page; of a notebook, the text between its cells of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "markdown")


def _name(path: Path) -> str:
    return "docs/README.md" if path.parts[-2:] == ("docs", "README.md") else path.name


PAGES: Final = {_name(path): _markdown(path) for path in _pages()}
EVERY: Final = [one for name, text in PAGES.items() for one in blocks(name, text)]
ALL: Final = {(one.page, one.number): one for one in EVERY if one.language in CODE}


def phrases(text: str) -> Iterator[str]:
    """Yield the code within the sentences and tables of a page."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content


def without_language(found: Iterable[Block]) -> list[str]:
    """Return the page and number of each block whose language is unknown."""
    known = {*CODE, *_NOT_CODE, *_BEGINNINGS.values()}
    return [f"{one.page} block {one.number}" for one in found if one.language not in known]


def commands(text: str, program: str = "tidelog") -> Iterator[list[str]]:
    """Yield the arguments of each call of a program in a shell text."""
    for line in text.replace("\\\n", " ").split("\n"):
        words = shlex.split(line, comments=True)
        while program in words:
            words = words[words.index(program) + 1 :]
            ends = [
                at for at, word in enumerate(words) if word in {"|", ">", "<", "||", "&&", "&", ";"}
            ]
            yield words[: ends[0]] if ends else words
            words = words[ends[0] :] if ends else []


# Numbers of brokers, by the addresses that stand for them.
_BROKERS: Final = {
    "broker:9092": 0,
    "localhost:9092": 0,
    "127.0.0.1:9092": 0,
    "east:9092": 0,
    "west:9092": 1,
    "north:9092": 2,
}
# Directories that stand for the data directory of the first broker.
_DATA: Final = ("/var/lib/kafka", "/var/lib/tidelog")


@contextmanager
def running_brokers(count: int) -> Iterator[dict[str, str]]:
    """Start brokers; yield their addresses and data directory, by the texts that they replace."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(tidelog.broker()) for _ in range(count)]
        replaced = {
            address: brokers[number].bootstrap_servers
            for address, number in _BROKERS.items()
            if number < count
        }
        yield replaced | {path: one.data for one in brokers[:1] for path in _DATA}


def replace(text: str, instead: Mapping[str, str]) -> str:
    """Replace parts of a block.

    Raises:
        AssertionError: The text lacks one of the parts.
    """
    for old, new in instead.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def write_inputs(folder: Path) -> None:
    """Write the files that commands of several pages read."""
    rows = [f"N{number},2013-02-08T{number:02}:30-05:00,IAH" for number in range(24)]
    (folder / "flights.csv").write_text("\n".join(["tailnum,departure,dest", *rows, ""]))
    (folder / "notes.tsv").write_text("N1\tengine checked\n")
