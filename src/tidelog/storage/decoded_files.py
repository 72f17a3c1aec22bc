"""What small files said when they were last read, so that nobody decodes them anew at each look.

A file counts as the same while its size, its time and its identity are: that is enough where all
who write it hold the directory's lock, append or replace it, and put here what they have written.

Safe for several threads.
"""

import threading
from collections import OrderedDict
from typing import Final

from tidelog.env import FileStat

# Of what the values say they weigh. A key in a sample takes some 250 bytes: 32 MB.
WEIGHT_MAX: Final = 1 << 17


class DecodedFiles:
    """Contents by path, the least recently used go first."""

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        """Nothing is known.

        Args:
            weight_max: What all of them may weigh; one that weighs more is not kept.
        """
        self._weight_max = weight_max
        self._weight = 0
        self._kept: OrderedDict[str, tuple[FileStat, object, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, path: str, stat: FileStat) -> object | None:
        """What the file said; None where that is not known, or it is another one by now."""
        with self._lock:
            known = self._kept.get(path)
            if known is None or known[0] != stat:
                return None
            self._kept.move_to_end(path)
            return known[1]

    def keep(self, path: str, stat: FileStat, content: object, weight: int) -> None:
        """Remember what a file says.

        Args:
            path: Its name.
            stat: What it is known by, as it was before it was read, or after it was written.
            content: What it says; whoever gets it leaves it as it is.
            weight: In whatever all of them are weighed in.
        """
        with self._lock:
            self._drop(path)
            self._kept[path] = stat, content, weight
            self._weight += weight
            while self._weight > self._weight_max:
                self._drop(next(iter(self._kept)))

    def _drop(self, path: str) -> None:
        known = self._kept.pop(path, None)
        self._weight -= 0 if known is None else known[2]

    def clear(self) -> None:
        """Forget all, as where names may stand for other files."""
        with self._lock:
            self._kept.clear()
            self._weight = 0
