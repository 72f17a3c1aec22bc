"""Entry point: the table of commands, and errors as exit codes and messages.

A command is imported at its first use; the overall `--help` needs only the table.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import click

import tidelog
from tidelog.cli.options import examples
from tidelog.cli.surroundings import ExitCode, Surroundings, describe
from tidelog.garbage import collection_paused, take_modules_as_old

# Command -> module of this package with a function of its name, and the first line of its help.
COMMANDS: Final = {
    "accept-clock": ("serve", "Let appends go on although the clock jumped."),
    "audit": (
        "jobs.audit",
        "Follow every key from A to B: what is missing, stale, in another order, or there twice.",
    ),
    "compact": (
        "compact",
        "Keep the last record of each key in finished segments of compacted topics.",
    ),
    "config": ("topics", "Show a topic's settings, or change them first."),
    "count": ("offsets", "Count the records of a range of time, exactly."),
    "create": ("topics", "Create a topic, and the directory where it is missing."),
    "delete": ("topics", "Delete a topic and all its records."),
    "describe": ("topics", "Show one topic, its partitions and clocks."),
    "diff": ("keyed", "Print which keys were added, changed and deleted between two times."),
    "doctor": ("doctor", "Find what is damaged in a directory of topics, and what to do about it."),
    "dump": ("dump", "Print what is in files, and what is damaged."),
    "erase": ("compact", "Take every record of a key out of a topic's files."),
    "failover": (
        "jobs.failover",
        "Move a consumer group to another cluster without missing a record.",
    ),
    "follow": ("follow", "Copy a leader's topics into a directory, as a standby."),
    "groups": ("groups", "Consumer groups of a cluster: list, describe, delete."),
    "lag": ("lag", "Show how far a consumer group is behind."),
    "latency": (
        "latency",
        "Show how long records took from their making to the log, by hour of append time.",
    ),
    "offsets": ("offsets", "Find offsets by time, in each partition."),
    "produce": ("produce", "Append one record, lines of a pipe, or the rows of a file."),
    "read": ("read", "Print records by time and by offset."),
    "reopen": (
        "serve",
        "Open a broker's partitions anew that went offline, once their disk has room or works.",
    ),
    "retain": ("retention", "Delete the segments that the topics' retention settings let go."),
    "rewind": ("groups", "Move a consumer group back in time."),
    "serve": ("serve", "Be a broker that Kafka's clients write to and read from."),
    "standby": (
        "follow",
        "Ask the process that follows a leader (`tidelog follow`): status, flush, promote.",
    ),
    "tier": ("tier", "Move finished segments to an object store, and let local copies go."),
    "topics": ("topics", "List the topics of a directory or a cluster."),
    "why": ("retention", "Explain each segment: why it was rolled, and until when it is kept."),
}
# Commands of `tidelog spark` -> module of this package, and the first line of the help.
JOBS: Final = {
    "bootstrap": ("jobs.bootstrap", "Load a table into a topic, visible all at once."),
    "compact": (
        "jobs.compact",
        "Keep the last record of each key: the cleaner's work, side by side.",
    ),
    "lag": ("jobs.lag", "Show how far all consumer groups are behind, by partition or by hour."),
    "latency": (
        "jobs.latency",
        "Show how long records took to the log, by topic and hour, and what watermarks would lose.",
    ),
    "mirror": (
        "jobs.mirror",
        "Copy topics from one or more places into those of another, exactly once.",
    ),
    "reindex": (
        "jobs.reindex",
        "Build the indexes and zone maps of a directory anew where they are missing or wrong.",
    ),
    "replay": ("jobs.replay", "Write a range of time of a topic once more."),
}


class _Unimported(click.Command):
    """Placeholder of a command until it is called; the group's `--help` needs only its line."""

    def __init__(self, name: str, module: str, line: str) -> None:
        super().__init__(name, help=line)
        self._module = module
        self._function = name.replace("-", "_")

    def imported(self) -> click.Command:
        """Import and return the command."""
        with collection_paused():
            command: click.Command = getattr(
                import_module(f"tidelog.cli.{self._module}"), self._function
            )
            take_modules_as_old()
        return command


class _BrokenPipe(Exception):
    """Carries a BrokenPipeError, its cause, through click, which would exit instead."""


@contextmanager
def _broken_pipes_kept() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _BrokenPipe from error


class CommandTable(click.Group):
    """A group whose commands are imported at their first use."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Parse the arguments as click does; raises _BrokenPipe for a BrokenPipeError."""
        with _broken_pipes_kept():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command as click does; raises _BrokenPipe for a BrokenPipeError."""
        with _broken_pipes_kept():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the first argument's command, imported, and the arguments after its name."""
        command = self.commands.get(args[0])
        if isinstance(command, _Unimported):
            self.add_command(command.imported())
        return super().resolve_command(ctx, args)


def _table(homes: Mapping[str, tuple[str, str]]) -> list[click.Command]:
    return [_Unimported(name, *home) for name, home in homes.items()]


@click.group(
    name="tidelog",
    cls=CommandTable,
    commands=_table(COMMANDS),
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


@app.command(
    "spark",
    cls=CommandTable,
    commands=_table(JOBS),
    epilog=examples(
        "tidelog spark replay data flights --from -6h --to standby",
        "tidelog spark bootstrap flights.parquet flights --to data --key tailnum --time departure",
    ),
)
def spark() -> None:
    """Jobs on Spark: for more data than one process should read.

    A place is a directory of topics (a path, or a URL such as s3://bucket/logs) or a cluster,
    kafka://HOST:PORT. Without --master, Spark runs here, on all cores.
    """


_STDOUT: Final = 1


def main() -> None:
    """Run the command of the process's arguments, and exit with its code."""
    sys.exit(run(sys.argv[1:], Surroundings()))


def run(arguments: Sequence[str], surroundings: Surroundings) -> int:
    """Run a command.

    Args:
        arguments: Arguments without the program's name.
        surroundings: Streams, files and clock.

    Returns:
        The exit code: 0 success, 1 error, 2 findings, 3 usage, 130 interrupted. A SystemExit is
            raised with its own code.
    """
    try:
        result: object = app.main(
            args=list(arguments) or ["--help"],
            prog_name="tidelog",
            standalone_mode=False,
            obj=surroundings,
        )
        surroundings.hand_over()
    except (KeyboardInterrupt, click.Abort):
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        surroundings.stderr.write(f"{error.format_message()}\n")
        return ExitCode.USAGE
    except click.UsageError as error:
        surroundings.say(_usage_line(error))
        return ExitCode.USAGE
    except Exception as error:  # noqa: BLE001 - the edge: ours become a line, others are raised
        cause = error.__cause__ if isinstance(error, _BrokenPipe) else None
        return _failed(surroundings, cause or error)
    return result if isinstance(result, int) else ExitCode.OK


def _failed(surroundings: Surroundings, error: BaseException) -> ExitCode:
    """Print an error and return the exit code; raises an error that is a bug."""
    if isinstance(error, BrokenPipeError) and not surroundings.has_reader:
        # The reader has closed stdout, as `head` does. If stdout has a reader, another pipe has
        # broken.
        _point_stdout_nowhere()
        return ExitCode.OK
    code, line = describe(error)
    surroundings.say(line)
    if isinstance(error, OSError):
        try:
            surroundings.stdout.flush()
        except OSError:
            _point_stdout_nowhere()
    return code


def _usage_line(error: click.UsageError) -> str:
    """Return the message of invalid arguments, with the command that shows the options."""
    text = " ".join(error.format_message().split()).rstrip(".")
    command = "tidelog" if error.ctx is None else error.ctx.command_path
    return f"{text}; `{command} --help` shows the options"


def _point_stdout_nowhere() -> None:
    """Redirect stdout to the null device, so that Python's flush at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)


if __name__ == "__main__":
    main()
