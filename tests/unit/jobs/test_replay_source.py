"""Before it reads, a replay finds its range's offsets, and counts records by create time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worlds.clusters.fake_cluster import FakeCluster

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.jobs import source_ranges
from tidelog.jobs.chunks import total
from tidelog.jobs.source_ranges import Question, Times, find, load_left
from tidelog.remote.view import Count
from tidelog.spark.offset_ranges import OffsetRange
from tidelog.spark.places import Place
from tidelog.types import ClockName, NewRecord, TopicPartition

T0 = 1_360_342_800_000
SECOND = 1_000
FLIGHTS = [TopicPartition("flights", number) for number in range(2)]
BROKER = Place("nowhere:9092", is_broker=True)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Return a directory: partition 0 has 400 records, and partition 1 is empty.

    The records are created a second apart, and each is appended 100 s later.
    """
    clock = ManualClock(T0)
    settings = {"retention.ms": "-1", "internal.segment.bytes": "3000"}
    with Directory.open(str(tmp_path), writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic("flights", partitions=2, config=settings)
        for number in range(400):
            made = T0 + number * SECOND
            clock.set(made + 100 * SECOND)
            directory.append("flights", [NewRecord(value=b"v" * 50, timestamp=made)], partition=0)
    return str(tmp_path)


def question(data: str, times: Times, clock: ClockName = ClockName.RECORD) -> Question:
    return Question(place=Place(data), topic="flights", times=times, clock=clock)


@pytest.mark.parametrize("clock", list(ClockName))
def test_a_directory_excludes_offsets_outside_the_range(data: str, clock: ClockName) -> None:
    shift = 100 * SECOND if clock is ClockName.APPEND else 0
    times = (T0 + 200 * SECOND + shift, T0 + 250 * SECOND + shift)
    found = find(question(data, times, clock))
    assert found.partitions == 2
    assert {span.partition for span in found.spans} == {FLIGHTS[0]}
    assert min(span.start for span in found.spans) <= 200
    assert max(span.end for span in found.spans) >= 250
    assert total(found.spans) < 120
    assert 0 < (found.size_bytes or 0) < 20_000


def test_counts_are_those_of_the_range(data: str) -> None:
    found = find(question(data, (T0 + 200 * SECOND, T0 + 250 * SECOND)))
    assert found.between(None, None) == Count(50, is_exact=True)
    assert found.between(None, T0 + 210 * SECOND) == Count(10, is_exact=True)
    assert found.between(T0 + 249 * SECOND, None) == Count(1, is_exact=True)
    assert found.between(None, T0) == Count(0, is_exact=True)
    load = found.load(keeps_partitions=True)
    assert load.partitions == 2
    assert load.null_keys is None
    left = load_left(question(data, (None, None)), (OffsetRange(FLIGHTS[0], 390, 400),))
    assert left.between(None, T0 + 395 * SECOND) == Count(5, is_exact=True)


def test_records_are_not_counted_if_that_reads_too_many_bytes(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_ranges, "COUNT_BYTES_MAX", 10)
    found = find(question(data, (None, None)))
    assert found.between(T0 + 1, T0 + 399 * SECOND) is None


def test_aborted_transactions_are_excluded_by_default(data: str) -> None:
    assert question(data, (None, None)).options()["isolation"] == "read_committed"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Return a cluster with two partitions, the first of which has a late record."""
    fake = FakeCluster().with_log(FLIGHTS[0], 10, 20, 15, 30, 40).with_log(FLIGHTS[1], 5)

    @contextmanager
    def opened(_place: Place) -> Iterator[FakeCluster]:
        yield fake

    opener: Callable[[Place], object] = opened
    monkeypatch.setattr(source_ranges, "open_cluster", opener)
    return fake


def test_brokers_are_read_from_the_first_record_of_the_range(cluster: FakeCluster) -> None:
    asked = Question(place=BROKER, topic="flights", times=(12, 35))
    found = find(asked)
    # After a record that is later than the range, records in the range may follow. So the span
    # reaches the log's end.
    assert found.spans == (OffsetRange(FLIGHTS[0], 1, 5),)
    assert found.size_bytes is None
    assert found.between(None, 30) == Count(2, is_exact=False, is_bound=False)
    assert found.between(30, None) == Count(1, is_exact=False, is_bound=False)
    late = find(Question(place=BROKER, topic="flights"))
    assert late.between(None, 18) == Count(2, is_exact=False, is_bound=False)  # 3 with the late one
    assert late.between(None, 50) == Count(6, is_exact=False)
    assert late.between(18, None) == Count(4, is_exact=False)  # 3 without the late one
    everything = find(Question(place=BROKER, topic="flights"))
    assert everything.spans == (OffsetRange(FLIGHTS[0], 0, 5), OffsetRange(FLIGHTS[1], 0, 1))


def test_a_match_that_kafka_hides_is_found(cluster: FakeCluster) -> None:
    cluster.logs[FLIGHTS[0]].hides_matches = True
    found = find(Question(place=BROKER, topic="flights", times=(30, None)))
    assert found.spans == (OffsetRange(FLIGHTS[0], 3, 5),)


def test_a_topic_that_its_broker_searches_by_append_time_is_read_from_its_start(
    cluster: FakeCluster,
) -> None:
    cluster.settings["flights"] = {"tidelog.lookup.clock": "append"}
    found = find(Question(place=BROKER, topic="flights", times=(12, 35)))
    assert found.spans == (OffsetRange(FLIGHTS[0], 0, 5), OffsetRange(FLIGHTS[1], 0, 1))
    assert found.between(None, 30) is None
    whole = find(Question(place=BROKER, topic="flights"))
    assert whole.between(None, None) == Count(6, is_exact=False)


def test_brokers_have_an_append_clock_with_log_append_time(cluster: FakeCluster) -> None:
    asked = Question(place=BROKER, topic="flights", times=(30, None), clock=ClockName.APPEND)
    with pytest.raises(InvalidRequest, match="read the broker's own directory"):
        find(asked)
    cluster.stamp(FLIGHTS[0])
    assert find(asked).spans == (OffsetRange(FLIGHTS[0], 3, 5),)
