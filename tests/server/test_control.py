"""The control channel of a running broker: what is attached by others, its clients see at once."""

import asyncio
import io
import json
import os
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

import tidelog
from tidelog.cli.main import run
from tidelog.cli.surroundings import Surroundings
from tidelog.control.client import ControlClient, find_holder
from tidelog.control.tier_verb import read_report, wishes
from tidelog.env import os_env
from tidelog.errors import CorruptMessage, InvalidRequest, UnknownTopic
from tidelog.record.builder import build_batch
from tidelog.server import topic_changes
from tidelog.server.in_process import Broker
from tidelog.server.node import Node
from tidelog.storage.attach import WriterVersion
from tidelog.storage.handles import FilePool
from tidelog.storage.staging import RowFacts, StagedSegment, StagedWriter
from tidelog.storage.tiering import MoveOptions
from tidelog.types import NewRecord, TopicPartition

TIMEOUT_S = 30
TOPIC = "tides"
COMMIT_ID = "0" * 32
PARTITION = TopicPartition(TOPIC, 0)


def holder_of(broker: Broker) -> ControlClient:
    """The channel of a broker."""
    found = find_holder(broker.data, timeout_s=TIMEOUT_S)
    assert found is not None
    return found


def stage(broker: Broker, name: str, texts: list[str]) -> list[StagedSegment]:
    """A segment with records of these values, staged as by another process."""
    env = os_env()
    config = broker.call(lambda node: node.log_dir.topic(TOPIC).config)
    pool = FilePool(env.files)
    writer = StagedWriter(pool, broker.data, PARTITION, config, name=name)
    records = [NewRecord(value=text.encode(), timestamp=env.clock.now_ms()) for text in texts]
    writer.append([build_batch(records)], RowFacts(min_timestamp=1, has_null_key=True))
    found = writer.finish(env.clock.now_ms())
    pool.close()
    return found


def produce(broker: Broker, texts: list[str]) -> None:
    """Append values through a client."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for text in texts:
        producer.produce(TOPIC, text.encode())
    assert producer.flush(TIMEOUT_S) == 0


def consumer_of(broker: Broker, offset: int) -> Consumer:
    """A consumer of the topic's only partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    consumer.assign([Place(TOPIC, 0, offset)])
    return consumer


def values(consumer: Consumer, count: int) -> list[str]:
    """The next values."""
    found = [message.value() for message in consumer.consume(count, timeout=TIMEOUT_S)]
    return [value.decode() for value in found if value is not None]


def test_status_names_the_broker(broker: Broker) -> None:
    with holder_of(broker) as holder:
        status = holder.status()
    assert (status["pid"], status["broker"]) == (os.getpid(), broker.bootstrap_servers)
    verbs = status["verbs"]
    assert isinstance(verbs, list)
    assert {"status", "flush", "attach", "swap", "tier"} <= set(verbs)


def test_waiting_consumer_gets_what_another_process_attaches(broker: Broker) -> None:
    broker.call(lambda node: node.topics.create(TOPIC))
    produce(broker, ["a"])
    consumer = consumer_of(broker, 0)
    assert values(consumer, 1) == ["a"]
    # The next fetch waits at the end of the log; what is attached meanwhile must end it.
    waiting: list[str] = []
    thread = threading.Thread(target=lambda: waiting.extend(values(consumer, 2)))
    thread.start()
    with holder_of(broker) as holder:
        version = WriterVersion("job", 0)
        staged = stage(broker, "job-0", ["b", "c"])
        done = holder.attach(staged, commit_id=COMMIT_ID, version=version)
        again = holder.attach(staged, commit_id="1" * 32, version=version)
    thread.join(TIMEOUT_S)
    assert waiting == ["b", "c"]
    assert (done.record_count, done.partitions[PARTITION].first_offset) == (2, 1)
    assert again.was_done
    produce(broker, ["d"])
    assert values(consumer, 1) == ["d"]
    consumer.close()


def test_appends_wait_for_an_attach_and_lose_nothing(broker: Broker) -> None:
    broker.call(lambda node: node.topics.create(TOPIC))
    texts = [str(number) for number in range(2000)]
    thread = threading.Thread(target=lambda: produce(broker, texts))
    thread.start()
    with holder_of(broker) as holder:
        for number in range(5):
            staged = stage(broker, f"job-{number}", [f"attached {number}"])
            holder.attach(staged, commit_id=f"{number:032x}")
    thread.join(TIMEOUT_S)
    consumer = consumer_of(broker, 0)
    found = values(consumer, len(texts) + 5)
    consumer.close()
    assert [text for text in found if not text.startswith("attached")] == texts
    assert [text for text in found if text.startswith("attached")] == [
        f"attached {number}" for number in range(5)
    ]


def test_errors_come_back_as_their_types(broker: Broker) -> None:
    with holder_of(broker) as holder:
        with pytest.raises(UnknownTopic, match="no topic 'nope'"):
            holder.ask("tier", wishes(TopicPartition("nope", 0), MoveOptions()))
        with pytest.raises(InvalidRequest, match="no verb 'erase'"):
            holder.ask("erase", {})
        with pytest.raises(CorruptMessage, match="no list of segments"):
            holder.ask("attach", {})
        segment = {"topic": "__consumer_offsets"}
        with pytest.raises(InvalidRequest, match="the broker's own"):
            holder.ask("attach", {"segments": [segment], "commit_id": COMMIT_ID})


def test_flush_and_a_tier_run_beside_clients(broker: Broker, tmp_path: Path) -> None:
    broker.call(lambda node: node.topics.create(TOPIC))
    produce(broker, ["a", "b"])
    with holder_of(broker) as holder:
        holder.flush()
        options = MoveOptions(url=f"file://{tmp_path}/store", roll=True, grace_ms=0)
        report = read_report(PARTITION, holder.ask("tier", wishes(PARTITION, options)))
    assert (report.copied, report.stopped) == (1, None)
    produce(broker, ["c"])
    consumer = consumer_of(broker, 0)
    assert values(consumer, 3) == ["a", "b", "c"]
    consumer.close()


def test_channel_goes_with_the_broker(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)):
        holder = find_holder(str(tmp_path), timeout_s=TIMEOUT_S)
        assert holder is not None
        holder.close()
    assert find_holder(str(tmp_path), timeout_s=TIMEOUT_S) is None


def command(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    code = run(list(words), surroundings)
    out.flush()
    return code, raw.getvalue().decode(), err.getvalue()


def test_commands_on_a_directory_that_a_broker_holds(broker: Broker, tmp_path: Path) -> None:
    broker.call(lambda node: node.topics.create(TOPIC))
    produce(broker, ["a", "b"])
    store = f"file://{tmp_path}/store"
    code, out, err = command(
        *("tier", TOPIC, "--data", broker.data, "--to", store, "--roll", "-o", "json")
    )
    assert (code, json.loads(out)["copied"]) == (0, 1), err
    assert broker.call(lambda node: node.log_dir.topic(TOPIC).given["tidelog.tier.url"]) == store
    code, _, err = command("create", "other", "--data", broker.data)
    assert code == 1
    assert f"a broker at {broker.bootstrap_servers} has it open" in err
    assert f"--bootstrap {broker.bootstrap_servers}" in err
    _, out, _ = command("read", TOPIC, "--data", broker.data, "-o", "json")
    assert len(out.splitlines()) == 2


def test_topic_goes_while_its_segments_move(broker: Broker) -> None:
    broker.call(lambda node: node.topics.create(TOPIC))

    async def delete(node: Node) -> None:
        async with node.partitions.holds.hold([TOPIC], stops_appends=False):
            await topic_changes.delete(node, TOPIC)

    node, loop = broker.call(lambda node: (node, asyncio.get_running_loop()))
    asyncio.run_coroutine_threadsafe(delete(node), loop).result(TIMEOUT_S)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert TOPIC not in admin.list_topics(timeout=TIMEOUT_S).topics
