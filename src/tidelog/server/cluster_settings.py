"""What a broker keeps of its cluster's settings, as its directory has it."""

from tidelog.env import Env
from tidelog.server.kept_state import Begin, KeptState
from tidelog.server.work import Work
from tidelog.storage.cluster_file import (
    CLUSTER_FILE,
    ClusterState,
    read_cluster,
    write_cluster,
)


class ClusterSettings(KeptState[ClusterState]):
    """Quotas and changed settings. Belongs to the loop's thread."""

    def __init__(self, env: Env, directory: str, work: Work, begin: Begin) -> None:
        """Read what the directory keeps.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: It can't be read.
        """
        super().__init__(
            f"{directory}/{CLUSTER_FILE}",
            "the cluster's settings",
            read=lambda: read_cluster(env.files, directory),
            write=lambda state: write_cluster(env.files, directory, state),
            work=work,
            begin=begin,
        )
