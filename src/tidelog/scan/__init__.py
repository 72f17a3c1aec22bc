"""Scans: plan a read, pass its splits to tasks, and read the splits to Arrow.

`plan` reads names, indexes, zone maps and append times, and makes splits; `read` turns one split
into record batches. A scan can also read directories that other programs wrote or are writing to.
It writes nothing to these directories.

Planning imports neither Arrow nor Numba, because Spark starts a new process for the plan of each
query. Arrow and Numba are imported at their first use.
"""

import importlib
from typing import TYPE_CHECKING, Final

from tidelog.errors import MissingDependency
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

_LATER: Final = {
    "ALL_COLUMNS": "rows",
    "COLUMNS": "rows",
    "schema": "rows",
    "ReadOptions": "reader",
    "read": "reader",
    "to_reader": "reader",
    "to_table": "reader",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use, if its module needs Arrow and Numba.

    Raises:
        MissingDependency: pyarrow, numpy or numba is not installed.
    """
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_LATER[name]}")
    except ImportError as error:
        raise MissingDependency(
            f"{__name__}.{name} needs pyarrow, numpy and numba: pip install 'tidelog[arrow]'"
            f" ({error})"
        ) from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all public names, including names that are not loaded yet."""
    return sorted(__all__)
