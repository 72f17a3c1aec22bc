"""What a scheduler knows of a partition's finished segments: plain values, no files.

`cleaned_to` carries the safety of everything that follows: no record of the segment is superseded
by a record below that offset. It is known, never estimated. `live_bytes` and `keys` are estimates;
where they are wrong, a cleaning costs more than it had to, and nothing else.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One finished segment.

    Attributes:
        base_offset: Its base offset.
        end_offset: Offset behind it, exclusive.
        size_bytes: Size of its log file.
        cleaned_to: No record of it is superseded by one with an offset below this; its base
            offset where it was never cleaned.
        live_bytes: Bytes that are expected to stay when it is cleaned, 0 to `size_bytes`.
        sum_bytes: The same for sums over many segments: where `live_bytes` leans on what a
            cleaning has left, and on its own sample alone, this one is right on average.
        keys: Keys whose last record is expected to be in it.
        records: Records in it; None where nobody has counted them.
        has_due: Whether it holds tombstones that are past their horizon.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    cleaned_to: int
    live_bytes: float
    sum_bytes: float
    keys: float
    records: int | None = None
    has_due: bool = False

    @property
    def garbage_bytes(self) -> float:
        """Bytes that a cleaning is expected to free."""
        return max(self.size_bytes - self.live_bytes, 0.0)
