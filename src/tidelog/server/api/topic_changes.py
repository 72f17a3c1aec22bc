"""Changes of topics, made one at a time.

A thread makes the syncs of a change, because syncs of the registry and of each partition's metadata
would block the event loop. Clients see a new topic only when it is complete.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TypeVar

from tidelog.errors import StorageFailure, TidelogError
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.runtime.loop import Slices
from tidelog.storage.directory.topic_registry import NewTopic, TopicInfo, unknown_topic

_Result = TypeVar("_Result")


async def create(
    node: Node, name: str, partitions: int, config: Mapping[str, str] | None = None
) -> TopicInfo:
    """Create a topic; raises the errors of `LogDir.create_topic`."""
    (outcome,) = await create_all(node, [NewTopic(name, partitions, config or {})])
    if isinstance(outcome, TidelogError):
        raise outcome
    return outcome


async def create_all(node: Node, new: Sequence[NewTopic]) -> list[TopicInfo | TidelogError]:
    """Create topics together; return the topic or the error for each of `new`, in order."""

    async def change() -> list[TopicInfo | TidelogError]:
        async with node.topics.changing:
            outcomes = await node.work.run(node.log_dir.topic_admin.create, new)
        infos = [
            outcome if isinstance(outcome, TidelogError) else outcome[0] for outcome in outcomes
        ]
        for info in infos:
            if not isinstance(info, TidelogError):
                LOGGER.info("topic %s created, partitions: %d", info.name, info.partitions)
        return infos

    return await _shielded(node, change())


async def grow_all(node: Node, counts: Mapping[str, int]) -> list[TopicInfo | TidelogError]:
    """Increase partition counts together; return the topic or the error for each of `counts`."""

    async def change() -> list[TopicInfo | TidelogError]:
        async with node.topics.changing:
            grown = await node.work.run(node.log_dir.topic_admin.grow, counts)
        for info in grown:
            if not isinstance(info, TidelogError):
                LOGGER.info(
                    "topic %s: number of partitions increased to %d", info.name, info.partitions
                )
        return grown

    return await _shielded(node, change())


async def alter(
    node: Node, name: str, changes_of: Callable[[TopicInfo], Mapping[str, str | None]]
) -> None:
    """Change a topic's settings; raises the errors of `LogDir.alter_config` and of `changes_of`.

    Args:
        node: The broker.
        name: Name of the topic.
        changes_of: Returns the changes for the topic's current state; None resets a setting to its
            default.

    When this function returns, the open partitions use the new settings.
    """

    async def change() -> None:
        async with node.topics.changing:
            changes = changes_of(node.log_dir.topic(name))
            if changes:
                await node.work.run(node.log_dir.topic_admin.alter, name, changes)
                node.log_dir.open_partitions.follow_settings(name)
                LOGGER.info("topic %s: settings changed: %s", name, ", ".join(sorted(changes)))

    await _shielded(node, change())


async def _shielded(node: Node, change: Coroutine[object, object, _Result]) -> _Result:
    """Await a change, which continues even if the caller is cancelled.

    When the caller is cancelled, a thread may already be executing the change. In this case the
    result of the change must still be applied before another change starts.
    """
    return await asyncio.shield(node.topics.begin(change))


async def delete(node: Node, name: str) -> None:
    """Delete a topic.

    Raises:
        UnknownTopic: There is no such topic.
        StorageFailure: The topic could not be deleted, and still exists.
    """
    (failure,) = await delete_all(node, [node.log_dir.topic(name)])
    if failure is not None:
        raise failure


async def delete_all(node: Node, topics: Sequence[TopicInfo]) -> list[TidelogError | None]:
    """Delete topics together; return the failure of each topic, None for a deleted topic.

    A failure is UnknownTopic or StorageFailure.

    Renames and syncs run in threads. A topic that is locked for a rebuild is deleted after the
    rebuild. The deletion of the other topics does not wait for the rebuild. The files are removed
    later (`Removals`).
    """
    failures: dict[str, TidelogError] = {}
    await _shielded(node, _delete(node, topics, failures))
    for info in topics:
        if info.name not in failures:
            LOGGER.info("topic %s deleted, partitions: %d", info.name, info.partitions)
    return [failures.get(info.name) for info in topics]


async def _delete(
    node: Node, topics: Sequence[TopicInfo], failures: dict[str, TidelogError]
) -> None:
    waiting = {info.name: info for info in topics}
    while waiting:
        async with node.topics.changing:
            # Check the locks only now, because a topic may have been locked while this deletion
            # waited for `changing`.
            free = [name for name in waiting if not node.partitions.holds.stops_deletion(name)]
            directories = await _delete_free(node, [waiting.pop(name) for name in free], failures)
        node.removals.add(directories)
        await node.partitions.holds.wait_for_deletion(waiting)
    await node.removals.wait_for_room()


async def _delete_free(
    node: Node, topics: Sequence[TopicInfo], failures: dict[str, TidelogError]
) -> list[str]:
    """Delete topics that no rebuild has locked; return the directories to remove."""
    existing = []
    for info in topics:
        current = node.topics.find(info.name)
        if current is not None and current.topic_id == info.topic_id:
            existing.append(info)
        else:  # the topic was deleted meanwhile, and perhaps recreated
            failures[info.name] = unknown_topic(info.name, ())
    if not existing:
        return []
    try:
        directories = await node.work.run(node.topics.hide([info.name for info in existing]))
    except StorageFailure as error:
        failures |= {info.name: error for info in existing}
        return []
    slices = Slices(node.env.clock)
    for info in existing:
        await slices.rest()
        node.topics.notify_deleted(info)
    return directories
