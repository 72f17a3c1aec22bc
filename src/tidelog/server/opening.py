"""Opening many partitions without stalling the loop: a slice at a time.

A partition's leader epoch is known when it is open, and whoever asks for metadata wants the epochs
of all. Opening takes a fraction of a millisecond, which thousands of them turn into seconds.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from tidelog.server.node import Node
from tidelog.storage.topics import TopicInfo
from tidelog.types import TopicPartition

# So many are opened at once without a thought.
AT_ONCE: Final = 8
SLICE_MS: Final = 3


def numbers_of(info: TopicInfo) -> Iterable[int]:
    """The partitions that a topic has here: of another program's topics those with a directory."""
    return info.present if info.foreign else range(info.partitions)


def unopened(node: Node, topics: Iterable[TopicInfo]) -> list[TopicPartition]:
    """Partitions of these topics that were not used yet."""
    is_open = node.partitions.is_open
    return [
        name
        for info in topics
        for name in (TopicPartition(info.name, number) for number in numbers_of(info))
        if not is_open(name)
    ]


async def open_in_slices(node: Node, names: Iterable[TopicPartition]) -> None:
    """Open partitions, and let others have the loop every few milliseconds.

    One that can't be opened is passed over: who uses it hears why.
    """
    clock = node.env.clock
    began_ms = clock.monotonic_ms()
    for name in names:
        node.partitions.leader_epoch(name.topic, name.partition)
        if clock.monotonic_ms() - began_ms >= SLICE_MS:
            await asyncio.sleep(0)
            began_ms = clock.monotonic_ms()
