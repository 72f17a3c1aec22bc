"""Entry point: the table of commands, and the conversion of errors to messages and exit codes.

The module of a command is imported when the command is first used. `tidelog --help` needs only the
table of commands.
"""

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Final

import click

import tidelog
from tidelog.cli.command_groups import OTHER_OPTIONS, CommandGroup, UnknownCommand, consent_hint
from tidelog.cli.options import examples, option_names, state_in_answer_zone
from tidelog.cli.surroundings import (
    WITH_NOTED_STEPS,
    ExitCode,
    Interrupted,
    InvalidInput,
    Surroundings,
    describe,
)
from tidelog.errors import RequestError, TidelogError
from tidelog.gc_pauses import collection_paused, take_modules_as_old

# Maps each heading of the help to its commands. Each command is mapped to its summary and to its
# module in this package. The command's function in that module has the command's name.
_SECTIONS: Final = {
    "Read": {
        "topics": ("topics", "List the topics of a directory or a cluster."),
        "describe": ("topics", "Show a topic's partitions, offsets, and first and last times."),
        "read": ("read", "Print records by time, offset or key, or the last ones."),
        "count": ("offsets", "Count the records in a time range, also by hour, day or key."),
        "offsets": ("offsets", "Find offsets by time, in each partition."),
        "diff": ("keyed", "Show keys added, changed and deleted between two times."),
        "latency": ("latency", "Show how late records arrived: append time minus create time."),
        "dump": ("dump", "Print the contents of log files, and where they are damaged."),
    },
    "Write": {
        "create": ("topics", "Create a topic, and its directory if missing."),
        "produce": ("produce", "Append one record, lines of a pipe, or the rows of a file."),
        "config": ("topics", "Show or change a topic's settings."),
        "partitions": ("partitions", "Increase a topic's number of partitions."),
        "delete": ("topics", "Delete a topic and all its records."),
        "delete-records": (
            "partitions",
            "Delete a topic's records before a time or an offset.",
        ),
        "erase": ("compact", "Erase all records of a key from a topic's files."),
    },
    "Keep": {
        "why": ("retention", "Explain why records were deleted, and when others will be."),
        "retain": ("retention", "Delete segments past their retention; --dry-run lists them."),
        "compact": ("compact", "Keep the last record of each key in compacted topics."),
        "tier": ("tier", "Move finished segments to an object store."),
        "doctor": ("doctor", "Check a directory for damage and suggest repairs."),
    },
    "Operate": {
        "serve": ("serve", "Run a broker for Kafka clients."),
        "accept-clock": ("serve", "Accept a clock that jumped, so that appends continue."),
        "reopen": ("serve", "Reopen partitions that went offline after a disk failure."),
        "groups": ("groups", "List, describe and delete consumer groups."),
        "lag": ("lag", "Show how many records and how long a group is behind."),
        "rewind": ("groups", "Reset a consumer group to a time."),
        "users": ("security", "List, add and remove SCRAM users."),
        "acls": ("security", "List, add and remove ACLs: who may do what."),
        "quotas": ("security", "List, set and remove quotas of users and client ids."),
    },
    "Move": {
        "follow": ("follow", "Run a standby: copy a leader's topics into a directory."),
        "standby": ("follow", "Control a running standby: status, flush, promote."),
        "failover": (
            "jobs.failover",
            "Move a consumer group to another cluster, missing no record.",
        ),
        "audit": ("jobs.audit", "Compare two clusters or directories key by key."),
    },
}
COMMANDS: Final = {name: home for section in _SECTIONS.values() for name, home in section.items()}
# Maps each command of `tidelog spark` to its module in this package and its summary.
JOBS: Final = {
    "bootstrap": (
        "jobs.bootstrap",
        "Load a table into a topic; all records become visible at once.",
    ),
    "compact": ("jobs.compact", "Compact a large directory in parallel."),
    "lag": ("jobs.lag", "Show the lag of all consumer groups, by partition or hour."),
    "latency": ("jobs.latency", "Show latency by topic and hour, and records lost by watermarks."),
    "mirror": ("jobs.mirror", "Copy topics from several places into one, exactly once."),
    "reindex": ("jobs.reindex", "Rebuild missing or wrong indexes and zone maps."),
    "replay": ("jobs.replay", "Replay a time range of a topic."),
}


class _Unimported(click.Command):
    """Placeholder of a command until its first call; the group's `--help` needs only a summary."""

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
    """Raised instead of a BrokenPipeError, for which click would end the process."""


@contextmanager
def _broken_pipes_wrapped() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _BrokenPipe from error


class CommandTable(CommandGroup):
    """A group whose commands are imported at their first use."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Parse the arguments as click does; raises _BrokenPipe for a BrokenPipeError."""
        with _broken_pipes_wrapped():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command as click does; raises _BrokenPipe for a BrokenPipeError.

        Errors state times in the zone of the command's output.
        """
        try:
            with _broken_pipes_wrapped():
                return super().invoke(ctx)
        except (RequestError, InvalidInput) as error:
            state_in_answer_zone(error, ctx)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command's name, the imported command, and the arguments after the name."""
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
    sections={heading: [*names] for heading, names in _SECTIONS.items()} | {"Spark": ["spark"]},
    elsewhere=[f"spark {name}" for name in JOBS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "export TIDELOG_DATA=data",
        "tidelog create flights --partitions 4 --config retention.ms=-1",
        "tidelog produce flights --from flights.csv --key tailnum --time departure",
        "tidelog offsets flights --at '2013-02-08 12:00 America/New_York' --clock append",
        "tidelog read flights --key N14228 --tail 5",
    ),
)
@click.version_option(tidelog.__version__, prog_name="tidelog")
def app() -> None:
    """A commit log in Kafka's files, with two times for every record.

    `tidelog help COMMAND` shows a command's options.
    """


@app.command("help", hidden=True)
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def show_help(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command."""
    leaf = context.find_root()
    for name in names:
        group = leaf.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{leaf.command_path} has no commands", leaf)
        _, command, _ = group.resolve_command(leaf, [name])
        assert command is not None, "an unknown command raises"
        leaf = command.context_class(command, parent=leaf, info_name=name)
    click.echo(leaf.get_help())


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
    """Run Spark jobs, for more data than one process should read.

    A place is a directory of topics (a path, or a URL such as s3://bucket/logs) or a cluster,
    kafka://HOST:PORT.
    """


_STDOUT: Final = 1
# An unknown option counts as a misspelling of an option if their similarity, from 0 to 1, is at
# least `_NEAR`. An unknown option of at least `_START_LEAST` letters counts as an abbreviation of
# every option that begins with it.
_NEAR: Final = 0.75
_START_LEAST: Final = 3


def main() -> None:
    """Run the command that the process's arguments name, and exit with its code."""
    sys.exit(run(sys.argv[1:], Surroundings()))


def run(arguments: Sequence[str], surroundings: Surroundings) -> int:
    """Run a command.

    Args:
        arguments: Arguments without the program's name.
        surroundings: Streams, files and clock.

    Returns:
        The exit code: 0 success, 1 error, 2 findings, 3 invalid usage, 130 interrupted. Exception:
        for `audit`, `doctor` and `reindex`, 1 means findings, and 2 means an error. If the command
        raises SystemExit, the exception is passed on with its code.
    """
    surroundings = replace(
        surroundings, arguments=tuple(arguments), with_place=partial(_with_place, arguments)
    )
    try:
        result: object = app.main(
            args=list(arguments) or ["--help"],
            prog_name="tidelog",
            standalone_mode=False,
            obj=surroundings,
        )
        surroundings.hand_over()
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__  # click raises Abort, whose cause is the interrupt
        effect = f"; {cause}" if isinstance(cause, Interrupted) else ""
        surroundings.say(f"interrupted{effect}")
        return ExitCode.INTERRUPTED
    except click.UsageError as error:
        surroundings.fail(*_usage_text(error))
        return ExitCode.USAGE
    except Exception as error:  # noqa: BLE001 - tidelog's errors are printed, others raised
        cause = error.__cause__ if isinstance(error, _BrokenPipe) else None
        return _failed(surroundings, arguments, cause or error)
    return result if isinstance(result, int) else ExitCode.OK


def _failed(surroundings: Surroundings, arguments: Sequence[str], error: BaseException) -> ExitCode:
    """Print an error and return its exit code; raise the error if it is of an unexpected class."""
    if isinstance(error, BrokenPipeError) and not surroundings.has_reader:
        # The reader of stdout, such as `head`, has closed the pipe: this is no error. But if stdout
        # still has a reader, the BrokenPipeError concerns another pipe.
        _point_stdout_nowhere()
        return ExitCode.OK
    code, text, hint = describe(error, _option_names(arguments))
    surroundings.fail(text, hint)
    if isinstance(error, TidelogError) and not isinstance(error, WITH_NOTED_STEPS):
        for note in getattr(error, "__notes__", ()):
            surroundings.note(note)
    if isinstance(error, OSError):
        try:
            surroundings.stdout.flush()
        except OSError:
            _point_stdout_nowhere()
    return code


# Matches a command that a text names in backticks.
_NAMED_COMMAND: Final = re.compile("`tidelog ([^`]+)`")


def _with_place(arguments: Sequence[str], text: str) -> str:
    """Add options for the place that the arguments name to the commands in a text.

    Four kinds of commands stay unchanged: commands that already name a place, commands without an
    option for this place, commands that show help, and the command that the arguments run.
    """
    if "`tidelog " not in text or not (place := _typed_place(arguments)):
        return text

    def completed(match: re.Match[str]) -> str:
        words = match[1].split()
        options = {word.partition("=")[0] for word in words}
        own = arguments[: len(words)]
        if options & {"--data", "-d", "--bootstrap", "-b", "--help"} or [*own] == words:
            return match[0]
        accepts = place.split()[0] in _option_names(words)
        return f"{match[0][:-1]}{place}`" if accepts else match[0]

    return _NAMED_COMMAND.sub(completed, text)


def _typed_place(arguments: Sequence[str]) -> str:
    """Return the options for the place that the arguments name, such as ` --data d`; else ""."""
    from tidelog.cli.places import Access, Place

    if "follow" in arguments[:1]:
        return ""  # errors of `follow` concern the leader, not the directory of --data
    names = {"-b": "--bootstrap", "-d": "--data"}
    typed: dict[str, str] = {}
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if word[:2] in names and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:]
        typed[names.get(name, name)] = value if equals else following
    bootstrap, data = typed.get("--bootstrap"), typed.get("--data")
    if bootstrap is None:
        return Place(data=data).words
    access = Access(bootstrap=bootstrap, command_config=typed.get("--command-config"))
    return Place(access=access).words


def _option_names(arguments: Sequence[str]) -> set[str]:
    """Return the option names of the command that is named at the start of the arguments."""
    command: click.Command = app
    for name in arguments:
        if not isinstance(command, click.Group) or name not in command.commands:
            break
        command = command.commands[name]
        if isinstance(command, _Unimported):
            command = command.imported()
    return option_names(command)


def _usage_text(error: click.UsageError) -> tuple[str, str]:
    """Return message and hint for invalid arguments."""
    if isinstance(error, UnknownCommand):
        return error.message, error.hint
    name = getattr(error, "option_name", "")
    near = _near(name, getattr(error, "possibilities", None) or ())
    command = "tidelog" if error.ctx is None else error.ctx.command_path
    options = set() if error.ctx is None else option_names(error.ctx.command)
    if OTHER_OPTIONS.get(name, "").split(" ")[0] in options:
        near = [OTHER_OPTIONS[name]]
    said = error.message if hasattr(error, "possibilities") else error.format_message()
    text = _in_words(" ".join(said.split()).rstrip("."))
    if hint := consent_hint(command, options, name) or _group_hint(error, command, name):
        return text, hint
    if name in ("-b", "--bootstrap") and "--data" in options:
        return text, f"`{command}` needs a directory of topics, not a broker: give --data DIR"
    missing = error.param if isinstance(error, click.MissingParameter) else None
    if missing is not None and "--group" in missing.opts:
        return text, "give --group GROUP; `tidelog groups list` lists the groups"
    if text.startswith("Got unexpected extra argument") and (
        hint := _extra_hint(error, command, options)
    ):
        return text, hint
    near = near or _near_choices(error)
    suggestion = f"did you mean {' or '.join(near)}? " if near else ""
    return text, f"{suggestion}`{command} --help` shows the options"


# A range and a kind of number, as click's errors write them: `x>=1`, `1<=x<=9`, `integer range`.
_RANGE: Final = re.compile(r" is not in the range (?:([-\d.]+)<=)?x(?:>=([-\d.]+)|<=([-\d.]+))$")
_NO_NUMBER: Final = re.compile(r" is not a valid (integer|float)(?: range)?$")
_NOT_ONE_OF: Final = re.compile(r"'(.*)' is not one of ")


def _in_words(text: str) -> str:
    """Return the text of a click error with the allowed numbers in words."""

    def allowed(match: re.Match[str]) -> str:
        start, least, most = match.groups()
        if least is not None:
            return f"; must be {least} or more"
        return f"; must be at most {most}" if start is None else f"; must be {start} to {most}"

    def kind(match: re.Match[str]) -> str:
        return " is not a whole number" if match[1] == "integer" else " is not a number"

    return _NO_NUMBER.sub(kind, _RANGE.sub(allowed, text))


def _near_choices(error: click.UsageError) -> list[str]:
    """For an invalid value of an option with a list of values, return the most similar value."""
    if not isinstance(error, click.BadParameter) or error.param is None:
        return []
    kind = error.param.type
    match = _NOT_ONE_OF.match(error.message)
    if not isinstance(kind, click.Choice) or match is None:
        return []
    return _near(match[1], map(str, kind.choices))[:1]


def _group_hint(error: click.UsageError, command: str, option: str) -> str:
    """Return the hint for an option that is given to a group without a command, or ""."""
    if not option or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    if error.ctx.parent is None:
        return ""
    names = error.ctx.command.list_commands(error.ctx)
    return f"options follow a command: `{command} {'|'.join(names)}`"


def _extra_hint(error: click.UsageError, command: str, options: Collection[str]) -> str:
    """Return the hint for too many arguments: the option for the first extra argument, or ""."""
    extra = error.message.partition("(")[2].rstrip(")").split()
    word = next(iter(extra), "")
    if command == "tidelog topics" and os.sep not in word and ":" not in word:
        return f"`tidelog topics` lists all topics; `tidelog describe {word}` shows one topic"
    assert error.ctx is not None  # click sets it when it parses arguments
    positional = [p for p in error.ctx.command.params if isinstance(p, click.Argument)]
    values = (error.ctx.params.get(one.name or "") for one in positional)
    for one in (*extra, *(value for value in values if isinstance(value, str))):
        if "--bootstrap" in options and ":" in one and os.sep not in one:
            return f"give the cluster as an option: --bootstrap {one}"
        if "--data" in options and (os.sep in one or not positional):
            return f"give the directory of topics as an option: --data {one}"
    meant = {
        "--partition": word.isdigit(),
        "--partitions": word.isdigit(),
        "--set": "=" in word,
    }
    near = next((option for option, fits in meant.items() if fits and option in options), None)
    return "" if near is None else f"did you mean {near} {word}?"


def _near(name: str, options: Iterable[str]) -> list[str]:
    """Return the options that a user probably meant by an unknown option, the most similar first.

    click's own suggestions would also include options that share little more than the dashes with
    the unknown option.
    """
    from difflib import SequenceMatcher  # only for errors: this import takes 3 ms

    typed = name.lstrip("-")

    def is_near(option: str) -> bool:
        plain = option.lstrip("-")
        is_start = len(typed) >= _START_LEAST and plain.startswith(typed)
        ratio = SequenceMatcher(None, typed, plain).ratio()
        return is_start or ratio >= _NEAR or sorted(typed) == sorted(plain)

    return [option for option in options if is_near(option)]


def _point_stdout_nowhere() -> None:
    """Redirect stdout to the null device, so that Python's flush at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)


if __name__ == "__main__":
    main()
