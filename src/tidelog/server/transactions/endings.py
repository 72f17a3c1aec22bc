"""From a decision to its end: markers in all partitions, then the record that says so.

A decision is completed whatever happens: a partition that can't take its marker now is asked again,
and what a broker leaves undone the next start takes up. Only the topic of a partition may be gone,
or a later producer may have written there: then nothing is left that a marker could end.

Source: Kafka 4.3's TransactionMarkerChannelManager.
"""

import asyncio
from typing import Final

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.timers import Timers
from tidelog.server.transactions.host import LOGGER
from tidelog.server.transactions.metadata import Transaction, TransactionState
from tidelog.server.transactions.seam import Markers
from tidelog.server.transactions.table import TransactionTable
from tidelog.types import TopicPartition

# How long to wait before a partition that could not take its marker is asked again; the longest.
RETRY_MS: Final = 100
RETRY_MS_MAX: Final = 10_000

_LATER_ONE: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
_DONE: Final = _LATER_ONE | {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class Endings:
    """Transactions whose end is decided. Belongs to the loop's thread."""

    def __init__(
        self, table: TransactionTable, markers: Markers, timers: Timers, clock: Clock
    ) -> None:
        self._table = table
        self._markers = markers
        self._timers = timers
        self._clock = clock
        self._running = set[asyncio.Task[None]]()
        table.on_prepared = self.begin

    def begin(self, transaction: Transaction) -> None:
        """Complete a transaction beside the requests; until then it takes no other step."""
        known = transaction.metadata
        assert known.is_prepared
        assert transaction.pending is None
        transaction.pending = known.completed_state
        if not known.partitions:
            self._finish(transaction)
            return
        task = asyncio.get_running_loop().create_task(self._end(transaction))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """The broker stops: the next start goes on."""
        for task in tuple(self._running):
            task.cancel()

    async def _end(self, transaction: Transaction) -> None:
        left = sorted(
            transaction.metadata.partitions, key=lambda each: (each.topic, each.partition)
        )
        delay_ms = RETRY_MS
        while not transaction.is_gone:
            codes = await self._write(transaction, left)
            left = [each for each in left if codes.get(each) not in _DONE]
            if not left:
                self._finish(transaction)
                return
            await self._pause(delay_ms)
            delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    async def _write(
        self, transaction: Transaction, left: list[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        known = transaction.metadata
        try:
            said = await self._markers.write(
                left,
                producer_id=known.producer_id,
                producer_epoch=known.producer_epoch,
                coordinator_epoch=transaction.coordinator_epoch,
                commit=known.state is TransactionState.PREPARE_COMMIT,
                transaction_version=known.client_version,
            )
        except Exception:  # noqa: BLE001 - a decision stands: this is tried again
            LOGGER.exception("markers of %s can't be written", known.transactional_id)
            return {}
        codes = dict(said)
        self._tell(transaction, codes)
        return codes

    @staticmethod
    def _tell(transaction: Transaction, codes: dict[TopicPartition, ErrorCode]) -> None:
        for partition, code in codes.items():
            if code is not ErrorCode.NONE:
                LOGGER.warning(
                    "%s: marker of %s: %s",
                    partition,
                    transaction.metadata.transactional_id,
                    code.name,
                )

    async def _pause(self, delay_ms: int) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._timers.after(delay_ms, lambda: over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def _finish(self, transaction: Transaction) -> None:
        """All markers are there: write that down; where that fails, the log is asked again."""
        transaction.pending = None
        if transaction.is_gone:
            return
        step = transaction.metadata.completed(self._clock.now_ms())

        def written(code: ErrorCode) -> None:
            if code is ErrorCode.NONE or transaction.is_gone:
                return
            transaction.pending = step.state
            self._timers.after(RETRY_MS_MAX, lambda: self._finish(transaction))

        self._table.write(transaction, step).then(written)
