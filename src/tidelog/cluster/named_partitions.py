"""Watermarks of partitions that a caller names, who may be wrong about them."""

from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.cluster import codes
from tidelog.cluster.broker_errors import UNKNOWN_PARTITION, UNKNOWN_TOPIC
from tidelog.cluster.view import ClusterView, Watermarks
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, InvalidRequest, UnknownTopic
from tidelog.types import IsolationLevel, TopicPartition

# What brokers and the client library say of what is not there, among other things.
_MAY_BE_MISSING: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, codes.NO_LEADERS, UNKNOWN_PARTITION, UNKNOWN_TOPIC}
)


def watermarks(
    cluster: ClusterView,
    partitions: Iterable[TopicPartition],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Watermarks]:
    """Where the partitions begin and end.

    Raises:
        UnknownTopic: A topic or partition is not there; names which one.
        InvalidRequest: Something else than a partition was named.
        ClusterFailure: Brokers can't be asked.
    """
    names = [_checked(name) for name in partitions]
    try:
        return cluster.watermarks(names, isolation=isolation)
    except ClusterFailure as error:
        if error.error_code in _MAY_BE_MISSING:
            _refuse_missing(cluster, names, error)
        raise


def _checked(name: object) -> TopicPartition:
    if isinstance(name, TopicPartition):
        return name
    raise InvalidRequest(f"write TopicPartition(TOPIC, NUMBER) for a partition, not {name!r}")


def _refuse_missing(
    cluster: ClusterView, names: Sequence[TopicPartition], reason: ClusterFailure
) -> None:
    for name in names:
        there = cluster.partitions(name.topic)
        if name not in there:
            raise UnknownTopic(
                f"{cluster.bootstrap}: topic {name.topic} has partitions 0 to {len(there) - 1},"
                f" not {name.partition}"
            ) from reason
