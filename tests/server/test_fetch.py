"""Fetch requests: limits, waiting, leader epochs, topic ids, sessions, parts of files, damage."""

import os
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from tests.worlds.brokers.topics import delete_topic
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S, until_so

import tidelog
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import DESCRIBE_CLUSTER, FETCH, METADATA
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import INT32_MAX, NewRecord

TOPIC = "flights"
VALUE = b"v" * 1000
LATER_MS = PATIENCE_S * 2_000


def create(broker: Broker, partitions: int = 1, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    broker.call(
        lambda node: node.log_dir.create_topic(TOPIC, partitions=partitions, config=settings)
    )


def put(broker: Broker, count: int = 1, *, partition: int = 0, batch_bytes: int = 16_384) -> None:
    """Append records of about 1 KB, 20 at a time, in batches of about `batch_bytes`."""

    def append(node: Node) -> None:
        found = node.partitions.get(TOPIC, partition)
        for first in range(0, count, 20):
            records = [
                NewRecord(key=b"%d" % number, value=VALUE, timestamp=number)
                for number in range(first, min(first + 20, count))
            ]
            found.log.append(records, batch_bytes=batch_bytes)
        found.advance()

    broker.call(append)


def partition(number: int = 0, offset: int = 0, **more: int) -> FetchPartition:
    return FetchPartition(
        partition=number,
        fetch_offset=offset,
        partition_max_bytes=more.pop("max_bytes", 1 << 20),
        **more,  # type: ignore[arg-type] # all others are numbers
    )


def request(*partitions: FetchPartition, **more: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=more.pop("max_wait_ms", 0),
        min_bytes=more.pop("min_bytes", 1),
        topics=[FetchTopic(topic=TOPIC, partitions=list(partitions))] if partitions else [],
        **more,  # type: ignore[arg-type] # all others are numbers
    )


def parts(response: FetchResponse) -> dict[int, PartitionData]:
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def fetch(broker: Broker, what: FetchRequest, version: int = 12) -> dict[int, PartitionData]:
    with RawClient(broker.bootstrap_servers) as client:
        return parts(client.ask(FETCH, version, what))


def offsets(data: PartitionData) -> list[int]:
    """Return the offsets of all records in a response; fail if a batch is invalid or cut off."""
    batches = list(walk(data.batches))
    assert sum(batch.size_bytes for batch in batches) == len(data.batches)
    assert all(batch.is_valid() for batch in batches)
    return [record.offset for batch in batches for record in batch.records()]


def test_the_first_batch_is_whole_and_others_are_within_the_limits(broker: Broker) -> None:
    create(broker, partitions=2)
    put(broker, 40, batch_bytes=4_000)
    put(broker, 40, partition=1, batch_bytes=4_000)
    small = partition(0, max_bytes=10), partition(1, max_bytes=10)
    found = fetch(broker, request(*small))
    assert len(offsets(found[0])) in (3, 4)
    assert not found[1].batches
    limited = fetch(broker, request(partition(0, max_bytes=9_000), partition(1), max_bytes=20_000))
    assert 4_000 < len(limited[0].batches) <= 9_000
    assert 4_000 < len(limited[1].batches) <= 20_000 - len(limited[0].batches)


def test_a_negative_limit_is_an_error_of_the_first_partition_only(broker: Broker) -> None:
    create(broker, partitions=2)
    put(broker)
    put(broker, partition=1)
    found = fetch(broker, request(partition(0), partition(1), max_bytes=-1))
    assert {number: data.error_code for number, data in found.items()} == {
        0: ErrorCode.UNKNOWN_SERVER_ERROR,
        1: ErrorCode.NONE,
    }


def test_every_cut_is_at_the_end_of_a_batch(broker: Broker) -> None:
    create(broker, internal_segment_bytes="60000")
    put(broker, 100, batch_bytes=2_500)
    put(broker, 60, batch_bytes=9_000)
    for size in (100, 3_000, 5_000, 17_777, 1 << 20):
        offset, seen = 0, []
        while offset < 160:
            got = offsets(fetch(broker, request(partition(0, offset, max_bytes=size)))[0])
            new = [found for found in got if found >= offset]
            assert new, offset
            seen += new
            offset = seen[-1] + 1
        assert seen == list(range(160))


def test_waits_for_bytes_and_no_longer(broker: Broker) -> None:
    create(broker)
    with RawClient(broker.bootstrap_servers) as client:
        client.send(FETCH, 12, request(partition(), max_wait_ms=LATER_MS, min_bytes=5_000))
        put(broker, 2)
        put(broker, 2)
        put(broker, 4)
        got = offsets(parts(client.receive(FETCH))[0])
    assert got == list(range(8))
    assert broker.call(lambda node: len(node.partitions.get(TOPIC, 0)._watchers)) == 0


def test_wait_ends_with_its_time_its_topic_or_its_connection(broker: Broker) -> None:
    create(broker)
    assert not fetch(broker, request(partition(), max_wait_ms=50))[0].batches
    kept = broker.call(lambda node: node.partitions.get(TOPIC, 0))
    with RawClient(broker.bootstrap_servers) as client:
        client.send(FETCH, 12, request(partition(), max_wait_ms=LATER_MS))
        until_so(lambda: bool(kept._watchers))
        client.reset()
    until_so(lambda: not kept._watchers)
    with RawClient(broker.bootstrap_servers) as client:
        client.send(FETCH, 12, request(partition(), max_wait_ms=LATER_MS))
        until_so(lambda: bool(kept._watchers))
        broker.call(lambda node: delete_topic(node, TOPIC))
        assert parts(client.receive(FETCH))[0].error_code == 3


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (partition(0, 4), 1),
        (partition(0, -1), 1),
        (partition(0, 3, current_leader_epoch=5), 75),
        (partition(0, 3, last_fetched_epoch=7), 1),
        (partition(3), 3),
        (partition(0, 0, max_bytes=-1), -1),
    ],
)
def test_errors(broker: Broker, asked: FetchPartition, code: int) -> None:
    create(broker)
    put(broker, 3)
    found = fetch(broker, request(asked))[asked.partition]
    assert (found.error_code, found.high_watermark, found.batches) == (code, -1, b"")


def test_an_older_epoch_is_fenced_and_gets_the_leader(tmp_path: Path) -> None:
    import tidelog

    for _ in range(2):
        with tidelog.broker(str(tmp_path)) as broker:
            if not broker.call(lambda node: node.topics.find(TOPIC)):
                create(broker)
            put(broker, 3)
            epoch = broker.call(lambda node: node.partitions.get(TOPIC, 0).log.leader_epoch)
            if not epoch:
                continue
            topic_id = broker.call(lambda node: node.topics.all()[TOPIC].topic_id)
            assert topic_id is not None
            what = FetchRequest(
                topics=[
                    FetchTopic(
                        topic_id=topic_id, partitions=[partition(0, 3, current_leader_epoch=0)]
                    )
                ]
            )
            with RawClient(broker.bootstrap_servers) as client:
                response = client.ask(FETCH, 16, what)
            found = parts(response)[0]
            assert (found.error_code, found.current_leader.leader_epoch) == (74, epoch)
            assert [node.port for node in response.node_endpoints] == [
                int(broker.bootstrap_servers.rpartition(":")[2])
            ]
            parted = fetch(broker, request(partition(0, 5, last_fetched_epoch=0)))[0]
            assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (0, 3)
            return
    raise AssertionError("the epoch did not grow")


def test_topic_ids(broker: Broker) -> None:
    from uuid import UUID

    create(broker)
    put(broker, 3)
    topic_id = broker.call(lambda node: node.topics.all()[TOPIC].topic_id)
    assert topic_id is not None
    for wanted, code in ((topic_id, 0), (UUID(int=5), 100)):
        what = request(max_wait_ms=0)
        what.topics = [FetchTopic(topic_id=wanted, partitions=[partition()])]
        with RawClient(broker.bootstrap_servers) as client:
            response = client.ask(FETCH, 18, what)
        assert response.responses[0].topic_id == wanted
        assert response.responses[0].partitions[0].error_code == code


def test_the_rack_is_sent_with_the_brokers_address() -> None:
    with (
        tidelog.broker(settings={"broker.rack": "r1"}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        (told,) = client.ask(METADATA, 12, MetadataRequest(topics=[])).brokers
        (also,) = client.ask(DESCRIBE_CLUSTER, 0, DescribeClusterRequest()).brokers
        assert (told.rack, also.rack) == ("r1", "r1")


def test_a_session_returns_changed_partitions(broker: Broker) -> None:
    create(broker, partitions=3)
    put(broker, 2)
    with RawClient(broker.bootstrap_servers) as client:
        wanted = partition(0, 2), partition(1), partition(2)
        first = client.ask(FETCH, 12, request(*wanted, session_epoch=0))
        assert sorted(parts(first)) == [0, 1, 2]
        put(broker, 1, partition=1)
        more = request(session_id=first.session_id, session_epoch=1)
        assert sorted(parts(client.ask(FETCH, 12, more))) == [1]
        wrong = request(session_id=first.session_id, session_epoch=7)
        assert client.ask(FETCH, 12, wrong).error_code == 71


def test_follower_sees_up_to_the_log_end(broker: Broker) -> None:
    create(broker)

    def append_unseen(node: Node) -> None:
        node.partitions.get(TOPIC, 0).log.append([NewRecord(key=b"k", value=b"v", timestamp=1)])

    broker.call(append_unseen)
    topic_id = broker.call(lambda node: node.topics.all()[TOPIC].topic_id)
    assert topic_id is not None
    for replica_id, seen in ((-1, []), (1, [0])):
        what = request(max_wait_ms=0)
        what.replica_state = ReplicaState(replica_id=replica_id)
        what.topics = [FetchTopic(topic_id=topic_id, partitions=[partition()])]
        with RawClient(broker.bootstrap_servers) as client:
            assert offsets(parts(client.ask(FETCH, 15, what))[0]) == seen


def test_a_response_stays_complete_while_its_segment_is_rolled_and_deleted(broker: Broker) -> None:
    create(broker, internal_segment_bytes="5000000", retention_bytes="0", file_delete_delay_ms="0")
    put(broker, 4_000)
    with RawClient(broker.bootstrap_servers) as client:
        client.send(FETCH, 12, request(partition(0, 0, max_bytes=INT32_MAX)))
        # The client doesn't receive yet, so the broker has not read most of the file's bytes yet.
        client.await_answer()
        broker.call(_drop_all)
        got = offsets(parts(client.receive(FETCH))[0])
    assert got == list(range(4_000))


def _drop_all(node: Node) -> None:
    log = node.partitions.get(TOPIC, 0).log
    log.roll()
    log.apply_retention()
    log.apply_retention()


def test_read_error_is_of_one_partition_only(broker: Broker) -> None:
    create(broker, partitions=2)
    put(broker, 20)
    put(broker, 20, partition=1)

    def break_file(node: Node) -> Path:
        log = node.partitions.get(TOPIC, 0).log
        path = Path(log.segments[0].log_path)
        log.context.pool.forget(str(path))
        return path.rename(path.with_suffix(".gone"))

    kept = broker.call(lambda node: node.partitions.get(TOPIC, 0).log)
    broker.call(lambda _: kept.roll())
    until_so(lambda: broker.call(lambda _: kept.guard.is_settled))
    gone = broker.call(break_file)
    found = fetch(broker, request(partition(0), partition(1)))
    assert (found[0].error_code, found[1].error_code) == (56, 0)
    assert offsets(found[1]) == list(range(20))
    assert fetch(broker, request(partition(0)), version=5)[0].error_code == 6
    gone.rename(gone.with_suffix(".log"))


def test_consumer_reads_all_of_many_partitions(broker: Broker) -> None:
    create(broker, partitions=5, internal_segment_bytes="100000")
    for number in range(5):
        put(broker, 300, partition=number)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        consumer_timeout_ms=PATIENCE_S * 1000,
        max_poll_records=700,
    )
    names = [KafkaPartition(TOPIC, number) for number in range(5)]
    consumer.assign(names)
    consumer.seek_to_beginning(*names)
    seen: dict[int, list[int]] = {number: [] for number in range(5)}
    for record in consumer:
        seen[record.partition].append(record.offset)
        if sum(map(len, seen.values())) == 1_500:
            break
    consumer.close()
    assert all(found == list(range(300)) for found in seen.values())


def test_records_outside_the_page_cache_are_fetched(broker: Broker) -> None:
    create(broker, internal_segment_bytes="3000000")
    put(broker, 6_000)

    def forget_pages(node: Node) -> None:
        log = node.partitions.get(TOPIC, 0).log
        for segment in log.segments:
            if isinstance(segment, ClosedSegment):
                segment.unload()
            fd = os.open(segment.log_path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    broker.call(forget_pages)
    offset, seen = 0, []
    with RawClient(broker.bootstrap_servers) as client:
        while offset < 6_000:
            answer = client.ask(FETCH, 12, request(partition(0, offset, max_bytes=2_000_000)))
            new = [found for found in offsets(parts(answer)[0]) if found >= offset]
            assert new, offset
            seen += new
            offset = seen[-1] + 1
    assert seen == list(range(6_000))


def test_partitions_that_do_not_exist_cost_little_and_hide_no_other(broker: Broker) -> None:
    create(broker)
    put(broker, 3)
    missing = [partition(number) for number in range(1, 5_000)]
    found = fetch(broker, request(*missing, partition(0)))
    assert offsets(found[0]) == [0, 1, 2]
    assert {found[number].error_code for number in range(1, 5_000)} == {3}
    assert next(iter(found)) == 0


def test_committed_reads_end_at_open_transactions_and_list_aborted_ones(
    broker: Broker,
) -> None:
    create(broker)

    def transactions(node: Node) -> None:
        found = node.partitions.get(TOPIC, 0)
        for producer_id in (7, 8):
            now = node.env.clock.now_ms()
            records = [NewRecord(key=b"k", value=b"v", timestamp=now)] * 2
            batch = build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            found.log.append_batches(batch)
        found.log.end_transaction(
            producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=False
        )
        found.advance()

    broker.call(transactions)
    plain = fetch(broker, request(partition()))[0]
    assert (plain.high_watermark, plain.last_stable_offset) == (5, 2)
    assert plain.aborted_transactions is None
    assert len(list(walk(plain.batches))) == 3
    committed = fetch(broker, request(partition(), isolation_level=1))[0]
    assert [batch.producer_id for batch in walk(committed.batches)] == [7]
    assert [(a.producer_id, a.first_offset) for a in committed.aborted_transactions or ()] == [
        (7, 0)
    ]
    behind = fetch(broker, request(partition(0, 2), isolation_level=1))[0]
    assert (behind.batches, behind.aborted_transactions) == (b"", [])
