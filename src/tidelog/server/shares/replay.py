"""What one partition of `__share_group_state` says, read from its first record to its last.

Source: Kafka 4.3's ShareCoordinatorShard.replay.
"""

from collections.abc import Iterable, Iterator

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.record.batch import RecordBatch
from tidelog.record.pairs import read_pairs
from tidelog.record.views import Batch
from tidelog.server.groups.log_pieces import take_batches
from tidelog.server.shares.kept import KeptState, ShareKey
from tidelog.server.shares.records import SNAPSHOT, read_key, read_snapshot, read_update
from tidelog.storage.reading import LogSlice


class ShareReplay:
    """Collects records in the order of the log.

    Attributes:
        found: What is kept of each share partition.
        snapshots: The offset of each one's last snapshot.
    """

    def __init__(self) -> None:
        self.found: dict[ShareKey, KeptState] = {}
        self.snapshots: dict[ShareKey, int] = {}

    def take(self, slices: Iterable[LogSlice]) -> Iterator[int]:
        """Take all batches of a log; a pause after each piece of it, with its bytes.

        Raises:
            CorruptData: A batch is damaged, or a record breaks a rule; names file and position.
        """
        return take_batches(slices, self.add)

    def add(self, batch: Batch) -> None:
        """Take a batch; raises CorruptData where its records can't be read."""
        if batch.is_control or not isinstance(batch, RecordBatch):
            return  # nobody writes such ones there
        pairs = read_pairs(bytes(batch.body()), batch.record_count)
        for delta, key, value in pairs:
            named = read_key(key)
            if named is not None:
                self._take(*named, value, batch.base_offset + delta)

    def _take(self, kind: int, key: ShareKey, value: bytes | None, offset: int) -> None:
        try:
            if kind == SNAPSHOT:
                self._take_snapshot(key, value, offset)
            elif value is not None:
                self._take_update(key, value)
        except (CorruptMessage, UnsupportedVersion) as error:
            raise CorruptMessage(f"what is kept of {key.text!r}: {error}") from error

    def _take_snapshot(self, key: ShareKey, value: bytes | None, offset: int) -> None:
        if value is None:
            self.found.pop(key, None)
            self.snapshots.pop(key, None)
        else:
            self.found[key] = read_snapshot(value)
            self.snapshots[key] = offset

    def _take_update(self, key: ShareKey, value: bytes) -> None:
        kept = self.found.get(key)
        epoch, update = read_update(value)
        # One whose snapshot was removed since says nothing by itself.
        if kept is not None and kept.snapshot_epoch == epoch:
            self.found[key] = kept.after(update)
