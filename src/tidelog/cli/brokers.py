"""What commands about other people's brokers share: connection, directory beside them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tidelog.cli.cluster_options import Access
from tidelog.cli.opening import open_directory
from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings, read_settings_text
from tidelog.timespec import parse_duration
from tidelog.types import NS_PER_MS

if TYPE_CHECKING:
    from tidelog.cluster.connection import Cluster
    from tidelog.cluster.own import OwnLogs
    from tidelog.cluster.remote_directory import RemoteDirectory
    from tidelog.cluster.view import ClusterView


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


@contextmanager
def open_remote(surroundings: Surroundings, access: Access) -> Iterator["RemoteDirectory"]:
    """The cluster's topics until the block ends; errors as `open_cluster`."""
    from tidelog.cluster.remote_directory import connect

    with connect(
        access.bootstrap,
        config=_settings(surroundings, access.command_config),
        timeout_s=duration_ms(access.timeout) / 1000,
        env=surroundings.env,
    ) as remote:
        yield remote


def _settings(surroundings: Surroundings, path: str | None) -> dict[str, str]:
    from tidelog.cluster.properties import client_settings

    if path is None:
        return {}
    return client_settings(read_settings_text(surroundings, path))


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
    return -(-parse_duration(text) // NS_PER_MS)


def wanted_topics(texts: tuple[str, ...]) -> list[tuple[str, int | None]]:
    """Topics and partitions out of texts such as `flights` and `flights:3`."""
    return [_wanted_topic(text) for text in texts]


def _wanted_topic(text: str) -> tuple[str, int | None]:
    topic, colon, number = text.partition(":")
    if not topic or (colon and not number.isascii()) or (colon and not number.isdigit()):
        raise UsageProblem(f"--topic {text!r}: write TOPIC or TOPIC:PARTITION, e.g. flights:3")
    return topic, int(number) if colon else None
