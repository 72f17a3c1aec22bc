"""A cleaning's job over segments of a tier: cleaned, and copied into the tier, by whoever can.

It needs no lock: what it writes are objects that no manifest names yet, and `.cleaned` files in a
place of its own. So it may be done beside the directory, or on another machine, the parts of one
job side by side.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from tidelog.env import Env
from tidelog.errors import CorruptFile
from tidelog.record.builder import build_empty_batch
from tidelog.storage.compaction.job import Cleaned, CleanedGroup, CleaningJob
from tidelog.storage.compaction.process import InProcess
from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.storage.tiering.rewriting import (
    TierSources,
    Workplace,
    aliases_of,
    copy_rewritten,
    drop_rewritten,
    write_rewritten,
)
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.storage.tiers.rows import TierSegment, decode_row, encode_row
from tidelog.storage.tiers.tier_files import TierFiles
from tidelog.storage.trust import last_batch
from tidelog.types import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What was made of a job, or of a part of it.

    Attributes:
        cleaned: What the cleaning tells.
        rows: For each of its groups the segment that is in the store; no manifest names it.
    """

    cleaned: Cleaned
    rows: tuple[TierSegment, ...]

    def to_json(self) -> str:
        """The same as a JSON text."""
        return json.dumps([self.cleaned.to_json(), [encode_row(row) for row in self.rows]])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; raises CorruptFile for another shape."""
        match json.loads(text):
            case [str(cleaned), list(rows)]:
                return cls(cleaned=Cleaned.from_json(cleaned), rows=tuple(map(decode_row, rows)))
        raise CorruptFile(f"{text[:80]}: no result of a cleaning of a tier")


class TierWorker(Protocol):
    """Who carries a job over a tier out."""

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        """Clean and copy; parts of the job by ascending offsets, which come to all of it.

        What is yielded is put into the manifest before the next part is asked for.

        Args:
            job: What to do.
            segments: Its sources by base offset, as they were when it was made.

        Raises:
            TidelogError, OSError: It could not; parts before are in place.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCleaner:
    """Does a job in this process; a `TierWorker`.

    Attributes:
        place: Where files lie meanwhile.
        tier: Where the segments go.
        tier_files: Reads objects, and has all other files.
        draw_uid: Names copies as nothing was named before.
    """

    place: Workplace
    tier: PartitionTier
    tier_files: TierFiles
    draw_uid: Callable[[], str]

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        """See `TierWorker`; all of the job in one part."""
        yield self.rewritten(job, segments)

    def rewritten(self, job: CleaningJob, segments: Mapping[int, RemoteSegment]) -> Rewritten:
        """Do it.

        Raises:
            CorruptData, UnsupportedCompression: A source is damaged, or what was read back is.
            OSError, StorageFailure: Disk or store failed. Orphans may be left in the store.
        """
        place, sources = self.place, [segments[each.base_offset] for each in job.sources]
        below = place.log.context.env
        aliases = aliases_of(sources, place.directory)
        env = Env(
            files=TierSources(self.tier_files, aliases), clock=below.clock, random=below.random
        )
        try:
            cleaned = InProcess(env).clean(replace(job, directory=place.directory))
            rows = [
                self._copied(group, [segments[base] for base in group.bases])
                for group in cleaned.groups
            ]
        finally:
            for group in job.groups:
                drop_rewritten(place, group.bases[0])
        return Rewritten(cleaned=cleaned, rows=tuple(rows))

    def _copied(self, group: CleanedGroup, old: Sequence[RemoteSegment]) -> TierSegment:
        if not group.bytes_after:
            self._put_empty_batch(old)
        return copy_rewritten(self.place, self.tier, self.draw_uid(), old)

    def _put_empty_batch(self, old: Sequence[RemoteSegment]) -> None:
        """Nothing is left: a batch without records stands for the offsets; no object is empty."""
        base, end = old[0].base_offset, old[-1].end_offset
        last = next((found for each in reversed(old) if (found := last_batch(each))), None)
        batch = build_empty_batch(
            base_offset=base,
            last_offset=end - 1,
            max_timestamp=NO_TIMESTAMP,
            leader_epoch=-1 if last is None else last.leader_epoch,
        )
        write_rewritten(self.place, old, [batch])
