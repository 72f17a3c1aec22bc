"""The three ways to append a batch (see `Way`) give equal files and results."""

from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults import START_MS
from tests.worlds.directories.logs import HOUR_MS, new_log, path_of, put, read, reopen

from tidelog.errors import TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.coding import crc32c
from tidelog.record.header import (
    BASE_SEQUENCE_AT,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    seal,
)
from tidelog.storage.log.append_types import AppendOrigin, AppendResult, AppendTerms, LongCheck
from tidelog.storage.log.log import Log, append_together
from tidelog.storage.segment.segment import LOOP_RECORDS
from tidelog.types import Codec, NewRecord, TimestampType

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
# Settings whose rules a batch may violate.
STRICT: tuple[dict[str, str], ...] = (
    {},
    {"cleanup.policy": "compact"},
    {"compression.type": "uncompressed"},
    {"compression.type": "lz4"},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
    {"max.message.bytes": "120"},
)
TIMES = (-1, 0, *(START_MS + later_ms for later_ms in (-2000, -1000, 0, 1000, 2000)), 2**62)
# Positions of header bytes to change; most of them affect the result.
PLACES = st.sampled_from(
    [0, 7, 8, 11, 15, 16, 17, 21, 22, 23, 26, 34, MAX_TIMESTAMP_AT + 7, 42, 50, 52, 56, 57, 60]
)


class Way(Enum):
    """Way to append a batch: as a copy, changed in place, or together with other logs' batches."""

    COPIED = "copied"
    IN_PLACE = "in place"
    TOGETHER = "together"


PRODUCED = AppendTerms(owned=True, is_bounded=True)
CHECKED = AppendTerms(owned=True, is_checked=True)


@dataclass(frozen=True)
class Sent:
    """One batch of a producer, and its delay after the previous batch."""

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


def sent_batch(sent: Sent, start_ms: int) -> bytes:
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
    """A log on its own disk, and the result of each append."""

    config: dict[str, str]
    way: Way
    said: list[AppendResult | str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.env, self.directory, self.log = new_log(self.config)

    def take(self, sent: Sent) -> None:
        self.env.clock.advance(sent.later_ms)
        self.give(sent_batch(sent, self.env.clock.now_ms()))

    def give(self, data: bytes) -> None:
        try:
            self.said.append(append(self.log, data, self.way))
        except TidelogError as error:
            self.said.append(f"{type(error).__name__}: {error}")

    def files(self) -> dict[str, bytes]:
        names = [entry.name for entry in self.env.files.list_dir(path_of("")[:-1])]
        return {name: read(self.env, name) for name in names}


def append(log: Log, data: bytes, way: Way) -> AppendResult:
    """Append like a broker, which checks a batch with very many records in another thread."""
    if way is Way.COPIED:
        return log.append_batches(data)
    buffer = memoryview(bytearray(data))
    outcome: AppendResult | TidelogError | LongCheck
    if way is Way.IN_PLACE:
        try:
            return log.append_batches(buffer, PRODUCED)
        except LongCheck as error:
            outcome = error
    else:
        (outcome,) = append_together([(log, buffer)], PRODUCED)
    if isinstance(outcome, LongCheck):
        return log.append_batches(log.check_append(bytearray(data)), CHECKED)
    if isinstance(outcome, AppendResult):
        return outcome
    raise outcome


@given(config=st.sampled_from(CONFIGS), sent=st.lists(SENT, max_size=25))
@examples(150)
def test_all_ways_leave_the_same(config: dict[str, str], sent: list[Sent]) -> None:
    sides = [Side(config, way) for way in Way]
    for side in sides:
        for each in sent:
            side.take(each)
    copied, *others = sides
    for side in others:
        assert side.said == copied.said
        assert side.files() == copied.files()
    for side in sides:
        side.directory.close()
    for side in others:
        assert side.files() == copied.files()


def assert_alike(config: dict[str, str], data: bytes) -> AppendResult | str:
    """Append a valid batch and then `data` in all ways; assert equal effects; return the result."""
    sides = [Side(config, way) for way in Way]
    for side in sides:
        put(side.log, START_MS, START_MS)
        side.give(data)
    copied, *others = sides
    for side in others:
        assert side.said == copied.said
        assert side.files() == copied.files()
    return copied.said[0]


@given(
    records=st.lists(
        st.builds(
            NewRecord,
            key=st.sampled_from([None, b"", b"key"]),
            value=st.sampled_from([None, b"", b"value" * 5]),
            timestamp=st.sampled_from(TIMES),
        ),
        min_size=1,
        max_size=4,
    ),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4]),
    topic=st.sampled_from(STRICT),
    producer=st.sampled_from([(-1, -1, -1), (9, 0, 0), (9, 0, -1)]),
    stamped=st.booleans(),
    changes=st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=2),
    is_sealed=st.booleans(),
    cut=st.sampled_from([0, 0, 0, 0, -3, -1, 1, 3]),
    transactional=st.booleans(),
)
@example(  # the batch declares 16,777,217 records
    records=[NewRecord(key=None, value=None, timestamp=-1)],
    codec=Codec.NONE,
    topic={},
    producer=(-1, -1, -1),
    stamped=False,
    changes=[(23, 1), (57, 1)],
    is_sealed=True,
    cut=0,
    transactional=False,
)
@examples(300)
def test_odd_and_damaged_batches_have_the_same_result_on_both_ways(
    records: list[NewRecord],
    codec: Codec,
    topic: dict[str, str],
    producer: tuple[int, int, int],
    stamped: bool,
    changes: list[tuple[int, int]],
    is_sealed: bool,
    cut: int,
    transactional: bool,
) -> None:
    producer_id, epoch, sequence = producer
    batch = build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        timestamp_type=TimestampType(int(stamped)),
        append_time_ms=START_MS if stamped else None,
    )
    for at, byte in changes:
        batch[at] = byte
    if is_sealed and RecordBatch(batch).size_bytes == len(batch):
        seal(batch, 0)
    assert_alike(topic, bytes(batch[:cut] if cut < 0 else batch + bytes(cut)))


@pytest.mark.parametrize(
    ("at", "new", "is_taken"),
    [
        (MAX_TIMESTAMP_AT, bytes(8), True),  # the log corrects this field
        (RECORD_COUNT_AT, b"\0\0\0\2", False),
        (LAST_OFFSET_DELTA_AT, b"\0\0\0\1", False),
        (BASE_SEQUENCE_AT - 10, bytes(8), False),  # a producer id without a sequence
        (0, b"\0\0\0\0\0\0\0\1", False),
        (HEADER_SIZE, b"\x7f", False),
    ],
)
def test_one_wrong_field_has_the_same_result_on_both_ways(
    at: int, new: bytes, is_taken: bool
) -> None:
    data = build_batch([NewRecord(value=b"", timestamp=START_MS)])
    data[at : at + len(new)] = new
    seal(data, 0)
    assert isinstance(assert_alike({}, bytes(data)), AppendResult) is is_taken


@pytest.mark.parametrize("at", [CRC_AT, -2])
def test_a_wrong_checksum_is_the_same_error_on_both_ways(at: int) -> None:
    data = build_batch([NewRecord(value=b"value", timestamp=START_MS)])
    data[at] ^= 1
    said = assert_alike({}, bytes(data))
    assert isinstance(said, str)
    assert "CRC" in said


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(("producer_id", "transactional"), [(-1, False), (9, False), (9, True)])
def test_batches_of_clients_are_accepted_on_both_ways(
    codec: Codec, producer_id: int, transactional: bool
) -> None:
    sequence = 0 if producer_id >= 0 else -1
    data = build_batch(
        [NewRecord(value=b"v" * n, timestamp=START_MS - n) for n in range(9)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=sequence,
        base_sequence=sequence,
        transactional=transactional,
    )
    assert isinstance(assert_alike({}, bytes(data)), AppendResult)


@pytest.mark.parametrize(
    "topic",
    [
        {},
        {"compression.type": "lz4"},
        {"compression.type": "uncompressed"},
        {"message.timestamp.type": "LogAppendTime"},
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.GZIP])
def test_a_batch_that_is_checked_in_another_thread_is_appended_alike(
    topic: dict[str, str], codec: Codec
) -> None:
    records = [NewRecord(value=b"value", timestamp=START_MS)] * (LOOP_RECORDS + 1)
    data = bytes(build_batch(records, codec=codec))
    with pytest.raises(LongCheck):
        Side(topic, Way.IN_PLACE).log.append_batches(memoryview(bytearray(data)), PRODUCED)
    sides = [Side(topic, way) for way in Way]
    for side in sides:
        side.give(data)
    (said,) = sides[0].said
    assert isinstance(said, AppendResult)
    assert (said.base_offset, said.last_offset) == (0, LOOP_RECORDS)
    assert [side.said for side in sides] == [[said]] * len(sides)
    # Checksums are compared, because pytest takes minutes to show how the large files differ.
    sums = [{name: crc32c(content) for name, content in side.files().items()} for side in sides]
    assert sums == sums[:1] * len(sides)


@pytest.mark.parametrize(
    ("rule", "record"),
    [
        ({"message.timestamp.before.max.ms": "1000"}, NewRecord(timestamp=START_MS - 1001)),
        ({"message.timestamp.after.max.ms": "1000"}, NewRecord(timestamp=START_MS + 1001)),
        ({"cleanup.policy": "compact"}, NewRecord(value=b"v", timestamp=START_MS)),
        ({"max.message.bytes": "120"}, NewRecord(value=bytes(100), timestamp=START_MS)),
    ],
)
def test_records_that_a_topic_setting_forbids_are_refused_on_both_ways(
    rule: dict[str, str], record: NewRecord
) -> None:
    assert isinstance(assert_alike(rule, bytes(build_batch([record]))), str)


@pytest.mark.parametrize("topic", [*STRICT, *CONFIGS[1:]])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_built_batches_are_appended_like_validated_ones(
    topic: dict[str, str], codec: Codec
) -> None:
    """A batch that tidelog has built is not validated, but gives the same result and files."""
    data = build_batch(
        [NewRecord(key=b"key", value=b"v" * 30, timestamp=START_MS)] * 2, codec=codec
    )
    marker = build_end_marker(
        commit=True, producer_id=9, producer_epoch=1, coordinator_epoch=3, timestamp=START_MS
    )
    built, looked_at = Side(topic, Way.COPIED), Side(topic, Way.COPIED)
    for batch in (data, marker):
        for side, is_built in ((looked_at, False), (built, True)):
            mine = bytearray(batch) if is_built else bytes(batch)
            try:
                said: AppendResult | str = side.log.append_batches(
                    mine,
                    AppendTerms(AppendOrigin.COORDINATOR, owned=is_built, trusted=is_built),
                )
            except TidelogError as error:
                said = f"{type(error).__name__}: {error}"
            side.said.append(said)
    assert built.said == looked_at.said
    assert built.files() == looked_at.files()


@pytest.mark.parametrize("way", list(Way))
def test_an_expired_segment_is_rolled_in_all_ways(way: Way) -> None:
    env, _, log = new_log({"segment.ms": str(HOUR_MS)})
    for later_ms in (0, HOUR_MS, 1):
        env.clock.advance(later_ms)
        data = build_batch([NewRecord(value=b"", timestamp=env.clock.now_ms())])
        append(log, bytes(data), way)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_log_continues_after_a_large_first_batch() -> None:
    env, directory, log = new_log()
    put(log, 1, value=b"v" * 20_000)
    directory.close()
    directory, log = reopen(env)
    put(log, 2)
    assert log.log_end_offset == 2
    directory.close()
