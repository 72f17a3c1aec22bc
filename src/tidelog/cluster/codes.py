"""librdkafka's own error codes, which are negative, and sets of Kafka's that decide something here.

Source: Kafka's protocol guide, error codes; librdkafka, rdkafka.h, rd_kafka_resp_err_t.
"""

from typing import Final

from tidelog.error_codes import ErrorCode

TRANSPORT: Final = -195
PARTITION_EOF: Final = -191
ALL_BROKERS_DOWN: Final = -187
TIMED_OUT: Final = -185
# No partition that was asked about has a leader.
NO_LEADERS: Final = -156
AUTO_OFFSET_RESET: Final = -140

_NAMES: Final[dict[int, str]] = {
    **{code: name for name, code in globals().items() if isinstance(code, int)},
    **{code: code.name for code in ErrorCode},
}


def named(code: int) -> str:
    """Return an error code with the protocol's name for it, `KAFKA_STORAGE_ERROR (error 56)`."""
    name = _NAMES.get(code)
    return f"error {code}" if name is None else f"{name} (error {code})"


# Who leads a partition has changed, or is about to: ask who it is now.
LEADER_CHANGES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

# A partition's leader is about to be there, as after a topic's creation or a broker's end.
LEADER_COMES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)

# What brokers answer to a commit from outside a group that has members.
OVERRULED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)

# A group's coordinator is about to be there, as after a broker's start; nothing was done yet.
COORDINATOR_COMES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
