"""The directories of an earlier version: `python -m tests.corpus.before COMMAND`.

make [NAME ...]   create the kept directories again, after an intended change of their content; then
                  update `COMMIT` to the commit that has created them
lay NAME FOLDER   create the directory NAME, with the code of this checkout, in a new folder
ask FOLDER        check the directory in FOLDER with the code of this checkout, print the results as
                  JSON; this changes the directory
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.corpus import still


def main(command: str, *given: str) -> None:
    """Run a command."""
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
