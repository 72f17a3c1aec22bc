"""All transactional ids in memory, and the one way in which they change: a record, then the state.

Belongs to the loop's thread. A step is applied when its record is safe, whoever asked for it may
have gone by then.
"""

from collections.abc import Callable, Iterator, Mapping

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.by_partition import ByPartition
from tidelog.server.groups.reply import Reply
from tidelog.server.transactions.host import TransactionHost
from tidelog.server.transactions.log import TransactionLog
from tidelog.server.transactions.metadata import (
    Transaction,
    TransactionMetadata,
    TransactionState,
    may_follow,
)
from tidelog.server.transactions.records import encode_key, encode_value


class TransactionTable:
    """Transactional ids by name.

    Attributes:
        log: Where they are kept.
        on_prepared: Called with each one whose end was decided, and is to be completed.
    """

    def __init__(self, host: TransactionHost) -> None:
        self.log = TransactionLog(host, self._take_loaded, self._let_go)
        self._clock = host.env.clock
        self._kept: ByPartition[Transaction] = ByPartition(self.log.number_of)
        self._known: Mapping[str, Transaction] = self._kept.all
        self.on_prepared: Callable[[Transaction], None] = lambda _transaction: None

    # -- questions ---------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | ErrorCode | None:
        """What is known of an id, None for nothing; or why that can't be said now."""
        code = self.log.code_for(transactional_id)
        return self._known.get(transactional_id) if code is ErrorCode.NONE else code

    def all(self) -> Iterator[Transaction]:
        """All that are loaded, those that come or go meanwhile aside."""
        return iter(tuple(self._known.values()))

    # -- changes -----------------------------------------------------------------------------

    def create(self, transactional_id: str, producer_id: int, timeout_ms: int) -> Transaction:
        """A new id, which is in the log once its first step is."""
        assert transactional_id not in self._known
        made = Transaction(
            TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=producer_id,
                timeout_ms=timeout_ms,
                update_ms=self._clock.now_ms(),
            ),
            self.log.epoch_of(self.log.number_of(transactional_id)),
        )
        self._kept.put(transactional_id, made)
        return made

    def write(self, transaction: Transaction, step: TransactionMetadata) -> Reply[ErrorCode]:
        """Take a step: write it down, then let it hold; or why it was not taken."""
        assert transaction.pending is None
        assert may_follow(step.state, transaction.metadata.state)
        transaction.pending = step.state
        transactional_id = step.transactional_id
        number = self.log.number_of(transactional_id)
        record = encode_key(transactional_id), encode_value(step)
        said: Reply[ErrorCode] = Reply()

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if transaction.is_gone:
                code = ErrorCode.NOT_COORDINATOR
            elif code is ErrorCode.NONE:
                transaction.metadata = step
            said.complete(code)
            transaction.settle()

        self.log.append(number, [record]).then(written)
        return said

    def bury(self, transaction: Transaction) -> None:
        """Forget an id that nobody has used for long."""
        assert transaction.pending is None
        assert may_follow(TransactionState.DEAD, transaction.metadata.state)
        transaction.pending = TransactionState.DEAD
        transactional_id = transaction.metadata.transactional_id

        def written(code: ErrorCode) -> None:
            transaction.pending = None
            if code is ErrorCode.NONE and not transaction.is_gone:
                self._kept.remove(transactional_id)
                transaction.is_gone = True
            transaction.settle()

        number = self.log.number_of(transactional_id)
        self.log.append(number, [(encode_key(transactional_id), None)]).then(written)

    # -- partitions come and go --------------------------------------------------------------

    def _take_loaded(
        self, number: int, found: Mapping[str, TransactionMetadata], epoch: int
    ) -> None:
        loaded = {name: Transaction(metadata, epoch) for name, metadata in found.items()}
        self._kept.put_all(number, loaded)
        for each in loaded.values():
            # A write that fails loses the partition, and all of these, at once.
            if each.metadata.is_prepared and not each.is_gone:
                self.on_prepared(each)

    def _let_go(self, number: int | None) -> None:
        gone = self._kept.take_out(number)
        for each in gone:
            each.is_gone = True
        for each in gone:
            each.settle()
