"""Starts `tidelog serve` quickly and often: forks a process that has imported all modules.

Each line of this program's input is a JSON array of command-line arguments; the program writes the
process id of the child that runs the command. So the process that a test kills behaves as if a user
had started the command, except that its modules were already imported. Run as `python nursery.py`;
it ends at the end of its input. `python nursery.py FAULT.py` first runs that file, which breaks
something in the broker, to check that the tests detect a faulty broker.
"""

import json
import os
import runpy
import signal
import sys
import traceback
from importlib import import_module


def serve(arguments: list[str]) -> None:
    """Run the command in this child; never returns."""
    from tidelog.cli.app import run
    from tidelog.cli.surroundings import Surroundings

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    code = 1
    try:
        code = run(arguments, Surroundings())
    except BaseException:  # noqa: BLE001 - nobody above would print it
        traceback.print_exc()
    print(f"ended by itself with {code}", file=sys.stderr, flush=True)
    os._exit(code)


def warm_up() -> None:
    """Import the modules of a broker, without starting a thread."""
    import_module("tidelog.server.broker")
    from tidelog.server.api.handlers import handler_of
    from tidelog.server.api.table import BY_KEY

    for key in BY_KEY:
        handler_of(key)


def main() -> None:
    """Fork a child for each line of stdin; the child runs the command."""
    warm_up()
    for fault in sys.argv[1:]:
        runpy.run_path(fault)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            serve(json.loads(line))
        print(child, flush=True)


if __name__ == "__main__":
    main()
