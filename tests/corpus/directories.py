"""Opens, reads, serves and extends directories of an earlier version (`before.answers`)."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.corpus import still
from tests.corpus.before.answers import answers
from tests.corpus.before.archives import names, placed, unpack
from tests.corpus.book import Entry


def play(home: Path) -> Iterator[Entry]:
    """Yield the results of each directory."""
    logging.getLogger("tidelog").addHandler(logging.NullHandler())
    for name in names():
        folder = home / name
        still.draw_for(name)
        unpack(name, folder)
        with placed(folder):
            for asked, lines in answers(name, folder):
                yield Entry(f"directories/{name}/{asked}", "\n".join(lines))
        os.chdir(home)
        shutil.rmtree(folder)
