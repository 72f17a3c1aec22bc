"""Reading at scale: plan a scan, hand splits to tasks, read them to Arrow.

`plan` looks at names, indexes and append times and makes splits; `read` turns one split into
record batches. Foreign and live directories are read like our own, and nothing is ever written.
"""

from tidelog.scan.bounds import TimeMode
from tidelog.scan.plan import SPLIT_BYTES, ScanPlan, plan
from tidelog.scan.reader import (
    ALL_COLUMNS,
    COLUMNS,
    ReadOptions,
    read,
    to_reader,
    to_table,
)
from tidelog.scan.rows import schema
from tidelog.scan.split import EARLIEST, LATEST, Piece, Split, Wanted
from tidelog.scan.stats import ScanStats

__all__ = [
    "ALL_COLUMNS",
    "COLUMNS",
    "EARLIEST",
    "LATEST",
    "SPLIT_BYTES",
    "Piece",
    "ReadOptions",
    "ScanPlan",
    "ScanStats",
    "Split",
    "TimeMode",
    "Wanted",
    "plan",
    "read",
    "schema",
    "to_reader",
    "to_table",
]
