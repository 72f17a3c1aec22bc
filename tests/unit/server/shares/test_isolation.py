"""Records of transactions in share groups, by `share.isolation.level`."""

from pathlib import Path

from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import (
    EARLIEST,
    TOPIC,
    World,
    acquired,
    begun,
    said,
    world,
)

from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.server.partitions.partition import (
    TransactionEnd,
    append_in_transaction,
    end_transaction,
)
from tidelog.server.shares.record_runs import AckType
from tidelog.storage.log.append_types import AppendTerms
from tidelog.types import NewRecord

COMMITTED = EARLIEST | {"share.isolation.level": "read_committed"}


def write(it: World, size: int, producer: int, sequence: int = 0) -> None:
    """Append records of a transaction."""
    partition = it.node.partitions.get(TOPIC, 0)
    data = build_batch(
        [NewRecord(value=b"v") for _ in range(size)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    states = partition.log.producer_states()
    guard = partition.transactions.guard(
        states, (producer, 0), sequence, raises_epochs=False, now_ms=0
    )
    append_in_transaction(partition, data, RecordBatch(data, 0), guard, AppendTerms(owned=True))


def end(it: World, producer: int, *, commit: bool) -> None:
    end_transaction(it.node.partitions.get(TOPIC, 0), TransactionEnd(producer, 0, 0, commit))


@on_a_loop
async def test_by_default_all_records_are_acquired(path: Path) -> None:
    async with world(path) as it:
        write(it, 5, producer=7)
        assert acquired(await it.member().fetch(0)) == [(0, 4, 1)]


@on_a_loop
async def test_records_of_an_open_transaction_are_waited_for(path: Path) -> None:
    async with world(path) as it:
        await it.set_group(COMMITTED)
        it.produce(2)
        write(it, 5, producer=7)
        it.produce(2)
        one = it.member()
        assert acquired(await one.fetch(0)) == [(0, 1, 1)]
        waiting = await begun(one.fetch(wait_ms=500), it)
        end(it, 7, commit=True)
        assert acquired(await waiting) == [(2, 9, 1)]


@on_a_loop
async def test_records_of_an_aborted_transaction_are_not_delivered(path: Path) -> None:
    async with world(path) as it:
        await it.set_group(COMMITTED)
        write(it, 5, producer=7)
        write(it, 3, producer=8)
        write(it, 2, producer=7, sequence=5)
        end(it, 7, commit=False)
        end(it, 8, commit=True)
        one = it.member()
        assert acquired(await one.fetch(0)) == [(5, 7, 1), (10, 11, 1)]
        assert await one.say(said(5, 7, AckType.ACCEPT), said(10, 11, AckType.GAP)) == 0
        live = it.node.shares.find(it.key())
        assert live is not None
        assert live.records.start == 12


@on_a_loop
async def test_a_producer_that_aborted_may_commit_the_next_time(path: Path) -> None:
    async with world(path) as it:
        await it.set_group(COMMITTED)
        write(it, 5, producer=7)
        end(it, 7, commit=False)
        write(it, 2, producer=7, sequence=5)
        end(it, 7, commit=True)
        write(it, 1, producer=7, sequence=7)
        end(it, 7, commit=False)
        assert acquired(await it.member().fetch(0)) == [(5, 8, 1), (10, 10, 1)]


@on_a_loop
async def test_a_fetch_of_only_aborted_records_gets_a_response_at_once(path: Path) -> None:
    async with world(path) as it:
        await it.set_group(COMMITTED)
        for sequence in range(0, 50, 5):
            write(it, 5, producer=7, sequence=sequence)
        end(it, 7, commit=False)
        it.produce(3)
        one = it.member()
        # The clock does not advance, so a fetch that waited would never end.
        for _ in range(5):
            assert acquired(await one.fetch(0, records=10, wait_ms=500)) == []
        assert acquired(await one.fetch(0, records=10, wait_ms=500)) == [(50, 53, 1)]
        await begun(one.fetch(0, wait_ms=500), it)
