"""How a mirror runs, and the names in its checkpoint."""

from dataclasses import dataclass
from typing import Final

from tidelog.spark.jobs.mirror_growth import Settings
from tidelog.types import IsolationLevel

STATE_FILE: Final = "mirror.json"
MAP_FILE: Final = "offsets.map"
SPARK_DIR: Final = "spark"
ISOLATIONS: Final = {level.name.lower(): level for level in IsolationLevel}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """How a mirror runs.

    Attributes:
        checkpoint: Folder that makes it restartable.
        continuous: Go on until it is stopped; else stop at what is there at the start.
        batch_records: About how many records a batch takes, at most, of each place.
        trigger_ms: How often a continuous mirror looks for new records.
        create: Make topics that the target lacks, and partitions where numbers are kept.
        force: Go on where the target would lose records or their times.
        settings: What becomes of settings that differ between a topic and its copy.
        source: More options of the source.
        sink: More options of the sink, such as `compression`.
    """

    checkpoint: str
    continuous: bool = False
    batch_records: int = 1_000_000
    trigger_ms: int = 1_000
    create: bool = False
    force: bool = False
    settings: Settings = Settings.REPORT
    source: tuple[tuple[str, str], ...] = ()
    sink: tuple[tuple[str, str], ...] = ()
