"""A checker that finds nothing proves nothing: each fault is planted, and found under its name."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.histories.checker import Fault, check
from tests.histories.history import History, Outcome, Poll, Transaction, Write

ONE, TWO, COPY = ("t", 0), ("t", 1), ("copy", 0)


def sound() -> History:
    """Two transactions that were committed, one that was aborted, one that nobody knows of."""
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
    ]
    history.final = {ONE: [(0, 1), (4, 4), (5, 5)], TWO: [(0, 2)], COPY: [(0, -1)]}
    history.copied = {ONE: (COPY, 4)}
    return history


def test_a_sound_history_has_no_faults() -> None:
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


def copy_twice(history: History) -> None:
    history.final[COPY].append((1, -1))


def copy_too_little(history: History) -> None:
    history.copied[ONE] = (COPY, 6)


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
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
        (copy_twice, Fault.COPIED_WRONG),
        (copy_too_little, Fault.COPIED_WRONG),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[History], None], fault: Fault) -> None:
    history = sound()
    plant(history)
    assert fault in {found.fault for found in check(history)}
