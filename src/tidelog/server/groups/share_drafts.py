"""One request to a share group: planned on paper, written, then applied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.server.errors import Refusal
from tidelog.server.groups.consumer_steps import Steps
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.share.changes import ShareChange
from tidelog.server.groups.share.group import SharedTopic, ShareGroup


@dataclass(slots=True)
class ShareDraft:
    """What a request does.

    Attributes:
        group: The group as it is before.
        changes: What happens to the group, in order.
        actions: Done when all of that has been accepted.
        shared: The topics that it shares afterwards.
    """

    group: ShareGroup
    changes: list[ShareChange] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)
    shared: Mapping[UUID, SharedTopic] = field(default_factory=dict)


def write_share(steps: Steps, draft: ShareDraft) -> Reply[ErrorCode]:
    """Write what happens and let it happen; when it is safe, or why nothing happened."""
    group = draft.group
    records = [change.record(group.group_id) for change in draft.changes]
    if records:
        written = steps.journal.append(group.group_id, records)
    else:
        written = steps.journal.settled(group.group_id)
    if not written.is_done or written.value is ErrorCode.NONE:
        for change in draft.changes:
            change.apply(group)
        steps.table.put(group)
        for action in draft.actions:
            action()
    return written


def no_share_group(group_id: str, *, is_there: bool) -> Refusal:
    """There is none of that name, or one of another type."""
    what = "is not a share group" if is_there else "not found"
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
