"""Histories must reveal faults planted in brokers; otherwise their success proves nothing."""

from collections.abc import Sequence
from itertools import count

import pytest
from tests.histories.checker import Fault
from tests.histories.test_simulated import faults, histories

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.fetch import AbortedTransaction
from tidelog.server.groups.committed_offsets import PendingOffsets
from tidelog.server.partitions import fetch
from tidelog.server.partitions.partition import Partition, TransactionEnd
from tidelog.server.partitions.segment_reads import ByteRange, SegmentBytes
from tidelog.server.transactions import metadata as steps
from tidelog.server.transactions.markers import PartitionMarkers
from tidelog.storage.log import producers
from tidelog.storage.segment.segment import Segment
from tidelog.types import TopicPartition

SEEDS = 6


def found() -> set[Fault]:
    return faults(histories(0, SEEDS)[0])


def test_a_broker_that_shows_open_transactions_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = property(lambda partition: partition.high_watermark)
    monkeypatch.setattr(Partition, "last_stable_offset", shown)
    assert {Fault.DIRTY_READ, Fault.ABORTED_READ} & found()


def test_a_broker_that_forgets_offsets_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    take = PendingOffsets.take

    def forget(
        pending: PendingOffsets, number: int, producer_id: int, *, commit: bool
    ) -> list[object]:
        take(pending, number, producer_id, commit=commit)
        return []

    monkeypatch.setattr(PendingOffsets, "take", forget)
    assert Fault.COPIED_WRONG in found()


def test_a_broker_that_writes_a_wrong_marker_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    end = PartitionMarkers._end

    def err(markers: PartitionMarkers, name: TopicPartition, said: TransactionEnd) -> object:
        is_wrong = name.partition == 1 and name.topic.startswith("in-")
        return end(markers, name, said._replace(commit=False) if is_wrong else said)

    monkeypatch.setattr(PartitionMarkers, "_end", err)
    assert {Fault.LOST_WRITE, Fault.INTERMEDIATE_READ} <= found()


def test_a_broker_that_commits_aborted_transactions_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = PartitionMarkers._end

    def err(markers: PartitionMarkers, name: TopicPartition, said: TransactionEnd) -> object:
        return end(markers, name, said._replace(commit=True))

    monkeypatch.setattr(PartitionMarkers, "_end", err)
    assert Fault.ABORTED_READ in found()


def test_a_broker_that_names_no_aborted_transactions_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "aborted_transactions", lambda *_: [])
    assert Fault.ABORTED_READ in found()


def test_a_broker_that_names_committed_transactions_as_aborted_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tell, numbers = fetch.aborted_transactions, count(1)

    def err(
        segments: Sequence[Segment], offset: int, found: ByteRange, source: SegmentBytes
    ) -> list[AbortedTransaction]:
        if next(numbers) % 3:
            return tell(segments, offset, found, source)
        return [AbortedTransaction(producer_id=number, first_offset=0) for number in range(100)]

    monkeypatch.setattr(fetch, "aborted_transactions", err)
    assert Fault.SKIPPED in found()


def test_a_broker_that_fences_no_producer_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "check_producer", lambda *_: ErrorCode.NONE)
    monkeypatch.setattr(producers, "check_epoch", lambda *_: None)
    # 20 seeds don't always find the fault, because threads decide the order of some steps.
    assert any(Fault.FENCED_WRITE in faults(histories(first, 20)[0]) for first in range(0, 100, 20))
