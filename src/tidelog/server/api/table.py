"""Table of the served APIs: versions, handler, guard and list of each; ApiVersions announces it.

A version is listed only when all of it works. The module of a handler is imported at the API's
first request. An API without a guard requires all rights on the cluster, so a new API is closed
until it gets one.

Not here: rights (`guards`), and the way of a request to its handler (`dispatch`).

Source: Kafka 4.3's KafkaApis; KIP-511.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from tidelog.garbage import collection_paused, take_modules_as_old
from tidelog.server.api.context import Answer, Handler, Ready, RequestContext, RowFunctions
from tidelog.server.api.guards import (
    closed,
    needs_all,
    needs_cluster,
    needs_group,
    needs_topics,
    needs_transactional_id,
)
from tidelog.server.runtime.reply import settled
from tidelog.server.security.operations import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from tidelog.server.api.guards import AnyGuard
    from tidelog.server.api.node import Node


class Row(NamedTuple):
    """One served API.

    Attributes:
        key: Key of the API.
        module: Module of its handler, in this package.
        function: Name of the handler.
        first: Lowest version announced.
        last: Highest version announced, inclusive.
        legacy_first: Lowest version with `tidelog.legacy.clients`; None for `first`.
        announced_first: Lowest version announced if it is below the lowest served; else None.
        guard: Its guard, or the name of one in the same module; empty for an API that only clients
            with all rights on the cluster may call.
        rows: Name of its `RowFunctions`, in the same module; empty without templates.
        parts: For requests with long lists: `request list=response list`, by paths of fields. The
            first pair that the version has counts; without one, long requests are refused.
        at_once: Number of list elements of a request that are processed without yielding the event
            loop: about 30 ms.
    """

    key: int
    module: str
    function: str
    first: int
    last: int
    guard: "str | AnyGuard" = ""
    rows: str = ""
    legacy_first: int | None = None
    announced_first: int | None = None
    parts: tuple[str, ...] = ()
    at_once: int = 1000

    def first_for(self, *, legacy: bool) -> int:
        """Return the lowest version served."""
        return self.first if self.legacy_first is None or not legacy else self.legacy_first

    def announced_first_for(self, *, legacy: bool) -> int:
        """Return the lowest version announced."""
        served = self.first_for(legacy=legacy)
        return served if self.announced_first is None else min(self.announced_first, served)


ROWS: Final = (
    # Version 0 is announced, as in Kafka, because librdkafka compresses only for brokers that
    # announce it.
    Row(
        0,
        "produce",
        "produce",
        3,
        13,
        guard="guard_produce",
        rows="PRODUCE_ROWS",
        legacy_first=0,
        announced_first=0,
        parts=("topic_data/partition_data=responses/partition_responses",),
        at_once=2000,
    ),
    Row(1, "fetch", "fetch", 4, 18, rows="FETCH_ROWS", legacy_first=0, at_once=8000),
    Row(
        2,
        "list_offsets",
        "list_offsets",
        1,
        11,
        guard=needs_topics(Operation.DESCRIBE),
        rows="LIST_OFFSETS_ROWS",
        legacy_first=0,
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(3, "metadata", "metadata", 0, 13, guard="guard_metadata", parts=("topics=topics",)),
    Row(
        8,
        "group_offsets",
        "offset_commit",
        2,
        10,
        guard=needs_all(needs_group(Operation.READ, rows="topics"), needs_topics(Operation.READ)),
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(
        9,
        "group_offsets",
        "offset_fetch",
        1,
        10,
        guard="guard_offset_fetch",
        parts=(
            "groups/topics/partition_indexes=groups/topics/partitions",
            "topics/partition_indexes=topics/partitions",
        ),
    ),
    Row(
        10,
        "classic_groups",
        "find_coordinator",
        0,
        6,
        guard="guard_find_coordinator",
        parts=("coordinator_keys=coordinators",),
    ),
    Row(11, "classic_groups", "join_group", 0, 9, guard="guard_join_group"),
    Row(12, "classic_groups", "heartbeat", 0, 4, guard=needs_group(Operation.READ)),
    Row(
        13,
        "classic_groups",
        "leave_group",
        0,
        5,
        guard=needs_group(Operation.READ),
        parts=("members=members",),
    ),
    Row(14, "classic_groups", "sync_group", 0, 5, guard=needs_group(Operation.READ), at_once=5000),
    Row(
        15,
        "classic_groups",
        "describe_groups",
        0,
        6,
        guard="guard_describe_groups",
        parts=("groups=groups",),
    ),
    Row(16, "classic_groups", "list_groups", 0, 5, guard="guard_list_groups"),
    Row(17, "security", "sasl_handshake", 0, 1),
    Row(18, "metadata", "api_versions", 0, 4),
    Row(19, "topics", "create_topics", 2, 7, guard="guard_create_topics", parts=("topics=topics",)),
    Row(
        20,
        "topics",
        "delete_topics",
        1,
        6,
        guard="guard_delete_topics",
        parts=(
            "topics=responses",
            "topic_names=responses",
        ),
    ),
    Row(
        21,
        "topics",
        "delete_records",
        0,
        2,
        guard=needs_topics(Operation.DELETE),
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(
        23,
        "list_offsets",
        "offset_for_leader_epoch",
        2,
        4,
        guard=needs_topics(Operation.DESCRIBE, cluster=Operation.CLUSTER_ACTION),
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(
        28,
        "group_offsets",
        "txn_offset_commit",
        0,
        5,
        guard=needs_all(
            needs_transactional_id(Operation.WRITE, rows="topics"),
            needs_group(Operation.READ, rows="topics"),
            needs_topics(Operation.READ),
        ),
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(29, "security", "describe_acls", 1, 3, guard=needs_cluster(Operation.DESCRIBE)),
    Row(
        30,
        "security",
        "create_acls",
        1,
        3,
        guard=needs_cluster(Operation.ALTER, rows="creations"),
        parts=("creations=results",),
    ),
    Row(
        31,
        "security",
        "delete_acls",
        1,
        3,
        guard=needs_cluster(Operation.ALTER, rows="filters"),
        parts=("filters=filter_results",),
    ),
    Row(
        32,
        "configs",
        "describe_configs",
        1,
        4,
        guard="guard_describe_configs",
        parts=("resources=results",),
    ),
    Row(
        33,
        "configs",
        "alter_configs",
        0,
        2,
        guard="guard_alter_configs",
        parts=("resources=responses",),
    ),
    Row(
        34,
        "cluster",
        "alter_replica_log_dirs",
        1,
        2,
        guard="guard_alter_replica_log_dirs",
        at_once=5000,
    ),
    Row(
        35,
        "cluster",
        "describe_log_dirs",
        1,
        5,
        guard=needs_cluster(Operation.DESCRIBE),
        at_once=5000,
    ),
    Row(36, "security", "sasl_authenticate", 0, 2),
    Row(
        37,
        "topics",
        "create_partitions",
        0,
        3,
        guard="guard_create_partitions",
        parts=("topics=results",),
    ),
    Row(22, "transactions", "init_producer_id", 0, 5, guard="guard_init_producer_id"),
    Row(
        24,
        "transactions",
        "add_partitions_to_txn",
        0,
        5,
        guard="guard_add_partitions_to_txn",
        parts=(
            "transactions/topics/partitions=results_by_transaction/topic_results/results_by_partition",
            "v3_and_below_topics/partitions=results_by_topic_v3_and_below/results_by_partition",
        ),
    ),
    Row(
        25,
        "transactions",
        "add_offsets_to_txn",
        0,
        4,
        guard=needs_all(needs_transactional_id(Operation.WRITE), needs_group(Operation.READ)),
    ),
    Row(26, "transactions", "end_txn", 0, 5, guard=needs_transactional_id(Operation.WRITE)),
    Row(
        27,
        "transactions",
        "write_txn_markers",
        1,
        2,
        guard=needs_cluster(Operation.ALTER, Operation.CLUSTER_ACTION, rows="markers"),
        parts=("markers/topics/partition_indexes=markers/topics/partitions",),
    ),
    Row(
        42,
        "classic_groups",
        "delete_groups",
        0,
        2,
        guard="guard_delete_groups",
        parts=("groups_names=results",),
    ),
    Row(
        43,
        "cluster",
        "elect_leaders",
        0,
        2,
        guard=needs_cluster(Operation.ALTER, rows="topic_partitions"),
        parts=("topic_partitions/partitions=replica_election_results/partition_result",),
    ),
    Row(
        44,
        "configs",
        "incremental_alter_configs",
        0,
        1,
        guard="guard_incremental_alter_configs",
        parts=("resources=responses",),
    ),
    Row(
        45,
        "cluster",
        "alter_partition_reassignments",
        0,
        1,
        guard=needs_cluster(Operation.ALTER, rows="topics"),
        parts=("topics/partitions=responses/partitions",),
    ),
    Row(
        46,
        "cluster",
        "list_partition_reassignments",
        0,
        0,
        guard=needs_cluster(Operation.DESCRIBE),
    ),
    Row(
        47,
        "group_offsets",
        "offset_delete",
        0,
        0,
        guard=needs_all(needs_group(Operation.DELETE), needs_topics(Operation.READ)),
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(
        48,
        "configs",
        "describe_client_quotas",
        0,
        1,
        guard=needs_cluster(Operation.DESCRIBE_CONFIGS),
    ),
    Row(
        49,
        "configs",
        "alter_client_quotas",
        0,
        1,
        guard=needs_cluster(Operation.ALTER_CONFIGS, rows="entries"),
    ),
    Row(
        50,
        "security",
        "describe_user_scram_credentials",
        0,
        0,
        guard=needs_cluster(Operation.DESCRIBE, rows="users"),
        parts=("users=results",),
    ),
    Row(
        51,
        "security",
        "alter_user_scram_credentials",
        0,
        0,
        guard="guard_alter_user_scram_credentials",
    ),
    Row(
        55,
        "cluster",
        "describe_quorum",
        0,
        2,
        guard=needs_cluster(Operation.DESCRIBE),
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(57, "cluster", "update_features", 0, 2, guard=needs_cluster(Operation.ALTER)),
    Row(60, "metadata", "describe_cluster", 0, 2, guard="guard_describe_cluster"),
    Row(
        61,
        "transactions",
        "describe_producers",
        0,
        0,
        guard=needs_topics(Operation.READ),
        parts=("topics/partition_indexes=topics/partitions",),
    ),
    Row(64, "cluster", "unregister_broker", 0, 0, guard=needs_cluster(Operation.ALTER)),
    Row(
        65,
        "transactions",
        "describe_transactions",
        0,
        0,
        guard="guard_describe_transactions",
        parts=("transactional_ids=transaction_states",),
    ),
    Row(66, "transactions", "list_transactions", 0, 2, guard="guard_list_transactions"),
    Row(
        68,
        "modern_groups",
        "consumer_group_heartbeat",
        0,
        1,
        guard="guard_consumer_group_heartbeat",
        at_once=5000,
    ),
    Row(
        69,
        "modern_groups",
        "consumer_group_describe",
        0,
        1,
        guard="guard_consumer_group_describe",
        parts=("group_ids=groups",),
    ),
    Row(
        74,
        "configs",
        "list_config_resources",
        0,
        1,
        guard=needs_cluster(Operation.DESCRIBE_CONFIGS),
    ),
    Row(75, "metadata", "describe_topic_partitions", 0, 0, guard="guard_describe_topic_partitions"),
    Row(
        76,
        "modern_groups",
        "share_group_heartbeat",
        1,
        1,
        guard="guard_share_group_heartbeat",
        at_once=5000,
    ),
    Row(
        77,
        "modern_groups",
        "share_group_describe",
        1,
        1,
        guard="guard_share_group_describe",
        parts=("group_ids=groups",),
    ),
    Row(78, "share_fetch", "share_fetch", 1, 2, at_once=5000),
    Row(
        79,
        "share_fetch",
        "share_acknowledge",
        1,
        2,
        parts=("topics/partitions=responses/partitions",),
        at_once=5000,
    ),
    Row(80, "cluster", "add_raft_voter", 0, 1, guard=needs_cluster(Operation.ALTER)),
    Row(81, "cluster", "remove_raft_voter", 0, 0, guard=needs_cluster(Operation.ALTER)),
    Row(
        90,
        "share_offsets",
        "describe_share_group_offsets",
        0,
        1,
        guard="guard_describe_share_group_offsets",
        parts=("groups/topics/partitions=groups/topics/partitions",),
    ),
    Row(
        91,
        "share_offsets",
        "alter_share_group_offsets",
        0,
        0,
        guard="guard_alter_share_group_offsets",
        parts=("topics/partitions=responses/partitions",),
    ),
    Row(
        92,
        "share_offsets",
        "delete_share_group_offsets",
        0,
        0,
        guard=needs_all(needs_group(Operation.DELETE), needs_topics(Operation.READ)),
        parts=("topics=responses",),
    ),
)


BY_KEY: Final = {row.key: row for row in ROWS}


_AT_ONCE: Final = {row.key: row.at_once for row in ROWS}


# Elements with long texts take longer: of a frame longer than this, only this many are processed
# without yielding the event loop.
_LONG_FRAME_BYTES: Final = 64 << 10


_LONG_TEXTS: Final = 16


# APIs whose frames may be long, because they contain records.
_WITH_RECORDS: Final = frozenset({0})


_SPLIT: Final = frozenset(row.key for row in ROWS if row.parts) - _WITH_RECORDS


def items_at_once(key: int, frame_bytes: int) -> int:
    """Return how many list elements of a request may be processed at once on the event loop."""
    if frame_bytes > _LONG_FRAME_BYTES and key in _SPLIT:
        return _LONG_TEXTS
    return _AT_ONCE[key]


# APIs about groups or transactional ids, which wait while these are loading. Heartbeats don't wait:
# while a group is loading, every heartbeat succeeds.
_AFTER_LOAD: Final = frozenset(
    {8, 9, 10, 11, 13, 14, 15, 16, 22, 24, 25, 26, 28, 42, 47, 68, 69, 76, 77, 78, 79, 90, 91, 92}
)


# Modules whose import takes a tenth of a second, so that a thread imports them.
_GROUPS: Final = "tidelog.server.groups.coordinator"


_CONSUMER_GROUPS: Final = "tidelog.server.groups.consumer_heartbeat"


_SHARE_GROUPS: Final = "tidelog.server.groups.share_heartbeat"


_TRANSACTIONS: Final = "tidelog.server.transactions.coordinator"


_SHARES: Final = "tidelog.server.shares.share_partitions"


_COORDINATORS: Final = {
    **dict.fromkeys((8, 9, 11, 12, 13, 14, 15, 16, 42, 47), (_GROUPS,)),
    **dict.fromkeys((68, 69), (_GROUPS, _CONSUMER_GROUPS)),
    **dict.fromkeys((24, 26, 65, 66), (_TRANSACTIONS,)),
    **dict.fromkeys((25, 28), (_GROUPS, _TRANSACTIONS)),
    **dict.fromkeys((76, 77, 78, 79, 90, 91, 92), (_GROUPS, _SHARE_GROUPS, _SHARES)),
}


# APIs whose coordinator depends on the request: FindCoordinator on the type of its key,
# InitProducerId on whether it has a transactional id.
_FIND_COORDINATOR, _INIT_PRODUCER_ID = 10, 22


_BY_KEY_TYPE: Final = {0: (_GROUPS,), 1: (_TRANSACTIONS,), 2: (_GROUPS, _SHARE_GROUPS, _SHARES)}


# APIs that members of a consumer group use, in the order of their requests.
_OF_MEMBERS: Final = (_FIND_COORDINATOR, 11, 14, 12, 9, 2, 1, 8, 13)


# Names of the imported modules of coordinators and handlers.
_imported: Final = set[str]()


@cache
def handler_of(key: int) -> Handler:
    """Return the handler of an API in the table."""
    if key in _COORDINATORS or key in {_FIND_COORDINATOR, _INIT_PRODUCER_ID}:
        return _importing(key)
    return _handler_of(key)


def _module_of(key: int) -> str:
    return f"tidelog.server.api.{BY_KEY[key].module}"


@cache
def _handler_of(key: int) -> Handler:
    handler = cast("Handler", getattr(import_module(_module_of(key)), BY_KEY[key].function))
    return _after_load(key, handler) if key in _AFTER_LOAD else handler


# Maximum time in seconds for which a request waits for loading; clients' own timeouts are longer.
# After it the request gets an error.
LOAD_WAIT_S: Final = 2.0


# Key types of FindCoordinator.
_GROUP, _TRANSACTION = 0, 1


_OF_TRANSACTIONS: Final = frozenset({22, 24, 25, 26})


# OffsetCommit and TxnOffsetCommit. A request without topics, for example because all were denied,
# commits nothing and does not wait.
_COMMITS: Final = frozenset({8, 28})


# APIs about stored state of share partitions, which wait for all of it; ShareFetch and
# ShareAcknowledge wait only for the partitions that they name.
_OF_SHARE_STATES: Final = frozenset({90, 91, 92})


class _StateLog(Protocol):
    """The log of groups, of transactions or of share partitions."""

    @property
    def is_loading(self) -> bool: ...
    async def loaded(self, key: str | None, /, *, wait_s: float) -> None: ...


def _after_load(key: int, handler: Handler) -> Handler:
    """Wrap a handler: it waits, up to a limit, while the state that a request needs is loading.

    A client that gets COORDINATOR_LOAD_IN_PROGRESS pauses before it retries, librdkafka for three
    seconds.
    """

    def answer(context: RequestContext, request: "DataclassInstance") -> Answer:
        logs = _state_logs_of(key, context.node, request)
        if any(log.is_loading for log, _ in logs):
            return later(logs, context, request)
        return handler(context, request)

    async def later(
        logs: "Iterable[tuple[_StateLog, str | None]]",
        context: RequestContext,
        request: "DataclassInstance",
    ) -> Ready:
        for log, name in logs:
            if log.is_loading:
                await log.loaded(name, wait_s=LOAD_WAIT_S)
        return await settled(handler(context, request))

    return answer


def _state_logs_of(key: int, node: "Node", request: object) -> "list[tuple[_StateLog, str | None]]":
    """Return the logs that a request depends on, each with its group or transactional id.

    The id is None if the request names several.
    """
    if key in _OF_TRANSACTIONS:
        # A request without a transactional id (of an idempotent producer) or with several does not
        # wait.
        name = getattr(request, "transactional_id", None)
        return [(node.transactions.log, name)] if name else []
    if key == _FIND_COORDINATOR:
        kind = getattr(request, "key_type", _GROUP)
        name = getattr(request, "key", None) or None
        if kind == _TRANSACTION:
            return [(node.transactions.log, name)]
        return [(node.groups.shards, name)] if kind == _GROUP else []
    if key in _COMMITS and not getattr(request, "topics", ()):
        return []
    logs: list[tuple[_StateLog, str | None]] = [
        (node.groups.shards, getattr(request, "group_id", None) or None)
    ]
    if key in _OF_SHARE_STATES:
        logs.append((node.shares.states.topic, None))
    return logs


def _importing(key: int) -> Handler:
    """Return a handler whose modules are imported in a thread, at its first request."""
    module = _module_of(key)

    def answer(context: RequestContext, request: "DataclassInstance") -> Answer:
        names = _used_by(key, request)
        if module in _imported and _imported.issuperset(names):
            return _handler_of(key)(context, request)
        return later(names, context, request)

    async def later(
        names: Iterable[str], context: RequestContext, request: "DataclassInstance"
    ) -> Ready:
        await context.node.work.run(import_for, key, names)
        return await settled(_handler_of(key)(context, request))

    return answer


def _used_by(key: int, request: object) -> tuple[str, ...]:
    """Return the modules of the coordinators that a request needs."""
    if key == _FIND_COORDINATOR:
        return _BY_KEY_TYPE.get(getattr(request, "key_type", 0), ())
    if key == _INIT_PRODUCER_ID:
        return (_TRANSACTIONS,) if getattr(request, "transactional_id", None) else ()
    return _COORDINATORS[key]


def import_for(key: int, coordinators: "Iterable[str]" = ()) -> None:
    """Import the handler of an API and the modules that it uses; safe in any thread."""
    names = (*coordinators, *_COORDINATORS.get(key, ()), _module_of(key))
    with collection_paused():
        for name in names:
            import_module(name)
        take_modules_as_old()
    _imported.update(names)


def import_coordinators(with_transactions: bool) -> None:
    """Import the modules for consumer groups, and for transactions if `with_transactions` is true.

    Any thread may call it.
    """
    for key in _OF_MEMBERS:
        import_for(key, _BY_KEY_TYPE[0])
    if with_transactions:
        import_for(_FIND_COORDINATOR, _BY_KEY_TYPE[1])


@cache
def served_versions(legacy: bool) -> "Mapping[int, tuple[int, int]]":
    """Return the first and last served version of each API, both inclusive."""
    return {row.key: (row.first_for(legacy=legacy), row.last) for row in ROWS}


# APIs without a guard that are open to all. Fetch, ShareFetch and ShareAcknowledge check rights in
# their handlers. The others are about versions, authentication and the client's own telemetry.
OPEN_TO_ALL: Final = frozenset({1, 17, 18, 36, 71, 72, 78, 79})


@cache
def row_functions_of(key: int) -> RowFunctions | None:
    """Return an API's functions for repeated requests; None if it has none."""
    row = BY_KEY.get(key)
    if row is None or not row.rows:
        return None
    module = import_module(f"tidelog.server.api.{row.module}")
    return cast("RowFunctions", getattr(module, row.rows))


@cache
def guard_of(key: int) -> "AnyGuard | None":
    """Return the guard of an API; None if it is open to all."""
    row = BY_KEY[key]
    if key in OPEN_TO_ALL:
        return None
    if not row.guard:
        return closed
    if not isinstance(row.guard, str):
        return row.guard
    module = import_module(f"tidelog.server.api.{row.module}")
    return cast("AnyGuard", getattr(module, row.guard))
