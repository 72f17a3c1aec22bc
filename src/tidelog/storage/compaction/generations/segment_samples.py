"""What a pass over a segment for its sampled keys is told, and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.env import File

# Bytes to read at a time.
CHUNK_BYTES: Final = 4 << 20


NO_HORIZON: Final = -1


Wait = Callable[[int], None]


@dataclass(slots=True, kw_only=True)
class Sampled:
    """What one pass over a segment has found.

    Attributes:
        records: Records, those of control batches left out.
        record_bytes: Their bytes, uncompressed.
        due_ms: The latest delete horizon of its batches; -1 where none has one.
    """

    records: int = 0
    record_bytes: int = 0
    due_ms: int = NO_HORIZON


@dataclass(frozen=True, slots=True)
class LogFile:
    """A finished log file to look at: open, and its name for errors."""

    file: File
    path: str
