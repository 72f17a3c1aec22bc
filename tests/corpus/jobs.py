"""Commands that start Spark, as transcripts: pages `spark-*` of the scenes.

Spark runs on two cores in one Java process, in the folder of the scenes. Spark's processes use the
machine's clock.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.corpus import logs
from tests.corpus.book import Entry
from tests.corpus.masks import masked_job
from tests.corpus.transcripts import SCENES, Folder, play_page


def play(home: Path) -> Iterator[Entry]:
    """Yield all pages of commands that start Spark."""
    logs.make(home / "logs")
    folder = Folder(home / "scene", home / "logs")
    for path in sorted(SCENES.glob("spark-*.txt")):
        for entry in play_page("jobs", path.stem, folder):
            yield Entry(entry.name, masked_job(entry.text))
