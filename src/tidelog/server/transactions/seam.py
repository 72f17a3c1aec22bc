"""What the coordinator of transactions and the partitions ask of each other.

The coordinator decides and writes down how a transaction ends, then has markers written to the
partitions in it. A partition asks the coordinator before it takes the first batch of a transaction.
Both run on the loop's thread. `Node.transactions` is the one, `Node.markers` the other.

Source: KIP-98 (markers), KIP-890 (verification, adding by producing), KIP-1228 (the version of
transactions goes with a marker).
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Protocol

from tidelog.error_codes import ErrorCode
from tidelog.types import TopicPartition


class Markers(Protocol):
    """Ends transactions in the logs of partitions."""

    def write(
        self,
        partitions: Sequence[TopicPartition],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Append a marker to each partition, and say when it is safe.

        Those of `__consumer_offsets` also take over, or drop, the group offsets of the transaction.
        A marker may come again after one that was written: that is no error, and ends nothing else.

        Args:
            partitions: In the transaction, each once.
            producer_id: Whose transaction.
            producer_epoch: Of the marker; with `transaction_version` 2 one above that of the
                records, else the same or a later one.
            coordinator_epoch: Of the coordinator; an older one than a log has seen is fenced.
            commit: Commit, else abort.
            transaction_version: 2 where each transaction raises the epoch, 0 or 1 for older ones.

        Returns:
            A code for each partition. The coordinator is done with those that have NONE,
            UNKNOWN_TOPIC_OR_PARTITION (deleted meanwhile) or one that says that a later coordinator
            or producer was there (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED); it asks
            again, later, for all others.
        """
        ...


class Coordinator(Protocol):
    """Knows which partitions are in a transaction."""

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Let a producer write to partitions as part of its transaction.

        Args:
            transactional_id: Whose transaction.
            producer_id: As the client gave it.
            producer_epoch: Likewise.
            partitions: Where it wants to write; for group offsets that of `__consumer_offsets`.
            add: Take them into the transaction, which begins where none is open (KIP-890's second
                part, Produce from version 12 on); else they must be in it already.

        Returns:
            A code for each partition. With `add`: NONE once the coordinator's note is safe,
            CONCURRENT_TRANSACTIONS while the one before is being ended (to be asked again soon).
            Without: NONE, or TRANSACTION_ABORTABLE for one that is not in the transaction. Either
            way INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, COORDINATOR_LOAD_IN_PROGRESS,
            NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, INVALID_TXN_STATE. Source: those are the
            coordinator's own; what Produce makes of them is said in KIP-890.
        """
        ...
