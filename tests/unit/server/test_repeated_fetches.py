"""Requests of Fetch that repeat are answered, byte for byte, as by the messages' codecs."""

import gc
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest
from tests.unit.server.fetching import MANY_BYTES, PARTITIONS, TOPICS, Broker, Row, all_in_memory

from tidelog.protocol.wire import varint_bytes
from tidelog.server import repeated_fetches
from tidelog.server.fetch_layouts import layout_of
from tidelog.server.file_pieces import PIECE_MIN_BYTES
from tidelog.server.node import ConnectionFacts

VERSIONS = range(4, 19)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with all_in_memory():
        made = Broker(str(tmp_path))
        yield made
        made.node.close()


def with_records(broker: Broker) -> list[tuple[str, list[Row]]]:
    """Some of each size in each partition; a request for all of them."""
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
    is_known = broker.is_known(broker.frame(version, asked, isolation=isolation))
    assert is_known == (version >= 9)


def test_another_subset_in_another_order_is_known(broker: Broker) -> None:
    asked = with_records(broker)
    broker.compare(broker.frame(12, asked))
    others = [("another", [(2, 3), (0, 1)]), ("t", [(1, 0)])]
    assert broker.is_known(broker.frame(12, others, number=99))
    broker.compare(broker.frame(12, others, number=99))


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
def test_unusual_requests_go_the_long_way(broker: Broker, kind: str, version: int) -> None:
    asked = with_records(broker)
    broker.compare(broker.frame(version, asked))
    frame = broker.frame(version, asked, **UNUSUAL[kind])  # type: ignore[arg-type]
    for _ in range(3):
        # A session's number is random, so only one may begin.
        if kind != "a session":
            broker.compare(frame)
        else:
            broker.say(broker.connection, frame)
        assert not broker.is_known(frame)
    assert broker.is_known(broker.frame(version, asked)) or kind != "a wrong leader epoch"


@pytest.mark.parametrize("rows", [[(0, 99)], [(0, -1)], [(7, 0)], [(0, 0), (0, 2)], [(-1, 0)]])
def test_errors_and_doubles_go_the_long_way(broker: Broker, rows: list[Row]) -> None:
    asked = with_records(broker)
    broker.compare(broker.frame(12, asked))
    frame = broker.frame(12, [("t", rows)])
    broker.compare(frame)
    assert not broker.is_known(frame)
    twice = broker.frame(12, [("t", [(0, 0)]), ("t", [(1, 0)])])
    broker.compare(twice)
    assert not broker.is_known(twice)


def test_rights_and_quotas_take_the_long_way(broker: Broker) -> None:
    """Nothing is remembered of who is watched, and nothing is said from memory."""
    asked = with_records(broker)
    frame = broker.frame(12, asked)
    broker.compare(frame)
    broker.connection.repeated_fetches = None
    broker.node.authorizer = _Nobody()  # type: ignore[assignment]
    said = broker.say(broker.connection, frame)
    assert said == broker.say(ConnectionFacts(3, "elsewhere"), frame)
    assert broker.connection.repeated_fetches is None


class _Nobody:
    """Nobody may anything."""

    def may(self, *_: object) -> bool:
        return False

    def may_cluster(self, *_: object) -> bool:
        return False


@pytest.mark.parametrize("version", [12, 16])
def test_a_topic_that_is_made_anew_is_another_one(broker: Broker, version: int) -> None:
    asked = with_records(broker)
    frame = broker.frame(version, asked)
    broker.compare(frame)
    assert broker.is_known(frame)
    broker.node.topics.delete("t")
    broker.compare(frame)
    assert not broker.is_known(frame)
    broker.create("t")
    broker.append("t", 0, 20_000)
    broker.compare(frame)
    broker.compare(broker.frame(version, [("t", [(0, 0)])]))


@pytest.mark.parametrize("version", [12, 16])
def test_deleted_topics_are_not_kept_in_memory(broker: Broker, version: int) -> None:
    broker.compare(broker.frame(version, with_records(broker)))
    broker.node.topics.create("passing", 1)
    kept = ref(broker.partition("passing", 0))
    assert broker.is_known(broker.frame(version, [("passing", [(0, 0)])]))
    broker.node.topics.delete("passing")
    broker.create("next")
    broker.is_known(broker.frame(version, [("next", [(0, 0)])]))
    gc.collect()
    assert kept() is None


def test_times_that_are_exposed_go_the_long_way(broker: Broker) -> None:
    asked = with_records(broker)
    frame = broker.frame(12, asked)
    broker.compare(frame)
    broker.node.log_dir.alter_config("t", {"tidelog.expose.append.time": "true"})
    broker.compare(frame)
    assert not broker.is_known(frame)
    broker.node.log_dir.alter_config("t", {"tidelog.expose.append.time": None})
    assert broker.is_known(frame)


def test_records_are_counted_as_on_the_long_way(broker: Broker) -> None:
    asked = with_records(broker)
    tallies = []
    for is_short in (False, True):
        broker.node.metrics.topics.clear()
        broker.connection = ConnectionFacts(4, "somewhere")
        for offset in range(9):
            rows = [(topic, [(0, offset), (1, offset)]) for topic, _ in asked]
            broker.say(broker.connection, broker.frame(12, rows))
            if not is_short:
                broker.connection.repeated_fetches = None
        topics = broker.node.metrics.topics
        tallies.append({name: (of.records_out, of.bytes_out) for name, of in topics.items()})
    assert tallies[0] == tallies[1]
    assert tallies[0]["t"][0] == 16


def test_a_closed_connection_remembers_nothing(broker: Broker) -> None:
    broker.compare(broker.frame(12, with_records(broker)))
    assert broker.connection.repeated_fetches is not None
    broker.connection.close()
    assert broker.connection.repeated_fetches is None


def test_who_changes_all_the_time_is_not_learned_each_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, learned = with_records(broker), []
    real = repeated_fetches._learned

    def counting(*args: object) -> object:
        learned.append(args)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(repeated_fetches, "_learned", counting)
    for number in range(40):
        broker.say(broker.connection, broker.frame(12, asked, client=f"client {number}"))
    assert len(learned) == repeated_fetches.CREDIT_MAX // repeated_fetches.LEARNING_CREDIT


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


@pytest.mark.parametrize("bits", [7, 14, 21, 28])
def test_lengths_of_records_are_varints(bits: int) -> None:
    for size in range((1 << bits) - 3, (1 << bits) + 3):
        assert layout_of(12)._sized(size) == varint_bytes(size + 1)
