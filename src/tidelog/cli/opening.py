"""Opens the directory that a command is about, and says what was found damaged in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory

NO_DATA = "which directory? Give --data DIR, or set TIDELOG_DATA"


@contextmanager
def open_directory(
    surroundings: Surroundings,
    data: str | None,
    *,
    writable: bool = False,
    create: bool = False,
    accept_clock: bool = False,
) -> Iterator[Directory]:
    """The directory `data` until the block ends.

    Args:
        surroundings: Files and clock.
        data: Where it is.
        writable: For changes.
        create: Make it where it is missing; else a slip in its name would make a new one.
        accept_clock: Let appends go on although the clock jumped.

    Raises:
        UsageProblem: No directory was given, or there is none.
        TidelogError: As `Directory.open`.
    """
    if not data:
        raise UsageProblem(NO_DATA)
    if not create and not surroundings.env.files.exists(data):
        raise UsageProblem(f"{data}: there is no such directory; `tidelog create` makes one")
    with Directory.open(data, writable=writable, env=surroundings.env) as directory:
        if accept_clock:
            directory.log_dir.accept_clock()
        try:
            yield directory
        finally:
            for line in directory.reports:
                surroundings.say(f"note: {line}")
