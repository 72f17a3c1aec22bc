"""Kafka's DumpLogSegments accepts the log that `./run demo` creates from real flights."""

from pathlib import Path

import numpy as np
import pytest
from examples.demo.flights import PARTITIONS, flights_of, load, read_source, source_path
from tests.worlds.kafka.oracle import Oracle

FLIGHTS = 60_000

pytestmark = pytest.mark.kafka


def test_kafka_accepts_every_file_of_the_flights(kafka_oracle: Oracle, tmp_path: Path) -> None:
    """Loads the first flights of the year as the demo does: three segments in each partition."""
    flights = flights_of(read_source(source_path()))
    first = flights.where(np.arange(len(flights)) < FLIGHTS)
    directory = tmp_path / "log"
    load(str(directory), first, first.partitions(PARTITIONS), lambda _count: None)
    logs = sorted(directory.rglob("*.log"))
    assert len(logs) == 3 * PARTITIONS
    found = kafka_oracle.check_directory(directory)
    assert found.accepted, found
    assert len(found.dumped) == sum(f.suffix in SUFFIXES for f in directory.rglob("*"))


SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")
