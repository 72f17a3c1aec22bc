"""One cleaning on its way: both passes over the sources of a job, and the files that they make.

Imports numpy and numba.
"""

from contextlib import suppress
from dataclasses import replace

from tidelog.env import Env
from tidelog.storage import files
from tidelog.storage.compaction.cleaned_files import CleanedFiles, SourceTimes
from tidelog.storage.compaction.job import (
    Cleaned,
    CleanedGroup,
    CleaningJob,
    Group,
    SourceSegment,
    Throttle,
)
from tidelog.storage.compaction.key_mapping import (
    AbortedSpans,
    Mapped,
    Mapper,
    OffsetMap,
    Retention,
    TransactionWalk,
)
from tidelog.storage.compaction.rewriting import Cleaning, Planner, Seen, SourcePass
from tidelog.storage.compaction.source_reader import SourceReader


class Work:
    """One cleaning: run once, and discard where that fails."""

    def __init__(
        self,
        job: CleaningJob,
        env: Env,
        throttle: Throttle | None,
        hash_mask: tuple[int, int],
    ) -> None:
        self._job = job
        self._env = env
        self._throttle = throttle
        self._hash_mask = hash_mask
        self._sources = {source.base_offset: source for source in job.sources}
        self._files: list[CleanedFiles] = []
        self._retention = Retention(job)
        self._spans = AbortedSpans(job.aborted)
        self._walk = TransactionWalk(self._spans)
        # The walk has met every batch of the log below this offset.
        self._walked_to = job.log_start_offset

    def run(self) -> Cleaned:
        """Map and rewrite; raises as `worker.clean`."""
        self._remove_files()
        job = self._job
        reader = SourceReader(job, self._env, self._throttle)
        offset_map = OffsetMap(
            job.rules,
            job.seed,
            hash_mask=self._hash_mask,
            offset_count=job.map_to - job.map_from,
        )
        mapped = Mapper(job, reader, offset_map, self._retention, self._spans).run()
        cleaning = Cleaning(job, reader, offset_map, mapped, self._spans)
        groups = [self._rewrite(cleaning, group) for group in self._due(mapped)]
        keys = offset_map.key_count
        # Zone maps are made once the map's memory is free.
        offset_map.release()
        for slot, out in enumerate(self._files):
            out.add_zones()
            groups[slot] = replace(groups[slot], suffixes=tuple(out.suffixes))
        self._env.files.sync_dir(job.directory)
        return Cleaned(
            groups=tuple(groups),
            mapped_to=mapped.mapped_to,
            keys=keys,
            bytes_read=reader.bytes_read,
            bytes_written=sum(out.bytes_written for out in self._files),
        )

    def _due(self, mapped: Mapped) -> list[Group]:
        """The groups that the map says something of."""
        job = self._job
        return [
            replace(group, drop_expired=job.lets_go(group, mapped.mapped_to))
            for group in job.groups
            if group.bases[0] < mapped.mapped_to
        ]

    def _rewrite(self, cleaning: Cleaning, group: Group) -> CleanedGroup:
        sources = [self._sources[base] for base in group.bases]
        out = CleanedFiles(self._job, sources, self._env, self._throttle)
        self._files.append(out)
        found = []
        for source in sources:
            planner = Planner(
                self._job,
                group,
                source,
                self._retention,
                self._walk,
                Seen(cleaning.mapped.mapped_to, self._walk_on(source)),
            )
            times = SourceTimes(self._job, source, self._env)
            found.append(SourcePass(cleaning, source, planner, out, times).run())
        out.finish(self._walk.take_kept())
        return CleanedGroup(
            base_offset=group.bases[0],
            end_offset=sources[-1].end_offset,
            sources=tuple(found),
            suffixes=(),
        )

    def _walk_on(self, source: SourceSegment) -> bool:
        """Whether the walk goes through a source without having left out anything before it."""
        if source.base_offset > self._walked_to:
            return False
        self._walked_to = max(self._walked_to, source.end_offset)
        return True

    def discard(self) -> None:
        """Take away what was written, as far as the disk lets."""
        for out in self._files:
            with suppress(OSError):
                out.close()
        with suppress(OSError):
            self._remove_files()

    def _remove_files(self) -> None:
        """Remove the `.cleaned` files of the job's groups, those of earlier attempts too."""
        for group in self._job.groups:
            for suffix in files.SEGMENT_SUFFIXES:
                name = files.file_name(group.bases[0], suffix)
                path = f"{self._job.directory}/{name}{files.CLEANED_SUFFIX}"
                if self._env.files.exists(path):
                    self._env.files.remove(path)
