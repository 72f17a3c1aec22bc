"""One cleaning in progress: two passes over a job's sources; the second pass writes the files.

Imports numpy and numba.
"""

from contextlib import suppress
from dataclasses import replace

from tidelog.env import Env
from tidelog.storage import log_files
from tidelog.storage.compaction.cleaned_files import CleanedFiles, SourceTimes
from tidelog.storage.compaction.job import (
    CleanedGroup,
    CleaningJob,
    CleaningResult,
    Group,
    Throttle,
)
from tidelog.storage.compaction.key_mapping import (
    AbortedSpans,
    Mapper,
    OffsetMap,
    Retention,
    TransactionWalk,
)
from tidelog.storage.compaction.rewriting import Cleaning, SourcePass
from tidelog.storage.compaction.source_reader import SourceReader


class CleaningRun:
    """One cleaning. Call `run` once, and call `discard` if `run` fails."""

    def __init__(self, job: CleaningJob, env: Env, throttle: Throttle | None) -> None:
        self._job = job
        self._env = env
        self._throttle = throttle
        self._files: list[CleanedFiles] = []

    def run(self, hash_mask: tuple[int, int]) -> CleaningResult:
        """Map the keys and rewrite the batches; raises the errors of `worker.clean`."""
        self._remove_files()
        job = self._job
        reader = SourceReader(job, self._env, self._throttle)
        retention, spans = Retention(job), AbortedSpans(job.aborted)
        offset_map = OffsetMap(
            job.rules, job.seed, hash_mask=hash_mask, offset_count=job.map_to - job.map_from
        )
        mapped = Mapper(job, reader, offset_map, retention, spans).run()
        walk = TransactionWalk(spans, job.log_start_offset)
        cleaning = Cleaning(job, reader, offset_map, mapped, retention, spans, walk)
        # Groups that begin after the mapped offsets are skipped: the map has no keys of their
        # records.
        groups = [
            self._rewrite(cleaning, replace(each, drop_expired=job.lets_go(each, mapped.mapped_to)))
            for each in job.groups
            if each.bases[0] < mapped.mapped_to
        ]
        keys = offset_map.key_count
        # Free the offset map's memory before the zone maps are built.
        offset_map.release()
        for slot, out in enumerate(self._files):
            out.add_zones()
            groups[slot] = replace(groups[slot], suffixes=tuple(out.suffixes))
        self._env.files.sync_dir(job.directory)
        return CleaningResult(
            groups=tuple(groups),
            mapped_to=mapped.mapped_to,
            keys=keys,
            bytes_read=reader.bytes_read,
            bytes_written=sum(out.bytes_written for out in self._files),
        )

    def _rewrite(self, cleaning: Cleaning, group: Group) -> CleanedGroup:
        job, bases = self._job, set(group.bases)
        sources = [each for each in job.sources if each.base_offset in bases]
        out = CleanedFiles(job, sources, self._env, self._throttle)
        self._files.append(out)
        cleaned = [
            SourcePass(cleaning, group, each, out, SourceTimes(job, each, self._env)).run()
            for each in sources
        ]
        out.finish(cleaning.walk.take_retained())
        return CleanedGroup(
            base_offset=group.bases[0],
            end_offset=sources[-1].end_offset,
            sources=tuple(cleaned),
            suffixes=(),
        )

    def discard(self) -> None:
        """Remove the files that were written, ignoring errors of the disk."""
        for out in self._files:
            with suppress(OSError):
                out.close()
        with suppress(OSError):
            self._remove_files()

    def _remove_files(self) -> None:
        """Remove the `.cleaned` files of the job's groups, even files of earlier attempts."""
        for group in self._job.groups:
            for suffix in log_files.SEGMENT_SUFFIXES:
                path = log_files.cleaned_path(self._job.directory, group.bases[0], suffix)
                if self._env.files.exists(path):
                    self._env.files.remove(path)
