"""The broker as handlers see it, with its settings, coordinators, authorizer and quotas."""

import asyncio
import logging
from dataclasses import field
from functools import cached_property
from ipaddress import IPv6Address
from struct import Struct
from typing import TYPE_CHECKING, Final

from tidelog.config import BrokerConfig
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.row_templates import Templates
from tidelog.server.admin.metadata_log import ClusterSettings, MetadataLog
from tidelog.server.partitions.fetch_counts import FetchCounts
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
    from tidelog.server.admin.quotas import QuotaManager
    from tidelog.server.admin.security_store import SecurityStore
    from tidelog.server.groups.coordinator import GroupCoordinator
    from tidelog.server.partitions.fetch_sessions import FetchSessions
    from tidelog.server.security.authentication import FailedLogins
    from tidelog.server.security.authorizer import Authorizer
    from tidelog.server.shares.share_partitions import SharePartitions
    from tidelog.server.transactions.coordinator import TransactionCoordinator
    from tidelog.server.transactions.markers import PartitionMarkers


LOGGER: Final = logging.getLogger("tidelog.server")

# Maximum number of requests with long lists that are read at the same time.
LONG_REQUESTS: Final = 2


@dataclass(slots=True)
class Address:
    """An address that clients use to reach the broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Node(Services):
    """State of one broker. Used only in the event loop's thread.

    Attributes:
        started_config: Settings at the start, without the stored changes.
        address: Advertised address of the first listener, once this listener is open.
        listeners: Advertised addresses of all listeners, by name.
        bound_addresses: Addresses HOST:PORT to which the listeners are bound, by the listeners'
            names. This mapping is empty until the listeners are open.
        cleanings: Compacted partitions that are being cleaned.
        cluster: Quotas and changed settings, which are stored in the data directory.
        throttles: Quotas of clients, and the clients' use of these quotas; None if no client has a
            quota.
        has_groups: Whether `groups` has been created, which happens at its first use.
        authorizer: Checks rights; None if every client may do everything.
        metrics_address: Address of /metrics; None if metrics aren't served.
    """

    def __init__(self, log_dir: LogDir, config: BrokerConfig, syncs: Work | None = None) -> None:
        """Create a broker's state.

        Args:
            log_dir: The data directory, open for writing.
            config: The broker's settings.
            syncs: Threads for the logs' deferred work, closed with the node.

        Raises:
            CorruptFile, UnsupportedVersion, StorageFailure: The stored settings can't be read.
            ConfigError: The stored settings conflict with the settings given at the start.
        """
        super().__init__(log_dir, config)
        self.started_config = config
        self.address = Address("127.0.0.1", 0)
        self.metrics_address: Address | None = None
        self.listeners: dict[str, Address] = {}
        self.bound_addresses: dict[str, str] = {}
        self.cleanings = Cleanings()
        self._syncs = syncs
        arguments = (self.env, log_dir.path, self.work, self.topics.begin)
        self.metadata = MetadataLog(log_dir)
        self.cluster = ClusterSettings(*arguments, self.metadata, self._topic_defaults)
        self.throttles: QuotaManager | None = None
        self._throttles: QuotaManager | None = None
        self.cluster.apply = self._apply_settings
        self._apply_quotas(self.cluster.state)
        if self.cluster.state.settings:
            self.config = self._changed_config(self.cluster.state)
            log_dir.topic_admin.use_defaults(self.config.topic_defaults)
            # After a crash, recovery has already opened some partitions, so the settings are
            # applied to them, too.
            log_dir.open_partitions.follow_settings()
        self.cluster.note_defaults()
        log_dir.open_partitions.producer_expiration_ms = self.config.producer_id_expiration_ms
        if self.cluster.state.groups:
            from tidelog.config.group import ensure_group_texts  # imported only for group settings

            for texts in self.cluster.state.groups.values():
                ensure_group_texts(texts)
        self.has_groups = False
        # `authorizer` is an attribute and not a property, because every request reads it.
        self.authorizer: Authorizer | None = None
        if config.authorizer_class_name:
            self.authorizer = self.rules.authorizer

    @property
    def node_id(self) -> int:
        """The broker's id."""
        return self.config.node_id

    @property
    def changed(self) -> "Sequence[tuple[ConfigSource, Mapping[str, str]]]":
        """Settings changed at run time: first settings of this broker, then of all brokers.

        The sequence is empty if no setting was changed.
        """
        settings = self.cluster.state.settings
        if not settings:
            return ()
        from tidelog.protocol.messages.configs import ConfigSource

        return (
            (ConfigSource.DYNAMIC_BROKER, settings.get(str(self.node_id), {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, settings.get(ALL_BROKERS, {})),
        )

    def group_texts(self, group_id: str) -> "Mapping[str, str]":
        """Return a group's own settings as texts; empty if the group has no settings of its own."""
        return self.cluster.state.groups.get(group_id) or {}

    @cached_property
    def cluster_id(self) -> str:
        """The cluster id from meta.properties, or a random id if this file has none."""
        properties = read_meta_properties(self.env.files, self.log_dir.path) or {}
        return properties.get("cluster.id") or encode_topic_id(random_topic_id(self.env.random))

    @cached_property
    def removals(self) -> Removals:
        """Pending removals of the directories of deleted topics."""
        return Removals(self.work, self.log_dir)

    @cached_property
    def failed_logins(self) -> "FailedLogins":
        """Failed authentications by client address."""
        from tidelog.server.security.authentication import FailedLogins

        return FailedLogins(self.env.clock)

    @cached_property
    def logins(self) -> Work:
        """Threads that check credentials.

        A check takes milliseconds. In the threads for reads, clients without valid credentials
        could delay the reads of other clients.
        """
        work = Work()
        self.closers.append(work.close)
        return work

    @cached_property
    def long_checks(self) -> Work:
        """A thread for checks of large appends. Each check may take 128 MiB of memory."""
        work = Work(1)
        self.closers.append(work.close)
        return work

    @cached_property
    def long_requests(self) -> asyncio.Semaphore:
        """Limits how many requests with long lists are read at the same time.

        The objects decoded from a request may take 8 times as much memory as the request's bytes.
        """
        return asyncio.Semaphore(LONG_REQUESTS)

    @cached_property
    def groups(self) -> "GroupCoordinator":
        """Coordinator of groups. The first use starts loading stored groups."""
        from tidelog.server.groups.coordinator import GroupCoordinator  # not needed to listen

        coordinator = GroupCoordinator(self, self.group_texts)
        self.has_groups = True
        return coordinator

    @cached_property
    def transactions(self) -> "TransactionCoordinator":
        """Coordinator of transactions. The first use starts loading stored transactional ids."""
        from tidelog.server.transactions.coordinator import TransactionCoordinator

        coordinator = TransactionCoordinator(self, self.markers)
        coordinator.resume()
        return coordinator

    @cached_property
    def shares(self) -> "SharePartitions":
        """Share partitions. The first use starts loading their stored state."""
        from tidelog.server.shares.share_partitions import SharePartitions

        return SharePartitions(self, lambda: self.groups, self.group_texts)

    @cached_property
    def markers(self) -> "PartitionMarkers":
        """Writer of transaction markers to partitions, for the transaction coordinator."""
        from tidelog.server.transactions.markers import PartitionMarkers

        return PartitionMarkers(self, lambda: self.groups)

    @cached_property
    def rules(self) -> "SecurityStore":
        """Users and ACLs.

        Users and ACLs are read when this property is first used. A broker that authenticates or
        authorizes clients uses this property when the broker starts.

        Raises:
            CorruptFile: A stored ACL is invalid.
            ConfigError: `super.users` is invalid.
        """
        from tidelog.server.admin.security_store import (
            SecurityStore,  # not needed without authentication
        )

        return SecurityStore(self.metadata, self.config, self.work, self.topics.begin)

    def _changed_config(self, state: ClusterState) -> BrokerConfig:
        from tidelog.config.broker import changed_config  # imported only for changed settings

        return changed_config(self.started_config, settings_of(state, self.node_id))

    def _topic_defaults(self, state: ClusterState) -> "Mapping[str, str]":
        config = self._changed_config(state) if state.settings else self.started_config
        return config.topic_defaults

    async def _apply_settings(self, state: ClusterState) -> None:
        """Apply the settings and quotas of a cluster state.

        Raises:
            ConfigError: The state is invalid. Nothing was changed.
        """
        config = self._changed_config(state)
        if config.topic_defaults != self.config.topic_defaults:
            async with self.topics.changing:
                await self.work.run(self.log_dir.topic_admin.use_defaults, config.topic_defaults)
                self.log_dir.open_partitions.follow_settings()
        self.config = config
        self.log_dir.open_partitions.producer_expiration_ms = config.producer_id_expiration_ms
        self._apply_quotas(state)

    def _apply_quotas(self, state: ClusterState) -> None:
        """Apply the stored quotas. Without quotas, clients' rates are not measured."""
        if not state.quotas:
            self.throttles = None
            return
        if self._throttles is None:
            from tidelog.server.admin.quotas import QuotaManager  # imported only if quotas exist

            self._throttles = QuotaManager(self.env.clock)
        self.throttles = self._throttles if self._throttles.use(state.quotas) else None

    @property
    def has_stored_groups(self) -> bool:
        """Whether there is an offsets topic, or a file with offsets that a standby has copied."""
        files, path = self.env.files, f"{self.log_dir.path}/{GROUPS_FILE}"
        return self.topics.find(OFFSETS_TOPIC) is not None or files.exists(path)

    @property
    def has_stored_transactions(self) -> bool:
        """Whether the topic that stores transactional ids exists."""
        return self.topics.find(TRANSACTIONS_TOPIC) is not None

    def resume_groups(self) -> None:
        """Start loading the stored groups, if there are any."""
        if self.has_stored_groups:
            self.groups.resume()

    def resume_transactions(self) -> None:
        """Start completing the transactions whose outcome was decided before the broker stopped."""
        if self.has_stored_transactions:
            self.transactions.resume()

    @cached_property
    def fetch_sessions(self) -> "FetchSessions":
        """Fetch sessions of clients."""
        from tidelog.server.partitions.fetch_sessions import FetchSessions

        config = self.config
        return FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            config.min_incremental_fetch_session_eviction_ms,
            self.env.random,
        )

    def close(self) -> None:
        """Stop background work, then close the data directory. This is a clean shutdown.

        Raises:
            StorageFailure: A partition could not be closed. The next start recovers it.
        """
        for closer in reversed(self.closers):
            closer()
        self.work.close()
        self.reads.close()
        if self._syncs is not None:
            self._syncs.close()
        self.log_dir.close()


_GROUPS: Final = Struct(">8H")  # the groups of an IPv6 address


@dataclass(slots=True, eq=False)
class ClientInfo:
    """The client and its connection, as handlers see them.

    Attributes:
        number: Number of the connection, counting up from 1.
        host: The client's address.
        principal: The authenticated client, such as `User:alice`; empty before authentication with
            SASL.
        address: Advertised address of the client's listener; None for `Node.address`.
        fetches: Counters of the client's fetches, for metrics.
        throttle_ms: Time in ms for which to mute the connection after the current response.
        templates: Templates of the client's repeated requests; None before the first response of
            an API that has templates.
        closers: Maps a key, such as the key of a share session, to a function to call when the
            connection has ended.
    """

    number: int
    host: str
    principal: str = ANONYMOUS
    address: Address | None = None
    fetches: FetchCounts = field(default_factory=FetchCounts)
    throttle_ms: int = 0
    templates: Templates | None = None
    closers: "dict[object, Callable[[], None]]" = field(default_factory=dict)

    @property
    def java_host(self) -> str:
        """The address as Kafka shows it in groups: `/127.0.0.1`, `/0:0:0:0:0:0:0:1` for `::1`.

        Source: Java's `InetAddress.toString` without a name.
        """
        if ":" not in self.host:
            return f"/{self.host}"
        address = IPv6Address(self.host)
        if address.ipv4_mapped is not None:
            return f"/{address.ipv4_mapped}"
        groups = ":".join(f"{group:x}" for group in _GROUPS.unpack(address.packed))
        return f"/{groups}" if address.scope_id is None else f"/{groups}%{address.scope_id}"

    def close(self) -> None:
        """Call each closer once, after the connection has closed."""
        self.templates = None
        closers, self.closers = self.closers, {}
        for closer in closers.values():
            closer()
