"""The broker's and the client's side of a connection: headers, correlation ids, bodies."""

from typing import TYPE_CHECKING

import pytest

from tidelog.errors import CorruptMessage, UnsupportedRequest, UnsupportedVersion
from tidelog.protocol.framing import Frames
from tidelog.protocol.messages import API_VERSIONS, FETCH, LIST_GROUPS, METADATA, AnyApi
from tidelog.protocol.messages.classic_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tidelog.protocol.messages.fetch import (
    FetchableTopic,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from tidelog.protocol.requests import ClientConnection, read_request, write_response
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def joined(parts: list[Buffer]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def frame_of(data: bytes) -> memoryview:
    frames = Frames()
    frames.feed(data)
    found = frames.next()
    assert found is not None
    return found


class TestQuestions:
    def test_responses_have_the_order_of_the_requests(self) -> None:
        client = ClientConnection("me")
        asked = [
            joined(client.request(LIST_GROUPS, 4, ListGroupsRequest(states_filter=["Stable"]))),
            joined(client.request(FETCH, 12, FetchRequest(max_bytes=5))),
        ]
        requests = [read_request(frame_of(data)) for data in asked]
        assert [request.correlation_id for request in requests] == [0, 1]
        assert [request.client_id for request in requests] == ["me", "me"]
        assert requests[0].message == ListGroupsRequest(states_filter=["Stable"])
        answers: list[DataclassInstance] = [
            ListGroupsResponse(groups=[ListedGroup(group_id="g")]),
            FetchResponse(),
        ]
        for request, answer in zip(requests, answers, strict=True):
            client.feed(joined(write_response(request, answer)))
        assert [client.next_response(), client.next_response()] == answers
        assert client.next_response() is None

    def test_a_response_without_a_request_is_refused(self) -> None:
        client = ClientConnection("me")
        client.feed(b"\0\0\0\x04\0\0\0\x00")
        with pytest.raises(CorruptMessage, match="expected none"):
            client.next_response()

    def test_bytes_after_a_response_are_an_error(self) -> None:
        client = ClientConnection("me")
        request = read_request(
            frame_of(joined(client.request(LIST_GROUPS, 1, ListGroupsRequest())))
        )
        data = joined(write_response(request, ListGroupsResponse()))[4:] + b"x"
        client.feed(len(data).to_bytes(4, "big") + data)
        with pytest.raises(CorruptMessage, match="1 byte after the message"):
            client.next_response()

    @pytest.mark.parametrize("version", [0, 3, 4])
    def test_an_unsupported_version_of_api_versions_gets_a_response_in_version_0(
        self, version: int
    ) -> None:
        client = ClientConnection("me")
        client.request(API_VERSIONS, version, ApiVersionsRequest())
        # the correlation id, the error code 35, and an array of one API
        body = bytes(4) + b"\0\x23" + b"\0\0\0\x01" + b"\0\x12\0\0\0\x03"
        client.feed(len(body).to_bytes(4, "big") + body)
        assert client.next_response() == ApiVersionsResponse(
            error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=3)]
        )


class TestRequests:
    @pytest.mark.parametrize(
        ("api", "version"), [(METADATA, 14), (METADATA, -1), (LIST_GROUPS, -1), (FETCH, 19)]
    )
    def test_unknown_versions_are_refused(self, api: AnyApi, version: int) -> None:
        with pytest.raises(UnsupportedVersion, match=f"v{version}"):
            ClientConnection("me").request(api, version, MetadataRequest())
        head = api.key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + bytes(6)
        with pytest.raises(UnsupportedVersion):
            read_request(head)

    def test_an_unknown_api_is_refused(self) -> None:
        with pytest.raises(UnsupportedRequest, match="API 999 v0"):
            read_request(b"\x03\xe7\0\0" + bytes(6))

    def test_an_unsupported_request_keeps_the_fields_that_its_response_needs(self) -> None:
        head = b"\0\x12\0\x63" + b"\0\0\0\x07" + b"\0\x02me"
        with pytest.raises(UnsupportedRequest) as caught:
            read_request(head + b"what is behind it in version 99 nobody knows")
        found = caught.value
        assert (found.api_key, found.version, found.correlation_id) == (18, 99, 7)
        assert (found.client_id, found.code) == ("me", 35)

    def test_a_declared_version_that_is_not_served_is_refused(self) -> None:
        parts = ClientConnection("me").request(FETCH, 12, FetchRequest())
        frame = frame_of(joined(parts))
        assert read_request(frame, {1: (12, 12)}).version == 12
        for served in ({1: (4, 11)}, {1: (13, 18)}, {0: (3, 13)}):
            with pytest.raises(UnsupportedRequest, match="API 1 v12 is not supported"):
                read_request(frame, served)

    def test_bytes_after_a_request_are_ignored_as_in_kafka(self) -> None:
        parts = ClientConnection("me").request(METADATA, 9, MetadataRequest(topics=[]))
        frame = frame_of(joined(parts))
        assert read_request(bytes(frame) + b"abc").message == MetadataRequest(topics=[])

    def test_a_client_id_is_utf_8(self) -> None:
        text = "Büro 東京"
        encoded = text.encode()
        head = b"\0\x12\0\0" + bytes(4) + len(encoded).to_bytes(2, "big")
        assert read_request(head + encoded).client_id == text
        assert read_request(head[:-1] + b"\x02a\xff").client_id == "a\N{REPLACEMENT CHARACTER}"

    def test_a_client_id_may_be_null(self) -> None:
        assert read_request(b"\0\x12\0\0" + bytes(4) + b"\xff\xff").client_id is None

    @pytest.mark.parametrize("size", range(10))
    def test_the_error_for_a_cut_header_names_the_missing_part(self, size: int) -> None:
        text = f"a request of {size} bytes has no header"
        if size >= 8:
            text = f"the length of the client id needs 2 bytes, but only {size - 8} remain"
        with pytest.raises(CorruptMessage, match=text):
            read_request((b"\0\x12\0\0" + bytes(4) + b"\0\0")[:size])

    @pytest.mark.parametrize("length", [-1, -2, -32768])
    def test_a_client_id_of_negative_length_is_null(self, length: int) -> None:
        head = b"\0\x12\0\0" + bytes(4) + length.to_bytes(2, "big", signed=True)
        assert read_request(head).client_id is None

    @pytest.mark.parametrize("length", [4, 32767])
    @pytest.mark.parametrize("key", [b"\0\x12", b"\x03\xe7"])
    def test_a_name_of_another_length_than_it_has(self, key: bytes, length: int) -> None:
        head = key + b"\0\0" + bytes(4) + length.to_bytes(2, "big", signed=True)
        with pytest.raises(
            CorruptMessage, match=f"string of {length} bytes, but only 3 bytes remain"
        ) as caught:
            read_request(head + b"abc")
        assert caught.value.at == len(head)

    def test_records_in_pieces_follow_the_header(self) -> None:
        client = ClientConnection("me")
        request = read_request(frame_of(joined(client.request(FETCH, 12, FetchRequest()))))
        large: list[Buffer] = [bytes(10_000), b"small", memoryview(bytes(20_000))]
        data = PartitionData(records=large)
        parts = write_response(
            request, FetchResponse(responses=[FetchableTopic(topic="t", partitions=[data])])
        )
        assert [part for part in parts if len(part) >= 10_000] == [large[0], large[2]]
        assert any(part is large[0] for part in parts)
        client.feed(joined(parts))
        found = client.next_response()
        assert isinstance(found, FetchResponse)
        assert found.responses[0].partitions[0].records == b"".join(large)

    def test_every_cut_of_a_request_is_refused(self) -> None:
        frame = bytes(
            frame_of(joined(ClientConnection("me").request(METADATA, 12, MetadataRequest())))
        )
        for end in range(len(frame)):
            with pytest.raises(CorruptMessage):
                read_request(frame[:end])

    def test_a_request_without_a_header_is_an_error(self) -> None:
        for frame in (b"", b"\0\x12", b"\0\x12\0\x63" + bytes(4), b"\0\x12\0\x63" + bytes(5)):
            with pytest.raises(CorruptMessage):
                read_request(frame)
