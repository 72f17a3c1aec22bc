"""Cluster metadata in a broker's directory: users, ACLs, quotas and changed settings.

Users, ACLs and quotas are records in `tidelog-metadata.log`. Settings are in
`tidelog-cluster.json`. At any time, at most one change of users or ACLs is in progress, and at most
one change of quotas or settings. A worker thread writes each change. A change is durable before it
is acknowledged. If the broker is killed during a change, the change is afterwards complete or
absent. Readers see the state before or after a change, never a state in between. The metadata log
is rewritten when its superseded records outnumber the current ones by more than `SPARE_RECORDS`, so
its size is bounded.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from tidelog.env import Env
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.server.runtime.threads import Work
from tidelog.storage.directory.broker_files import (
    CLUSTER_FILE,
    ClusterState,
    MetadataFile,
    Quotas,
    SecurityState,
    read_cluster,
    with_defaults,
    write_cluster,
)
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.open_files import as_storage_failure

if TYPE_CHECKING:
    from tidelog.server.admin.metadata_records import MetadataImage, Record


State = TypeVar("State")

# Starts a change as a task that runs to its end even if the client disconnects.
Begin: TypeAlias = Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"]


class DurableState(Generic[State]):
    """State that is stored in a file, and changed by one change at a time.

    The state changes only in the event loop's thread. Any thread may read it.

    Attributes:
        state: Current state.
        apply: Function that applies a new state. It is called and awaited before the new state is
            stored. If storing fails, it is called and awaited again, with the old state.
        on_stored: Called with the old and the new state once the new state is stored.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        read: Callable[[], State],
        write: Callable[[State], None],
        work: Work,
        begin: Begin,
    ) -> None:
        """Read the stored state.

        Args:
            path: Path of the file, for errors.
            name: Name of the state, for errors.
            read: Reads the file; raises OSError if that fails.
            write: Stores a state durably, in a thread; raises OSError if that fails.
            work: Threads for writing.
            begin: Starts a change as a task. The directory is not closed before the change ends.

        Raises:
            StorageFailure: The file can't be read. Other errors of `read` are raised, too.
        """
        self._path = path
        self._name = name
        self._write = write
        self._work = work
        self._begin = begin
        self._changing = asyncio.Lock()
        # Whether it is certain that the file contains `state`. False after a failed write: the
        # written bytes may still have reached the disk.
        self._is_certain = True
        self.apply: Callable[[State], Awaitable[None]] | None = None
        self.on_stored: Callable[[State, State], None] | None = None
        try:
            self.state = read()
        except OSError as error:
            raise as_storage_failure(error, path, f"read {name}") from error

    async def change(self, changed: Callable[[State], State]) -> None:
        """Store the state that `changed` returns. Errors of `changed` and `apply` are raised.

        Raises:
            StorageFailure: The state could not be stored and has not changed. The file may contain
                the old or the new state until the next change. The next change is written even if
                it changes nothing.
        """
        # The change completes even if the client disconnects, so that memory and disk agree.
        await asyncio.shield(self._begin(self._carry_out(changed)))

    async def _carry_out(self, changed: Callable[[State], State]) -> None:
        async with self._changing:
            state = changed(self.state)
            if state == self.state and self._is_certain:
                return
            if self.apply is not None:
                await self.apply(state)
            self._is_certain = False
            try:
                await self._work.run(self._write, state)
            except OSError as error:
                if self.apply is not None:
                    await self.apply(self.state)
                raise as_storage_failure(error, self._path, f"store {self._name}") from error
            self._is_certain = True
            before, self.state = self.state, state
            if self.on_stored is not None:
                self.on_stored(before, state)


# The log is rewritten when the number of superseded records exceeds the number of current records
# by more than this.
SPARE_RECORDS: Final = 1_000


class MetadataLog:
    """Log of users, ACLs and quotas. It is read at the start, and later changes are written to it.

    Attributes:
        path: Path of the log, for errors.
        security: Users and ACLs at the start.
        quotas: Quotas at the start.
    """

    def __init__(self, log_dir: LogDir) -> None:
        """Read the log.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: The log can't be read.
        """
        self._log_dir = log_dir
        self._env = log_dir.env
        self._file = MetadataFile(log_dir.env, log_dir.path)
        self.path = self._file.path
        # Current metadata; None until a record is read or a change is stored. If the log has no
        # records, as is usual, the broker starts without importing the codecs.
        self._loaded: MetadataImage | None = None
        self._writing = threading.Lock()
        try:
            self._load()
        except OSError as error:
            raise as_storage_failure(error, self.path, "read users, ACLs and quotas") from error
        self.security, self.quotas = self._initial_state()

    def _initial_state(self) -> tuple[SecurityState, Quotas]:
        if self._loaded is None:
            return SecurityState(), {}
        return self._loaded.security, self._loaded.copied_quotas()

    @property
    def _image(self) -> "MetadataImage":
        """Current metadata, which is changed in place."""
        if self._loaded is None:
            from tidelog.server.admin.metadata_records import MetadataImage

            self._loaded = MetadataImage()
        return self._loaded

    # -- the start -----------------------------------------------------------------------------

    def _load(self) -> None:
        was_clean = self._log_dir.was_stopped_cleanly
        values = self._file.read(may_be_torn=not was_clean)
        for value in values or ():
            self._replay(value)
        if not self._file.is_certain and values is not None:
            self._log_dir.report(
                f"{self.path}: dropped an incomplete change at the end, torn by a hard stop"
            )
        if values is not None and not was_clean:
            # If the broker was killed, the file's last records may have been written but not
            # synced. So the file is written again and synced before the broker uses its records.
            self._replace(self._image)

    def _replay(self, value: bytes) -> None:
        from tidelog.server.admin.metadata_records import decode

        try:
            self._image.replay(decode(value))
        except CorruptFile as error:
            raise error.located(self.path) from None
        except UnsupportedVersion as error:
            raise UnsupportedVersion(error.reason, path=self.path) from None

    # -- changes -------------------------------------------------------------------------------

    def keep_security(self, state: SecurityState) -> None:
        """Store users and ACLs durably.

        Raises:
            OSError: The state could not be stored. The file may still contain the failed change.
                The next change rewrites the file without it.
        """
        with self._writing:
            self._store(self._image.security_changes(state, self._env.random))

    def keep_quotas(self, quotas: Quotas) -> None:
        """Store quotas durably; raises OSError if they could not be stored."""
        with self._writing:
            self._store(self._image.quota_changes(quotas))

    def _store(self, changes: Iterable["Record"]) -> None:
        """Write changes, then apply them to the image."""
        from tidelog.server.admin.metadata_records import encode

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
        self._loaded = after

    @staticmethod
    def _apply(image: "MetadataImage", records: Iterable["Record"]) -> None:
        for record in records:
            image.replay(record)

    def _replace(self, image: "MetadataImage") -> None:
        from tidelog.server.admin.metadata_records import encode

        self._write(lambda: self._file.replace(map(encode, image.snapshot())))

    def _write(self, act: Callable[[], None]) -> None:
        """Call `act`, which writes.

        A failure may leave a partial change in the file. So the broker records no clean stop until
        a later write has succeeded.
        """
        self._log_dir.doubts.add(self.path)
        act()
        self._log_dir.doubts.discard(self.path)

    def _is_unborn(self) -> bool:
        """Whether the file does not exist yet and the image has no records."""
        return not self._image.record_count and not self._env.files.exists(self.path)


_LOGGER: Final = logging.getLogger(__name__)


class ClusterSettings(DurableState[ClusterState]):
    """Quotas and changed settings of the cluster."""

    def __init__(
        self,
        env: Env,
        directory: str,
        work: Work,
        begin: Begin,
        metadata: MetadataLog,
        defaults_of: Callable[[ClusterState], Mapping[str, str]],
    ) -> None:
        """Read the stored settings.

        Args:
            env: Environment with the file system.
            directory: Directory of the file.
            work: Threads for writing.
            begin: Starts a change as a task that runs to its end even if the client disconnects.
            metadata: Log of the quotas. Settings have a file of their own.
            defaults_of: Returns this broker's defaults of topic settings, given the cluster's
                state.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: The file can't be read.
        """
        self._env = env
        self._directory = directory
        self._metadata = metadata
        self._defaults_of = defaults_of
        # Settings that the file certainly contains; None if unknown.
        self._in_file: ClusterState | None = None
        super().__init__(
            f"{directory}/{CLUSTER_FILE}",
            "the cluster's settings",
            read=self._read_state,
            write=self._write_state,
            work=work,
            begin=begin,
        )

    def _read_state(self) -> ClusterState:
        self._in_file = read_cluster(self._env.files, self._directory)
        return self._in_file._replace(quotas=self._metadata.quotas)

    def _write_state(self, state: ClusterState) -> None:
        """Store the quotas or the settings, whichever changed. No change affects both."""
        self._metadata.keep_quotas(state.quotas)
        settings = with_defaults(state, self._defaults_of(state))._replace(quotas={})
        if settings == self._in_file:
            return
        self._in_file = None
        write_cluster(self._env.files, self._directory, settings)
        self._in_file = settings

    def note_defaults(self) -> None:
        """Store the broker's defaults of topic settings, unless the file already contains them.

        Programs that write to the directory while the broker is stopped need these defaults. A
        failure, such as a full disk, is only logged, because the broker works without it.
        """
        if with_defaults(self.state, self._defaults_of(self.state)) == self.state:
            return
        try:
            self._write(self.state)
        except OSError as error:
            text = "%s: can't store the topic defaults: %s"
            _LOGGER.warning(text, CLUSTER_FILE, error)
