"""What commands about other people's brokers share: options, connection, directory beside them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from tidelog.cli.opening import open_directory
from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.timespec import parse_duration

if TYPE_CHECKING:
    from tidelog.cluster.connection import Cluster
    from tidelog.cluster.own import OwnLogs
    from tidelog.cluster.view import ClusterView

_Function = TypeVar("_Function", bound=Callable[..., object])

# Client settings, certificates included, are smaller than this.
_CONFIG_LIMIT_BYTES = 1 << 20
_NS_PER_MS = 1_000_000

bootstrap_option = click.option(
    "--bootstrap",
    "-b",
    required=True,
    envvar="TIDELOG_BOOTSTRAP",
    metavar="HOST:PORT",
    help="Brokers of the cluster, with commas between.",
)
command_config_option = click.option(
    "--command-config", metavar="FILE", help="Client settings (security), as for Kafka's tools."
)
timeout_option = click.option(
    "--timeout", default="15s", show_default=True, metavar="TIME", help="Of each request."
)
topics_option = click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="T[:P]",
    help="A topic, or one of its partitions; repeatable. All of the group's if left out.",
)
own_data_option = click.option(
    "--data",
    "-d",
    metavar="DIR",
    help="The cluster's own directory, for append times and exact counts.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach a cluster, as options say it."""

    bootstrap: str
    command_config: str | None = None
    timeout: str = "15s"


def cluster_options(command: _Function) -> _Function:
    """The three options of `Access`."""
    return bootstrap_option(command_config_option(timeout_option(command)))


@contextmanager
def open_cluster(surroundings: Surroundings, access: Access) -> Iterator["Cluster"]:
    """A connection until the block ends.

    Raises:
        UsageProblem: The file of settings can't be read.
        MissingDependency, ConfigError: As `connection.connect`.
    """
    from tidelog.cluster.connection import connect

    timeout_s = duration_ms(access.timeout) / 1000
    settings = _settings(surroundings, access.command_config)
    with connect(
        access.bootstrap, settings, timeout_s=timeout_s, clock=surroundings.env.clock
    ) as cluster:
        yield cluster


def _settings(surroundings: Surroundings, path: str | None) -> dict[str, str]:
    from tidelog.cluster.properties import client_settings

    if path is None:
        return {}
    file = surroundings.env.files.open(path)
    try:
        content = file.pread(_CONFIG_LIMIT_BYTES + 1, 0)
    finally:
        file.close()
    if len(content) > _CONFIG_LIMIT_BYTES:
        raise UsageProblem(f"{path}: over {_CONFIG_LIMIT_BYTES} bytes, no file of settings")
    try:
        return client_settings(content.decode())
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{path}: not UTF-8: {error}") from error


@contextmanager
def open_own_logs(
    surroundings: Surroundings, cluster: "ClusterView", data: str | None
) -> Iterator["OwnLogs | None"]:
    """The cluster's own directory until the block ends, None where none is given."""
    from tidelog.cluster.own import OwnLogs

    with ExitStack() as stack:
        if data is None:
            yield None
        else:
            directory = stack.enter_context(open_directory(surroundings, data))
            yield OwnLogs(directory, cluster)


def duration_ms(text: str) -> int:
    """A length of time in ms, a started one counts whole; raises InvalidTime."""
    return -(-parse_duration(text) // _NS_PER_MS)


def wanted_topics(texts: tuple[str, ...]) -> list[tuple[str, int | None]]:
    """Topics and partitions out of texts such as `flights` and `flights:3`."""
    return [_wanted_topic(text) for text in texts]


def _wanted_topic(text: str) -> tuple[str, int | None]:
    topic, colon, number = text.partition(":")
    if not topic or (colon and not number.isascii()) or (colon and not number.isdigit()):
        raise UsageProblem(f"--topic {text!r}: write TOPIC or TOPIC:PARTITION, e.g. flights:3")
    return topic, int(number) if colon else None
