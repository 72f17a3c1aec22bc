"""The source file as columns of a log."""

import json
import random
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from examples.demo.flights import ROW_COUNT, ZONE, Flights, flights_of, json_rows, scheduled_times
from tests.unit.demo.columns import texts

from tidelog.record.partitioner import Partitioner

if TYPE_CHECKING:
    import pyarrow as pa


def test_the_source_is_whole(source: "pa.Table") -> None:
    assert len(source) == ROW_COUNT
    assert source["tailnum"].null_count == 2_512
    assert source["dep_delay"].null_count == 8_255


def test_values_are_the_rows_as_json(source: "pa.Table") -> None:
    rows = source.take(random.Random(1).sample(range(len(source)), 300))
    for text, row in zip(texts(json_rows(rows)), rows.to_pylist(), strict=True):
        row["time_hour"] = row["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ")
        assert json.loads(str(text)) == row


def test_text_that_json_would_escape_is_refused(source: "pa.Table") -> None:
    import pyarrow as pa

    quoted = pa.array(['N"1'])
    row = source.slice(0, 1)
    bad = row.set_column(row.schema.get_field_index("tailnum"), "tailnum", quoted)
    with pytest.raises(ValueError, match="tailnum"):
        json_rows(bad)


def test_scheduled_times_follow_the_zone(source: "pa.Table") -> None:
    """Rows of winter and summer are checked: in summer, New York is four hours behind UTC."""
    for number in (0, 100_000, 200_000, 336_775):
        row = source.slice(number, 1)
        year, month, day, hour, minute = (
            row[name][0].as_py() for name in ("year", "month", "day", "hour", "minute")
        )
        wall = datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(ZONE))
        assert scheduled_times(row).tolist() == [round(wall.timestamp() * 1000)]


def test_flights_are_in_the_order_of_departure(flights: Flights) -> None:
    assert (np.diff(flights.departed_ms) >= 0).all()
    assert (np.diff(flights.scheduled_ms) < 0).any(), "create times are out of order"
    late = flights.departed_ms - flights.scheduled_ms
    for value, ms in zip(texts(flights.value), late.tolist(), strict=True):
        delay = json.loads(str(value))["dep_delay"]
        assert ms == (0 if delay is None else delay * 60_000)


def test_keys_are_tail_numbers_and_partitions_those_of_kafkas_clients(source: "pa.Table") -> None:
    flights = flights_of(source.slice(0, 500))
    chooser = Partitioner(4, random.Random(1))
    keys, partitions = texts(flights.key), flights.partitions(4).tolist()
    for value, key, partition in zip(texts(flights.value), keys, partitions, strict=True):
        assert json.loads(str(value))["tailnum"] == key
        if key is not None:
            assert partition == chooser.choose(key.encode())


def test_flights_without_a_tail_number_take_turns(source: "pa.Table") -> None:
    flights = flights_of(source.filter(np.asarray(source["tailnum"].is_null())))
    assert set(texts(flights.key)) == {None}
    assert flights.partitions(4).tolist()[:6] == [0, 1, 2, 3, 0, 1]
