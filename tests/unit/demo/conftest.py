"""The real source file, read once, and a few of its days in a small log."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from examples.demo import flights as load
from examples.demo.flights import Flights, Ints, flights_of, read_source, source_path

from tidelog.timespec import parse_range

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture(scope="session")
def source() -> "pa.Table":
    return read_source(source_path())


@pytest.fixture(scope="session")
def flights(source: "pa.Table") -> Flights:
    """Return the flights scheduled on 7 and 8 February, which include the storm's cancellations."""
    rows = source.filter(
        (np.asarray(source["month"]) == 2) & np.isin(np.asarray(source["day"]), [7, 8])
    )
    return flights_of(rows)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A log of flights, and its input."""

    path: str
    flights: Flights
    partitions: Ints
    appends: int
    advanced: list[int]


@pytest.fixture(scope="session")
def loaded(flights: Flights, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = tmp_path_factory.mktemp("demo") / "log"
    partitions = flights.partitions(load.PARTITIONS)
    advanced: list[int] = []
    appends = load.load(str(path), flights, partitions, advanced.append)
    return Loaded(str(path), flights, partitions, appends, advanced)


@pytest.fixture(scope="session")
def storm() -> tuple[int, int]:
    """8 February 2013 in New York, [start, end) in ms."""
    return parse_range("2013-02-08 America/New_York", now_ms=0)
