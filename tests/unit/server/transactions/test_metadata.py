"""Transitions of a transaction for each request in each state, tested without a log."""

from dataclasses import replace
from typing import Final

import pytest
from tests.unit.server.transactions.worlds import ID, ONE, START_MS, TWO

from tidelog.error_codes import ErrorCode
from tidelog.server.transactions.metadata import (
    LAST_PRODUCER_EPOCH,
    AddRequest,
    EndRequest,
    InitRequest,
    ProducerRef,
    Step,
    TransactionMetadata,
    TransactionState,
    may_follow,
    plan_add,
    plan_end,
    plan_fencing,
    plan_init,
    verify,
)
from tidelog.types import INT16_MAX, INT32_MAX

PID: Final = 7
NEW_ID: Final = 8
LATER_MS: Final = START_MS + 500

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT


def known(state: TransactionState, epoch: int = 5, **more: int) -> TransactionMetadata:
    made = TransactionMetadata(
        transactional_id=ID,
        producer_id=PID,
        producer_epoch=epoch,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset()
        if state.name.startswith(("EMPTY", "COMPLETE"))
        else frozenset({ONE}),
        start_ms=START_MS,
        update_ms=START_MS,
    )
    return replace(made, **more)  # type: ignore[arg-type]  # all of these are numbers


def end(
    found: TransactionMetadata,
    epoch: int,
    *,
    commit: bool,
    version: int,
    is_pending: bool = False,
    pid: int = PID,
) -> Step:
    request = EndRequest(
        transactional_id=ID, producer=ProducerRef(pid, epoch), commit=commit, version=version
    )
    return plan_end(found, is_pending=is_pending, request=request, new_id=NEW_ID, now_ms=LATER_MS)


def init(
    found: TransactionMetadata, expected: ProducerRef | None = None, *, is_pending: bool = False
) -> Step:
    request = InitRequest(transactional_id=ID, timeout_ms=1000, expected=expected)
    return plan_init(found, is_pending=is_pending, request=request, new_id=NEW_ID, now_ms=LATER_MS)


def add(found: TransactionMetadata, epoch: int = 5, *, is_pending: bool = False) -> Step:
    request = AddRequest(
        transactional_id=ID, producer=ProducerRef(PID, epoch), partitions=frozenset({TWO})
    )
    return plan_add(found, is_pending=is_pending, request=request, now_ms=LATER_MS)


def told(step: Step) -> str:
    return step.name if isinstance(step, ErrorCode) else step.state.name


# Columns: state; results of commit and abort with the present epoch; results of commit and abort
# with the previous epoch. All rows are copied from a table of Kafka.
BUMPING: Final = [
    (EMPTY, "INVALID_TXN_STATE", "PREPARE_ABORT", "PRODUCER_FENCED", "PRODUCER_FENCED"),
    (ONGOING, "PREPARE_COMMIT", "PREPARE_ABORT", "PRODUCER_FENCED", "PRODUCER_FENCED"),
    (
        PREPARE_COMMIT,
        "PRODUCER_FENCED",
        "PRODUCER_FENCED",
        "CONCURRENT_TRANSACTIONS",
        "INVALID_TXN_STATE",
    ),
    (
        PREPARE_ABORT,
        "PRODUCER_FENCED",
        "PRODUCER_FENCED",
        "INVALID_TXN_STATE",
        "CONCURRENT_TRANSACTIONS",
    ),
    (COMPLETE_COMMIT, "INVALID_TXN_STATE", "PREPARE_ABORT", "NONE", "INVALID_TXN_STATE"),
    (COMPLETE_ABORT, "INVALID_TXN_STATE", "PREPARE_ABORT", "INVALID_TXN_STATE", "NONE"),
]


@pytest.mark.parametrize("row", BUMPING, ids=lambda row: row[0].name)
def test_each_row_of_the_end_with_version_2(
    row: tuple[TransactionState, str, str, str, str],
) -> None:
    found = known(row[0])
    said = [
        told(end(found, epoch, commit=commit, version=2))
        for epoch in (5, 4)
        for commit in (True, False)
    ]
    assert tuple(said) == row[1:]


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (EMPTY, "INVALID_TXN_STATE", "INVALID_TXN_STATE"),
        (ONGOING, "PREPARE_COMMIT", "PREPARE_ABORT"),
        (PREPARE_COMMIT, "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"),
        (PREPARE_ABORT, "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"),
        (COMPLETE_COMMIT, "NONE", "INVALID_TXN_STATE"),
        (COMPLETE_ABORT, "INVALID_TXN_STATE", "NONE"),
    ],
)
def test_each_row_of_the_classic_end(state: TransactionState, commit: str, abort: str) -> None:
    found = known(state)
    assert told(end(found, 5, commit=True, version=0)) == commit
    assert told(end(found, 5, commit=False, version=0)) == abort
    for epoch in (4, 6):
        assert end(found, epoch, commit=True, version=0) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [0, 2])
def test_an_end_by_another_producer_or_during_another_step_is_refused(version: int) -> None:
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    found = known(ONGOING)
    assert end(found, 5, commit=True, version=version, pid=99) is mapping
    assert end(found, 4, commit=True, version=version, pid=99) is mapping
    assert end(found, 5, commit=True, version=version, is_pending=True) is concurrent
    assert end(found, 9, commit=True, version=version) is ErrorCode.PRODUCER_FENCED


def test_the_epoch_moves_with_version_2_alone() -> None:
    bumped = end(known(ONGOING), 5, commit=True, version=2)
    classic = end(known(ONGOING), 5, commit=True, version=0)
    assert isinstance(bumped, TransactionMetadata)
    assert isinstance(classic, TransactionMetadata)
    assert (bumped.producer_epoch, bumped.last_producer_epoch) == (6, 5)
    assert (classic.producer_epoch, classic.last_producer_epoch) == (5, -1)
    assert bumped.partitions == classic.partitions == {ONE}
    assert bumped.completed(LATER_MS).state is COMPLETE_COMMIT
    assert bumped.completed(LATER_MS).producer_epoch == 6
    assert bumped.start_ms == START_MS


def test_used_up_epochs_continue_with_another_id() -> None:
    step = end(known(ONGOING, LAST_PRODUCER_EPOCH), LAST_PRODUCER_EPOCH, commit=True, version=2)
    assert isinstance(step, TransactionMetadata)
    assert (step.producer_id, step.producer_epoch, step.next_producer_id) == (
        PID,
        INT16_MAX,
        NEW_ID,
    )
    done = step.completed(LATER_MS)
    assert (done.producer_id, done.producer_epoch, done.next_producer_id) == (NEW_ID, 0, -1)
    assert done.previous_producer_id == PID
    assert done.last_producer_epoch == LAST_PRODUCER_EPOCH
    again = end(done, LAST_PRODUCER_EPOCH, commit=True, version=2)
    assert again is ErrorCode.NONE
    assert end(done, LAST_PRODUCER_EPOCH, commit=False, version=2) is ErrorCode.INVALID_TXN_STATE
    renewed = init(done, ProducerRef(PID, LAST_PRODUCER_EPOCH))
    assert isinstance(renewed, TransactionMetadata)
    assert renewed.producer_id == NEW_ID


def test_fencing_leaves_room_for_one_more_epoch() -> None:
    fenced = plan_fencing(known(ONGOING, LAST_PRODUCER_EPOCH), LATER_MS)
    assert (fenced.producer_id, fenced.producer_epoch) == (PID, INT16_MAX)
    assert plan_fencing(known(ONGOING, INT16_MAX), LATER_MS).producer_epoch == INT16_MAX
    done = fenced.completed(LATER_MS)
    step = init(done)
    assert isinstance(step, TransactionMetadata)
    assert (step.producer_id, step.producer_epoch) == (NEW_ID, 0)
    again = init(done, ProducerRef(PID, LAST_PRODUCER_EPOCH))
    assert isinstance(again, TransactionMetadata)
    assert (again.producer_id, again.producer_epoch) == (NEW_ID, 0)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT])
def test_requests_with_the_largest_epoch_are_fenced(state: TransactionState) -> None:
    """A transaction with the largest epoch could never end: its markers need the next epoch."""
    found = known(state, INT16_MAX)
    fenced = ProducerRef(PID, INT16_MAX)
    request = AddRequest(
        transactional_id=ID, producer=fenced, partitions=frozenset({ONE}), version=2
    )
    step = plan_add(found, is_pending=False, request=request, now_ms=LATER_MS)
    assert step is ErrorCode.PRODUCER_FENCED
    assert verify(found, fenced, [ONE]) == {ONE: ErrorCode.PRODUCER_FENCED}
    for version in (0, 2):
        said = end(found, INT16_MAX, commit=False, version=version)
        assert said is ErrorCode.PRODUCER_FENCED
    renewed = init(found, fenced)  # initializing the producer again succeeds
    assert isinstance(renewed, TransactionMetadata)
    assert (renewed.producer_id, renewed.producer_epoch) == (NEW_ID, 0)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (EMPTY, "EMPTY"),
        (ONGOING, "PREPARE_ABORT"),
        (PREPARE_COMMIT, "CONCURRENT_TRANSACTIONS"),
        (PREPARE_ABORT, "CONCURRENT_TRANSACTIONS"),
        (COMPLETE_COMMIT, "EMPTY"),
        (COMPLETE_ABORT, "EMPTY"),
    ],
)
def test_each_row_of_a_beginning(state: TransactionState, said: str) -> None:
    step = init(known(state))
    assert told(step) == said
    assert told(init(known(state), is_pending=True)) == "CONCURRENT_TRANSACTIONS"
    if isinstance(step, TransactionMetadata):
        assert step.producer_epoch == 6
        if state is not ONGOING:
            assert (step.timeout_ms, step.start_ms, step.partitions) == (1000, -1, frozenset())


@pytest.mark.parametrize(
    ("expected", "epoch", "last"),
    [
        (None, 6, -1),
        (ProducerRef(PID, 5), 6, 5),
        (ProducerRef(PID, 4), 5, 4),  # a retried request
        (ProducerRef(PID, 3), None, None),
        (ProducerRef(PID, 6), None, None),
        (ProducerRef(99, 5), None, None),
    ],
)
def test_init_with_an_expected_producer_succeeds_or_is_fenced(
    expected: ProducerRef | None, epoch: int | None, last: int | None
) -> None:
    step = init(known(COMPLETE_COMMIT, last_producer_epoch=4), expected)
    if epoch is None:
        assert step is ErrorCode.PRODUCER_FENCED
    else:
        assert isinstance(step, TransactionMetadata)
        assert (step.producer_epoch, step.last_producer_epoch) == (epoch, last)


def test_an_unknown_producer_with_an_expected_id_starts_with_epoch_0() -> None:
    step = init(known(EMPTY, -1), ProducerRef(99, 3))
    assert isinstance(step, TransactionMetadata)
    assert (step.producer_id, step.producer_epoch) == (PID, 0)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: TransactionState) -> None:
    step = add(known(state))
    assert isinstance(step, TransactionMetadata)
    assert (step.state, step.start_ms) == (ONGOING, LATER_MS)
    assert step.partitions == {TWO}


def test_further_partitions_leave_its_beginning_alone() -> None:
    step = add(known(ONGOING))
    assert isinstance(step, TransactionMetadata)
    assert (step.start_ms, step.update_ms) == (START_MS, LATER_MS)
    assert step.partitions == {ONE, TWO}
    assert add(step) is ErrorCode.NONE
    assert add(step, is_pending=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert add(known(PREPARE_COMMIT)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert add(known(PREPARE_ABORT)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert add(known(ONGOING), epoch=4) is ErrorCode.PRODUCER_FENCED


def test_a_partition_is_verified_while_no_end_is_decided() -> None:
    ref = ProducerRef(PID, 5)
    assert verify(known(ONGOING), ref, [ONE, TWO]) == {
        ONE: ErrorCode.NONE,
        TWO: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert verify(known(PREPARE_ABORT), ref, [ONE])[ONE] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert verify(known(ONGOING), ProducerRef(PID, 4), [ONE])[ONE] is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_not_initialized_is_fenced() -> None:
    found = known(EMPTY, -1)
    assert add(found, epoch=-1) is ErrorCode.PRODUCER_FENCED
    for version in (0, 2):
        assert end(found, -1, commit=False, version=version) is ErrorCode.PRODUCER_FENCED


def test_only_ongoing_transactions_time_out() -> None:
    for state in TransactionState:
        assert known(state).is_timed_out(START_MS + 60_001) is (state is ONGOING)
    assert not known(ONGOING).is_timed_out(START_MS + 60_000)
    assert not known(ONGOING, timeout_ms=INT32_MAX).is_timed_out(START_MS + 2 * INT32_MAX)


def test_no_decision_is_taken_back() -> None:
    for state in TransactionState:
        for before in (PREPARE_COMMIT, PREPARE_ABORT):
            completes = state is (COMPLETE_COMMIT if before is PREPARE_COMMIT else COMPLETE_ABORT)
            assert may_follow(state, before) is completes


def test_states_have_kafkas_names() -> None:
    assert [state.title for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


def test_partitions_are_added_only_after_the_end_of_the_transaction() -> None:
    """A client may get a new producer id before its transaction with the old id has ended."""
    for found, is_pending in ((known(PREPARE_COMMIT), False), (known(EMPTY), True)):
        request = AddRequest(
            transactional_id=ID, producer=ProducerRef(NEW_ID, 0), partitions=frozenset({TWO})
        )
        step = plan_add(found, is_pending=is_pending, request=request, now_ms=LATER_MS)
        assert step is ErrorCode.CONCURRENT_TRANSACTIONS
