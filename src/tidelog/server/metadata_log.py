"""Users, rules and quotas of a directory's broker, kept as records in its `tidelog-metadata.log`.

Any thread may write, one change at a time; each is durable when its call returns, and whole or not
there after a kill.

Bounded: a file in which most records have been overtaken is replaced by one of those that hold.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tidelog.errors import CorruptFile
from tidelog.storage.cluster_file import Quotas
from tidelog.storage.handles import as_storage_failure
from tidelog.storage.log_dir import LogDir
from tidelog.storage.metadata_file import MetadataFile, SecurityState

if TYPE_CHECKING:
    from tidelog.server.metadata_records import MetadataImage, Record

# So many records may have been overtaken, beside as many as hold, before a file is replaced.
SPARE_RECORDS: Final = 1_000


class MetadataLog:
    """What a broker keeps of its cluster, and who writes it.

    Attributes:
        path: The log's file, for errors.
        security: Users and rules as they were at the start.
        quotas: Quotas as they were at the start.
    """

    def __init__(self, log_dir: LogDir) -> None:
        """Read it.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: It can't be read.
        """
        self._log_dir = log_dir
        self._env = log_dir.env
        self._file = MetadataFile(log_dir.env, log_dir.path)
        self.path = self._file.path
        # None while nothing is kept: few directories keep anything, and all start without codecs.
        self._kept: MetadataImage | None = None
        self._writing = threading.Lock()
        try:
            self._load()
        except OSError as error:
            raise as_storage_failure(error, self.path, "read users, rules and quotas") from error
        self.security, self.quotas = self._said()

    def _said(self) -> tuple[SecurityState, Quotas]:
        if self._kept is None:
            return SecurityState(), {}
        return self._kept.security, self._kept.kept_quotas()

    @property
    def _image(self) -> "MetadataImage":
        """What is kept; to be changed in place."""
        if self._kept is None:
            from tidelog.server.metadata_records import MetadataImage

            self._kept = MetadataImage()
        return self._kept

    # -- the start -----------------------------------------------------------------------------

    def _load(self) -> None:
        was_clean = self._log_dir.was_stopped_cleanly
        values = self._file.read(may_be_torn=not was_clean)
        for value in values or ():
            self._replay(value)
        if not self._file.is_certain and values is not None:
            self._log_dir.report(f"{self.path}: left out a change that a hard stop has cut")
        if values is not None and not was_clean:
            # What a kill has left may be in the system's memory alone, and is about to be used.
            self._replace(self._image)

    def _replay(self, value: bytes) -> None:
        from tidelog.server.metadata_records import decode

        try:
            self._image.replay(decode(value))
        except CorruptFile as error:
            raise error.located(self.path) from None

    # -- changes -------------------------------------------------------------------------------

    def keep_security(self, state: SecurityState) -> None:
        """Keep users and rules, durably.

        Raises:
            OSError: They could not be kept; what was is there after the next change, or with it.
        """
        with self._writing:
            self._keep(self._image.security_changes(state, self._env.random))

    def keep_quotas(self, quotas: Quotas) -> None:
        """Keep quotas, durably; raises OSError, as `keep_security`."""
        with self._writing:
            self._keep(self._image.quota_changes(quotas))

    def _keep(self, changes: Iterable["Record"]) -> None:
        """Write changes, then let the image have them."""
        from tidelog.server.metadata_records import encode

        records = list(changes)
        file, image = self._file, self._image
        values = [encode(record) for record in records]
        if not values and (file.is_certain or self._is_unborn()):
            return
        spare = file.record_count + len(values) - 2 * image.record_count
        if file.is_certain and spare <= SPARE_RECORDS:
            self._write(lambda: file.append(values))
            self._apply(image, records)
            return
        after = image.copy()
        self._apply(after, records)
        self._replace(after)
        self._kept = after

    @staticmethod
    def _apply(image: "MetadataImage", records: Iterable["Record"]) -> None:
        for record in records:
            image.replay(record)

    def _replace(self, image: "MetadataImage") -> None:
        from tidelog.server.metadata_records import encode

        self._write(lambda: self._file.replace(map(encode, image.snapshot())))

    def _write(self, act: Callable[[], None]) -> None:
        """Where this fails the file may end in half a change: a stop is not a clean one then."""
        self._log_dir.doubts.add(self.path)
        act()
        self._log_dir.doubts.discard(self.path)

    def _is_unborn(self) -> bool:
        """Whether there is no file yet, and nothing that one could say."""
        return not self._image.record_count and not self._env.files.exists(self.path)
