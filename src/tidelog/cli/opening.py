"""Opens the directory that a command is about, and says what was found damaged in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.cli.problems import NO_DATA, UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory
from tidelog.errors import DirectoryLocked, TidelogError

HOLDER_TIMEOUT_S: Final = 5.0


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
    with _open(surroundings, data, writable=writable) as directory:
        if accept_clock:
            directory.log_dir.accept_clock()
        try:
            yield directory
        finally:
            for line in directory.reports:
                surroundings.say(f"note: {line}")


def _open(surroundings: Surroundings, data: str, *, writable: bool) -> Directory:
    try:
        return Directory.open(data, writable=writable, env=surroundings.env)
    except DirectoryLocked as error:
        address = broker_of(data)
        if address is None:
            raise
        raise DirectoryLocked(
            f"{data}: a broker at {address} has it open for writing; use --bootstrap {address}"
            " where the command has it, or stop the broker"
        ) from error


def broker_of(data: str) -> str | None:
    """HOST:PORT of the broker that holds a directory, None where it is not known to be one."""
    from tidelog.control.client import find_holder  # only where the lock was taken

    try:
        holder = find_holder(data, timeout_s=HOLDER_TIMEOUT_S)
        if holder is None:
            return None
        with holder:
            address = holder.status().get("broker")
    except TidelogError:
        return None
    return address if isinstance(address, str) else None
