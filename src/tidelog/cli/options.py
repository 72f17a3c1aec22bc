"""`Option`, commands from typed dicts, shared options.

Options that several commands share, and how an option is declared.

The words that options take; plain names, so that `--help` needs no other module.

`TOPIC` or `TOPIC:P` on the command line.

Times on the command line: read by the one grammar, printed as ISO 8601 and as ms.

Options that the commands on Spark share; light, so that `--help` stays quick.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.arguments import Inexact
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.directory import Directory
from tidelog.timespec import OPEN_END, OPEN_START, format_ms, parse_point, parse_range
from tidelog.types import NO_TIMESTAMP, ClockName, Codec, IsolationLevel, TopicPartition

__all__ = [
    "CODECS",
    "AuditShow",
    "ClockName",
    "Encoding",
    "Format",
    "Inexact",
    "InputFormat",
    "Isolation",
    "LagShow",
    "LatencyShow",
    "ReadFormat",
    "ReindexShow",
]


CODECS: Final = tuple(codec.config_name for codec in Codec)


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class AuditShow(StrEnum):
    """Which table of an audit is printed."""

    DIFFERENCES = "differences"
    TOPICS = "topics"
    BUCKETS = "buckets"
    CUTS = "cuts"


class LatencyShow(StrEnum):
    """Which table of latencies is printed."""

    HOURS = "hours"
    WATERMARKS = "watermarks"
    TOPICS = "topics"


class LagShow(StrEnum):
    """Which table of a lag report is printed."""

    PARTITIONS = "partitions"
    HOURS = "hours"


class ReindexShow(StrEnum):
    """Which table of a reindex is printed."""

    FINDINGS = "findings"
    PARTITIONS = "partitions"


class ReadFormat(StrEnum):
    """How records are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def is_columns(self) -> bool:
        """Whether records are written by columns, in binary."""
        return self in (ReadFormat.ARROW, ReadFormat.PARQUET)


class InputFormat(StrEnum):
    """How a file of rows is read."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Encoding(StrEnum):
    """What bytes of keys and values are shown as."""

    AUTO = "auto"
    BYTES = "bytes"
    STRING = "string"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    UUID = "uuid"
    JSON = "json"


class Isolation(StrEnum):
    """Which records of transactions are seen, in the words of Kafka's consumers."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> IsolationLevel:
        """The level that storage knows."""
        return IsolationLevel[self.name]


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


_TARGET: Final = re.compile(r"(?P<topic>[^:]+)(?::(?P<partition>[0-9]{1,10}))?", re.ASCII)


def parse_target(target: str) -> tuple[str, int | None]:
    """Topic and partition, None for all of them; raises UsageProblem."""
    found = _TARGET.fullmatch(target)
    if found is None:
        raise UsageProblem(f"{target}: a topic, or TOPIC:P for one partition, as in flights:0")
    number = found["partition"]
    return found["topic"], None if number is None else int(number)


def partitions_of(directory: Directory, topic: str, number: int | None) -> list[TopicPartition]:
    """The partitions meant; raises UnknownTopic, which says which there are."""
    if number is None:
        return directory.log_dir.partitions(topic)
    directory.partition(topic, number)
    return [TopicPartition(topic, number)]


def shown(ms: int | None, zone: str | None = None) -> str:
    """A time for people, `2013-02-08T17:00:00.000Z 1360342800000`; `-` for none."""
    if ms is None or ms == NO_TIMESTAMP:
        return "-"
    return f"{iso(ms, zone)} {ms}"


def iso(ms: int, zone: str | None = None) -> str:
    """A time in ISO 8601 with its zone; one that no calendar holds stays a number."""
    try:
        return format_ms(ms, zone)
    except (ValueError, OverflowError, OSError):
        return str(ms)


def read_point(surroundings: Surroundings, text: str, zone: str | None) -> int:
    """Return a point in time in ms; raises InvalidTime."""
    return parse_point(text, now_ms=surroundings.env.clock.now_ms(), zone=zone)


def read_create_time(surroundings: Surroundings, text: str, zone: str | None) -> int:
    """Return a record's own time in ms, rounded down as in columns; raises InvalidTime."""
    return parse_point(text, now_ms=surroundings.env.clock.now_ms(), zone=zone, down=True)


def read_bounds(
    surroundings: Surroundings, start: str | None, end: str | None, zone: str | None
) -> tuple[int, int]:
    """The range [start, end) in ms of `--from` and `--to`; `--from` alone may hold a whole range.

    Raises:
        InvalidTime: A side can't be read, or the range holds nothing.
        UsageProblem: `--from` is a range and `--to` is given too.
    """
    if start is None and end is None:
        return OPEN_START, OPEN_END
    if start is not None and _is_range(start):
        if end is not None:
            raise UsageProblem(f"--from {start} is a range already; leave --to out")
        return parse_range(start, now_ms=surroundings.env.clock.now_ms(), zone=zone)
    text = f"{start or ''}..{end or ''}"
    return parse_range(text, now_ms=surroundings.env.clock.now_ms(), zone=zone)


def _is_range(text: str) -> bool:
    """Whether the text has two sides: A..B, or rpk's @A:B."""
    without_clock = re.sub(r"T[0-9]{2}:[0-9]{2}:[0-9]{2}", "", text)
    return ".." in text or (text.startswith("@") and ":" in without_clock)


PLACE_HELP: Final = "a directory of topics, an object store's URL, or kafka://HOST:PORT"


master_option = click.option(
    "--master",
    metavar="URL",
    envvar="SPARK_MASTER",
    help="Spark's master, or sc://HOST:PORT; all cores of here if left out.",
)


conf_option = click.option(
    "--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
)


report_option = click.option(
    "--report", metavar="FILE", help="Write an HTML page with tables and plots as well."
)


command_config_option = click.option(
    "--command-config", metavar="FILE", help="Client settings of the source, if it is a cluster."
)


to_command_config_option = click.option(
    "--to-command-config", metavar="FILE", help="Client settings of the target."
)


store_option = click.option(
    "--store-option",
    "store",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the source's object store; repeatable.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkAccess:
    """Which Spark runs a command, as options say it."""

    master: str | None = None
    conf: tuple[str, ...] = ()


def spark_options(command: _Function) -> _Function:
    """The two options of `SparkAccess`: parameters `master` and `conf`."""
    return master_option(conf_option(command))
