"""Leader epochs: Kafka's rules for assignment, truncation and lookup."""

from pathlib import Path

import pytest
from tests.worlds.directories.logs import new_log, path_of, put, reopen, write

from tidelog.env import os_env
from tidelog.errors import CorruptFile, InvalidRequest
from tidelog.storage.files import LEADER_EPOCH_CHECKPOINT_FILE
from tidelog.storage.log.leader_epochs import LeaderEpochs, read_next_epoch
from tidelog.types import NO_LEADER_EPOCH

ENTRIES = ((2, 0), (4, 10), (7, 25))


def epochs() -> LeaderEpochs:
    return LeaderEpochs(ENTRIES)


def test_the_newest_epoch_again_changes_nothing() -> None:
    known = epochs()
    assert not known.assign(7, 25)
    assert not known.assign(7, 99)
    assert known.entries == ENTRIES


@pytest.mark.parametrize(
    ("data", "expected"),
    [(None, 0), (b"0\n0\n", 0), (b"0\n2\n1 0\n3 7\n", 4), (b"0\n2\n3 7\n", NO_LEADER_EPOCH)],
)
def test_the_next_epoch_of_a_partition_that_is_not_open(
    tmp_path: Path, data: bytes | None, expected: int
) -> None:
    if data is not None:
        (tmp_path / LEADER_EPOCH_CHECKPOINT_FILE).write_bytes(data)
    assert read_next_epoch(os_env().files, str(tmp_path)) == expected


def test_a_newer_epoch_is_added() -> None:
    known = epochs()
    assert known.assign(8, 30)
    assert known.entries == (*ENTRIES, (8, 30))
    assert known.latest == (8, 30)


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (8, 20, ((2, 0), (4, 10), (8, 20))),
        (8, 25, ((2, 0), (4, 10), (8, 25))),
        (8, 5, ((2, 0), (8, 5))),
        (3, 30, ((2, 0), (3, 30))),
        (4, 12, ((2, 0), (4, 12))),
        (7, 20, ((2, 0), (4, 10), (7, 20))),
        (0, 0, ((0, 0),)),
    ],
)
def test_entries_that_do_not_stay_below_a_new_one_go(
    epoch: int, start: int, expected: tuple[tuple[int, int], ...]
) -> None:
    known = epochs()
    assert known.assign(epoch, start)
    assert known.entries == expected


def test_negative_epochs_and_offsets_are_refused() -> None:
    known = epochs()
    for epoch, start in ((-1, 0), (9, -1)):
        with pytest.raises(InvalidRequest):
            known.assign(epoch, start)
    assert known.entries == ENTRIES


@pytest.mark.parametrize(
    ("end", "expected"),
    [(26, ENTRIES), (25, ENTRIES[:2]), (11, ENTRIES[:2]), (10, ENTRIES[:1]), (0, ())],
)
def test_truncation_from_the_end(end: int, expected: tuple[tuple[int, int], ...]) -> None:
    known = epochs()
    assert known.truncate_from_end(end) == (expected != ENTRIES)
    assert known.entries == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, ENTRIES),
        (5, ((2, 5), (4, 10), (7, 25))),
        (10, ((4, 10), (7, 25))),
        (24, ((4, 24), (7, 25))),
        (99, ((7, 99),)),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_of_the_new_start(
    start: int, expected: tuple[tuple[int, int], ...]
) -> None:
    known = epochs()
    assert known.truncate_from_start(start) == (expected != ENTRIES)
    assert known.entries == expected


def test_truncation_from_the_start_below_all_changes_nothing() -> None:
    known = LeaderEpochs([(3, 10)])
    assert not known.truncate_from_start(5)
    assert known.entries == ((3, 10),)


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, 2), (9, 2), (10, 4), (24, 4), (25, 7), (10**12, 7)]
)
def test_the_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert epochs().epoch_for(offset) == epoch


def test_offsets_below_the_first_epoch_have_none() -> None:
    assert LeaderEpochs([(3, 10)]).epoch_for(9) is None
    assert LeaderEpochs().epoch_for(0) is None


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (1, (1, 0)),
        (2, (2, 10)),
        (3, (2, 10)),
        (4, (4, 25)),
        (6, (4, 25)),
        (7, (7, 40)),
        (8, (-1, -1)),
    ],
)
def test_the_end_offset_of_an_epoch(epoch: int, expected: tuple[int, int]) -> None:
    assert epochs().end_offset_for(epoch, 40) == expected


def test_without_epochs_there_is_no_end_offset() -> None:
    assert LeaderEpochs().end_offset_for(0, 40) == (-1, -1)


def test_clearing_forgets_all() -> None:
    known = epochs()
    known.clear()
    assert known.latest is None
    assert known.latest_epoch == -1


def test_the_checkpoint_is_kafkas_text() -> None:
    text = b"0\n3\n2 0\n4 10\n7 25\n"
    assert epochs().encode() == text
    assert LeaderEpochs.decode(text).entries == ENTRIES
    assert LeaderEpochs().encode() == b"0\n0\n"


@pytest.mark.parametrize(
    "text",
    [
        b"0\n1\n2\n",
        b"0\n2\n2 0\n2 5\n",
        b"0\n2\n3 0\n2 5\n",
        b"0\n2\n2 5\n3 5\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -1\n",
        b"0\n2\n2 0\n",
    ],
)
def test_a_damaged_checkpoint_is_an_error(text: bytes) -> None:
    with pytest.raises(CorruptFile):
        LeaderEpochs.decode(text)


def test_an_opening_names_the_damaged_checkpoint() -> None:
    env, directory, log = new_log()
    put(log, 1)
    directory.close()
    write(env, LEADER_EPOCH_CHECKPOINT_FILE, b"0\n1\n0 0")
    with pytest.raises(CorruptFile, match=path_of(LEADER_EPOCH_CHECKPOINT_FILE)):
        reopen(env)
