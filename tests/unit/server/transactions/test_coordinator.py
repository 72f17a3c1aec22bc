"""The coordinator on its log: responses, epochs, timeouts, waits and failures."""

import asyncio
from pathlib import Path
from typing import Final

from tests.faults.hooked import FailingDisk
from tests.unit.server.loops import on_a_loop, turns
from tests.unit.server.transactions.worlds import ID, ONE, TIMEOUT_MS, TWO, world
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.waiting import turn_until

from tidelog.error_codes import ErrorCode
from tidelog.server.coordinator.state_topic import KeyValue
from tidelog.server.transactions.coordinator import ProducerAnswer
from tidelog.server.transactions.metadata import LAST_PRODUCER_EPOCH, ProducerRef, TransactionState
from tidelog.server.transactions.state_topic import encode_key, encode_value
from tidelog.types import TRANSACTIONS_TOPIC, TopicPartition

CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
ELSEWHERE: Final = TopicPartition("ships", 0)


@on_a_loop
async def test_a_transaction_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        producer = await it.init()
        assert producer.code is ErrorCode.NONE
        assert producer.producer_epoch == 0
        assert it.known().state is TransactionState.EMPTY
        assert await it.add(producer, ONE) is ErrorCode.NONE
        assert await it.add(producer, TWO, ONE) is ErrorCode.NONE
        assert it.known().state is TransactionState.ONGOING
        assert it.known().partitions == {ONE, TWO}
        said = await it.end(producer, commit=True)
        assert said == producer
        await it.ended()
        assert it.known().state is TransactionState.COMPLETE_COMMIT
        assert it.known().partitions == frozenset()
        numbers = producer.producer_id, 0, True
        assert it.markers() == [(ONE, *numbers), (TWO, *numbers)]
        assert (await it.end(producer, commit=True)).code is ErrorCode.NONE
        assert (await it.end(producer, commit=False)).code is ErrorCode.INVALID_TXN_STATE


@on_a_loop
async def test_version_2_ends_each_transaction_with_an_epoch_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        producer = await it.init()
        assert await it.add(producer, ONE, version=2) is ErrorCode.NONE
        later = await it.end(producer, commit=False, version=2)
        assert later == (ErrorCode.NONE, producer.producer_id, 1)
        await it.ended()
        assert it.markers() == [(ONE, producer.producer_id, 1, False)]
        assert await it.end(producer, commit=False, version=2) == later  # a retried request
        assert (await it.end(producer, commit=True, version=2)).code is ErrorCode.INVALID_TXN_STATE
        assert await it.add(producer, ONE, version=2) is ErrorCode.PRODUCER_FENCED
        nothing = await it.end(later, commit=False, version=2)  # an abort without a transaction
        assert nothing == (ErrorCode.NONE, producer.producer_id, 2)
        await it.ended()
        assert len(it.markers()) == 1


@on_a_loop
async def test_used_up_epochs_begin_again_with_another_id(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        producer = await it.init()
        used_up = it.known().renewed(
            producer_id=producer.producer_id,
            epoch=LAST_PRODUCER_EPOCH,
            last_epoch=-1,
            timeout_ms=TIMEOUT_MS,
            now_ms=0,
        )
        record = KeyValue(encode_key(ID), encode_value(used_up))
        assert it.coordinator.topic.append_now(0, [record]).value is ErrorCode.NONE
    async with world(tmp_path) as it:
        last = ProducerAnswer(ErrorCode.NONE, producer.producer_id, LAST_PRODUCER_EPOCH)
        assert await it.add(last, ONE, version=2) is ErrorCode.NONE
        later = await it.end(last, commit=True, version=2)
        assert later.code is ErrorCode.NONE
        assert later.producer_epoch == 0
        assert later.producer_id != producer.producer_id
        await it.ended()
        assert it.markers() == [(ONE, producer.producer_id, LAST_PRODUCER_EPOCH + 1, True)]
        assert (it.known().producer_id, it.known().producer_epoch) == later[1:]
        assert await it.end(last, commit=True, version=2) == later  # a retried request
        assert await it.add(later, ONE, version=2) is ErrorCode.NONE


@on_a_loop
async def test_another_instance_aborts_the_open_transaction_and_fences_the_producer(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as it:
        old = await it.init()
        assert await it.add(old, ONE) is ErrorCode.NONE
        assert (await it.init()).code is CONCURRENT
        await it.ended()
        assert it.known().state is TransactionState.COMPLETE_ABORT
        new = await it.init()
        assert new == (ErrorCode.NONE, old.producer_id, 2)
        assert it.markers() == [(ONE, old.producer_id, 1, False)]
        assert await it.add(old, ONE) is ErrorCode.PRODUCER_FENCED
        assert (await it.end(old, commit=True)).code is ErrorCode.PRODUCER_FENCED
        assert (await it.init(expected=old)).code is ErrorCode.PRODUCER_FENCED
        again = await it.init(expected=new)
        assert again == (ErrorCode.NONE, old.producer_id, 3)
        assert await it.init(expected=new) == again  # a retried request


@on_a_loop
async def test_a_transaction_is_aborted_when_its_time_is_over(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        producer = await it.init()
        assert await it.add(producer, ONE) is ErrorCode.NONE
        await it.pass_time(TIMEOUT_MS)
        assert it.known().state is TransactionState.ONGOING
        await it.pass_time(20_000)
        assert it.known().state is TransactionState.COMPLETE_ABORT
        assert it.markers() == [(ONE, producer.producer_id, 1, False)]
        assert (await it.end(producer, commit=True)).code is ErrorCode.PRODUCER_FENCED
        # The same producer may continue, because no other instance was initialized.
        assert await it.init(expected=producer) == (ErrorCode.NONE, producer.producer_id, 1)


@on_a_loop
async def test_unused_transactional_ids_expire(tmp_path: Path) -> None:
    async with world(tmp_path, transactional_id_expiration_ms="100000000") as it:
        first = await it.init(transactional_id="unused")
        await it.begun()
        await it.pass_time(99_000_000)
        producer = await it.begun()
        assert {each.transactional_id for each in it.table} == {"unused", ID}
        await it.pass_time(8_000_000)
        assert [each.transactional_id for each in it.table] == [ID]
        again = await it.init(transactional_id="unused")
        assert again.producer_id != first.producer_id
        assert again.producer_epoch == 0
        assert await it.add(producer, ONE) is ErrorCode.NONE
        await it.add(first, ONE, transactional_id="unused")
    async with world(tmp_path) as it:
        assert {each.transactional_id for each in it.table} == {"unused", ID}


@on_a_loop
async def test_invalid_requests_use_up_no_producer_id(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        nobody = ProducerAnswer(ErrorCode.NONE, 77, 0)
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await it.init(transactional_id="")).code is ErrorCode.INVALID_REQUEST
        badly_timed = {(await it.init(timeout_ms=each)).code for each in (-1, 0, 900_001)}
        assert badly_timed == {ErrorCode.INVALID_TRANSACTION_TIMEOUT}
        assert await it.add(nobody, ONE) is mapping
        assert await it.add(nobody, ONE, transactional_id="") is ErrorCode.INVALID_REQUEST
        assert (await it.end(nobody, commit=True)).code is mapping
        producer = await it.init()
        assert (await it.end(nobody, commit=True, version=2)).code is mapping
        ends = {(await it.end(producer, commit=commit)).code for commit in (True, False)}
        assert ends == {ErrorCode.INVALID_TXN_STATE}
        assert (await it.end(nobody, commit=True, transactional_id="nobody")).code is mapping
        assert (await it.init(transactional_id="another")).producer_id == producer.producer_id + 1
        assert it.markers() == []


@on_a_loop
async def test_partitions_are_verified_or_added(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        producer = await it.init()
        ask = it.coordinator
        numbers = producer.producer_id, producer.producer_epoch
        assert await ask.verify_or_add(ID, *numbers, [ONE], add=False) == {
            ONE: ErrorCode.TRANSACTION_ABORTABLE
        }
        assert await ask.verify_or_add(ID, *numbers, [ONE], add=True) == {ONE: ErrorCode.NONE}
        assert await ask.verify_or_add(ID, *numbers, [ONE, TWO], add=False) == {
            ONE: ErrorCode.NONE,
            TWO: ErrorCode.TRANSACTION_ABORTABLE,
        }
        fenced = {ONE: ErrorCode.PRODUCER_FENCED}
        assert await ask.verify_or_add(ID, producer.producer_id, 5, [ONE], add=False) == fenced
        unknown = {ONE: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert await ask.verify_or_add("nobody", 1, 0, [ONE], add=False) == unknown
        assert await ask.verify_or_add("nobody", 1, 0, [ONE], add=True) == unknown
        assert it.known().client_version == 2


@on_a_loop
async def test_adding_waits_a_little_for_the_end_before(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        holds = it.node.partitions.holds
        producer = await it.init()
        await it.add(producer, ONE, version=2)
        async with holds.hold([ONE.topic], stops_appends=True):  # delays the marker
            later = await it.end(producer, commit=True, version=2)
            adding = asyncio.ensure_future(it.add(later, TWO, version=2))
            await turns()
            assert not adding.done()
        assert await adding is ErrorCode.NONE
        assert it.known().partitions == {TWO}
        async with holds.hold([ONE.topic], stops_appends=True):
            last = await it.end(later, commit=True, version=2)
            adding = asyncio.ensure_future(it.add(last, TWO, version=2))
            await it.pass_time(1000)
            assert await adding is CONCURRENT
            assert (await it.init()).code is CONCURRENT
            assert (await it.end(later, commit=True, version=2)).code is CONCURRENT
            found = it.coordinator.table.find(ID)
            assert not isinstance(found, ErrorCode)
            assert found is not None
            assert not found.waiting
        await it.ended()


@on_a_loop
async def test_an_unwritten_decision_does_not_apply(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with world(tmp_path, files=disk) as it:
        producer = await it.init()
        await it.add(producer, ONE)
        disk.is_failing = True
        assert (await it.end(producer, commit=True)).code is ErrorCode.NOT_COORDINATOR
        assert await it.add(producer, ONE) is ErrorCode.NOT_COORDINATOR
        assert it.markers() == []
        assert it.coordinator.table.find(ID) is ErrorCode.NOT_COORDINATOR
        disk.is_failing = False
        opened = it.node.log_dir.reopen(TRANSACTIONS_TOPIC, 0)
        it.node.partitions.get(TRANSACTIONS_TOPIC, 0).use(opened)
        await it.pass_time(20_000)  # the timeout passes without any request
        await it.loaded()
        assert it.known().state is TransactionState.ONGOING
        assert (await it.end(producer, commit=True)).code is ErrorCode.NONE
        await it.ended()
        assert it.known().state is TransactionState.COMPLETE_COMMIT


@on_a_loop
async def test_with_fsync_a_decision_has_effect_when_it_is_synced(tmp_path: Path) -> None:
    async with world(tmp_path, tidelog_durability="fsync") as it:
        producer = await it.init()
        first = asyncio.ensure_future(it.add(producer, ONE))
        second = asyncio.ensure_future(it.add(producer, TWO))
        assert await first is ErrorCode.NONE
        assert await second is ErrorCode.NONE
        ending = asyncio.ensure_future(it.end(producer, commit=True))
        await asyncio.sleep(0)
        assert it.markers() == []
        assert (await ending).code is ErrorCode.NONE
        await it.ended()
        assert len(it.markers()) == 2


@on_a_loop
async def test_the_commit_of_a_cancelled_request_is_completed(tmp_path: Path) -> None:
    async with world(tmp_path, tidelog_durability="fsync") as it:
        producer = await it.init()
        await it.add(producer, ONE)
        ending = asyncio.ensure_future(it.end(producer, commit=True))
        await asyncio.sleep(0)
        ending.cancel()
        await it.ended()
        assert it.known().state is TransactionState.COMPLETE_COMMIT


@on_a_loop
async def test_a_deleted_log_removes_all_ids(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        producer = await it.init()
        delete_topic(it.node, TRANSACTIONS_TOPIC)
        assert not it.table
        assert await it.add(producer, ONE) is ErrorCode.NOT_COORDINATOR
        assert await it.coordinator.topic.ensure_topic() is ErrorCode.NONE
        assert (await it.init()).code is ErrorCode.NONE


@on_a_loop
async def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.init()
    path = tmp_path / f"{TRANSACTIONS_TOPIC}-0" / "00000000000000000000.log"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    async with world(tmp_path) as it:
        assert it.coordinator.table.find(ID) is ErrorCode.NOT_COORDINATOR


@on_a_loop
async def test_a_record_that_cannot_be_read_is_never_passed_over(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.init()
        value = bytearray(encode_value(it.known()))
        value[:2] = (9).to_bytes(2, "big")
        said = it.coordinator.topic.append_now(0, [KeyValue(encode_key(ID), bytes(value))])
        assert said.value is ErrorCode.NONE
    async with world(tmp_path) as it:
        assert it.coordinator.table.find(ID) is ErrorCode.NOT_COORDINATOR


@on_a_loop
async def test_each_start_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    epochs: list[int] = []
    for _ in range(3):
        async with world(tmp_path) as it:
            producer = await it.begun()
            await it.add(producer, ONE)
            await it.end(producer, commit=True)
            await it.ended()
            epochs = it.coordinator_epochs()
    assert len(epochs) == 3
    assert epochs == sorted(set(epochs))


@on_a_loop
async def test_many_ids_over_many_partitions_of_the_log(tmp_path: Path) -> None:
    count = "5"
    names = [f"id {number}" for number in range(50)]
    async with world(tmp_path, transaction_state_log_num_partitions=count) as it:
        producers = {name: await it.init(transactional_id=name) for name in names}
        for name, producer in producers.items():
            await it.add(producer, ONE, transactional_id=name)
    async with world(tmp_path, transaction_state_log_num_partitions=count) as it:
        assert {each.transactional_id for each in it.table} == set(names)
        for name, producer in producers.items():
            assert (await it.end(producer, commit=True, transactional_id=name)).code == 0
        await turn_until(lambda: all(each.is_ended for each in it.table))
        ref = ProducerRef(*producers[names[0]][1:])
        assert it.coordinator.verify(names[0], ref, [ONE])[ONE] is ErrorCode.TRANSACTION_ABORTABLE
