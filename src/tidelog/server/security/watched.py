"""What stands in files that people replace while the broker runs."""

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tidelog.env import FileStat, FileSystem
from tidelog.errors import TidelogError

_LOGGER: Final = logging.getLogger("tidelog.server")
Content = TypeVar("Content")


class Watched(Generic[Content]):
    """What files say: read again when one of them has changed. Any thread may ask.

    New files that can't be used are logged once, and what the old ones said goes on to hold: a
    half-written file must not close the door.
    """

    def __init__(
        self, files: FileSystem, *paths: str, what: str, read: Callable[[], Content]
    ) -> None:
        """Read the files.

        Args:
            files: Where they are.
            paths: The files; an empty one is none.
            what: What they hold, for the log.
            read: Reads them; raises TidelogError for those that can't be used.

        Raises:
            TidelogError: As `read`.
        """
        self._files = files
        self._paths = [path for path in paths if path]
        self._what = what
        self._read = read
        self._seen = self._look()
        self._newest = read()

    def newest(self) -> Content:
        """What the newest files that can be used say."""
        found = self._look()
        if found != self._seen:
            self._seen = found
            try:
                self._newest = self._read()
            except TidelogError as error:
                _LOGGER.warning("the old %s stay: %s", self._what, error)
            else:
                _LOGGER.info("new %s are used from now on", self._what)
        return self._newest

    def _look(self) -> list[FileStat | None]:
        return [self._stat(path) for path in self._paths]

    def _stat(self, path: str) -> FileStat | None:
        try:
            return self._files.stat(path)
        except OSError:
            return None
