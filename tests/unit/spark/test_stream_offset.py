"""Equal offsets of a stream have equal texts, and invalid texts are refused."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidRequest, UnsupportedVersion
from tidelog.spark.stream_offset import Position, StreamOffset
from tidelog.types import TopicPartition

NAMES = st.builds(
    TopicPartition, st.sampled_from(["a", "b", "version", "topics", "ü"]), st.integers(0, 12)
)
OFFSETS = st.integers(0, 2**63 - 1)
PLACES = st.builds(Position, OFFSETS, st.integers(-1, 2**31 - 1))


@st.composite
def stream_offsets(draw: st.DrawFn) -> StreamOffset:
    positions = draw(st.dictionaries(NAMES, PLACES, max_size=8))
    topics = {name.topic for name in positions}
    return StreamOffset(
        positions=positions,
        topic_ids={topic: draw(st.sampled_from(["", "8f" * 16])) for topic in topics},
        starts={name: draw(OFFSETS) for name in positions if draw(st.booleans())},
        is_initial=draw(st.booleans()),
    )


@given(stream_offsets(), st.randoms())
def test_an_offset_is_equal_after_encoding_in_any_order(
    offset: StreamOffset, shuffler: random.Random
) -> None:
    found = offset.encode()
    text = json.dumps(found)
    assert text == json.dumps(found, sort_keys=True)
    again = StreamOffset.decode(json.loads(text))
    assert again == offset
    items = list(offset.positions.items())
    shuffler.shuffle(items)
    turned = StreamOffset(
        positions=dict(items),
        topic_ids=dict(reversed(list(offset.topic_ids.items()))),
        starts=dict(reversed(list(offset.starts.items()))),
        is_initial=offset.is_initial,
    )
    assert json.dumps(turned.encode()) == text


def test_text() -> None:
    ten, two = TopicPartition("tides", 10), TopicPartition("tides", 2)
    offset = StreamOffset(
        positions={two: Position(5, 3), ten: Position(0)},
        topic_ids={"tides": "ab"},
        starts={two: 4},
    )
    assert json.dumps(offset.encode()) == (
        '{"from": {"tides": {"2": 4}}, "topics": {"tides": {"id": "ab", "partitions":'
        ' {"10": {"epoch": -1, "offset": 0}, "2": {"epoch": 3, "offset": 5}}}}, "version": 1}'
    )


def test_an_offset_of_the_kafka_connector_is_accepted() -> None:
    offset = StreamOffset.decode({"tides": {"0": 5, "11": 0}, "version": {"0": 7}})
    assert offset.positions == {
        TopicPartition("tides", 0): Position(5),
        TopicPartition("tides", 11): Position(0),
        TopicPartition("version", 0): Position(7),
    }
    assert offset.topic_id("tides") == ""


def test_later_version() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2, but this release supports only 1"):
        StreamOffset.decode({"version": 2, "topics": {}})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"version": 1}, "topics is None, must be an object"),
        ({"version": 1, "topics": {"a": 1}}, "a is 1, must be an object"),
        ({"version": 1, "topics": {"a": {"partitions": {}}}}, "a: id is None, must be text"),
        (
            {"version": 1, "topics": {"a": {"id": "", "partitions": {"x": {}}}}},
            "partition is 'x', must be a number",
        ),
        (
            {"version": 1, "topics": {"a": {"id": "", "partitions": {"0": {"offset": -1}}}}},
            "a-0: offset is -1, must be a number of at least 0",
        ),
        (
            {"version": 1, "topics": {"a": {"id": "", "partitions": {"0": {"offset": True}}}}},
            "a-0: offset is True",
        ),
        ({"a": {"0": "5"}}, "a-0 is '5', must be a number"),
        ({"a": [5]}, "a is .5., must be an object"),
    ],
)
def test_invalid_values_are_refused(found: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        StreamOffset.decode(found)


def test_ranges_begin_at_the_starts_of_the_batch_or_the_previous_offset() -> None:
    a, b, c = (TopicPartition("t", number) for number in range(3))
    before = StreamOffset(positions={a: Position(3), b: Position(9)})
    after = StreamOffset(
        positions={a: Position(8), b: Position(9), c: Position(2)}, starts={c: 1, b: 4}
    )
    assert after.ranges_after(before) == {a: (3, 8), b: (4, 9), c: (1, 2)}
    # The first batch keeps its first offset, even if the initial offset has changed since.
    assert after.ranges_after(StreamOffset(positions={a: Position(8)})) == {b: (4, 9), c: (1, 2)}
    with pytest.raises(InvalidRequest, match="it has no start for t-0"):
        after.ranges_after(StreamOffset(positions={}))
