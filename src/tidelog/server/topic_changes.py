"""Changes of topics, with what syncs done beside the loop; one change at a time.

The registry's file and each partition's metadata are synced: none of that may hold the loop up.
Everybody sees a new topic when all of it is there.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tidelog.errors import StorageFailure, TidelogError
from tidelog.server.node import LOGGER, Node
from tidelog.storage.topics import NewTopic, TopicInfo


async def create(
    node: Node, name: str, partitions: int, config: Mapping[str, str] | None = None
) -> TopicInfo:
    """Create a topic; errors as `LogDir.create_topic`."""
    (made,) = await create_all(node, [NewTopic(name, partitions, config or {})])
    if isinstance(made, TidelogError):
        raise made
    return made


async def create_all(node: Node, new: Sequence[NewTopic]) -> list[TopicInfo | TidelogError]:
    """Create topics together; for each the topic, or why it is not there."""
    async with node.topics.changing:
        made = await node.work.run(node.log_dir.create_topics, new)
    return [found if isinstance(found, TidelogError) else found[0] for found in made]


async def grow_all(node: Node, counts: Mapping[str, int]) -> list[TopicInfo | TidelogError]:
    """Raise topics' numbers of partitions together; for each the topic, or why it has not grown."""
    async with node.topics.changing:
        return await node.work.run(node.log_dir.add_all_partitions, counts)


async def alter(
    node: Node, name: str, changes_of: Callable[[TopicInfo], Mapping[str, str | None]]
) -> None:
    """Change a topic's settings; errors as `LogDir.alter_config`, and what `changes_of` raises.

    Args:
        node: The broker.
        name: The topic.
        changes_of: What to change, None for the default, by the topic as it is then.

    Open partitions go by the settings when this returns.
    """
    async with node.topics.changing:
        changes = changes_of(node.log_dir.topic(name))
        if changes:
            await node.work.run(node.log_dir.save_config, name, changes)
            node.log_dir.follow_config(name)


async def delete(node: Node, name: str) -> None:
    """Delete a topic; errors as `LogDir.set_topic_aside`. Renames, syncs and unlinks go in threads.

    It goes on where whoever waits for it goes away: nothing else may change topics meanwhile.
    """
    await asyncio.shield(node.topics.begin(_delete(node, name)))


async def _delete(node: Node, name: str) -> None:
    holds = node.partitions.holds
    while True:
        await holds.wait_for_deletion(name)
        async with node.topics.changing:
            if holds.stops_deletion(name):  # somebody came while this one waited
                continue
            left = await node.work.run(node.topics.hide(name))
            node.topics.tell_deleted(name)
        break
    try:
        await node.work.run(node.log_dir.remove_set_aside, left)
    except StorageFailure as error:
        LOGGER.warning("files of %s stay until the next start: %s", name, error)
