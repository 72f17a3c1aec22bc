"""A partition that is open for writing and takes cleaned segments in the place of its own.

A compaction writes its files beside the partition's (`storage.compaction`); here the log shows
them. Between a published commit record and its end the files of old segments get Kafka's suffix
`.deleted`, those of the new one their final names, and the log's list of segments changes, all in
one call: no read of this process comes between. Whoever holds an old segment reads it on under its
new name, until `file.delete.delay.ms` is over.

Source: Kafka 4.x LocalLog.replaceSegments.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.errors import InvalidRequest
from tidelog.storage import files
from tidelog.storage.adopting import AdoptingLog
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.commits import Commit
from tidelog.storage.roll import RollReason
from tidelog.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class CleanedSwap:
    """A published swap.

    Attributes:
        old: The segments that go, as the log showed them when the cleaning began.
        end_offset: Offset behind the new one, which has the first old one's base.
        commit: What was published: the new files have `.swap` names.
    """

    old: Sequence[ClosedSegment]
    end_offset: int
    commit: Commit


class CompactingLog(AdoptingLog):
    """A partition whose finished segments may be compacted."""

    def cleanable_segments(self) -> list[ClosedSegment]:
        """The finished segments, oldest first.

        Raises:
            InvalidRequest: Some have copies in a tier, which would be others then.
            StorageFailure, Closed: The partition is offline or closed.
        """
        self._ensure_writable()
        if self._tier is not None:
            raise InvalidRequest(
                f"{self.topic_partition}: segments with copies in a tier can't be compacted here"
            )
        return [each for each in self._segments[:-1] if isinstance(each, ClosedSegment)]

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Whether the log shows exactly these objects still: none was cut, deleted, exchanged."""
        self._ensure_writable()
        known = {id(segment) for segment in self._segments}
        return all(id(segment) in known for segment in segments)

    def take_cleaned(self, swap: CleanedSwap) -> None:
        """Show a cleaned segment; its swap is published, the renames are made here.

        They are not durable when this returns: the commit record stays until they are.

        Raises:
            StorageFailure: The disk failed; the partition is offline, reopening shows the new one.
        """
        directory = self.context.directory
        self._guarded(directory, "swap cleaned segments", lambda: self._take_cleaned(swap))

    def _take_cleaned(self, swap: CleanedSwap) -> None:
        fs, directory, old = self.context.env.files, self.context.directory, swap.old
        for segment in old:
            _ = segment.txn_index, segment.append_times  # while their names mean what they did
        finals = [move.final for move in swap.commit.moves]
        going = [*(removal.name for removal in swap.commit.removes), *finals]
        aside = [name for name in going if fs.exists(f"{directory}/{name}")]
        paths = [f"{directory}/{name}" for name in going]
        with self.context.pool.replacing(paths), self.context.maps.replacing(paths):
            for name in aside:
                fs.rename(f"{directory}/{name}", f"{directory}/{name}{files.DELETED_SUFFIX}")
            for segment in old:
                segment.go_aside()
            for move in swap.commit.moves:
                fs.rename(f"{directory}/{move.staged}", f"{directory}/{move.final}")
        self._show_cleaned(old, swap.end_offset)
        due_ms = self.context.env.clock.now_ms() + self._config.file_delete_delay_ms
        self._bin.put([f"{directory}/{name}{files.DELETED_SUFFIX}" for name in aside], due_ms)

    def _show_cleaned(self, old: Sequence[ClosedSegment], end_offset: int) -> None:
        at = next(n for n, each in enumerate(self._segments) if each is old[0])
        shown = ClosedSegment(self.context, old[0].base_offset, end_offset)
        behind = self._segments[at + len(old) :]
        self._replace_segments([*self._segments[:at], shown, *behind])
        self._notes.exchanged([segment.base_offset for segment in old], [shown])
        self._map_later([shown])

    def roll_idle(self) -> bool:
        """Finish the active segment because its records wait for their compaction too long.

        False where it is empty; errors as `roll`.
        """
        return self.roll(RollReason.COMPACTION_LAG)
