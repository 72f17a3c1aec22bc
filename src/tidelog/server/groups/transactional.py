"""Offsets that are committed as part of a transaction, and what its end makes of them.

Source: Kafka 4.3's OffsetMetadataManager, CoordinatorRuntime; KIP-98, KIP-447.
"""

from collections.abc import Sequence
from typing import Protocol

from tidelog.config import BrokerConfig
from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.server.groups.commit_checks import Commit, commit_errors
from tidelog.server.groups.commits import committed, with_outcome
from tidelog.server.groups.offsets import NO_EXPIRY
from tidelog.server.groups.pending import PendingOffset, PendingOffsets
from tidelog.server.groups.records import GroupRecord, offset_record
from tidelog.server.groups.replay import LoadedPending
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.results import CommitAsked
from tidelog.server.groups.table import GroupTable
from tidelog.server.open_transactions import Guard, TransactionEnd


class TransactionalJournal(Protocol):
    """Where groups are written, as far as transactions go."""

    def number_of(self, group_id: str) -> int:
        """A group's partition."""
        ...

    def append_pending(
        self,
        group_id: str,
        records: Sequence[GroupRecord],
        producer: tuple[int, int],
        guard: Guard | None,
    ) -> Reply[ErrorCode]:
        """Write a group's records as part of a transaction.

        A failure that is known at once is answered at once: then nothing was written.
        """
        ...


class TransactionalCommits:
    """What groups have committed in transactions. Belongs to the loop's thread.

    Attributes:
        pending: What waits for the end of transactions.
    """

    def __init__(
        self,
        table: GroupTable,
        journal: TransactionalJournal,
        clock: Clock,
        config: BrokerConfig,
        pending: PendingOffsets,
    ) -> None:
        self._table = table
        self._journal = journal
        self._clock = clock
        self._config = config
        self.pending = pending

    def commit(
        self,
        asked: CommitAsked,
        producer: tuple[int, int],
        guard: Guard | None,
        commits: Sequence[Commit],
    ) -> Reply[list[ErrorCode]]:
        """Keep offsets until the transaction ends; one code for each, in their order.

        Args:
            asked: Who commits.
            producer: Id and epoch.
            guard: What was held while the coordinator of transactions was asked.
            commits: What.
        """
        codes = commit_errors(self._table.get(asked.group_id), asked, commits, self._config)
        now_ms = self._clock.now_ms()
        kept = [
            PendingOffset(
                asked.group_id,
                commit.topic,
                commit.partition,
                committed(commit, now_ms, NO_EXPIRY),
            )
            for commit, code in zip(commits, codes, strict=True)
            if code is ErrorCode.NONE
        ]
        if not kept:
            return Reply.of(codes)
        records = [offset_record(*each) for each in kept]
        written = self._journal.append_pending(asked.group_id, records, producer, guard)
        if not written.is_done or written.value is ErrorCode.NONE:
            self._table.get_or_create(asked.group_id)
            self.pending.put(self._journal.number_of(asked.group_id), producer[0], kept)
        return with_outcome(written, codes)

    def load(self, number: int, found: Sequence[LoadedPending]) -> None:
        """A partition of the topic was read: what was pending in it, in the order of the log."""
        for each in found:
            self.pending.put(number, each.producer_id, [each.found], is_stale=each.is_stale)

    def end(self, number: int, end: TransactionEnd) -> None:
        """A producer's transaction has ended in a partition of the topic."""
        for each in self.pending.take(number, end.producer_id, commit=end.commit):
            group = self._table.get_or_create(each.group_id)
            group.offsets.put(each.topic, each.partition, each.offset)
