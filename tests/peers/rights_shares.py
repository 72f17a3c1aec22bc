"""Requests of a user about share groups."""

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from tests.worlds.clients.rights_talk import GROUP, LENT, Question

from tidelog.protocol import messages as api
from tidelog.protocol.messages.modern_groups import (
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from tidelog.protocol.messages.share_fetch import ShareAcknowledgeRequest, ShareFetchRequest
from tidelog.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)

STRANGER: Final = "stranger"
SOME: Final = ("flights", "secret", "nowhere")


def about_shares(_ids: Mapping[str, UUID]) -> Iterator[Question]:
    """Yield requests about a share group's members, records and offsets."""
    for names in (None, ["flights"], ["flights", "secret"], ["nowhere"]):
        beat = ShareGroupHeartbeatRequest(
            group_id=LENT, member_id=STRANGER, member_epoch=9, subscribed_topic_names=names
        )
        yield Question(f"share beat for {names}", api.SHARE_GROUP_HEARTBEAT, 1, beat)
    for told in (True, False):
        described = ShareGroupDescribeRequest(
            group_ids=[LENT, GROUP, "other"], include_authorized_operations=told
        )
        yield Question(f"describe shares {told}", api.SHARE_GROUP_DESCRIBE, 1, described)
    member = str(UUID(int=7))
    for version in (1, 2):
        fetch = ShareFetchRequest(group_id=LENT, member_id=member, share_session_epoch=5)
        yield Question("share fetch", api.SHARE_FETCH, version, fetch)
        said = ShareAcknowledgeRequest(group_id=LENT, member_id=member, share_session_epoch=5)
        yield Question("acknowledge", api.SHARE_ACKNOWLEDGE, version, said)
    yield from _offsets()


def _offsets() -> Iterator[Question]:
    altered = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)],
        )
        for name in SOME
    ]
    altering = AlterShareGroupOffsetsRequest(group_id=LENT, topics=altered)
    yield Question("alter share offsets", api.ALTER_SHARE_GROUP_OFFSETS, 0, altering)
    named = [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0]) for name in SOME
    ]
    for wanted in (named, None):
        groups = [
            DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=wanted)
            for name in (LENT, "other")
        ]
        described = DescribeShareGroupOffsetsRequest(groups=groups)
        what = f"share offsets of {wanted is None}"
        yield Question(what, api.DESCRIBE_SHARE_GROUP_OFFSETS, 1, described)
    going = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in SOME]
    forgetting = DeleteShareGroupOffsetsRequest(group_id=LENT, topics=going)
    yield Question("forget share offsets", api.DELETE_SHARE_GROUP_OFFSETS, 0, forgetting)
