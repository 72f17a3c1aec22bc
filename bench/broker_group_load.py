"""Group members for the load generator, for both group protocols, as raw connections in one thread.

A member sends without delay each request that its protocol requires. While a group settles, its
members send a heartbeat every `BEAT_MS`. Members send their first heartbeat `HEAD_START_MS` after
the coordinator knows all joining members, or after the coordinator has confirmed that a member
left. Real clients send a heartbeat only every few seconds, so a changing group of real clients
mostly waits for the next heartbeats. `BEAT_MS` is shorter than the interval of real clients, so
that the coordinator's own time is measured. Because there are few messages, tidelog's own codecs
encode the messages for both brokers.

Source: Kafka's protocol guide; KIP-394 (a new member joins again with the
id that it gets), KIP-848 (consumer groups).
"""

import select
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from bench.broker_load import BUFFER_BYTES, SOCKET_TIMEOUT_S, Address, connect
from tidelog.protocol.messages import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
)
from tidelog.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.shared import GroupProtocol, IdPartitions
from tidelog.protocol.requests import ClientConnection

if TYPE_CHECKING:
    import socket

    from _typeshed import DataclassInstance

    from tidelog.protocol.schema import Api

BEAT_MS: Final = 10
# Delay of the first heartbeats, so that they don't overtake the request that changes the group.
HEAD_START_MS: Final = 2
SESSION_MS: Final = 60_000
# Codes of errors after which a member joins again, with its new id or in a new generation.
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION = 79, 27, 22
# Codes of errors of a coordinator that is being loaded, is not available yet, or has moved.
LATER: Final = frozenset({14, 15, 16})

Request = TypeVar("Request", bound="DataclassInstance")


class Refused(RuntimeError):
    """A broker's response to a member has an error after which a retry doesn't help."""


class Member(ABC):
    """Member of a group with its connection, and with at most one request in flight.

    Attributes:
        sock: The member's connection.
        group: Id of the group.
        is_waiting: Whether a response is pending.
        epoch: Generation of the group (classic) or epoch of the member (consumer); -1 if the
            member is not in the group.
        count: Number of partitions assigned to the member.
    """

    def __init__(self, address: Address, group: str, topic: str) -> None:
        self.sock: socket.socket = connect(address)
        self.group, self.topic = group, topic
        self.is_waiting = False
        self.epoch = -1
        self.count = 0
        self._connection = ClientConnection("bench")
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def send(self, api: "Api[Request, DataclassInstance]", version: int, message: Request) -> None:
        """Send a request."""
        assert not self.is_waiting
        self.is_waiting = True
        self.sock.sendall(b"".join(self._connection.request(api, version, message)))

    def receive(self) -> None:
        """Read what has arrived, and handle complete responses."""
        got = self.sock.recv_into(self._buffer)
        if not got:
            raise ConnectionError("the broker closed the connection")
        self._connection.feed(bytes(self._buffer[:got]))
        while (answer := self._connection.next_response()) is not None:
            self.is_waiting = False
            self.take(answer)

    @property
    @abstractmethod
    def is_known(self) -> bool:
        """Whether the coordinator has assigned a member id (classic) or an epoch (consumer)."""

    @abstractmethod
    def join(self) -> None:
        """Send the request to join."""

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def leave(self) -> None:
        """Send the request to leave."""

    @abstractmethod
    def take(self, answer: "DataclassInstance") -> None:
        """Handle a response; sends the next request if the protocol requires one."""

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


class ClassicMember(Member):
    """Member of the classic protocol; the leader assigns partitions round-robin."""

    def __init__(self, address: Address, group: str, topic: str, partitions: int) -> None:
        super().__init__(address, group, topic)
        self._partitions = partitions
        self._id = ""
        self._generation = -1

    @property
    def is_known(self) -> bool:
        return bool(self._id)

    def join(self) -> None:
        name = self.topic.encode()
        subscribed = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)
        self.epoch = -1
        asked = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[GroupProtocol(name="bench", metadata=subscribed)],
        )
        self.send(JOIN_GROUP, 7, asked)

    def beat(self) -> None:
        asked = HeartbeatRequest(
            group_id=self.group, generation_id=self._generation, member_id=self._id
        )
        self.send(HEARTBEAT, 4, asked)

    def leave(self) -> None:
        self.epoch = -1
        asked = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self._id)])
        self.send(LEAVE_GROUP, 4, asked)

    def take(self, answer: "DataclassInstance") -> None:
        match answer:
            case JoinGroupResponse():
                self._joined(answer)
            case SyncGroupResponse(error_code=0):
                self.epoch = self._generation
                # In the encoded assignment, the version, the number of topics, and the topic's name
                # with its length come before the number of partitions.
                at = 2 + 4 + 2 + len(self.topic)
                self.count = struct.unpack_from(">i", answer.assignment, at)[0]
            case HeartbeatResponse(error_code=0) | LeaveGroupResponse(error_code=0):
                pass
            case HeartbeatResponse() | SyncGroupResponse() if answer.error_code in {
                REBALANCE_IN_PROGRESS,
                ILLEGAL_GENERATION,
            }:
                self.join()
            case _:
                raise Refused(f"{answer}")

    def _joined(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == MEMBER_ID_REQUIRED or answer.error_code in LATER:
            self._id = answer.member_id or self._id
            self.join()
            return
        if answer.error_code:
            raise Refused(f"JoinGroup: error {answer.error_code}")
        self._id, self._generation = answer.member_id, answer.generation_id
        asked = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._id,
            protocol_type="consumer",
            protocol_name="bench",
            assignments=self._dealt([each.member_id for each in answer.members]),
        )
        self.send(SYNC_GROUP, 5, asked)

    def _dealt(self, members: Sequence[str]) -> list[SyncGroupRequestAssignment]:
        """Return the assignment of each member; only the leader's response lists the members."""
        name = self.topic.encode()
        dealt = []
        for place, member in enumerate(members):
            numbers = range(place, self._partitions, len(members))
            head = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, len(numbers))
            rows = b"".join(struct.pack(">i", number) for number in numbers)
            assigned = head + rows + struct.pack(">i", -1)
            dealt.append(SyncGroupRequestAssignment(member_id=member, assignment=assigned))
        return dealt


class ConsumerMember(Member):
    """Member that uses the consumer protocol, and revokes and accepts partitions without delay."""

    def __init__(self, address: Address, group: str, topic: str, _partitions: int) -> None:
        super().__init__(address, group, topic)
        self._id = str(uuid4())
        self._owned: list[IdPartitions] = []

    @property
    def is_known(self) -> bool:
        return self.epoch >= 0

    def join(self) -> None:
        self._beat(
            0, subscribed_topic_names=[self.topic], rebalance_timeout_ms=SESSION_MS, owned=[]
        )

    def beat(self) -> None:
        self._beat(self.epoch)

    def leave(self) -> None:
        self._beat(-1)

    def _beat(
        self,
        epoch: int,
        *,
        subscribed_topic_names: list[str] | None = None,
        rebalance_timeout_ms: int = -1,
        owned: list[IdPartitions] | None = None,
    ) -> None:
        asked = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self._id,
            member_epoch=epoch,
            rebalance_timeout_ms=rebalance_timeout_ms,
            subscribed_topic_names=subscribed_topic_names,
            topic_partitions=owned,
        )
        self.send(CONSUMER_GROUP_HEARTBEAT, 1, asked)

    def take(self, answer: "DataclassInstance") -> None:
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if answer.error_code in LATER and self.epoch < 0:
            self.join()
            return
        if answer.error_code:
            raise Refused(f"ConsumerGroupHeartbeat: {answer.error_code} {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._owned = answer.assignment.topic_partitions
            self.count = sum(len(each.partitions) for each in self._owned)
            self._beat(self.epoch, owned=self._owned)


class Members:
    """Members of one group, served by one thread until their assignment is complete."""

    def __init__(self, partitions: int) -> None:
        """`partitions` is the topic's number of partitions; a settled group assigns all of them."""
        self._partitions = partitions
        self._waiting = select.epoll()
        self._by_fd: dict[int, Member] = {}
        self._settled = -1

    def join(self, *members: Member) -> None:
        """Add members; each sends its first request without delay."""
        for each in members:
            self._by_fd[each.sock.fileno()] = each
            self._waiting.register(each.sock.fileno(), select.EPOLLIN)
            each.join()

    def leave(self, member: Member) -> None:
        """Remove a member; returns after the response."""
        self._await_answers([member])
        member.leave()
        self._await_answers([member])
        self._waiting.unregister(member.sock.fileno())
        del self._by_fd[member.sock.fileno()]
        member.close()

    def settle(self) -> None:
        """Wait until all members are in the same new generation and all partitions are assigned."""
        end = time.perf_counter() + SOCKET_TIMEOUT_S
        while not all(each.is_known for each in self._by_fd.values()):
            self._serve(end)
        due = time.perf_counter() + HEAD_START_MS / 1000
        while not self._is_settled():
            if (now := time.perf_counter()) >= due:
                due = now + BEAT_MS / 1000
                self._beat()
            self._serve(min(due, end))
        self._settled = next(iter(self._by_fd.values())).epoch

    def _is_settled(self) -> bool:
        members = self._by_fd.values()
        epochs = {each.epoch for each in members}
        return (
            len(epochs) == 1
            and epochs.pop() > self._settled
            and sum(each.count for each in members) == self._partitions
            # The newest member has no partitions until other members have revoked some partitions.
            and min(each.count for each in members) >= self._partitions // len(members)
        )

    def _beat(self) -> None:
        for each in self._by_fd.values():
            if not each.is_waiting and each.epoch >= 0:
                each.beat()

    def _serve(self, until: float) -> None:
        """Handle responses that have arrived or that arrive before `until`.

        Raises:
            TimeoutError: `until` passed more than `SOCKET_TIMEOUT_S` ago.
        """
        left_s = until - time.perf_counter()
        if left_s < -SOCKET_TIMEOUT_S:
            raise TimeoutError("the group does not settle")
        for descriptor, _event in self._waiting.poll(max(left_s, 0)):
            self._by_fd[descriptor].receive()

    def disband(self) -> None:
        """Await pending responses, which may make a member join again; then remove all members."""
        self._await_answers(self._by_fd.values())
        for each in tuple(self._by_fd.values()):
            self.leave(each)
        self._waiting.close()

    def _await_answers(self, members: Collection[Member]) -> None:
        end = time.perf_counter() + SOCKET_TIMEOUT_S
        while any(each.is_waiting for each in members):
            self._serve(end)
