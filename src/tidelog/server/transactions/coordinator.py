"""Transaction coordinator: requests of clients, and timeouts.

Source: Kafka 4.3's TransactionCoordinator; KIP-98, KIP-360, KIP-890.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.loop import Timer
from tidelog.server.runtime.reply import Reply
from tidelog.server.transactions.markers import PartitionMarkers, TransactionCompleter
from tidelog.server.transactions.metadata import (
    LOGGER,
    SERVER_VERSION,
    AddRequest,
    EndRequest,
    InitRequest,
    ProducerRef,
    Transaction,
    TransactionMetadata,
    plan_add,
    plan_end,
    plan_fencing,
    plan_init,
    verify,
)
from tidelog.server.transactions.state_topic import TransactionStates
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONS_TOPIC, TopicPartition

# Maximum time in ms that a request to add partitions waits for the end of the previous transaction
# before the client must retry. Source: `add.partitions.to.txn.retry.backoff.max.ms`, the retry
# interval of Kafka's brokers.
ADD_PATIENCE_MS: Final = 100


class ProducerAnswer(NamedTuple):
    """Error code for a producer.

    If the code is NONE, the answer also has the producer's new id and epoch.
    """

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionCoordinator:
    """All transactional ids of the broker. Used only in the event loop's thread.

    Attributes:
        topic: Topic in which the transactional ids are stored.
        table: States of the transactional ids.
    """

    def __init__(self, services: Services, markers: PartitionMarkers) -> None:
        self._config = services.config
        self._clock = services.env.clock
        self._timers = services.timers
        self._ids = services.producer_ids
        self.table = TransactionStates(services, self._complete)
        self.topic = self.table.topic
        self._completer = TransactionCompleter(self.table, markers, self._timers, self._clock)
        services.closers.append(self._completer.close)
        services.topics.on_deleted.append(self._forget_topic)
        self._abort_interval_ms = (
            self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        )
        self._expiry_interval_ms = (
            self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        )
        self._timers.after(self._abort_interval_ms, self._abort_timed_out)
        self._timers.after(self._expiry_interval_ms, self._remove_expired)

    def resume(self) -> None:
        """Start loading the transactional ids.

        Decided transactions are completed after the loading.
        """
        self.topic.resume()

    def _complete(self, transaction: Transaction) -> None:
        self._completer.begin(transaction)

    def _forget_topic(self, info: TopicInfo) -> None:
        if info.name == TRANSACTIONS_TOPIC:
            self.topic.forget_topic()

    # -- producers ---------------------------------------------------------------------------

    async def init_producer_id(self, request: InitRequest) -> ProducerAnswer:
        """Return an id and epoch that fence all other producers of the transactional id.

        If a transaction is open, its abort is begun instead, and the client gets
        CONCURRENT_TRANSACTIONS and retries.
        """
        if not request.transactional_id:
            return ProducerAnswer(ErrorCode.INVALID_REQUEST)
        if not 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms:
            return ProducerAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction, new_id = await self._find_with_id(request.transactional_id, creates=True)
        if isinstance(transaction, ErrorCode):
            return ProducerAnswer(transaction)
        if transaction is None:
            assert new_id is not None
            transaction = self.table.create(request.transactional_id, new_id, request.timeout_ms)
        step = plan_init(
            transaction.metadata,
            is_pending=transaction.pending is not None,
            request=request,
            new_id=new_id,
            now_ms=self._clock.now_ms(),
        )
        if isinstance(step, ErrorCode):
            return ProducerAnswer(step)
        if step.is_prepared:
            code = await self._prepare(transaction, step)
            return ProducerAnswer(code or ErrorCode.CONCURRENT_TRANSACTIONS)
        return _as_answer(await self.table.write(transaction, step), step)

    async def _find_with_id(
        self, transactional_id: str, *, creates: bool
    ) -> tuple[Transaction | ErrorCode | None, int | None]:
        """Return a transaction (None for a new id) or an error code, and a producer id if needed.

        A new producer id is returned in two cases: the transactional id is new, or the epochs of
        the current producer id are used up.
        """
        new_id: int | None = None
        while True:
            transaction = self.table.find(transactional_id)
            if isinstance(transaction, Transaction):
                needs_id = transaction.metadata.is_exhausted
            else:
                needs_id = transaction is None and creates
            if not needs_id or new_id is not None:
                return transaction, new_id
            try:
                new_id = self._ids.next()
                if new_id is None:
                    new_id = await self._ids.take()  # the state may change meanwhile, so look again
            except TidelogError as error:
                LOGGER.warning("can't allocate a producer id: %s", error)
                return ErrorCode.COORDINATOR_NOT_AVAILABLE, None  # the client retries

    # -- partitions --------------------------------------------------------------------------

    def add(self, request: AddRequest) -> Reply[ErrorCode]:
        """Add partitions to a transaction. A transaction begins if none is open.

        The request waits while another transition is in progress, or the previous transaction is
        not yet completed. After `ADD_PATIENCE_MS` the client gets CONCURRENT_TRANSACTIONS.
        """
        reply: Reply[ErrorCode] = Reply()
        if request.transactional_id:
            self._add(request, reply, None)
        else:
            reply.complete(ErrorCode.INVALID_REQUEST)
        return reply

    def _add(self, request: AddRequest, reply: Reply[ErrorCode], timer: Timer | None) -> None:
        if reply.is_done:
            return  # the wait is over
        transaction = self.table.find(request.transactional_id)
        if isinstance(transaction, Transaction):
            step = plan_add(
                transaction.metadata,
                is_pending=transaction.pending is not None,
                request=request,
                now_ms=self._clock.now_ms(),
            )
            if step is ErrorCode.CONCURRENT_TRANSACTIONS:
                self._wait_to_add(transaction, request, reply, timer)
                return
        else:
            step = ErrorCode.INVALID_PRODUCER_ID_MAPPING if transaction is None else transaction
        if timer is not None:
            timer.cancel()
        if isinstance(step, ErrorCode):
            reply.complete(step)
        else:
            assert isinstance(transaction, Transaction)
            self.table.write(transaction, step).then(reply.complete)

    def _wait_to_add(
        self,
        transaction: Transaction,
        request: AddRequest,
        reply: Reply[ErrorCode],
        timer: Timer | None,
    ) -> None:
        def give_up() -> None:
            transaction.waiting.pop(reply, None)
            reply.complete(ErrorCode.CONCURRENT_TRANSACTIONS)

        patience = timer or self._timers.after(ADD_PATIENCE_MS, give_up)
        transaction.waiting[reply] = lambda: self._add(request, reply, patience)

    def verify(
        self, transactional_id: str, producer: ProducerRef, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return NONE for partitions in a transaction, TRANSACTION_ABORTABLE for other partitions.

        If the transaction can't be checked, all partitions get the error code of that failure.
        """
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        transaction = self.table.find(transactional_id)
        if isinstance(transaction, Transaction):
            return verify(transaction.metadata, producer, partitions)
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING if transaction is None else transaction
        return dict.fromkeys(partitions, code)

    async def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Check that partitions are in a producer's transaction, or add them (KIP-890).

        Args:
            transactional_id: Transactional id of the producer.
            producer_id: Producer id in the request.
            producer_epoch: Producer epoch in the request.
            partitions: Partitions to write to; for group offsets, the partition of
                `__consumer_offsets`.
            add: Whether to add the partitions to the transaction, which begins if none is open
                (Produce from version 12, TxnOffsetCommit from version 5). If `add` is false, the
                partitions must be in the transaction already.

        Returns:
            An error code for each partition:

            - with `add`: NONE once the addition is durable, or UNKNOWN_SERVER_ERROR if the write is
              refused;
            - without `add`: NONE, or TRANSACTION_ABORTABLE for a partition that is not in the
              transaction;
            - in both cases: CONCURRENT_TRANSACTIONS while a transaction is being completed (the
              client retries), INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
              COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        producer = ProducerRef(producer_id, producer_epoch)
        if not add:
            return self.verify(transactional_id, producer, partitions)
        request = AddRequest(
            transactional_id=transactional_id,
            producer=producer,
            partitions=frozenset(partitions),
            version=SERVER_VERSION,
        )
        return dict.fromkeys(partitions, await self.add(request))

    # -- the end -----------------------------------------------------------------------------

    async def end(self, request: EndRequest) -> ProducerAnswer:
        """Decide to commit or abort a transaction. Markers are written in the background."""
        if not request.transactional_id:
            return ProducerAnswer(ErrorCode.INVALID_REQUEST)
        transaction, new_id = await self._find_with_id(request.transactional_id, creates=False)
        if not isinstance(transaction, Transaction):
            return ProducerAnswer(transaction or ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        metadata, now_ms = transaction.metadata, self._clock.now_ms()
        step = plan_end(
            metadata,
            is_pending=transaction.pending is not None,
            request=request,
            new_id=new_id,
            now_ms=now_ms,
        )
        if isinstance(step, ErrorCode):
            return _as_answer(step, metadata)
        # If the epochs of the producer id are used up, the response has a new producer id. This id
        # is valid only when the transaction is completed, so until then the client's next request
        # waits in `add`.
        after = step.completed(now_ms)
        return _as_answer(await self._prepare(transaction, step), after)

    def _prepare(self, transaction: Transaction, step: TransactionMetadata) -> Reply[ErrorCode]:
        """Write the decision to commit or abort; once it is durable, start writing markers."""

        def written(code: ErrorCode) -> ErrorCode:
            if code is ErrorCode.NONE:
                self._completer.begin(transaction)
            return code

        return self.table.write(transaction, step).derive(written)

    # -- timeouts and expiry -----------------------------------------------------------------

    def _abort_timed_out(self) -> None:
        self.topic.try_again()
        self._timers.sweep(self.table.all(), self._abort_if_timed_out)
        self._timers.after(self._abort_interval_ms, self._abort_timed_out)

    def _abort_if_timed_out(self, transaction: Transaction) -> None:
        metadata, now_ms = transaction.metadata, self._clock.now_ms()
        is_idle = transaction.pending is None and not transaction.is_unloaded
        if is_idle and metadata.is_timed_out(now_ms):
            LOGGER.info(
                "%s: aborted the transaction, which was open for more than %d ms",
                metadata.transactional_id,
                metadata.timeout_ms,
            )
            self._prepare(transaction, plan_fencing(metadata, now_ms))

    def _remove_expired(self) -> None:
        self._timers.sweep(self.table.all(), self._remove_if_expired)
        self._timers.after(self._expiry_interval_ms, self._remove_expired)

    def _remove_if_expired(self, transaction: Transaction) -> None:
        metadata, now_ms = transaction.metadata, self._clock.now_ms()
        oldest_ms = now_ms - self._config.transactional_id_expiration_ms
        is_idle = transaction.pending is None and not transaction.is_unloaded
        if is_idle and metadata.is_ended and metadata.update_ms <= oldest_ms:
            self.table.remove_expired(transaction)


def _as_answer(code: ErrorCode, metadata: TransactionMetadata) -> ProducerAnswer:
    if code is not ErrorCode.NONE:
        return ProducerAnswer(code)
    return ProducerAnswer(code, metadata.producer_id, metadata.producer_epoch)
