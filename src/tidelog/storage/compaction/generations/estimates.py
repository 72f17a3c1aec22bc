"""How much of a segment is alive, from the sampled keys whose last record lies in it.

A segment's own sample is small where a log has many segments, and who picks the segments that look
emptiest picks those whose sample errs. But segments that were written one after the other and
cleaned at the same time lose their records alike. So each is judged by its own sample and by that
of its neighbours: as if `PRIOR_SAMPLES` of its keys had been drawn from them.

Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Keys of the neighbours that count beside a segment's own, and how many neighbours on each side.
PRIOR_SAMPLES: Final = 128
NEIGHBOURS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the sample says of one segment.

    Attributes:
        size_bytes: Size of its log file.
        cohort: Segments with the same number were cleaned by the same runs.
        keys: Sampled keys whose last record is in it.
        found_bytes: Bytes of those records, times how rare sampled keys are.
        weight_bytes: What they would be if nothing of the segment was garbage; -1 for unknown.
    """

    size_bytes: int
    cohort: int
    keys: int
    found_bytes: int
    weight_bytes: int


def live_bytes(segments: Sequence[Counted], *, is_whole: bool = False) -> list[float]:
    """Bytes of each segment that are expected to be alive, at most its size.

    Args:
        segments: All of them, in order.
        is_whole: Whether every key is in the sample: then nobody else is asked.
    """
    keys = sum(each.keys for each in segments)
    unit = sum(each.found_bytes for each in segments) / keys if keys and not is_whole else 0.0
    return list(_live_bytes(segments, PRIOR_SAMPLES * unit))


def _live_bytes(segments: Sequence[Counted], prior: float) -> Iterator[float]:
    for slot, each in enumerate(segments):
        around = [
            other
            for other in segments[max(slot - NEIGHBOURS, 0) : slot + NEIGHBOURS + 1]
            if other.cohort == each.cohort and other.weight_bytes > 0
        ]
        weight = sum(other.weight_bytes for other in around)
        if not weight:
            yield float(each.size_bytes)  # nothing is known: nothing is expected to be garbage
            continue
        shared = sum(other.found_bytes for other in around) / weight
        own = max(each.weight_bytes, 0)
        found = each.found_bytes if own else 0
        part = (found + prior * shared) / (own + prior) if own + prior else shared
        yield min(part, 1.0) * each.size_bytes
