"""What a handler may use: the directory, partitions, topics, timers, threads, settings."""

import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.config.values import Durability
from tidelog.server.fetch_counts import FetchCounts
from tidelog.server.metrics import Counters
from tidelog.server.partitions import Partitions
from tidelog.server.producer_ids import ProducerIds
from tidelog.server.timers import Timers
from tidelog.server.topics import OFFSETS_TOPIC, Topics
from tidelog.server.work import Work
from tidelog.storage.files import encode_topic_id, random_topic_id
from tidelog.storage.group_offsets import GROUPS_FILE
from tidelog.storage.log_dir import LogDir
from tidelog.storage.meta_properties import read_meta_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.env import Env
    from tidelog.server.fetch_sessions import FetchSessions
    from tidelog.server.groups.coordinator import GroupCoordinator

LOGGER: Final = logging.getLogger("tidelog.server")
# More than for changes: a slow store must not hold up what lies on a disk.
READ_THREADS: Final = 8


@dataclass(slots=True)
class Address:
    """Where clients are told to connect to."""

    host: str
    port: int


class Node:
    """One broker's state. Belongs to the loop's thread.

    Attributes:
        config: The broker's settings.
        env: Clock, files, randomness.
        log_dir: The directory, open for writing.
        address: Where clients find the broker; known when it listens.
        work: Threads for changes: topics, checkpoints, openings.
        reads: Others for what has to be read from a disk or a store, which nothing else waits for.
        metrics: What it counts.
        metrics_address: Where /metrics is served, None for nowhere.
        closers: Called in reverse order before the directory is closed.
    """

    def __init__(self, log_dir: LogDir, config: BrokerConfig, syncs: Work | None = None) -> None:
        """A broker's state.

        Args:
            log_dir: The directory, open for writing.
            config: The broker's settings.
            syncs: Threads in which logs do what they leave for later, closed with the node.
        """
        self.config = config
        self.log_dir = log_dir
        self.env: Env = log_dir.env
        self.address = Address("127.0.0.1", 0)
        self.metrics_address: Address | None = None
        self.timers = Timers(self.env.clock)
        self.metrics = Counters()
        self.work = Work()
        self.reads = Work(READ_THREADS)
        self._syncs = syncs
        syncs_all = config.tidelog_durability is Durability.FSYNC
        self.partitions = Partitions(log_dir, syncs_all=syncs_all)
        self.topics = Topics(log_dir, self.partitions, config)
        self.topics.on_deleted.append(self.metrics.forget_topic)
        self.producer_ids = ProducerIds(log_dir, self.work)
        self.closers: list[Callable[[], None]] = []

    @property
    def node_id(self) -> int:
        """The broker's number."""
        return self.config.node_id

    @cached_property
    def cluster_id(self) -> str:
        """The cluster's name, from meta.properties."""
        found = read_meta_properties(self.env.files, self.log_dir.path) or {}
        return found.get("cluster.id") or encode_topic_id(random_topic_id(self.env.random))

    @cached_property
    def groups(self) -> "GroupCoordinator":
        """Consumer groups; those that were there are read from when this is first asked for."""
        from tidelog.server.groups.coordinator import GroupCoordinator  # not needed to listen

        return GroupCoordinator(self)

    @property
    def has_groups(self) -> bool:
        """Whether somebody has asked for groups; asking for them here makes none."""
        return "groups" in self.__dict__

    def resume_groups(self) -> None:
        """Begin to read the groups that there were, or that a standby knew of its leader's."""
        files, place = self.env.files, f"{self.log_dir.path}/{GROUPS_FILE}"
        if self.topics.find(OFFSETS_TOPIC) is not None or files.exists(place):
            self.groups.resume()

    @cached_property
    def fetch_sessions(self) -> "FetchSessions":
        """What clients have asked for once."""
        from tidelog.server.fetch_sessions import FetchSessions

        config = self.config
        return FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            config.min_incremental_fetch_session_eviction_ms,
            self.env.random,
        )

    def close(self) -> None:
        """Stop what runs beside, then close the directory: a clean stop.

        Raises:
            StorageFailure: A partition could not be closed; the next start recovers.
        """
        for closer in reversed(self.closers):
            closer()
        self.work.close()
        self.reads.close()
        if self._syncs is not None:
            self._syncs.close()
        self.log_dir.close()


@dataclass(slots=True)
class ConnectionFacts:
    """What a handler may know of who asks.

    Attributes:
        number: Counts up from 1.
        host: The client's address.
        software: Name and version as ApiVersions gave them; empty where not known.
        fetches: What its fetches have got, for metrics.
    """

    number: int
    host: str
    software: tuple[str, str] = ("", "")
    fetches: FetchCounts = field(default_factory=FetchCounts)
