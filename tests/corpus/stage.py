"""Runs a part of the corpus in a separate process with the same environment on every machine.

The process has a home of a fixed length below `/tmp`, few environment variables, and stopped clocks
(`still`). Text that still differs between runs is masked (`masks`).
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.corpus import still
from tests.corpus.book import Entry, unique
from tests.corpus.masks import masked

ROOT: Final = Path(__file__).parents[2]

# Parts in their order. `jobs` are the commands that need Spark.
PARTS: Final = ("surface", "commands", "jobs", "wire", "files", "directories")

# Environment variables of a part's process: paths of programs, caches and libraries.
_VARIABLES: Final = ("PATH", "HOME", "JAVA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH")
_PREFIXES: Final = ("NUMBA_", "PYSPARK_", "PYTHONHASHSEED", "TZ", "XDG_CACHE_HOME")


class PartFailed(Exception):
    """The process of a part ended with an error, so the part has no entries."""


def parts() -> list[str]:
    """Return the existing parts."""
    return [part for part in PARTS if Path(__file__).with_name(f"{part}.py").exists()]


def perform(part: str) -> dict[str, Entry]:
    """Return the current entries of a part, by name.

    Raises:
        PartFailed: The part failed; the message contains its stderr.
    """
    kept = {name: value for name, value in os.environ.items() if _is_kept(name)}
    kept |= {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    home = Path(tempfile.mkdtemp(prefix="corpus-", dir="/tmp"))
    result = home.with_name(f"{home.name}.json")
    command = [sys.executable, "-m", "tests.corpus.stage", part, str(home), str(result)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=kept, capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode:
            raise PartFailed(f"{part} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return unique(Entry(name, text) for name, text in json.loads(result.read_text()))
    finally:
        shutil.rmtree(home, ignore_errors=True)
        result.unlink(missing_ok=True)


def _is_kept(name: str) -> bool:
    return name in _VARIABLES or name.startswith(_PREFIXES)


def _play(part: str, home: Path) -> Iterator[tuple[str, str]]:
    still.hold()
    module = importlib.import_module(f"tests.corpus.{part}")
    for entry in module.play(home):
        if entry.part != part:
            raise ValueError(f"{entry.name} is no entry of {part}")
        yield entry.name, masked(entry.text, home)


if __name__ == "__main__":
    PART, HOME, RESULT = sys.argv[1:]
    Path(RESULT).write_text(json.dumps(list(_play(PART, Path(HOME)))))
