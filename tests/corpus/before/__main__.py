"""Make the directories anew, or ask one: `python -m tests.corpus.before make`, `ask NAME FOLDER`.

`make` is for a wanted change of what they hold; then `COMMIT` names the commit that has made them.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.corpus import still


def main(command: str, *given: str) -> None:
    """Carry out a command."""
    still.hold()
    from tests.corpus.before import archives, made
    from tests.corpus.before.answers import facts

    if command == "make":
        home = Path(tempfile.mkdtemp(prefix="corpus-", dir="/tmp"))
        for name in given or made.MAKERS:
            with archives.placed(home / name):
                made.make(name, home / name)
            archives.pack(home / name, name)
    elif command == "ask":
        folder = Path(given[0])
        with archives.placed(folder):
            print(json.dumps(dict(facts(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
