"""A repeated Fetch request gets the same bytes as on a new connection."""

import gc
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest
from tests.unit.server.fetching import MANY_BYTES, NOW_MS, PARTITIONS, TOPICS, Broker, Row
from tests.unit.server.steps import steps
from tests.worlds.brokers.topics import delete_topic

from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.record.builder import build_batch
from tidelog.server.api.node import ClientInfo
from tidelog.server.partitions.file_pieces import PIECE_MIN_BYTES
from tidelog.server.security.authorizer import Acl, RuleTable
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.types import NewRecord

VERSIONS = range(4, 19)
ANNA = "User:anna"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(str(tmp_path))
    yield made
    made.node.close()


def with_records(broker: Broker) -> list[tuple[str, list[Row]]]:
    """Append batches of several sizes to each partition; return a request for all partitions."""
    for topic in TOPICS:
        for number in range(PARTITIONS):
            for size in (10, PIECE_MIN_BYTES - 200, PIECE_MIN_BYTES, 70_000):
                broker.append(topic, number, size, count=2)
    return [(topic, [(number, 0) for number in range(PARTITIONS)]) for topic in TOPICS]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
def test_all_versions_say_the_same(broker: Broker, version: int, isolation: int) -> None:
    asked = with_records(broker)
    for offset in range(10):
        later = [(topic, [(number, offset) for number, _ in rows]) for topic, rows in asked]
        for rows in (asked, later, asked[:1], [(later[0][0], later[0][1][1:])]):
            broker.compare(broker.frame(version, rows, isolation=isolation, number=offset))


@pytest.mark.parametrize("version", [9, 12, 18])
def test_another_subset_in_another_order_takes_fewer_steps(broker: Broker, version: int) -> None:
    asked = with_records(broker)
    broker.compare(broker.frame(version, asked))
    others = [("another", [(2, 3), (0, 1)]), ("t", [(1, 0)])]
    frame = broker.frame(version, others, number=99)
    broker.compare(frame)
    again = steps(lambda: broker.say(broker.connection, frame))
    once = steps(lambda: broker.say(ClientInfo(2, "elsewhere"), frame))
    assert again < once * 0.6


UNUSUAL: dict[str, dict[str, object]] = {
    "a follower": {"replica_id": 1},
    "append times": {"with_append_times": True},
    "a session": {"session": (0, 0)},
    "an unknown session": {"session": (5, 3)},
    "a wrong leader epoch": {"epochs": (70, -1)},
    "an epoch of its last record": {"epochs": (-1, 0)},
    "less than nothing": {"partition_max_bytes": -1},
    "less than nothing of all": {"max_bytes": -1},
    "an isolation that there is not": {"isolation": 2},
    "a wait": {"min_bytes": MANY_BYTES},
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("version", [12, 18])
def test_unusual_requests_get_the_codecs_responses(broker: Broker, kind: str, version: int) -> None:
    asked = with_records(broker)
    broker.compare(broker.frame(version, asked))
    frame = broker.frame(version, asked, **UNUSUAL[kind])  # type: ignore[arg-type] # fields by name
    for _ in range(3):
        # The responses that begin sessions can't be compared, because session ids are random.
        if kind != "a session":
            broker.compare(frame)
        else:
            broker.say(broker.connection, frame)
    broker.compare(broker.frame(version, asked))


@pytest.mark.parametrize("rows", [[(0, 99)], [(0, -1)], [(7, 0)], [(0, 0), (0, 2)], [(-1, 0)]])
def test_errors_and_repeated_partitions_get_the_codecs_responses(
    broker: Broker, rows: list[Row]
) -> None:
    asked = with_records(broker)
    broker.compare(broker.frame(12, asked))
    frame = broker.frame(12, [("t", rows)])
    twice = broker.frame(12, [("t", [(0, 0)]), ("t", [(1, 0)])])
    for each in (frame, twice) * 2:
        broker.compare(each)


def test_rights_are_checked_for_each_request(tmp_path: Path) -> None:
    broker = Broker(str(tmp_path), authorizer_class_name=STANDARD_AUTHORIZER)
    frame = broker.frame(12, with_records(broker))
    authorizer = broker.node.authorizer
    assert authorizer is not None
    acls = [may_read(topic) for topic in TOPICS]
    said = []
    for allowed in (acls, acls, acls[:1], acls[:1], [], acls):
        authorizer.use(RuleTable(allowed))
        broker.connection.principal = ANNA
        once = ClientInfo(2, "elsewhere", ANNA)
        said.append(broker.say(broker.connection, frame))
        assert said[-1] == broker.say(once, frame)
    assert said[0] == said[1] == said[5]
    assert said[2] == said[3]
    assert len({*said}) == 3
    broker.node.close()


def may_read(topic: str) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        name=topic,
        pattern=PatternType.LITERAL,
        principal=ANNA,
        host="*",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )


@pytest.mark.parametrize("version", [12, 16])
def test_a_recreated_topic_is_another_one(broker: Broker, version: int) -> None:
    asked = with_records(broker)
    frame = broker.frame(version, asked)
    broker.compare(frame)
    broker.compare(frame)
    delete_topic(broker.node, "t")
    broker.compare(frame)
    broker.create("t")
    broker.append("t", 0, 20_000)
    broker.compare(frame)
    broker.compare(broker.frame(version, [("t", [(0, 0)])]))


@pytest.mark.parametrize("version", [12, 16])
def test_deleted_topics_are_not_kept_in_memory(broker: Broker, version: int) -> None:
    broker.compare(broker.frame(version, with_records(broker)))
    broker.node.log_dir.create_topic("passing", partitions=1)
    kept = ref(broker.partition("passing", 0))
    broker.say(broker.connection, broker.frame(version, [("passing", [(0, 0)])]))
    delete_topic(broker.node, "passing")
    broker.create("next")
    broker.say(broker.connection, broker.frame(version, [("next", [(0, 0)])]))
    gc.collect()
    assert kept() is None


def test_exposed_times_are_in_the_response(broker: Broker) -> None:
    asked = with_records(broker)
    frame = broker.frame(12, asked)
    plain = broker.compare(frame)
    broker.node.log_dir.alter_config("t", {"tidelog.expose.append.time": "true"})
    assert broker.compare(frame) != plain
    broker.node.log_dir.alter_config("t", {"tidelog.expose.append.time": None})
    assert broker.compare(frame) == plain


def test_records_are_counted_as_for_requests_on_new_connections(broker: Broker) -> None:
    asked = with_records(broker)
    tallies = []
    for repeats in (False, True):
        broker.node.metrics.topics.clear()
        broker.connection = ClientInfo(4, "somewhere")
        for offset in range(9):
            rows = [(topic, [(0, offset), (1, offset)]) for topic, _ in asked]
            broker.say(broker.connection, broker.frame(12, rows))
            if not repeats:
                broker.connection.close()
                broker.connection = ClientInfo(4, "somewhere")
        broker.connection.close()
        topics = broker.node.metrics.topics
        tallies.append({name: (of.records_out, of.bytes_out) for name, of in topics.items()})
    once, again = tallies
    assert {name: size for name, (_, size) in once.items()} == {
        name: size for name, (_, size) in again.items()
    }
    assert again["t"][0] == 16  # records of a fetch are counted by the next fetch


def test_no_templates_are_built_for_requests_that_always_change(broker: Broker) -> None:
    asked = with_records(broker)

    def cost(number: int) -> int:
        frame = broker.frame(12, asked, client=f"client {number:02}")
        return steps(lambda: broker.say(broker.connection, frame))

    broker.say(ClientInfo(2, "elsewhere"), broker.frame(12, asked))
    costs = [cost(number) for number in range(40)]
    assert max(costs[-10:]) < costs[0] * 0.9


@pytest.mark.parametrize("version", [9, 12, 17])
def test_damaged_frames_say_the_same(broker: Broker, version: int) -> None:
    asked = with_records(broker)
    frame = broker.frame(version, asked)
    broker.compare(frame)
    for at in range(len(frame)):
        for change in (1, 0x80, 0xFF):
            broker.compare(frame[:at] + bytes((frame[at] ^ change,)) + frame[at + 1 :])
        broker.compare(frame[:at])
    broker.compare(frame + b"behind")


@pytest.mark.parametrize("bits", [7, 14, 21])
def test_records_of_each_length_get_the_same_response(broker: Broker, bits: int) -> None:
    """From 2^7, 2^14 and 2^21 on, the varint with the size of the records takes one more byte."""
    settings = {"max.message.bytes": "4000000"}
    broker.node.log_dir.create_topic("large", partitions=1, config=settings)
    overhead = len(build_batch([NewRecord(value=b"", timestamp=NOW_MS)]))
    for size in range((1 << bits) - 6, (1 << bits) + 3):
        end = broker.append("large", 0, size - overhead)
        frame = broker.frame(12, [("large", [(0, end - 1)])], partition_max_bytes=MANY_BYTES)
        for _ in range(2):
            assert len(broker.compare(frame)) > size
