"""Numba kernels over raw log bytes.

- `compiler`: the decorator and the cache of compiled code; `plain` runs a kernel interpreted.
- `layout`: columns of the batch table, statuses and their texts.
- `batch_scan`: reads batch headers to the table. `records`, `messages`, `times`: read records.
- `time_search`: searches one segment by time. `zones`: computes the values of a zone map.
- `encode`: encodes columns as records. `rewrite`: writes cleaned batches.
- `key_rows`, `last_records`, `key_map`: find the last record of each key, or compute totals for
  each key.
- `checksums`, `hashes`, `memory`, `integers`: building blocks of the other modules.

Importing this package imports Numba (0.3 s). At its first call a kernel is compiled, or loaded from
the cache.
"""

from tidelog.record.kernels.batch_scan import scan_batches
from tidelog.record.kernels.compiler import Kernel, kernel, plain
from tidelog.record.kernels.records import check_body, validate_batch_body
from tidelog.record.kernels.time_search import find_time, find_time_in_segment
