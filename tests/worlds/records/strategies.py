"""Records, batches and message sets for property tests, with odd and extreme content, too."""

from dataclasses import dataclass

from hypothesis import strategies as st
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record.builder import build_batch
from tidelog.types import INT64_MAX, INT64_MIN, Codec, Header, NewRecord, TimestampType

BASE_TIME = 1_700_000_000_000
LEGACY_CODECS = [codec for codec in Codec if codec is not Codec.ZSTD]

timestamps = st.one_of(
    st.integers(BASE_TIME - 100_000, BASE_TIME + 100_000),
    st.sampled_from([-1, 0, INT64_MAX, INT64_MIN, INT64_MAX - 1]),
    st.integers(INT64_MIN, INT64_MAX),
)
# Content whose length takes one or two bytes as a varint; long content is compressible.
contents = (
    st.none()
    | st.binary(max_size=40)
    | st.binary(min_size=1, max_size=2).map(lambda part: part * 200)
)
headers = st.builds(Header, st.text(max_size=8), st.none() | st.binary(max_size=12))
records = st.builds(
    NewRecord.of_log,
    key=contents,
    value=contents,
    timestamp=timestamps,
    headers=st.lists(headers, max_size=3).map(tuple),
)
plain_records = st.builds(NewRecord.of_log, key=contents, value=contents, timestamp=timestamps)


@dataclass(frozen=True, slots=True)
class Expected:
    """The content of one record that a reader is expected to return."""

    offset: int
    timestamp: int
    create_timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """The bytes of one or more batches, and the records that readers are expected to return."""

    data: bytes
    expected: tuple[Expected, ...]

    @property
    def next_offset(self) -> int:
        """The first offset after the batches."""
        return self.expected[-1].offset + 1


def _time(record: NewRecord) -> int:
    assert record.timestamp is not None
    return record.timestamp


def _known(time: int) -> int | None:
    return None if time == -1 else time


@st.composite
def modern(draw: st.DrawFn, base_offset: int = 0) -> Built:
    """Draw a magic-2 batch of any codec and timestamp type."""
    chosen = draw(st.lists(records, min_size=1, max_size=6))
    append = draw(st.none() | st.integers(0, INT64_MAX))
    data = build_batch(
        chosen,
        base_offset=base_offset,
        leader_epoch=draw(st.integers(-1, 5)),
        codec=draw(st.sampled_from(Codec)),
        timestamp_type=TimestampType(append is not None),
        append_time_ms=append,
        producer_id=draw(st.integers(-1, 9)),
    )
    expected = tuple(
        Expected(
            base_offset + index,
            _time(record) if append is None else append,
            _known(_time(record)),
            record.key,
            record.value,
            record.headers,
        )
        for index, record in enumerate(chosen)
    )
    return Built(bytes(data), expected)


@st.composite
def legacy(draw: st.DrawFn, base_offset: int = 0) -> Built:
    """Draw messages or a wrapper of magic 0 or 1."""
    chosen = draw(st.lists(plain_records, min_size=1, max_size=5))
    magic = draw(st.sampled_from([0, 1]))
    append = draw(st.none() | st.integers(0, INT64_MAX)) if magic else None
    data = build_legacy_set(
        chosen,
        magic=magic,
        codec=draw(st.sampled_from(LEGACY_CODECS)),
        base_offset=base_offset,
        append_time_ms=append,
    )
    expected = []
    for index, record in enumerate(chosen):
        time = -1 if magic == 0 else _time(record) if append is None else append
        created = None if append is not None else _known(time)
        expected.append(Expected(base_offset + index, time, created, record.key, record.value, ()))
    return Built(bytes(data), tuple(expected))


@st.composite
def logs(draw: st.DrawFn, count_max: int = 4) -> Built:
    """Draw a few consecutive batches of any magic, with consecutive offsets."""
    data: bytes = b""
    expected: tuple[Expected, ...] = ()
    next_offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, count_max))):
        built = draw(modern(next_offset) | legacy(next_offset))
        data, expected = data + built.data, expected + built.expected
        next_offset = built.next_offset
    return Built(data, expected)
