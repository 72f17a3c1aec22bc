"""Numba kernels over raw log bytes, each with its plain reference.

- `compiler`: the typed decorator, the cache of compiled code, `plain` for the interpreted whole.
- `scan`: batch headers to a table. `decode`, `headers`, `times`: records to columns.
- `lookup`: exact and nearest searches by time in one segment. `validate`: the leader's pass.
- `encode`: columns to records.
- `layout`: the table's columns and the statuses; `reasons` has the words for them.
- `latest`: the last record of each key, where only that one counts.
- `checksums`, `sums`: CRC-32C of batches, and of what lies side by side.
- `memory`, `varints`, `arithmetic`, `checksums`: what they are made of.

Importing this package imports Numba (0.3 s); nothing compiles before its first call.
"""

from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.compiler import Kernel, kernel, plain
from tidelog.record.kernels.records import check_body, validate_batch_body
from tidelog.record.kernels.time_search import find_time, find_time_in_segment

__all__ = [
    "Kernel",
    "check_body",
    "find_time",
    "find_time_in_segment",
    "kernel",
    "plain",
    "scan_batches",
    "validate_batch_body",
]
