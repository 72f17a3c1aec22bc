"""Requests over a running broker's control channel, and their effects on consumers."""

import asyncio
import contextlib
import io
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from tests.worlds.brokers.running import holder_of
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.control import channel
from tidelog.control.channel import FrameReader, encode_frame
from tidelog.control.client import ControlClient, find_holder
from tidelog.control.verbs import read_tier_report, tier_arguments
from tidelog.env import os_env
from tidelog.errors import CorruptMessage, InvalidRequest, UnknownTopic
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.server.api import topic_changes
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.directory.attach import WriterVersion
from tidelog.storage.directory.open_partitions import OpenPartitions
from tidelog.storage.directory.staging import (
    NewSegment,
    RowFacts,
    StagedSegment,
    StagedWriter,
    staging_path,
)
from tidelog.storage.open_files import FilePool
from tidelog.storage.tier_manager.mover import MoveOptions
from tidelog.types import NewRecord, TopicPartition

TIMEOUT_S = PATIENCE_S
# If a send blocks for longer than this, in seconds, the test treats it as blocked forever.
BLOCKED_S = 1
ENDLESS_BYTES = 32 << 20
TOPIC = "tides"
COMMIT_ID = "0" * 32
PARTITION = TopicPartition(TOPIC, 0)


def stage(broker: Broker, name: str, texts: list[str]) -> list[StagedSegment]:
    """Stage a segment with records of these values, as another process does."""
    env = os_env()
    config = broker.call(lambda node: node.log_dir.topic(TOPIC).config)
    pool = FilePool(env.files)
    writer = StagedWriter(pool, broker.data, PARTITION, config, name=name)
    records = [NewRecord(value=text.encode(), timestamp=env.clock.now_ms()) for text in texts]
    writer.append([build_batch(records)], RowFacts(min_timestamp=1, has_null_key=True))
    found = writer.finish(env.clock.now_ms())
    pool.close()
    return found


def produce_texts(broker: Broker, texts: list[str]) -> None:
    """Append one record for each text, through a client."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for text in texts:
        producer.produce(TOPIC, text.encode())
    assert producer.flush(TIMEOUT_S) == 0


def consumer_of(broker: Broker, offset: int) -> Consumer:
    """Return a consumer of the topic's only partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    consumer.assign([Place(TOPIC, 0, offset)])
    return consumer


def values(consumer: Consumer, count: int) -> list[str]:
    """Return the next values."""
    found = [message.value() for message in consumer.consume(count, timeout=TIMEOUT_S)]
    return [value.decode() for value in found if value is not None]


def test_status_names_the_broker(broker: Broker) -> None:
    with holder_of(broker) as holder:
        status = holder.status()
    assert (status["pid"], status["broker"]) == (os.getpid(), broker.bootstrap_servers)
    verbs = status["verbs"]
    assert isinstance(verbs, list)
    assert {"status", "flush", "attach", "swap", "erase", "tier"} <= set(verbs)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff" * 4, "frame of 4294967295 bytes exceeds"),
        (b"\x00\x00\x00\x02[}", "frame is not valid JSON"),
    ],
)
def test_a_malformed_frame_closes_its_connection_and_is_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(TIMEOUT_S)
        with channel.address(broker.data) as address:
            link.connect(address)
        link.sendall(data)
        assert link.recv(1) == b""
    assert f"control channel: control channel {reason}" in caplog.text


def test_a_key_is_erased_while_the_broker_runs(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(6):
        producer.produce(TOPIC, b"%d" % number, key=b"the one" if number % 2 else b"another")
    assert producer.flush(TIMEOUT_S) == 0
    with holder_of(broker) as holder:
        looked = holder.erase(TOPIC, b"the one", execute=False)
        assert (looked["records"], looked["executed"]) == (3, False)
        receipt = holder.erase(TOPIC, b"the one", execute=True)
    assert receipt["complete"]
    with Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"}
    ) as consumer:
        consumer.assign([Place(TOPIC, 0, 0)])
        found = consumer.consume(4, timeout=TIMEOUT_S)
    assert [(m.offset(), m.key(), m.value()) for m in found] == [
        (0, b"another", b"0"),
        (2, b"another", b"2"),
        (4, b"another", b"4"),
        (6, b"the one", None),
    ]
    produce_texts(broker, ["d"])


def test_a_waiting_consumer_gets_records_attached_by_another_process(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    produce_texts(broker, ["a"])
    consumer = consumer_of(broker, 0)
    assert values(consumer, 1) == ["a"]
    # The next fetch waits for records at the end of the log; attaching a segment must end the wait.
    waiting: list[str] = []
    thread = threading.Thread(target=lambda: waiting.extend(values(consumer, 2)))
    thread.start()
    with holder_of(broker) as holder:
        version = WriterVersion("job", 0)
        staged = stage(broker, "job-0", ["b", "c"])
        done = holder.attach(staged, commit_id=COMMIT_ID, version=version)
        again = holder.attach(staged, commit_id="1" * 32, version=version)
    thread.join()
    assert waiting == ["b", "c"]
    assert (done.record_count, done.partitions[PARTITION].first_offset) == (2, 1)
    assert again.was_done
    produce_texts(broker, ["d"])
    assert values(consumer, 1) == ["d"]
    consumer.close()


def test_appends_wait_for_an_attach_and_lose_no_record(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    texts = [str(number) for number in range(2000)]
    thread = threading.Thread(target=lambda: produce_texts(broker, texts))
    thread.start()
    with holder_of(broker) as holder:
        for number in range(5):
            staged = stage(broker, f"job-{number}", [f"attached {number}"])
            holder.attach(staged, commit_id=f"{number:032x}")
    thread.join()
    consumer = consumer_of(broker, 0)
    found = values(consumer, len(texts) + 5)
    consumer.close()
    assert [text for text in found if not text.startswith("attached")] == texts
    assert [text for text in found if text.startswith("attached")] == [
        f"attached {number}" for number in range(5)
    ]


def test_errors_keep_their_types(broker: Broker) -> None:
    with holder_of(broker) as holder:
        with pytest.raises(UnknownTopic, match="no topic 'nope'"):
            holder.call("tier", tier_arguments(TopicPartition("nope", 0), MoveOptions()))
        with pytest.raises(InvalidRequest, match="unknown control channel verb 'burn'"):
            holder.call("burn", {})
        with pytest.raises(CorruptMessage, match="`segments` must be a list"):
            holder.call("attach", {})
        segment = {"topic": "__consumer_offsets"}
        text = "__consumer_offsets is an internal topic; only the broker changes its segments"
        with pytest.raises(InvalidRequest, match=f"attach: {text}"):
            holder.call("attach", {"segments": [segment], "commit_id": COMMIT_ID})
        with pytest.raises(InvalidRequest, match=f"erase: {text}"):
            holder.call("erase", segment)


def test_flush_and_a_tier_run_beside_clients(broker: Broker, tmp_path: Path) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    produce_texts(broker, ["a", "b"])
    with holder_of(broker) as holder:
        holder.flush()
        options = MoveOptions(url=f"file://{tmp_path}/store", roll=True, grace_ms=0)
        report = read_tier_report(
            PARTITION, holder.call("tier", tier_arguments(PARTITION, options))
        )
    assert (report.copied, report.stopped) == (1, None)
    produce_texts(broker, ["c"])
    consumer = consumer_of(broker, 0)
    assert values(consumer, 3) == ["a", "b", "c"]
    consumer.close()


def test_the_report_of_a_tier_move_names_a_segment_left_behind(
    broker: Broker, tmp_path: Path
) -> None:
    log = Path(broker.data) / f"{TOPIC}-0" / f"{0:020}.log"

    def flip_last_byte() -> None:
        content = bytearray(log.read_bytes())
        content[-1] ^= 1
        with log.open("r+b") as file:
            file.write(content)

    make_two_segments(broker, flip_last_byte)
    with holder_of(broker) as holder:
        options = MoveOptions(url=f"file://{tmp_path}/store", grace_ms=0)
        report = read_tier_report(
            PARTITION, holder.call("tier", tier_arguments(PARTITION, options))
        )
    assert report.copied == 0
    assert report.stopped is not None
    assert str(log) in report.stopped


def make_two_segments(broker: Broker, then: Callable[[], None] = lambda: None) -> None:
    """Create a finished segment of four batches with one record each, and an active one.

    `then` runs on the broker's loop right after this, before a flush can build the zone map of the
    finished segment.
    """

    def append(node: Node) -> None:
        partition = node.partitions.get(TOPIC, 0)
        for number in range(6):
            partition.log.append([NewRecord(key=b"k", value=b"%d" % number)])
            if number == 3:
                partition.log.roll()
        partition.advance()
        then()

    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    broker.call(append)


def stage_cleaned(data: str, kept: tuple[int, ...]) -> NewSegment:
    """Stage the kept batches of the first segment, as another process does."""
    path = Path(data) / f"{TOPIC}-0" / f"{0:020}.log"
    cleaned = b"".join(
        bytes(batch.view) for batch in walk(path.read_bytes()) if batch.base_offset in kept
    )
    Path(staging_path(data, PARTITION, "cleaned")).write_bytes(cleaned)
    return NewSegment(name="cleaned", base_offset=0, size_bytes=len(cleaned))


def swap_arguments(base_offset: int, new: NewSegment) -> dict[str, object]:
    """Return the arguments of a swap of one segment, as docs/control.md describes them."""
    return {
        "topic": TOPIC,
        "partition": 0,
        "bases": [base_offset],
        "segments": [asdict(new)],
        "commit_id": COMMIT_ID,
    }


def test_swapped_segments_are_read_at_once_and_appends_continue(broker: Broker) -> None:
    make_two_segments(broker)
    with holder_of(broker) as holder:
        new = stage_cleaned(broker.data, (0, 2))
        done = holder.call("swap", swap_arguments(0, new))
        assert (done["segments_before"], done["segments_after"]) == (1, 1)
        assert done["bytes_after"] == new.size_bytes < int(str(done["bytes_before"]))
        with pytest.raises(InvalidRequest):
            holder.call("swap", swap_arguments(4, new))
        with pytest.raises(CorruptMessage, match="`bases` must be a list of offsets"):
            holder.call("swap", {"topic": TOPIC, "partition": 0, "bases": [-1], "segments": []})
    produce_texts(broker, ["6"])
    consumer = consumer_of(broker, 0)
    assert values(consumer, 5) == ["0", "2", "4", "5", "6"]
    consumer.close()


def test_partitions_for_the_control_channel_are_opened_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, threads, opening = str(tmp_path), list[int](), OpenPartitions._open
    with tidelog.broker(data) as broker:
        make_two_segments(broker)

    def watched(self: OpenPartitions, name: TopicPartition, **more: int | None) -> object:
        threads.append(threading.get_ident())
        return opening(self, name, **more)

    monkeypatch.setattr(OpenPartitions, "_open", watched)
    tier = tier_arguments(PARTITION, MoveOptions(url=f"file://{tmp_path}/store", grace_ms=0))
    for verb in ("swap", "attach", "tier"):
        threads.clear()
        with tidelog.broker(data) as broker, holder_of(broker) as holder:
            loop = broker.call(lambda _: threading.get_ident())
            if verb == "swap":
                holder.call("swap", swap_arguments(0, stage_cleaned(data, (0,))))
            elif verb == "attach":
                holder.attach(stage(broker, "job-0", ["b"]), commit_id=COMMIT_ID)
            else:
                holder.call("tier", tier)
        assert threads
        assert loop not in threads


def test_a_client_that_reads_no_responses_is_not_read_further(broker: Broker) -> None:
    question = encode_frame({"version": 1, "verb": "status", "arguments": {}})
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with found, channel.address(broker.data) as address:
        found.connect(address)
        found.settimeout(BLOCKED_S)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < ENDLESS_BYTES:
                sent += found.send(question * 1000)
        assert sent < ENDLESS_BYTES
        found.settimeout(TIMEOUT_S)
        # Each received request gets a response.
        reader, answers = FrameReader(), 0
        while answers < sent // len(question):
            data = found.recv(1 << 16)
            assert data, f"the broker closed the connection after {answers} responses"
            answers += len(list(reader.feed(data)))
    with holder_of(broker) as holder:
        assert holder.status()["pid"] == os.getpid()


STATUS = encode_frame({"version": 1, "verb": "status", "arguments": {}})
REOPEN = encode_frame(
    {"version": 1, "verb": "reopen", "arguments": {"topic": TOPIC, "partition": None}}
)


@contextlib.contextmanager
def connections(broker: Broker, count: int) -> Iterator[list[socket.socket]]:
    """Open connections to the control channel, in order; close them at the end."""
    with contextlib.ExitStack() as opened, channel.address(broker.data) as address:
        links = [opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
        for link in links:
            link.settimeout(TIMEOUT_S)
            link.connect(address)
        yield links


@contextlib.contextmanager
def waiting_requests(broker: Broker) -> Iterator[None]:
    """Make requests to reopen partitions wait until the block ends."""
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    lock, loop = broker.call(lambda node: (node.topics.changing, asyncio.get_running_loop()))
    asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(TIMEOUT_S)
    try:
        yield
    finally:
        broker.call(lambda _: lock.release())


def ask(link: socket.socket, frame: bytes) -> bytes:
    """Send a request; return the first byte of the response, or b"" if the connection is closed."""
    link.sendall(frame)
    return link.recv(1)


def test_a_connection_beyond_the_limit_closes_the_oldest_silent_one(broker: Broker) -> None:
    with (
        connections(broker, channel.CONNECTIONS_MAX) as (oldest, second, *_),
        connections(broker, 1) as (last,),
    ):
        assert ask(last, STATUS)
        assert ask(second, STATUS)
        oldest.settimeout(BLOCKED_S)
        assert oldest.recv(1) == b""


def test_at_the_limit_a_connection_with_a_running_request_stays(broker: Broker) -> None:
    with connections(broker, channel.CONNECTIONS_MAX) as (busy, silent, third, *_):
        with waiting_requests(broker):
            busy.sendall(REOPEN)
            assert ask(third, STATUS)
            with connections(broker, 1) as (last,):
                assert ask(last, STATUS)
                assert silent.recv(1) == b""
        assert busy.recv(1)
        assert ask(third, STATUS)


def test_if_all_connections_have_a_running_request_the_oldest_is_closed(broker: Broker) -> None:
    with connections(broker, channel.CONNECTIONS_MAX) as (oldest, *others):
        with waiting_requests(broker):
            for link in (oldest, *others):
                link.sendall(REOPEN)
            with connections(broker, 1) as (last,):
                assert ask(last, STATUS)
                assert oldest.recv(1) == b""
        assert all(link.recv(1) for link in others)


def test_the_channels_threads_end_with_the_broker(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    data, store = str(tmp_path / "data"), f"file://{tmp_path}/store"
    with tidelog.broker(data) as broker, holder_of(broker) as holder:
        broker.call(lambda node: node.log_dir.create_topic(TOPIC))
        holder.erase(TOPIC, b"key", execute=True)
        holder.call("tier", tier_arguments(PARTITION, MoveOptions(url=store)))
        names = [each.name for each in threading.enumerate() if each not in before]
        assert any(name.startswith("tidelog-tier") for name in names)
    left = [each.name for each in threading.enumerate() if each not in before]
    assert not [name for name in left if name.startswith(("tidelog-attach", "tidelog-tier"))]


def test_the_channel_ends_with_the_broker(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)):
        holder = find_holder(str(tmp_path), timeout_s=TIMEOUT_S)
        assert holder is not None
        holder.close()
    assert find_holder(str(tmp_path), timeout_s=TIMEOUT_S) is None


def command(*words: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    surroundings = Surroundings(stdin=io.BytesIO(), stdout=out, stderr=err, variables={})
    code = run(list(words), surroundings)
    out.flush()
    return code, raw.getvalue().decode(), err.getvalue()


def test_commands_on_a_directory_that_a_broker_holds(broker: Broker, tmp_path: Path) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    produce_texts(broker, ["a", "b"])
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


def test_retention_beside_a_broker_applies_its_default(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    produce_texts(broker, ["a", "b"])
    address = broker.bootstrap_servers
    default = f"retention.ms=604800000 (7d), the default of the broker at {address}"
    for show in ("segments", "details"):
        code, out, err = command("why", TOPIC, "--show", show, "--data", broker.data)
        text = " ".join(out.split())
        assert (code, err.count("note:"), "forever" in text) == (0, 0, False)
        assert default in text
    code, out, _ = command("why", TOPIC, "--data", broker.data, "-o", "json")
    kept = json.loads(out.splitlines()[0])["kept"]
    assert (code, kept["until_ms"] - kept["counted_ms"]) == (0, 604_800_000)
    code, out, err = command("retain", TOPIC, "--dry-run", "--data", broker.data)
    assert (code, "next: offsets 0..1" in out, "forever" in out) == (0, True, False)
    assert " ".join(err.split()) == (
        f"note: {TOPIC} has no retention.ms of its own; {default}, applies"
    )


def test_the_default_of_an_old_broker_is_unknown(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of an earlier release reports its address, but not its default settings."""
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))
    produce_texts(broker, ["a", "b"])
    address = broker.bootstrap_servers
    monkeypatch.setattr(ControlClient, "status", lambda _: {"broker": address})
    _, out, _ = command("why", TOPIC, "--show", "segments", "--data", broker.data)
    assert "broker's default" in out.splitlines()[-1]
    _, out, _ = command("retain", TOPIC, "--dry-run", "--data", broker.data)
    assert f"kept as long as the default of the broker at {address} says" in " ".join(out.split())
    step = f"`tidelog config {TOPIC} --all -b {address}` shows its retention.ms"
    code, out, err = command("why", TOPIC, "--data", broker.data)
    text = " ".join(out.split())
    assert (code, "no broker's default" in text, "without a broker" in text) == (0, False, False)
    assert f"a broker at {address} has the directory open" in text
    assert step in err
    code, _, err = command("retain", TOPIC, "--dry-run", "--data", broker.data)
    assert (code, step in err, "no broker's default" in err) == (0, True, False)
    code, out, _ = command("config", TOPIC, "--all", "-b", address)
    assert (code, "retention.ms" in out) == (0, True)


def test_a_topic_may_be_deleted_while_its_segments_move(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC))

    async def delete(node: Node) -> None:
        async with node.partitions.holds.hold([TOPIC], stops_appends=False):
            await topic_changes.delete(node, TOPIC)

    node, loop = broker.call(lambda node: (node, asyncio.get_running_loop()))
    asyncio.run_coroutine_threadsafe(delete(node), loop).result(TIMEOUT_S)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert TOPIC not in admin.list_topics(timeout=TIMEOUT_S).topics
