"""Rebalances of a large group: in each round, new members replace half of the members."""

import contextlib
import selectors
from pathlib import Path
from random import Random
from typing import cast

import pytest
from tests.server.test_many import find_coordinator
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S, Patience

import tidelog
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, AnyApi
from tidelog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidelog.protocol.messages.shared import GroupProtocol
from tidelog.record.builder import build_batch
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord

GROUP = "storm"
MEMBERS = 200
ROUNDS = 5
# Milliseconds for which a rebalance waits for members that have closed their connection.
REBALANCE_MS = 1000
PRODUCED_IN_A_ROUND = 20
BATCH = bytes(build_batch([NewRecord(value=b"v")]))
AGAIN = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.MEMBER_ID_REQUIRED,
}


class Member:
    """A member that has its own connection and always one pending request.

    Attributes:
        assignment: The member's assignment in its generation; None before it has one.
    """

    def __init__(self, broker: Broker) -> None:
        self.asking = RawClient(broker.bootstrap_servers)
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self._awaited: AnyApi = JOIN_GROUP
        self._join()

    def leave(self) -> None:
        gone = MemberIdentity(member_id=self.member_id)
        self.asking.send(LEAVE_GROUP, 3, LeaveGroupRequest(group_id=GROUP, members=[gone]))

    def go_on(self) -> None:
        """Receive the pending response, and send the next request."""
        told = self.asking.receive(self._awaited)
        assert isinstance(told, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        if told.error_code != ErrorCode.NONE:
            assert told.error_code in AGAIN
            if told.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            elif isinstance(told, JoinGroupResponse):
                self.member_id = told.member_id
            self._join()
        elif isinstance(told, JoinGroupResponse):
            self._sync(told)
        else:
            if isinstance(told, SyncGroupResponse):
                self.assignment = bytes(told.assignment)
            self._beat()

    def _join(self) -> None:
        self.assignment, self._awaited = None, JOIN_GROUP
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[GroupProtocol(name="range", metadata=b"")],
        )
        self.asking.send(JOIN_GROUP, 5, request)

    def _sync(self, joined: JoinGroupResponse) -> None:
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self._awaited = SYNC_GROUP
        given = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=each.member_id.encode())
            for each in joined.members
        ]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            assignments=given,
        )
        self.asking.send(SYNC_GROUP, 3, request)

    def _beat(self) -> None:
        self._awaited = HEARTBEAT
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id
        )
        self.asking.send(HEARTBEAT, 3, request)


def is_settled(members: list[Member]) -> bool:
    """Whether all members are in the same generation and have their assignments."""
    return len({member.generation for member in members}) == 1 and all(
        member.assignment == member.member_id.encode() for member in members
    )


def settle(members: list[Member], client: RawClient) -> None:
    """Process all members' responses until the group is stable; another client writes meanwhile."""
    patience, served = Patience(), 0
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.asking, selectors.EVENT_READ, member)
        while not is_settled(members) or served < PRODUCED_IN_A_ROUND:
            patience.check()
            for key, _ in selector.select(PATIENCE_S):
                cast("Member", key.data).go_on()
            if served < PRODUCED_IN_A_ROUND:
                assert client.produce("t", BATCH).error_code == 0
                served += 1


def close_all(members: list[Member]) -> None:
    for member in members:
        member.asking.close()


@pytest.mark.slow  # 200 members, several times
def test_others_are_served_while_a_group_storms(quick_path: Path) -> None:
    random = Random(1)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(tidelog.broker(str(quick_path / "data"), settings=SETTINGS))
        broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        find_coordinator(stack.enter_context(RawClient(broker.bootstrap_servers)))
        members: list[Member] = []
        stack.callback(lambda: close_all(members))
        for number in range(ROUNDS):
            random.shuffle(members)
            for member in members[: MEMBERS // 4]:
                member.leave()
            for member in members[: MEMBERS // 2]:
                member.asking.close()  # half of these have sent no LeaveGroup
            members[: MEMBERS // 2] = []
            members += [Member(broker) for _ in range(MEMBERS - len(members))]
            settle(members, client)
            assert len(client.read_all("t")) == PRODUCED_IN_A_ROUND * (number + 1)
        group = broker.call(lambda node: node.groups.find(GROUP))
        assert group is not None
        assert {member.member_id for member in members} <= set(group.members)
