"""The broker as handlers see it: directory, partitions, topics, timers, threads, settings."""

import asyncio
import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.protocol.row_templates import Templates
from tidelog.server.admin.cluster_metadata import ClusterSettings, MetadataLog
from tidelog.server.partitions.fetch import FetchCounts
from tidelog.server.partitions.partitions import Cleanings
from tidelog.server.partitions.services import Services
from tidelog.server.partitions.topics import Removals
from tidelog.server.runtime.threads import Work
from tidelog.server.security.operations import ANONYMOUS
from tidelog.storage.directory.broker_files import (
    ALL_BROKERS,
    GROUPS_FILE,
    ClusterState,
    settings_of,
)
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import encode_topic_id, random_topic_id
from tidelog.storage.text_files import read_meta_properties
from tidelog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tidelog.protocol.messages.configs import ConfigSource
    from tidelog.server.admin.cluster_metadata import Rules
    from tidelog.server.admin.quotas import Throttles
    from tidelog.server.groups.coordinator import GroupCoordinator
    from tidelog.server.partitions.fetch_sessions import FetchSessions
    from tidelog.server.security.authentication import FailedLogins
    from tidelog.server.security.authorizer import Authorizer
    from tidelog.server.shares.share_partitions import SharePartitions
    from tidelog.server.transactions.coordinator import TransactionCoordinator
    from tidelog.server.transactions.markers import PartitionMarkers


LOGGER: Final = logging.getLogger("tidelog.server")


# Requests with long lists that are read at a time.
LONG_REQUESTS: Final = 2


@dataclass(slots=True)
class Address:
    """Where clients are told to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Node(Services):
    """One broker's state. Belongs to the loop's thread.

    Attributes:
        started_config: Settings as they were at the start, without what was changed and kept.
        address: Where clients of the first listener find the broker; known when it listens.
        listeners: The same of all listeners, by name.
        places: Where they listen, HOST:PORT, by name; known when they do.
        cleanings: Partitions that a cleaner is at.
        cluster: Settings that are kept with the directory.
        throttles: How much clients with quotas have used; None where no client has one.
        has_groups: Whether `groups` was used, which is made at its first use.
        authorizer: Who may do what; None where everybody may everything.
        metrics_address: Where /metrics is served, None for nowhere.
    """

    def __init__(self, log_dir: LogDir, config: BrokerConfig, syncs: Work | None = None) -> None:
        """A broker's state.

        Args:
            log_dir: The directory, open for writing.
            config: The broker's settings.
            syncs: Threads in which logs do what they leave for later, closed with the node.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: The cluster's settings can't be read.
            ConfigError: What was kept of them can't hold with those of the start.
        """
        super().__init__(log_dir, config)
        self.started_config = config
        self.address = Address("127.0.0.1", 0)
        self.metrics_address: Address | None = None
        self.listeners: dict[str, Address] = {}
        self.places: dict[str, str] = {}
        self.cleanings = Cleanings()
        self._syncs = syncs
        place = (self.env, log_dir.path, self.work, self.topics.begin)
        self.metadata = MetadataLog(log_dir)
        self.cluster = ClusterSettings(*place, self.metadata, self._topic_defaults)
        self.throttles: Throttles | None = None
        self._throttles: Throttles | None = None
        self.cluster.apply = self._heed
        self._heed_quotas(self.cluster.state)
        if self.cluster.state.settings:
            self.config = self._changed_config(self.cluster.state)
            log_dir.topic_admin.use_defaults(self.config.topic_defaults)
            log_dir.open_partitions.follow_settings()  # after a kill partitions are open already
        self.cluster.note_defaults()
        log_dir.open_partitions.producer_expiration_ms = self.config.producer_id_expiration_ms
        if self.cluster.state.groups:
            from tidelog.config.group import ensure_group_texts  # few have any

            for texts in self.cluster.state.groups.values():
                ensure_group_texts(texts)
        self.has_groups = False
        # A plain field: every request looks at it.
        self.authorizer: Authorizer | None = None
        if config.authorizer_class_name:
            self.authorizer = self.rules.authorizer

    @property
    def node_id(self) -> int:
        """The broker's number."""
        return self.config.node_id

    @property
    def changed(self) -> "Sequence[tuple[ConfigSource, Mapping[str, str]]]":
        """What was changed of the settings since the start: its own, then those of all brokers."""
        settings = self.cluster.state.settings
        if not settings:
            return ()
        from tidelog.protocol.messages.configs import ConfigSource

        return (
            (ConfigSource.DYNAMIC_BROKER, settings.get(str(self.node_id), {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, settings.get(ALL_BROKERS, {})),
        )

    def group_texts(self, group_id: str) -> "Mapping[str, str]":
        """Settings of a group's own, as texts; none for a group that has none."""
        return self.cluster.state.groups.get(group_id) or {}

    @cached_property
    def cluster_id(self) -> str:
        """The cluster's name, from meta.properties."""
        properties = read_meta_properties(self.env.files, self.log_dir.path) or {}
        return properties.get("cluster.id") or encode_topic_id(random_topic_id(self.env.random))

    @cached_property
    def removals(self) -> Removals:
        """Directories of deleted topics that have not gone yet."""
        return Removals(self.work, self.log_dir)

    @cached_property
    def failed_logins(self) -> "FailedLogins":
        """Failed log-ins by address."""
        from tidelog.server.security.authentication import FailedLogins

        return FailedLogins(self.env.clock)

    @cached_property
    def long_checks(self) -> Work:
        """A thread for appends that take long to check, each of which may take 128 MiB."""
        made = Work(1)
        self.closers.append(made.close)
        return made

    @cached_property
    def long_requests(self) -> asyncio.Semaphore:
        """Room for requests with long lists: one takes up to eight times its bytes of memory."""
        return asyncio.Semaphore(LONG_REQUESTS)

    @cached_property
    def groups(self) -> "GroupCoordinator":
        """Consumer groups; those that were there are read from when this is first asked for."""
        from tidelog.server.groups.coordinator import GroupCoordinator  # not needed to listen

        made = GroupCoordinator(self, self.group_texts)
        self.has_groups = True
        return made

    @cached_property
    def transactions(self) -> "TransactionCoordinator":
        """Transactional ids; those that were there are read from when this is first asked for."""
        from tidelog.server.transactions.coordinator import TransactionCoordinator

        made = TransactionCoordinator(self, self.markers)
        made.resume()
        return made

    @cached_property
    def shares(self) -> "SharePartitions":
        """Records of share groups; what is kept is read from when this is first asked for."""
        from tidelog.server.shares.share_partitions import SharePartitions

        return SharePartitions(self, lambda: self.groups, self.group_texts)

    @cached_property
    def markers(self) -> "PartitionMarkers":
        """Ends transactions in partitions, as their coordinator says."""
        from tidelog.server.transactions.markers import PartitionMarkers

        return PartitionMarkers(self, lambda: self.groups)

    @cached_property
    def rules(self) -> "Rules":
        """Users and ACLs; made when somebody first asks, which a broker with doors does at once.

        Raises:
            CorruptFile, ConfigError: As `Rules`.
        """
        from tidelog.server.admin.cluster_metadata import (
            Rules,  # not needed to listen without doors
        )

        return Rules(self.metadata, self.config, self.work, self.topics.begin)

    def _changed_config(self, state: ClusterState) -> BrokerConfig:
        from tidelog.config.broker import changed_config  # few have changed any

        return changed_config(self.started_config, settings_of(state, self.node_id))

    def _topic_defaults(self, state: ClusterState) -> "Mapping[str, str]":
        config = self._changed_config(state) if state.settings else self.started_config
        return config.topic_defaults

    async def _heed(self, state: ClusterState) -> None:
        """Let a state hold; raises ConfigError where it can't, and nothing was changed."""
        config = self._changed_config(state)
        if config.topic_defaults != self.config.topic_defaults:
            async with self.topics.changing:
                await self.work.run(self.log_dir.topic_admin.use_defaults, config.topic_defaults)
                self.log_dir.open_partitions.follow_settings()
        self.config = config
        self.log_dir.open_partitions.producer_expiration_ms = config.producer_id_expiration_ms
        self._heed_quotas(state)

    def _heed_quotas(self, state: ClusterState) -> None:
        """Let quotas hold as they are kept; without any, nothing is counted."""
        if not state.quotas:
            self.throttles = None
            return
        if self._throttles is None:
            from tidelog.server.admin.quotas import Throttles  # few have quotas

            self._throttles = Throttles(self.env.clock)
        self.throttles = self._throttles if self._throttles.use(state.quotas) else None

    def resume_groups(self) -> None:
        """Begin to read the groups that there were, or that a standby knew of its leader's."""
        files, path = self.env.files, f"{self.log_dir.path}/{GROUPS_FILE}"
        if self.topics.find(OFFSETS_TOPIC) is not None or files.exists(path):
            self.groups.resume()

    def resume_transactions(self) -> None:
        """Begin to complete what was decided before the broker stopped, whoever asks for it."""
        if self.topics.find(TRANSACTIONS_TOPIC) is not None:
            self.transactions.resume()

    @cached_property
    def fetch_sessions(self) -> "FetchSessions":
        """What clients have asked for once."""
        from tidelog.server.partitions.fetch_sessions import FetchSessions

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
        principal: Who the client is, such as `User:alice`.
        address: Where clients of its listener are told to connect to; None for the broker's.
        software: Name and version as ApiVersions gave them; empty where not known.
        fetches: What its fetches have got, for metrics.
        throttle_ms: How long it is to be silent after the answer that is being made.
        templates: Requests that it repeats; None before the first one that may be.
        closers: Called when it is closed, by what each is about.
    """

    number: int
    host: str
    principal: str = ANONYMOUS
    address: Address | None = None
    software: tuple[str, str] = ("", "")
    fetches: FetchCounts = field(default_factory=FetchCounts)
    throttle_ms: int = 0
    templates: Templates | None = None
    closers: "dict[object, Callable[[], None]]" = field(default_factory=dict)

    def close(self) -> None:
        """It is closed: tell who wants to know, once."""
        self.templates = None
        closers, self.closers = self.closers, {}
        for closer in closers.values():
            closer()
