"""The entry point: runs a command, and turns whatever ends it into an exit code and a line."""

import os
import sys
from collections.abc import Sequence

from tidelog.cli.surroundings import Surroundings


def main() -> None:
    """Run the command that the process was called with, and exit with its code."""
    sys.exit(run(sys.argv[1:], Surroundings()))


def run(arguments: Sequence[str], surroundings: Surroundings) -> int:
    """Run a command.

    Args:
        arguments: Without the program's name.
        surroundings: Streams, files and clock.

    Returns:
        The exit code: 0 well, 1 error, 2 findings, 3 usage, 130 interrupted.
    """
    from tidelog.cli.problems import ExitCode, describe

    try:
        code = _run_typer(arguments, surroundings)
        surroundings.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough, as `head` does; Python must not fail again at its exit.
        _point_stdout_nowhere()
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the edge: ours become a line, others are raised
        code, line = _usage(error) or describe(error)
        surroundings.say(line)
    return code


def _usage(error: Exception) -> tuple[int, str] | None:
    """What is wrong with the arguments, and where to read on; None for other errors.

    Known by name: releases of typer differ in whose class it is.
    """
    from tidelog.cli.problems import ExitCode

    if not any(kind.__name__ == "UsageError" for kind in type(error).__mro__):
        return None
    text = " ".join(str(error).split()).rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "tidelog")
    return ExitCode.USAGE, f"{text}; `{command} --help` shows the options"


def _run_typer(arguments: Sequence[str], surroundings: Surroundings) -> int:
    import typer

    from tidelog.cli.app import app
    from tidelog.cli.problems import ExitCode

    command = typer.main.get_command(app)
    try:
        result: object = command.main(
            args=list(arguments), prog_name="tidelog", standalone_mode=False, obj=surroundings
        )
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return result if isinstance(result, int) else ExitCode.OK


def _point_stdout_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
