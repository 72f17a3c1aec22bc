"""One partition of a share group, one test per rule. The log's batches have ten offsets each."""

import pytest
from tests.worlds.brokers.running import offset_states

from tidelog.error_codes import ErrorCode
from tidelog.server.shares.record_runs import (
    Acknowledgement,
    AckType,
    AcquiredRange,
    AcquireOptions,
    Limits,
    ReadBatches,
    RecordState,
    StateBatch,
)
from tidelog.server.shares.share_partition import Change, SharePartition

ANNA, BERT = "anna", "bert"
LOCK_MS = 1000
LIMITS = Limits(locks_max=200, deliveries_max=5, lock_ms=LOCK_MS)
ALL = AcquireOptions(records_max=1000, batch_records=1000)
NOW = 50_000


def partition_of(start: int = 0, *batches: StateBatch, limits: Limits = LIMITS) -> SharePartition:
    return SharePartition(start, batches, limits)


def of_ten(first: int, last: int) -> list[tuple[int, int]]:
    return [(base, base + 9) for base in range(first - first % 10, last + 1, 10)]


def give(
    known: SharePartition,
    last: int,
    wish: AcquireOptions = ALL,
    *,
    member: str = ANNA,
    now_ms: int = NOW,
    aborted: list[tuple[int, int]] | None = None,
) -> list[AcquiredRange]:
    """Offer the batches from the partition's fetch offset to `last`; return the acquired ranges."""
    at = known.fetch_offset
    offered = ReadBatches(fetch_offset=at, batches=of_ten(at, last), aborted=aborted or ())
    return known.acquire(member, offered, wish, now_ms)


def say(
    known: SharePartition,
    first: int,
    last: int,
    *types: AckType,
    member: str = ANNA,
    now_ms: int = NOW,
) -> Change:
    said = known.acknowledge(member, [Acknowledgement(first, last, types)], now_ms)
    assert isinstance(said, Change), said
    known.commit(said)
    return said


def next_deadline(known: SharePartition) -> int | None:
    return known.deadline_ms


def refusal(known: SharePartition, *said: Acknowledgement, member: str = ANNA) -> ErrorCode:
    before = offset_states(known)
    code = known.acknowledge(member, said, NOW)
    assert isinstance(code, ErrorCode)
    assert offset_states(known) == before
    return code


def test_undelivered_records_are_acquired_as_one_range() -> None:
    known = partition_of()
    assert give(known, 19) == [AcquiredRange(0, 19, 1)]
    assert (known.start, known.end, known.fetch_offset) == (0, 20, 20)


def test_acquired_records_are_not_given_to_another_member() -> None:
    known = partition_of()
    give(known, 9)
    assert give(known, 19, member=BERT) == [AcquiredRange(10, 19, 1)]


def test_acquired_ranges_end_at_batches_of_the_log() -> None:
    wish = AcquireOptions(records_max=1000, batch_records=15)
    assert give(partition_of(), 49, wish) == [
        AcquiredRange(0, 19, 1),
        AcquiredRange(20, 39, 1),
        AcquiredRange(40, 49, 1),
    ]


def test_the_last_batch_is_acquired_whole_beyond_the_maximum() -> None:
    assert give(partition_of(), 49, AcquireOptions(records_max=12)) == [AcquiredRange(0, 19, 1)]


def test_a_strict_wish_gets_no_record_more() -> None:
    known = partition_of()
    assert give(known, 49, AcquireOptions(records_max=12, is_strict=True)) == [
        AcquiredRange(0, 11, 1)
    ]
    assert give(known, 49, AcquireOptions(records_max=3, is_strict=True), member=BERT) == [
        AcquiredRange(12, 14, 1)
    ]


def test_a_maximum_of_zero_or_no_batches_acquires_no_records() -> None:
    assert give(partition_of(), 9, AcquireOptions(records_max=0)) == []
    assert partition_of().acquire(ANNA, ReadBatches(fetch_offset=0, batches=()), ALL, NOW) == []


def test_a_batch_that_begins_below_the_start_is_given_from_the_start() -> None:
    assert give(partition_of(13), 29) == [AcquiredRange(13, 29, 1)]


def test_no_more_than_the_locks_allow_are_in_flight() -> None:
    known = partition_of(limits=Limits(locks_max=20, lock_ms=LOCK_MS))
    assert give(known, 49) == [AcquiredRange(0, 19, 1)]
    assert not known.can_acquire
    assert give(known, 49, member=BERT) == []


def test_a_full_partition_gives_released_records_and_no_later_ones() -> None:
    known = partition_of(limits=Limits(locks_max=20, lock_ms=LOCK_MS))
    give(known, 49)
    say(known, 5, 6, AckType.RELEASE)
    assert known.can_acquire
    assert give(known, 49, member=BERT) == [AcquiredRange(5, 6, 2)]
    assert known.end == 20


def test_accepted_records_move_the_start() -> None:
    known = partition_of()
    give(known, 19)
    change = say(known, 0, 9, AckType.ACCEPT)
    assert change.batches == (StateBatch(0, 9, RecordState.ACKNOWLEDGED, 1),)
    assert (known.start, known.end) == (10, 20)


def test_the_start_waits_for_the_first_unfinished_record() -> None:
    known = partition_of()
    give(known, 19)
    say(known, 5, 9, AckType.ACCEPT)
    assert known.start == 0
    assert known.complete_count == 5
    say(known, 0, 4, AckType.REJECT)
    assert known.start == 10


def test_each_record_may_have_its_own_acknowledgement_type() -> None:
    known = partition_of()
    give(known, 9)
    accept, release, reject, gap = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.GAP
    change = say(known, 2, 7, accept, accept, release, reject, gap, accept)
    assert change.batches == (
        StateBatch(2, 3, RecordState.ACKNOWLEDGED, 1),
        StateBatch(4, 4, RecordState.AVAILABLE, 1),
        StateBatch(5, 5, RecordState.ARCHIVED, 1),
        StateBatch(6, 6, RecordState.ARCHIVED, 1),
        StateBatch(7, 7, RecordState.ACKNOWLEDGED, 1),
    )
    assert known.fetch_offset == 4


def test_released_records_are_given_again_with_a_higher_count() -> None:
    known = partition_of()
    give(known, 19)
    say(known, 3, 5, AckType.RELEASE)
    assert give(known, 19, member=BERT) == [AcquiredRange(3, 5, 2)]


def test_released_and_new_records_are_acquired_together() -> None:
    known = partition_of()
    give(known, 19)
    say(known, 0, 19, AckType.RELEASE)
    assert give(known, 39) == [AcquiredRange(0, 19, 2), AcquiredRange(20, 39, 1)]


def test_records_of_an_uncommitted_change_are_neither_acquired_nor_acknowledged() -> None:
    known = partition_of()
    give(known, 9)
    released = known.acknowledge(ANNA, [Acknowledgement(0, 9, [AckType.RELEASE])], NOW)
    assert isinstance(released, Change)
    assert known.fetch_offset == 10
    assert refusal(known, Acknowledgement(0, 9, [AckType.ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    known.commit(released)
    assert known.fetch_offset == 0


def test_a_rolled_back_acknowledgement_leaves_records_with_the_member() -> None:
    known = partition_of()
    give(known, 9)
    accepted = known.acknowledge(ANNA, [Acknowledgement(0, 4, [AckType.ACCEPT])], NOW)
    assert isinstance(accepted, Change)
    assert known.complete_count == 5
    known.roll_back(accepted)
    assert known.complete_count == 0
    say(known, 0, 9, AckType.ACCEPT)
    assert known.start == 10


def test_a_lock_that_runs_out_while_it_is_written_counts_when_that_fails() -> None:
    known = partition_of()
    give(known, 9)
    accepted = known.acknowledge(ANNA, [Acknowledgement(0, 9, [AckType.ACCEPT])], NOW)
    assert isinstance(accepted, Change)
    assert known.expire(NOW + LOCK_MS) == []
    assert next_deadline(known) is None
    known.roll_back(accepted)
    assert next_deadline(known) == NOW + LOCK_MS
    assert known.expire(NOW + LOCK_MS) == [StateBatch(0, 9, RecordState.AVAILABLE, 1)]


def test_locks_run_out_each_at_its_time() -> None:
    known = partition_of()
    give(known, 9)
    give(known, 19, now_ms=NOW + 10)
    assert known.deadline_ms == NOW + LOCK_MS
    assert known.expire(NOW + LOCK_MS - 1) == []
    assert known.expire(NOW + LOCK_MS) == [StateBatch(0, 9, RecordState.AVAILABLE, 1)]
    assert known.deadline_ms == NOW + 10 + LOCK_MS


def test_a_renewal_has_effect_at_once_and_writes_nothing() -> None:
    known = partition_of()
    give(known, 9)
    change = say(known, 2, 4, AckType.RENEW, now_ms=NOW + 500)
    assert change.batches == ()
    known.expire(NOW + LOCK_MS)
    assert known.fetch_offset == 0
    assert refusal(known, Acknowledgement(0, 4, [AckType.ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    say(known, 2, 4, AckType.ACCEPT)


@pytest.mark.parametrize("how", ["time", "release"])
def test_records_delivered_too_often_are_archived(how: str) -> None:
    known = partition_of(limits=Limits(deliveries_max=2, lock_ms=LOCK_MS))
    for _ in range(2):
        give(known, 9)
        if how == "time":
            known.expire(NOW + LOCK_MS)
        else:
            say(known, 0, 9, AckType.RELEASE)
    assert known.start == known.end == known.fetch_offset == 10


def test_records_of_a_member_that_leaves_are_available_to_others() -> None:
    known = partition_of()
    give(known, 9)
    give(known, 19, member=BERT)
    change = known.release(ANNA)
    assert change.batches == (StateBatch(0, 9, RecordState.AVAILABLE, 1),)
    known.commit(change)
    assert give(known, 9, member=BERT) == [AcquiredRange(0, 9, 2)]


def test_records_delivered_often_are_acquired_in_smaller_parts_and_finally_one_by_one() -> None:
    known = partition_of(limits=Limits(deliveries_max=6, lock_ms=LOCK_MS))
    sizes = []
    for _ in range(6):
        acquired = give(known, 19)
        sizes.append(sum(each.size for each in acquired))
        known.expire(NOW + LOCK_MS)
    assert sizes == [20, 20, 20, 10, 5, 1]


def test_with_two_deliveries_nothing_is_isolated() -> None:
    known = partition_of(limits=Limits(deliveries_max=2, lock_ms=LOCK_MS))
    give(known, 19)
    known.expire(NOW + LOCK_MS)
    assert give(known, 19) == [AcquiredRange(0, 19, 2)]


def test_offsets_that_the_log_does_not_have_delay_no_later_ones() -> None:
    known = partition_of()
    give(known, 9)
    offered = ReadBatches(fetch_offset=10, batches=[(30, 39)])
    assert known.acquire(ANNA, offered, ALL, NOW) == [AcquiredRange(30, 39, 1)]
    say(known, 0, 9, AckType.ACCEPT)
    assert known.start == 30


def test_released_records_removed_by_compaction_are_complete() -> None:
    known = partition_of()
    give(known, 9)
    say(known, 0, 9, AckType.RELEASE)
    offered = ReadBatches(fetch_offset=0, batches=[(10, 19)])
    assert known.acquire(ANNA, offered, ALL, NOW) == [AcquiredRange(10, 19, 1)]
    assert known.start == 10


def test_records_removed_by_compaction_change_the_position_though_none_is_acquired() -> None:
    """If the position stayed, a fetch that acquires nothing would wait for its whole wait time."""
    known = partition_of()
    give(known, 29)
    say(known, 10, 19, AckType.RELEASE)
    assert known.position == (0, 30, 10)
    offered = ReadBatches(fetch_offset=10, batches=[(20, 29)])
    assert known.acquire(BERT, offered, ALL, NOW) == []
    assert known.position == (0, 30, 30)


def test_aborted_batches_are_skipped() -> None:
    known = partition_of()
    assert give(known, 39, aborted=[(10, 19)]) == [AcquiredRange(0, 9, 1), AcquiredRange(20, 39, 1)]
    say(known, 0, 9, AckType.ACCEPT)
    assert known.start == 20


def test_the_start_moves_past_aborted_records() -> None:
    known = partition_of()
    assert give(known, 9, aborted=[(0, 9)]) == []
    assert known.start == known.fetch_offset == 10


def test_the_start_offset_follows_the_log_start() -> None:
    known = partition_of()
    give(known, 19)
    assert known.move_start(5)
    assert not known.move_start(5)
    assert (known.start, known.end) == (5, 20)
    change = say(known, 0, 9, AckType.ACCEPT)
    assert change.batches == (StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1),)
    assert known.start == 10


def test_the_start_offset_moves_past_records_completed_above_the_log_start() -> None:
    known = partition_of()
    give(known, 19)
    say(known, 5, 9, AckType.ACCEPT)
    assert known.start == 0
    assert known.move_start(5)
    assert (known.start, known.end) == (10, 20)


def test_a_log_start_above_the_end_leaves_no_records() -> None:
    known = partition_of()
    give(known, 19)
    assert known.move_start(50)
    assert (known.start, known.end, known.fetch_offset) == (50, 50, 50)
    assert say(known, 0, 9, AckType.ACCEPT).batches == ()


def test_a_change_of_meanwhile_deleted_records_has_no_effect() -> None:
    known = partition_of()
    give(known, 9)
    accepted = known.acknowledge(ANNA, [Acknowledgement(0, 9, [AckType.ACCEPT])], NOW)
    assert isinstance(accepted, Change)
    known.move_start(30)
    known.commit(accepted)
    assert (known.start, known.end) == (30, 30)


@pytest.mark.parametrize(
    ("first", "last", "types", "code"),
    [
        (0, 9, [5], ErrorCode.INVALID_REQUEST),
        (0, 9, [-1], ErrorCode.INVALID_REQUEST),
        (0, 20, [1], ErrorCode.INVALID_REQUEST),
        (20, 29, [1], ErrorCode.INVALID_REQUEST),
        (9, 10, [1], ErrorCode.INVALID_RECORD_STATE),
        (10, 19, [1], ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_an_impossible_acknowledgement_is_refused(
    first: int, last: int, types: list[int], code: ErrorCode
) -> None:
    known = partition_of()
    give(known, 9)
    give(known, 19, member=BERT)
    assert refusal(known, Acknowledgement(first, last, types)) == code


def test_acknowledgements_of_records_that_were_not_acquired_are_refused() -> None:
    said = Acknowledgement(0, 9, [AckType.ACCEPT])
    assert refusal(partition_of(), said) == ErrorCode.INVALID_RECORD_STATE


def test_acknowledgements_beyond_completed_records_are_refused() -> None:
    known = partition_of()
    give(known, 9)
    say(known, 0, 9, AckType.ACCEPT)
    said = Acknowledgement(0, 30, [AckType.ACCEPT])
    assert refusal(known, said) == ErrorCode.INVALID_RECORD_STATE


def test_one_invalid_acknowledgement_refuses_all() -> None:
    known = partition_of()
    give(known, 19)
    good = Acknowledgement(0, 9, [AckType.ACCEPT])
    twice = Acknowledgement(9, 12, [AckType.ACCEPT])
    assert refusal(known, good, twice) == ErrorCode.INVALID_RECORD_STATE
    say(known, 0, 19, AckType.ACCEPT)
    assert known.start == 20


def test_a_repeated_acknowledgement_is_accepted_without_a_change() -> None:
    known = partition_of()
    give(known, 19)
    say(known, 0, 9, AckType.ACCEPT)
    assert say(known, 0, 9, AckType.ACCEPT).batches == ()


def test_equal_neighbours_are_kept_as_one_run() -> None:
    known = partition_of()
    give(known, 99)
    for offset in range(50, 100):
        say(known, offset, offset, AckType.ACCEPT)
    assert len(known._runs) == 2
