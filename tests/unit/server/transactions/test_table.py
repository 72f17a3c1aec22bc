"""What is loaded is all there before anything is done about it, and goes at once."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from tests.unit.server.transactions.test_steps import EMPTY, ONGOING, PREPARE_ABORT, known

from tidelog.server.groups.by_partition import ByPartition
from tidelog.server.transactions.metadata import Transaction, TransactionState
from tidelog.server.transactions.table import TransactionTable

if TYPE_CHECKING:
    from tidelog.server.transactions.log import TransactionLog


def test_nothing_stays_of_a_partition_that_is_lost_while_it_is_taken_in() -> None:
    """The first write about what was decided fails, as with a disk that is still full."""
    table = TransactionTable.__new__(TransactionTable)
    table.log = cast("TransactionLog", SimpleNamespace(number_of=lambda _name: 0))
    table._kept = ByPartition(table.log.number_of)
    table._known = table._kept.all
    told: list[Transaction] = []

    def fail(transaction: Transaction) -> None:
        told.append(transaction)
        table._let_go(0)

    table.on_prepared = fail
    states: dict[str, TransactionState] = {
        "a": ONGOING,
        "b": PREPARE_ABORT,
        "c": PREPARE_ABORT,
        "d": EMPTY,
    }
    table._take_loaded(0, {name: known(state) for name, state in states.items()}, 1)
    assert len(told) == 1
    assert told[0].is_gone
    assert not table._known
