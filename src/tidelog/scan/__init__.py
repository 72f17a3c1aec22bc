"""Scans: plan a read, pass its splits to tasks, and read the splits to Arrow.

`plan` reads names, indexes, zone maps and append times, and makes splits; `read` turns one split
into record batches. A scan can also read directories that other programs wrote or are writing to.
It writes nothing to these directories.

Planning imports neither Arrow nor Numba, because Spark starts a new process for the plan of each
query. Arrow and Numba are imported at their first use.
"""

from typing import TYPE_CHECKING

from tidelog.lazy_names import lazy_names
from tidelog.scan.bounds import TimeMode
from tidelog.scan.count import Count, PartitionCount, count
from tidelog.scan.plan import ScanPlan, plan
from tidelog.scan.split import Piece, RequestedRange, ScanStats, Split
from tidelog.split_size import SPLIT_BYTES
from tidelog.types import EARLIEST_OFFSET as EARLIEST
from tidelog.types import LATEST_OFFSET as LATEST

if TYPE_CHECKING:
    from tidelog.scan.reader import ReadOptions, read, to_reader, to_table
    from tidelog.scan.rows import ALL_COLUMNS, COLUMNS, schema

__all__ = [
    "ALL_COLUMNS",
    "COLUMNS",
    "EARLIEST",
    "LATEST",
    "SPLIT_BYTES",
    "Count",
    "PartitionCount",
    "Piece",
    "ReadOptions",
    "RequestedRange",
    "ScanPlan",
    "ScanStats",
    "Split",
    "TimeMode",
    "count",
    "plan",
    "read",
    "schema",
    "to_reader",
    "to_table",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ALL_COLUMNS": "tidelog.scan.rows",
        "COLUMNS": "tidelog.scan.rows",
        "schema": "tidelog.scan.rows",
        "ReadOptions": "tidelog.scan.reader",
        "read": "tidelog.scan.reader",
        "to_reader": "tidelog.scan.reader",
        "to_table": "tidelog.scan.reader",
    },
    "pyarrow, numpy and numba: pip install 'tidelog[arrow]'",
)


def __dir__() -> list[str]:
    """Return all public names, including names that are not loaded yet."""
    return sorted(__all__)
