"""Kernels for messages of magic 0 and 1; `message_sets` has the reference in plain Python.

Imports numpy and numba, so only `AppendRules.use_kernels` and `server.kernels` import it.
"""

import numpy as np

from tidelog.record.kernels.layout import DONE
from tidelog.record.kernels.messages import (
    REFUSED_FIELDS,
    assign_messages,
    check_messages,
    crc32_tables,
)
from tidelog.storage.log.message_sets import (
    BrokenMessage,
    RefusedMessage,
    SetFacts,
    SetRules,
    Stamp,
)


class KernelPasses:
    """`SetPasses` with kernels, which create no Python object per message. Stateless."""

    def check(self, body: bytes | memoryview, magic: int, rules: SetRules, limit: int) -> SetFacts:
        """Check the messages; see `SetPasses`."""
        data = np.frombuffer(body, np.uint8)
        data.flags.writeable = False
        refused = np.empty((limit, REFUSED_FIELDS), np.int64)
        status, at, count, last, largest, refused_count, has_time_error, counts_from_0 = (
            check_messages(data, magic, np.array(rules, np.int64), crc32_tables(), refused)
        )
        if status != DONE:
            raise BrokenMessage(at)
        named = [
            RefusedMessage(number, timestamp, bool(has_key))
            for number, timestamp, has_key in refused[:refused_count].tolist()
        ]
        return SetFacts(count, last, largest, counts_from_0, named, refused_count, has_time_error)

    def assign(self, body: bytearray, magic: int, first_offset: int, stamp: Stamp) -> None:
        """Set offsets and times; see `SetPasses`."""
        stamps = stamp.timestamp is not None
        fields = [int(stamps), stamp.timestamp or 0, stamp.attributes]
        data = np.frombuffer(body, np.uint8)
        assign_messages(data, magic, first_offset, np.array(fields, np.int64), crc32_tables())
