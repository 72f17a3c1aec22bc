"""Which leader epoch wrote which offsets: the list in `leader-epoch-checkpoint`.

Epochs and start offsets both grow strictly. An entry (epoch, start) says that the epoch wrote from
`start`, inclusive, up to the next entry's start. Pure: the caller writes the file after a change.

Source: Kafka 4.x LeaderEpochFileCache; docs/format.md#text-files.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Self

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, InvalidRequest, TidelogError
from tidelog.storage.files import LEADER_EPOCH_CHECKPOINT_FILE, read_file
from tidelog.storage.text_files import decode_checkpoint, encode_checkpoint, parse_number
from tidelog.types import NO_LEADER_EPOCH, Buffer


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset that it wrote."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epochs of one partition, oldest first. Not safe for two threads that change it."""

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
        """The newest entry, None where no epoch is known."""
        return self._entries[-1] if self._entries else None

    @property
    def latest_epoch(self) -> int:
        """The newest epoch, -1 where none is known."""
        return self._entries[-1].epoch if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: int, start: int) -> bool:
        """Note that `epoch` writes from offset `start`; whether the list changed.

        The newest epoch again, at its start or later, changes nothing. Otherwise entries at the
        end that are not below the new one in both epoch and offset go, as after a truncation.

        Raises:
            InvalidRequest: A negative epoch or offset; nothing was changed.
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
        """Drop epochs that start at or after `end_offset`; whether the list changed."""
        count = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset >= 0:
            self._entries.pop()
        return len(self._entries) < count

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drop epochs that end before `start_offset`, the new log start; whether the list changed.

        The epoch that wrote `start_offset` stays and now starts there.
        """
        before = self._count_up_to(start_offset)
        if before == 0:
            return False
        floor = EpochEntry(self._entries[before - 1].epoch, start_offset)
        changed = before > 1 or floor != self._entries[0]
        self._entries[:before] = [floor]
        return changed

    def clear(self) -> None:
        """Forget all epochs, as when batches without them (magic 0, 1) are appended."""
        self._entries.clear()

    def epoch_for(self, offset: int) -> int | None:
        """The epoch that wrote `offset`, None below the first entry."""
        count = self._count_up_to(offset)
        return self._entries[count - 1].epoch if count else None

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch <= `epoch` and its end offset, exclusive.

        That is what a follower asks to find where its log parts from the leader's.

        Args:
            epoch: The epoch asked for.
            log_end: Log end offset, which ends the newest epoch.

        Returns:
            (-1, -1) where the question can't be answered: an epoch of -1, or one newer than all.
            An epoch older than all gives itself with the start of the first entry.
        """
        if epoch == NO_LEADER_EPOCH or not self._entries or epoch > self.latest_epoch:
            return -1, -1
        if epoch == self.latest_epoch:
            return epoch, log_end
        higher = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        known = self._entries[higher - 1].epoch if higher else epoch
        return known, self._entries[higher].start_offset

    def encode(self) -> bytes:
        """The text of `leader-epoch-checkpoint`."""
        return encode_checkpoint(f"{entry.epoch} {entry.start_offset}" for entry in self._entries)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """The epochs that `encode` wrote.

        Raises:
            CorruptFile: The text breaks its rules, or epochs or offsets do not grow.
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


def read_next_epoch(fs: FileSystem, directory: str) -> int:
    """The epoch behind the last one that a partition's directory knows, -1 where it can't be read.

    0 where no record was ever written.
    """
    try:
        data = read_file(fs, f"{directory}/{LEADER_EPOCH_CHECKPOINT_FILE}")
        return LeaderEpochs.decode(data).latest_epoch + 1
    except FileNotFoundError:
        return 0
    except (OSError, TidelogError):
        return NO_LEADER_EPOCH
