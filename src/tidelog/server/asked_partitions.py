"""The partition that a request names, or the error code that says why it can't be had.

Partitions that nobody has used yet are opened beside the loop before a request is worked on: its
handler then finds all of them open, and what is open already is answered at once.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure, TidelogError
from tidelog.server.node import Node
from tidelog.server.partitions import Partition
from tidelog.types import TopicPartition

_Response = TypeVar("_Response")


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


async def opened_first(
    node: Node,
    names: Iterable[TopicPartition],
    then: "Callable[[], _Response | Awaitable[_Response]]",
) -> _Response:
    """Open partitions beside the loop, then answer."""
    await node.partitions.open_beside(names, node.work)
    said = then()
    return await said if isinstance(said, Awaitable) else said
