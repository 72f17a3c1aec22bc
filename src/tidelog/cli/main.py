"""The entry point: runs a command, and turns whatever ends it into an exit code and a line."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from tidelog.cli.app import app
from tidelog.cli.problems import ExitCode, describe
from tidelog.cli.surroundings import Surroundings

_STDOUT: Final = 1


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
    try:
        result: object = app.main(
            args=list(arguments) or ["--help"],
            prog_name="tidelog",
            standalone_mode=False,
            obj=surroundings,
        )
        surroundings.hand_over()
    except (BrokenPipeError, SystemExit):
        # Whoever reads has enough, as `head` does (click makes a SystemExit of that, of nothing
        # else). Python must not fail again at its exit.
        _point_stdout_nowhere()
        return ExitCode.OK
    except (KeyboardInterrupt, click.Abort):
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        surroundings.stderr.write(f"{error.format_message()}\n")
        return ExitCode.USAGE
    except click.UsageError as error:
        surroundings.say(_usage_line(error))
        return ExitCode.USAGE
    except Exception as error:  # noqa: BLE001 - the edge: ours become a line, others are raised
        code, line = describe(error)
        surroundings.say(line)
        if isinstance(error, OSError):
            _leave_unwritten(surroundings)
        return code
    return result if isinstance(result, int) else ExitCode.OK


def _leave_unwritten(surroundings: Surroundings) -> None:
    """Let Python not fail again at its exit over what stdout does not take."""
    try:
        surroundings.stdout.flush()
    except OSError:
        _point_stdout_nowhere()


def _usage_line(error: click.UsageError) -> str:
    """What is wrong with the arguments, and where to read on."""
    text = " ".join(error.format_message().split()).rstrip(".")
    command = "tidelog" if error.ctx is None else error.ctx.command_path
    return f"{text}; `{command} --help` shows the options"


def _point_stdout_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)


if __name__ == "__main__":
    main()
