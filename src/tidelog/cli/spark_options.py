"""Options that the commands on Spark share; light, so that `--help` stays quick."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., object])

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
