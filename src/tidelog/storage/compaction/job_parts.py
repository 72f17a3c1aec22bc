"""A cleaning's job in parts, for workers side by side: each maps all of the head's keys.

So what stays is what one cleaner would have kept, to the record. Markers of transactions go by what
was met before them in the log, and where versions decide, who rewrites the head has to have held
the whole tail against it: such a job has one part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidelog.storage.compaction.job import Cleaned, CleaningJob, Group


def parts_of(job: CleaningJob, part_bytes: int | None) -> Iterator[CleaningJob]:
    """The job in parts that rewrite about so many bytes each, in order; whole where None."""
    sizes = {source.base_offset: source.size_bytes for source in job.sources}
    group_sizes = [sum(sizes[base] for base in group.bases) for group in job.groups]
    mine: list[Group] = []
    size = 0
    for group, more in zip(job.groups, group_sizes, strict=True):
        if mine and part_bytes is not None and size + more > part_bytes:
            yield _part(job, mine)
            mine, size = [], 0
        mine.append(group)
        size += more
    # A job that rewrites nothing tells all the same how far its map reaches.
    if mine or not job.groups:
        yield _part(job, mine)


def _part(job: CleaningJob, groups: Sequence[Group]) -> CleaningJob:
    """Some groups of a job: their segments, and those whose keys are mapped."""
    bases = {base for group in groups for base in group.bases}
    sources = tuple(
        source
        for source in job.sources
        if source.base_offset in bases or source.end_offset > job.map_from
    )
    return replace(job, groups=tuple(groups), sources=sources)


def together(parts: Sequence[Cleaned]) -> Cleaned:
    """What the parts of a job have done, as one."""
    reached = {part.mapped_to for part in parts}
    assert len(reached) == 1, f"maps of one job reach to {sorted(reached)}"
    return Cleaned(
        groups=tuple(group for part in parts for group in part.groups),
        mapped_to=reached.pop(),
        keys=max(part.keys for part in parts),
        bytes_read=sum(part.bytes_read for part in parts),
        bytes_written=sum(part.bytes_written for part in parts),
    )
