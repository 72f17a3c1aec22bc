"""Compiles native code in a process of its own while the demo loads its flights.

Code is compiled at its first use on a machine and cached. A fresh machine needs most of a minute of
CPU for the code of the demo: beside the load, on another core, it costs little time.
"""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

import tidelog
from tidelog.demo import questions
from tidelog.record.kernels.compiler import is_kept
from tidelog.record.kernels.offset_map import map_batches

if TYPE_CHECKING:
    from subprocess import Popen

_TOPIC: Final = "flights"
_RECORDS: Final = 3
# A time after all records: the year 2100.
_FAR_MS: Final = 4_102_444_800_000


def start(folder: Path) -> "Popen[bytes] | None":
    """Start compiling; None if the code is there.

    Args:
        folder: Folder for a small log, made here.
    """
    if is_kept(map_batches):  # the last one that `compile_all` needs
        return None
    command = [sys.executable, "-m", __name__, str(folder)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=nowhere, stderr=nowhere)  # noqa: S603 - our own module


def stop(compiler: "Popen[bytes] | None") -> None:
    """End the process if it still runs."""
    if compiler is not None:
        compiler.kill()
        compiler.wait()


def compile_all(folder: Path) -> None:
    """Read, query and compact a log of a few records as the demo does its own."""
    path = str(folder)
    with tidelog.open(path, writable=True) as directory:
        directory.create_topic(_TOPIC)
        rows = [tidelog.NewRecord(key=b"k%d" % n, value=b"{}") for n in range(_RECORDS)]
        directory.append(_TOPIC, rows)
    questions.count_crossing(path, 1, 0, _FAR_MS)
    with tidelog.open(path, writable=True) as directory:
        directory.create_topic(questions.AIRCRAFT_TOPIC, config={"cleanup.policy": "compact"})
        times = pa.array(range(1, _RECORDS + 1), pa.timestamp("ms", "UTC"))
        keys = pa.array([b"N1"] * _RECORDS)
        table = pa.table({"key": keys, "value": pa.array([b"{}"] * _RECORDS), "timestamp": times})
        directory.append_table(questions.AIRCRAFT_TOPIC, table)
    questions.state_as_of(path, _RECORDS)
    questions.compact(path)


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))
