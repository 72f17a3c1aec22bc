"""Each version of an API with templates has a template equivalent to the version's codec."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.messages import FETCH, LIST_OFFSETS, PRODUCE, AnyApi
from tidelog.protocol.messages.fetch import (
    FetchableTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.protocol.requests import ClientConnection, read_request, write_response
from tidelog.protocol.row_templates import Templates
from tidelog.protocol.wire import NO_UUID
from tidelog.types import Buffer

ID = UUID(int=0x0102_0304_0506_0708)
SERVED = {api.key: (0, api.last) for api in (PRODUCE, FETCH, LIST_OFFSETS)}
Asked = ProduceRequest | FetchRequest | ListOffsetsRequest
Answered = ProduceResponse | FetchResponse | ListOffsetsResponse
VERSIONS = [
    (api, version)
    for api, first in ((PRODUCE, 3), (FETCH, 4), (LIST_OFFSETS, 1))
    for version in range(first, api.last + 1)
]


def request_of(api: AnyApi, version: int, value: int) -> Asked:
    """Return a request with one row."""
    if api is PRODUCE:
        data = [PartitionProduceData(index=3, records=bytes([value]) * 90)]
        by_id = version > 12
        topic = TopicProduceData(
            name="" if by_id else "t", topic_id=ID if by_id else NO_UUID, partition_data=data
        )
        return ProduceRequest(acks=-1, timeout_ms=9, topic_data=[topic])
    if api is FETCH:
        rows = [FetchPartition(partition=3, fetch_offset=value, partition_max_bytes=5)]
        by_id = version > 12
        named = FetchTopic(
            topic="" if by_id else "t", topic_id=ID if by_id else NO_UUID, partitions=rows
        )
        return FetchRequest(max_wait_ms=9, topics=[named])
    row = ListOffsetsPartition(partition_index=3, timestamp=value)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[row])])


def response_of(api: AnyApi, version: int, value: int, throttle_ms: int = 0) -> Answered:
    """Return the response to a request with one row."""
    if api is PRODUCE:
        row = PartitionProduceResponse(index=3, base_offset=value)
        by_id = version > 12
        produced = TopicProduceResponse(
            name="" if by_id else "t",
            topic_id=ID if by_id else NO_UUID,
            partition_responses=[row],
        )
        return ProduceResponse(responses=[produced], throttle_time_ms=throttle_ms)
    if api is FETCH:
        data = PartitionData(partition_index=3, high_watermark=value, records=b"batches")
        by_id = version > 12
        fetched = FetchableTopic(
            topic="" if by_id else "t", topic_id=ID if by_id else NO_UUID, partitions=[data]
        )
        return FetchResponse(responses=[fetched], throttle_time_ms=throttle_ms)
    found = ListOffsetsPartitionResponse(partition_index=3, offset=value)
    topic = ListOffsetsTopicResponse(name="t", partitions=[found])
    return ListOffsetsResponse(topics=[topic], throttle_time_ms=throttle_ms)


def frame_of(api: AnyApi, version: int, value: int) -> bytes:
    pieces = ClientConnection("somebody").request(api, version, request_of(api, version, value))
    return joined(pieces)[LENGTH_BYTES:]


def joined(pieces: Sequence[Buffer]) -> bytes:
    return b"".join(pieces)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_each_version_has_a_template(api: AnyApi, version: int) -> None:
    templates = Templates()
    frame = frame_of(api, version, 7)
    received = read_request(frame, SERVED)
    templates.learn(frame, received, response_of(api, version, 5), SERVED)
    template = templates.find(api.key)
    assert template is not None
    key = b""
    for value in (7, 200):
        topics = template.rows(frame_of(api, version, value))
        assert topics is not None
        ((key, (row,)),) = topics
        assert template.reference(key) in ("t", ID)
        assert row[0] == 3
        expected = bytes([value]) * 90 if api is PRODUCE else value
        assert expected in row
    facts = {
        PRODUCE.key: (3, 0, 77, -1, -1),
        FETCH.key: (3, 0, 77, -1, -1),
        LIST_OFFSETS.key: (3, 0, -1, 77, -1),
    }[api.key]
    records = [[b"batches"]] if api is FETCH else None
    pieces = template.encode((0).to_bytes(4, "big"), [(key, None)], [[facts]], records)
    template.set_throttle(pieces, 12)
    written = write_response(received, response_of(api, version, 77, 12))
    assert joined(pieces) == joined(written)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_cut_and_changed_frames_have_no_rows_or_their_own(api: AnyApi, version: int) -> None:
    templates = Templates()
    frame = frame_of(api, version, 7)
    templates.learn(frame, read_request(frame, SERVED), response_of(api, version, 5), SERVED)
    template = templates.find(api.key)
    assert template is not None
    for at in range(len(frame)):
        assert template.rows(frame[:at]) is None
        for change in (1, 0x80):
            changed = frame[:at] + bytes((frame[at] ^ change,)) + frame[at + 1 :]
            topics = template.rows(changed)
            if topics is not None and not 4 <= at < 8:
                assert read_request(changed, SERVED).message != read_request(frame, SERVED).message
    assert template.rows(frame + b"\0") is None
