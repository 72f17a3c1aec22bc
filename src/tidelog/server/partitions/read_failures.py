"""Log lines about partitions that can't be read, with a limit on repeated lines."""

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.storage.log.log import Log

_LOGGER: Final = logging.getLogger(__name__)
_AGAIN_MS: Final = 60_000
_LOG_TIMES_MAX: Final = 1000

# Monotonic time in ms of the last log line for each directory and reason, the oldest first.
_LOG_TIMES: Final[OrderedDict[tuple[str, str], int]] = OrderedDict()

_LOCK: Final = threading.Lock()


def log_failure(log: "Log", error: Exception) -> None:
    """Log why a partition could not be read, at most once a minute for each reason.

    Any thread may call this.
    """
    key, now_ms = (log.context.directory, str(error)), log.context.env.clock.monotonic_ms()
    with _LOCK:
        last_ms = _LOG_TIMES.get(key)
        if last_ms is not None and 0 <= now_ms - last_ms < _AGAIN_MS:
            return
        _LOG_TIMES[key] = now_ms
        _LOG_TIMES.move_to_end(key)
        if len(_LOG_TIMES) > _LOG_TIMES_MAX:
            _LOG_TIMES.popitem(last=False)
    _LOGGER.error("%s can't be read: %s", log.topic_partition, error)
