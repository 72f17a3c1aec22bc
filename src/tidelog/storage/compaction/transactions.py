"""What of transactions stays: aborted data goes, and a marker once nothing needs it any more.

An abort marker stays as long as a batch of its transaction is met, if only an empty one, and its
entry goes into the new index of aborted transactions; a commit marker likewise. After that a
marker gets a delete horizon, and goes with a later cleaning once that has passed.

One walk over batches in the order of their offsets. Where it has not met all that lies before a
marker (`sees_all` is false), nothing is concluded from what was not met: whoever reads the log from
its start without the marker, a follower or a recovery, would find the transaction open for ever.

Source: Kafka 4.x CleanedTransactionMetadata; KIP-98, KIP-534.
"""

from bisect import bisect_left
from collections.abc import Iterable

from tidelog.record.record import ControlType
from tidelog.storage.txn_index import AbortedTxn


class AbortedSpans:
    """Which batches belong to aborted transactions."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """The spans of those transactions, given in any order."""
        self._of: dict[int, list[AbortedTxn]] = {}
        for txn in sorted(set(aborted), key=lambda txn: txn.last_offset):
            self._of.setdefault(txn.producer_id, []).append(txn)

    @property
    def producer_ids(self) -> list[int]:
        """Whose there are."""
        return list(self._of)

    def holding(self, producer_id: int, offset: int) -> AbortedTxn | None:
        """The producer's aborted transaction that an offset lies in, its marker's included."""
        txns = self._of.get(producer_id, [])
        slot = bisect_left(txns, offset, key=lambda txn: txn.last_offset)
        if slot == len(txns) or txns[slot].first_offset > offset:
            return None
        return txns[slot]


class TransactionWalk:
    """The state of one walk."""

    def __init__(self, spans: AbortedSpans) -> None:
        self._spans = spans
        self._met: set[AbortedTxn] = set()
        self._open: set[int] = set()
        self._kept: list[AbortedTxn] = []

    def on_data(self, producer_id: int, base_offset: int) -> bool:
        """Take a transactional data batch, whatever is left in it; whether it was aborted."""
        txn = self._spans.holding(producer_id, base_offset)
        if txn is None:
            self._open.add(producer_id)
            return False
        self._met.add(txn)
        return True

    def on_marker(
        self, kind: ControlType, producer_id: int, offset: int, *, sees_all: bool
    ) -> bool:
        """Take a control batch with a record; whether nothing needs it any more."""
        match kind:
            case ControlType.ABORT:
                return self._on_abort(producer_id, offset, sees_all=sees_all)
            case ControlType.COMMIT:
                is_open = producer_id in self._open
                self._open.discard(producer_id)
                return sees_all and not is_open
            case _:
                return False

    def _on_abort(self, producer_id: int, offset: int, *, sees_all: bool) -> bool:
        txn = self._spans.holding(producer_id, offset)
        if txn is None or (sees_all and txn not in self._met):
            return sees_all
        self._met.discard(txn)
        self._kept.append(txn)
        return False

    def take_kept(self) -> list[AbortedTxn]:
        """Aborted transactions whose markers stay, in order, since the last call: a new index."""
        kept, self._kept = self._kept, []
        return kept
