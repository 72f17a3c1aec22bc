"""Options that several commands share, and how an option is declared."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.choices import ClockName, Encoding, Format, Inexact, Isolation
from tidelog.cli.problems import UsageProblem

_Function = TypeVar("_Function", bound=Callable[..., object])

TIME_HELP: Final = (
    "ISO 8601 with a zone (2013-02-08T12:00Z, '2013-02-08 12:00 America/New_York'), epoch ms,"
    " now, or back from now (-6h)"
)


def examples(*lines: str) -> str:
    """Lines at the end of a command's help, kept as they are (the backspace says so)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def one_of(
    *names: str, kind: type[StrEnum], default: str | None, text: str
) -> Callable[[_Function], _Function]:
    """An option that takes the values of an enumeration, and hands out its members."""

    def member(_context: click.Context, _parameter: click.Parameter, value: str | None) -> object:
        return None if value is None else kind(value)

    return click.option(
        *names,
        type=click.Choice([choice.value for choice in kind]),
        default=None if default is None else kind(default).value,
        callback=member,
        show_default=default is not None,
        help=text,
    )


def refuse_typed(names: tuple[str, ...], reason: str) -> None:
    """Raise UsageProblem for an option that was typed and has no meaning here."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(one for one in context.command.params if one.name == name)
            raise UsageProblem(f"{option.opts[0]}: {reason}")


topic_argument: Final = click.argument("topic", metavar="TOPIC")
_STORE_OPTIONS: Final = "tidelog.store_options"


def _note_store_options(
    context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> None:
    found = {}
    for value in values:
        name, sign, setting = value.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{name!r}: write NAME=VALUE")
        found[name.removeprefix("store.")] = setting
    context.meta[_STORE_OPTIONS] = found


def _reach_data(
    context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Let the command's surroundings reach the stores of the directory, and of its tiers."""
    options = context.meta.get(_STORE_OPTIONS, {})
    if value is None or ("://" not in value and not options):
        return value
    from tidelog.objects import env_for, local_path

    path = local_path(value)
    context.obj = replace(context.obj, env=env_for(path, context.obj.env, options))
    return path


def data_option(function: _Function) -> _Function:
    """`--data`, and the settings of the object store that it may name."""
    store_option = click.option(
        "--store-option",
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        is_eager=True,
        callback=_note_store_options,
        help="A setting of object stores (of --data, or a tier), such as endpoint=URL; repeatable.",
    )
    data = click.option(
        "--data",
        "-d",
        metavar="DIR",
        envvar="TIDELOG_DATA",
        callback=_reach_data,
        help="The directory of topics: a path, or to read one, a URL (s3://bucket/logs).",
    )
    return data(store_option(function))


format_option: Final = one_of(
    "--format", "-o", "kind", kind=Format, default=Format.TABLE, text="How rows are written."
)
zone_option: Final = click.option(
    "--zone", metavar="ZONE", help="Of times without one and of times printed."
)
clock_option: Final = one_of(
    "--clock",
    kind=ClockName,
    default=ClockName.RECORD,
    text="record: a record's timestamp; append: when the log took it.",
)
isolation_option: Final = one_of(
    "--isolation",
    kind=Isolation,
    default=Isolation.READ_UNCOMMITTED,
    text="read_committed leaves out open and aborted transactions.",
)

# The older names stay: scripts have them.
key_as_option: Final = one_of(
    "--key-as",
    "--key-type",
    "key_as",
    kind=Encoding,
    default=Encoding.AUTO,
    text="What keys are; auto is text.",
)
value_as_option: Final = one_of(
    "--value-as",
    "--value-type",
    "value_as",
    kind=Encoding,
    default=Encoding.AUTO,
    text="What values are.",
)
headers_as_option: Final = one_of(
    "--headers-as",
    kind=Encoding,
    default=Encoding.AUTO,
    text="What the values of headers are.",
)
inexact_option: Final = one_of(
    "--inexact",
    kind=Inexact,
    default=Inexact.REFUSE,
    text="Where compaction or retention has taken the past away: no answer, or what is left.",
)
