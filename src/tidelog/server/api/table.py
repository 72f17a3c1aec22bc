"""Table of the served APIs: versions, handler, guard and split lists of each API.

ApiVersions announces the APIs and versions of the table.

A version is served only if all of it is implemented. The module of a handler is imported by the
API's first request at the latest. If an API has no guard and is not in `OPEN_TO_ALL`, only clients
with all rights on the cluster may use it. So other clients can't use a new API until it gets a
guard.

`guards` defines the rights, and `dispatch` passes each request to its handler.

Source: Kafka 4.3's KafkaApis; KIP-511.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, cast

from tidelog.garbage import collection_paused, take_modules_as_old
from tidelog.protocol import messages as api
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

    from tidelog.protocol.messages import AnyApi
    from tidelog.server.api.guards import AnyGuard
    from tidelog.server.api.node import Node


OWN: Final = "own"


class Row(NamedTuple):
    """One served API.

    Attributes:
        api: The API. Its handler is the function with the API's name in snake case, in the module
            with the same name as the module that declares the API's messages.
        legacy_first: Lowest version served with `tidelog.legacy.clients`; None if it is the API's
            first version.
        announced_first: Lowest version announced; None if it is the lowest version served.
        guard: Guard of the API. `OWN` means the function in the handler's module whose name is
            `guard_` followed by the handler's name. If the guard is None, clients need all rights
            on the cluster, unless the API is in `OPEN_TO_ALL`.
        rows: Name of the API's `RowFunctions` (functions for repeated requests) in the handler's
            module; empty if the API has none.
        parts: Pairs `LIST=LIST`: a list in the request and the matching list in the response, each
            as a path of fields. A request with a long list is split along the first pair whose
            fields exist in the request's version. If there is no such pair, long requests are
            refused. Exception: a long Fetch is processed by `fetch.long_fetch`.
        at_once: Maximum number of list elements of a request that are processed without yielding
            the event loop. Processing so many elements takes about 30 ms.
    """

    api: "AnyApi"
    guard: "Literal['own'] | AnyGuard | None" = None
    rows: str = ""
    legacy_first: int | None = None
    announced_first: int | None = None
    parts: tuple[str, ...] = ()
    at_once: int = 1000

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
    ),
    Row(api.FETCH, rows="FETCH_ROWS", legacy_first=0, at_once=8000),
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
    ),
    Row(
        api.OFFSET_FETCH,
        OWN,
        parts=(
            "groups/topics/partition_indexes=groups/topics/partitions",
            "topics/partition_indexes=topics/partitions",
        ),
    ),
    Row(api.FIND_COORDINATOR, OWN, parts=("coordinator_keys=coordinators",)),
    Row(api.JOIN_GROUP, OWN),
    Row(api.HEARTBEAT, needs_group(Operation.READ)),
    Row(api.LEAVE_GROUP, needs_group(Operation.READ), parts=("members=members",)),
    Row(api.SYNC_GROUP, needs_group(Operation.READ), at_once=5000),
    Row(api.DESCRIBE_GROUPS, OWN, parts=("groups=groups",)),
    Row(api.LIST_GROUPS, OWN),
    Row(api.SASL_HANDSHAKE),
    Row(api.API_VERSIONS),
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
    Row(api.SASL_AUTHENTICATE),
    Row(api.CREATE_PARTITIONS, OWN, parts=("topics=results",)),
    Row(api.INIT_PRODUCER_ID, OWN),
    Row(
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
    ),
    Row(api.END_TXN, needs_transactional_id(Operation.WRITE)),
    Row(
        api.WRITE_TXN_MARKERS,
        needs_cluster(Operation.ALTER, Operation.CLUSTER_ACTION, rows="markers"),
        parts=("markers/topics/partition_indexes=markers/topics/partitions",),
    ),
    Row(api.DELETE_GROUPS, OWN, parts=("groups_names=results",)),
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
    Row(
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
    Row(api.DESCRIBE_TRANSACTIONS, OWN, parts=("transactional_ids=transaction_states",)),
    Row(api.LIST_TRANSACTIONS, OWN),
    Row(api.CONSUMER_GROUP_HEARTBEAT, OWN, at_once=5000),
    Row(api.CONSUMER_GROUP_DESCRIBE, OWN, parts=("group_ids=groups",)),
    Row(api.LIST_CONFIG_RESOURCES, needs_cluster(Operation.DESCRIBE_CONFIGS)),
    Row(api.DESCRIBE_TOPIC_PARTITIONS, OWN),
    Row(api.SHARE_GROUP_HEARTBEAT, OWN, at_once=5000),
    Row(api.SHARE_GROUP_DESCRIBE, OWN, parts=("group_ids=groups",)),
    Row(api.SHARE_FETCH, at_once=5000),
    Row(api.SHARE_ACKNOWLEDGE, at_once=5000),
    Row(api.ADD_RAFT_VOTER, needs_cluster(Operation.ALTER)),
    Row(api.REMOVE_RAFT_VOTER, needs_cluster(Operation.ALTER)),
    Row(
        api.DESCRIBE_SHARE_GROUP_OFFSETS,
        OWN,
        parts=("groups/topics/partitions=groups/topics/partitions",),
    ),
    Row(api.ALTER_SHARE_GROUP_OFFSETS, OWN, parts=("topics/partitions=responses/partitions",)),
    Row(
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

# APIs whose frames may be long, because they contain records.
_WITH_RECORDS: Final = frozenset({0})

_SPLIT: Final = frozenset(row.key for row in ROWS if row.parts) - _WITH_RECORDS


def items_at_once(key: int, frame_bytes: int) -> int:
    """Return how many list elements of a request may be processed at once on the event loop."""
    if frame_bytes > _LONG_FRAME_BYTES and key in _SPLIT:
        return _LONG_TEXTS
    return _AT_ONCE[key]


# APIs about groups or transactional ids. A request of these APIs waits while the state of its group
# or id is being loaded. Heartbeat (12) of classic groups doesn't wait: while a group is loading,
# every heartbeat succeeds.
_AFTER_LOAD: Final = frozenset(
    {8, 9, 10, 11, 13, 14, 15, 16, 22, 24, 25, 26, 28, 42, 47, 68, 69, 76, 77, 78, 79, 90, 91, 92}
)

# Modules that a thread imports, because each import takes a tenth of a second.
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

# APIs whose coordinator depends on the request. The coordinator for FindCoordinator depends on the
# type of the key. The coordinator for InitProducerId depends on whether the request has a
# transactional id.
_FIND_COORDINATOR, _INIT_PRODUCER_ID = 10, 22

_BY_KEY_TYPE: Final = {0: (_GROUPS,), 1: (_TRANSACTIONS,), 2: (_GROUPS, _SHARE_GROUPS, _SHARES)}

# APIs that members of a consumer group use, in the order in which a member uses them first.
_OF_MEMBERS: Final = (_FIND_COORDINATOR, 11, 14, 12, 9, 2, 1, 8, 13)

# Names of the imported modules of coordinators and handlers.
_imported: Final = set[str]()


@cache
def handler_of(key: int) -> Handler:
    """Return the handler of an API in the table."""
    if key in _COORDINATORS or key in {_FIND_COORDINATOR, _INIT_PRODUCER_ID}:
        return _importing(key)
    return _handler_of(key)


@cache
def _handler_of(key: int) -> Handler:
    handler = cast("Handler", BY_KEY[key].load(BY_KEY[key].function))
    return _after_load(key, handler) if key in _AFTER_LOAD else handler


# Maximum time in seconds for which a request waits for one log to be loaded. After this time the
# request is handled even if the log is not loaded yet, and gets an error in most cases. Clients
# wait longer for a response than this time.
LOAD_WAIT_S: Final = 2.0

# Key types of FindCoordinator.
_GROUP, _TRANSACTION = 0, 1

_OF_TRANSACTIONS: Final = frozenset({22, 24, 25, 26})
_ADD_PARTITIONS: Final = 24

# OffsetCommit and TxnOffsetCommit. A request without topics, for example because all were denied,
# commits nothing and does not wait.
_COMMITS: Final = frozenset({8, 28})

# APIs about the stored state of share partitions. Requests of these APIs wait until the state of
# all share partitions is loaded. ShareFetch is not listed, because it waits only for the state of
# the partitions that it reads. ShareAcknowledge is not listed, because it names only records that
# an earlier ShareFetch has acquired.
_OF_SHARE_STATES: Final = frozenset({90, 91, 92})


class _StateLog(Protocol):
    """The log with the state of groups, of transactions or of share partitions."""

    @property
    def is_loading(self) -> bool: ...
    async def loaded(self, key: str | None, /, *, wait_s: float) -> None: ...


def _after_load(key: int, handler: Handler) -> Handler:
    """Wrap a handler so that it waits, up to a limit, for the state that a request needs.

    Without the wait, the client would get COORDINATOR_LOAD_IN_PROGRESS, and would pause before it
    retries. For example, librdkafka pauses for three seconds after this error.
    """

    def handle(context: RequestContext, request: "DataclassInstance") -> Answer:
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

    return handle


def _state_logs_of(key: int, node: "Node", request: object) -> "list[tuple[_StateLog, str | None]]":
    """Return the state logs that a request needs, each with a group or transactional id.

    The request waits while these logs are loading. If a log comes with an id, the request waits
    only for the partition of the log that stores this id. If the id is None, the request waits for
    the whole log. The id is None if the request names no id or several ids.
    """
    if key in _OF_TRANSACTIONS:
        # A request without a transactional id, for example from an idempotent producer, does not
        # wait. A request with several transactional ids does not wait either.
        field = "v3_and_below_transactional_id" if key == _ADD_PARTITIONS else "transactional_id"
        name = getattr(request, field)
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
    module = BY_KEY[key].module_path

    def handle(context: RequestContext, request: "DataclassInstance") -> Answer:
        names = _used_by(key, request)
        if module in _imported and _imported.issuperset(names):
            return _handler_of(key)(context, request)
        return later(names, context, request)

    async def later(
        names: Iterable[str], context: RequestContext, request: "DataclassInstance"
    ) -> Ready:
        await context.node.work.run(import_for, key, names)
        return await settled(_handler_of(key)(context, request))

    return handle


def _used_by(key: int, request: object) -> tuple[str, ...]:
    """Return the modules of the coordinators that a request needs."""
    if key == _FIND_COORDINATOR:
        return _BY_KEY_TYPE.get(getattr(request, "key_type", 0), ())
    if key == _INIT_PRODUCER_ID:
        return (_TRANSACTIONS,) if getattr(request, "transactional_id", None) else ()
    return _COORDINATORS[key]


def import_for(key: int, coordinators: "Iterable[str]" = ()) -> None:
    """Import the handler of an API and the modules that it uses. Any thread may call this."""
    names = (*coordinators, *_COORDINATORS.get(key, ()), BY_KEY[key].module_path)
    with collection_paused():
        for name in names:
            import_module(name)
        take_modules_as_old()
    _imported.update(names)


def import_coordinators(with_transactions: bool) -> None:
    """Import the modules for consumer groups, and for transactions if `with_transactions` is true.

    Any thread may call this.
    """
    for key in _OF_MEMBERS:
        import_for(key, _BY_KEY_TYPE[0])
    if with_transactions:
        import_for(_FIND_COORDINATOR, _BY_KEY_TYPE[1])


@cache
def served_versions(legacy: bool) -> "Mapping[int, tuple[int, int]]":
    """Return the first and last served version of each API, both inclusive."""
    return {row.key: (row.first_for(legacy=legacy), row.api.last) for row in ROWS}


# APIs without a guard that are open to all. Fetch, ShareFetch and ShareAcknowledge check rights in
# their handlers. The other APIs are about versions, authentication and the client's own telemetry
# (71 and 72, which are not served).
OPEN_TO_ALL: Final = frozenset({1, 17, 18, 36, 71, 72, 78, 79})


@cache
def row_functions_of(key: int) -> RowFunctions | None:
    """Return an API's functions for repeated requests; None if the API has no such functions."""
    row = BY_KEY.get(key)
    if row is None or not row.rows:
        return None
    return cast("RowFunctions", row.load(row.rows))


@cache
def guard_of(key: int) -> "AnyGuard | None":
    """Return the guard of an API; None if it is open to all."""
    row = BY_KEY[key]
    if key in OPEN_TO_ALL:
        return None
    if row.guard == OWN:
        return cast("AnyGuard", row.load(f"guard_{row.function}"))
    return row.guard or closed
