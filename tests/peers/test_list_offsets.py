"""ListOffsets: responses of Kafka's broker, compared with our lookups in the same files.

For each distinct timestamp t of every log, the tests look up t - 1 ms, t and t + 1 ms. They also
look up every special value. If Kafka does not find the right record, its response must equal the
result of a model of Kafka's search method (docs/differences.md).

A plain run has 60 logs, a sweep 1,000. The logs are transactional, compressed, out of order, in
formats 0, 1 and 2, have deleted records, or are compacted by Kafka.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from tests.peers.offset_logs import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    NOT_FOUND,
    Answer,
    Part,
    as_kafka,
    ask_kafka,
    exact,
    latest_as_kafka,
    latest_exact,
    place_log,
    questions,
    read_parts,
)
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3_600)]  # a sweep creates 1,000 logs

# Topics. The value is True if a topic's logs also have batches of old formats, as a follower copies
# them.
TOPICS = {"sent": False, "copied": True, "trimmed": False, "compacted": True}
SETTINGS = {"compacted": {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0"}}
PLAIN_RUN, SWEEP = 15, 250


@dataclass
class Told:
    """One log: its segments on disk, the requested values, and Kafka's responses."""

    parts: list[Part]
    asked: list[int]
    answers: list[Answer]
    start: int
    end: int

    def of(self, value: int) -> Answer:
        """Return Kafka's response to one of the values."""
        return self.answers[self.asked.index(value)]


Logs = dict[tuple[str, int], Told]


@pytest.fixture(scope="module")
def home_of_logs(
    request: pytest.FixtureRequest,
    kafka_jars: KafkaHome,
    kafka_oracle: Oracle,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Broker, Logs]:
    """Return a stopped Kafka, whose directory has the logs, and its responses for each log."""
    count = SWEEP if request.config.getoption("--sweep") else PLAIN_RUN
    folder = tmp_path_factory.mktemp("offsets")
    # Retention must not delete the segments below the log start while the tests use them.
    later = {"log.retention.check.interval.ms": "3600000"}
    broker = Broker(kafka_jars, kafka_oracle, folder, settings=later)
    try:
        make_logs(broker, count)
        # Find the partitions to clean before the cleaner runs, because the cleaner deletes files.
        wanted = cleanable(broker, "compacted", count)
        broker.start()
        broker.await_cleaned(wanted)
        delete_some(broker, count)
        found = ask_all(kafka_jars, broker, count, folder)
    finally:
        broker.stop()
    return broker, found


def make_logs(broker: Broker, count: int) -> None:
    """Let the broker create the topics, and write the topics' logs."""
    broker.start()
    for topic in TOPICS:
        broker.create_topic(topic, count, **SETTINGS.get(topic, {}))
    broker.stop()
    for topic, legacy in TOPICS.items():
        for number in range(count):
            place_log(broker, topic, number, number, legacy=legacy)


def cleanable(broker: Broker, topic: str, count: int) -> set[str]:
    """Return the partitions with records in a finished segment, which the cleaner will clean."""
    found = set()
    for number in range(count):
        logs = sorted(broker.partition_dir(topic, number).glob("*.log"))
        if any(log.stat().st_size for log in logs[:-1]):
            found.add(f"{topic}-{number}")
    return found


def delete_some(broker: Broker, count: int) -> None:
    """Delete the first records of each log; the deleted share differs between logs."""
    places = []
    for number in range(count):
        parts = read_parts(broker.partition_dir("trimmed", number))
        offsets = [offset for part in parts for offset, _ in part.records]
        first = min(len(offsets) * (number % 5) // 4, len(offsets) - 1)
        places.append(Place("trimmed", number, offsets[first]))
    admin = AdminClient(broker.client_config())
    for place, future in admin.delete_records(places).items():
        assert future.result(timeout=REQUEST_TIMEOUT_S).low_watermark == place.offset


def ask_all(home: KafkaHome, broker: Broker, count: int, folder: Path) -> Logs:
    """Return Kafka's responses for every log."""
    names = [(topic, number) for topic in TOPICS for number in range(count)]
    parts = [read_parts(broker.partition_dir(*name)) for name in names]
    asked = [questions(one) for one in parts]
    told = ask_kafka(
        home, broker, [(*name, a) for name, a in zip(names, asked, strict=True)], folder
    )
    found: Logs = {}
    for name, part, values, answers in zip(names, parts, asked, told, strict=True):
        start, end = answers[values.index(EARLIEST)][0], answers[values.index(LATEST)][0]
        found[name] = Told(part, values, answers, start, end)
    return found


@pytest.fixture(scope="module")
def logs(home_of_logs: tuple[Broker, Logs]) -> Logs:
    return home_of_logs[1]


@pytest.fixture(scope="module")
def readers(home_of_logs: tuple[Broker, Logs]) -> Iterator[dict[tuple[str, int], LogView]]:
    """Yield our readers of the broker's directory."""
    broker, logs = home_of_logs
    with LogDir.open(str(broker.log_dir)) as directory:
        yield {name: directory.reader(*name) for name in logs}


def times_of(told: Told) -> list[int]:
    return [value for value in told.asked if value >= 0]


def test_the_logs_have_enough_variety(logs: Logs) -> None:
    """Checks that the logs have enough records and variety for the comparison."""
    assert len(logs) in (4 * PLAIN_RUN, 4 * SWEEP)
    assert sum(len(times_of(told)) for told in logs.values()) > 100 * len(logs)
    assert (
        sum(told.start > 0 for (topic, _), told in logs.items() if topic == "trimmed")
        > len(logs) // 8
    )
    gone = [
        told.end - sum(len(part.records) for part in told.parts)
        for (topic, _), told in logs.items()
        if topic == "compacted"
    ]
    assert sum(count > 5 for count in gone) > len(gone) // 2


def test_every_time_is_found_exactly(logs: Logs, readers: dict[tuple[str, int], LogView]) -> None:
    for name, told in logs.items():
        for time in times_of(told):
            found = readers[name].offset_for_time(time)
            ours = NOT_FOUND if found is None else (found.offset, found.timestamp)
            assert ours == exact(told.parts, time, told.start), (name, time)


def test_kafka_finds_the_same_or_gives_up_too_early(logs: Logs) -> None:
    """Deleted records or a file's time may let Kafka search a wrong segment and find nothing."""
    differences = 0
    for name, told in logs.items():
        for time in times_of(told):
            kafka = told.of(time)
            assert kafka == as_kafka(told.parts, time, told.start), (name, time)
            if kafka != exact(told.parts, time, told.start):
                assert kafka == NOT_FOUND, (name, time)
                differences += 1
    assert differences  # Kafka gives up too early in some lookups


def test_special_values(logs: Logs, readers: dict[tuple[str, int], LogView]) -> None:
    for name, told in logs.items():
        reader = readers[name]
        assert (reader.log_start_offset, -1) == told.of(EARLIEST) == told.of(EARLIEST_LOCAL), name
        assert (reader.log_end_offset, -1) == told.of(LATEST), name
        assert told.of(LATEST_TIERED) == NOT_FOUND  # no log has tiered records


def test_the_largest_timestamp_is_that_of_a_record_that_can_be_read(
    logs: Logs, readers: dict[tuple[str, int], LogView]
) -> None:
    deleted = 0
    for name, told in logs.items():
        found = readers[name].max_timestamp()
        ours = NOT_FOUND if found is None else (found.offset, found.timestamp)
        assert ours == latest_exact(told.parts, told.start), name
        kafka = told.of(MAX_TIMESTAMP)
        assert kafka == latest_as_kafka(told.parts), name
        deleted += kafka != NOT_FOUND and kafka[0] < told.start
    assert deleted  # Kafka returns offsets of deleted records


def test_indexes_written_by_kafka_pass_the_checks(home_of_logs: tuple[Broker, Logs]) -> None:
    """Our strict checks of indexes must accept the indexes that Kafka has written."""
    broker, logs = home_of_logs
    with LogDir.open(str(broker.log_dir)) as directory:
        for name in logs:
            directory.reader(*name).offset_for_time(0)
        assert [line for line in directory.reports if "rebuilt" in line] == []
