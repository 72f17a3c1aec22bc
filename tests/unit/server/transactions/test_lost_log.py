"""A partition of the transaction log fails while nothing is written, and is reopened."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.hooked import FailingDisk, HookedDisk
from tests.unit.server.loops import on_a_loop
from tests.unit.server.transactions.test_endings import ShutTopic
from tests.unit.server.transactions.worlds import ID, ONE, START_MS, TWO, world

from tidelog.error_codes import ErrorCode
from tidelog.errors import StorageFailure
from tidelog.protocol.messages import ADD_PARTITIONS_TO_TXN
from tidelog.protocol.messages.shared import NamedPartitions
from tidelog.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.server.api.context import RequestContext
from tidelog.server.api.handlers import handler_of
from tidelog.server.api.node import ClientInfo
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.runtime.reply import settled
from tidelog.server.transactions.coordinator import ProducerAnswer
from tidelog.server.transactions.metadata import TransactionState
from tidelog.server.transactions.state_topic import encode_key, encode_value
from tidelog.types import TRANSACTIONS_TOPIC, TopicPartition


@on_a_loop
async def test_records_missing_from_a_reopened_log_do_not_apply(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with world(tmp_path, files=disk) as it:
        producer = await it.init()
        partition = it.node.partitions.get(TRANSACTIONS_TOPIC, 0)
        partition.log.flush()
        synced_bytes = partition.log.active.size_bytes
        await it.add(producer, ONE)
        disk.is_failing = True
        with pytest.raises(StorageFailure):
            partition.log.flush()
        disk.is_failing = False
        assert it.coordinator.table.find(ID) is ErrorCode.NOT_COORDINATOR
        # Cut the unsynced bytes, as if they had never reached the disk.
        os.truncate(partition.log.active.log_path, synced_bytes)
        partition.use(it.node.log_dir.reopen(TRANSACTIONS_TOPIC, 0))
        await it.loaded()
        assert it.known().state is TransactionState.EMPTY
        assert it.known().partitions == frozenset()
        assert await it.add(producer, TWO) is ErrorCode.NONE


@on_a_loop
async def test_adding_partitions_waits_for_loading(tmp_path: Path) -> None:
    """In versions 0 to 3, AddPartitionsToTxn waits until the log is loaded.

    These are the versions that clients send. Later versions don't wait.
    """
    disk = FailingDisk()
    async with world(tmp_path, files=disk) as it:
        producer = await it.init()

        async def add(place: TopicPartition) -> list[int]:
            topics = [NamedPartitions(name=place.topic, partitions=[place.partition])]
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=topics,
            )
            facts = ClientInfo(1, "here")
            context = RequestContext(it.node, ADD_PARTITIONS_TO_TXN, 3, "test", facts)
            said = await settled(handler_of(ADD_PARTITIONS_TO_TXN.key)(context, request))
            assert isinstance(said, AddPartitionsToTxnResponse)
            (result,) = said.results_by_topic_v3_and_below
            return [each.partition_error_code for each in result.results_by_partition]

        assert await add(ONE) == [ErrorCode.NONE]
        partition = it.node.partitions.get(TRANSACTIONS_TOPIC, 0)
        disk.is_failing = True
        with pytest.raises(StorageFailure):
            partition.log.flush()
        disk.is_failing = False
        partition.use(it.node.log_dir.reopen(TRANSACTIONS_TOPIC, 0))
        assert it.coordinator.topic.is_loading
        assert await add(TWO) == [ErrorCode.NONE]


@on_a_loop
async def test_a_loss_during_loading_leaves_no_state(tmp_path: Path) -> None:
    """The first write after loading would record a decision, but fails because the disk is full."""
    states = [
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_ABORT,
        TransactionState.EMPTY,
    ]
    producer = ProducerAnswer(ErrorCode.NONE)
    async with world(tmp_path) as it:
        for number, state in enumerate(states):
            producer = await it.init(transactional_id=f"{number}")
            made = replace(it.known(f"{number}"), state=state, start_ms=START_MS)
            record = KeyValue(encode_key(f"{number}"), encode_value(made))
            assert it.coordinator.topic.append_now(0, [record]).value is ErrorCode.NONE
    disk = HookedDisk()

    def fail(call: str, path: str) -> None:
        if call.startswith("pwrite") and f"/{TRANSACTIONS_TOPIC}-0/" in path:
            raise OSError(errno.ENOSPC, "the disk is full")

    disk.hook = fail
    async with world(tmp_path, files=disk) as it:
        assert it.coordinator.table.find("0") is ErrorCode.NOT_COORDINATOR
        assert it.table == []
        disk.hook = lambda _call, _path: None
        opened = it.node.log_dir.reopen(TRANSACTIONS_TOPIC, 0)
        it.node.partitions.get(TRANSACTIONS_TOPIC, 0).use(opened)
        await it.loaded()
        found = {each.transactional_id: each.state for each in it.table}
        aborted = TransactionState.COMPLETE_ABORT
        assert found == dict(zip("0123", [states[0], aborted, aborted, states[3]], strict=True))
        assert await it.add(producer, ONE, transactional_id="3") is ErrorCode.NONE


@on_a_loop
async def test_an_unreadable_partition_is_read_again_unless_it_is_damaged(
    tmp_path: Path,
) -> None:
    count = "3"
    async with world(tmp_path, transaction_state_log_num_partitions=count) as it:
        names = {it.coordinator.topic.number_of(name): name for name in map(str, range(30))}
        for name in names.values():
            await it.init(transactional_id=name)
    damaged = tmp_path / f"{TRANSACTIONS_TOPIC}-1" / "00000000000000000000.log"
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    disk = ShutTopic(TopicPartition(TRANSACTIONS_TOPIC, 0), OSError(errno.EIO, "no disk"))
    async with world(tmp_path, files=disk, transaction_state_log_num_partitions=count) as it:
        table, refused = it.coordinator.table, ErrorCode.NOT_COORDINATOR
        assert [each.transactional_id for each in it.table] == [names[2]]
        assert [table.find(names[number]) for number in (0, 1)] == [refused] * 2
        disk.failure = None
        damaged.write_bytes(sound)
        for _ in range(6):
            await it.pass_time(10_000)
            await it.loaded()
        assert {each.transactional_id for each in it.table} == {names[0], names[2]}
