"""Producers with transactions, and a producer that copies the records it has read."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.histories.broker_lives import Died
from tests.histories.history import Outcome, Partition, Transaction, Write, copy_of
from tests.histories.members import JOINS_AGAIN, Member
from tests.histories.processes import (
    COPIES_MAX,
    GROUP_KEY,
    LONG_MS,
    SHORT_MS,
    TRANSACTION_KEY,
    Client,
    GaveUp,
)
from tests.histories.readers import committed_in, fetch

from tidelog.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.shared import NamedPartitions
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

# Error codes for an old epoch or a missing transaction: a timeout or a rival ended the transaction.
FENCED: Final = frozenset({47, 48, 49, 90, 120})
# Probability that a rival takes the transactional id during a transaction.
RIVALS: Final = 0.1


@dataclass
class Writer(Client):
    """A producer with transactions.

    Attributes:
        has_own_epochs: Whether it uses the newer protocol (KIP-890).
        timeout_ms: Timeout of its transactions.
        own_id: Its transactional id; if empty, the id is derived from the client's name.
        is_stubborn: Whether it repeats an unanswered request after the broker's restart, as real
            clients do. If not, it gets its producer id again.
        ends_asked: Number of requests to end its transaction.
    """

    has_own_epochs: bool = False
    timeout_ms: int = LONG_MS
    own_id: str = ""
    is_stubborn: bool = False
    ends_asked: int = 0
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[Partition, int] = field(default_factory=dict)
    added: set[Partition] = field(default_factory=set)

    @property
    def transactional_id(self) -> str:
        return self.own_id or f"{self.name}-{self.names.seed}"

    async def init(self) -> None:
        """Get a producer id, and end an earlier open transaction."""
        while True:
            try:
                await self.find(self.transactional_id, TRANSACTION_KEY)
                await self.patient(self._init)
            except Died:
                await self.pause()
                continue
            self.sequences.clear()
            return

    async def _init(self) -> int:
        asked = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        found = await self.lives.ask(INIT_PRODUCER_ID, 4, asked)
        if not found.error_code:
            self.producer_id, self.epoch = found.producer_id, found.producer_epoch
        return found.error_code

    async def surely(self, step: Callable[[], Coroutine[object, object, int]]) -> None:
        """Do a step; a stubborn producer repeats it if the broker was killed.

        Raises:
            GaveUp: The step was refused.
            Died: The broker was killed; whether the step was done is unknown.
        """
        while True:
            try:
                await self.patient(step)
            except Died:
                if not self.is_stubborn:
                    raise
                await self.pause()
            else:
                return

    async def transact(
        self, body: Callable[[Transaction], Coroutine[object, object, bool]]
    ) -> None:
        """Run one transaction; `body` sends the writes, and returns False to abort."""
        found = Transaction(self.name)
        self.history.transactions.append(found)
        self.added.clear()
        self.ends_asked = 0
        self.is_stubborn = self.random.random() < 0.5
        try:
            if await body(found):
                found.commit_asked, found.outcome = self.history.now(), Outcome.UNKNOWN
                await self.end(commit=True)
                found.outcome = Outcome.COMMITTED
            else:
                await self.end(commit=False)
        except GaveUp as refusal:
            self._note_refusal(found, refusal)
            await self.init()
        except Died:
            await self.init()

    def _note_refusal(self, transaction: Transaction, refusal: GaveUp) -> None:
        if not self.may_be_refused(transaction, refusal.code):
            transaction.refused = refusal.code
        if self.ends_asked == 1:
            transaction.outcome = Outcome.ABORTED  # its only commit request was refused

    def may_be_refused(self, transaction: Transaction, code: int) -> bool:
        """Whether a timeout or a rival may explain this refusal; a kill of the broker can't."""
        is_timed = self.timeout_ms == SHORT_MS
        return code in FENCED and (is_timed or transaction.fenced is not None)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort."""
        asked = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

        async def step() -> int:
            self.ends_asked += 1
            version = 5 if self.has_own_epochs else 4
            found = await self.lives.ask(END_TXN, version, asked)
            if not found.error_code and self.has_own_epochs:
                self.producer_id, self.epoch = found.producer_id, found.producer_epoch
                self.sequences.clear()
            return found.error_code

        await self.surely(step)

    async def be_fenced(self, transaction: Transaction) -> None:
        """Let a rival take the transactional id and stop; this producer is not informed."""
        facts = (self.lives, self.names, self.history, Random(self.random.random()))
        rival = Writer(*facts, f"{self.name}'s rival", own_id=self.transactional_id)
        await rival.init()
        transaction.fenced = self.history.now()

    async def write(
        self, transaction: Transaction, partition: Partition, values: Sequence[int]
    ) -> None:
        """Write values as one batch."""
        writes = [Write(partition, value) for value in values]
        transaction.writes += writes
        if not self.has_own_epochs and partition not in self.added:
            await self.surely(lambda: self._add(partition))
            self.added.add(partition)
        sequence = self.sequences.get(partition, 0)
        batch = build_batch(
            [NewRecord(value=str(value).encode(), timestamp=0) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

        async def step() -> int:
            for write in writes:
                write.asked = self.history.now()
            data = PartitionProduceData(index=partition[1], records=bytearray(batch))
            request = ProduceRequest(
                transactional_id=self.transactional_id,
                acks=-1,
                timeout_ms=LONG_MS,
                topic_data=[TopicProduceData(name=partition[0], partition_data=[data])],
            )
            version = 12 if self.has_own_epochs else 11
            answer = await self.lives.ask(PRODUCE, version, request)
            row = answer.responses[0].partition_responses[0]
            if not row.error_code:
                for number, write in enumerate(writes):
                    write.offset = row.base_offset + number
            return row.error_code

        await self.surely(step)
        self.sequences[partition] = sequence + len(values)

    async def _add(self, partition: Partition) -> int:
        topic = NamedPartitions(name=partition[0], partitions=[partition[1]])
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        found = await self.lives.ask(ADD_PARTITIONS_TO_TXN, 3, asked)
        return found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    async def run(self, count: int, values: Callable[[], int]) -> None:
        """Run some transactions of random writes."""
        await self.init()
        for _ in range(count):
            await self.transact(lambda transaction: self._write_some(transaction, values))

    async def _write_some(self, transaction: Transaction, values: Callable[[], int]) -> bool:
        count = self.random.randrange(1, 4)
        fenced_at = self.random.randrange(count) if self.random.random() < RIVALS else -1
        for number in range(count):
            partition = self.random.choice(self.names.partitions)
            some = [values() for _ in range(self.random.randrange(1, 3))]
            await self.write(transaction, partition, some)
            if number == fenced_at:
                await self.be_fenced(transaction)
        if self.timeout_ms == SHORT_MS and self.random.random() < 0.3:
            for _ in range(SHORT_MS * 2):  # the transaction times out meanwhile
                await asyncio.sleep(0)
        return self.random.random() < 0.7


@dataclass
class Copier(Writer):
    """Reads its partitions as a member of a group, and copies the values to another topic.

    Each transaction writes copies and commits the group's offset. Several copiers share the work;
    the broker refuses the transaction of a copier that has meanwhile lost the partition.
    """

    member: Member = field(kw_only=True)
    copies: int = 0

    def may_be_refused(self, transaction: Transaction, code: int) -> bool:
        """Whether the refusal is due to a change of the group."""
        return code in JOINS_AGAIN

    async def run_copies(self, is_over: Callable[[], bool]) -> None:
        """Copy until `is_over` holds, then copy the remaining records."""
        await self.init()
        await self.committed(self.names.partitions[0])  # creates the topic of group offsets
        is_last = False
        while not is_last:
            is_last = is_over()
            while self.copies < COPIES_MAX and await self._copy_own():
                self.copies += 1
            await self.pause()
        await self.member.leave()

    async def _copy_own(self) -> bool:
        """Copy new records of its partitions; return False if there were no new records."""
        await self.member.beat()
        some = [await self._copy((self.names.topic, number)) for number in self.member.owned]
        return any(some)

    async def _copy(self, source: Partition) -> bool:
        """Copy a partition's new records in a transaction; return False if there are none."""
        at = await self.committed(source)
        try:
            data = await fetch(self.lives, source, at)
        except Died:
            return True
        records, end = committed_in(data, at)
        if data.error_code or end == at:
            return bool(data.error_code)

        async def body(transaction: Transaction) -> bool:
            attempt = self.history.now()
            values = [copy_of(value, attempt) for _, value in records]
            if values:
                await self.write(transaction, self.names.copies[source], values)
            await self._commit_offset(source, end)
            return self.random.random() < 0.9

        await self.transact(body)
        return True

    async def committed(self, source: Partition) -> int:
        """Wait until no open transaction can change the group's offset, and return this offset."""
        wanted = OffsetFetchTopic(name=source[0], partition_indexes=[source[1]])
        asked = OffsetFetchRequest(
            groups=[OffsetFetchGroup(group_id=self.names.group, topics=[wanted])],
            require_stable=True,
        )
        found = 0

        async def step() -> int:
            nonlocal found
            group = (await self.lives.ask(OFFSET_FETCH, 8, asked)).groups[0]
            if group.error_code:
                return group.error_code
            row = group.topics[0].partitions[0]
            found = max(row.committed_offset, 0)
            return row.error_code

        while True:
            try:
                await self.find(self.names.group, GROUP_KEY)
                await self.patient(step)
            except Died:
                await self.pause()
                continue
            return found

    async def _commit_offset(self, source: Partition, offset: int) -> None:
        if not self.has_own_epochs:
            await self.surely(self._add_offsets)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=source[1], committed_offset=offset, committed_metadata=""
        )
        asked = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.names.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=self.member.generation,
            member_id=self.member.member_id,
            topics=[TxnOffsetCommitRequestTopic(name=source[0], partitions=[partition])],
        )

        async def step() -> int:
            version = 5 if self.has_own_epochs else 3
            answer = await self.lives.ask(TXN_OFFSET_COMMIT, version, asked)
            return answer.topics[0].partitions[0].error_code

        await self.surely(step)

    async def _add_offsets(self) -> int:
        asked = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=self.names.group,
        )
        return (await self.lives.ask(ADD_OFFSETS_TO_TXN, 3, asked)).error_code
