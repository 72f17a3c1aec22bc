"""Checks a directory of topics for damage, and rebuilds derived files.

Every file of a partition is compared with the others: the log with itself (frames, checksums,
order); indexes, append times, snapshots and epochs with the log; the zone map with all files. A
check only reads. `repair` replaces derived files and never changes a record or an append time.

Source: docs/recovery.md#tidelog-doctor.
"""

from tidelog.storage.checks.directory_check import DirectoryCheck, Selection
from tidelog.storage.checks.findings import CheckOptions, Finding, Severity
