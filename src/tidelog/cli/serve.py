"""`tidelog serve`: settings from file and options, a broker until a signal ends it."""

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tidelog.cli.file_limit import raise_file_limit
from tidelog.cli.problems import NO_DATA, ExitCode, UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.config import BrokerConfig
from tidelog.server import loops
from tidelog.server.logs import LogFormat, logging_to
from tidelog.server.security.listeners import ListenerPlan
from tidelog.server.server import Server, open_node, planned
from tidelog.server.settings import (
    Endpoint,
    parse_endpoint,
    parse_settings,
    read_settings,
)
from tidelog.storage.files import read_file

# Python's own are 700, 10 and 10: a few requests of a group that changes bring as many objects.
GARBAGE_THRESHOLDS: Final = (20_000, 20, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the options say; texts are not read yet."""

    data: str | None
    listen: str | None = None
    settings: tuple[str, ...] = ()
    config: str | None = None
    durability: str | None = None
    metrics: str | None = None
    log_format: LogFormat = "text"
    insecure: bool = False


def serve(surroundings: Surroundings, options: ServeOptions) -> ExitCode:
    """Serve until a signal says stop."""
    raise_file_limit()
    config = _configure(surroundings, options)
    data = options.data or config.log_dirs
    if not data:
        raise UsageProblem(NO_DATA)
    plans = _listen_at(options, config)
    if config.tidelog_metrics_listen:
        place = parse_endpoint(config.tidelog_metrics_listen, name="--metrics")
        _refuse_open(place, options)
    lines = logging_to(surroundings.stderr, options.log_format, surroundings.env.clock)
    with lines, looking_for_garbage_rarely():
        loops.run(_serve(surroundings, data, config, plans))
    return ExitCode.OK


@contextmanager
def looking_for_garbage_rarely() -> Iterator[None]:
    """Let more come in between two searches for cycles: requests leave next to none."""
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _configure(surroundings: Surroundings, options: ServeOptions) -> BrokerConfig:
    """All settings together; those of the command line win over the file's."""
    given: dict[str, str] = {}
    if options.config is not None:
        try:
            content = bytes(read_file(surroundings.env.files, options.config)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageProblem(f"--config {options.config}: {error}") from error
        given |= read_settings(options.config, content)
    given |= parse_settings(options.settings)
    if options.durability is not None:
        given["tidelog.durability"] = options.durability
    if options.metrics is not None:
        given["tidelog.metrics.listen"] = options.metrics
    config, notes = BrokerConfig.parse(given)
    for note in notes:
        surroundings.say(f"note: {note}")
    return config


def _listen_at(options: ServeOptions, config: BrokerConfig) -> tuple[ListenerPlan, ...]:
    place = None if options.listen is None else parse_endpoint(options.listen)
    plans = planned(config, place)
    for plan in plans:
        if not plan.is_safe(config):
            _refuse_open(plan.place, options)
    return plans


def _refuse_open(place: Endpoint, options: ServeOptions) -> None:
    if not place.is_loopback and not options.insecure:
        raise UsageProblem(
            f"{place} can be reached by other machines, and is not encrypted or asks nobody who he"
            " is; let it be SASL_SSL, listen on 127.0.0.1, or say --insecure"
        )


async def _serve(
    surroundings: Surroundings, data: str, config: BrokerConfig, plans: Sequence[ListenerPlan]
) -> None:
    server = Server(open_node(data, config, env=surroundings.env))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        try:
            ports = await server.open_doors(plans)
        except OSError as error:
            asked = ", ".join(str(plan.place) for plan in plans)
            raise UsageProblem(f"can't listen on {asked}: {error}") from error
        found = ", ".join(str(Endpoint(plan.place.host, ports[plan.name])) for plan in plans)
        surroundings.stdout.write(f"listening on {found}, data in {data}\n")
        surroundings.stdout.flush()
        await stopping.wait()
    finally:
        await server.stop()
