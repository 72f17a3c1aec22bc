"""Options of the commands about other people's brokers; light, so that `--help` stays quick."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import click

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
