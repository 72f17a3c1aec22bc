"""Checks a directory of topics for damage, and rebuilds derived files.

Every file of a partition is checked: the log by itself (frames, checksums, order); indexes, append
times, snapshots and epochs against the log; the zone map against all files. A check only reads.
`repair` replaces derived files and never changes a record or an append time.

Source: docs/recovery.md#tidelog-doctor.
"""

from tidelog.storage.checks.directory_check import DirectoryCheck, Selection
from tidelog.storage.checks.findings import CheckOptions, Finding, Severity
