"""Reads that fail are logged with their reason: clients are told a code alone.

A client asks again and again, so the same reason is logged once a minute at most.
"""

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.storage.log import Log

_LOGGER: Final = logging.getLogger(__name__)
_AGAIN_MS: Final = 60_000
_TOLD_MAX: Final = 1000
# When what was logged last, by directory and reason; the oldest first.
_TOLD: Final[OrderedDict[tuple[str, str], int]] = OrderedDict()
_LOCK: Final = threading.Lock()


def tell_failure(log: "Log", error: Exception) -> None:
    """Log why a partition could not be read, unless that was done just now. Any thread."""
    key, now_ms = (log.context.directory, str(error)), log.context.env.clock.monotonic_ms()
    with _LOCK:
        told_ms = _TOLD.get(key)
        if told_ms is not None and 0 <= now_ms - told_ms < _AGAIN_MS:
            return
        _TOLD[key] = now_ms
        _TOLD.move_to_end(key)
        if len(_TOLD) > _TOLD_MAX:
            _TOLD.popitem(last=False)
    _LOGGER.error("%s can't be read: %s", log.topic_partition, error)
