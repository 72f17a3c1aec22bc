"""Topics by key: tables as of a time, and what changed between two times. See docs/tables.md.

`questions` has what is asked (`Table`, `Diff`), `homes` who answers: a directory, or, behind the
same protocol, a cluster (`tidelog.cluster.remote_tables`).
"""

from tidelog.keyed.homes import MEMORY_BYTES, DirectoryHome, TableHome
from tidelog.keyed.questions import Diff, Table, checked, fold_of

__all__ = [
    "MEMORY_BYTES",
    "Diff",
    "DirectoryHome",
    "Table",
    "TableHome",
    "checked",
    "fold_of",
]
