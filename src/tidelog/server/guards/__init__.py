"""What Kafka authorises of each API, around its handler; who may not hears Kafka's error.

A guard takes what is denied out of a request, lets the handler answer the rest, and puts the
refusals into the answer. So handlers know nothing of rights, but for Fetch and ShareFetch, whose
partitions are remembered from request to request (they ask for each). An API without a guard is
for those alone who may do all to the cluster: a new one is closed until somebody opens it.

Source: Kafka 4.3's KafkaApis, ControllerApis, AclApis, AuthHelper.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from tidelog.server.guards.common import Asker, Guard
from tidelog.server.handlers import handler_of
from tidelog.server.requests import Answer, RequestContext
from tidelog.server.security.authorizer import Operation
from tidelog.server.security.errors import NotLoggedIn

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

# Those of fetches ask by themselves; the others are about versions, log-ins, what clients tell of
# themselves.
OPEN_TO_ALL: Final = frozenset({1, 17, 18, 36, 71, 72, 78, 79})
MODULES: Final = {
    "topics": {
        0: "produce",
        2: "list_offsets",
        3: "metadata",
        19: "create_topics",
        21: "delete_records",
        23: "offset_for_leader_epoch",
        37: "create_partitions",
        61: "describe_producers",
        75: "describe_topic_partitions",
    },
    "deletions": {
        20: "delete_topics",
    },
    "groups": {
        8: "offset_commit",
        9: "offset_fetch",
        10: "find_coordinator",
        11: "join_group",
        12: "heartbeat",
        13: "leave_group",
        14: "sync_group",
        15: "describe_groups",
        16: "list_groups",
        42: "delete_groups",
        47: "offset_delete",
    },
    "consumer_groups": {
        68: "consumer_group_heartbeat",
        69: "consumer_group_describe",
    },
    "share_groups": {
        76: "share_group_heartbeat",
        77: "share_group_describe",
    },
    "share_offsets": {
        90: "describe_share_group_offsets",
        91: "alter_share_group_offsets",
        92: "delete_share_group_offsets",
    },
    "transactions": {
        22: "init_producer_id",
        24: "add_partitions_to_txn",
        25: "add_offsets_to_txn",
        26: "end_txn",
        27: "write_txn_markers",
        28: "txn_offset_commit",
        65: "describe_transactions",
        66: "list_transactions",
    },
    "controller": {
        48: "describe_client_quotas",
        49: "alter_client_quotas",
        55: "describe_quorum",
        57: "update_features",
        64: "unregister_broker",
        80: "add_raft_voter",
        81: "remove_raft_voter",
    },
    "cluster": {
        29: "describe_acls",
        30: "create_acls",
        31: "delete_acls",
        32: "describe_configs",
        33: "alter_configs",
        34: "alter_replica_log_dirs",
        35: "describe_log_dirs",
        43: "elect_leaders",
        44: "incremental_alter_configs",
        45: "alter_partition_reassignments",
        46: "list_partition_reassignments",
        50: "describe_user_scram_credentials",
        51: "alter_user_scram_credentials",
        60: "describe_cluster",
        74: "list_config_resources",
    },
}


def guarded(context: RequestContext, request: "DataclassInstance") -> Answer:
    """What a handler says, and what is denied.

    Raises:
        NotLoggedIn: An API without a guard, asked by who may not do all to the cluster.
    """
    key = context.api.key
    if key in OPEN_TO_ALL:
        return handler_of(key)(context, request)
    asker = Asker(context)
    guard = guard_of(key)
    if guard is not None:
        return guard(asker, request)
    if asker.may_cluster(Operation.ALL):
        return asker.go_on(request)
    raise NotLoggedIn(f"{context.api.name} is for those who may do all to the cluster")


@cache
def guard_of(key: int) -> "Guard | None":
    """The guard of an API, None where it has none."""
    for module, names in MODULES.items():
        if key in names:
            found = import_module(f"tidelog.server.guards.{module}")
            return cast("Callable[[Asker, DataclassInstance], Answer]", getattr(found, names[key]))
    return None
