"""Old producers' message sets are stored with equal records, in the topic's format."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.strategies import LEGACY_CODECS, contents

from tidelog.config import TopicConfig
from tidelog.errors import CorruptData, RequestError, TidelogError
from tidelog.record.record import Record
from tidelog.storage.log.append_types import AppendContext, AppendTerms, PendingAppend
from tidelog.storage.log.message_set_kernels import KernelPasses
from tidelog.storage.log.validator import Validator
from tidelog.types import Codec, NewRecord, TimestampType, TopicPartition

NOW = 1_700_000_000_000
START = 50
times = st.one_of(st.just(-1), st.integers(NOW - 5_000, NOW + 5_000))
records = st.lists(
    st.builds(NewRecord, key=contents, value=contents, timestamp=times), min_size=1, max_size=6
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A set as an old client sends it, and its target topic."""

    records: list[NewRecord]
    magic: int
    codec: Codec
    base: int
    target: Codec | None
    stamps: bool
    is_compacted: bool
    is_owned: bool
    by_kernels: bool

    @property
    def data(self) -> bytes:
        """Return the bytes that the client sends; it may give the first record any offset."""
        return bytes(
            build_legacy_set(
                self.records, magic=self.magic, codec=self.codec, base_offset=self.base
            )
        )

    def validate(self, data: bytearray) -> PendingAppend:
        """Return the leader's result of validating a set."""
        given = {
            "compression.type": "producer" if self.target is None else _name(self.target),
            "message.timestamp.type": "LogAppendTime" if self.stamps else "CreateTime",
            "message.timestamp.before.max.ms": "3000",
            "message.timestamp.after.max.ms": "3000",
            "cleanup.policy": "compact" if self.is_compacted else "delete",
        }
        context = AppendContext(
            AppendTerms(owned=self.is_owned, takes_legacy=True),
            next_offset=START,
            leader_epoch=1,
            now_ms=NOW,
            append_ms=NOW + 1,
            stamp_ms=NOW + 1,
        )
        passes = KernelPasses() if self.by_kernels else None
        config = TopicConfig.parse(given)[0]
        return Validator(TopicPartition("old", 0), config, set_passes=passes).validate(
            data, context
        )

    @property
    def expected_code(self) -> int | None:
        """The expected error code; if a time is invalid and a key is missing, the time's code."""
        found = set()
        for record in self.records:
            time = record.timestamp
            assert time is not None
            if self.is_compacted and record.key is None:
                found.add(87)
            elif self.magic and not self.stamps and time != -1 and abs(time - NOW) > 3_000:
                found.add(32)
        return min(found) if found else None

    def expected(self, index: int) -> tuple[object, ...]:
        """Return a record as a reader must get it."""
        record = self.records[index]
        time = record.timestamp if self.magic else -1
        if self.magic and self.stamps:
            time = NOW + 1
        return START + index, time, record.key, record.value


def _name(codec: Codec) -> str:
    return "uncompressed" if codec is Codec.NONE else codec.name.lower()


sent_sets = st.builds(
    Sent,
    records=records,
    magic=st.sampled_from([0, 1]),
    codec=st.sampled_from(LEGACY_CODECS),
    base=st.sampled_from([0, 7]),
    target=st.none() | st.sampled_from(LEGACY_CODECS),
    stamps=st.booleans(),
    is_compacted=st.booleans(),
    is_owned=st.booleans(),
    by_kernels=st.booleans(),
)


def seen(record: Record) -> tuple[object, ...]:
    return record.offset, record.timestamp, record.key, record.value


@given(sent_sets)
def test_valid_message_sets_keep_their_records_with_new_offsets(sent: Sent) -> None:
    data = bytearray(sent.data)
    if sent.expected_code is not None:
        with pytest.raises(TidelogError) as caught:
            sent.validate(data)
        assert caught.value.code == sent.expected_code
        assert data == sent.data
        return
    result = sent.validate(data)
    if not sent.is_owned:
        assert data == sent.data
    found = [record for batch in result.batches for record in batch.records()]
    assert [seen(record) for record in found] == [
        sent.expected(index) for index in range(len(sent.records))
    ]
    check_summary(sent, result, found)


def check_summary(sent: Sent, result: PendingAppend, found: list[Record]) -> None:
    """Check the format of an append's batches, and those fields of the append that the log uses."""
    count = len(found)
    kind = TimestampType.LOG_APPEND_TIME if sent.stamps else TimestampType.CREATE_TIME
    codec = sent.codec if sent.target is None else sent.target
    assert (result.first_offset, result.last_offset) == (START, START + count - 1)
    assert result.max_timestamp == max(record.timestamp for record in found)
    assert sum(batch.size_bytes for batch in result.batches) == len(result.data)
    assert len(result.batches) == (1 if codec is not Codec.NONE else count)
    for batch in result.batches:
        batch.ensure_valid()
        assert (batch.magic, batch.codec) == (sent.magic, codec)
        assert batch.timestamp_type is (kind if sent.magic else TimestampType.NO_TIMESTAMP_TYPE)
        assert batch.max_timestamp == max(record.timestamp for record in batch.records())


@given(sent_sets, st.data())
def test_a_flipped_bit_is_refused_or_changes_no_record(sent: Sent, data: st.DataObject) -> None:
    """The checksum does not cover offset and length; a smaller length may give a valid prefix."""
    damaged = bytearray(sent.data)
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        result = sent.validate(damaged)
    except (CorruptData, RequestError):
        return
    found = [seen(record) for batch in result.batches for record in batch.records()]
    assert found == [sent.expected(index) for index in range(len(found))]
