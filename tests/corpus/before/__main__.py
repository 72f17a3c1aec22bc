"""The directories of before: `python -m tests.corpus.before COMMAND`.

make [NAME ...]   make the kept directories anew: for a wanted change of what they hold; then
                  `COMMIT` names the commit that has made them
lay NAME FOLDER   make one, as the code here does, in a folder that is not there yet
ask FOLDER        print as JSON what the code here says of one; it is changed by that
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.corpus import still


def main(command: str, *given: str) -> None:
    """Carry out a command."""
    still.hold()
    from tests.corpus.before import answers, archives, made

    if command == "make":
        home = Path(tempfile.mkdtemp(prefix="corpus-", dir="/tmp"))
        for name in given or made.MAKERS:
            _lay(name, home / name)
            archives.pack(home / name, name)
        shutil.rmtree(home)
    elif command == "lay":
        _lay(given[0], Path(given[1]))
    elif command == "ask":
        folder = Path(given[0])
        with archives.placed(folder):
            print(json.dumps(dict(answers.alike(folder))))


def _lay(name: str, folder: Path) -> None:
    from tests.corpus.before import archives, made

    with archives.placed(folder):
        made.make(name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
