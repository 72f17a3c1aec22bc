"""Entries of the corpus, and the files that store them.

An entry is a name and a text. `kept/PART/PAGE.txt` stores the entries `PART/PAGE/...`, sorted by
name, each below a heading line `=== NAME`. The pages of a part with more than `PLAIN_MAX_BYTES` of
text are compressed: `PAGE.txt.xz`.
"""

import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

KEPT: Final = Path(__file__).parent / "kept"
PLAIN_MAX_BYTES: Final = 1_300_000

_NAME: Final = re.compile(r"[a-z]+/[a-z0-9_-]+(/[A-Za-z0-9_.,:=@~+-]+)+")
_HEADING: Final = "=== "
# A line of a text that begins like a heading, or with a backslash, is stored with a backslash
# before it.
_ESCAPED: Final = ("=== ", "\\")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One recorded behavior: a name and a text.

    Attributes:
        name: `part/page/...`, such as `commands/read/json`.
        text: Lines of printable text. A part writes other characters as escapes.
    """

    name: str
    text: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of an entry: part/page/rest")
        for number, line in enumerate(self.text.split("\n"), 1):
            if not line.isprintable():
                raise ValueError(f"{self.name}, line {number} is not printable: {line!r}")

    @property
    def part(self) -> str:
        """Name of the part, and of the module that plays it."""
        return self.name.split("/", 1)[0]

    @property
    def page(self) -> str:
        """Name of the page, `part/page`; the page's file stores the entry."""
        return "/".join(self.name.split("/", 2)[:2])


def belongs(name: str, asked: str) -> bool:
    """Whether the entry's name is `asked`, or begins with `asked` and a slash."""
    return name == asked or name.startswith(f"{asked}/")


def write_text(entries: Iterable[Entry]) -> str:
    """Return the text of a file with these entries."""
    lines: list[str] = []
    for entry in sorted(entries):
        lines.append(_HEADING + entry.name)
        body = entry.text.split("\n")
        lines.extend("\\" + line if line.startswith(_ESCAPED) else line for line in body)
    return "".join(f"{line}\n" for line in lines)


def read_text(text: str) -> Iterator[Entry]:
    """Yield the entries of a file's text."""
    name, lines = "", list[str]()
    for line in text.split("\n")[:-1]:
        if line.startswith(_HEADING):
            if name:
                yield Entry(name, "\n".join(lines))
            name, lines = line.removeprefix(_HEADING), []
        else:
            lines.append(line.removeprefix("\\"))
    if name:
        yield Entry(name, "\n".join(lines))


def unique(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return entries by name, sorted; raises ValueError for duplicate names."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise ValueError(f"two entries have the name {entry.name}")
        found[entry.name] = entry
    return dict(sorted(found.items()))


def pages(part: str, kept: Path = KEPT) -> list[Path]:
    """Return the files of a part."""
    return sorted((kept / part).glob("*.txt*"))


def read_part(part: str, kept: Path = KEPT) -> dict[str, Entry]:
    """Return the kept entries of a part by name; empty if nothing is kept."""
    return unique(entry for path in pages(part, kept) for entry in read_text(_load(path)))


def write_part(part: str, entries: Iterable[Entry], kept: Path = KEPT) -> None:
    """Store exactly these entries of a part. Unchanged files are not written."""
    ordered = sorted(unique(entries).values())
    texts = {
        kept / f"{page}.txt": write_text(group)
        for page, group in groupby(ordered, lambda entry: entry.page)
    }
    if sum(len(text.encode()) for text in texts.values()) > PLAIN_MAX_BYTES:
        texts = {path.with_name(f"{path.name}.xz"): text for path, text in texts.items()}
    (kept / part).mkdir(parents=True, exist_ok=True)
    for path in pages(part, kept):
        if path not in texts:
            path.unlink()
    for path, text in texts.items():
        if not path.exists() or _load(path) != text:
            _save(path, text)


def _load(path: Path) -> str:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def _save(path: Path, text: str) -> None:
    data = text.encode()
    path.write_bytes(lzma.compress(data, preset=9) if path.suffix == ".xz" else data)
