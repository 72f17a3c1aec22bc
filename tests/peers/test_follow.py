"""A standby of a real Kafka has the same bytes, offsets, epochs, times, settings and groups."""

import io
import json
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Tp
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from tests.worlds.clusters.fake_leader import catch_up
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.clients import our_view, produce, produce_by_librdkafka, read_ours
from tests.worlds.kafka.either import kafka_fixture
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import draw_records
from tests.worlds.waiting import until_so

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import InconsistentTopicId
from tidelog.standby.follower import Follower, FollowOptions
from tidelog.standby.partition_copy import Copy
from tidelog.standby.topic_sync import TopicChoice
from tidelog.storage.directory.broker_files import GroupOffset, read_group_offsets
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import encode_topic_id
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.text_files import read_partition_metadata
from tidelog.types import Codec, IsolationLevel, NewRecord, TimestampType

pytestmark = pytest.mark.kafka
T0 = 1_700_000_000_000

# A separate broker for this module, whose tests stop and start the broker, and restore old files.
broker = kafka_fixture()


def follow(broker: Broker, standby: Path, *topics: str) -> Follower:
    options = FollowOptions(choice=TopicChoice(patterns=topics))
    return Follower.open(str(standby), "127.0.0.1", broker.port, options)


def copied(broker: Broker, standby: Path, *topics: str) -> dict[str, Copy]:
    """Let a standby catch up, then stop the standby; return the copies by partition."""
    with follow(broker, standby, *topics) as follower:
        catch_up(follower)
        assert follower.problems == {}
        return {str(name): copy for name, copy in follower.copies.items()}


def log_bytes(directory: Path) -> bytes:
    """Return a partition's records, regardless of its segments."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def reader(directory: Path, topic: str, partition: int = 0) -> LogView:
    return LogDir.open(str(directory)).reader(topic, partition)


def writer(standby: Path, topic: str) -> tuple[LogDir, Log]:
    found = LogDir.open(str(standby), options=LogDirOptions(writable=True))
    return found, found.log(topic, 0)


def some(rng: random.Random, count: int = 20) -> list[NewRecord]:
    """Return records that all have a time, because a producer would set a missing time."""
    return [
        replace(record, timestamp=T0 + rng.randrange(9_000)) for record in draw_records(rng, count)
    ]


def send_by_both_clients(oracle: Oracle, broker: Broker, topic: str) -> None:
    """Send records with every codec by Java's client and librdkafka; commit and abort by Java's."""
    rng = random.Random(topic)
    for codec in Codec:
        produce(oracle, broker, topic, some(rng), codec=codec)
        produce_by_librdkafka(broker, topic, some(rng), codec=codec)
    for commit in (True, False):
        name = f"{topic}-{commit}"
        produce(oracle, broker, topic, some(rng), transaction=name, commit=commit)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_everything_is_the_leaders(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path, timestamp_type: str
) -> None:
    topic = f"all-{timestamp_type}"
    settings = {"message_timestamp_type": timestamp_type, "segment_bytes": "1048576"}
    broker.create_topic(topic, 2, **settings)
    send_by_both_clients(kafka_oracle, broker, topic)
    copied(broker, tmp_path, topic)
    theirs, mine = broker.partition_dir(topic), tmp_path / f"{topic}-0"
    assert log_bytes(mine) == log_bytes(theirs) != b""
    name = "leader-epoch-checkpoint"
    assert (mine / name).read_text() == (theirs / name).read_text()
    assert not kafka_oracle.check_directory(mine).damage
    ours, leaders = reader(tmp_path, topic), reader(broker.log_dir, topic)
    for isolation in IsolationLevel:
        assert read_ours(ours, isolation) == read_ours(leaders, isolation)
    assert ours.producer_states().encode_snapshot() == leaders.producer_states().encode_snapshot()
    told = ours.context.config
    assert (
        told.message_timestamp_type
        is TimestampType["CREATE_TIME" if timestamp_type == "CreateTime" else "LOG_APPEND_TIME"]
    )
    assert told.retention_ms == -1  # set in this broker's settings, not Kafka's default
    info = LogDir.open(str(tmp_path)).topic(topic)
    assert info.topic_id is not None
    assert encode_topic_id(info.topic_id) == broker.topic_id(topic).replace("+", "-").replace(
        "/", "_"
    )
    assert info.partitions == 2


def test_only_copies_of_log_append_time_topics_have_append_times(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path
) -> None:
    for topic, kind in (("mine-create", "CreateTime"), ("mine-append", "LogAppendTime")):
        broker.create_topic(topic, message_timestamp_type=kind)
        produce(kafka_oracle, broker, topic, some(random.Random(1)))
    copied(broker, tmp_path, "mine-*")
    unknown = reader(tmp_path, "mine-create")
    assert {unknown.append_time_of(r.offset) for r in unknown.records()} == {None}
    stamped = reader(tmp_path, "mine-append")
    assert all(stamped.append_time_of(r.offset) == r.timestamp for r in stamped.records())


def test_a_standby_continues_after_stops_of_either_side(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("on")
    rng = random.Random(2)
    for stop in (None, broker.stop, broker.kill):
        if stop is not None:
            stop()
            broker.start()
        produce(kafka_oracle, broker, "on", some(rng), codec=Codec.LZ4)
        before = len(log_bytes(tmp_path / "on-0"))
        copy = copied(broker, tmp_path, "on")["on-0"]
        now = log_bytes(tmp_path / "on-0")
        assert now == log_bytes(broker.partition_dir("on"))
        assert copy.counts.size_bytes == len(now) - before
        assert copy.counts.truncations == []


def test_a_leader_that_lost_its_newest_records(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path
) -> None:
    """The leader's partition is restored from an older copy, so the leader loses later records."""
    broker.create_topic("lost")
    rng = random.Random(3)
    produce(kafka_oracle, broker, "lost", some(rng))
    broker.stop()
    shutil.copytree(broker.partition_dir("lost"), tmp_path / "older")
    broker.start()
    produce(kafka_oracle, broker, "lost", some(rng))
    standby = tmp_path / "standby"
    end = copied(broker, standby, "lost")["lost-0"].log.log_end_offset
    broker.stop()
    shutil.rmtree(broker.partition_dir("lost"))
    shutil.copytree(tmp_path / "older", broker.partition_dir("lost"))
    broker.start()
    produce(kafka_oracle, broker, "lost", some(rng, 5))
    copy = copied(broker, standby, "lost")["lost-0"]
    assert [(cut.start, cut.end) for cut in copy.counts.truncations] == [(20, end)]
    assert log_bytes(standby / "lost-0") == log_bytes(broker.partition_dir("lost"))


def test_a_standby_that_was_promoted_and_follows_again(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("back")
    rng = random.Random(4)
    produce(kafka_oracle, broker, "back", some(rng))
    copied(broker, tmp_path, "back")
    before = reader(tmp_path, "back").records()
    known = [our_view(record) for record in before]
    directory, log = writer(tmp_path, "back")
    epoch = (broker.partition_dir("back") / "leader-epoch-checkpoint").read_text().split()[-2]
    with directory:
        log.append([NewRecord(key=b"k", value=b"ours"), NewRecord(key=b"k", value=b"too")])
        assert log.leader_epochs.latest == (int(epoch) + 1, len(known))
        assert [our_view(record) for record in log.records()][: len(known)] == known
    broker.stop()
    broker.start()
    produce(kafka_oracle, broker, "back", some(rng))
    copy = copied(broker, tmp_path, "back")["back-0"]
    assert [(cut.start, cut.end) for cut in copy.counts.truncations] == [(20, 22)]
    assert log_bytes(tmp_path / "back-0") == log_bytes(broker.partition_dir("back"))


def test_append_times_do_not_decrease_at_a_promoted_standby_with_a_slow_clock(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path
) -> None:
    """The example of broker0 and broker1 in KIP-32's first draft; real Kafka is broker0 here."""
    broker.create_topic("slow", message_timestamp_type="LogAppendTime")
    produce(kafka_oracle, broker, "slow", [NewRecord(key=b"k", value=b"m0")])
    copied(broker, tmp_path, "slow")
    (m0,) = reader(tmp_path, "slow").records()
    clock = ManualClock(m0.timestamp - 60_000)
    with LogDir.open(
        str(tmp_path), env=Env(clock=clock), options=LogDirOptions(writable=True)
    ) as directory:
        log = directory.log("slow", 0)
        told = log.append([NewRecord(key=b"k", value=b"m1")])
        assert told.append_time_ms == m0.timestamp
        assert [record.timestamp for record in log.records()] == [m0.timestamp] * 2


def delete_records(broker: Broker, topic: str, offset: int) -> None:
    admin = AdminClient(broker.client_config())
    for future in admin.delete_records([Tp(topic, 0, offset)]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)


def alter(broker: Broker, topic: str, key: str, value: str) -> None:
    admin = AdminClient(broker.client_config())
    changed = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[changed])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)


def test_each_side_deletes_on_its_own(kafka_oracle: Oracle, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("apart")
    rng = random.Random(5)
    for _ in range(3):
        produce(kafka_oracle, broker, "apart", some(rng, 10))
    copied(broker, tmp_path, "apart")
    delete_records(broker, "apart", 25)
    produce(kafka_oracle, broker, "apart", some(rng, 10))
    copy = copied(broker, tmp_path, "apart")["apart-0"]
    assert (copy.counts.truncations, copy.counts.lost) == ([], [])
    ours = reader(tmp_path, "apart")
    assert (ours.log_start_offset, ours.log_end_offset) == (0, 40)
    directory, log = writer(tmp_path, "apart")
    with directory:
        log.delete_records(35)
    produce(kafka_oracle, broker, "apart", some(rng, 10))
    copy = copied(broker, tmp_path, "apart")["apart-0"]
    assert (copy.counts.truncations, copy.counts.lost) == ([], [])
    ours = reader(tmp_path, "apart")
    assert (ours.log_start_offset, ours.log_end_offset) == (35, 50)
    late = copied(broker, tmp_path / "late", "apart")["apart-0"]
    assert late.log.log_start_offset == 25


@pytest.mark.parametrize("is_another", [True, False])
def test_an_abort_after_deleted_records_is_copied(
    broker: Broker, tmp_path: Path, is_another: bool
) -> None:
    """The abort may end the standby's open transaction, or the producer's next transaction."""
    topic = f"ends-{is_another}".lower()
    broker.create_topic(topic)
    producer = Producer(broker.client_config(transactional_id=topic))
    producer.init_transactions(REQUEST_TIMEOUT_S)

    def write(value: bytes) -> None:
        producer.produce(topic, value, partition=0)
        producer.flush(REQUEST_TIMEOUT_S)

    producer.begin_transaction()
    write(b"begun")
    copied(broker, tmp_path, topic)
    if is_another:
        producer.commit_transaction(REQUEST_TIMEOUT_S)
        producer.begin_transaction()
    write(b"next")
    delete_records(broker, topic, 2 if is_another else 1)
    producer.abort_transaction(REQUEST_TIMEOUT_S)
    end = 4 if is_another else 3
    broker.await_end(topic, end)
    copied(broker, tmp_path, topic)
    ours = reader(tmp_path, topic)
    shown = [record.value for record in ours.records(isolation=IsolationLevel.READ_COMMITTED)]
    assert shown == ([b"begun"] if is_another else [])
    assert ours.last_stable_offset == ours.log_end_offset == end


def test_a_leader_that_compacts(kafka_oracle: Oracle, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic(
        "compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
    )
    early, late = tmp_path / "early", tmp_path / "late"
    for number in range(5):
        record = NewRecord(
            key=b"k%d" % (number % 2), value=b"v%d" % number, timestamp=number * 1000
        )
        produce(kafka_oracle, broker, "compact", [record])
    copied(broker, early, "compact")
    alter(broker, "compact", "cleanup.policy", "compact")
    broker.await_cleaning("compact", 4)
    for standby in (early, late):
        copy = copied(broker, standby, "compact")["compact-0"]
        assert (copy.counts.truncations, copy.counts.lost) == ([], [])
    assert len(read_ours(reader(early, "compact"), IsolationLevel.READ_UNCOMMITTED)) == 5
    assert log_bytes(late / "compact-0") == log_bytes(broker.partition_dir("compact"))


def test_group_offsets(kafka_oracle: Oracle, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("read", 2)
    produce(kafka_oracle, broker, "read", some(random.Random(6)))
    consumer = Consumer(broker.client_config(group_id="readers"))
    consumer.commit(offsets=[Tp("read", 0, 7, metadata="so far")], asynchronous=False)
    consumer.close()
    copied(broker, tmp_path, "read")
    found = read_group_offsets(os_env().files, str(tmp_path))
    assert found is not None
    (commit,) = found.groups["readers"]
    assert commit._replace(metadata="") == GroupOffset("read", 0, 7)
    assert commit.metadata.rstrip("\0") == "so far"  # librdkafka adds a C string's end


def test_a_recreated_topic_is_refused(kafka_oracle: Oracle, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("anew")
    produce(kafka_oracle, broker, "anew", some(random.Random(7)))
    copied(broker, tmp_path, "anew")
    known = log_bytes(tmp_path / "anew-0")
    admin = AdminClient(broker.client_config())
    for future in admin.delete_topics(["anew"]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)
    # Wait, because for a moment the broker may still return the old topic's id.
    until_so(
        lambda: "anew" not in admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics, "it is gone"
    )
    broker.create_topic("anew")
    produce(kafka_oracle, broker, "anew", some(random.Random(8)))
    with pytest.raises(InconsistentTopicId, match="recreated"):
        follow(broker, tmp_path, "anew")
    assert log_bytes(tmp_path / "anew-0") == known
    assert read_partition_metadata(os_env().files, str(tmp_path / "anew-0")) is not None


def test_the_command(kafka_oracle: Oracle, broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("said", 2)
    produce(kafka_oracle, broker, "said", some(random.Random(8)))
    out, err = io.StringIO(), io.StringIO()
    surroundings = Surroundings(stdout=out, stderr=err)
    arguments = [broker.bootstrap, "--data", str(tmp_path), "--topic", "said", "--once"]
    assert run(["follow", *arguments, "-o", "json"], surroundings) == 0
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    last = {row["partition"]: row for row in rows}
    assert [(last[n]["end"], last[n]["lag"], last[n]["problem"]) for n in (0, 1)] == [
        (20, 0, None),
        (0, 0, None),
    ]
    assert "2 partitions" in err.getvalue()


def test_the_command_runs_until_a_signal(
    kafka_oracle: Oracle, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("live")
    rng = random.Random(9)
    produce(kafka_oracle, broker, "live", some(rng))
    command = [sys.executable, "-m", "tidelog.cli.app", "follow", broker.bootstrap]
    options = ["--data", str(tmp_path), "--topic", "live", "-o", "json", "--every", "100ms"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        await_end(process.stdout, 20)
        produce(kafka_oracle, broker, "live", some(rng))
        await_end(process.stdout, 40)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(timeout=REQUEST_TIMEOUT_S) == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert log_bytes(tmp_path / "live-0") == log_bytes(broker.partition_dir("live"))


def await_end(lines: IO[str], end: int) -> None:
    """Wait until a row shows that a partition's copy has reached `end` without lag."""
    for line in lines:
        row = json.loads(line)
        if (row["end"], row["lag"]) == (end, 0):
            return
    raise AssertionError(f"the command ended before offset {end}")
