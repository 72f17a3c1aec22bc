"""DescribeLogDirs: the one directory, its partitions and how large they are.

Source: Kafka's protocol guide, API 35; KIP-113, KIP-827 (bytes of the volume).
"""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.env import Env, OsFileSystem
from tidelog.protocol.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tidelog.server.requests import Long, RequestContext, long_if_many
from tidelog.storage import files
from tidelog.storage.topic_info import TopicInfo
from tidelog.types import TopicPartition

UNKNOWN_BYTES: Final = -1


async def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | Long:
    """Sizes of the partitions asked for, all where topics are null; unknown ones are left out."""
    node = context.node
    env, path, topics = node.env, node.log_dir.path, dict(node.topics.all())

    def look() -> DescribeLogDirsResult:
        sizes, (total, usable) = measure(env, path, _asked(topics, request))
        return DescribeLogDirsResult(
            error_code=0,
            log_dir=path,
            topics=_topics(sizes),
            total_bytes=total,
            usable_bytes=usable,
        )

    result = await node.reads.run(look)
    return long_if_many(DescribeLogDirsResponse(results=[result]), result.topics)


def _asked(
    topics: Mapping[str, TopicInfo], request: DescribeLogDirsRequest
) -> list[TopicPartition]:
    if request.topics is None:
        asked = {(name, number) for name, info in topics.items() for number in info.present}
    else:
        asked = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    return sorted(
        TopicPartition(name, number)
        for name, number in asked
        if name in topics and number in topics[name].present
    )


def measure(
    env: Env, directory: str, names: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], tuple[int, int]]:
    """Sizes of partitions' logs in bytes, and the volume's size and room; for a thread."""
    sizes = {name: _log_bytes(env, f"{directory}/{name}") for name in names}
    return sizes, _volume(env, directory)


def _log_bytes(env: Env, path: str) -> int:
    """Bytes of a partition's segments; what goes meanwhile counts as gone."""
    size = 0
    try:
        for entry in env.files.list_dir(path):
            found = files.parse_file_name(entry.name)
            if found is not None and found[1] == files.LOG_SUFFIX:
                size += env.files.stat(f"{path}/{entry.name}").size
    except FileNotFoundError:
        pass
    return size


def _volume(env: Env, path: str) -> tuple[int, int]:
    if not isinstance(env.files, OsFileSystem):
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _topics(sizes: Mapping[TopicPartition, int]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for name, size in sizes.items():
        topic = topics.setdefault(name.topic, DescribeLogDirsTopic(name=name.topic))
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=name.partition, partition_size=size, offset_lag=0
            )
        )
    return list(topics.values())
