"""The tier as a log sees it: the record beside its files, and segments for what it says.

A `TierView` asks no store: it is made from the partition's record. What local files hold is read
from them; the tier serves the offsets below.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.errors import CorruptFile
from tidelog.storage.handles import FilePool, MapCache
from tidelog.storage.segment import SegmentContext
from tidelog.storage.tiers.record import TierRecord, read_record, record_path
from tidelog.storage.tiers.remote_segment import RemoteContext, RemoteSegment
from tidelog.storage.tiers.rows import TierSegment
from tidelog.storage.tiers.tier_files import TierFiles


@dataclass(frozen=True, slots=True)
class TierAccess:
    """What all partitions of a directory share to read their tiers.

    Attributes:
        files: Reads objects.
        pool: Open objects; they hold nothing.
        maps: Not used by remote segments; here because contexts have one.
    """

    files: TierFiles
    pool: FilePool
    maps: MapCache

    @classmethod
    def over(cls, files: TierFiles) -> "TierAccess":
        """Access by these files."""
        return cls(files, FilePool(files, write=False), MapCache(files))


@dataclass(frozen=True, slots=True)
class TierView:
    """A partition's tier, as its record says."""

    record: TierRecord
    context: SegmentContext
    access: TierAccess

    @classmethod
    def load(cls, context: SegmentContext, access: TierAccess) -> "TierView | None":
        """The tier of a partition, None where it has none.

        Raises:
            CorruptFile, UnsupportedVersion: The record can't be read, or is another topic's:
                nobody knows then what is local only.
            OSError: A call failed.
        """
        found = read_record(context.env.files, context.directory)
        if found is None:
            return None
        topic_id = context.topic_id
        if topic_id.int and found.manifest.topic_id != topic_id.hex:
            raise CorruptFile(
                f"it is about topic id {found.manifest.topic_id}, this topic's is {topic_id.hex}:"
                " a copy from another topic's directory? Remove it if so",
                path=record_path(context.directory),
            )
        return cls(found, context, access)

    def with_record(self, record: TierRecord) -> "TierView":
        """The same partition with another record."""
        return dataclasses.replace(self, record=record)

    @property
    def url(self) -> str:
        """Of the partition's folder."""
        return f"{self.record.url}/{self.record.folder}"

    @property
    def end_offset(self) -> int:
        """Offset behind the last segment in the tier."""
        return self.record.manifest.end_offset

    def local_bases(self, bases: Sequence[int]) -> list[int]:
        """The bases of local segments that count; older ones are copies that were to go.

        A crash may leave some of those, with holes between them. While a cut below the local part
        is under way, only the segment counts with which the log goes on.
        """
        restart = self.record.restart_offset
        if restart is not None:
            return [base for base in bases if base == restart]
        start = self.record.local_start_offset
        return [base for base in bases if base >= start]

    def segments(self, below: int | None) -> list[RemoteSegment]:
        """Segments for what lies in the tier alone, oldest first.

        Args:
            below: Where the local part begins; None where there is none.
        """
        start = self.record.log_start_offset
        return [
            self.segment(row)
            for row in self.record.manifest.segments
            if row.end_offset > start and (below is None or row.end_offset <= below)
        ]

    def segment(self, row: TierSegment) -> RemoteSegment:
        """A segment for one row."""
        shared = self.context
        return RemoteSegment(
            RemoteContext(
                env=dataclasses.replace(shared.env, files=self.access.files),
                directory=shared.directory,
                topic_partition=shared.topic_partition,
                topic_id=shared.topic_id,
                config=shared.config,
                pool=self.access.pool,
                maps=self.access.maps,
                report=shared.report,
                url=self.record.url,
                folder=self.record.folder,
                row=row,
            )
        )

    def hole(self, local_start: int) -> tuple[int, int] | None:
        """Offsets [start, end) that neither tier has; None where they meet."""
        start = max(self.end_offset, self.record.log_start_offset)
        return (
            (start, local_start) if self.record.manifest.segments and start < local_start else None
        )
