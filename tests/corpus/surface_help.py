"""Page `help` of the surface: the help of each command that help texts list, at 80 columns."""

import re
from collections.abc import Iterator

from tests.corpus.book import Entry
from tests.corpus.shell import run, shown

# A section of a help text that may list commands: any section but `Usage` and `Options`.
_COMMANDS = re.compile(r"^(?!Options|Usage)[A-Z][a-z ]+:\n((?:  .*\n)+)", re.MULTILINE)
_COMMAND = re.compile(r"^  ([a-z][a-z-]*)", re.MULTILINE)


def pages() -> Iterator[Entry]:
    """Yield the help of `tidelog` and of all commands below it."""
    for path, text in helps():
        name = "-".join(path) or "tidelog"
        yield Entry(f"surface/help/{name}", "\n".join(shown(text.encode())))


def helps(path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each command's path and help text."""
    text = run(*path, "--help").out.decode()
    yield path, text
    for listed in _COMMANDS.findall(text):
        for name in _COMMAND.findall(listed):
            yield from helps((*path, name))
