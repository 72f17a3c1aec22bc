"""A log of transactional ids that fails while nobody writes to it, and is opened anew."""

import os
from pathlib import Path

import pytest
from tests.faults.hooked import FailingDisk
from tests.unit.server.loops import on_a_loop
from tests.unit.server.transactions.worlds import ID, ONE, TWO, world

from tidelog.errors import StorageFailure
from tidelog.server.topics import TRANSACTIONS_TOPIC
from tidelog.server.transactions.metadata import TransactionState
from tidelog.server.transactions.seam import ErrorCode


@on_a_loop
async def test_what_a_log_reopened_beside_has_not_does_not_hold(tmp_path: Path) -> None:
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
        os.truncate(partition.log.active.log_path, synced_bytes)  # pages that never got there
        partition.use(it.node.log_dir.reopen(TRANSACTIONS_TOPIC, 0))
        await it.loaded()
        assert it.known().state is TransactionState.EMPTY
        assert it.known().partitions == frozenset()
        assert await it.add(producer, TWO) is ErrorCode.NONE
