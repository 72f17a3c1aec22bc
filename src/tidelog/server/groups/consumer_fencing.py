"""Members that go: by their own wish, by silence, or because they did not give up in time.

When only members of the classic protocol are left, the group becomes a classic one.

Source: Kafka 4.3's group coordinator; KIP-848 (downgrade).
"""

from collections.abc import Collection

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.consumer.group import ConsumerGroup, Wait
from tidelog.server.groups.consumer.member import ConsumerMember, MemberState
from tidelog.server.groups.consumer_steps import (
    Draft,
    Steps,
    drop_regex,
    names_after,
    topics_of,
)
from tidelog.server.groups.conversion import Conversion
from tidelog.server.groups.reply import Reply


class Fencing:
    """Takes members out of groups. Belongs to the loop's thread."""

    def __init__(self, steps: Steps, conversion: Conversion) -> None:
        self._steps = steps
        self._conversion = conversion
        steps.on_silence = self._silent

    def fence(self, group: ConsumerGroup, members: Collection[ConsumerMember]) -> Reply[ErrorCode]:
        """Let members go; when that is safe, or why it could not be written."""
        if not members:
            return self._steps.write(Draft(group))
        if self._conversion.may_downgrade(group, members):
            return self._conversion.downgrade(group, members)
        draft = Draft(group)
        for member in members:
            self._steps.remove(draft, member.member_id)
        self._begin_epoch(draft, members)
        return self._steps.write(draft)

    def _begin_epoch(self, draft: Draft, members: Collection[ConsumerMember]) -> None:
        group = draft.group
        names = names_after(group, None, None)
        regexes = dict(group.subscribed_regexes)
        for member in members:
            names.subtract(dict.fromkeys(member.asks.topics, 1))
            if member.asks.regex:
                regexes[member.asks.regex] -= 1
        for regex in [each for each, count in regexes.items() if not count]:
            drop_regex(draft, regex)
            del regexes[regex]
        self._steps.bump(draft, {*(+names), *topics_of(group, regexes)}, is_due=True)

    def _silent(self, group: ConsumerGroup, member_id: str, wait: Wait) -> None:
        """A member's time is over."""
        member = group.members.get(member_id)
        if member is None:
            return
        if wait is Wait.REBALANCE and member.place.state is not MemberState.UNREVOKED_PARTITIONS:
            return
        self.fence(group, (member,))

    def resume(self, group: ConsumerGroup) -> None:
        """A group was loaded: its members' sessions begin anew."""
        for member in group.members.values():
            self._steps.await_sign(group, member)
            if not member.is_classic:
                self._steps.watch_revocation(group, member.member_id)
