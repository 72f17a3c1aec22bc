"""Options of the commands about other people's brokers; light, so that `--help` stays quick."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from shlex import quote
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.options import data_option
from tidelog.cli.problems import UsageProblem

_Function = TypeVar("_Function", bound=Callable[..., object])

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


# -- a directory or a cluster --------------------------------------------------------------------

_any_bootstrap: Final = click.option(
    "--bootstrap",
    "-b",
    envvar="TIDELOG_BOOTSTRAP",
    metavar="HOST:PORT",
    help="Brokers to ask in place of a directory, with commas between.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where topics are: a directory, or a cluster; neither where nothing was said.

    Attributes:
        data: The directory.
        access: How to reach the cluster.
    """

    data: str | None = None
    access: Access | None = None

    @property
    def words(self) -> str:
        """The options that name it, for a command that a message advises: ` --bootstrap h:9092`."""
        access = self.access
        if access is None:
            given = {"--data": self.data}
        else:
            given = {"--bootstrap": access.bootstrap, "--command-config": access.command_config}
        return "".join(f" {name} {quote(text)}" for name, text in given.items() if text)


def place_options(command: _Function) -> Callable[..., object]:
    """`--data`, or `--bootstrap` and what goes with it; the command gets a `place`."""

    @wraps(command)
    def run(
        *arguments: object,
        data: str | None,
        bootstrap: str | None,
        command_config: str | None,
        timeout: str,
        **options: object,
    ) -> object:
        access = None
        if bootstrap is not None:
            access = Access(bootstrap=bootstrap, command_config=command_config, timeout=timeout)
        return command(*arguments, place=_chosen(data, access), **options)

    return data_option(_any_bootstrap(command_config_option(timeout_option(run))))


def _chosen(data: str | None, access: Access | None) -> Place:
    """One of the two: what was typed goes before what the environment says.

    Raises:
        UsageProblem: Both were typed, or both come from the environment.
    """
    context = click.get_current_context()

    def is_typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    if data is not None and access is not None:
        if is_typed("data") == is_typed("bootstrap"):
            raise UsageProblem("--data is a directory, --bootstrap a cluster; give one of them")
        data, access = (data, None) if is_typed("data") else (None, access)
    if access is None and (is_typed("command_config") or is_typed("timeout")):
        raise UsageProblem("--command-config and --timeout go with --bootstrap")
    return Place(data=data, access=access)
