"""Runs the README's examples one after the other, and writes each output below its example.

`PYTHONPATH=src:. python tools/readme_outputs.py [FOLDER]` after `./run demo`. FOLDER contains
`demo-output` and defaults to the checkout. A block of text that follows a block of python or sh
contains the output of that code.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

README: Final = Path(__file__).parent.parent / "README.md"
# Width of the outputs, in columns of a terminal.
WIDTH: Final = 80
_BLOCKS: Final = re.compile(
    r"^```(python|sh)\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Example(NamedTuple):
    """A block of code and the output below it."""

    language: str
    code: str
    output: str


def examples(text: str) -> list[Example]:
    """Return the examples of a page in order."""
    return [Example(*match.groups()) for match in _BLOCKS.finditer(text)]


def run(example: Example, folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Run an example in a folder that has the demo's log; return its output.

    Raises:
        CalledProcessError: The example failed; the error has its stderr.
    """
    command = [sys.executable, "-c"] if example.language == "python" else ["sh", "-euc"]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": beside, "PYSPARK_PYTHON": sys.executable, "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        [*command, example.code],
        cwd=folder,
        env=os.environ | settings | dict(env or {}),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return without_ends(done.stdout)


def without_ends(output: str) -> str:
    """Return an output without trailing spaces and without empty lines at its end."""
    lines = [line.rstrip() for line in output.rstrip().splitlines()]
    return "".join(f"{line}\n" for line in lines)


def with_outputs(text: str, outputs: Sequence[str]) -> str:
    """Return a page with its examples' outputs replaced, in order."""
    following: Iterator[str] = iter(outputs)

    def block(match: re.Match[str]) -> str:
        language, code, _ = match.groups()
        return f"```{language}\n{code}```\n\n```text\n{next(following)}```"

    return _BLOCKS.sub(block, text)


if __name__ == "__main__":
    page = README.read_text()
    found = [
        run(example, Path(sys.argv[1]) if sys.argv[1:] else README.parent)
        for example in examples(page)
    ]
    README.write_text(with_outputs(page, found))
