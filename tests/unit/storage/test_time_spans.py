"""Smallest and largest times of partitions; markers and deleted records are left out."""

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.worlds.directories.logs import new_log, put, read, reader_of, reopen, write
from tests.worlds.directories.plain_cleaner import PlainWorker
from tests.worlds.directories.random_logs import TOPIC, make_log_dir

import tidelog
from tidelog.errors import CorruptData
from tidelog.record.header import MAGIC_AT
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
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


@pytest.mark.parametrize("damaged", range(3))
def test_append_times_before_damage_are_known(damaged: int) -> None:
    env, directory, log = new_log()
    first = env.clock.now_ms()
    for number in range(3):
        env.clock.jump(first + number * 1_000)
        put(log, number)
    size = log.size_bytes() // 3
    log.roll()
    directory.close()
    name = f"{0:020}.log"
    data = bytearray(read(env, name))
    data[damaged * size + MAGIC_AT] = 99
    write(env, name, bytes(data))
    view = reader_of(env)
    with pytest.raises(CorruptData):
        list(view.records())
    known = [first + number * 1_000 for number in range(damaged)]
    assert append_span(view) == (TimeSpan(known[0], known[-1]) if known else NOTHING)


def test_a_batch_whose_records_from_the_log_start_on_were_compacted_away() -> None:
    env, directory, log = new_log({"cleanup.policy": "compact,delete"})
    log.append([NewRecord(key=b"%d" % key, value=b"v", timestamp=5) for key in range(3)])
    log.roll()
    log.append([NewRecord(key=b"2", value=b"v", timestamp=4)])
    log.roll()
    clean_partition(directory, log.topic_partition, PlainWorker(env), CleanerOptions(is_asked=True))
    log.delete_records(2)
    env.clock.jump(env.clock.now_ms() + 1_000)
    end_transaction(log)
    assert [(one.offset, one.timestamp) for one in log.records()] == [(3, 4)]
    assert record_span(log) == TimeSpan(4, 4)


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
    """Compare the log's smallest and largest times with the times of records read one by one."""
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
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("flights", b"v", partition=1, timestamp=9)
        producer.commit_transaction()
        names = log.partitions("flights")
        created = log.time_spans("flights")
        assert created[names[0]] == TimeSpan(None, 5)
        assert created[names[1]] == NOTHING  # the marker's later time hides the record
        assert created[names[2]] == NOTHING
        appended = log.time_spans("flights", clock="append")
        assert appended[names[2]] == NOTHING
        for name in names[:2]:
            first, last = appended[name]
            assert first == last is not None
