"""Functions that declare options of commands, enumerations of option values, shared options.

An option is declared once. If a command has few options, decorators of click declare them on the
function. If a command has many options, they are fields of a dataclass for `with_options`. times.py
and places.py parse the texts of the options. This module imports no storage code, because `app`
imports this module for `--help`, which must be fast.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum, StrEnum
from functools import wraps
from inspect import signature
from typing import (
    TYPE_CHECKING,
    Any,  # noqa: TID251 - as in `dataclasses`
    Final,
    TypeAlias,
    TypeVar,
    cast,
    get_origin,
)

import click
from click.core import ParameterSource

from tidelog.arguments import Inexact, choice, choices_of, kinds_of, word_of
from tidelog.cli import completion
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.errors import InvalidTime, times_of
from tidelog.jobs.options import CLOCK, COMPRESSION, REQUIRED, Option, isolation, options_of
from tidelog.lazy_dataclass import dataclass
from tidelog.types import ClockName, IsolationLevel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Format(StrEnum):
    """Format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class ReadFormat(StrEnum):
    """Format of records."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def is_columns(self) -> bool:
        """Whether the format is binary and stores records by columns."""
        return self in (ReadFormat.ARROW, ReadFormat.PARQUET)


class InputFormat(StrEnum):
    """Format of a file of rows."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Encoding(StrEnum):
    """Encoding of keys and values as cells."""

    AUTO = "auto"
    BYTES = "bytes"
    STRING = "string"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    UUID = "uuid"
    JSON = "json"


_Function = TypeVar("_Function", bound=Callable[..., object])
_Word = TypeVar("_Word", bound=StrEnum)
_Options = TypeVar("_Options", bound="DataclassInstance")
_Job = TypeVar("_Job")
_Decorator: TypeAlias = Callable[[Callable[..., object]], Callable[..., object]]
_DECLARE: Final = "tidelog.declare"

# Maximum width of an example's line: help has 80 columns, and examples are indented by 4.
_EXAMPLE_WIDTH: Final = 76


def examples(*lines: str) -> str:
    """Return example lines for the end of a command's help.

    A line that would exceed 80 columns is split, before an option if possible, else between words.
    Each part except the last ends with a backslash. The backspace character at the start of the
    result tells click to keep these lines as they are.
    """
    broken_lines = (part for line in lines for part in _broken(line))
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in broken_lines)


def option_names(command: click.Command) -> set[str]:
    """Return the names of a command's options, such as `--data`."""
    return {name for parameter in command.params for name in parameter.opts}


# Matches an option with its value, a redirection, or a word. Quoted text is part of one word.
_WORDS: Final = re.compile(r"""(?:-{1,2}[a-z][a-z-]*\ (?=[^-|>&\s])|>\ )?(?:'[^']*'|"[^"]*"|\S)+""")


def _broken(line: str) -> Iterator[str]:
    current = ""
    for word in _WORDS.findall(line):
        if current and len(current) + len(word) + len("  \\") > _EXAMPLE_WIDTH:
            yield f"{current} \\"
            current = f"  {word}"
        else:
            current = f"{current} {word}" if current else word
    yield current


def one_of(
    *names: str, kind: type[StrEnum], default: str | None, text: str
) -> Callable[[_Function], _Function]:
    """Declare an option for one member of the enumeration `kind`; the command gets the member."""

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


def show_option(kind: type[StrEnum], text: str) -> Callable[[_Function], _Function]:
    """Declare `--show`, which names the table to print; see `shown_table` for its default."""
    people, programs = [*kind][:2]
    default = f"{people}; in JSON and CSV: {programs}"
    return one_of("--show", kind=kind, default=None, text=f"{text}  [default: {default}]")


def shown_table(show: _Word | None, kind: type[_Word], form: Format) -> _Word:
    """Return the value of `--show`, or its default.

    If `show` is None, return the first member of `kind` for a table, and the second member for JSON
    and CSV.
    """
    people, programs = [*kind][:2]
    return show or (people if form is Format.TABLE else programs)


def option(*names: str, **attributes: Any) -> Any:
    """Declare a field of an options class as an option of click, with the field's name.

    The field has the option's default; the field of a required option has no default.
    """
    metadata = {_DECLARE: lambda name: click.option(*names, name, **attributes)}
    if attributes.get("required"):
        return field(metadata=metadata)
    missing = False if attributes.get("is_flag") else () if attributes.get("multiple") else None
    return field(default=attributes.get("default", missing), metadata=metadata)


def argument(**attributes: Any) -> Any:
    """Declare a field of an options class as an argument of click; the field has no default."""
    return field(metadata={_DECLARE: lambda name: click.argument(name, **attributes)})


def declared_by(declare: _Decorator) -> Any:
    """Declare a field by a decorator of click.

    The decorator must add a parameter with the field's name to the command. The field has no
    default.
    """
    return field(metadata={_DECLARE: lambda _name: declare})


def with_options(
    kind: type[_Options],
) -> Callable[[Callable[[Surroundings, _Options], object]], Callable[..., object]]:
    """Return a decorator that declares a dataclass's fields as options of a command.

    The command gets an instance of the dataclass. `--help` shows the options in the order of the
    fields.
    """

    def decorate(command: Callable[[Surroundings, _Options], object]) -> Callable[..., object]:
        @wraps(command)
        def run(**values: object) -> object:
            return command(click.get_current_context().obj, kind(**values))

        return _declared(run, [*_fields(kind).values()])

    return decorate


def with_job_options(
    kind: type[_Options], job: type[_Job], *, order: str
) -> Callable[[Callable[[Surroundings, _Options, _Job], object]], Callable[..., object]]:
    """Return a decorator that adds a dataclass's fields and a job's options to a command.

    The command gets an instance of the dataclass, and the job's options as a dict.

    Args:
        kind: Dataclass with the options of the command that are not options of the job.
        job: `TypedDict` of the job's options, declared by `tidelog.jobs.options.Option`.
        order: Names of the options that `--help` shows first, separated by spaces. The other
            options follow in the order of their declaration.
    """
    fields_of_kind = _fields(kind)
    of_job = {
        name: option_of(name, *declared)
        for name, declared in options_of(job).items()
        if declared[1].flags
    }
    names = order.split()
    every = fields_of_kind | of_job
    ordered = {name: every[name] for name in [*names, *every]}

    def decorate(
        command: Callable[[Surroundings, _Options, _Job], object],
    ) -> Callable[..., object]:
        @wraps(command)
        def run(**values: object) -> object:
            options = cast("_Job", {name: values.pop(name) for name in of_job})
            return command(click.get_current_context().obj, kind(**values), options)

        return _declared(run, [*ordered.values()])

    return decorate


def _fields(kind: type["DataclassInstance"]) -> dict[str, _Decorator]:
    return {one.name: one.metadata[_DECLARE](one.name) for one in fields(kind)}


def _declared(
    run: Callable[..., object], decorators: Sequence[_Decorator]
) -> Callable[..., object]:
    for decorator in reversed(decorators):
        run = decorator(run)
    return run


def option_of(name: str, kind: object, declared: Option) -> _Decorator:
    """Return a job's option as an option of click."""
    kinds = kinds_of(kind)
    default, choices = declared.default, declared.choices

    def convert(_context: click.Context, parameter: click.Parameter, value: object) -> object:
        if declared.sets is not None:
            return declared.sets if value else default
        if is_settings:
            texts = cast("tuple[str, ...]", value)
            return pairs(texts, parameter.opts[0], declared.metavar or "KEY=VALUE") or default
        if value and isinstance(choices, type):
            read = choices_of if is_many else choice
            return read(choices, value, parameter.opts[0])
        if declared.read is not None:
            value = list(map(declared.read, cast("tuple[str, ...]", value)))
        return value or default if is_many else value

    is_settings = any(get_origin(one) in (Mapping, dict) for one in kinds)
    is_many = is_settings or any(get_origin(one) in (Sequence, Iterable) for one in kinds)
    is_flag = declared.sets is not None or (bool in kinds and "/" not in declared.flags)
    kind_of_value: click.Choice[str] | click.IntRange | type[int] | None = None
    if choices and not is_flag:
        words = map(word_of, choices) if isinstance(choices, type) else choices
        kind_of_value = click.Choice(list(words))
    elif kinds - {type(None)} == {int} and not is_flag:
        kind_of_value = int if declared.least is None else click.IntRange(min=declared.least)
    word = word_of(default) if isinstance(default, Enum) else default
    if is_many or declared.sets is not None:
        word = None
    is_shown = declared.shows_default and isinstance(default, str | int) and bool not in kinds
    return click.option(
        *declared.flags.split(),
        name,
        type=kind_of_value,
        # A required option has no default, not even None.
        **({"required": True} if default is REQUIRED else {"default": word}),
        is_flag=is_flag or None,
        multiple=is_many,
        metavar=declared.metavar,
        callback=convert,
        show_default=is_shown and not is_flag,
        help=declared.text,
    )


def pairs(texts: Iterable[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Return `KEY=VALUE` texts as a dict; raises UsageProblem, whose text shows `form`."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageProblem(f"{option} {text!r}: write {form}")
        settings[key] = value
    return settings


def as_pairs(
    _context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Callback of an option that takes KEY=VALUE texts; raises UsageProblem."""
    return pairs(texts, parameter.opts[0], parameter.metavar or "KEY=VALUE")


def refuse_typed(names: tuple[str, ...], reason: str) -> None:
    """Raise UsageProblem if one of these options is given on the command line.

    The error's text is the option's name followed by `reason`.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(one for one in context.command.params if one.name == name)
            raise UsageProblem(f"{option.opts[0]} {reason}")


topic_argument: Final = click.argument("topic", metavar="TOPIC", shell_complete=completion.topics)
_STORE_OPTIONS: Final = "tidelog.store_options"


def _note_store_options(
    context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> None:
    settings = {}
    for value in values:
        name, sign, setting = value.partition("=")
        if not sign or not name:
            raise UsageProblem(f"--store-option {name!r}: write NAME=VALUE, e.g. region=eu-west-1")
        settings[name.removeprefix("store.")] = setting
    context.meta[_STORE_OPTIONS] = settings


def _reach_data(
    context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Let the command access the object stores of `--data` and of its tiers."""
    options = context.meta.get(_STORE_OPTIONS, {})
    is_local = value is not None and "://" not in value and not options
    if value is None or is_local or context.resilient_parsing:
        return value
    from tidelog.objects import env_for, local_path

    path = local_path(value)
    context.obj = replace(context.obj, env=env_for(path, context.obj.env, options))
    return path


def data_option(function: _Function) -> _Function:
    """Add `--data`, and `--store-option` for the object stores of the directory and its tiers."""
    store_option = click.option(
        "--store-option",
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        is_eager=True,
        callback=_note_store_options,
        help="A setting of the object store of --data or of a tier, such as endpoint=URL;"
        " repeatable. Default: the environment's.",
    )
    data = click.option(
        "--data",
        "-d",
        metavar="DIR",
        envvar="TIDELOG_DATA",
        callback=_reach_data,
        help="The directory of topics: a path, or, for commands that only read, a URL such as"
        " s3://bucket/logs. Default: TIDELOG_DATA.",
    )
    return data(store_option(function))


def _note_wide(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Callback of `--wide`: let the command write tables that are wider than the terminal."""
    if value:
        context.obj = replace(context.obj, is_wide=True)


wide_option: Final = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=_note_wide,
    help="Show all columns and whole cells in tables. Default: fit the terminal.",
)


def _format(name: str, kind: type[StrEnum], text: str) -> _Decorator:
    """Declare the option for the format of rows, and `--wide`, which applies only to tables."""
    lines = f"{text} json: one JSON object per line."
    declare = one_of(name, "-o", "kind", kind=kind, default="table", text=lines)
    return lambda command: declare(wide_option(command))


format_option: Final = _format("--format", Format, "How rows are written.")
result_format_option: Final = _format("--output", Format, "How the result is written.")


def read_format_option(text: str) -> _Decorator:
    """Declare `--format` for records, whose formats include binary columns.

    The columns of Arrow and Parquet are those of a scan and of Spark's source, so that one schema
    describes all columns. JSON and CSV have the field names of tidelog's other commands.
    """
    names = (
        "Columns of arrow and parquet have the names of the Spark source (appendTimestamp), fields"
        " of json and csv those of other commands (append_time)."
    )
    return _format("--format", ReadFormat, f"{text} {names}")


def _answer_zone(
    context: click.Context, _parameter: click.Parameter, zone: str | None
) -> str | None:
    """Callback of `--zone`: return its value, else the zone that the given times name.

    Return None if there is no `--zone`, and the given times name no zone or several zones. The zone
    is also stored in the context, for `answer_zone`. Raises UsageProblem if the value of `--zone`
    is not a time zone.

    Click converts the options on the command line before it applies defaults. So `context` already
    has the texts of the given times when this function computes a default.
    """
    if zone is None:
        # imported here, because `--help` parses no times
        from tidelog.timespec import zone_of_question

        times = (
            context.params.get(one.name or "")
            for one in context.command.params
            if one.make_metavar(context).strip("[]") in ("TIME", "RANGE")
        )
        zone = zone_of_question(text for text in times if isinstance(text, str))
    else:
        from tidelog.timespec.zones import zone_of

        try:
            zone_of(zone)
        except InvalidTime as error:
            raise UsageProblem(f"--zone {zone}: {error.reason}") from error
    context.meta[_ZONE] = zone
    return zone


_ZONE: Final = "tidelog.zone"


def answer_zone(context: click.Context) -> str | None:
    """Return the zone of a command's output, from the context of the command or of its group.

    Return None for UTC, and for a command without `--zone`.
    """
    zone: str | None = context.meta.get(_ZONE)
    return zone


def state_in_answer_zone(error: Exception, context: click.Context) -> None:
    """Make an error's text state its times in the zone of the command's output."""
    if times_ms := times_of(error):
        from tidelog.timespec import in_zone  # imported only for errors

        error.args = (in_zone(str(error), times_ms, answer_zone(context)),)


zone_option: Final = click.option(
    "--zone",
    metavar="ZONE",
    callback=_answer_zone,
    help="Time zone of output, and of input times that name no zone. Default: output uses the zone"
    " that input times name, or UTC if they name none or several; input times without a zone are"
    " refused.",
)

clock_option: Final = option_of("clock", ClockName, CLOCK)

isolation_option: Final = option_of(
    "isolation", IsolationLevel, isolation(IsolationLevel.READ_UNCOMMITTED)
)


def _encoding_option(*names: str, content: str, auto: str = "text") -> _Decorator:
    """Declare an option for the type of keys, of values or of header values."""
    text = f"Type of {content}; auto is {auto}."
    return one_of(*names, kind=Encoding, default=Encoding.AUTO, text=text)


# `--key-type` and `--value-type` are older names of `--key-as` and `--value-as`, kept for existing
# scripts.
_KEY_AS: Final = ("--key-as", "--key-type", "key_as")
_VALUE_AS: Final = ("--value-as", "--value-type", "value_as")

key_as_option: Final = _encoding_option(*_KEY_AS, content="keys")
value_as_option: Final = _encoding_option(*_VALUE_AS, content="values")
headers_as_option: Final = _encoding_option("--headers-as", content="header values")

# The same options for commands that also write Arrow and Parquet.
_AUTO: Final = "text, or binary in Arrow and Parquet"
key_column_option: Final = _encoding_option(*_KEY_AS, content="keys", auto=_AUTO)
value_column_option: Final = _encoding_option(*_VALUE_AS, content="values", auto=_AUTO)
headers_column_option: Final = _encoding_option("--headers-as", content="header values", auto=_AUTO)

inexact_option: Final = one_of(
    "--inexact",
    kind=Inexact,
    default=Inexact.REFUSE,
    text="If compaction or retention has removed records of the table, or a partition is lost:"
    " fail (refuse), or return the remaining records with a note (mark).",
)

report_option = click.option(
    "--report",
    metavar="FILE",
    help="Also write an HTML page with tables and plots. Default: no page.",
)


def _client_settings(name: str, place: str) -> _Decorator:
    """Return an option for a file of client settings for a place that may be a cluster."""
    text = f"Client settings for {place}, if it is a cluster. Default: none."
    return click.option(name, metavar="FILE", help=text)


def _store_settings(owner: str) -> _Decorator:
    """Return an option for settings of an object store."""
    return click.option(
        "--store-option",
        "store",
        multiple=True,
        metavar="KEY=VALUE",
        callback=as_pairs,
        help=f"A setting of {owner} object store; repeatable. Default: the environment's.",
    )


command_config_option = _client_settings("--command-config", "the source")
to_command_config_option = _client_settings("--to-command-config", "the target")
store_option = _store_settings("the source's")
# The sides of an audit, which writes to neither of them.
a_command_config_option = _client_settings("--command-config", "A")
b_command_config_option = _client_settings("--to-command-config", "B")
a_store_option = _store_settings("A's")

target_argument = click.argument("target", metavar="TOPIC[:P]", shell_complete=completion.targets)

maybe_target_argument = click.argument(
    "target", required=False, metavar="[TOPIC[:P]]", shell_complete=completion.targets
)

targets_argument = click.argument("targets", metavar="[TOPIC[:P]]...", nargs=-1)

zone_cache_option = click.option(
    "--zone-cache",
    metavar="DIR",
    help="Directory for zone maps of segments that have none, such as segments that Kafka wrote."
    " Default: these zone maps are not stored.",
)

compression_option: Final = option_of("compression", str, COMPRESSION)


def bundled(name: str, make: Callable[..., object], *options: _Decorator) -> _Decorator:
    """Return a decorator that adds options and passes them to the command as one argument.

    Args:
        name: Name of the argument.
        make: Function that creates the argument from the options' values. Each of its parameters
            has the name of an option.
        options: The options, in the order of `--help`.
    """
    parts = signature(make).parameters

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @wraps(command)
        def run(*arguments: object, **values: object) -> object:
            value = make(**{part: values.pop(part) for part in parts})
            return command(*arguments, **{name: value}, **values)

        return _declared(run, options)

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkAccess:
    """Options of a command for its Spark session.

    Attributes:
        master: URL of Spark's master; all cores of this machine if None.
        conf: Spark settings.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


spark_options: Final = bundled(
    "spark",
    SparkAccess,
    click.option(
        "--master",
        metavar="URL",
        envvar="SPARK_MASTER",
        help="Spark master, or sc://HOST:PORT for Spark Connect. Default: SPARK_MASTER, else all"
        " local cores.",
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        callback=as_pairs,
        help="A Spark setting; repeatable. Default: none.",
    ),
)
