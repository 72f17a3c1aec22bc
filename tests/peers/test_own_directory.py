"""Lag and rewind by the append clock, on a directory that we wrote and that Kafka serves."""

from collections.abc import Iterator

import pytest
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.groups import commit, consume_all, send, tidelog
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

from tidelog.env import Env, ManualClock
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

T0 = 1_700_000_000_000
TOPIC = "ours"
GROWING = "ours-growing"  # tidelog and then Kafka's broker append to this topic
BATCHES = 20
STEP_MS = 10_000


def append_ms(offset: int) -> int:
    """Return the record's append time: batches of three records, one batch every ten seconds."""
    return T0 + offset // 3 * STEP_MS


def create_ms(offset: int) -> int:
    """Return the create time, in an order unrelated to the appends."""
    return T0 - 1_000_000 + offset * 37_000 % 901_000


def append_timed(broker: Broker, topic: str) -> None:
    clock = ManualClock(T0)
    options = LogDirOptions(writable=True)
    with LogDir.open(str(broker.log_dir), env=Env(clock=clock), options=options) as directory:
        log = directory.log(topic, 0)
        for batch in range(BATCHES):
            times = [create_ms(offset) for offset in range(batch * 3, batch * 3 + 3)]
            log.append([NewRecord(value=b"%d" % ms, timestamp=ms) for ms in times])
            clock.advance(STEP_MS)


@pytest.fixture(scope="module")
def served(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Kafka's broker; while it was down, tidelog filled the topics in its directory."""
    broker = Broker(kafka_jars, kafka_oracle, tmp_path_factory.mktemp("served"))
    try:
        broker.start()
        broker.create_topic(TOPIC)
        broker.create_topic(GROWING)
        broker.stop()
        append_timed(broker, TOPIC)
        append_timed(broker, GROWING)
        broker.start()
        yield broker
    finally:
        broker.kill()


def arguments(broker: Broker, command: str, *more: str) -> tuple[str, ...]:
    data = ("--data", str(broker.log_dir), "-o", "json")
    return (command, "-b", broker.bootstrap, *data, *more)


def test_a_rewind_by_the_append_clock_reads_exactly_the_later_appends(served: Broker) -> None:
    commit(served, "by-append", TOPIC, {0: BATCHES * 3})
    at = T0 + 12 * STEP_MS
    more = ("-g", "by-append", "--to", str(at), "--clock", "append", "--execute")
    ended = tidelog(*arguments(served, "rewind", *more))
    assert ended.code == 0, ended.err
    assert ended.rows[0]["records_again_is_exact"] is True
    expected = [create_ms(n) for n in range(BATCHES * 3) if append_ms(n) >= at]
    assert consume_all(served, "by-append", TOPIC, 1) == {0: expected}


@pytest.mark.parametrize("committed", [0, 1, 3, 31, 59, 60])
def test_seconds_behind_are_those_of_the_append_clock(served: Broker, committed: int) -> None:
    commit(served, "behind", TOPIC, {0: committed})
    env = Env(clock=ManualClock(T0 + 1_000_000))
    (row,) = tidelog(*arguments(served, "lag", "behind"), env=env).rows
    left = BATCHES * 3 - committed
    assert (row["records_left"], row["records_left_is_exact"]) == (left, True)
    if left:
        assert row["clock"] == "append"
        assert row["behind_ms"] == T0 + 1_000_000 - append_ms(committed)
    else:
        assert (row["clock"], row["behind_ms"]) == (None, 0)


def test_appends_of_the_broker_itself_have_no_append_time(served: Broker) -> None:
    """Kafka's own appends have only create times. Lag uses these; a rewind by append time fails."""
    send(served, GROWING, [T0 + 500_000])
    commit(served, "mixed", GROWING, {0: BATCHES * 3})
    env = Env(clock=ManualClock(T0 + 1_000_000))
    (row,) = tidelog(*arguments(served, "lag", "mixed"), env=env).rows
    assert (row["clock"], row["behind_ms"]) == ("create-time", 500_000)
    more = ("-g", "mixed", "--to", str(T0 + 400_000), "--clock", "append")
    refused = tidelog(*arguments(served, "rewind", *more))
    assert refused.code == 3
    assert "no known append time" in refused.err
