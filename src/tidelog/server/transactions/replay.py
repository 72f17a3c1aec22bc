"""What one partition of `__transaction_state` says, read from its first record to its last.

Only the last record of a key counts, so the others are not decoded.

Source: Kafka 4.3's loader of that topic.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.record.batch import RecordBatch
from tidelog.record.pairs import read_pairs
from tidelog.record.views import Batch
from tidelog.server.groups.log_pieces import FindKernels, take_log
from tidelog.server.transactions.metadata import TransactionMetadata
from tidelog.server.transactions.records import decode_key, decode_value
from tidelog.storage.reading import LogSlice

if TYPE_CHECKING:
    from tidelog.record.latest_records import LatestRecord


class TransactionReplay:
    """Collects records in the order of the log; then says what transactional ids there are."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes] = {}

    def take(
        self, slices: Iterable[LogSlice], find_kernels: FindKernels = lambda: None
    ) -> Iterator[int]:
        """Take all batches of a log; as `take_log`."""
        return take_log(slices, self, find_kernels)

    def add(self, batch: Batch) -> None:
        """Take a batch; raises CorruptData where its records can't be read."""
        if batch.is_control or not isinstance(batch, RecordBatch):
            return  # nobody writes such ones there
        for _, key, value in read_pairs(bytes(batch.body()), batch.record_count):
            if key is None:
                raise CorruptMessage("a record of a transaction without a key", at=0)
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def add_latest(self, found: "Iterable[LatestRecord]") -> None:
        """Take what some batches come to that are no markers."""
        for key, value, _, _ in found:
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value

    def found(self) -> dict[str, TransactionMetadata]:
        """What is known of each transactional id.

        Raises:
            CorruptMessage: A key or a value breaks a rule, or has a version that nobody knows;
                names the transactional id.
        """
        found = {}
        for key, value in self._latest.items():
            transactional_id = decode_key(key)
            if transactional_id is not None:
                found[transactional_id] = _read(transactional_id, value)
        return found


def _read(transactional_id: str, value: bytes) -> TransactionMetadata:
    try:
        return decode_value(transactional_id, value)
    except (CorruptMessage, UnsupportedVersion) as error:
        reason = f"what is known of the transactional id {transactional_id!r}: {error}"
        raise CorruptMessage(reason) from error
