"""Opens places of topics for commands: the directory of `--data`, the cluster of `--bootstrap`.

The functions parse the options, open the place, and parse arguments that name topics and
partitions. When a directory is closed, its notes on damage and recovery are printed. Modules for
opening a place are imported only when a place is opened.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar, cast

import click
from click.core import ParameterSource

from tidelog.amounts import plural
from tidelog.cli.options import bundled, data_option
from tidelog.cli.surroundings import Surroundings, UsageProblem, read_settings_text
from tidelog.cli.times import duration_ms
from tidelog.errors import ConfigError, DirectoryLocked, TidelogError, unknown_partition
from tidelog.lazy_dataclass import dataclass
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

    from tidelog.control.client import ControlClient
    from tidelog.directory import Directory
    from tidelog.errors import MissingFile
    from tidelog.remote.cluster import Cluster
    from tidelog.remote.own_logs import OwnLogs
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.remote.view import ClusterView
    from tidelog.storage.directory.topic_registry import TopicInfo


_Result = TypeVar("_Result")


class _RequiredOrVariable(click.Option):
    """Required option whose value can also come from an environment variable.

    The option's help text names the variable.
    """

    def get_help_extra(self, ctx: click.Context) -> "OptionHelpExtra":
        """Return the remarks that click adds in brackets to the help text, except `required`."""
        extra = super().get_help_extra(ctx)
        extra.pop("required", None)
        return extra


bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    cls=_RequiredOrVariable,
    required=True,
    envvar="TIDELOG_BOOTSTRAP",
    metavar="HOST:PORT",
    help="Brokers of the cluster, separated by commas. Required without TIDELOG_BOOTSTRAP.",
)

command_config_option = click.option(
    "--command-config",
    metavar="FILE",
    help="Client settings such as security.protocol, as for Kafka's tools. Default: none.",
)

timeout_option = click.option(
    "--timeout",
    default="15s",
    show_default=True,
    metavar="TIME",
    help="Time limit of each request.",
)

topics_option = click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="T[:P]",
    help="A topic, or one of its partitions; repeatable. Default: all topics of the group.",
)

own_data_option = click.option(
    "--data",
    "-d",
    metavar="DIR",
    help="The cluster's own directory, for append times and exact counts. Default: ask the"
    " brokers.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Options for connecting to a cluster."""

    bootstrap: str
    command_config: str | None = None
    timeout: str = "15s"


cluster_options: Final = bundled(
    "access", Access, bootstrap_option, command_config_option, timeout_option
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of topics: a directory or a cluster; both attributes are None if neither was given.

    Attributes:
        data: Path of the directory.
        access: Options for connecting to the cluster.
    """

    data: str | None = None
    access: Access | None = None

    @property
    def words(self) -> str:
        """Options that name the place, for a command in a message: ` --bootstrap h:9092`."""
        access = self.access
        if access is None:
            options = {"--data": self.data}
        else:
            options = {"--bootstrap": access.bootstrap, "--command-config": access.command_config}
        return "".join(f" {name} {quote(text)}" for name, text in options.items() if text)


def _chosen(
    data: str | None, bootstrap: str | None, command_config: str | None, timeout: str
) -> Place:
    """Return the directory or the cluster that the options name.

    An option on the command line takes precedence over an environment variable.

    Raises:
        UsageProblem: A directory and a cluster are both given on the command line, or both by
            environment variables. Also raised if `--command-config` or `--timeout` is given without
            a cluster.
    """
    context = click.get_current_context()

    def is_typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    if data is not None and bootstrap is not None:
        if is_typed("data") == is_typed("bootstrap"):
            raise UsageProblem("--data is a directory, --bootstrap a cluster; give one of them")
        data, bootstrap = (data, None) if is_typed("data") else (None, bootstrap)
    if bootstrap is not None:
        return Place(
            access=Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
        )
    if is_typed("command_config") or is_typed("timeout"):
        raise UsageProblem("--command-config and --timeout apply only with --bootstrap")
    return Place(data=data)


place_options: Final = bundled(
    "place",
    _chosen,
    data_option,
    click.option(
        "--bootstrap",
        "-b",
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Brokers to use instead of a directory, separated by commas. Default:"
        " TIDELOG_BOOTSTRAP.",
    ),
    command_config_option,
    timeout_option,
)


def named(data: str | None) -> str:
    """Return the directory of `--data`; raises UsageProblem if none is given."""
    if not data:
        raise UsageProblem("no directory; give --data DIR or set TIDELOG_DATA")
    return data


HOLDER_TIMEOUT_S: Final = 5.0


@contextmanager
def open_directory(
    surroundings: Surroundings,
    data: str | None,
    *,
    writable: bool = False,
    create: bool = False,
    accept_clock: bool = False,
) -> Iterator["Directory"]:
    """Open the directory `data` until the block ends.

    Args:
        surroundings: Files and clock.
        data: Path or URL of the directory.
        writable: Whether to open the directory for changes.
        create: Whether to create a missing directory; if false, a missing path is an error.
        accept_clock: Whether to accept the current time although the clock has jumped. If true,
            appends continue.

    Raises:
        UsageProblem: No directory was given, the path is a file, or `create` is false and the
            directory does not exist.
        TidelogError: `Directory.open` failed, or the current time can't be accepted.
    """
    data, files = named(data), surroundings.env.files
    is_path = "://" not in data  # otherwise `data` is the URL of an object store
    if is_path and files.exists(data) and not files.stat(data).is_dir:
        raise UsageProblem(f"{data} is not a directory")
    if not create and not files.exists(data):
        raise UsageProblem(
            f"{data}: no such directory; `tidelog create TOPIC --data {quote(data)}` creates one"
        )
    with _reports(surroundings), _open(surroundings, data, writable=writable) as directory:
        if accept_clock:
            directory.log_dir.accept_clock()
        try:
            yield directory
        finally:
            for line in directory.reports:
                surroundings.report(line)


# Loggers of events that the storage reports only as log lines, not as errors.
_REPORTING: Final = ("directory.log_dir", "segment.segment_notes")


class _Reports(logging.Handler):
    """Collects the lines about damage and recovery that the storage logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of an event that the storage logs but does not raise as an error."""
        if record.name.endswith(_REPORTING):
            self.lines[record.getMessage()] = None


@contextmanager
def _reports(surroundings: Surroundings) -> Iterator[None]:
    """Collect the lines that the storage logs during the block; then print them as notes."""
    handler, logger = _Reports(), logging.getLogger("tidelog.storage")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for line in handler.lines:
            surroundings.report(line)


def _open(surroundings: Surroundings, data: str, *, writable: bool) -> "Directory":
    from tidelog.directory import Directory

    try:
        return Directory.open(data, writable=writable, env=surroundings.env)
    except DirectoryLocked as error:
        address = broker_of(data)
        if address is None:
            raise
        raise DirectoryLocked(
            f"{data}: a broker at {address} has it open for writing; use --bootstrap {address}"
            " if the command accepts this option, or stop the broker"
        ) from error


def here_or_by_holder(
    data: str | None,
    verb: str,
    here: Callable[[], _Result],
    by: "Callable[[ControlClient], _Result]",
) -> _Result:
    """Call `here`, or `by` with a client if another process has the directory open.

    Args:
        data: Path of the directory.
        verb: Name of the request that `by` sends; the other process must support it.
        here: Does the work in this process; raises DirectoryLocked if another process holds the
            lock.
        by: Sends the request to the process that holds the lock. Its argument is a client of that
            process.

    Raises:
        DirectoryLocked: The other process can't be reached, or doesn't support the request. Other
            errors of `here` and `by` are passed on.
    """
    try:
        return here()
    except DirectoryLocked:
        from tidelog.control.client import find_holder

        holder = find_holder(data or "")
        if holder is None:
            raise
        with holder:
            if not holder.supports(verb):
                raise
            return by(holder)


def broker_of(data: str) -> str | None:
    """Return HOST:PORT of the broker that has a directory open; None if no broker responds."""
    address = _holder_status(data).get("broker")
    return address if isinstance(address, str) else None


def _holder_status(data: str) -> Mapping[str, object]:
    """Return the status of the process that has a directory open; empty if none responds."""
    # imported only here, because it is needed only if the directory is locked
    from tidelog.control.client import find_holder

    with suppress(TidelogError):
        holder = find_holder(data, timeout_s=HOLDER_TIMEOUT_S)
        if holder is not None:
            with holder:
                return holder.status()
    return {}


def assume_broker_defaults(directory: "Directory") -> str | None:
    """Make a directory use the default settings of the broker that has it open.

    Return HOST:PORT of this broker; None if no broker responds. The directory must be open for
    reading. If the broker does not report its defaults, the directory is not changed.
    """
    status = _holder_status(str(directory.path))
    address, defaults = status.get("broker"), status.get("topic_defaults")
    if not isinstance(address, str):
        return None
    if isinstance(defaults, dict):
        directory.log_dir.topic_admin.assume_defaults(
            {f"{name}": f"{text}" for name, text in defaults.items()}
        )
    return address


@contextmanager
def open_cluster(
    surroundings: Surroundings, access: Access, *, runs_on: bool = False
) -> Iterator["Cluster"]:
    """Connect to a cluster until the block ends.

    Args:
        surroundings: Files, clock and sleep function.
        access: Options for connecting to the cluster.
        runs_on: Whether the command runs until Ctrl-C. If it does not and all servers refuse
            connections, the first request fails within about a second (`Client.fail_if_refused`).

    Raises:
        UsageProblem: The file of client settings is too large or not UTF-8.
        OSError: The file of client settings can't be read.
        InvalidTime: `--timeout` can't be parsed.
        MissingDependency, ConfigError: Raised by `remote.cluster.connect`.
    """
    from tidelog.remote.cluster import connect

    timeout_s = duration_ms(access.timeout) / 1000
    with (
        _named_settings(access),
        connect(
            access.bootstrap,
            _settings(surroundings, access.command_config),
            timeout_s=timeout_s,
            clock=surroundings.env.clock,
        ) as cluster,
    ):
        if not runs_on:
            cluster.fail_if_refused(surroundings.wait)
        yield cluster


@contextmanager
def open_remote(
    surroundings: Surroundings, access: Access, *, runs_on: bool = False
) -> Iterator["RemoteDirectory"]:
    """Open a cluster's topics until the block ends; see `open_cluster`."""
    from tidelog.remote.remote_directory import connect

    with (
        _named_settings(access),
        connect(
            access.bootstrap,
            config=_settings(surroundings, access.command_config),
            timeout_s=duration_ms(access.timeout) / 1000,
            env=surroundings.env,
        ) as remote,
    ):
        if not runs_on:
            remote.cluster.fail_if_refused(surroundings.wait)
        yield remote


def open_topics(
    surroundings: Surroundings,
    place: Place,
    *,
    writable: bool = False,
    create: bool = False,
    runs_on: bool = False,
) -> AbstractContextManager["Directory | RemoteDirectory"]:
    """Open a place's topics until the block ends; see `open_directory` and `open_remote`."""
    if place.access is None:
        return open_directory(surroundings, place.data, writable=writable, create=create)
    return open_remote(surroundings, place.access, runs_on=runs_on)


# Name of the client settings in errors of the library, which does not know their file.
_CLIENT_SETTINGS: Final = "client settings"


@contextmanager
def _named_settings(access: Access) -> Iterator[None]:
    """Let errors in the block that concern `client settings` name the file of the settings."""
    try:
        yield
    except ConfigError as error:
        if access.command_config is None or not error.key.startswith(_CLIENT_SETTINGS):
            raise
        key = error.key.replace(_CLIENT_SETTINGS, access.command_config, 1)
        raise ConfigError(key, error.value, error.allowed) from error


def _settings(surroundings: Surroundings, path: str | None) -> dict[str, str]:
    from tidelog.remote.client_settings import client_settings

    if path is None:
        return {}
    return client_settings(read_settings_text(surroundings, path))


@contextmanager
def open_own_logs(
    surroundings: Surroundings, cluster: "ClusterView", data: str | None
) -> Iterator["OwnLogs | None"]:
    """Open a broker's own directory until the block ends; yields None if `data` is None."""
    from tidelog.remote.own_logs import OwnLogs

    with ExitStack() as stack:
        if data is None:
            yield None
        else:
            directory = stack.enter_context(open_directory(surroundings, data))
            yield OwnLogs(directory, cluster)


_TARGET: Final = re.compile(r"(?P<topic>[^:]+)(?::(?P<partition>[0-9]{1,10}))?", re.ASCII)


def parse_target(target: str) -> tuple[str, int | None]:
    """Parse `TOPIC[:P]` to a topic and a partition (None for all); raises UsageProblem."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise UsageProblem(
            f"{target!r} is invalid; write TOPIC, or TOPIC:P for one partition, as in flights:0"
        )
    number = match["partition"]
    return match["topic"], None if number is None else int(number)


def parse_with_partition(target: str, partition: int | None) -> tuple[str, int | None]:
    """Parse a `TOPIC[:P]` argument; without `:P`, the partition is that of `--partition`.

    Raises:
        UsageProblem: The target is invalid, or the target and `--partition` both give a partition.
    """
    topic, number = parse_target(target)
    if number is not None and partition is not None:
        raise UsageProblem(f"{target} is one partition already; leave --partition out")
    return topic, partition if number is None else number


def parse_choice(target: str, partition: int | None = None) -> str | TopicPartition:
    """Parse `TOPIC[:P]` and `--partition` to a topic, or one of its partitions.

    Raises UsageProblem.
    """
    topic, number = parse_with_partition(target, partition)
    return topic if number is None else TopicPartition(topic, number)


def chosen(
    topic: str, partitions: list[TopicPartition], number: int | None
) -> list[TopicPartition]:
    """Return all partitions, or partition `number`; raises UnknownTopic if it doesn't exist."""
    if number is None:
        return partitions
    names = [name for name in partitions if name.partition == number]
    if not names:
        raise unknown_partition(topic, len(partitions), number)
    return names


def absent_files(
    directory: "Directory | RemoteDirectory",
    topic: str,
    number: int | None,
    access: Access | None = None,
) -> "MissingFile | None":
    """Return the error for partitions that the directory lists although they have no files.

    The result is always None for a cluster, which `access` names. If only partition `number` is
    requested and it has no files, raises UnknownTopic.
    """
    from tidelog.errors import UnknownTopic
    from tidelog.storage.directory.topic_registry import absent_error

    if access is not None:
        return None
    here = cast("Directory", directory)
    info = here.topic(topic)
    if number is None:
        return absent_error(here.path, info)
    if number in info.present or number >= info.partitions:
        return None
    held = ", ".join(map(str, info.present)) or "none"
    raise UnknownTopic(
        f"{topic}:{number} has no files in {here.path}; partitions with files: {held}"
    )


def note_absent(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    topic: str,
    number: int | None,
    access: Access | None = None,
) -> None:
    """Print a note on partitions that the directory lists although they have no files.

    If only partition `number` is requested and it has no files, raises UnknownTopic.
    """
    if error := absent_files(directory, topic, number, access):
        surroundings.note(_absent_text(topic, error))


# Maximum number of topics whose missing partitions are named.
_TOPICS_NAMED_MAX: Final = 3


def note_absent_partitions(
    surroundings: Surroundings, directory: "Directory", infos: "Iterable[TopicInfo]"
) -> None:
    """Print a note on each topic that has partitions without files; see `absent_files`."""
    from tidelog.storage.directory.topic_registry import absent_error

    path = directory.path
    errors = [(info, error) for info in infos if (error := absent_error(path, info))]
    for info, error in errors[:_TOPICS_NAMED_MAX]:
        surroundings.note(_absent_text(info.name, error))
    if more := errors[_TOPICS_NAMED_MAX:]:
        surroundings.note(
            f"{path}: partitions of {plural(len(more), 'more topic')} have no directory, either"
        )


def _absent_text(topic: str, error: "MissingFile") -> str:
    return f"{error.path}: {topic}: {error.reason}; `tidelog doctor` shows what to do"


def with_files(
    directory: "Directory | RemoteDirectory",
    names: list[TopicPartition],
    access: Access | None = None,
) -> list[TopicPartition]:
    """Return the partitions of a topic without those that have no files; see `absent_files`."""
    if access is not None or not names:
        return names
    present = cast("Directory", directory).topic(names[0].topic).present
    return [name for name in names if name.partition in present]


def partitions_of(
    surroundings: Surroundings, directory: "Directory", topic: str, number: int | None
) -> list[TopicPartition]:
    """Return partition `number`, or all partitions of the topic that have files if None.

    Prints a note on partitions that the directory lists although they have no files. Raises
    UnknownTopic, also if partition `number` has no files.
    """
    note_absent(surroundings, directory, topic, number)
    if number is None:
        return with_files(directory, directory.log_dir.partitions(topic))
    directory.partition(topic, number)
    return [TopicPartition(topic, number)]


def all_partitions(
    surroundings: Surroundings,
    directory: "Directory",
    is_selected: "Callable[[TopicInfo], bool]",
) -> list[TopicPartition]:
    """Return the partitions that have files, of each topic for which `is_selected` is true.

    Prints a note on partitions that the directory lists although they have no files.
    """
    infos = [info for info in directory.topics().values() if is_selected(info)]
    note_absent_partitions(surroundings, directory, infos)
    return [TopicPartition(info.name, number) for info in infos for number in info.present]


def parse_topics(texts: tuple[str, ...]) -> list[tuple[str, int | None]]:
    """Parse the texts of `--topic` to pairs of topic and partition; raises UsageProblem.

    The partition is None for all partitions of the topic.
    """
    return [_parse_topic(text) for text in texts]


def _parse_topic(text: str) -> tuple[str, int | None]:
    topic, colon, number = text.partition(":")
    if not topic or (colon and not number.isascii()) or (colon and not number.isdigit()):
        raise UsageProblem(f"--topic {text!r}: write TOPIC or TOPIC:PARTITION, e.g. flights:3")
    return topic, int(number) if colon else None
