"""Load on a broker until it is killed: idempotent producers and a group that commits.

Each client records its acknowledged and unacknowledged requests. After the broker's restart the
client repeats the unacknowledged requests as real clients do: the same batches with the same
sequence numbers.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tests.worlds.clients.raw import RawClient, Refused, produce_request
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, PRODUCE
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord

if TYPE_CHECKING:
    from tidelog.protocol.messages.produce import ProduceResponse

# Maximum number of batches in flight, because the broker detects a duplicate only of a producer's
# last five batches.
IN_FLIGHT_MAX = 5
BATCH_RECORDS_MAX = 20
COORDINATOR_NOT_AVAILABLE = 15
COORDINATOR_LOADING = 14
NOT_COORDINATOR = 16
SOON = {COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOADING, NOT_COORDINATOR}

Progress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: its first record's number, its record count, and the bytes of every attempt."""

    first: int
    count: int
    data: bytes


@dataclass(slots=True)
class IdempotentProducer:
    """Writes numbered records from 0 on to one partition; at most five batches in flight."""

    name: str
    topic: str
    partition: int
    rng: random.Random
    producer_id: int = -1
    next_number: int = 0
    unacknowledged: deque[Batch] = field(default_factory=deque)
    acknowledged: list[tuple[int, Batch]] = field(default_factory=list)

    def run(self, bootstrap: str, progress: Progress) -> None:
        """Write until the broker is killed; call `progress` for each acknowledgement."""
        with RawClient(bootstrap) as client:
            if self.producer_id < 0:
                self.producer_id = client.producer_id()
            for batch in self.unacknowledged:
                self._send(client, batch)
            while True:
                while len(self.unacknowledged) < IN_FLIGHT_MAX:
                    self.unacknowledged.append(self._next())
                    self._send(client, self.unacknowledged[-1])
                self._take(client)
                progress()

    def _send(self, client: RawClient, batch: Batch) -> None:
        client.send(PRODUCE, 9, produce_request(self.topic, batch.data, self.partition))

    def _take(self, client: RawClient) -> None:
        answer = cast("ProduceResponse", client.receive()).responses[0].partition_responses[0]
        if answer.error_code:
            raise Refused(answer.error_code, answer.error_message)
        self.acknowledged.append((answer.base_offset, self.unacknowledged.popleft()))

    def _next(self) -> Batch:
        first, count = self.next_number, self.rng.randint(1, BATCH_RECORDS_MAX)
        self.next_number += count
        records = [
            NewRecord(value=self.value(number), timestamp=number)
            for number in range(first, first + count)
        ]
        data = build_batch(
            records,
            codec=self.rng.choice([Codec.NONE, Codec.LZ4]),
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=first,
        )
        return Batch(first, count, bytes(data))

    def value(self, number: int) -> bytes:
        """Return the value of the record with this number."""
        return b"%s:%d" % (self.name.encode(), number)


@dataclass(slots=True)
class Committer:
    """Commits the offsets 1, 2, 3 ... of one partition for a group without members."""

    group: str
    topic: str
    sent: int = 0
    acknowledged: int = 0

    def run(self, bootstrap: str, progress: Progress) -> None:
        """Assert that no acknowledged commit was lost, then commit until the broker is killed."""
        with RawClient(bootstrap) as client:
            await_coordinator(client, self.group)
            assert self.acknowledged <= committed_offset(client, self.group, self.topic)
            while True:
                self.sent += 1
                if self._commit(client):
                    self.acknowledged = self.sent
                    progress()

    def _commit(self, client: RawClient) -> bool:
        place = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=self.sent, committed_metadata=str(self.sent)
        )
        message = OffsetCommitRequest(
            group_id=self.group,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[place])],
        )
        code = client.ask(OFFSET_COMMIT, 9, message).topics[0].partitions[0].error_code
        if code and code not in SOON:
            raise Refused(code)
        return not code


def await_coordinator(client: RawClient, group: str) -> None:
    """Wait until the group's coordinator is available."""
    message = FindCoordinatorRequest(coordinator_keys=[group])
    patience = Patience()
    while (code := client.ask(FIND_COORDINATOR, 4, message).coordinators[0].error_code) in SOON:
        patience.check("a coordinator")
    if code:
        raise Refused(code)


def committed_offset(client: RawClient, group: str, topic: str) -> int:
    """Return a group's committed offset, 0 if there is none."""
    wanted = OffsetFetchGroup(
        group_id=group,
        member_id=None,
        topics=[OffsetFetchTopic(name=topic, partition_indexes=[0])],
    )
    message = OffsetFetchRequest(groups=[wanted], require_stable=False)
    patience = Patience()
    while True:
        patience.check("the group is loaded")
        found = client.ask(OFFSET_FETCH, 8, message).groups[0]
        if found.error_code not in SOON:
            break
    if found.error_code:
        raise Refused(found.error_code)
    place = found.topics[0].partitions[0]
    if place.committed_offset < 0:
        return 0
    assert place.metadata == str(place.committed_offset)
    return place.committed_offset
