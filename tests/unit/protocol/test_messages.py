"""Each declaration in each version: round trips, and damage that is refused or harmless."""

import random
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import pytest
from tests.worlds.records.messages import Fill, Sampler, samples

from tidelog.errors import CorruptMessage, UnsupportedRequest, UnsupportedVersion
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.messages import API_VERSIONS, BY_KEY, AnyApi
from tidelog.protocol.messages.fetch import FetchableTopic, FetchResponse, PartitionData
from tidelog.protocol.messages.group_records import (
    OFFSET_COMMIT_VALUE,
    SUBSCRIPTION,
    ConsumerProtocolSubscription,
    OffsetCommitValue,
)
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.state_records import UserScramCredentialRecord
from tidelog.protocol.requests import ClientConnection, read_request
from tidelog.protocol.wire import Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import DataclassInstance

    from tidelog.protocol.codecs import Codec
    from tidelog.protocol.schema import Pieces
    from tidelog.types import Buffer

# Impossible lengths and counts, in both encodings.
LIES = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff",
    b"\x7f\xff",
]
by_api = pytest.mark.parametrize("api", BY_KEY.values(), ids=lambda api: api.name)


def every_kind(api: AnyApi) -> "Iterator[tuple[int, bool, type[DataclassInstance]]]":
    """Yield (version, whether it is flexible, message type) for each request and response."""
    for version in range(api.first_declared, api.last + 1):
        for kind in (api.request, api.response):
            yield version, api.is_flexible(version), kind


def encode(
    kind: "type[DataclassInstance]", version: int, message: "DataclassInstance", *, flexible: bool
) -> bytes:
    writer = Writer()
    codec: Codec[DataclassInstance] = struct_codec(kind, version, flexible)
    codec.write(writer, message)
    size = writer.size_bytes
    written = b"".join(writer.parts())
    assert len(written) == size
    return written


def decode(
    kind: "type[DataclassInstance]", version: int, data: bytes, *, flexible: bool
) -> "DataclassInstance":
    reader = Reader(data)
    codec: Codec[DataclassInstance] = struct_codec(kind, version, flexible)
    message = codec.read(reader)
    assert reader.left == 0
    return message


def damaged(whole: bytes, seed: int) -> list[bytes]:
    """Return damaged variants: with false lengths, flipped bits, or removed or repeated parts."""
    chance = random.Random(seed)
    found = []
    for lie in LIES:
        for at in chance.sample(range(len(whole)), min(len(whole), 8)):
            found.append(whole[:at] + lie + whole[at + len(lie) :])
            found.append(whole[:at] + lie + whole[at:])
    for _ in range(16):
        at, end = sorted(chance.choices(range(len(whole) + 1), k=2))
        found += [whole[:at] + whole[end:], whole[:end] + whole[at:]]
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        found.append(bytes(flipped))
    return found


@by_api
class TestEveryVersion:
    def test_round_trip(self, api: AnyApi) -> None:
        for version, flexible, kind in every_kind(api):
            for message in samples(kind, version):
                data = encode(kind, version, message, flexible=flexible)
                assert decode(kind, version, data, flexible=flexible) == message, version

    def test_defaults_round_trip(self, api: AnyApi) -> None:
        for version, flexible, kind in every_kind(api):
            message = kind()
            if (api.name, version) in (("Metadata", 0), ("OffsetFetch", 1)) and kind is api.request:
                message.topics = []  # type: ignore[attr-defined] # no null in this version
            data = encode(kind, version, message, flexible=flexible)
            assert decode(kind, version, data, flexible=flexible) == message, version

    def test_every_cut_is_refused(self, api: AnyApi) -> None:
        for version, flexible, kind in every_kind(api):
            short = Sampler(version, 0, Fill.SHORT).message(kind)
            whole = encode(kind, version, short, flexible=flexible)
            for end in range(len(whole)):
                with pytest.raises(CorruptMessage):
                    decode(kind, version, whole[:end], flexible=flexible)

    def test_damage_is_refused_or_means_something(self, api: AnyApi) -> None:
        """If damaged bytes are read as a message, the message can be written and read again."""
        for version, flexible, kind in every_kind(api):
            whole = encode(kind, version, samples(kind, version)[0], flexible=flexible)
            codec: Codec[DataclassInstance] = struct_codec(kind, version, flexible)
            for data in damaged(whole or b"\0", seed=version):
                with suppress(CorruptMessage):
                    message = codec.read(Reader(data))
                    again = encode(kind, version, message, flexible=flexible)
                    found = decode(kind, version, again, flexible=flexible)
                    # NaN is not equal to itself.
                    assert found == message or "nan" in repr(found), version

    def test_damaged_requests(self, api: AnyApi) -> None:
        for version in range(api.first_declared, api.last + 1):
            message = Sampler(version, 0, Fill.SHORT).message(api.request)
            asked = ClientConnection("a client").request(api, version, message)
            frame = b"".join(asked)[4:]
            assert read_request(frame).message == message, version
            cuts = [frame[:end] for end in range(len(frame))]
            for data in [*damaged(frame, seed=version), *cuts]:
                with suppress(CorruptMessage, UnsupportedRequest):
                    read_request(data)


class TestRecords:
    def test_bytes_are_read_as_views_and_written_without_a_copy(self) -> None:
        records = bytes(100_000)
        answer = FetchResponse(
            responses=[FetchableTopic(topic="t", partitions=[PartitionData(records=records)])]
        )
        writer = Writer()
        struct_codec(FetchResponse, 12, True).write(writer, answer)
        assert any(part is records for part in writer.parts())
        data = b"".join(writer.parts())
        found = decode(FetchResponse, 12, data, flexible=True)
        assert isinstance(found, FetchResponse)
        view = found.responses[0].partitions[0].records
        assert isinstance(view, memoryview)
        assert view.obj is data

    @pytest.mark.parametrize(("version", "flexible"), [(4, False), (12, True)])
    def test_messages_are_written_in_pieces(self, version: int, flexible: bool) -> None:
        pieces: list[Buffer] = [bytes(5000), b"ab", bytearray(6000), memoryview(b"cd")]
        whole = b"".join(pieces)
        for records in cast("list[Pieces]", [pieces, tuple(pieces), whole]):
            partition = PartitionData(records=records)
            answer = FetchResponse(
                responses=[FetchableTopic(topic="t", partitions=[partition, PartitionData()])]
            )
            assert bytes(partition.batches) == whole
            data = encode(FetchResponse, version, answer, flexible=flexible)
            found = decode(FetchResponse, version, data, flexible=flexible)
            assert isinstance(found, FetchResponse)
            first, second = found.responses[0].partitions
            assert first.records == whole
            assert (second.records, second.batches) == (None, b"")


class TestTags:
    def test_unknown_ones_are_stepped_over(self) -> None:
        data = encode(FetchResponse, 12, FetchResponse(), flexible=True)
        assert data[-1] == 0
        tagged = data[:-1] + b"\x01\x63\x03abc"
        assert decode(FetchResponse, 12, tagged, flexible=True) == FetchResponse()

    @pytest.mark.parametrize(
        ("tags", "reason"),
        [
            (b"\x01\x00\x02\x01\x00", "tag 0 is 1 bytes too long"),
            (b"\x01\x00\x00\x01", "tag 0 is 1 bytes too short"),
            (b"\x01\x63\x04abc", "bytes remain"),
            (b"\x01\x00\x04\x01", "bytes remain"),
        ],
    )
    def test_tags_with_a_wrong_length_are_refused(self, tags: bytes, reason: str) -> None:
        data = encode(FetchResponse, 16, FetchResponse(), flexible=True)
        with pytest.raises(CorruptMessage, match=reason):
            decode(FetchResponse, 16, data[:-1] + tags, flexible=True)

    def test_messages_do_not_share_their_defaults(self) -> None:
        data = encode(
            FetchResponse,
            12,
            FetchResponse(responses=[FetchableTopic(partitions=[PartitionData()] * 2)]),
            flexible=True,
        )
        found = decode(FetchResponse, 12, data, flexible=True)
        assert isinstance(found, FetchResponse)
        first, second = found.responses[0].partitions
        first.current_leader.leader_id = 5
        assert second.current_leader.leader_id == -1
        assert PartitionData().current_leader.leader_id == -1


class TestTable:
    def test_apis_are_found_by_key(self) -> None:
        assert all(key == api.key for key, api in BY_KEY.items())
        assert all(0 <= api.first_declared <= api.first <= api.last for api in BY_KEY.values())
        assert API_VERSIONS.request.__name__ == "ApiVersionsRequest"


class TestDataMessages:
    def test_a_later_version_of_a_member_is_read_as_the_last_known(self) -> None:
        subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r")
        data = SUBSCRIPTION.write(3, subscription)
        assert SUBSCRIPTION.read(b"\0\x09" + data[2:] + b"what is new") == (9, subscription)
        with pytest.raises(UnsupportedVersion, match="v-1"):
            SUBSCRIPTION.read(b"\xff\xff" + data[2:])

    def test_a_later_version_of_a_record_is_refused(self) -> None:
        data = OFFSET_COMMIT_VALUE.write(3, OffsetCommitValue(offset=42))
        with pytest.raises(UnsupportedVersion, match="v5: versions 0 to 4 are known"):
            OFFSET_COMMIT_VALUE.read(b"\0\x05" + data[2:])
        with pytest.raises(CorruptMessage, match="1 byte after the message"):
            OFFSET_COMMIT_VALUE.read(data + b"\0")
        with pytest.raises(UnsupportedVersion):
            OFFSET_COMMIT_VALUE.write(5, OffsetCommitValue())


def test_messages_are_equal_by_their_fields_and_print_them() -> None:
    def value(offset: int) -> OffsetCommitValue:
        return OffsetCommitValue(offset=offset, metadata="m")

    assert value(1) == value(1)
    assert value(1) != value(2)
    other: object = ConsumerProtocolSubscription()
    assert value(1) != other
    assert repr(value(1)).startswith("OffsetCommitValue(offset=1, ")
    assert "metadata='m'" in repr(value(1))


@pytest.mark.parametrize(
    "message",
    [
        AlterUserScramCredentialsRequest(
            upsertions=[ScramCredentialUpsertion(salt=b"hidden", salted_password=b"hidden")]
        ),
        ScramCredentialUpsertion(salt=b"hidden", salted_password=b"hidden"),
        SaslAuthenticateRequest(auth_bytes=b"hidden"),
        SaslAuthenticateResponse(auth_bytes=b"hidden"),
        UserScramCredentialRecord(salt=b"hidden", stored_key=b"hidden", server_key=b"hidden"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_print_no_secrets(message: "DataclassInstance") -> None:
    assert "hidden" not in repr(message)
