"""Part `commands`: transcripts of each command, each option, and each error that users cause."""

from collections.abc import Iterator
from pathlib import Path

from tests.corpus import damage, logs
from tests.corpus.book import Entry
from tests.corpus.transcripts import SCENES, Folder, play_page


def play(home: Path) -> Iterator[Entry]:
    """Yield the pages of commands that don't start Spark."""
    logs.make(home / "logs")
    yield from damage.play(home)
    folder = Folder(home / "scene", home / "logs")
    for path in sorted(SCENES.glob("*.txt")):
        if not path.stem.startswith("spark-"):  # part `jobs`
            yield from play_page("commands", path.stem, folder)
