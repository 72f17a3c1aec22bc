"""`tidelog serve`: reads settings from a file and options, and runs a broker until a signal.

The module also has two commands that let a broker append again: `tidelog reopen` after a disk
failure, and `tidelog accept-clock` after a clock jump. Before the broker listens, only the modules
that the broker needs are imported.
"""

import asyncio
import gc
import signal
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, cast

import click

from tidelog.cli import completion
from tidelog.cli.options import (
    data_option,
    declared_by,
    examples,
    maybe_target_argument,
    option,
    with_options,
)
from tidelog.cli.places import named, open_directory, parse_target
from tidelog.cli.surroundings import (
    ExitCode,
    Surroundings,
    UsageProblem,
    describe,
    raise_file_limit,
)
from tidelog.errors import ConfigError, ConfigErrors
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import zoned_text

if TYPE_CHECKING:
    from tidelog.config import BrokerConfig
    from tidelog.config.files import SettingsFile
    from tidelog.config.listeners import ListenerPlan

# Thresholds of the garbage collector. With Python's defaults (700, 10, 10) the collector would run
# after a few requests of a rebalancing group.
GARBAGE_THRESHOLDS: Final = (20_000, 20, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `tidelog serve`."""

    data: str | None = declared_by(data_option)
    listen: str | None = option(
        "--listen",
        metavar="HOST:PORT",
        help="Address to listen on. Default: that of `listeners`, else 127.0.0.1:9092.",
    )
    settings: tuple[str, ...] = option(
        "--set",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=completion.broker_settings,
        help="A broker setting; overrides --config; repeatable. Default: that of --config.",
    )
    config: str | None = option(
        "--config",
        metavar="FILE",
        help="File of broker settings: server.properties or FILE.toml. Default: no file; every"
        " setting has its default.",
    )
    durability: str | None = option(
        "--durability",
        type=click.Choice(["page-cache", "fsync"]),
        help="What an acknowledgement with acks=all waits for; sets tidelog.durability. Default:"
        " page-cache.",
    )
    metrics: str | None = option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics, /healthz and /readyz at this address; sets tidelog.metrics.listen."
        " Default: off.",
    )
    log_format: Literal["text", "json"] = option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the log on stderr: lines of text, or JSON objects.",
    )
    accept_clock: bool = option(
        "--accept-clock",
        is_flag=True,
        help="Accept a clock that jumped, or append times ahead of the clock, now and after"
        " restarts. Default: refuse appends.",
    )
    insecure: bool = option(
        "--insecure",
        is_flag=True,
        help="Allow other machines to connect without encryption and authentication. Default:"
        " refuse to start.",
    )


@click.command(
    "serve",
    epilog=examples(
        "tidelog serve --data data",
        "tidelog serve --data data --listen 127.0.0.1:9093 --set log.retention.ms=7d",
        "tidelog serve --data data --config server.properties --durability fsync",
        "tidelog serve --data data --metrics 127.0.0.1:9404 --log-format json",
    ),
)
@with_options(ServeOptions)
def serve(surroundings: Surroundings, options: ServeOptions) -> ExitCode:
    """Run a broker for Kafka clients.

    Prints one line once the broker accepts connections. SIGTERM and Ctrl-C close it cleanly.
    """
    from tidelog.server.logs import logging_to

    raise_file_limit()
    lines = logging_to(surroundings.stderr, options.log_format, surroundings.env.clock)
    with lines, infrequent_garbage_collection():
        if options.log_format == "text":
            _start(surroundings, options)
            return ExitCode.OK
        return _start_with_json_log(surroundings, options)


def _start_with_json_log(surroundings: Surroundings, options: ServeOptions) -> ExitCode:
    """Run a broker that logs JSON objects.

    If an error ends the broker, the error is also logged as a JSON object.
    """
    from tidelog.server.api.node import LOGGER
    from tidelog.server.logs import LOGGED_ONCE

    try:
        _start(surroundings, options)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not surroundings.has_reader:
            raise
        code, text, hint = describe(error)
        LOGGER.error("%s", f"{text}; {hint}" if hint else text, extra=LOGGED_ONCE)
        return code
    return ExitCode.OK


def _start(surroundings: Surroundings, options: ServeOptions) -> None:
    from tidelog.config import amounts_in_errors, plain_settings
    from tidelog.config.listeners import data_directory, ensure_private, parse_endpoint
    from tidelog.server.broker import planned
    from tidelog.server.runtime import loop as loops

    file = _read_file(surroundings, options.config)
    own = _own_settings(options)
    # `--listen` also overrides the file's listeners.
    listen = () if options.listen is None else ("listeners",)
    with _locating_errors(file, {*own, *listen}):
        texts = file.texts | plain_settings(own)
        with amounts_in_errors(own):
            config = _configure(surroundings, options, texts)
        data = named(options.data or data_directory(config))
        endpoint = None if options.listen is None else parse_endpoint(options.listen)
        plans = planned(config, endpoint)
        if not options.insecure:
            ensure_private(config, plans, "--insecure")
        loops.run(_serve(surroundings, data, config, plans, options))


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Run the garbage collector less often during the block.

    Requests create few reference cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _read_file(surroundings: Surroundings, name: str | None) -> "SettingsFile":
    from tidelog.config.files import SettingsFile, read_settings
    from tidelog.storage.files import read_file

    if name is None:
        return SettingsFile("", {})
    try:
        content = bytes(read_file(surroundings.env.files, name))
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"--config {name}") from error
    return read_settings(name, content)


def _own_settings(options: ServeOptions) -> dict[str, str]:
    """Return the settings from the command line, which override the settings of the file."""
    from tidelog.config.listeners import parse_endpoint, parse_settings

    texts = parse_settings(options.settings)
    if options.durability is not None:
        texts["tidelog.durability"] = options.durability
    if options.metrics is not None:
        endpoint = parse_endpoint(options.metrics, name="--metrics")
        texts["tidelog.metrics.listen"] = str(endpoint)
    return texts


@contextmanager
def _locating_errors(file: "SettingsFile", own: Container[str]) -> Iterator[None]:
    """Add the file's name and the line to errors about settings in the file.

    An error about a setting that `own` overrides gets no line, because the value is not from the
    file.
    """
    try:
        yield
    except ConfigError as error:
        errors = error.errors if isinstance(error, ConfigErrors) else (error,)
        lines = [
            f"{file.location_of(each.key)}: {each}"
            if each.key in file.texts and each.key not in own
            else str(each)
            for each in errors
        ]
        raise UsageProblem("; ".join(lines)) from error


def _configure(
    surroundings: Surroundings, options: ServeOptions, texts: dict[str, str]
) -> "BrokerConfig":
    """Parse all settings together; print or log the notes about them."""
    from tidelog.config import BrokerConfig
    from tidelog.server.api.node import LOGGER
    from tidelog.server.logs import LOGGED_ONCE

    config, notes = BrokerConfig.parse(texts)
    for note in notes:
        if options.log_format == "json":
            LOGGER.info("%s", note, extra=LOGGED_ONCE)
        else:
            surroundings.note(f"{note}")
    return config


def _stop_signals() -> Iterator[signal.Signals]:
    """Yield the signals that stop the broker.

    SIGHUP is left out if the process ignores it, for example under `nohup`.
    """
    yield from (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP


async def _serve(
    surroundings: Surroundings,
    data: str,
    config: "BrokerConfig",
    plans: "Sequence[ListenerPlan]",
    options: ServeOptions,
) -> None:
    from tidelog.config.listeners import Endpoint
    from tidelog.server.broker import Server, open_node

    server = Server(open_node(data, config, env=surroundings.env))
    if options.accept_clock:
        server.node.log_dir.accept_clock()  # accepts the clock before any client can append
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _stop_signals():
        loop.add_signal_handler(number, stopping.set)
    try:
        ports = await server.open_listeners(plans)
        endpoints = ", ".join(str(Endpoint(plan.endpoint.host, ports[plan.name])) for plan in plans)
        surroundings.hand_over(f"listening on {endpoints}, data in {data}\n")
        if surroundings.stderr.isatty() and options.log_format == "text":
            first = plans[0]
            endpoint = Endpoint(first.endpoint.host, ports[first.name])
            surroundings.hint(f"try: kcat -b {endpoint} -L")
            surroundings.hint("Ctrl-C stops the broker")
        await stopping.wait()
    finally:
        await server.stop()
    damage = server.node.log_dir.open_partitions.damage()
    # the other partitions were served, but the exit code must report the damage
    if damage is not None:
        raise damage


@click.command(
    "reopen",
    epilog=examples(
        "tidelog reopen --data data",
        "tidelog reopen flights:0 --data data",
    ),
)
@maybe_target_argument
@data_option
@click.pass_obj
def reopen(surroundings: Surroundings, target: str | None, data: str | None) -> ExitCode:
    """Reopen partitions that went offline after a disk failure.

    Acknowledged records are recovered first. Other partitions are not affected. Default: all
    offline partitions.
    """
    from tidelog.control.client import find_holder

    data = named(data)
    topic, partition = (None, None) if target is None else parse_target(target)
    holder = find_holder(data)
    if holder is None and not surroundings.env.files.exists(data):
        raise UsageProblem(f"{data}: no such directory")
    if holder is None:
        raise UsageProblem(
            f"{data}: no broker is running; `tidelog serve` recovers offline partitions when it"
            " starts"
        )
    with holder:
        response = holder.call("reopen", {"topic": topic, "partition": partition})
    names = cast("list[str]", response["reopened"])
    for name in names:
        surroundings.stdout.write(f"{name}: reopened\n")
    if not names:
        surroundings.note("no partition was offline")
    return ExitCode.OK


@click.command(
    "accept-clock",
    epilog=examples("tidelog accept-clock --data data"),
)
@data_option
@click.pass_obj
def accept_clock(surroundings: Surroundings, data: str | None) -> ExitCode:
    """Accept a clock that jumped, so that appends continue.

    Appends stop if the clock jumps ahead by more than tidelog.max.clock.jump.ms, or if the last
    append time is that far ahead of the clock. This command lets appends continue, now and
    after restarts. If a process such as a broker has the directory open, the command is sent to
    this process; otherwise, the command itself changes the directory.
    """
    from tidelog.control.client import find_holder

    data = named(data)
    holder = find_holder(data)
    if holder is None:
        with open_directory(surroundings, data, writable=True) as directory:
            accepted_ms = directory.log_dir.accept_clock()
    else:
        with holder:
            accepted_ms = cast("int", holder.call("accept_clock", {})["accepted_ms"])
    ahead = accepted_ms > surroundings.env.clock.now_ms()
    until = (
        f"; append times up to {zoned_text(accepted_ms)}, which is ahead of the clock, are"
        " accepted, too"
        if ahead
        else ""
    )
    surroundings.stdout.write(f"{data}: clock accepted, appends continue{until}\n")
    return ExitCode.OK
