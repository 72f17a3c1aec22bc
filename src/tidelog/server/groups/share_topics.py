"""Topics of share groups as tools change them: what a group has begun to read, and what it forgets.

Source: Kafka 4.3's group coordinator; KIP-932.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.errors import Refusal
from tidelog.server.groups.consumer_steps import Steps
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.share.changes import SharedTopicsChange
from tidelog.server.groups.share.group import SharedTopic, ShareGroup
from tidelog.server.groups.share_drafts import ShareDraft, no_share_group, write_share


class ShareTopics:
    """Belongs to the loop's thread."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def idle_group(self, group_id: str, *, may_be_new: bool = False) -> ShareGroup:
        """A group without members.

        Raises:
            Refusal: There is none, or one of another type, or it has members.
        """
        group = self._steps.table.get(group_id)
        if group is None and may_be_new:
            return ShareGroup(group_id)
        if not isinstance(group, ShareGroup):
            raise no_share_group(group_id, is_there=group is not None)
        if not group.is_empty:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members.")
        return group

    def share(self, group: ShareGroup, more: Mapping[UUID, SharedTopic]) -> Reply[ErrorCode]:
        """A group begins these partitions, beside those that it has begun; when that is safe."""
        shared = dict(group.shared)
        for topic_id, topic in more.items():
            known = shared.get(topic_id, topic)
            shared[topic_id] = SharedTopic(topic.name, known.partitions | topic.partitions)
        return self._change(group, shared)

    def unshare(self, group: ShareGroup, topic_ids: Collection[UUID]) -> Reply[ErrorCode]:
        """A group has not begun these topics any more; when that is safe."""
        left = {each: topic for each, topic in group.shared.items() if each not in topic_ids}
        return self._change(group, left)

    def forget_topic(self, group: ShareGroup, topic_id: UUID) -> None:
        """A topic was deleted: the group shares it no more."""
        if topic_id in group.shared:
            self.unshare(group, [topic_id])

    def _change(self, group: ShareGroup, shared: Mapping[UUID, SharedTopic]) -> Reply[ErrorCode]:
        changes = [] if shared == group.shared else [SharedTopicsChange(shared)]
        return write_share(self._steps, ShareDraft(group, list(changes)))
