"""The scenes of commands are complete: each command and each option is in one of them."""

import re

import pytest
from tests.corpus.shell import run
from tests.corpus.surface_help import helps
from tests.corpus.transcripts import SCENES, commands_of, scenes

# Options that choose how a table is printed. Every command with `--format` has these options, but
# only some scenes use them.
OF_TABLES = {"--wide"}
_OPTION = re.compile(r"^  (-.+?)(?:  |$)", re.MULTILINE)


def options(text: str) -> set[str]:
    """Return the long names of options in a help text."""
    listed = " ".join(_OPTION.findall(text.partition("Options:")[2]))
    return set(re.findall(r"--[a-z-]+", listed)) - {"--help", "--version"}


def used() -> dict[tuple[str, ...], set[str]]:
    """Return the words of the commands in scenes, by the first words of the commands.

    A key has the first two words of a command, or its first word, or no word (for all commands).
    """
    found: dict[tuple[str, ...], set[str]] = {(): set()}
    for path in SCENES.glob("*.txt"):
        for scene in scenes(path.stem):
            for words in commands_of(scene):
                for length in range(3):
                    found.setdefault(tuple(words[:length]), set()).update(words)
    return found


def short_names(text: str) -> dict[str, str]:
    """Return long names of options by their short names."""
    return dict(re.findall(r"^  (-\w), (--[a-z-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("path", [path for path, _ in helps()], ids=" ".join)
def test_each_command_and_option_is_in_a_scene(path: tuple[str, ...]) -> None:
    words = used()
    assert path in words, f"no scene has {' '.join(path)}"
    text = run(*path, "--help").out.decode()
    shorts = short_names(text)
    given = words[path] | {shorts[word] for word in words[path] if word in shorts}
    missing = options(text) - given - OF_TABLES
    assert missing == set()
