"""Writes that belong to transactions: batches of producers, offsets of groups, markers.

Source: Kafka 4.3's UnifiedLog, Partition.
"""

from tidelog.record.views import Batch
from tidelog.server.open_transactions import Guard, TransactionEnd
from tidelog.server.partitions import Partition
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.log import AppendResult
from tidelog.types import Buffer


def append_in_transaction(  # noqa: PLR0913 - as `Log.append_batches`
    partition: Partition,
    data: Buffer,
    batch: Batch,
    guard: Guard | None,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    is_bounded: bool = False,
    is_checked: bool = False,
) -> AppendResult:
    """Append a batch that belongs to a transaction.

    Args:
        partition: Where.
        data: The batch, which may be changed.
        batch: A view of it.
        guard: What `OpenTransactions.guard` gave before the coordinator was asked.
        origin: CLIENT, or COORDINATOR for offsets of a group.
        is_bounded: Whether a check that takes long raises LongCheck.
        is_checked: Whether the batch comes from `Log.check_append`.

    Raises:
        InvalidTxnState, OutOfOrderSequence: As `OpenTransactions.check`.
        TidelogError: As `Log.append_batches`.
    """
    partition.transactions.check(partition.log.producer_states(), batch, guard)
    producer_id = batch.producer_id
    result = partition.append(
        data, origin=origin, owned=True, is_bounded=is_bounded, is_checked=is_checked
    )
    if not result.is_duplicate:
        partition.transactions.wrote(producer_id)
    return result


def end_transaction(partition: Partition, end: TransactionEnd) -> AppendResult:
    """Append the marker that ends a producer's transaction.

    Raises:
        TidelogError: As `Log.end_transaction`.
    """
    known = partition.log.producer_states().find(end.producer_id)
    result = partition.log.end_transaction(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        coordinator_epoch=end.coordinator_epoch,
        commit=end.commit,
        transaction_version=end.transaction_version,
    )
    partition.transactions.marked(end)
    if known is not None and known.txn_first_offset is not None:
        partition.transactions.ended(
            known.txn_first_offset, result.last_offset, partition.high_watermark
        )
    partition.advance()
    return result
