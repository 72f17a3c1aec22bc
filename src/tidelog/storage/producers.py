"""What a partition knows of its producers: last batches, epochs, open transactions.

An idempotent producer numbers its records. The log takes a batch only if it follows the last one,
knows a repetition of any of the last five batches, and fences older instances by their epoch. A
transaction is open from its first record until its marker; readers of committed records stop at
the first open one (the last stable offset). On one node everything in the log is committed, so a
marker takes effect at once.

Pure. `check` before the write raises and changes nothing; `update` after the write and `replay`
at start-up never refuse. The rules that `check` goes by are in `producer_rules`, the snapshot's
bytes in `producer_snapshot`.

Source: Kafka 4.x ProducerStateManager, ProducerAppendInfo; KIP-98, KIP-890; docs/format.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Self

from tidelog.errors import (
    InvalidTxnState,
)
from tidelog.record.views import Batch
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.producer_entry import (
    Duplicate,
    ProducerBatch,
    ProducerEntry,
    from_snapshot,
    to_snapshot,
)
from tidelog.storage.producer_rules import check_epoch, check_marker, check_sequence, end_marker
from tidelog.storage.producer_snapshot import decode_snapshot, encode_snapshot, in_hash_order
from tidelog.storage.txn_index import AbortedTxn
from tidelog.types import NO_TIMESTAMP, Buffer

__all__ = ["CompletedTxn", "Duplicate", "ProducerBatch", "ProducerEntry", "ProducerStates"]

# Kafka's default of `producer.id.expiration.ms`: who was silent for so long is forgotten.
PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000


class CompletedTxn(NamedTuple):
    """A transaction whose marker was written at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerStates:
    """All producers of a partition and its open transactions. For one thread at a time."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._producers = {entry.producer_id: entry for entry in entries}
        self._peak_count = len(self._producers)
        open_txns = (
            (entry.txn_first_offset, entry.producer_id)
            for entry in self._producers.values()
            if entry.txn_first_offset is not None
        )
        self._open = dict(sorted(open_txns))  # first offset -> producer; stays sorted: logs grow

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """All producers by id, a copy."""
        return dict(self._producers)

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Producer id by first offset of each open transaction, in order of offsets, a copy."""
        return dict(self._open)

    def find(self, producer_id: int) -> ProducerEntry | None:
        """One producer, None where it is not known."""
        return self._producers.get(producer_id)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether this instance of a producer has a transaction open here."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.txn_first_offset is not None and entry.epoch == epoch

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest open transaction, None where none is open."""
        return next(iter(self._open), None)

    def last_stable_offset(self, log_end: int) -> int:
        """Offset below which no transaction is open, the log end where none is."""
        return next(iter(self._open), log_end)

    def check(
        self, batch: Batch, *, origin: AppendOrigin, transaction_version: int = 0
    ) -> Duplicate | None:
        """Whether the log may take a batch of a producer with an id; changes nothing.

        Args:
            batch: With its final offsets.
            origin: Sequences are checked, and repetitions looked for, for CLIENT only; with
                REPLICATION nothing is refused, a leader has checked it.
            transaction_version: Version of transactions that a marker was sent with; from 2 on
                its epoch must be above the producer's.

        Returns:
            The batch that this one repeats, which must not be written again; else None.

        Raises:
            InvalidProducerEpoch: A newer instance of the producer has written.
            OutOfOrderSequence: The batch does not follow the producer's last one.
            InvalidTxnState: A batch outside of a transaction while one is open.
            TransactionCoordinatorFenced: A marker of an older coordinator.
        """
        entry = self._entry(batch)
        if origin is AppendOrigin.REPLICATION:
            return None
        if batch.is_control:
            check_marker(entry, batch, transaction_version)
            return None
        if origin is AppendOrigin.CLIENT:
            duplicate = entry.find_duplicate(batch)
            if duplicate is not None:
                return duplicate
        check_epoch(entry, batch)
        if origin is AppendOrigin.CLIENT:
            check_sequence(entry, batch)
        if entry.txn_first_offset is not None and not batch.is_transactional:
            raise InvalidTxnState(
                f"producer {entry.producer_id} has a transaction open since offset "
                f"{entry.txn_first_offset}, its batch at {batch.base_offset} is not part of one"
            )
        return None

    def __len__(self) -> int:
        """How many producers are known."""
        return len(self._producers)

    @property
    def open_count(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    def update(self, batch: Batch, arrival_ms: int = NO_TIMESTAMP) -> CompletedTxn | None:
        """Take note of a batch that was written; the transaction that its marker ended, if any.

        An empty control batch (its transaction was cleaned away) changes nothing, nor does a
        control record that is no marker.

        Args:
            batch: As it was written.
            arrival_ms: When it came, by the wall clock; -1 where that is not known.
        """
        entry = self._entry(batch)
        if not batch.is_control:
            self._put(entry.with_batch(batch, arrival_ms))
            if entry.txn_first_offset is None and batch.is_transactional:
                self._open[batch.base_offset] = entry.producer_id
            return None
        found = end_marker(batch)
        if found is None:
            return None
        timestamp, marker = found
        self._put(entry.with_marker(batch.producer_epoch, marker, timestamp, arrival_ms))
        if entry.txn_first_offset is None:
            return None
        self._open.pop(entry.txn_first_offset, None)
        aborted = not marker.is_commit
        return CompletedTxn(entry.producer_id, entry.txn_first_offset, batch.base_offset, aborted)

    def replay(self, batch: Batch) -> CompletedTxn | None:
        """`update` for a batch read back from the log."""
        return self.update(batch)

    def aborted_entry(self, completed: CompletedTxn) -> AbortedTxn:
        """The transaction index entry for a transaction that was just aborted."""
        others = (first for first, owner in self._open.items() if owner != completed.producer_id)
        last_stable = next(others, completed.last_offset + 1)
        return AbortedTxn(
            completed.producer_id, completed.first_offset, completed.last_offset, last_stable
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for `expiration_ms`; how many.

        Those with an open transaction stay. Who writes old records is not silent: of a timestamp
        and when it came the later one counts. (Apache Kafka goes by the timestamp alone: it forgets
        such a producer at each look, and takes what it repeats.)

        Source: `producer.id.expiration.ms`.
        """
        silent = self._silent(now_ms - expiration_ms)
        for entry in silent:
            del self._producers[entry.producer_id]
        return len(silent)

    def learn_arrivals(self, since_ms: int, appended_by_ms: Callable[[int], int | None]) -> None:
        """Find out when producers wrote whose timestamps lie before `since_ms`, after a start.

        Args:
            since_ms: Who has written later by a timestamp needs no other proof.
            appended_by_ms: Until when the record at an offset was appended at the latest, in ms;
                None where that can't be said.
        """
        for entry in self._silent(since_ms):
            came_ms = appended_by_ms(entry.batches[-1].last_offset) if entry.batches else None
            if came_ms is not None:
                self._producers[entry.producer_id] = replace(entry, arrival_ms=came_ms)

    def _silent(self, since_ms: int) -> list[ProducerEntry]:
        return [
            entry
            for entry in self._producers.values()
            if entry.txn_first_offset is None
            and max(entry.last_timestamp, entry.arrival_ms) <= since_ms
        ]

    def end_silent(self, offset: int) -> list[int]:
        """Take for ended the open transactions in which nothing was written from `offset` on.

        Returns:
            Their producers' ids.
        """
        ended = []
        for first, producer_id in self.open_transactions.items():
            entry = self._producers[producer_id]
            last = entry.batches[-1].last_offset if entry.batches else first
            if max(first, last) < offset:
                self._end(first)
                ended.append(producer_id)
        return ended

    def end_of(self, next_firsts: Mapping[int, int], log_end: int) -> list[int]:
        """Take for ended open transactions of producers that have begun others since.

        Args:
            next_firsts: First offset of each producer's next transaction.
            log_end: Those that begin below it are open now.

        Returns:
            Producers of which one was open.
        """
        ended = [(first, each) for first, each in self._open.items() if each in next_firsts]
        for first, producer_id in ended:
            self._end(first)
            if next_firsts[producer_id] < log_end:
                self._begin(next_firsts[producer_id], producer_id)
        return [producer_id for _, producer_id in ended]

    def _begin(self, first: int, producer_id: int) -> None:
        entry = self._producers[producer_id]
        self._producers[producer_id] = replace(entry, txn_first_offset=first)
        self._open = dict(sorted({**self._open, first: producer_id}.items()))

    def take_ends(self, told: "ProducerStates") -> None:
        """End the open transactions that a snapshot of the same offset does not know as open.

        What it knows of a later one of such a producer is taken over.
        """
        later = {each: first for first, each in told.open_transactions.items()}
        for first, producer_id in self.open_transactions.items():
            if later.get(producer_id) != first:
                self._end(first)
                if producer_id in later:
                    self._begin(later[producer_id], producer_id)

    def _end(self, first: int) -> None:
        producer_id = self._open.pop(first)
        self._producers[producer_id] = replace(self._producers[producer_id], txn_first_offset=None)

    def ending_from(self, offset: int) -> list[ProducerEntry]:
        """Producers whose last batch ends at or behind `offset`."""
        return [
            entry
            for entry in self._producers.values()
            if entry.batches and entry.batches[-1].last_offset >= offset
        ]

    def recall(self, seen: ProducerEntry) -> None:
        """Take over the batches of a known producer from who saw more, if the last is the same."""
        entry = self._producers[seen.producer_id]
        if entry.is_continued_by(seen):
            self._producers[entry.producer_id] = replace(entry, batches=seen.batches)

    def encode_snapshot(self) -> bytes:
        """The bytes of `OFFSET.snapshot`, producers in the order in which Kafka would write them.

        Only the last batch of each producer is kept.
        """
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """Take note of all producers as they are now, which is quick even for a million.

        Returns:
            What makes `encode_snapshot`'s bytes of them, for any thread.
        """
        producers, peak_count = self._producers.copy(), self._peak_count

        def encode() -> bytes:
            producer_ids = in_hash_order(producers, peak_count)
            return encode_snapshot(to_snapshot(producers[each]) for each in producer_ids)

        return encode

    @classmethod
    def decode_snapshot(cls, data: Buffer) -> Self:
        """The producers in a snapshot; call `expire` next, as Kafka does.

        Raises:
            CorruptFile: The bytes break a rule; an older snapshot, or none, serves as well.
        """
        return cls(map(from_snapshot, decode_snapshot(data)))

    def _entry(self, batch: Batch) -> ProducerEntry:
        producer_id = batch.producer_id
        assert producer_id >= 0
        return self._producers.get(producer_id) or ProducerEntry(producer_id)

    def _put(self, entry: ProducerEntry) -> None:
        self._producers[entry.producer_id] = entry
        self._peak_count = max(self._peak_count, len(self._producers))
