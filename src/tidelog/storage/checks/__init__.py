"""Finding damage in a directory of topics, and building anew what can be built from the rest.

Every file of a partition is held against the others: the log against itself (frames, checksums,
order), indexes, append times, snapshots and epochs against the log, the zone map against all. A
check only reads. `repair` replaces derived files and never touches a record or an append time.

Source: docs/recovery.md#tidelog-doctor.
"""

from tidelog.storage.checks.directory_check import DirectoryCheck, Selection
from tidelog.storage.checks.findings import CheckOptions, Finding, Severity

__all__ = ["CheckOptions", "DirectoryCheck", "Finding", "Selection", "Severity"]
