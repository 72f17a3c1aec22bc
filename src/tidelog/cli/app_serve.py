"""`tidelog serve`, declared for click."""

import gc
from typing import Final, Literal

import click

from tidelog.cli.options import data_option, examples
from tidelog.cli.surroundings import Surroundings


@click.command(
    "serve",
    epilog=examples(
        "tidelog serve --data data",
        "tidelog serve --data data --listen 127.0.0.1:9093 --set log.retention.hours=24",
        "tidelog serve --data data --config server.properties --durability fsync",
        "tidelog serve --data data --metrics 127.0.0.1:9404 --log-format json",
    ),
)
@data_option
@click.option("--listen", metavar="HOST:PORT", help="Where; `listeners`, else 127.0.0.1:9092.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A broker setting; wins over --config.",
)
@click.option("--config", metavar="FILE", help="Settings: server.properties or FILE.toml.")
@click.option(
    "--durability",
    type=click.Choice(["page-cache", "fsync"]),
    help="What an acknowledgement with acks=all waits for; sets tidelog.durability.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve /metrics, /healthz and /readyz there; sets tidelog.metrics.listen.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How stderr tells what happens: lines, or a JSON object each.",
)
@click.option(
    "--accept-clock",
    is_flag=True,
    help="Append although the clock jumped, or append times lie ahead of it; it is remembered.",
)
@click.option("--insecure", is_flag=True, help="Allow an address that other machines can reach.")
@click.pass_obj
def _serve(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    data: str | None,
    listen: str | None,
    settings: tuple[str, ...],
    config: str | None,
    durability: str | None,
    metrics: str | None,
    log_format: Literal["text", "json"],
    insecure: bool,
    accept_clock: bool,
) -> int:
    """Be a broker that Kafka's clients write to and read from.

    Prints one line when it listens. SIGTERM and Ctrl-C close it cleanly.
    """
    # Imported modules stay; a search for garbage meanwhile takes a tenth of the start.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        from tidelog.cli import serve as command
    finally:
        if was_enabled:
            gc.enable()

    options = command.ServeOptions(
        data=data,
        listen=listen,
        settings=settings,
        config=config,
        durability=durability,
        metrics=metrics,
        log_format=log_format,
        insecure=insecure,
        accept_clock=accept_clock,
    )
    return command.serve(surroundings, options)


COMMANDS: Final[tuple[click.Command, ...]] = (_serve,)
