"""Which handler answers which API, in which versions; a module is imported at its first request.

A version stands here only when all of it works: this table is what ApiVersions announces.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from tidelog.server.requests import Handler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from _typeshed import DataclassInstance

    from tidelog.server.requests import Answer, Long, RequestContext


@dataclass(frozen=True, slots=True)
class Row:
    """One API that is served.

    Attributes:
        key: Its number.
        module: Where its handler is, in this package.
        function: The handler's name.
        first: Lowest version announced.
        last: Highest version announced, inclusive.
        legacy_first: Lowest version with `tidelog.legacy.clients`; None for `first`.
        announced_first: Lowest version announced where it is below what is served; else None.
        parts: For requests with long lists: `request list=response list`, by paths of fields. The
            first pair that the version has counts; without one, long requests are refused.
        at_once: How many list elements of a request are worked on without a stop: as many as take
            some 30 ms.
    """

    key: int
    module: str
    function: str
    first: int
    last: int
    legacy_first: int | None = None
    announced_first: int | None = None
    parts: tuple[str, ...] = ()
    at_once: int = 1000

    def first_for(self, *, legacy: bool) -> int:
        """The lowest version served."""
        return self.first if self.legacy_first is None or not legacy else self.legacy_first

    def announced_first_for(self, *, legacy: bool) -> int:
        """The lowest version announced."""
        served = self.first_for(legacy=legacy)
        return served if self.announced_first is None else min(self.announced_first, served)


ROWS: Final = (
    # As Kafka: librdkafka compresses only for brokers that announce version 0.
    Row(
        0,
        "produce",
        "produce",
        3,
        13,
        legacy_first=0,
        announced_first=0,
        parts=("topic_data/partition_data=responses/partition_responses",),
        at_once=2000,
    ),
    Row(1, "fetch", "fetch", 4, 18, legacy_first=0, at_once=8000),
    Row(
        2,
        "list_offsets",
        "list_offsets",
        1,
        11,
        legacy_first=0,
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(3, "metadata", "metadata", 0, 13, parts=("topics=topics",)),
    Row(8, "offsets", "offset_commit", 2, 10, parts=("topics/partitions=topics/partitions",)),
    Row(
        9,
        "offset_fetch",
        "offset_fetch",
        1,
        10,
        parts=(
            "groups/topics/partition_indexes=groups/topics/partitions",
            "topics/partition_indexes=topics/partitions",
        ),
    ),
    Row(10, "coordinator", "find_coordinator", 0, 6, parts=("coordinator_keys=coordinators",)),
    Row(11, "groups", "join_group", 0, 9),
    Row(12, "groups", "heartbeat", 0, 4),
    Row(13, "groups", "leave_group", 0, 5, parts=("members=members",)),
    Row(14, "groups", "sync_group", 0, 5, at_once=5000),
    Row(15, "groups", "describe_groups", 0, 6, parts=("groups=groups",)),
    Row(16, "groups", "list_groups", 0, 5),
    Row(17, "sasl", "sasl_handshake", 0, 1),
    Row(18, "api_versions", "api_versions", 0, 4),
    Row(19, "topics", "create_topics", 2, 7, parts=("topics=topics",)),
    Row(
        20,
        "topics",
        "delete_topics",
        1,
        6,
        parts=(
            "topics=responses",
            "topic_names=responses",
        ),
    ),
    Row(
        21, "delete_records", "delete_records", 0, 2, parts=("topics/partitions=topics/partitions",)
    ),
    Row(
        23,
        "epochs",
        "offset_for_leader_epoch",
        2,
        4,
        parts=("topics/partitions=topics/partitions",),
    ),
    Row(
        28, "txn_offsets", "txn_offset_commit", 0, 5, parts=("topics/partitions=topics/partitions",)
    ),
    Row(29, "acls", "describe_acls", 1, 3),
    Row(30, "acls", "create_acls", 1, 3, parts=("creations=results",)),
    Row(31, "acls", "delete_acls", 1, 3, parts=("filters=filter_results",)),
    Row(32, "configs", "describe_configs", 1, 4, parts=("resources=results",)),
    Row(33, "configs", "alter_configs", 0, 2, parts=("resources=responses",)),
    Row(34, "replicas", "alter_replica_log_dirs", 1, 2, at_once=5000),
    Row(35, "log_dirs", "describe_log_dirs", 1, 5, at_once=5000),
    Row(36, "sasl", "sasl_authenticate", 0, 2),
    Row(37, "topics", "create_partitions", 0, 3, parts=("topics=results",)),
    Row(22, "producer_ids", "init_producer_id", 0, 5),
    Row(
        24,
        "transactions",
        "add_partitions_to_txn",
        0,
        5,
        parts=(
            "transactions/topics/partitions=results_by_transaction/topic_results/results_by_partition",
            "v3_and_below_topics/partitions=results_by_topic_v3_and_below/results_by_partition",
        ),
    ),
    Row(25, "transactions", "add_offsets_to_txn", 0, 4),
    Row(26, "transactions", "end_txn", 0, 5),
    Row(
        27,
        "markers",
        "write_txn_markers",
        1,
        2,
        parts=("markers/topics/partition_indexes=markers/topics/partitions",),
    ),
    Row(42, "groups", "delete_groups", 0, 2, parts=("groups_names=results",)),
    Row(
        43,
        "replicas",
        "elect_leaders",
        0,
        2,
        parts=("topic_partitions/partitions=replica_election_results/partition_result",),
    ),
    Row(44, "configs", "incremental_alter_configs", 0, 1, parts=("resources=responses",)),
    Row(
        45,
        "replicas",
        "alter_partition_reassignments",
        0,
        1,
        parts=("topics/partitions=responses/partitions",),
    ),
    Row(46, "replicas", "list_partition_reassignments", 0, 0),
    Row(47, "offsets", "offset_delete", 0, 0, parts=("topics/partitions=topics/partitions",)),
    Row(48, "quotas", "describe_client_quotas", 0, 1),
    Row(49, "quotas", "alter_client_quotas", 0, 1),
    Row(50, "scram_users", "describe_user_scram_credentials", 0, 0, parts=("users=results",)),
    Row(51, "scram_users", "alter_user_scram_credentials", 0, 0),
    Row(55, "quorum", "describe_quorum", 0, 2, parts=("topics/partitions=topics/partitions",)),
    Row(57, "quorum", "update_features", 0, 2),
    Row(60, "cluster", "describe_cluster", 0, 2),
    Row(
        61,
        "producers",
        "describe_producers",
        0,
        0,
        parts=("topics/partition_indexes=topics/partitions",),
    ),
    Row(64, "quorum", "unregister_broker", 0, 0),
    Row(
        65,
        "known_transactions",
        "describe_transactions",
        0,
        0,
        parts=("transactional_ids=transaction_states",),
    ),
    Row(66, "known_transactions", "list_transactions", 0, 2),
    Row(68, "consumer_groups", "consumer_group_heartbeat", 0, 1, at_once=5000),
    Row(69, "consumer_groups", "consumer_group_describe", 0, 1, parts=("group_ids=groups",)),
    Row(74, "configs", "list_config_resources", 0, 1),
    Row(75, "cluster", "describe_topic_partitions", 0, 0),
    Row(76, "share_groups", "share_group_heartbeat", 1, 1, at_once=5000),
    Row(77, "share_groups", "share_group_describe", 1, 1, parts=("group_ids=groups",)),
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
    Row(80, "quorum", "add_raft_voter", 0, 1),
    Row(81, "quorum", "remove_raft_voter", 0, 0),
    Row(
        90,
        "share_offsets",
        "describe_share_group_offsets",
        0,
        1,
        parts=("groups/topics/partitions=groups/topics/partitions",),
    ),
    Row(
        91,
        "share_offsets",
        "alter_share_group_offsets",
        0,
        0,
        parts=("topics/partitions=responses/partitions",),
    ),
    Row(92, "share_offsets", "delete_share_group_offsets", 0, 0, parts=("topics=responses",)),
)
BY_KEY: Final = {row.key: row for row in ROWS}
_AT_ONCE: Final = {row.key: row.at_once for row in ROWS}
# Elements of long texts take longer than others: so few of them are worked on without a stop.
_LONG_FRAME_BYTES: Final = 64 << 10
_LONG_TEXTS: Final = 16
# Their frames are long for the records in them.
_WITH_RECORDS: Final = frozenset({0})
_SPLIT: Final = frozenset(row.key for row in ROWS if row.parts) - _WITH_RECORDS


def items_at_once(key: int, frame_bytes: int) -> int:
    """How many list elements of a request are worked on without a stop."""
    if frame_bytes > _LONG_FRAME_BYTES and key in _SPLIT:
        return _LONG_TEXTS
    return _AT_ONCE[key]


# APIs about groups or transactional ids, which wait while these are loaded. Heartbeats don't: while
# a group is loaded a member is believed.
_AFTER_LOAD: Final = frozenset(
    {8, 9, 10, 11, 13, 14, 15, 16, 22, 24, 25, 26, 28, 42, 47, 68, 69, 76, 77, 78, 79, 90, 91, 92}
)
# Importing these takes a tenth of a second, so a thread does it.
_GROUPS: Final = "tidelog.server.groups.coordinator"
_TRANSACTIONS: Final = "tidelog.server.transactions.coordinator"
_SHARES: Final = "tidelog.server.shares.shares"
_COORDINATORS: Final = {
    **dict.fromkeys((8, 9, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69), (_GROUPS,)),
    **dict.fromkeys((24, 26, 65, 66), (_TRANSACTIONS,)),
    **dict.fromkeys((25, 28), (_GROUPS, _TRANSACTIONS)),
    **dict.fromkeys((76, 77, 78, 79, 90, 91, 92), (_GROUPS, _SHARES)),
}
# FindCoordinator, by the type of its key; InitProducerId, which may have no transactional id.
_FIND_COORDINATOR, _INIT_PRODUCER_ID = 10, 22
_BY_KEY_TYPE: Final = {0: (_GROUPS,), 1: (_TRANSACTIONS,), 2: (_GROUPS, _SHARES)}
# What the members of a consumer group ask for, in their order.
_OF_MEMBERS: Final = (_FIND_COORDINATOR, 11, 14, 12, 9, 2, 1, 8, 13)
# Names of coordinators, keys of handlers.
_imported: Final = set[object]()


@cache
def handler_of(key: int) -> Handler:
    """The handler of an API that stands in the table."""
    if key in _COORDINATORS or key in {_FIND_COORDINATOR, _INIT_PRODUCER_ID}:
        return _importing(key)
    return _handler_of(key)


@cache
def _handler_of(key: int) -> Handler:
    row = BY_KEY[key]
    module = import_module(f"tidelog.server.handlers.{row.module}")
    found = cast("Handler", getattr(module, row.function))
    if key not in _AFTER_LOAD:
        return found
    from tidelog.server.handlers.waiting import after_load  # no need of it to listen

    return after_load(key, found)


def import_for(key: int, coordinators: "Iterable[str]" = ()) -> None:
    """Import the handler of an API, and what it uses; for any thread."""
    names = (*coordinators, *_COORDINATORS.get(key, ()))
    for name in names:
        import_module(name)
    _handler_of(key)
    _imported.update(names, (key,))


def import_coordinators(with_transactions: bool) -> None:
    """Import what a consumer group uses, and transactions where there are some; for any thread."""
    for key in _OF_MEMBERS:
        import_for(key, _BY_KEY_TYPE[0])
    if with_transactions:
        import_for(_FIND_COORDINATOR, _BY_KEY_TYPE[1])


def _importing(key: int) -> Handler:
    """A handler whose modules are imported in a thread, at its first request."""

    def answer(context: "RequestContext", request: "DataclassInstance") -> "Answer":
        names = _used_by(key, request)
        if key in _imported and _imported.issuperset(names):
            return _handler_of(key)(context, request)
        return later(names, context, request)

    async def later(
        names: "Iterable[str]", context: "RequestContext", request: "DataclassInstance"
    ) -> "DataclassInstance | Long | None":
        await context.node.work.run(import_for, key, names)
        said = _handler_of(key)(context, request)
        return await said if isinstance(said, Awaitable) else said

    return answer


def _used_by(key: int, request: object) -> tuple[str, ...]:
    """The coordinators that a request is for."""
    if key == _FIND_COORDINATOR:
        return _BY_KEY_TYPE.get(getattr(request, "key_type", 0), ())
    if key == _INIT_PRODUCER_ID:
        return (_TRANSACTIONS,) if getattr(request, "transactional_id", None) else ()
    return _COORDINATORS[key]


@cache
def served_versions(legacy: bool) -> "Mapping[int, tuple[int, int]]":
    """The versions of each API that are served, both inclusive."""
    return {row.key: (row.first_for(legacy=legacy), row.last) for row in ROWS}
