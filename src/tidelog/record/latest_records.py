"""The last record of each key in a piece of a log, by kernels; a dict does the same, slowly.

Imports numpy and numba. Not for two threads at once.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tidelog.record.kernels import latest, layout
from tidelog.record.kernels.checksums import shifts
from tidelog.record.record import RECORD_SIZE_MIN

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

# Key, value, offset, and the offset of the key's last record with a null value, -1 for none.
LatestRecord: TypeAlias = tuple[bytes, bytes | None, int, int]

# More records than that are left to the plain code: 16 MiB of real ones hold fewer, and a row for
# each takes 64 bytes.
RECORDS_MAX: Final = 1 << 19
SECRET_BYTES: Final = 16


class LatestFinder:
    """Finds them in one run of batches after the other."""

    def __init__(self, secret: bytes) -> None:
        """Hash keys with 16 bytes that nobody who writes records knows."""
        assert len(secret) == SECRET_BYTES
        self._seeds = np.frombuffer(secret, "<i8").astype(np.int64)

    def find(self, data: bytes, table: "Longs") -> list[LatestRecord] | None:
        """Of each key the last record, in the order in which keys are met first.

        Args:
            data: The batches with their headers.
            table: Their rows, as `scan_batches` makes them: magic 2, not compressed.

        Returns:
            None where something is wrong, or there is a record without a key: the plain code has
            to look at it.
        """
        count = _record_count(table)
        if count is None:
            return None
        out = latest.LatestRows(
            slots=np.full(1 << (2 * count + 1).bit_length(), -1, np.int32),
            rows=np.empty((count, latest.ROW_FIELDS), np.int64),
            facts=np.zeros(latest.FACT_FIELDS, np.int64),
        )
        array = np.frombuffer(data, np.uint8)
        status = latest.find_latest(array, table, shifts(), self._seeds, out)
        if status != layout.DONE or out.facts[latest.UNKEYED]:
            return None
        used = out.rows[: int(out.facts[latest.ROWS]), : latest.HASH]
        return [
            (
                data[key_at:key_end],
                data[value_at:value_end] if value_end >= value_at else None,
                offset,
                dead_offset,
            )
            for key_at, key_end, value_at, value_end, offset, dead_offset in used.tolist()
        ]


def _record_count(table: "Longs") -> int | None:
    """How many records the batches say that they have, None where that can't be, or is too much."""
    counts = table[:, layout.RECORD_COUNT]
    room = table[:, layout.BODY_END] - table[:, layout.BODY_START]
    if ((counts < 0) | (counts * RECORD_SIZE_MIN > room)).any():
        return None
    count = int(counts.sum())
    return count if count <= RECORDS_MAX else None
