"""Table of commands with a help line each; entry point.

The entry point: runs a command, and turns whatever ends it into an exit code and a line.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

import tidelog
from tidelog.cli.options import examples
from tidelog.cli.surroundings import ExitCode, Surroundings, describe

# Command -> module of this package; it is one of the module's COMMANDS.
HOMES: Final = {
    "accept-clock": "app_reopen",
    "audit": "app_audit",
    "compact": "app_compact",
    "config": "app_topics",
    "count": "app_ranges",
    "create": "app_topics",
    "delete": "app_topics",
    "describe": "app_topics",
    "diff": "app_tables",
    "doctor": "app_checks",
    "dump": "app_records",
    "erase": "app_tables",
    "failover": "app_cluster",
    "follow": "app_cluster",
    "groups": "app_groups",
    "lag": "app_cluster",
    "latency": "app_ranges",
    "offsets": "app_records",
    "produce": "app_records",
    "read": "app_records",
    "reopen": "app_reopen",
    "retain": "app_time",
    "rewind": "app_cluster",
    "serve": "app_serve",
    "spark": "app_spark",
    "standby": "app_standby",
    "tier": "app_tier",
    "topics": "app_topics",
    "why": "app_time",
}


class _Commands(click.Group):
    """A group whose commands are imported at their first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click names it
        """All names, sorted."""
        return sorted(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None where there is none."""
        if cmd_name in HOMES and cmd_name not in self.commands:
            module = import_module(f"tidelog.cli.{HOMES[cmd_name]}")
            for command in module.COMMANDS:
                self.add_command(command)
        return super().get_command(ctx, cmd_name)


@click.group(
    name="tidelog",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "export TIDELOG_DATA=data",
        "tidelog create flights --partitions 4 --config retention.ms=-1",
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York' --clock append",
        "tidelog read flights --from -6h --limit 10",
    ),
)
@click.version_option(tidelog.__version__, prog_name="tidelog")
def app() -> None:
    """A commit log with a memory for time: Kafka's files, two clocks."""


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
