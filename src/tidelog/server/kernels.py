"""Loads the kernels beside the loop, once the broker listens; until then the plain code works.

Loading takes half a second where compiled code is kept, and seconds where it is not: another
process compiles it then, since a thread that compiles holds up all others. While a thread loads,
the collector of garbage rests (with what numba brings one collection holds up the loop for longer
than all the rest), and the interpreter changes threads ten times as often as it would.
"""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidelog.record.builder import build_batch
from tidelog.record.header import HEADER_SIZE
from tidelog.types import NewRecord

LOGGER: Final = logging.getLogger("tidelog.server")
_COMPILE: Final = "from tidelog.server.kernels import load; load()"
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
                _compile_elsewhere()
                _load_quietly()
            except ImportError as error:
                LOGGER.warning("records are checked by plain Python, slowly: %s", error)
                return False
            except Exception:
                LOGGER.exception("kernels can't be loaded; records are checked by plain Python")
                return False
            _is_loaded.set()
    return True


def _load_quietly() -> None:
    was_enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(min(interval_s, SWITCH_S))
    try:
        load()
    finally:
        sys.setswitchinterval(interval_s)
        if was_enabled:
            gc.enable()


def _compile_elsewhere() -> None:
    """Let another process compile what is not kept; where that fails, this one does it."""
    from tidelog.record.kernels.compiler import is_kept
    from tidelog.record.kernels.validate import validate_batch_body

    if not is_kept(validate_batch_body):
        command = [sys.executable, "-c", _COMPILE]
        with suppress(OSError):
            subprocess.run(  # noqa: S603 - our own interpreter, our own words
                command, check=False, stdin=subprocess.DEVNULL, capture_output=True
            )


def load() -> None:
    """Run each kernel that a broker calls once, on one record; raises ImportError without numba."""
    import numpy as np

    from tidelog.record.kernels.lookup import find_time, find_time_in_segment
    from tidelog.record.kernels.validate import check_body
    from tidelog.storage import kernel_search  # noqa: F401 - so that its first user need not wait

    batch = bytes(build_batch([NewRecord(value=b"", timestamp=1)]))
    check_body(batch[HEADER_SIZE:], 1, 1)
    log, empty = np.frombuffer(batch, np.uint8), np.frombuffer(b"", np.uint8)
    find_time(log, 0, 1, 0)
    find_time_in_segment(log, empty, empty, 0, 1, 0)
