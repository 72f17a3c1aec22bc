"""Topics with records in old formats. The same files are written to disk for Kafka and for tidelog.

Each topic has three records per format, ten milliseconds apart. Records of magic 0 have no times.
There are neither indexes nor a clean shutdown mark, so the broker recovers the logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord, TimestampType

START_MS = 1_700_000_000_000
STEP_MS = 10
EACH = 3
APPENDED_MS = START_MS + 1_000
LOG_NAME = f"{0:020}.log"
CLEAN_MARK = ".kafka_cleanshutdown"


@dataclass(frozen=True, slots=True)
class Shape:
    """The content of a topic's log: formats in order, and the timestamp type."""

    formats: Sequence[int]
    codec: Codec = Codec.NONE
    is_appended: bool = False

    @property
    def end(self) -> int:
        """End offset, exclusive."""
        return EACH * len(self.formats)

    @property
    def values(self) -> list[str]:
        """Return the values that a consumer reads."""
        return [f"v{offset}" for offset in range(self.end)]

    def times(self) -> list[int | None]:
        """Return each record's time; None if its format has none."""
        return [self._time(offset) for offset in range(self.end)]

    def _time(self, offset: int) -> int | None:
        if self.formats[offset // EACH] == 0:
            return None
        return APPENDED_MS if self.is_appended else START_MS + STEP_MS * offset

    def expected(self, time: int) -> int | None:
        """Return the first offset whose time is `time` or later; None without a match."""
        found = (n for n, t in enumerate(self.times()) if t is not None and t >= time)
        return next(found, None)

    def data(self) -> bytes:
        """Return the content of the log file."""
        return b"".join(self._part(number) for number in range(len(self.formats)))

    def _part(self, number: int) -> bytes:
        magic, base = self.formats[number], number * EACH
        records = [
            NewRecord(value=b"v%d" % offset, timestamp=START_MS + STEP_MS * offset)
            for offset in range(base, base + EACH)
        ]
        append_time = APPENDED_MS if self.is_appended and magic else None
        if magic < 2:
            return bytes(
                build_legacy_set(
                    records,
                    magic=magic,
                    codec=self.codec,
                    base_offset=base,
                    append_time_ms=append_time,
                )
            )
        kind = TimestampType.LOG_APPEND_TIME if self.is_appended else TimestampType.CREATE_TIME
        return bytes(
            build_batch(
                records,
                codec=self.codec,
                base_offset=base,
                leader_epoch=0,
                timestamp_type=kind,
                append_time_ms=append_time,
            )
        )


SHAPES = {
    "format0": Shape((0,)),
    "format0-gzip": Shape((0,), Codec.GZIP),
    "format1": Shape((1,)),
    "format1-lz4": Shape((1,), Codec.LZ4),
    "format1-appended": Shape((1,), is_appended=True),
    "format2": Shape((2,)),
    "format2-appended": Shape((2,), Codec.ZSTD, is_appended=True),
    "mixed": Shape((0, 1, 2)),
    "mixed-gzip": Shape((0, 1, 2, 2), Codec.GZIP),
    "empty": Shape(()),
}


def put(directory: Path) -> None:
    """Write the logs of all topics into the partition directories of a stopped broker."""
    for topic, shape in SHAPES.items():
        place = directory / f"{topic}-0"
        for file in place.iterdir():
            if file.name.startswith("0") or file.name == "append-time-checkpoint":
                file.unlink()
        (place / LOG_NAME).write_bytes(shape.data())
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (directory / name).write_text("0\n0\n")
    (directory / CLEAN_MARK).unlink()
