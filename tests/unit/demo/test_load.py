"""Loading with a clock set to each flight's time, and lookups on the loaded log."""

from pathlib import Path

import numpy as np
from examples.demo import flights as load
from examples.demo import questions, story
from examples.demo.flights import source_path
from tests.unit.demo.columns import texts
from tests.unit.demo.conftest import Loaded

import tidelog


def test_every_flight_is_in_the_log_with_both_of_its_times(loaded: Loaded) -> None:
    flights = loaded.flights
    with tidelog.open(loaded.path) as directory:
        for number in range(load.PARTITIONS):
            log = directory.partition(load.FLIGHTS_TOPIC, number)
            mine = np.flatnonzero(loaded.partitions == number)
            records = list(log.records())
            values, keys = texts(flights.value.take(mine)), texts(flights.key.take(mine))
            assert [r.value for r in records] == [str(value).encode() for value in values]
            assert [r.key for r in records] == [None if k is None else k.encode() for k in keys]
            assert [r.timestamp for r in records] == flights.scheduled_ms[mine].tolist()
            appended = [log.append_time_of(r.offset) for r in records]
            assert appended == flights.departed_ms[mine].tolist()
    assert story.record_count(loaded.path) == len(flights)


def test_the_load_appends_once_per_minute_and_partition(loaded: Loaded) -> None:
    pairs = set(zip(loaded.flights.departed_ms.tolist(), loaded.partitions.tolist(), strict=True))
    assert loaded.appends == len(pairs) < len(loaded.flights)
    assert sum(loaded.advanced) == len(loaded.flights)


def test_the_topic_has_the_printed_settings(loaded: Loaded) -> None:
    with tidelog.open(loaded.path) as directory:
        config = directory.topic(load.FLIGHTS_TOPIC).config
    for key, (value, _) in (load.SETTINGS | load.DEFAULTS_USED).items():
        assert config.text(key) == value


def test_lookups_on_both_clocks_equal_a_plain_count(loaded: Loaded, storm: tuple[int, int]) -> None:
    for hour in (0, 6, 12, 15):
        at_ms = storm[0] + hour * 3_600_000
        found = questions.look_up(loaded.path, at_ms)
        assert [(a.record.offset, a.append.offset) for a in found] == questions.expected_answers(
            loaded.flights, loaded.partitions, at_ms
        )
        assert all(answer.append.timestamp >= at_ms for answer in found)


def test_flights_on_either_side_of_noon(loaded: Loaded, storm: tuple[int, int]) -> None:
    start_ms, end_ms = storm
    noon = start_ms + 12 * 3_600_000
    crossing = questions.count_crossing(loaded.path, noon, start_ms, end_ms)
    due, left = loaded.flights.scheduled_ms, loaded.flights.departed_ms
    on_day = (due >= start_ms) & (due < end_ms)
    assert crossing == questions.Crossing(
        int((on_day & (due < noon) & (left >= noon)).sum()),
        int((on_day & (due >= noon) & (left < noon)).sum()),
    )
    assert crossing.due_before_left_after > 0
    assert crossing.due_after_left_before > 0
    frame = questions.read_by_pandas(source_path())
    assert questions.crossing_by_pandas(frame, noon, start_ms, end_ms) == crossing


def test_the_table_of_files_counts_every_byte(loaded: Loaded) -> None:
    sizes = [path.stat().st_size for path in Path(loaded.path).rglob("*") if path.is_file()]
    table = story.files_table(loaded.path)
    assert table.rows[-1] == ["all", f"{len(sizes):,}", f"{sum(sizes):,}"]
    assert table.rows[0][0].startswith(".log")
