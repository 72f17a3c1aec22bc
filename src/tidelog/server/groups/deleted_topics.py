"""Topics that were deleted, for groups that are loaded behind that.

A deletion is carried out on groups that are there. Others have their offsets of it still: those of
a partition of `__consumer_offsets` that is being read, or was lost before all of it was written.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.server.groups.offsets import DeletedTopic

# Far more than are deleted while a partition is read; some megabytes.
TOPICS_MAX: Final = 10_000


class DeletedTopics:
    """The last ones since the start. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._topics: deque[DeletedTopic] = deque(maxlen=TOPICS_MAX)

    def add(self, gone: DeletedTopic) -> None:
        """One more."""
        self._topics.append(gone)

    def by_name(self) -> Mapping[str, Sequence[DeletedTopic]]:
        """All that are known, of each name in their order."""
        found: dict[str, list[DeletedTopic]] = {}
        for gone in self._topics:
            found.setdefault(gone.name, []).append(gone)
        return found
