"""Members of a shared group, of either protocol."""

from dataclasses import dataclass, field
from typing import Final

from tests.histories.broker_lives import Died
from tests.histories.processes import Client

from tidelog.protocol.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
)
from tidelog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.protocol.messages.group_records import (
    ASSIGNMENT,
    SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.messages.modern_groups import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.shared import GroupProtocol, IdPartitions, TopicPartitions

SESSION_MS: Final = 200
UNKNOWN_MEMBER, MEMBER_ID_REQUIRED = 25, 79
# Error codes after which a member joins again: illegal generation, unknown member, rebalancing,
# fenced epoch, stale epoch.
JOINS_AGAIN: Final = frozenset({22, UNKNOWN_MEMBER, 27, 110, 113})
PROTOCOL_TYPE: Final = "consumer"
LEAVES: Final = -1


@dataclass
class Member(Client):
    """One of the members among which the topic's partitions are divided.

    Attributes:
        member_id: The member's id in the group.
        generation: The group's generation, or the member's epoch; -1 if it is not a member.
        owned: Its assigned partitions.
    """

    member_id: str = ""
    generation: int = -1
    owned: list[int] = field(default_factory=list)

    async def beat(self) -> None:
        """Stay in the group, or take a step to join it."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the group, if the broker responds."""
        raise NotImplementedError

    def be_out(self, *, is_known: bool) -> None:
        """Drop the assignment; unless `is_known`, also drop the member id."""
        self.generation, self.owned = -1, []
        self.member_id = self.member_id if is_known else ""


@dataclass
class ClassicMember(Member):
    """Member of the classic protocol: it joins, and gets its assignment from the leader."""

    async def beat(self) -> None:
        """Stay in the group, or take a step to join it."""
        try:
            if self.generation < 0 or not await self._is_still_in():
                await self._join()
        except Died:
            return

    async def _is_still_in(self) -> bool:
        asked = HeartbeatRequest(
            group_id=self.names.group, generation_id=self.generation, member_id=self.member_id
        )
        code = (await self.lives.ask(HEARTBEAT, 4, asked)).error_code
        if code in JOINS_AGAIN:
            self.be_out(is_known=code != UNKNOWN_MEMBER)
        return code not in JOINS_AGAIN

    async def _join(self) -> None:
        wanted = ConsumerProtocolSubscription(topics=[self.names.topic])
        way = GroupProtocol(name="range", metadata=SUBSCRIPTION.write(1, wanted))
        asked = JoinGroupRequest(
            group_id=self.names.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[way],
        )
        found = await self.lives.ask(JOIN_GROUP, 5, asked)
        if found.error_code:
            self.be_out(is_known=found.error_code != UNKNOWN_MEMBER)
            if found.error_code == MEMBER_ID_REQUIRED:
                self.member_id = found.member_id
            return
        self.member_id = found.member_id
        await self._sync(found.generation_id, [each.member_id for each in found.members])

    async def _sync(self, generation: int, members: list[str]) -> None:
        asked = SyncGroupRequest(
            group_id=self.names.group,
            generation_id=generation,
            member_id=self.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=each, assignment=self._part(number, members))
                for number, each in enumerate(members)
            ],
        )
        found = await self.lives.ask(SYNC_GROUP, 4, asked)
        if found.error_code:
            self.be_out(is_known=found.error_code != UNKNOWN_MEMBER)
            return
        self.generation = generation
        parts = ASSIGNMENT.read(found.assignment)[1].assigned_partitions
        self.owned = [number for part in parts for number in part.partitions]

    def _part(self, number: int, members: list[str]) -> bytes:
        own = [at for _, at in self.names.partitions if at % len(members) == number]
        part = TopicPartitions(topic=self.names.topic, partitions=own)
        return ASSIGNMENT.write(1, ConsumerProtocolAssignment(assigned_partitions=[part]))

    async def leave(self) -> None:
        """Leave the group, if the broker responds."""
        gone = MemberIdentity(member_id=self.member_id)
        asked = LeaveGroupRequest(group_id=self.names.group, members=[gone])
        try:
            await self.lives.ask(LEAVE_GROUP, 4, asked)
        except Died:
            return


@dataclass
class ConsumerMember(Member):
    """Member of the consumer protocol (KIP-848): the group's coordinator assigns partitions."""

    lives_begun: int = 0
    has: list[IdPartitions] = field(default_factory=list)

    async def beat(self) -> None:
        """Stay in the group, or take a step to join it."""
        if self.generation < 0:
            self.lives_begun += 1
            self.member_id, self.has = f"{self.name}-{self.lives_begun}", []
        try:
            await self._beat(max(self.generation, 0))
        except Died:
            return

    async def _beat(self, epoch: int) -> None:
        asked = ConsumerGroupHeartbeatRequest(
            group_id=self.names.group,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=SESSION_MS,
            subscribed_topic_names=[self.names.topic],
            topic_partitions=self.has,
        )
        found = await self.lives.ask(CONSUMER_GROUP_HEARTBEAT, 1, asked)
        if found.error_code in JOINS_AGAIN:
            self.be_out(is_known=False)
        elif not found.error_code:
            self.generation = found.member_epoch
            if found.assignment is not None:
                self.has = found.assignment.topic_partitions
                self.owned = [number for part in self.has for number in part.partitions]

    async def leave(self) -> None:
        """Leave the group, if the broker responds."""
        asked = ConsumerGroupHeartbeatRequest(
            group_id=self.names.group, member_id=self.member_id, member_epoch=LEAVES
        )
        try:
            await self.lives.ask(CONSUMER_GROUP_HEARTBEAT, 1, asked)
        except Died:
            return
