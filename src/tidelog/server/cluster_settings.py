"""What a broker keeps of its cluster's settings, as its directory has it."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.env import Env
from tidelog.server.kept_state import Begin, KeptState
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
        defaults_of: Callable[[ClusterState], Mapping[str, str]],
    ) -> None:
        """Read what the directory keeps.

        Args:
            env: Files.
            directory: Whose file.
            work: Threads for writing.
            begin: Carries a change out to its end.
            defaults_of: What topics' defaults are at this broker where a state holds.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: It can't be read.
        """
        super().__init__(
            f"{directory}/{CLUSTER_FILE}",
            "the cluster's settings",
            read=lambda: read_cluster(env.files, directory),
            write=lambda state: write_cluster(
                env.files, directory, with_defaults(state, defaults_of(state))
            ),
            work=work,
            begin=begin,
        )
        self._defaults_of = defaults_of

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
