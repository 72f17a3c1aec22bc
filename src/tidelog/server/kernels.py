"""Loads the kernels beside the loop, once the broker listens; until then the plain code works.

Loading takes half a second where compiled code is kept, and seconds where it is not: another
process compiles all of it then, since a thread that compiles holds up all others, and requests that
wait for what it has before it. A thread that loads does
so, too, wherever Python lets no other run, so that is done in small pieces:

- Shared libraries are loaded before Python asks for them, by a call that stops nobody
  (`shared_objects`).
- The collector of garbage rests, and takes what has come in for old afterwards: to look through
  what numba brings holds up the loop for longer than all the rest.
- The interpreter changes threads ten times as often as it would.

What LLVM's library took of memory for it is given back.
"""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final

from tidelog.record.builder import build_batch
from tidelog.record.header import HEADER_SIZE
from tidelog.record.legacy_builder import build_legacy_set
from tidelog.server.shared_objects import give_back, libraries, preload
from tidelog.server.slices import take_as_old
from tidelog.types import Codec, NewRecord

if TYPE_CHECKING:
    from tidelog.record.kernels.compiler import Kernel

LOGGER: Final = logging.getLogger("tidelog.server")
_COMPILE: Final = "from tidelog.server.kernels import compile_once; compile_once()"
# So long the loop waits for its turn while modules are run; Python's own is 5 ms.
SWITCH_S: Final = 0.0005
_is_loaded = threading.Event()
_is_loading = threading.Lock()


def load_beside(done: Callable[[], None]) -> None:
    """Load in a thread, then call `done` on the running loop; never, where numba is missing."""
    if _is_loaded.is_set():
        done()
        return
    loop = asyncio.get_running_loop()

    def run() -> None:
        if _load_once():
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name="tidelog-kernels", daemon=True).start()


def _load_once() -> bool:
    with _is_loading:
        if not _is_loaded.is_set():
            try:
                with _quietly():
                    preload(libraries())
                    is_kept = _is_compiled()
                if not is_kept:
                    _compile_elsewhere()
                with _quietly():
                    load()
                give_back(libraries())
            except ImportError as error:
                LOGGER.warning("records are checked by plain Python, slowly: %s", error)
                return False
            except Exception:
                LOGGER.exception("kernels can't be loaded; records are checked by plain Python")
                return False
            _is_loaded.set()
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """Let other threads run as much as they like for a block."""
    was_enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(min(interval_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        take_as_old()  # else it would be looked through at once
        if was_enabled:
            gc.enable()


def _is_compiled() -> bool:
    """Whether compiled code is kept of all kernels; imports numba."""
    from tidelog.record.kernels.compiler import is_kept

    return all(is_kept(each) for each in used_kernels())


def used_kernels() -> "list[Kernel[..., object]]":
    """The kernels that threads of a broker run."""
    from tidelog.record.kernels import (
        checksums,
        latencies,
        latest,
        lookup,
        messages,
        scan,
        sums,
        times,
        validate,
        zones,
    )

    return [
        validate.validate_batch_body,
        lookup.find_time,
        lookup.find_time_in_segment,
        messages.check_messages,
        messages.assign_messages,
        # Of logs of the broker's own that are read.
        latest.find_latest,
        # Of the metrics.
        latencies.count_latencies,
        checksums.fill_shifts,
        # Of the zone map of a finished segment: acknowledgements may wait behind it.
        scan.scan_batches,
        sums.fill_tables,
        times.mark_lost_creates,
        zones.describe_batches,
        zones.sum_batches,
        zones.fold_zones,
        zones.sum_zones,
    ]


def are_loaded() -> bool:
    """Whether kernels may be called: they are compiled, and in this process."""
    return _is_loaded.is_set()


def _compile_elsewhere() -> None:
    """Let another process compile what is not kept; where that fails, this one does it."""
    command = [sys.executable, "-c", _COMPILE]
    with suppress(OSError):
        subprocess.run(  # noqa: S603 - our own interpreter, our own words
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True
        )


def compile_once() -> None:
    """What a process does that compiles: nothing but wait where another one of them is at it.

    A broker that is killed leaves it behind, and the next one starts another: they go on one after
    the other, and only the first has work to do.
    """
    from tidelog.storage.kernel_cache import SOURCES, alone, choose_cache

    folder = choose_cache(SOURCES)
    with alone(folder, "broker") if folder is not None else nullcontext():
        if not _is_compiled():
            compile_all()


def compile_all() -> None:
    """Run every kernel that a broker may run, on a log of its own."""
    from tempfile import TemporaryDirectory

    from tidelog.storage import zone_files
    from tidelog.storage.closed import ClosedSegment
    from tidelog.storage.log_dir import LogDir, LogDirOptions

    load()
    with (
        TemporaryDirectory(prefix="tidelog-") as folder,
        LogDir.open(folder, options=LogDirOptions(create=True)) as log_dir,
    ):
        log_dir.create_topic("t")
        log = log_dir.log("t", 0)
        for codec in (Codec.NONE, Codec.GZIP):
            log.append([NewRecord(value=b"", timestamp=1)], codec=codec)
        log.roll()
        for segment in log.segments:
            if isinstance(segment, ClosedSegment):
                zone_files.write(segment, by_kernels=True)


def load() -> None:
    """Run what requests wait for once, on one record, and import the rest.

    Raises:
        ImportError: There is no numba.
    """
    import numpy as np

    from tidelog.record.kernels.latencies import count_latencies
    from tidelog.record.kernels.layout import BATCH_FIELDS
    from tidelog.record.kernels.lookup import find_time, find_time_in_segment
    from tidelog.record.kernels.scan import scan_batches
    from tidelog.record.kernels.validate import check_body
    from tidelog.record.latest_records import SECRET_BYTES, LatestFinder
    from tidelog.storage import (  # so that their first users need not wait
        kernel_search,  # noqa: F401
        zone_kernels,  # noqa: F401
    )
    from tidelog.storage.kernel_sets import KernelPasses
    from tidelog.storage.set_check import SetRules, Stamp

    batch = bytes(build_batch([NewRecord(value=b"", timestamp=1)]))
    check_body(batch[HEADER_SIZE:], 1, 1)
    body, bounds = np.frombuffer(batch[HEADER_SIZE:], np.uint8), np.zeros(1, np.int64)
    count_latencies(body, 1, 1, 1, bounds, np.zeros(2, np.int64))
    log, empty = np.frombuffer(batch, np.uint8), np.frombuffer(b"", np.uint8)
    find_time(log, 0, (0, 1), 1, 0)
    find_time_in_segment(log, empty, empty, (0, 1), 1, 0)
    table = np.empty((1, BATCH_FIELDS), np.int64)
    scan_batches(log, 0, log.size, table, 0, 1)
    LatestFinder(bytes(SECRET_BYTES)).find(batch, table)
    messages, passes = build_legacy_set([NewRecord(value=b"")], magic=0), KernelPasses()
    rules = SetRules(needs_key=False, checks_times=False, earliest_ms=0, latest_ms=0)
    passes.check(bytes(messages), 0, rules, 0)
    passes.assign(messages, 0, 0, Stamp(None, 0))
