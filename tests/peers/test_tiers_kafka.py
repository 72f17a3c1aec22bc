"""A real broker can read logs whose older segments tidelog has moved to a store."""

from pathlib import Path

import pytest
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.groups import consume_all, send
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

from tidelog.env import Env, ManualClock
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.tier_manager.mover import MoveOptions, tier_partition, tier_status
from tidelog.types import NewRecord, TopicPartition

pytestmark = pytest.mark.kafka

T0 = 1_700_000_000_000
TOPIC = "tiered"
COUNT = 90
NAME = TopicPartition(TOPIC, 0)


def stopped_directory(broker: Broker) -> LogDir:
    env = Env(clock=ManualClock(T0))
    return LogDir.open(str(broker.log_dir), env=env, options=LogDirOptions(writable=True))


def test_a_broker_sees_a_log_that_starts_later_and_we_see_all_of_it(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path: Path
) -> None:
    broker = Broker(kafka_jars, kafka_oracle, tmp_path / "broker")
    try:
        broker.start()
        broker.create_topic(TOPIC, 1, **{"retention.ms": "-1"})
        broker.stop()
        with stopped_directory(broker) as directory:
            directory.alter_config(
                TOPIC,
                {
                    "remote.storage.enable": "true",
                    "local.retention.bytes": "0",
                    "file.delete.delay.ms": "0",
                },
            )
            log = directory.log(TOPIC, 0)
            for number in range(COUNT):
                log.append([NewRecord(value=b"%d" % number, timestamp=T0 + number)])
                if number % 30 == 29 and number < COUNT - 1:
                    log.roll()
            url = (tmp_path / "store").as_uri()
            assert tier_partition(directory, NAME, MoveOptions(url=url)).released == 2
        broker.start()
        kept = list(range(60, COUNT))
        assert consume_all(broker, "all", TOPIC, 1) == {0: kept}
        send(broker, TOPIC, [T0 + 1_000])
        broker.stop()
        with stopped_directory(broker) as directory:
            status = tier_status(directory, NAME)
            assert (status.log_start_offset, status.local_start_offset) == (0, 60)
            times = [record.timestamp for record in directory.log(TOPIC, 0).records()]
            assert times == [*(T0 + number for number in range(COUNT)), T0 + 1_000]
    finally:
        broker.kill()
