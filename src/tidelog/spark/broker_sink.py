"""The sink to brokers, batch and stream: each task sends its own rows (`broker_task`).

With `delivery=exactly-once` each task's rows of a batch are there once, however often the task, its
executor or the driver comes again; the rows of different tasks become visible one by one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidelog.errors import InvalidRequest
from tidelog.spark.broker_claims import Claim, Sent
from tidelog.spark.broker_markers import topic_key
from tidelog.spark.broker_task import send
from tidelog.spark.sink_options import SinkOptions, log_repeated, log_skipped
from tidelog.spark.task_facts import StreamBatch, refuse_new_table, stream_batch, task_number
from tidelog.spark.workers import sentences_first

if TYPE_CHECKING:
    import pyarrow as pa


class SentMessage(WriterCommitMessage):
    """Message of a task to the driver."""

    def __init__(self, sent: Sent, batch: StreamBatch | None = None) -> None:
        # Pickled: a plain dictionary in the place of a view.
        self.sent = sent._replace(skipped=dict(sent.skipped))
        self.batch = batch


@sentences_first
class BrokerWriter(DataSourceArrowWriter):
    """A batch write; there is nothing to commit on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        if options.exactly_once and options.txn is None:
            raise InvalidRequest(
                "delivery=exactly-once: a batch write needs txnAppId and txnVersion, by which it is"
                " known when it comes again"
            )
        self._options = options

    def write(  # type: ignore[override] # Spark's own hint is that of its row writers
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Send the rows of one task."""
        refuse_new_table()
        task, txn = task_number(), self._options.txn
        claim = None
        if txn is not None:
            key, topic = _transactional_id(self._options, txn.app_id, task), self._options.topic
            # Writes to different topics may run beside each other, and must not fence each other.
            name = key if topic is None else topic_key(key, topic)
            claim = Claim(name, txn.version, topics_of=key)
        return SentMessage(send(self._options, iterator, task=task, claim=claim))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was there already. Every task has committed its own rows."""
        txn, skipped = self._options.txn, dict[str, int]()
        for message in messages:
            if isinstance(message, SentMessage):
                for topic, last in message.sent.skipped.items():
                    skipped[topic] = max(skipped.get(topic, last), last)
        if txn is not None:
            log_skipped(txn, skipped, self._options.bootstrap)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what a task has committed stays."""


@sentences_first
class BrokerStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write; batches are told apart by the query's id and their number."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(  # type: ignore[override] # as above
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        """Send the rows of one task."""
        task, claim, batch = task_number(), None, None
        if self._options.exactly_once:
            batch = stream_batch()
            claim = Claim(_transactional_id(self._options, batch.query_id, task), batch.number)
        return SentMessage(send(self._options, iterator, task=task, claim=claim), batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - Spark's name
        """Log a batch that was there already. Every task has committed its own rows."""
        told = [message for message in messages if isinstance(message, SentMessage)]
        batch = next((message.batch for message in told if message.sent.was_done), None)
        if batch is not None:
            log_repeated(batch, self._options.bootstrap)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what a task has committed stays."""


def _transactional_id(options: SinkOptions, writer: str, task: int) -> str:
    """The same in every attempt of a task, so that a newer one fences the older ones."""
    return f"{options.transactional_id_prefix}/{writer}/{task}"
