"""The calls that long jobs make on an open log, from any thread.

An attach, a cleaning, a copy to the tier and an erasure use a `LogAccess`. In the thread that owns
the log, that is the `Log` itself. A broker's logs belong to the event loop: other threads get a
proxy whose calls run there. So a job must not call any other method of a log.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidelog.record.builder import BATCH_BYTES
from tidelog.storage.commits import Commit
from tidelog.storage.log.append import AppendResult
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_swaps import Adoption, Swap
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.retention import Deletion
from tidelog.storage.segment.roll import RollReason, SegmentNote
from tidelog.storage.segment.segment import Segment
from tidelog.types import Codec, NewRecord

if TYPE_CHECKING:
    from tidelog.storage.tier.tier_record import TierRecord


class SwapAccess(Protocol):
    """The calls that jobs make on `SegmentSwaps`, which documents them."""

    def prepare_adoption(self) -> Adoption:
        """Prepare to add segments at the log end."""

    def finished_run(self, bases: Sequence[int]) -> list[ClosedSegment]:
        """Return the finished, consecutive local segments with these base offsets."""

    def cleanable_segments(self) -> list[ClosedSegment]:
        """Return the finished segments, oldest first."""

    def still_has(self, segments: Iterable[Segment]) -> bool:
        """Return whether the log still shows exactly these objects."""

    def show(self, swap: Swap, commit: Commit, operation: str) -> list[str]:
        """Rename the files of new segments into place, and show the segments."""

    def go_offline(self, operation: str, reason: str) -> None:
        """Take the partition offline."""


class LogAccess(LogView):
    """A log for long jobs: its reads, and the methods that change it. `Log` documents those."""

    @property
    @abstractmethod
    def swaps(self) -> SwapAccess:
        """Adds or replaces finished segments."""

    def refresh(self) -> None:
        """Do nothing: the writer's own view is always current."""

    @property
    def active(self) -> ActiveSegment:
        """The segment that takes appends."""
        return self._list.active

    @property
    @abstractmethod
    def recovery_point(self) -> int:
        """Offset below which everything is durable."""

    @abstractmethod
    def append(
        self,
        records: Iterable[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
    ) -> AppendResult:
        """Append records."""

    @abstractmethod
    def flush(self) -> None:
        """Make everything that was appended durable."""

    @abstractmethod
    def roll(self, reason: RollReason = RollReason.REQUEST) -> bool:
        """Finish the active segment."""

    @abstractmethod
    def note_of(self, segment: Segment) -> tuple[SegmentNote | None, int]:
        """Return a local segment's note, and when its records had arrived, in ms."""

    @abstractmethod
    def apply_retention(self, *, by_age: bool = True) -> list[Deletion]:
        """Delete the segments that have expired; return them, oldest first."""

    @abstractmethod
    def advance_start(self, offset: int) -> None:
        """Move the log start, regardless of the topic's policy on deletion."""

    @abstractmethod
    def take_tier(self, record: "TierRecord") -> None:
        """Use another record of the tier."""
