"""Partitions that a request names, opened before it is processed; and leader epochs of many.

A partition that is not open yet is opened in a thread before the handler runs, so the handler finds
all partitions open. A leader epoch is in a file until its partition is used. Reading one takes a
fraction of a millisecond, so the epochs of thousands are read in slices.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure, TidelogError
from tidelog.server.api.node import Node
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.loop import Slices
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.types import TopicPartition

# So many are read at once without a thought.
AT_ONCE: Final = 16


def numbers_of(info: TopicInfo) -> Iterable[int]:
    """The partitions that a topic has here: of another program's topics those with a directory."""
    return info.present if info.foreign else range(info.partitions)


def unread(node: Node, topics: Iterable[TopicInfo]) -> list[TopicPartition]:
    """Partitions of these topics whose epoch has to be read."""
    is_known = node.partitions.knows_epoch
    return [
        name
        for info in topics
        for name in (TopicPartition(info.name, number) for number in numbers_of(info))
        if not is_known(name)
    ]


async def read_in_slices(node: Node, names: Iterable[TopicPartition]) -> None:
    """Read epochs, and let others have the loop every few milliseconds."""
    slices = Slices(node.env.clock)
    for name in names:
        node.partitions.leader_epoch(name.topic, name.partition)
        await slices.rest()


def find_partition(node: Node, topic: str, number: int) -> Partition | int:
    """A partition, or Kafka's error code.

    What is not there is cheap to say: a request may name very many of them.
    """
    found = node.partitions.find_used(topic, number)
    if found is not None:
        return found
    info = node.topics.find(topic)
    if info is None or not (info.foreign or 0 <= number < info.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        return node.partitions.get(topic, number)
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    except TidelogError as error:
        return ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
