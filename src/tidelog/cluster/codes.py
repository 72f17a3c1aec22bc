"""Error codes that decide something here: Kafka's, and librdkafka's own, which are negative.

Source: Kafka's protocol guide, error codes; librdkafka, rdkafka.h, rd_kafka_resp_err_t.
"""

from typing import Final

TRANSPORT: Final = -195
PARTITION_EOF: Final = -191
ALL_BROKERS_DOWN: Final = -187
TIMED_OUT: Final = -185
# No partition that was asked about has a leader.
NO_LEADERS: Final = -156
AUTO_OFFSET_RESET: Final = -140

UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
BROKER_NOT_AVAILABLE: Final = 8
REPLICA_NOT_AVAILABLE: Final = 9
MESSAGE_TOO_LARGE: Final = 10
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
KAFKA_STORAGE_ERROR: Final = 56
OFFSET_NOT_AVAILABLE: Final = 78
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103
STALE_MEMBER_EPOCH: Final = 113

_NAMES: Final = {code: name for name, code in globals().items() if isinstance(code, int)}


def named(code: int) -> str:
    """Return an error code with the protocol's name for it, `KAFKA_STORAGE_ERROR (error 56)`."""
    name = _NAMES.get(code)
    return f"error {code}" if name is None else f"{name} (error {code})"


# Who leads a partition has changed, or is about to: ask who it is now.
LEADER_CHANGES: Final = frozenset(
    {
        UNKNOWN_TOPIC_OR_PARTITION,
        LEADER_NOT_AVAILABLE,
        NOT_LEADER_OR_FOLLOWER,
        REPLICA_NOT_AVAILABLE,
        KAFKA_STORAGE_ERROR,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        OFFSET_NOT_AVAILABLE,
        UNKNOWN_TOPIC_ID,
        INCONSISTENT_TOPIC_ID,
    }
)

# A partition's leader is about to be there, as after a topic's creation or a broker's end.
LEADER_COMES: Final = frozenset(
    {
        LEADER_NOT_AVAILABLE,
        NOT_LEADER_OR_FOLLOWER,
        REPLICA_NOT_AVAILABLE,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        OFFSET_NOT_AVAILABLE,
    }
)

# What brokers answer to a commit from outside a group that has members.
OVERRULED: Final = frozenset(
    {
        ILLEGAL_GENERATION,
        UNKNOWN_MEMBER_ID,
        REBALANCE_IN_PROGRESS,
        NON_EMPTY_GROUP,
        STALE_MEMBER_EPOCH,
    }
)

# A group's coordinator is about to be there, as after a broker's start; nothing was done yet.
COORDINATOR_COMES: Final = frozenset(
    {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR}
)
