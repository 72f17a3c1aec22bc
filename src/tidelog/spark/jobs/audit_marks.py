"""Whether a log still has the bytes that a run was made of.

A finished segment is known by base offset, size and, where there are zone maps, the checksum of all
of its bytes. Any segment is known by the last bytes before the place that was read: a log is only
appended to, and who rewrites a segment (compaction, a truncation with other records behind it)
moves what lies there or puts another batch, with another checksum, in its place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.record.coding import crc32c
from tidelog.spark.jobs.audit_state import Mark, Run
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir
    from tidelog.storage.segment import Segment

# More than a batch's header, which has the batch's own checksum.
TAIL_BYTES: Final = 4096


def mark_of(segment: "Segment", start: int, end: int) -> Mark:
    """The mark of bytes [start, end) of a segment as it is now."""
    zones = None if segment.is_active else segment.zones
    return Mark(
        base_offset=segment.base_offset,
        start=start,
        end=end,
        sum=_tail_sum(segment, start, end),
        size=-1 if segment.is_active else segment.stat().size,
        zones=-1 if zones is None else zones.total.crc,
    )


def _tail_sum(segment: "Segment", start: int, end: int) -> int:
    return crc32c(bytes(segment.view(max(start, end - TAIL_BYTES), end)))


def still_fits(segment: "Segment", mark: Mark) -> bool:
    """Whether a segment still has the bytes of a mark."""
    if mark.end > segment.size_bytes:
        return False
    now = mark_of(segment, mark.start, mark.end)
    if now.sum != mark.sum:
        return False
    was_finished = mark.size >= 0
    if not was_finished:
        return True
    knows_both = mark.zones >= 0 and now.zones >= 0
    return now.size == mark.size and (not knows_both or now.zones == mark.zones)


def runs_there(
    log_dir: "LogDir", runs: Iterable[Run], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> Iterator[Run]:
    """The runs whose records are all still in the log, and inside the bounds of their partition."""
    for run in runs:
        name = TopicPartition(run.topic, run.partition)
        start, end = bounds.get(name, (0, 0))
        if start <= run.start and run.end <= end and not run.lost and _is_there(log_dir, run):
            yield run


def _is_there(log_dir: "LogDir", run: Run) -> bool:
    if topic_id_of(log_dir, run.topic) != run.topic_id:
        return False
    segments = {s.base_offset: s for s in log_dir.reader(run.topic, run.partition).segments}
    return all(
        mark.base_offset in segments and still_fits(segments[mark.base_offset], mark)
        for mark in run.marks
    )


def topic_id_of(log_dir: "LogDir", topic: str) -> str:
    """The topic's id as splits carry it."""
    topic_id = log_dir.topic(topic).topic_id
    return "" if topic_id is None else topic_id.hex


def gaps(runs: Sequence[Run], start: int, end: int) -> list[tuple[int, int]]:
    """What of offsets [start, end) no run has, in order; runs of one partition, by offset."""
    found, at = [], start
    for run in runs:
        if run.start > at:
            found.append((at, run.start))
        at = max(at, run.end)
    if at < end:
        found.append((at, end))
    return found
