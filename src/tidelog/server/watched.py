"""Something whose changes others wait for. Belongs to the loop's thread."""

from collections.abc import Callable

Watcher = Callable[[], None]


class Watched:
    """Whom to tell of changes."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` at every change of what readers may see, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Call it no more; fine where it was not watching."""
        self._watchers.pop(watcher, None)

    @property
    def watcher_count(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def notify(self) -> None:
        """Tell all watchers, which may go by that."""
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher()
