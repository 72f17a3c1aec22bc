"""Which partitions a share group has begun to read."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog.server.groups.share.group import SharedTopic
from tidelog.storage.topic_info import TopicInfo


def shared_after(
    shared: Mapping[UUID, SharedTopic], names: Iterable[str], topics: Mapping[str, TopicInfo]
) -> Mapping[UUID, SharedTopic]:
    """What is shared once members read these topics: all that was, with all of their partitions."""
    found = dict(shared)
    for info in (topics[name] for name in sorted(names) if name in topics):
        if info.topic_id is not None:
            found[info.topic_id] = SharedTopic(info.name, frozenset(range(info.partitions)))
    return found
