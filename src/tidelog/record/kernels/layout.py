"""Columns of the batch table, and the statuses that kernels return. Integer constants only.

A batch table is `int64[n, BATCH_FIELDS]`, one row per batch, made by `scan_batches`; the columns
below are its second index. `POSITION`, `BODY_START` and `BODY_END` are places in the array that
holds the bytes; for a batch that was decompressed the body lies in another array than the header.
"""

from typing import Final

POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
RECORD_COUNT: Final = 4
ATTRIBUTES: Final = 5
BASE_TIMESTAMP: Final = 6
MAX_TIMESTAMP: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
BASE_SEQUENCE: Final = 10
LEADER_EPOCH: Final = 11
MAGIC: Final = 12
CRC: Final = 13
BODY_START: Final = 14
BODY_END: Final = 15
# What `createTimestamp` of a LogAppendTime batch is worth: `CREATE_KNOWN` or `CREATE_LOST`.
CREATE_STATE: Final = 16
BATCH_FIELDS: Final = 17

CREATE_KNOWN: Final = 0
CREATE_LOST: Final = 1

# Statuses. Those from BAD_SIZE on mean damage; `reasons` has the words.
DONE: Final = 0
FULL: Final = 1
PARTIAL: Final = 2
FOUND: Final = 3
NOT_FOUND: Final = 4
NEED_PLAIN: Final = 5
BAD_SIZE: Final = 16
BAD_MAGIC: Final = 17
BAD_OFFSETS: Final = 18
BAD_COUNT: Final = 19
BAD_RECORD: Final = 20
BAD_DELTA: Final = 21
BAD_REST: Final = 22
BAD_INDEX: Final = 23
BAD_SUM: Final = 26
BAD_ORDER: Final = 27
# Of the encoder: its input can't be written.
BAD_COLUMN: Final = 24
TOO_LARGE: Final = 25
