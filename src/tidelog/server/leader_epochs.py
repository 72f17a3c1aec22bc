"""Leader epochs of many partitions, without stalling the loop: a slice at a time.

Whoever asks for metadata wants the epochs of all, each of which is in a file until its partition is
used. Reading one takes a fraction of a millisecond, which thousands of them turn into a second.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.server.node import Node
from tidelog.server.slices import Slices
from tidelog.storage.topic_info import TopicInfo
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
