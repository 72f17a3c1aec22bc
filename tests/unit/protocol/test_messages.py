"""Every declaration in every version: what is written is read again, and no cut passes."""

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.protocol.messages import every_version, messages

from tidelog.errors import CorruptMessage
from tidelog.protocol.compiler import struct_codec
from tidelog.protocol.messages import BY_KEY, FETCH, AnyApi
from tidelog.protocol.messages.fetch import FetchableTopic, FetchResponse, PartitionData
from tidelog.protocol.wire import Reader, Writer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FEW = settings(max_examples=1, deadline=None)


def encode(api: AnyApi, version: int, message: "DataclassInstance") -> bytes:
    kind = type(message)
    writer = Writer()
    struct_codec(kind, version, api.is_flexible(version)).write(writer, message)
    parts = writer.parts()
    assert sum(len(part) for part in parts) == writer.size_bytes
    return b"".join(bytes(part) for part in parts)


def decode(
    api: AnyApi, version: int, kind: "type[DataclassInstance]", data: bytes
) -> "DataclassInstance":
    reader = Reader(data)
    message: DataclassInstance = struct_codec(kind, version, api.is_flexible(version)).read(reader)
    assert reader.left == 0
    return message


@pytest.mark.parametrize(
    ("api", "version"), every_version(), ids=lambda part: getattr(part, "name", str(part))
)
class TestEveryVersion:
    @FEW
    @given(data=st.data())
    def test_round_trip(self, api: AnyApi, version: int, data: st.DataObject) -> None:
        for kind in (api.request, api.response):
            message = data.draw(messages(kind, version))
            assert decode(api, version, kind, encode(api, version, message)) == message

    def test_defaults_round_trip(self, api: AnyApi, version: int) -> None:
        for kind in (api.request, api.response):
            message = kind()
            if (api.name, version) in (("Metadata", 0), ("OffsetFetch", 1)) and kind is api.request:
                message.topics = []  # type: ignore[attr-defined] # no null in this version
            assert decode(api, version, kind, encode(api, version, message)) == message

    @FEW
    @given(data=st.data())
    def test_every_cut_is_refused(self, api: AnyApi, version: int, data: st.DataObject) -> None:
        message = data.draw(messages(api.response, version))
        whole = encode(api, version, message)
        for end in range(len(whole)):
            with pytest.raises(CorruptMessage):
                decode(api, version, api.response, whole[:end])

    @FEW
    @given(data=st.data())
    def test_changed_bytes_are_read_or_refused(
        self, api: AnyApi, version: int, data: st.DataObject
    ) -> None:
        whole = bytearray(encode(api, version, data.draw(messages(api.response, version))))
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
        codec = struct_codec(api.response, version, api.is_flexible(version))
        with suppress(CorruptMessage):
            codec.read(Reader(bytes(whole)))


class TestRecords:
    def test_come_as_views_and_go_without_a_copy(self) -> None:
        records = bytes(100_000)
        answer = FetchResponse(
            responses=[FetchableTopic(topic="t", partitions=[PartitionData(records=records)])]
        )
        writer = Writer()
        struct_codec(FetchResponse, 12, True).write(writer, answer)
        assert any(part is records for part in writer.parts())
        data = b"".join(writer.parts())
        found = decode(FETCH, 12, FetchResponse, data)
        assert isinstance(found, FetchResponse)
        view = found.responses[0].partitions[0].records
        assert isinstance(view, memoryview)
        assert view.obj is data

    def test_unknown_tags_are_stepped_over(self) -> None:
        data = encode(FETCH, 12, FetchResponse())
        assert data[-1] == 0
        tagged = data[:-1] + b"\x01\x63\x03abc"
        assert decode(FETCH, 12, FetchResponse, tagged) == FetchResponse()

    def test_a_tag_that_is_too_long_for_its_field(self) -> None:
        data = encode(FETCH, 16, FetchResponse())
        with pytest.raises(CorruptMessage, match="tag 0 is 1 bytes too long"):
            decode(FETCH, 16, FetchResponse, data[:-1] + b"\x01\x00\x02\x01\x00")

    def test_apis_are_found_by_key(self) -> None:
        assert {api.name for api in BY_KEY.values()} >= {"Fetch", "Metadata", "ListOffsets"}
        assert all(api.first_declared <= api.first <= api.last for api in BY_KEY.values())
