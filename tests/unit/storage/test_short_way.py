"""The short way of an append leaves the files, and says what, the long one does."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.logs import HOUR_MS, new_log, path_of, read

from tidelog.errors import TidelogError
from tidelog.record.batch import build_batch
from tidelog.storage.appends import AppendResult
from tidelog.storage.log import Log
from tidelog.types import Codec, NewRecord

CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"index.interval.bytes": "0"},
    {"index.interval.bytes": "0", "internal.segment.bytes": "700"},
    {"index.interval.bytes": "0", "segment.index.bytes": "36"},
    {"segment.ms": "5000"},
    {"flush.messages": "3"},
    {"flush.ms": "2000"},
    {"tidelog.append.time.enable": "false"},
    {"tidelog.append.time.granularity.ms": "1000"},
    {"message.timestamp.type": "LogAppendTime"},
    {"compression.type": "lz4"},
)


@dataclass(frozen=True)
class Sent:
    """One batch of a producer, and how much later than the last one it comes."""

    size: int
    time: int
    count: int
    codec: Codec
    sequence: int | None
    epoch: int
    later_ms: int


SENT = st.builds(
    Sent,
    size=st.integers(0, 90),
    time=st.sampled_from([-1, 0, 1, 2, 5, 3000, 9000]),
    count=st.integers(1, 4),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4, Codec.GZIP]),
    sequence=st.sampled_from([None, None, 0, 1, 2, 3]),
    epoch=st.integers(0, 1),
    later_ms=st.sampled_from([0, 0, 1, 700, 6000]),
)


def batch_of(sent: Sent, start_ms: int) -> bytes:
    has_producer = sent.sequence is not None
    time = sent.time if sent.time < 0 else start_ms + sent.time
    return bytes(
        build_batch(
            [NewRecord(key=b"k", value=b"v" * sent.size, timestamp=time)] * sent.count,
            codec=sent.codec,
            producer_id=7 if has_producer else -1,
            producer_epoch=sent.epoch if has_producer else -1,
            base_sequence=-1 if sent.sequence is None else sent.sequence,
        )
    )


@dataclass
class Side:
    """A log on a disk of its own, and what was said of each append."""

    config: dict[str, str]
    is_short: bool
    said: list[AppendResult | str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.env, self.directory, self.log = new_log(self.config)

    def take(self, sent: Sent) -> None:
        self.env.clock.advance(sent.later_ms)
        data = batch_of(sent, self.env.clock.now_ms())
        try:
            self.said.append(append(self.log, data, is_short=self.is_short))
        except TidelogError as error:
            self.said.append(f"{type(error).__name__}: {error}")

    def files(self) -> dict[str, bytes]:
        names = [entry.name for entry in self.env.files.list_dir(path_of("")[:-1])]
        return {name: read(self.env, name) for name in names}


def append(log: Log, data: bytes, *, is_short: bool) -> AppendResult:
    """Only a buffer that may be changed goes the short way."""
    if is_short:
        return log.append_batches(memoryview(bytearray(data)), owned=True)
    return log.append_batches(data)


@given(config=st.sampled_from(CONFIGS), sent=st.lists(SENT, max_size=25))
@settings(max_examples=150)
def test_both_ways_leave_the_same(config: dict[str, str], sent: list[Sent]) -> None:
    sides = [Side(config, is_short=True), Side(config, is_short=False)]
    for side in sides:
        for each in sent:
            side.take(each)
    short, long = sides
    assert short.said == long.said
    assert short.files() == long.files()
    for side in sides:
        side.directory.close()
    assert short.files() == long.files()


def test_a_segment_whose_time_is_over_is_rolled_on_the_short_way() -> None:
    env, _, log = new_log({"segment.ms": str(HOUR_MS)})
    for later_ms in (0, HOUR_MS, 1):
        env.clock.advance(later_ms)
        data = build_batch([NewRecord(value=b"", timestamp=env.clock.now_ms())])
        append(log, bytes(data), is_short=True)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
