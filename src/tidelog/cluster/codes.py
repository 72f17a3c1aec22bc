"""Error codes that decide something here: Kafka's, and librdkafka's own, which are negative.

Source: Kafka's protocol guide, error codes; librdkafka, rdkafka.h, rd_kafka_resp_err_t.
"""

from typing import Final

TRANSPORT: Final = -195
PARTITION_EOF: Final = -191
ALL_BROKERS_DOWN: Final = -187
TIMED_OUT: Final = -185
AUTO_OFFSET_RESET: Final = -140

OFFSET_OUT_OF_RANGE: Final = 1
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
STALE_MEMBER_EPOCH: Final = 113

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
