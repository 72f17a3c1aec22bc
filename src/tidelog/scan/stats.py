"""What a scan has read and met, for those who show it or judge by it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from tidelog.errors import LostOffsets


@dataclass(slots=True, kw_only=True)
class ScanStats:
    """Figures of one or more splits; complete when their iterators are through.

    Attributes:
        rows: Rows handed out.
        log_bytes: Bytes of log walked over.
        batches: Batches walked over.
        batches_opened: Those whose records were looked at.
        without_time: Records met that have no time on the asked clock, so lie in no range. All of
            them on the append clock, and on the record clock of finished segments with a zone map;
            of others none in batches that are skipped because no match can be in them, unless the
            plan is `strict`.
        counted: Records in the range that a plan which only counts knew without reading them.
        sidecar_bytes: Bytes read of append times beside the log; what planning read stands in
            `ScanPlan.sidecar_bytes`.
        splits: Splits read.
        replanned: How often files had gone and offsets were found anew.
        lost: Offsets that were gone when they were to be read.
    """

    rows: int = 0
    log_bytes: int = 0
    batches: int = 0
    batches_opened: int = 0
    without_time: int = 0
    counted: int = 0
    sidecar_bytes: int = 0
    splits: int = 0
    replanned: int = 0
    lost: list[LostOffsets] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Count in what another has met."""
        self.rows += other.rows
        self.log_bytes += other.log_bytes
        self.batches += other.batches
        self.batches_opened += other.batches_opened
        self.without_time += other.without_time
        self.counted += other.counted
        self.sidecar_bytes += other.sidecar_bytes
        self.splits += other.splits
        self.replanned += other.replanned
        self.lost += other.lost

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum of several."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole
