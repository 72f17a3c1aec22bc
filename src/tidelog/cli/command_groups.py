"""Groups of commands that print help by section, and suggest similar commands and options."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final  # noqa: TID251 - click's own signatures

import click

# Maps commands of other tools, and verbs that people try, to commands of tidelog.
OTHER_NAMES: Final = {
    "acl": "acls",
    "alter": "config",
    "broker": "serve",
    "cat": "read",
    "check": "doctor",
    "configs": "config",
    "console-consumer": "read",
    "console-producer": "produce",
    "consume": "read",
    "consumer": "read",
    "consumer-groups": "groups",
    "delete-topic": "delete",
    "delete-topics": "delete",
    "du": "topics",
    "dump-log": "dump",
    "fsck": "doctor",
    "get-offsets": "offsets",
    "group": "groups",
    "head": "read",
    "info": "describe",
    "list": "topics",
    "ls": "topics",
    "new": "create",
    "poll": "read",
    "partition": "partitions",
    "publish": "produce",
    "put": "produce",
    "query": "read",
    "quota": "quotas",
    "remove": "delete",
    "repair": "doctor",
    "replicate": "follow",
    "reset-offsets": "rewind",
    "retention": "retain",
    "rm": "delete",
    "scan": "read",
    "seek": "rewind",
    "send": "produce",
    "server": "serve",
    "settings": "config",
    "show": "describe",
    "start": "serve",
    "stat": "describe",
    "tail": "read",
    "topic": "topics",
    "truncate": "delete-records",
    "user": "users",
    "verify": "doctor",
    "write": "produce",
}
# Maps other tools' names and verbs to commands of a group such as `tidelog groups`.
_OTHER_SUBCOMMANDS: Final = {
    "create": "add",
    "info": "describe",
    "ls": "list",
    "show": "describe",
}
# Names of commands that remove something. A group has at most one command with one of these names.
_REMOVALS: Final = ("delete", "remove")

# Maps the name of an option in other tools to its name in tidelog.
OTHER_OPTIONS: Final = {
    "--last": "--tail",
    "--head": "--limit",
    "--where": "--match",
    "--json": "--format json",
    "--csv": "--format csv",
}

# Options of other commands and tools. With an option of `_ACTING`, a command makes its changes.
# With an option of `_SHOWING`, it only shows the changes.
_ACTING: Final = ("--yes", "--execute", "--apply", "--confirm", "--force", "-y")
_SHOWING: Final = ("--dry-run", "--plan", "--preview")


def consent_hint(command: str, options: Collection[str], name: str) -> str:
    """Return the hint for an unknown option of `_ACTING` or `_SHOWING`; empty for other options.

    Args:
        command: The command, such as `tidelog retain`.
        options: Names of its options.
        name: The unknown option.
    """
    if name not in (*_ACTING, *_SHOWING):
        return ""
    shows = next((one for one in _SHOWING if one in options), None)
    acts = next((one for one in _ACTING if one in options), None)
    other = shows if name in _SHOWING else acts
    meant = f"did you mean {other}? " if other is not None else ""
    if shows is not None:
        return f"{meant}by default, `{command}` makes its changes; {shows} only shows them"
    if acts is not None:
        return f"{meant}by default, `{command}` only shows its changes; {acts} applies them"
    return ""


class UnknownCommand(click.UsageError):
    """Error for a command that does not exist. The hint names a similar command, or `--help`."""

    def __init__(self, context: click.Context, name: str, hint: str) -> None:
        """Create the error for a command `name` of the group whose context is `context`."""
        super().__init__(f"no such command {name!r}", context)
        self.hint = hint


# A hyphen at which `textwrap` does not break lines.
_HYPHEN: Final = "\N{NON-BREAKING HYPHEN}"


class _Formatter(click.HelpFormatter):
    """Formatter of help that breaks lines only at spaces, so that option names stay whole."""

    def write_text(self, text: str) -> None:
        """Write wrapped paragraphs."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write terms and their wrapped descriptions."""
        whole = [(term, text.replace("-", _HYPHEN)) for term, text in rows]
        super().write_dl(whole, col_max, col_spacing)

    def getvalue(self) -> str:
        """Return the whole text."""
        return super().getvalue().replace(_HYPHEN, "-")


class HelpContext(click.Context):
    """Context of a command whose help breaks lines only at spaces."""

    formatter_class: type[click.HelpFormatter] = _Formatter


class CommandGroup(click.Group):
    """A group of commands.

    Without a command, the group prints its help to stdout and succeeds. An unknown command raises
    UnknownCommand.
    """

    context_class: type[click.Context] = HelpContext

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, Sequence[str]] | None = None,
        elsewhere: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """Create a group.

        Args:
            arguments: Positional arguments of `click.Group`.
            sections: Maps each heading to the names of its commands. If None, one section has all
                commands.
            elsewhere: Full names of commands of other groups, which the hint for an unknown name
                may suggest.
            settings: Keyword arguments of `click.Group`.
        """
        super().__init__(*arguments, **settings)
        self._sections = sections
        self._elsewhere = elsewhere

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; its help breaks lines only at spaces."""
        cmd.context_class = HelpContext
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if there are none, print the help."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name and the command of the first argument, and the other arguments."""
        name = args[0]
        is_option = not name[:1].isalnum()
        if name not in self.commands and not is_option and not ctx.resilient_parsing:
            raise UnknownCommand(ctx, name, self._hint(ctx, name))
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: click.Context, name: str) -> str:
        plain = name.lower().removeprefix("kafka-").removesuffix(".sh").replace("_", "-")
        full_names = {name.split()[-1]: name for name in self._elsewhere}
        others = OTHER_NAMES if ctx.parent is None else _OTHER_SUBCOMMANDS
        removals = _REMOVALS if plain in ("rm", *_REMOVALS) else ()
        from difflib import get_close_matches  # only for errors: this import takes 3 ms

        near = get_close_matches(plain, self.commands, n=1)
        for candidate in (others.get(plain, plain), *removals, *near):
            if candidate in self.commands or candidate in full_names:
                return f"did you mean `{ctx.command_path} {full_names.get(candidate, candidate)}`?"
        return f"`{ctx.command_path} --help` lists the commands"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section's commands with their whole summaries."""
        sections = self._sections or {"Commands": self.list_commands(ctx)}
        width = max(len(name) for names in sections.values() for name in names)
        for heading, names in sections.items():
            rows = [(name.ljust(width), summary_of(self.commands[name])) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


def summary_of(command: click.Command) -> str:
    """Return the first paragraph of a command's help."""
    return " ".join((command.help or "").partition("\n\n")[0].split())
