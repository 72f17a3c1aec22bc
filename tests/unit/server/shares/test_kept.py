"""The state of share groups after several writes, compared with a model of each offset's state."""

from itertools import pairwise
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.worlds.brokers.running import offset_states

from tidelog.errors import CorruptMessage
from tidelog.protocol.messages.state_records import SHARE_SNAPSHOT_VALUE, ShareSnapshotValue
from tidelog.protocol.messages.state_records import StateBatch as WrittenBatch
from tidelog.server.shares.record_runs import Limits, RecordState, StateBatch
from tidelog.server.shares.share_partition import SharePartition
from tidelog.server.shares.state_topic import (
    SNAPSHOT,
    UNCHANGED,
    UPDATE,
    PersistedState,
    ShareKey,
    Update,
    combined,
    forget_record,
    read_key,
    read_snapshot,
    read_update,
    snapshot_record,
    update_record,
)

KEY = ShareKey("workers", UUID(int=7), 3)
STATES = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@st.composite
def state_batches(draw: st.DrawFn) -> list[StateBatch]:
    found, at = [], draw(st.integers(0, 10))
    for _ in range(draw(st.integers(0, 6))):
        last = at + draw(st.integers(0, 8))
        state, count = draw(st.sampled_from(STATES)), draw(st.integers(1, 3))
        found.append(StateBatch(at, last, state, count))
        at = last + 1 + draw(st.integers(0, 3))
    return found


def by_offset(found: list[StateBatch]) -> dict[int, tuple[RecordState, int]]:
    return {
        offset: (each.state, each.count)
        for each in found
        for offset in range(each.first, each.last + 1)
    }


@given(before=state_batches(), later=state_batches(), start=st.integers(0, 40))
def test_later_writes_override_earlier_ones(
    before: list[StateBatch], later: list[StateBatch], start: int
) -> None:
    found = list(combined(before, later, start))
    expected = by_offset(before) | by_offset(later)
    assert by_offset(found) == {at: each for at, each in expected.items() if at >= start}
    for one, two in pairwise(found):
        assert one.last < two.first
        is_one = one.last + 1 == two.first and (one.state, one.count) == (two.state, two.count)
        assert not is_one


@given(kept=state_batches(), start=st.integers(-1, 40), epoch=st.integers(0, 9))
def test_a_snapshot_has_the_whole_state(kept: list[StateBatch], start: int, epoch: int) -> None:
    state = PersistedState(
        snapshot_epoch=epoch,
        state_epoch=epoch + 1,
        leader_epoch=2,
        start=start,
        complete_count=5,
        batches=tuple(kept),
        created_ms=77,
    )
    record = snapshot_record(KEY, state, 99)
    assert record.value is not None
    assert read_key(record.key) == (SNAPSHOT, KEY)
    assert read_snapshot(record.value) == state


@given(changed=state_batches())
def test_an_update_has_the_changed_states(changed: list[StateBatch]) -> None:
    update = Update(UNCHANGED, 3, changed, 4)
    record = update_record(KEY, 6, update)
    assert record.value is not None
    assert read_key(record.key) == (UPDATE, KEY)
    assert read_update(record.value) == (6, update)
    assert PersistedState(start=12).after(update).start == 12


def test_a_record_without_a_value_forgets() -> None:
    record = forget_record(KEY)
    assert (read_key(record.key), record.value) == ((SNAPSHOT, KEY), None)


def test_keys_of_other_kinds_are_stepped_over() -> None:
    assert read_key(b"\0\5more") is None
    with pytest.raises(CorruptMessage):
        read_key(None)


@pytest.mark.parametrize(
    "batch",
    [(0, 4, 1, 1), (0, 4, 3, 1), (5, 4, 0, 1), (-1, 4, 0, 1)],
    ids=["acquired", "unknown", "backwards", "negative"],
)
def test_an_impossible_state_batch_is_damage(batch: tuple[int, int, int, int]) -> None:
    first, last, state, count = batch
    written = WrittenBatch(
        first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
    )
    value = ShareSnapshotValue(
        snapshot_epoch=0,
        state_epoch=0,
        leader_epoch=0,
        start_offset=0,
        create_timestamp=0,
        write_timestamp=0,
        state_batches=[written],
    )
    with pytest.raises(CorruptMessage):
        read_snapshot(SHARE_SNAPSHOT_VALUE.write(0, value))


def test_a_share_partition_is_named_as_kafka_names_it() -> None:
    assert KEY.text == "workers:AAAAAAAAAAAAAAAAAAAABw:3"


def test_stored_states_are_restored_and_other_offsets_are_available() -> None:
    kept = [
        StateBatch(0, 6, RecordState.ACKNOWLEDGED, 1),
        StateBatch(10, 14, RecordState.AVAILABLE, 3),
        StateBatch(17, 19, RecordState.ACKNOWLEDGED, 1),
    ]
    known = SharePartition(5, kept, Limits())
    assert (known.start, known.end, known.fetch_offset) == (7, 20, 7)
    assert known.complete_count == 3
    assert offset_states(known)[:2] == [
        StateBatch(7, 9, RecordState.AVAILABLE, 0),
        StateBatch(10, 14, RecordState.AVAILABLE, 3),
    ]
