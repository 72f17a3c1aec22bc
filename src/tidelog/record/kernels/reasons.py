"""Words for the statuses that mean damage, for the errors that the kernels' callers raise."""

from typing import Final

from tidelog.record.kernels import layout

REASONS: Final = {
    layout.BAD_SIZE: "a batch length below the smallest that its magic allows",
    layout.BAD_MAGIC: "a magic other than 0, 1 and 2",
    layout.BAD_OFFSETS: "the batch's offsets leave the range of 0..2^63-1",
    layout.BAD_COUNT: "a record count that the batch has no room for",
    layout.BAD_RECORD: "a record whose fields don't end where its length says",
    layout.BAD_DELTA: "an offset delta that is not above the last one, or above the batch's last",
    layout.BAD_REST: "bytes are left after the last record",
    layout.BAD_INDEX: "an index entry that leads to no batch that it can mean",
    layout.BAD_SUM: "a CRC-32C that is not that of the bytes",
    layout.BAD_COLUMN: "an Arrow column whose offsets lead out of its data",
    layout.TOO_LARGE: "a record larger than the format's 2147483647 bytes",
}
