"""Accepted and refused options, and the tables of options in docs/spark.md."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest, InvalidTime
from tidelog.spark.options import READ_OPTIONS, WRITE_OPTIONS, Options, read_source_options
from tidelog.spark.sink_options import read_sink_options
from tidelog.spark.stream_options import STREAM_OPTIONS
from tidelog.types import ClockName, IsolationLevel, TopicPartition

DOCS = Path(__file__).parents[3] / "docs" / "spark.md"
BASE = {"path": "/data", "subscribe": "tides"}
NOW_MS = 1_360_342_800_000


def test_docs_have_the_same_tables() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    ours = [*READ_OPTIONS.items(), *STREAM_OPTIONS.items(), *WRITE_OPTIONS.items()]
    assert [(name, text.replace("`", "")) for name, text in rows] == ours


def test_defaults() -> None:
    options = read_source_options(BASE)
    assert options.topics == ("tides",)
    assert options.clock is ClockName.RECORD
    assert options.isolation is IsolationLevel.READ_UNCOMMITTED
    assert options.is_exact
    assert options.fail_on_data_loss
    assert (options.start_offsets, options.end_offsets) == (None, None)
    assert (options.start_ms, options.end_ms) == (None, None)


def test_names_in_any_case() -> None:
    options = read_source_options({"PATH": "/data", "SUBSCRIBE": "a, b", "minpartitions": "3"})
    assert options.topics == ("a", "b")
    assert options.min_partitions == 3


def test_a_read_accepts_the_topic_option_of_a_write() -> None:
    options = {"path": "/data", "topic": "a,b", "keyAs": "string"}
    assert read_source_options(options).topics == ("a,b",)
    assert read_sink_options(options).topic == "a,b"
    for other in ({"subscribe": "a"}, {"subscribePattern": "a"}, {"assign": '{"a": [0]}'}):
        with pytest.raises(InvalidRequest, match="give one of the options subscribe, topic,"):
            read_source_options(options | other)


def test_time_wins_over_offset_on_its_side() -> None:
    given = {
        **BASE,
        "startingOffsets": '{"tides": {"0": 7}}',
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"tides": {"0": 9}}',
        "endingOffsets": '{"tides": {"0": 8}}',
    }
    options = read_source_options(given)
    assert (options.start_ms, options.start_offsets) == (5, None)
    assert options.end_offsets == {TopicPartition("tides", 0): 8}


def test_relative_times_use_the_clock_of_the_environment() -> None:
    env = Env(clock=ManualClock(NOW_MS))
    options = read_source_options({**BASE, "startingTimestamp": "-6h"}, env)
    assert options.start_ms == NOW_MS - 6 * 3_600_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "tides"}, "give path .* or kafka.bootstrap.servers .* neither"),
        ({"path": "/data"}, "subscribe, topic, subscribePattern and assign"),
        ({**BASE, "assign": '{"tides": [0]}'}, "one of the options"),
        ({**BASE, "isolaton": "x"}, r"did you mean isolation\?"),
        ({**BASE, "splitBytes": "0"}, "splitBytes=0"),
        ({**BASE, "failOnDataLoss": "maybe"}, "true, false"),
        ({**BASE, "endingOffsets": "earliest"}, "latest, or offsets"),
        ({**BASE, "endingOffsets": '{"tides": {"0": -2}}'}, "offset is -2"),
        ({**BASE, "startingOffsets": '{"tides": {"0": -1}}'}, "offset is -1"),
        ({**BASE, "startingOffsets": '{"tides": {"zero": 1}}'}, "'zero'"),
        ({**BASE, "startingOffsets": '{"tides": 1}'}, "offsets by partition"),
        ({**BASE, "startingOffsets": "{"}, "not JSON"),
        ({"path": "/data", "assign": '{"tides": 0}'}, "option assign"),
        (
            {**BASE, "isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "give one",
        ),
    ],
)
def test_invalid_options_are_refused_with_advice(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_source_options(given)


def test_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidTime, match="zone"):
        read_source_options({**BASE, "startingTimestamp": "2013-02-08 12:00"})


BROKER = {"kafka.bootstrap.servers": "there:9092", "subscribe": "tides"}


def test_a_broker_and_a_directory_have_their_own_options() -> None:
    for name in ("zoneCache", "splitBytes", "readUntil"):
        with pytest.raises(InvalidRequest, match=f"option {name} applies to directories only"):
            read_source_options({**BROKER, name: "1"})
    for name in ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries"):
        with pytest.raises(InvalidRequest, match=f"option {name} applies to brokers only"):
            read_source_options({**BASE, name: "1"})
    with pytest.raises(InvalidRequest, match=r"kafka\.client\.id applies to brokers only"):
        read_source_options({**BASE, "kafka.client.id": "x"})
    with pytest.raises(InvalidRequest, match=r"store\.region applies to object stores only"):
        read_source_options({**BROKER, "store.region": "x"})
    with pytest.raises(InvalidRequest, match="not both"):
        read_source_options({**BROKER, "path": "/data"})


def test_times_mean_positions_at_brokers_as_in_the_connector() -> None:
    """As in Spark's Kafka connector, a time that is later than all records is an error."""
    there = read_source_options(BROKER)
    assert (there.is_exact, there.needs_match) == (False, True)
    here = read_source_options(BASE)
    assert (here.is_exact, here.needs_match) == (True, False)
    positions = read_source_options({**BASE, "timeRange": "positions"})
    assert (positions.is_exact, positions.needs_match) == (False, True)


def test_options_of_brokers() -> None:
    given = {
        **BROKER,
        "kafkaConsumer.pollTimeoutMs": "512",
        "fetchOffset.numRetries": "7",
        "fetchOffset.retryIntervalMs": "0",
        "groupIdPrefix": "mine",
        "maxRecordsPerPartition": "99",
        "kafka.client.id": "me",
        "kafka.isolation.level": "read_committed",
    }
    options = read_source_options(given)
    assert (options.poll_timeout_ms, options.offset_tries, options.offset_retry_ms) == (512, 7, 0)
    assert (options.group_prefix, options.max_records) == ("mine", 99)
    assert options.client == {"client.id": "me"}
    assert options.isolation is IsolationLevel.READ_COMMITTED


def test_brokers_have_the_defaults_of_the_connector() -> None:
    options = read_source_options(BROKER)
    assert options.poll_timeout_ms == 120_000
    assert (options.offset_tries, options.offset_retry_ms) == (3, 1_000)
    assert (options.group_prefix, options.max_records) == ("spark-kafka-relation", None)


def test_sparks_own_options_are_accepted() -> None:
    given = {"checkpointLocation": "/c", "queryName": "q", "topic": "t"}
    assert Options(given, WRITE_OPTIONS).text("topic") == "t"


def test_a_table_of_sparks_catalog_is_refused_with_an_alternative() -> None:
    """Spark 4.3 passes a table's properties at the table's creation, but not at reads."""
    given = {**BASE, "location": "file:/data", "provider": "tidelog", "option.subscribe": "tides"}
    for read in (read_source_options, read_sink_options):
        with pytest.raises(InvalidRequest, match="CREATE TEMPORARY VIEW"):
            read(given)


@pytest.mark.parametrize("url", ["file:/data/a%20b", "file:///data/a%20b", "/data/a b"])
def test_paths_of_this_machine_may_be_urls(url: str) -> None:
    assert read_source_options({**BASE, "path": url}).path == "/data/a b"
    assert read_sink_options({"path": url, "topic": "tides"}).path == "/data/a b"


def test_a_time_that_cannot_be_read_names_its_option() -> None:
    with pytest.raises(InvalidTime, match="'someday': option endingTimestamp: not a time"):
        read_source_options({**BASE, "endingTimestamp": "someday"})


def test_the_error_on_splits_of_a_table_names_an_existing_function() -> None:
    options = {"path": "data", "topic": "tides", "table": "true", "splitBytes": "9"}
    with pytest.raises(InvalidRequest, match=r"\((\S+) uses several tasks\)") as raised:
        read_source_options(options)
    named = re.search(r"\((\S+)\.(\w+) uses several tasks\)", str(raised.value))
    assert named is not None
    assert callable(getattr(import_module(named[1]), named[2]))
