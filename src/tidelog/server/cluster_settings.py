"""What a broker keeps of its cluster's settings, as its directory has it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tidelog.env import Env
from tidelog.server.kept_state import Begin, KeptState
from tidelog.server.metadata_log import MetadataLog
from tidelog.server.work import Work
from tidelog.storage.cluster_file import (
    CLUSTER_FILE,
    ClusterState,
    read_cluster,
    with_defaults,
    write_cluster,
)

_LOGGER: Final = logging.getLogger(__name__)


class ClusterSettings(KeptState[ClusterState]):
    """Quotas and changed settings. Belongs to the loop's thread."""

    def __init__(
        self,
        env: Env,
        directory: str,
        work: Work,
        begin: Begin,
        metadata: MetadataLog,
        defaults_of: Callable[[ClusterState], Mapping[str, str]],
    ) -> None:
        """Read what the directory keeps.

        Args:
            env: Files.
            directory: Whose file.
            work: Threads for writing.
            begin: Carries a change out to its end.
            metadata: Where quotas are kept; settings lie in a file of their own.
            defaults_of: What topics' defaults are at this broker where a state holds.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: It can't be read.
        """
        self._env = env
        self._directory = directory
        self._metadata = metadata
        self._defaults_of = defaults_of
        # What the file surely says; None where that is not known.
        self._in_file: ClusterState | None = None
        super().__init__(
            f"{directory}/{CLUSTER_FILE}",
            "the cluster's settings",
            read=self._read_kept,
            write=self._write_kept,
            work=work,
            begin=begin,
        )

    def _read_kept(self) -> ClusterState:
        self._in_file = read_cluster(self._env.files, self._directory)
        return replace(self._in_file, quotas=self._metadata.quotas)

    def _write_kept(self, state: ClusterState) -> None:
        """Keep what has changed; one change is of quotas, or of settings."""
        self._metadata.keep_quotas(state.quotas)
        settings = replace(with_defaults(state, self._defaults_of(state)), quotas={})
        if settings == self._in_file:
            return
        self._in_file = None
        write_cluster(self._env.files, self._directory, settings)
        self._in_file = settings

    def note_defaults(self) -> None:
        """Note in the file what topics' defaults are at this broker, where it says otherwise.

        Who moves tiers when the broker has stopped goes by that. A broker that can't write it, on a
        full disk, is of use all the same.
        """
        if with_defaults(self.state, self._defaults_of(self.state)) == self.state:
            return
        try:
            self._write(self.state)
        except OSError as error:
            text = "%s: what topics' defaults are could not be noted: %s"
            _LOGGER.warning(text, CLUSTER_FILE, error)
