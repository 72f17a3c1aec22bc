"""CPU time of commands on the demo's log: 336,776 flights of 2013, each appended at its departure.

Each command runs in its own process, and the figure is the CPU time of this process. The rival is
the bare interpreter (`python -c pass`). If kcat is installed, it is compared with `read`.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench.harness import Case

_UNIT: Final = "CPU ms"
_GOAL_MS: Final = 200
_COMMANDS: Final = (
    ("topics",),
    ("read", "flights", "--limit", "5"),
    ("offsets", "flights", "--at", "2013-02-08 12:00 America/New_York"),
    ("describe", "flights"),
    ("config", "flights"),
    ("why", "flights"),
)
_QUICK_FLIGHTS: Final = 20_000
_KCAT: Final = "kcat"


def _cpu_ms(command: list[str]) -> float:
    """Run a command; return the CPU time of its process in ms."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_environment())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return (usage.ru_utime + usage.ru_stime) * 1000


def _environment() -> dict[str, str]:
    """Return the environment of a user, in which Python caches compiled modules."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def _make_log(folder: str, *, quick: bool) -> str:
    """Load the demo's flights; return the directory."""
    import numpy as np
    from examples.demo.flights import PARTITIONS, flights_of, load, read_source, source_path

    flights = flights_of(read_source(source_path()))
    if quick:
        flights = flights.where(np.arange(len(flights)) < _QUICK_FLIGHTS)
    path = str(Path(folder) / "log")
    load(path, flights, flights.partitions(PARTITIONS), lambda _count: None)
    return path


def _tidelog(*words: str) -> list[str]:
    return [sys.executable, "-m", "tidelog.cli.app", *words]


def cases(quick: bool) -> Iterator[Case]:
    """Yield a case for each command, and, if kcat is installed, `tidelog read` against kcat."""
    folder = tempfile.TemporaryDirectory(prefix="tidelog-bench-cli-")
    atexit.register(folder.cleanup)
    log = _make_log(folder.name, quick=quick)
    for words in _COMMANDS:
        command = _tidelog(*words, "--data", log)
        yield Case(
            case=" ".join(("tidelog", *words)),
            unit=_UNIT,
            ours=partial(_cpu_ms, command),
            rival=lambda: _cpu_ms([sys.executable, "-c", "pass"]),
            rival_name="python -c pass",
            goal=f"ours <= {_GOAL_MS}",
            note="CPU time of a new process in each round, without other programs on the machine",
        )
    if shutil.which(_KCAT) is not None:
        yield from _beside_kcat(log)


def _beside_kcat(log: str) -> Iterator[Case]:
    """Yield a case that reads five records of a broker with `tidelog read` and with kcat."""
    import tidelog

    with tidelog.broker(log) as broker:
        address = broker.bootstrap_servers
        ours = _tidelog("read", "flights", "--limit", "5", "--bootstrap", address)
        kcat = [_KCAT, "-b", address, "-C", "-t", "flights", "-c", "5", "-q"]
        yield Case(
            case="tidelog read flights --limit 5 --bootstrap",
            unit=_UNIT,
            ours=lambda: _cpu_ms(ours),
            rival=lambda: _cpu_ms(kcat),
            rival_name=_KCAT,
            note="both read the same records of one broker; the broker's CPU time is not included",
        )
