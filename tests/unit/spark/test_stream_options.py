"""Options of a stream: limits, starts, and options that apply to streams or batches only."""

import re
from pathlib import Path

import pytest

from tidelog.env import Env, ManualClock
from tidelog.errors import InvalidRequest
from tidelog.spark.options import READ_OPTIONS
from tidelog.spark.stream_options import (
    STREAM_OPTIONS,
    BatchLimits,
    Start,
    read_stream_options,
    refuse_stream_options,
)
from tidelog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

DIRECTORY = {"path": "/data", "subscribe": "tides"}
BROKER = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "tides"}


def test_defaults_are_the_connectors() -> None:
    options = read_stream_options(DIRECTORY)
    assert options.start == Start(offsets=LATEST_OFFSET, times=None, needs_match=True)
    assert options.limits == BatchLimits()
    assert options.limits.max_delay_ms == 15 * 60 * 1000
    assert options.commit_group is None
    assert options.source.fail_on_data_loss
    assert options.source.group_prefix == "spark-kafka-source"


def test_limits() -> None:
    given = {
        "MAXOFFSETSPERTRIGGER": "1000",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "90s",
        "maxBytesPerTrigger": "1048576",
    }
    assert read_stream_options(DIRECTORY | given).limits == BatchLimits(
        max_offsets=1000, min_offsets=10, max_delay_ms=90_000, max_bytes=1 << 20
    )
    for text, delay_ms in {"250": 250, "15m": 900_000, "1h": 3_600_000, "5ms": 5}.items():
        given["maxTriggerDelay"] = text
        assert read_stream_options(DIRECTORY | given).limits.max_delay_ms == delay_ms


def test_starts() -> None:
    def start(**given: str) -> Start:
        env = Env(clock=ManualClock(1_360_342_800_000))
        return read_stream_options(DIRECTORY | given, env).start

    assert start(startingOffsets="earliest").offsets == EARLIEST_OFFSET
    assert start(startingOffsets=" LATEST ").offsets == LATEST_OFFSET
    places = start(startingOffsets='{"tides": {"0": 5, "1": -1, "2": -2}}').offsets
    assert places == {TopicPartition("tides", n): at for n, at in enumerate((5, -1, -2))}
    assert start(startingTimestamp="1000", startingOffsets="earliest").times == 1000
    assert start(startingTimestamp="2013-02-08T12:00:00-05:00").times == 1_360_342_800_000
    times = start(startingOffsetsByTimestamp='{"tides": {"0": 7}}').times
    assert times == {TopicPartition("tides", 0): 7}
    assert not start(startingOffsetsByTimestampStrategy="latest").needs_match


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "newest"}, "one of earliest, latest"),
        ({"startingOffsets": '{"tides": {"0": -3}}'}, "offset is -3, must be a number >= 0, -2"),
        ({"startingOffsets": '{"tides": {"0": "5"}}'}, 'offset is "5"'),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger=0: give a number of at least 1"),
        ({"maxTriggerDelay": "15m"}, "give minOffsetsPerTrigger too"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger=9 is more than maxOffsetsPerTrigger=8",
        ),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "not a length of time"),
        ({"maxOffsetPerTrigger": "8"}, "did you mean maxOffsetsPerTrigger"),
        ({"commitGroup": "watched"}, "reading a directory does not write to it"),
    ],
)
def test_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_stream_options(DIRECTORY | given)


def test_bytes_are_for_directories() -> None:
    with pytest.raises(InvalidRequest, match="maxBytesPerTrigger applies to directories only"):
        read_stream_options(BROKER | {"maxBytesPerTrigger": "1000"})
    assert read_stream_options(BROKER | {"commitGroup": "watched"}).commit_group == "watched"


@pytest.mark.parametrize(
    "name",
    [
        "endingOffsets",
        "ENDINGTIMESTAMP",
        "endingOffsetsByTimestamp",
        "timeRange",
        "strict",
        "zoneCache",
        "pushdown",
    ],
)
def test_options_of_batches_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is for batches: .* stream"):
        read_stream_options(DIRECTORY | {name: "1"})


def test_docs_name_the_options_that_streams_refuse() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    sentence = text.partition("Streams accept all options above except ")[2].partition(", which")[0]
    assert set(re.findall("`([^`]+)`", sentence)) == set(filter(_is_for_batches, READ_OPTIONS))


def _is_for_batches(name: str) -> bool:
    try:
        read_stream_options(DIRECTORY | {name: "1"})
    except InvalidRequest as error:
        return "is for batches" in str(error)
    return False


@pytest.mark.parametrize("name", STREAM_OPTIONS)
def test_options_of_streams_are_refused_in_a_batch_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is for streams .readStream."):
        refuse_stream_options(DIRECTORY | {name.lower(): "1"})
    refuse_stream_options(DIRECTORY)
