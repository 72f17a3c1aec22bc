"""Comparison of logs: the offset at which their epochs diverge, and whether batches differ."""

import pytest

from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.remote.leader import EpochEnd, OwnEpoch, is_other_batch, parting_offset
from tidelog.types import NewRecord

OLDER = EpochEnd(-1, -1)
CASES: list[tuple[str, list[OwnEpoch], dict[int, EpochEnd], int, int | None]] = [
    ("nothing here", [], {}, 0, None),
    ("the same", [OwnEpoch(0, 0, 9)], {0: EpochEnd(0, 9)}, 0, None),
    ("behind", [OwnEpoch(0, 0, 9)], {0: EpochEnd(0, 30)}, 0, None),
    ("ahead in one epoch", [OwnEpoch(0, 0, 9)], {0: EpochEnd(0, 5)}, 0, 5),
    (
        "ahead in an older epoch",
        [OwnEpoch(0, 0, 9), OwnEpoch(2, 9, 12)],
        {0: EpochEnd(0, 5), 2: EpochEnd(2, 40)},
        0,
        5,
    ),
    (
        "an epoch that the leader never had",
        [OwnEpoch(0, 0, 9), OwnEpoch(1, 9, 12)],
        {0: EpochEnd(0, 9), 1: EpochEnd(0, 9)},
        0,
        9,
    ),
    (
        "an epoch newer than the leader's",
        [OwnEpoch(0, 0, 9), OwnEpoch(3, 9, 12)],
        {0: EpochEnd(0, 9), 3: OLDER},
        0,
        9,
    ),
    ("a leader that lost all", [OwnEpoch(2, 4, 9)], {2: OLDER}, 0, 4),
    # The leader has deleted the records below 20. For epochs older than its own first epoch, the
    # leader returns its first epoch entry.
    ("deleted at the leader", [OwnEpoch(0, 0, 9)], {0: EpochEnd(0, 20)}, 20, None),
    (
        "deleted inside an epoch",
        [OwnEpoch(0, 0, 9), OwnEpoch(1, 9, 30)],
        {0: EpochEnd(0, 20), 1: EpochEnd(1, 30)},
        20,
        None,
    ),
    # Compaction removed the end of epoch 0 in this log, and the start of epoch 1 in the leader's
    # log.
    (
        "compacted",
        [OwnEpoch(0, 0, 5), OwnEpoch(1, 12, 30)],
        {0: EpochEnd(0, 9), 1: EpochEnd(1, 30)},
        0,
        None,
    ),
    ("not answered", [OwnEpoch(0, 0, 9)], {}, 0, None),
]


@pytest.mark.parametrize(
    ("own", "leader", "start", "parts_at"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_the_offset_at_which_two_logs_diverge(
    own: list[OwnEpoch], leader: dict[int, EpochEnd], start: int, parts_at: int | None
) -> None:
    assert parting_offset(own, leader, start) == parts_at


def read_batch(value: bytes = b"v", base: int = 5, count: int = 2) -> RecordBatch:
    records = [NewRecord(value=value, timestamp=1)] * count
    return RecordBatch(build_batch(records, base_offset=base, leader_epoch=1), 0)


@pytest.mark.parametrize(
    ("theirs", "is_other"),
    [
        (read_batch(), False),
        (read_batch(b"w"), True),
        (read_batch(base=6, count=1), True),
        (read_batch(base=4, count=4), True),
        (read_batch(base=7), False),  # compaction removed our batch
    ],
)
def test_batches_at_one_place(theirs: RecordBatch, *, is_other: bool) -> None:
    assert is_other_batch(read_batch(), theirs) is is_other


def test_a_batch_that_compaction_made_smaller_is_no_other() -> None:
    records = [NewRecord(value=b"v", timestamp=1)]
    fewer = build_batch(
        records, base_offset=5, leader_epoch=1, offset_deltas=[1], last_offset_delta=1
    )
    assert not is_other_batch(read_batch(), RecordBatch(fewer, 0))
