"""Reading a request takes at most 8 times its size plus 1 MiB of memory.

A response may take 64 times its size plus 1 MiB: clients choose their broker, so no stricter limit
is needed.

Python's objects are many times larger than their encoding. These messages consist of the items that
are smallest on the wire and largest in memory. Messages within the limit are read, and larger ones
are refused.
"""

import itertools
import tracemalloc
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.unit.protocol.test_messages import decode, encode
from tests.worlds.records.messages import BITS, bounds

from tidelog.errors import CorruptMessage
from tidelog.protocol.codecs import struct_codec
from tidelog.protocol.messages import (
    BY_KEY,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    AnyApi,
)
from tidelog.protocol.messages.classic_groups import DescribeGroupsRequest
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.metadata import (
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.schema import Form, Kind, fields_of
from tidelog.protocol.wire import Reader, varint_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.codecs import Codec

# Item counts of the outermost arrays, and of arrays that are nested once, twice and three times. 0
# stands for the count that gives the message the wanted size.
SHAPES = [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1)]
TEXTS = ["ab", "\N{GRINNING FACE}" + "a" * 60]
WORST = [FETCH, METADATA, OFFSET_COMMIT, PRODUCE, DESCRIBE_CONFIGS, CREATE_TOPICS]
ALL = [(api, kind) for api in BY_KEY.values() for kind in (api.request, api.response)]


class Nasty:
    """Builds messages of many small items."""

    def __init__(self, version: int, counts: tuple[int, ...], text: str) -> None:
        self._version = version
        self._counts = counts
        self._text = text
        self._made = 0

    def message(self, kind: "type[DataclassInstance]", depth: int = 0) -> "DataclassInstance":
        there = [field for field in fields_of(kind, self._version) if field.is_there]
        return kind(**{field.name: self._value(field.kind, depth) for field in there})

    def _value(self, kind: Kind[object], depth: int) -> object:
        if kind.form is Form.ARRAY:
            assert kind.item is not None
            count = self._counts[depth]
            if kind.item.form is not Form.STRUCT:
                return [self._value(kind.item, depth + 1)] * count
            return [self._value(kind.item, depth + 1) for _ in range(count)]
        if kind.form is Form.STRUCT:
            assert kind.struct is not None
            return self.message(kind.struct, depth)
        if kind.form in BITS:
            # Python does not cache integers of this size, so each of them takes memory.
            low, end = bounds(kind.form)
            return low or end - 1
        self._made += 1
        others = {
            Form.STRING: self._text,
            Form.BYTES: b"x",
            Form.BOOLEAN: True,
            Form.UUID: UUID(int=self._made),
        }
        return others.get(kind.form, kind.zero)


def peak_of(kind: "type[DataclassInstance]", version: int, data: bytes, *, flexible: bool) -> int:
    """Return the peak memory of a read in bytes, as a negative number if the message is refused."""
    codec: Codec[DataclassInstance] = struct_codec(kind, version, flexible)
    read = codec.read
    tracemalloc.start()
    try:
        message = read(Reader(data))
    except CorruptMessage:
        return -tracemalloc.get_traced_memory()[1]
    else:
        del message
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def nasty(
    api: AnyApi, kind: "type[DataclassInstance]", shape: tuple[int, ...], text: str, size: int
) -> bytes:
    """Return a message of about `size` bytes."""

    def made(count: int) -> bytes:
        counts = tuple(n or count for n in shape)
        message = Nasty(api.last, counts, text).message(kind)
        return encode(kind, api.last, message, flexible=api.is_flexible(api.last))

    small = len(made(1))
    return made(size // max(len(made(2)) - small, 1))


def check(api: AnyApi, kind: "type[DataclassInstance]", texts: list[str], sizes: list[int]) -> None:
    """Check that neither refused nor accepted messages exceed the memory limit."""
    flexible = api.is_flexible(api.last)
    peak = 0
    for shape, text, size in itertools.product(SHAPES, texts, sizes):
        data = nasty(api, kind, shape, text, size)
        peak = peak_of(kind, api.last, data, flexible=flexible)
        times = 64 if kind is api.response else 8
        assert len(data) + abs(peak) <= times * len(data) + 2**20, (shape, text, size)
    assert peak >= 0 or size > 10_000, "the smallest are always let through"


@pytest.mark.parametrize("api", WORST, ids=lambda api: api.name)
def test_the_worst(api: AnyApi) -> None:
    check(api, api.request, ["ab"], [60_000, 10_000])


@pytest.mark.slow
@pytest.mark.parametrize(("api", "kind"), ALL, ids=lambda part: getattr(part, "name", "-"))
def test_all(api: AnyApi, kind: "type[DataclassInstance]") -> None:
    check(api, kind, TEXTS, [50_000, 10_000] if kind is api.response else [150_000, 50_000, 20_000])


def test_tags_by_the_thousand() -> None:
    """Thousands of tags, unknown or repeated, don't exceed the memory limit."""
    whole = encode(FetchResponse, 16, FetchResponse(), flexible=True)[:-1]
    endpoint = varint_bytes(0) + b"\x0a\x02" + bytes(4) + b"\x01" + bytes(4) + b"\x00\x00"
    for count, tag in ((20_000, b"\x63\x00"), (2_000, endpoint)):
        data = whole + varint_bytes(count) + tag * count
        peak = peak_of(FetchResponse, 16, data, flexible=True)
        assert abs(peak) <= 63 * len(data) + 2**20


def test_no_message_is_so_long_that_it_may_take_more_than_128_mib() -> None:
    data = (400_000).to_bytes(4, "big") + (b"\x00\x64" + b"x" * 100) * 400_000 + b"\0"
    with pytest.raises(CorruptMessage, match="bytes of memory more"):
        decode(DescribeGroupsRequest, 3, data, flexible=False)


def test_a_large_append_is_read_without_a_copy() -> None:
    partition = PartitionProduceData(records=bytes(20_000_000))
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[partition])])
    data = encode(ProduceRequest, 9, request, flexible=True)
    peak_of(ProduceRequest, 9, data, flexible=True)
    assert 0 < peak_of(ProduceRequest, 9, data, flexible=True) < 10_000


MANY = 10_000
HIGH = 10**15


@pytest.mark.parametrize(
    ("api", "message"),
    [
        (
            METADATA,
            MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{n}") for n in range(MANY)]),
        ),
        (
            FETCH,
            FetchRequest(
                topics=[
                    FetchTopic(
                        topic_id=UUID(int=1),
                        partitions=[
                            FetchPartition(
                                partition=n,
                                current_leader_epoch=n,
                                fetch_offset=HIGH + n,
                                last_fetched_epoch=n,
                                log_start_offset=HIGH + n,
                                partition_max_bytes=1 << 20,
                            )
                            for n in range(MANY)
                        ],
                    )
                ]
            ),
        ),
        (
            OFFSET_COMMIT,
            OffsetCommitRequest(
                topics=[
                    OffsetCommitRequestTopic(
                        topic_id=UUID(int=1),
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=n,
                                committed_offset=HIGH + n,
                                committed_leader_epoch=n,
                                committed_metadata="",
                            )
                            for n in range(MANY)
                        ],
                    )
                ]
            ),
        ),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_large_requests_of_clients_are_accepted(api: AnyApi, message: "DataclassInstance") -> None:
    kind, flexible = type(message), api.is_flexible(api.last)
    data = encode(kind, api.last, message, flexible=flexible)
    assert decode(kind, api.last, data, flexible=flexible) == message


def test_a_response_about_thousands_of_partitions_is_read() -> None:
    partitions = [MetadataPartition(partition_index=n, leader_id=1) for n in range(10_000)]
    for partition in partitions:
        partition.replica_nodes = partition.isr_nodes = [1]
    told = MetadataResponse(topics=[MetadataTopic(name="big", partitions=partitions)])
    data = encode(MetadataResponse, 12, told, flexible=True)
    assert decode(MetadataResponse, 12, data, flexible=True) == told
