"""Settings of share groups and of the topic that keeps where they are.

Names, defaults and ranges are Kafka 4.3's. Source: Kafka 4.3's `ShareGroupConfig`,
`GroupCoordinatorConfig`, `ShareCoordinatorConfig`; KIP-932.
"""

from typing import Final

from tidelog.config.keys import ConfigKey
from tidelog.config.values import ValueKind, whole_number

# Settings that lie between two others, which are named with `min.` and `max.` in them.
BOUNDED: Final = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "assignment.interval.ms",
    "record.lock.duration.ms",
    "delivery.count.limit",
    "partition.max.record.locks",
)
_LEAST: Final = "The least that may be."
_MOST: Final = "The most that may be."


def _int(low: int, high: int | None = None) -> ValueKind:
    return whole_number("int", low, high)


def _key(name: str, kind: ValueKind, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


SHARE_CONFIGS: Final = (
    _key(
        "group.share.session.timeout.ms",
        _int(1),
        "45000",
        "A member of a share group that is silent for so long is given up.",
    ),
    _key("group.share.min.session.timeout.ms", _int(1), "45000", _LEAST),
    _key("group.share.max.session.timeout.ms", _int(1), "60000", _MOST),
    _key(
        "group.share.heartbeat.interval.ms",
        _int(1),
        "5000",
        "How often members of a share group are told to say that they are there.",
    ),
    _key("group.share.min.heartbeat.interval.ms", _int(1), "5000", _LEAST),
    _key("group.share.max.heartbeat.interval.ms", _int(1), "15000", _MOST),
    _key(
        "group.share.assignment.interval.ms",
        _int(0),
        "1000",
        "A share group gets a new assignment at most so often; 0 for at once.",
    ),
    _key("group.share.min.assignment.interval.ms", _int(0), "0", _LEAST),
    _key("group.share.max.assignment.interval.ms", _int(0), "15000", _MOST),
    _key(
        "group.share.record.lock.duration.ms",
        _int(1000, 3_600_000),
        "30000",
        "For so long a record is the member's that it was given to.",
    ),
    _key("group.share.min.record.lock.duration.ms", _int(1000, 30_000), "15000", _LEAST),
    _key("group.share.max.record.lock.duration.ms", _int(30_000, 3_600_000), "60000", _MOST),
    _key(
        "group.share.delivery.count.limit",
        _int(2, 10),
        "5",
        "After so many deliveries a record is given to nobody any more.",
    ),
    _key("group.share.min.delivery.count.limit", _int(2, 5), "2", _LEAST),
    _key("group.share.max.delivery.count.limit", _int(5, 25), "10", _MOST),
    _key(
        "group.share.partition.max.record.locks",
        _int(100, 10_000),
        "2000",
        "Records of a partition between the first that a share group is not done with and the last"
        " that it was given.",
    ),
    _key("group.share.min.partition.max.record.locks", _int(100, 2000), "100", _LEAST),
    _key("group.share.max.partition.max.record.locks", _int(2000, 10_000), "4000", _MOST),
    _key("group.share.max.size", _int(1, 1000), "200", "Members of a share group."),
    _key("group.share.max.share.sessions", _int(1), "2000", "Share sessions of the broker."),
    _key(
        "share.coordinator.state.topic.num.partitions",
        _int(1),
        "50",
        "Partitions of __share_group_state.",
    ),
    _key(
        "share.coordinator.state.topic.segment.bytes",
        _int(1),
        "104857600",
        "segment.bytes of that topic.",
    ),
    _key(
        "share.coordinator.snapshot.update.records.per.snapshot",
        _int(0, 500),
        "500",
        "After so many changes of a share partition all that is known of it is written again.",
    ),
)
