"""Leader epochs of a log: the list, its file, and the epoch of an open log's own appends.

Epochs and start offsets both strictly increase. An entry (epoch, start) means that the leader of
that epoch wrote the records from `start`, inclusive, up to the next entry's start, exclusive.
`LeaderEpochs` does no I/O. `EpochCheckpoint` writes the file `leader-epoch-checkpoint`. A new epoch
is written to the file before the first batch of that epoch is written to the log.

Source: Kafka 4.x LeaderEpochFileCache; docs/format.md#text-files.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, InvalidRequest, TidelogError
from tidelog.record.batch_walk import Batch
from tidelog.storage.files import (
    LEADER_EPOCH_CHECKPOINT_FILE,
    read_decoded,
    read_file,
    write_atomically,
)
from tidelog.storage.segment.segment import SegmentContext
from tidelog.storage.text_files import decode_checkpoint, encode_checkpoint, parse_number
from tidelog.types import NO_LEADER_EPOCH, Buffer


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset that was written under it."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epochs of one partition, oldest first. Concurrent changes are not safe."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> EpochEntry | None:
        """Newest entry, None if no epoch is known."""
        return self._entries[-1] if self._entries else None

    @property
    def latest_epoch(self) -> int:
        """Newest epoch, -1 if none is known."""
        return self._entries[-1].epoch if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: int, start: int) -> bool:
        """Record that `epoch` begins at offset `start`; return whether the list changed.

        If the newest entry has the epoch `epoch` and a start at or below `start`, nothing changes.
        Otherwise the entry (`epoch`, `start`) is added, after two kinds of entries are removed:
        entries of `epoch` or a later epoch, and entries that start at or after `start`. Such
        entries exist, for example, after a truncation.

        Raises:
            InvalidRequest: The epoch or the offset is negative; nothing was changed.
        """
        if epoch < 0 or start < 0:
            raise InvalidRequest(f"leader epoch {epoch} at offset {start}: both must be >= 0")
        entries = self._entries
        if entries and epoch == entries[-1].epoch and start >= entries[-1].start_offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start):
            entries.pop()
        entries.append(EpochEntry(epoch, start))
        return True

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop epochs that start at or after `end_offset`; return whether the list changed."""
        count = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset >= 0:
            self._entries.pop()
        return len(self._entries) < count

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drop epochs whose records are all below `start_offset`; return whether the list changed.

        `start_offset` is the new log start. The epoch that wrote the record at `start_offset` is
        kept, and its start becomes `start_offset`.
        """
        before = self._count_up_to(start_offset)
        if before == 0:
            return False
        floor = EpochEntry(self._entries[before - 1].epoch, start_offset)
        changed = before > 1 or floor != self._entries[0]
        self._entries[:before] = [floor]
        return changed

    def clear(self) -> None:
        """Remove all epochs, for example if batches without an epoch (magic 0, 1) are appended."""
        self._entries.clear()

    def epoch_for(self, offset: int) -> int | None:
        """Return the epoch that wrote `offset`, None if `offset` is below the first entry."""
        count = self._count_up_to(offset)
        return self._entries[count - 1].epoch if count else None

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest known epoch <= `epoch` and its end offset, exclusive.

        A follower uses the result to find where its log diverges from the leader's log.

        Args:
            epoch: The requested epoch.
            log_end: Log end offset; it is the end of the newest epoch.

        Returns:
            (-1, -1) if `epoch` is -1 or newer than all known epochs, or if no epoch is known. If
            `epoch` is older than all known epochs: `epoch` and the start of the first entry.
        """
        if epoch == NO_LEADER_EPOCH or not self._entries or epoch > self.latest_epoch:
            return -1, -1
        if epoch == self.latest_epoch:
            return epoch, log_end
        higher = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        floor = self._entries[higher - 1].epoch if higher else epoch
        return floor, self._entries[higher].start_offset

    def encode(self) -> bytes:
        """Encode the text of `leader-epoch-checkpoint`."""
        return encode_checkpoint(f"{entry.epoch} {entry.start_offset}" for entry in self._entries)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Decode the result of `encode`.

        Raises:
            CorruptFile: The text is invalid, or epochs or offsets do not increase.
        """
        epochs = cls()
        for line in decode_checkpoint(data, 2):
            epoch, start = parse_number(line[0], "epoch"), parse_number(line[1], "start offset")
            last = epochs.latest
            if epoch < 0 or start < 0 or (last and (epoch <= last.epoch or start <= last[1])):
                raise CorruptFile(f"epoch {epoch} at offset {start} does not follow {last}")
            epochs.assign(epoch, start)
        return epochs

    def _count_up_to(self, offset: int) -> int:
        return bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)


class EpochCheckpoint:
    """Leader epochs of an open log, and the file `leader-epoch-checkpoint`.

    Only the thread that appends may use an object of this class.

    Attributes:
        epochs: Epochs of the log's records.
        leader_epoch: Epoch of this log's own appends, which are not copied from a leader.
        is_noted: Whether the file contains `leader_epoch`.
    """

    def __init__(self, context: SegmentContext, settle: Callable[[], None]) -> None:
        """Start without epochs; `load` reads them from the file.

        Args:
            context: The partition's files.
            settle: Waits for deferred writes. A write of the file waits first, because a deferred
                write could otherwise overwrite the newer file.
        """
        self._fs = context.env.files
        self._path = f"{context.directory}/{LEADER_EPOCH_CHECKPOINT_FILE}"
        self._settle = settle
        self.epochs = LeaderEpochs()
        self.leader_epoch = 0
        self.is_noted = False

    def load(self) -> None:
        """Read the file, and set `leader_epoch` above all epochs in it."""
        self.epochs = read_decoded(self._fs, self._path, LeaderEpochs.decode, self.epochs)
        self.outgrow()

    def write(self) -> None:
        """Write the file, durably, after all deferred work; raises OSError."""
        self._settle()
        self.save(self.epochs.encode())

    def save(self, encoded: bytes) -> None:
        """Write the encoded epochs to the file, durably; raises OSError. May run in any thread."""
        write_atomically(self._fs, self._path, encoded)

    def note_own(self, offset: int) -> None:
        """Store durably that `leader_epoch` starts at `offset`; raises OSError."""
        changed = not self.is_noted and self.epochs.assign(self.leader_epoch, offset)
        self.is_noted = True
        if changed:
            self.write()

    def note_copied(self, batches: Sequence[Batch]) -> None:
        """Store the epochs of a leader's batches, durably; raises OSError.

        A batch without an epoch removes all earlier epochs from the list.
        """
        changed = False
        for batch in batches:
            if batch.leader_epoch >= 0:
                changed |= self.epochs.assign(batch.leader_epoch, batch.base_offset)
            elif self.epochs.latest is not None:
                self.epochs.clear()
                changed = True
        if changed:
            self.write()

    def note_leaders(self, epoch: int, offset: int) -> None:
        """Store durably that another leader's `epoch` starts at `offset`."""
        self.epochs.assign(epoch, offset)
        self.write()
        self.outgrow()

    def outgrow(self) -> None:
        """Raise `leader_epoch` above the log's newest epoch, unless this log began that epoch.

        Without this step, the next append of this log might use the epoch of another leader.
        """
        latest = self.epochs.latest_epoch
        is_anothers = latest == self.leader_epoch and not self.is_noted
        if latest > self.leader_epoch or is_anothers:
            self.leader_epoch = latest + 1
            self.is_noted = False

    def begin_next(self) -> None:
        """Use a new epoch after a truncation, because other records may get the removed offsets."""
        if self.is_noted:
            self.leader_epoch += 1
            self.is_noted = False

    def cut_unwritten(self, end: int) -> None:
        """Drop epochs that start at or after the log end, when the log is opened.

        If an epoch started after the log end, the file gets an entry that `leader_epoch` starts at
        the log end. This entry prevents the log from using a dropped epoch again.
        """
        was_stale = any(entry.start_offset > end for entry in self.epochs.entries)
        self.epochs.truncate_from_end(end)
        if was_stale:
            self._write_with(self.leader_epoch, end)
            self.leader_epoch += 1

    def cut(self, offset: int) -> None:
        """Drop the epochs that start at or after `offset`, whose records a truncation removed.

        If no epoch remains, the file keeps the newest epoch, with the start `offset`. The kept
        epoch prevents the log from using the epoch again after the next opening. In Kafka the
        controller stores the newest epoch; in tidelog only this file stores it.
        """
        newest = self.epochs.latest_epoch
        if not self.epochs.truncate_from_end(offset):
            return
        if self.epochs.entries:
            self.write()
        else:
            self._write_with(newest, offset)

    def _write_with(self, epoch: int, offset: int) -> None:
        """Write the list and one more entry to the file; the list in memory stays unchanged."""
        entries = self.epochs.entries
        self.epochs.assign(epoch, offset)
        self.write()
        self.epochs = LeaderEpochs(entries)

    def clear(self) -> None:
        """Remove all epochs from the list and, durably, from the file."""
        if self.epochs.entries:
            self.epochs.clear()
            self.write()


def read_next_epoch(fs: FileSystem, directory: str) -> int:
    """Return the epoch after the last epoch in a partition's `leader-epoch-checkpoint`.

    Return -1 if the file is unreadable, 0 if there is no file.
    """
    try:
        data = read_file(fs, f"{directory}/{LEADER_EPOCH_CHECKPOINT_FILE}")
        return LeaderEpochs.decode(data).latest_epoch + 1
    except FileNotFoundError:
        return 0
    except (OSError, TidelogError):
        return NO_LEADER_EPOCH
