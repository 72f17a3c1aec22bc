"""Producers with transactions, and one that copies what it has read."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from tests.histories.broker_lives import Died
from tests.histories.history import Outcome, Place, Transaction, Write
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
from tidelog.protocol.messages.groups import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.messages.producers import InitProducerIdRequest
from tidelog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from tidelog.protocol.messages.txn_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord


@dataclass
class Writer(Client):
    """A producer with transactions.

    Attributes:
        has_own_epochs: Whether it speaks the newer protocol (KIP-890).
        timeout_ms: Of its transactions.
    """

    has_own_epochs: bool = False
    timeout_ms: int = LONG_MS
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[Place, int] = field(default_factory=dict)
    added: set[Place] = field(default_factory=set)

    @property
    def transactional_id(self) -> str:
        return f"{self.name}-{self.names.seed}"

    async def init(self) -> None:
        """Get an id, and end what was open before."""
        while True:
            try:
                await self.find(self.transactional_id, TRANSACTION_KEY)
                await self.patient(self._init)
            except Died:
                continue
            self.sequences.clear()
            return

    async def _init(self) -> int:
        asked = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )
        found = await self.lives.ask(INIT_PRODUCER_ID, 4, asked)
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch
        return found.error_code

    async def transact(
        self, body: Callable[[Transaction], Coroutine[object, object, bool]]
    ) -> None:
        """One transaction; `body` writes, and says whether to commit. It never fails."""
        found = Transaction(self.name)
        self.history.transactions.append(found)
        self.added.clear()
        try:
            if await body(found):
                found.commit_asked, found.outcome = self.history.now(), Outcome.UNKNOWN
                await self.end(commit=True)
                found.outcome = Outcome.COMMITTED
            else:
                await self.end(commit=False)
        except (Died, GaveUp):
            await self.init()

    async def end(self, *, commit: bool) -> None:
        """Commit or abort."""
        asked = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

        async def step() -> int:
            version = 5 if self.has_own_epochs else 4
            found = await self.lives.ask(END_TXN, version, asked)
            if not found.error_code and self.has_own_epochs:
                self.producer_id, self.epoch = found.producer_id, found.producer_epoch
                self.sequences.clear()
            return found.error_code

        await self.patient(step)

    async def write(self, transaction: Transaction, place: Place, values: Sequence[int]) -> None:
        """Write values as one batch."""
        writes = [Write(place, value) for value in values]
        transaction.writes += writes
        if not self.has_own_epochs and place not in self.added:
            await self.patient(lambda: self._add(place))
            self.added.add(place)
        sequence = self.sequences.get(place, 0)
        batch = build_batch(
            [NewRecord(value=str(value).encode(), timestamp=0) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

        async def step() -> int:
            data = PartitionProduceData(index=place[1], records=bytearray(batch))
            request = ProduceRequest(
                transactional_id=self.transactional_id,
                acks=-1,
                timeout_ms=LONG_MS,
                topic_data=[TopicProduceData(name=place[0], partition_data=[data])],
            )
            version = 12 if self.has_own_epochs else 11
            answer = await self.lives.ask(PRODUCE, version, request)
            row = answer.responses[0].partition_responses[0]
            if not row.error_code:
                for number, write in enumerate(writes):
                    write.offset = row.base_offset + number
            return row.error_code

        await self.patient(step)
        self.sequences[place] = sequence + len(values)

    async def _add(self, place: Place) -> int:
        topic = AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        found = await self.lives.ask(ADD_PARTITIONS_TO_TXN, 3, asked)
        return found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    async def run(self, count: int, values: Callable[[], int]) -> None:
        """Some transactions of random writes."""
        await self.init()
        for _ in range(count):

            async def body(transaction: Transaction) -> bool:
                for _ in range(self.random.randrange(1, 4)):
                    place = self.random.choice(self.names.places)
                    some = [values() for _ in range(self.random.randrange(1, 3))]
                    await self.write(transaction, place, some)
                if self.timeout_ms == SHORT_MS and self.random.random() < 0.3:
                    for _ in range(SHORT_MS * 2):  # it is timed out meanwhile
                        await asyncio.sleep(0)
                return self.random.random() < 0.7

            await self.transact(body)


@dataclass
class Copier(Writer):
    """Reads the first place, writes each value's negative, commits its offset with that."""

    @property
    def source(self) -> Place:
        return self.names.places[0]

    async def run_copies(self, is_over: Callable[[], bool]) -> None:
        """Copy until all is over, and then the rest."""
        await self.init()
        is_last = False
        copies = 0
        while not is_last:
            is_last = is_over()
            while copies < COPIES_MAX and await self._copy():
                copies += 1
            await asyncio.sleep(0)

    async def _copy(self) -> bool:
        """One transaction; False where there is nothing to copy."""
        at = await self.committed()
        try:
            data = await fetch(self.lives, self.source, at)
        except Died:
            return True
        records, end = committed_in(data, at)
        if data.error_code or end == at:
            return bool(data.error_code)

        async def body(transaction: Transaction) -> bool:
            values = [-value for _, value in records]
            if values:
                await self.write(transaction, (self.names.copy, 0), values)
            await self._commit_offset(end)
            return self.random.random() < 0.9

        await self.transact(body)
        return True

    async def committed(self) -> int:
        """The group's offset, once no transaction is open that might change it."""
        wanted = OffsetFetchGroupTopic(name=self.source[0], partition_indexes=[self.source[1]])
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
                continue
            return found

    async def _commit_offset(self, offset: int) -> None:
        if not self.has_own_epochs:
            await self.patient(self._add_offsets)
        place = TxnOffsetCommitRequestPartition(
            partition_index=self.source[1], committed_offset=offset, committed_metadata=""
        )
        asked = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.names.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self.source[0], partitions=[place])],
        )

        async def step() -> int:
            version = 5 if self.has_own_epochs else 3
            answer = await self.lives.ask(TXN_OFFSET_COMMIT, version, asked)
            return answer.topics[0].partitions[0].error_code

        await self.patient(step)

    async def _add_offsets(self) -> int:
        asked = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=self.names.group,
        )
        return (await self.lives.ask(ADD_OFFSETS_TO_TXN, 3, asked)).error_code
