"""Checks a directory of topics for damage, and rebuilds derived files.

The check of a log file reads no other file: it verifies frames, checksums, order and records.
Indexes, append times, snapshots and epochs are compared with the log. Zone maps are compared with
the log and the other files. A check writes nothing. A repair replaces derived files. A repair
writes `.log` and `.appendtime` files only to set aside damage that prevents opening a partition for
writing (`set_aside`).

Source: docs/recovery.md#tidelog-doctor.
"""

from tidelog.storage.checks.directory_check import DirectoryCheck, Selection
from tidelog.storage.checks.findings import CheckOptions, Finding, Severity
