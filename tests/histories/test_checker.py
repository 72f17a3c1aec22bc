"""Tests that the checker finds each planted fault, and reports it by its name."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.histories.checker import Fault, check
from tests.histories.history import History, Outcome, Poll, Transaction, Write

ONE, TWO, COPY = ("t", 0), ("t", 1), ("copy", 0)


def sound() -> History:
    """Return a valid history: three committed transactions, one aborted, one of unknown outcome.

    The broker finally aborted the transaction of unknown outcome: one of its values is stored, none
    is committed.
    """
    history = History()
    history.transactions = [
        Transaction("a", [Write(ONE, 1, 0), Write(TWO, 2, 0)], Outcome.COMMITTED, 10),
        Transaction("b", [Write(ONE, 3, 1)], Outcome.ABORTED),
        Transaction("a", [Write(ONE, 4, 4), Write(ONE, 5, 5)], Outcome.COMMITTED, 20),
        Transaction("b", [Write(TWO, 6, 2), Write(TWO, 7)], Outcome.UNKNOWN, 30),
        Transaction("copier", [Write(COPY, -1, 0)], Outcome.COMMITTED, 25),
    ]
    history.polls = [
        Poll("r", 0, 15, ONE, 0, [(0, 1)], 4),
        Poll("r", 0, 21, ONE, 4, [(4, 4), (5, 5)], 7),
        Poll("r", 1, 31, ONE, 0, [(0, 1)], 1),
        Poll("q", 0, 32, TWO, 0, [(0, 2)], 2),
        Poll("u", 0, 33, ONE, 0, [(0, 1), (1, 3)], 2, is_committed=False),
    ]
    history.final = {ONE: [(0, 1), (4, 4), (5, 5)], TWO: [(0, 2)], COPY: [(0, -1)]}
    history.stored = {
        ONE: [(0, 1), (1, 3), (4, 4), (5, 5)],
        TWO: [(0, 2), (2, 6)],
        COPY: [(0, -1)],
    }
    history.copied = {ONE: (COPY, 4)}
    return history


def test_a_valid_history_has_no_faults() -> None:
    assert check(sound()) == []


def lose(history: History) -> None:
    history.final[ONE].pop()


def lose_an_unseen_one(history: History) -> None:
    history.polls.clear()
    history.final[TWO].pop()


def read_aborted(history: History) -> None:
    history.polls[0] = replace(history.polls[0], records=[(0, 1), (1, 3)])


def find_aborted_in_the_end(history: History) -> None:
    history.final[ONE].insert(1, (1, 3))


def read_early(history: History) -> None:
    history.polls[1] = replace(history.polls[1], time=19)


def read_a_part(history: History) -> None:
    history.transactions[3].writes[1].offset = 3
    history.final[TWO].append((2, 6))


def give_an_offset_two_values(history: History) -> None:
    history.transactions.append(Transaction("c", [Write(ONE, 8)], Outcome.UNKNOWN, 1))
    history.polls.append(Poll("s", 0, 40, ONE, 4, [(4, 8)], 5))


def give_another_offset_than_was_said(history: History) -> None:
    history.transactions[0].writes[0].offset = 9


def go_back(history: History) -> None:
    history.polls[2] = replace(history.polls[2], run=0)


def go_back_within_a_poll(history: History) -> None:
    history.polls[1] = replace(history.polls[1], records=[(5, 5), (4, 4)])


def skip(history: History) -> None:
    history.polls[1] = replace(history.polls[1], records=[(5, 5)])


def skip_the_first(history: History) -> None:
    history.polls[2] = replace(history.polls[2], records=[])


def put_before(history: History) -> None:
    history.transactions[2].writes.reverse()


def double(history: History) -> None:
    history.final[ONE].append((6, 5))


def make_up(history: History) -> None:
    history.final[TWO].append((9, 99))


def lose_what_was_never_acknowledged(history: History) -> None:
    history.transactions[2].writes.append(Write(ONE, 8))


def lose_an_aborted_one(history: History) -> None:
    history.polls.pop()
    history.stored[ONE].remove((1, 3))


def lose_what_was_read(history: History) -> None:
    history.polls.append(Poll("s", 0, 40, TWO, 0, [(0, 2), (2, 6)], 3))


def lose_what_all_could_read(history: History) -> None:
    history.transactions[1].writes[0].offset = None
    history.stored[ONE].remove((1, 3))


def lose_from_what_is_stored(history: History) -> None:
    history.transactions[0].writes[0].offset = None
    history.polls.clear()
    history.stored[ONE].remove((0, 1))


def put_elsewhere(history: History) -> None:
    history.final[TWO].append((3, history.final[ONE].pop()[1]))
    history.stored[TWO].append((3, history.stored[ONE].pop()[1]))
    history.polls.clear()
    history.transactions[2].writes[1].offset = 3


def say_an_offset_twice(history: History) -> None:
    history.transactions.append(Transaction("c", [Write(ONE, 8, 0)], Outcome.ABORTED))
    history.stored.clear()


def read_early_in_another_place(history: History) -> None:
    history.polls[3] = replace(history.polls[3], time=9)


def commit_a_part(history: History) -> None:
    history.transactions[0].writes[1].offset = None
    history.final[TWO].clear()
    history.polls.pop(3)


def put_before_unacknowledged(history: History) -> None:
    history.transactions[2].writes[0].offset = None
    history.transactions[2].writes.reverse()


def find_one_at_an_offset_twice(history: History) -> None:
    history.final[ONE].append((5, 5))


def find_in_another_order(history: History) -> None:
    history.final[ONE].reverse()


def go_back_between_isolations(history: History) -> None:
    history.polls.append(Poll("u", 0, 50, ONE, 0, [(1, 3)], 2, is_committed=False))


def skip_an_aborted_one(history: History) -> None:
    history.polls[4] = replace(history.polls[4], records=[(0, 1)])


def skip_between_polls(history: History) -> None:
    history.polls[1] = replace(history.polls[1], begin=5, records=[(5, 5)])


def write_when_fenced(history: History) -> None:
    history.transactions[1].fenced = 5
    history.transactions[1].writes[0].asked = 6


def commit_when_fenced(history: History) -> None:
    history.transactions[2].fenced = 19


def refuse(history: History) -> None:
    history.transactions[1].refused = 45


def copy_in_another_order(history: History) -> None:
    history.transactions[4].writes = [Write(COPY, -4, 0), Write(COPY, -1, 1)]
    history.final[COPY] = history.stored[COPY] = [(0, -4), (1, -1)]
    history.copied[ONE] = (COPY, 5)


def copy_twice(history: History) -> None:
    history.final[COPY].append((1, -1))


def copy_too_little(history: History) -> None:
    history.copied[ONE] = (COPY, 6)


PLANTS: list[tuple[Callable[[History], None], Fault]] = [
    (lose, Fault.LOST_WRITE),
    (lose_an_unseen_one, Fault.LOST_WRITE),
    (read_aborted, Fault.ABORTED_READ),
    (find_aborted_in_the_end, Fault.ABORTED_READ),
    (read_early, Fault.DIRTY_READ),
    (read_a_part, Fault.INTERMEDIATE_READ),
    (give_an_offset_two_values, Fault.INCONSISTENT_OFFSET),
    (give_another_offset_than_was_said, Fault.INCONSISTENT_OFFSET),
    (go_back, Fault.NON_MONOTONIC_POLL),
    (go_back_within_a_poll, Fault.NON_MONOTONIC_POLL),
    (skip, Fault.SKIPPED),
    (skip_the_first, Fault.SKIPPED),
    (put_before, Fault.NON_MONOTONIC_SEND),
    (double, Fault.DUPLICATE),
    (make_up, Fault.UNKNOWN_VALUE),
    (lose_what_was_never_acknowledged, Fault.LOST_WRITE),
    (lose_an_aborted_one, Fault.LOST_WRITE),
    (lose_what_was_read, Fault.LOST_WRITE),
    (lose_what_all_could_read, Fault.LOST_WRITE),
    (lose_from_what_is_stored, Fault.LOST_WRITE),
    (put_elsewhere, Fault.INCONSISTENT_OFFSET),
    (say_an_offset_twice, Fault.INCONSISTENT_OFFSET),
    (read_early_in_another_place, Fault.DIRTY_READ),
    (commit_a_part, Fault.INTERMEDIATE_READ),
    (put_before_unacknowledged, Fault.NON_MONOTONIC_SEND),
    (find_one_at_an_offset_twice, Fault.NON_MONOTONIC_POLL),
    (find_in_another_order, Fault.NON_MONOTONIC_POLL),
    (go_back_between_isolations, Fault.NON_MONOTONIC_POLL),
    (skip_an_aborted_one, Fault.SKIPPED),
    (skip_between_polls, Fault.SKIPPED),
    (write_when_fenced, Fault.FENCED_WRITE),
    (commit_when_fenced, Fault.FENCED_WRITE),
    (copy_in_another_order, Fault.COPIED_WRONG),
    (copy_twice, Fault.COPIED_WRONG),
    (copy_too_little, Fault.COPIED_WRONG),
    (refuse, Fault.REFUSED),
]


def test_each_kind_is_planted() -> None:
    assert {fault for _, fault in PLANTS} == set(Fault)


@pytest.mark.parametrize(("plant", "fault"), PLANTS)
def test_a_planted_fault_is_found(plant: Callable[[History], None], fault: Fault) -> None:
    history = sound()
    plant(history)
    assert fault in {found.fault for found in check(history)}
