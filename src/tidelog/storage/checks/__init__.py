"""Checks a directory of topics for damage, and rebuilds derived files.

The log is checked by itself (frames, checksums, order, records); indexes, append times, snapshots
and epochs against the log; zone maps against the log and the indexes. A check only reads. `repair`
replaces derived files. It writes `.log` and `.appendtime` files only to set aside damage that
prevents opening a partition for writing (`set_aside`).

Source: docs/recovery.md#tidelog-doctor.
"""

from tidelog.storage.checks.directory_check import DirectoryCheck, Selection
from tidelog.storage.checks.findings import CheckOptions, Finding, Severity
