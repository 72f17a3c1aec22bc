"""The partition that a request names, or the error code that says why it can't be had."""

from typing import Final

from tidelog.errors import StorageFailure, TidelogError
from tidelog.server.node import Node
from tidelog.server.partitions import Partition

UNKNOWN_SERVER_ERROR: Final = -1
UNKNOWN_TOPIC: Final = 3
STORAGE_ERROR: Final = 56


def find_partition(node: Node, topic: str, number: int) -> Partition | int:
    """A partition, or Kafka's error code.

    What is not there is cheap to say: a request may name very many of them.
    """
    info = node.topics.find(topic)
    if info is None or not (info.foreign or 0 <= number < info.partitions):
        return UNKNOWN_TOPIC
    try:
        return node.partitions.get(topic, number)
    except StorageFailure:
        return STORAGE_ERROR
    except TidelogError as error:
        return UNKNOWN_SERVER_ERROR if error.code is None else error.code
