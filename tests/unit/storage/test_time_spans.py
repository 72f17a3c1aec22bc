"""Smallest and largest times of partitions: neither markers nor deleted records count."""

import random
from pathlib import Path

import pytest
from tests.worlds.directories.logs import new_log, put, reopen
from tests.worlds.directories.random_logs import TOPIC, make_log_dir

import tidelog
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import append_span, record_span
from tidelog.types import NewRecord, TimeSpan

NOTHING = TimeSpan(None, None)


def end_transaction(log: Log) -> None:
    log.end_transaction(producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=True)


def test_a_marker_is_no_record() -> None:
    env, directory, log = new_log()
    assert (record_span(log), append_span(log)) == (NOTHING, NOTHING)
    first = env.clock.now_ms()
    put(log, 2, 5, 3)
    env.clock.jump(first + 500_000)
    for _ in range(7):
        end_transaction(log)
    assert (record_span(log), append_span(log)) == (TimeSpan(2, 5), TimeSpan(first, first))
    log.roll()
    end_transaction(log)
    assert (record_span(log), append_span(log)) == (TimeSpan(2, 5), TimeSpan(first, first))
    log.delete_records(2)
    assert (record_span(log), append_span(log)) == (TimeSpan(3, 3), TimeSpan(first, first))
    log.delete_records(3)
    assert (record_span(log), append_span(log)) == (NOTHING, NOTHING)
    directory.close()
    _, log = reopen(env)
    assert (record_span(log), append_span(log)) == (NOTHING, NOTHING)


def test_markers_before_the_first_record() -> None:
    env, _, log = new_log()
    end_transaction(log)
    first = env.clock.now_ms() + 1000
    env.clock.jump(first)
    put(log, 7)
    assert (record_span(log), append_span(log)) == (TimeSpan(7, 7), TimeSpan(first, first))


@pytest.mark.parametrize("seed", range(12))
def test_spans_are_those_of_the_records(tmp_path: Path, seed: int) -> None:
    path = str(tmp_path / "log")
    make_log_dir(path, seed, steps=40)
    draw = random.Random(seed)
    with LogDir.open(path) as directory:
        for name in directory.partitions(TOPIC):
            view = directory.reader(name.topic, name.partition)
            ensure_spans(view)
    with tidelog.open(path, writable=True) as log:
        for name in log.partitions(TOPIC):
            one = log.log(name.topic, name.partition)
            one.delete_records(draw.randint(one.log_start_offset, one.log_end_offset))
            ensure_spans(one)


def ensure_spans(log: LogView) -> None:
    """Compare the spans with the times of all records, read one by one."""
    records = list(log.records())
    timestamps = [one.timestamp for one in records if one.timestamp >= 0]
    largest = max(timestamps) if timestamps else None
    span = record_span(log)
    assert span.last_ms == largest
    assert span.first_ms in (None, min(timestamps, default=None))
    appended = [log.append_time_of(one.offset) for one in records]
    known = [ms for ms in appended if ms is not None]
    assert append_span(log) == (TimeSpan(known[0], known[-1]) if known else NOTHING)


def test_spans_from_a_broker() -> None:
    with tidelog.broker() as broker, tidelog.connect(broker.bootstrap_servers) as log:
        log.create_topic("flights", partitions=3, config={"retention.ms": "-1"})
        log.append("flights", [NewRecord(value=b"v", timestamp=5)], partition=0)
        producer = pytest.importorskip("confluent_kafka").Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("flights", b"v", partition=1, timestamp=9)
        producer.commit_transaction()
        names = log.partitions("flights")
        created = log.time_spans("flights")
        assert created[names[0]] == TimeSpan(None, 5)
        assert created[names[1]] == NOTHING  # the marker's time hides the record's
        assert created[names[2]] == NOTHING
        appended = log.time_spans("flights", clock="append")
        assert appended[names[2]] == NOTHING
        for name in names[:2]:
            first, last = appended[name]
            assert first == last is not None
