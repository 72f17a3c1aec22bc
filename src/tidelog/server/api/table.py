"""Table of the served APIs. For each API: versions, handler, guard, lists that can be split.

ApiVersions announces the APIs and versions of the table.

A version is served only if all of it is implemented. If an API has no guard, only clients with all
rights on the cluster may use it. So other clients can't use a new API until it gets a guard.

`guards` defines the rights, `handlers` imports the handlers, `state_loading` names the logs that a
request waits for, and `dispatch` passes each request to its handler.

Source: Kafka 4.3's KafkaApis; KIP-511.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from tidelog.protocol import messages as api
from tidelog.server.api.context import RowFunctions
from tidelog.server.api.guards import (
    closed,
    needs_all,
    needs_cluster,
    needs_group,
    needs_topics,
    needs_transactional_id,
)
from tidelog.server.api.state_loading import (
    LogsOf,
    committed_group_log,
    coordinator_log,
    group_log,
    share_logs,
    transaction_log,
)
from tidelog.server.security.operations import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.protocol.messages import AnyApi
    from tidelog.server.api.guards import AnyGuard


OWN: Final = "own"
OPEN: Final = "open"


class Row(NamedTuple):
    """One served API.

    Attributes:
        api: The API. Its handler is the function with the API's name in snake case. The handler's
            module has the name of the module in `tidelog.protocol` that declares the API's
            messages.
        legacy_first: Lowest version served with `tidelog.legacy.clients`; None if it is the API's
            first version.
        announced_first: Lowest version announced; None if it is the lowest version served.
        guard: Guard of the API. `OWN` means the function in the handler's module whose name is
            `guard_` followed by the handler's name. `OPEN` means that the API needs no right, or
            that its handler checks the rights. If the guard is None, clients need all rights on the
            cluster.
        rows: Name of the API's `RowFunctions` (functions for repeated requests) in the handler's
            module; empty if the API has none.
        parts: Pairs `LIST=LIST`: a list in the request and the matching list in the response, each
            as a path of fields. A request with a long list is split along the first pair whose
            fields exist in the request's version. If there is no such pair, long requests are
            refused. Exception: a long Fetch is processed by `fetch.long_fetch`.
        at_once: Maximum number of list elements of a request that are processed without yielding
            the event loop. Processing so many elements takes about 30 ms.
        has_records: Whether requests contain records, so that even a request with short lists and
            short texts may be long.
        coordinators: Modules of the coordinators that the API uses, or a function that returns the
            modules that a request uses. `handlers` imports them before the handler is called.
        logs: Returns the logs that must be loaded before a request is handled; None if the API
            doesn't wait for logs.
    """

    api: "AnyApi"
    guard: "Literal['own', 'open'] | AnyGuard | None" = None
    rows: str = ""
    legacy_first: int | None = None
    announced_first: int | None = None
    parts: tuple[str, ...] = ()
    at_once: int = 1000
    has_records: bool = False
    coordinators: tuple[str, ...] | Callable[[object], tuple[str, ...]] = ()
    logs: "LogsOf | None" = None

    @property
    def key(self) -> int:
        """Key of the API."""
        return self.api.key

    @property
    def function(self) -> str:
        """Name of the handler."""
        return re.sub(r"\B(?=[A-Z])", "_", self.api.name).lower()

    def load(self, name: str) -> object:
        """Import the handler's module if needed, and return its object of this name."""
        return getattr(import_module(self.module_path), name)

    @property
    def module_path(self) -> str:
        """Full name of the handler's module."""
        return f"tidelog.server.api.{self.api.module}"

    def first_for(self, *, legacy: bool) -> int:
        """Return the lowest version served."""
        if self.legacy_first is None or not legacy:
            return self.api.first
        return self.legacy_first

    def announced_first_for(self, *, legacy: bool) -> int:
        """Return the lowest version announced."""
        served = self.first_for(legacy=legacy)
        return served if self.announced_first is None else min(self.announced_first, served)


# Modules that a thread imports, because each import takes a tenth of a second.
GROUPS: Final = ("tidelog.server.groups.coordinator",)
TRANSACTIONS: Final = ("tidelog.server.transactions.coordinator",)
_CONSUMER_GROUPS: Final = (*GROUPS, "tidelog.server.groups.consumer_heartbeat")
_SHARE_GROUPS: Final = (
    *GROUPS,
    "tidelog.server.groups.share_heartbeat",
    "tidelog.server.shares.share_partitions",
)


def _of_key_type(request: object) -> tuple[str, ...]:
    """Return the modules of the coordinator that a FindCoordinator request looks for."""
    by_type = {0: GROUPS, 1: TRANSACTIONS, 2: _SHARE_GROUPS}
    return by_type.get(getattr(request, "key_type", 0), ())


def _of_transactional_id(request: object) -> tuple[str, ...]:
    """Return the modules that an InitProducerId request uses: none without a transactional id."""
    return TRANSACTIONS if getattr(request, "transactional_id", None) else ()


# Rows of APIs whose requests use one coordinator, and wait until the log with its state is loaded.
_group_row: Final = partial(Row, coordinators=GROUPS, logs=group_log)
_consumer_row: Final = partial(Row, coordinators=_CONSUMER_GROUPS, logs=group_log)
_share_row: Final = partial(Row, coordinators=_SHARE_GROUPS, logs=group_log)
_share_offsets_row: Final = partial(Row, coordinators=_SHARE_GROUPS, logs=share_logs)
_transaction_row: Final = partial(Row, coordinators=TRANSACTIONS, logs=transaction_log)

# Lists of partitions by topic, in a request and in its response.
_TOPICS: Final = ("topics/partitions=topics/partitions",)

ROWS: Final = (
    # Version 0 is announced, as in Kafka, because librdkafka compresses only for brokers that
    # announce version 0.
    Row(
        api.PRODUCE,
        OWN,
        rows="PRODUCE_ROWS",
        legacy_first=0,
        announced_first=0,
        parts=("topic_data/partition_data=responses/partition_responses",),
        at_once=2000,
        has_records=True,
    ),
    Row(api.FETCH, OPEN, rows="FETCH_ROWS", legacy_first=0, at_once=8000),
    Row(
        api.LIST_OFFSETS,
        needs_topics(Operation.DESCRIBE),
        rows="LIST_OFFSETS_ROWS",
        legacy_first=0,
        parts=_TOPICS,
    ),
    Row(api.METADATA, OWN, parts=("topics=topics",)),
    Row(
        api.OFFSET_COMMIT,
        needs_all(needs_group(Operation.READ, rows="topics"), needs_topics(Operation.READ)),
        parts=_TOPICS,
        coordinators=GROUPS,
        logs=committed_group_log,
    ),
    _group_row(
        api.OFFSET_FETCH,
        OWN,
        parts=(
            "groups/topics/partition_indexes=groups/topics/partitions",
            "topics/partition_indexes=topics/partitions",
        ),
    ),
    Row(
        api.FIND_COORDINATOR,
        OWN,
        parts=("coordinator_keys=coordinators",),
        coordinators=_of_key_type,
        logs=coordinator_log,
    ),
    _group_row(api.JOIN_GROUP, OWN),
    # Heartbeats don't wait for the log: while a group is loading, every heartbeat succeeds.
    Row(api.HEARTBEAT, needs_group(Operation.READ), coordinators=GROUPS),
    _group_row(api.LEAVE_GROUP, needs_group(Operation.READ), parts=("members=members",)),
    _group_row(api.SYNC_GROUP, needs_group(Operation.READ), at_once=5000),
    _group_row(api.DESCRIBE_GROUPS, OWN, parts=("groups=groups",)),
    _group_row(api.LIST_GROUPS, OWN),
    Row(api.SASL_HANDSHAKE, OPEN),
    Row(api.API_VERSIONS, OPEN),
    Row(api.CREATE_TOPICS, OWN, parts=("topics=topics",)),
    Row(api.DELETE_TOPICS, OWN, parts=("topics=responses", "topic_names=responses")),
    Row(api.DELETE_RECORDS, needs_topics(Operation.DELETE), parts=_TOPICS),
    Row(
        api.OFFSET_FOR_LEADER_EPOCH,
        needs_topics(Operation.DESCRIBE, cluster=Operation.CLUSTER_ACTION),
        parts=_TOPICS,
    ),
    Row(
        api.TXN_OFFSET_COMMIT,
        needs_all(
            needs_transactional_id(Operation.WRITE, rows="topics"),
            needs_group(Operation.READ, rows="topics"),
            needs_topics(Operation.READ),
        ),
        parts=_TOPICS,
        coordinators=(*GROUPS, *TRANSACTIONS),
        logs=committed_group_log,
    ),
    Row(api.DESCRIBE_ACLS, needs_cluster(Operation.DESCRIBE)),
    Row(
        api.CREATE_ACLS,
        needs_cluster(Operation.ALTER, rows="creations"),
        parts=("creations=results",),
    ),
    Row(
        api.DELETE_ACLS,
        needs_cluster(Operation.ALTER, rows="filters"),
        parts=("filters=filter_results",),
    ),
    Row(api.DESCRIBE_CONFIGS, OWN, parts=("resources=results",)),
    Row(api.ALTER_CONFIGS, OWN, parts=("resources=responses",)),
    Row(api.ALTER_REPLICA_LOG_DIRS, OWN, at_once=5000),
    Row(api.DESCRIBE_LOG_DIRS, needs_cluster(Operation.DESCRIBE), at_once=5000),
    Row(api.SASL_AUTHENTICATE, OPEN),
    Row(api.CREATE_PARTITIONS, OWN, parts=("topics=results",)),
    Row(api.INIT_PRODUCER_ID, OWN, coordinators=_of_transactional_id, logs=transaction_log),
    _transaction_row(
        api.ADD_PARTITIONS_TO_TXN,
        OWN,
        parts=(
            "transactions/topics/partitions=results_by_transaction/topic_results/results_by_partition",
            "v3_and_below_topics/partitions=results_by_topic_v3_and_below/results_by_partition",
        ),
    ),
    Row(
        api.ADD_OFFSETS_TO_TXN,
        needs_all(needs_transactional_id(Operation.WRITE), needs_group(Operation.READ)),
        coordinators=(*GROUPS, *TRANSACTIONS),
        logs=transaction_log,
    ),
    _transaction_row(api.END_TXN, needs_transactional_id(Operation.WRITE)),
    Row(
        api.WRITE_TXN_MARKERS,
        needs_cluster(Operation.ALTER, Operation.CLUSTER_ACTION, rows="markers"),
        parts=("markers/topics/partition_indexes=markers/topics/partitions",),
    ),
    _group_row(api.DELETE_GROUPS, OWN, parts=("groups_names=results",)),
    Row(
        api.ELECT_LEADERS,
        needs_cluster(Operation.ALTER, rows="topic_partitions"),
        parts=("topic_partitions/partitions=replica_election_results/partition_result",),
    ),
    Row(api.INCREMENTAL_ALTER_CONFIGS, OWN, parts=("resources=responses",)),
    Row(
        api.ALTER_PARTITION_REASSIGNMENTS,
        needs_cluster(Operation.ALTER, rows="topics"),
        parts=("topics/partitions=responses/partitions",),
    ),
    Row(api.LIST_PARTITION_REASSIGNMENTS, needs_cluster(Operation.DESCRIBE)),
    _group_row(
        api.OFFSET_DELETE,
        needs_all(needs_group(Operation.DELETE), needs_topics(Operation.READ)),
        parts=_TOPICS,
    ),
    Row(api.DESCRIBE_CLIENT_QUOTAS, needs_cluster(Operation.DESCRIBE_CONFIGS)),
    Row(api.ALTER_CLIENT_QUOTAS, needs_cluster(Operation.ALTER_CONFIGS, rows="entries")),
    Row(
        api.DESCRIBE_USER_SCRAM_CREDENTIALS,
        needs_cluster(Operation.DESCRIBE, rows="users"),
        parts=("users=results",),
    ),
    Row(api.ALTER_USER_SCRAM_CREDENTIALS, OWN),
    Row(api.DESCRIBE_QUORUM, needs_cluster(Operation.DESCRIBE), parts=_TOPICS),
    Row(api.UPDATE_FEATURES, needs_cluster(Operation.ALTER)),
    Row(api.DESCRIBE_CLUSTER, OWN),
    Row(
        api.DESCRIBE_PRODUCERS,
        needs_topics(Operation.READ),
        parts=("topics/partition_indexes=topics/partitions",),
    ),
    Row(api.UNREGISTER_BROKER, needs_cluster(Operation.ALTER)),
    Row(
        api.DESCRIBE_TRANSACTIONS,
        OWN,
        parts=("transactional_ids=transaction_states",),
        coordinators=TRANSACTIONS,
    ),
    Row(api.LIST_TRANSACTIONS, OWN, coordinators=TRANSACTIONS),
    _consumer_row(api.CONSUMER_GROUP_HEARTBEAT, OWN, at_once=5000),
    _consumer_row(api.CONSUMER_GROUP_DESCRIBE, OWN, parts=("group_ids=groups",)),
    Row(api.LIST_CONFIG_RESOURCES, needs_cluster(Operation.DESCRIBE_CONFIGS)),
    Row(api.DESCRIBE_TOPIC_PARTITIONS, OWN),
    _share_row(api.SHARE_GROUP_HEARTBEAT, OWN, at_once=5000),
    _share_row(api.SHARE_GROUP_DESCRIBE, OWN, parts=("group_ids=groups",)),
    _share_row(api.SHARE_FETCH, OPEN, at_once=5000),
    _share_row(api.SHARE_ACKNOWLEDGE, OPEN, at_once=5000),
    Row(api.ADD_RAFT_VOTER, needs_cluster(Operation.ALTER)),
    Row(api.REMOVE_RAFT_VOTER, needs_cluster(Operation.ALTER)),
    _share_offsets_row(
        api.DESCRIBE_SHARE_GROUP_OFFSETS,
        OWN,
        parts=("groups/topics/partitions=groups/topics/partitions",),
    ),
    _share_offsets_row(
        api.ALTER_SHARE_GROUP_OFFSETS, OWN, parts=("topics/partitions=responses/partitions",)
    ),
    _share_offsets_row(
        api.DELETE_SHARE_GROUP_OFFSETS,
        needs_all(needs_group(Operation.DELETE), needs_topics(Operation.READ)),
        parts=("topics=responses",),
    ),
)

BY_KEY: Final = {row.key: row for row in ROWS}
_AT_ONCE: Final = {row.key: row.at_once for row in ROWS}

# Size in bytes above which a frame of an API in `_SPLIT` may contain long texts, which take longer
# to process. At most `_LONG_TEXTS` list elements of a frame above this size are processed without
# yielding the event loop.
_LONG_FRAME_BYTES: Final = 64 << 10

_LONG_TEXTS: Final = 16

_SPLIT: Final = frozenset(row.key for row in ROWS if row.parts and not row.has_records)


def items_at_once(key: int, frame_bytes: int) -> int:
    """Return how many list elements of a request may be processed at once on the event loop."""
    if frame_bytes > _LONG_FRAME_BYTES and key in _SPLIT:
        return _LONG_TEXTS
    return _AT_ONCE[key]


@cache
def served_versions(legacy: bool) -> "Mapping[int, tuple[int, int]]":
    """Return the first and last served version of each API, both inclusive."""
    return {row.key: (row.first_for(legacy=legacy), row.api.last) for row in ROWS}


@cache
def row_functions_of(key: int) -> RowFunctions | None:
    """Return an API's functions for repeated requests; None if the API has no such functions."""
    row = BY_KEY.get(key)
    if row is None or not row.rows:
        return None
    return cast("RowFunctions", row.load(row.rows))


@cache
def guard_of(key: int) -> "AnyGuard | None":
    """Return the guard of an API: `closed` if the table names none; None for an open API."""
    row = BY_KEY[key]
    if row.guard == OPEN:
        return None
    if row.guard == OWN:
        return cast("AnyGuard", row.load(f"guard_{row.function}"))
    return row.guard or closed
