"""Compares the validator with a model of its rules, and its two passes with each other."""

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.config import TopicConfig
from tidelog.errors import CorruptRecord, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.kernels.records import check_body as check_body_fast
from tidelog.storage.log.append_types import FOREIGN, AppendContext, AppendOrigin, AppendTerms
from tidelog.storage.log.record_rules import BodyCheck, BodyFacts, check_body, renumber_body
from tidelog.storage.log.validator import Validator
from tidelog.types import (
    INT64_MAX,
    INT64_MIN,
    NO_TIMESTAMP,
    Codec,
    Header,
    NewRecord,
    TopicPartition,
)

NOW = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
PASSES = {"plain": check_body, "kernel": check_body_fast}

timestamps = st.one_of(
    st.integers(NOW - 20, NOW + 20),
    st.sampled_from([NO_TIMESTAMP, 0, -2, INT64_MIN, INT64_MAX, NOW + 3_600_001]),
)
texts = st.one_of(st.none(), st.binary(max_size=6))
records = st.lists(
    st.builds(
        NewRecord.of_log,
        key=texts,
        value=texts,
        timestamp=timestamps,
        headers=st.lists(st.builds(Header, st.text(max_size=3), texts), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


@dataclass(frozen=True)
class Settings:
    """The settings of the model and of the validator."""

    stamps: bool
    compacted: bool
    before: int
    after: int
    compression: str

    def config(self) -> TopicConfig:
        given = {
            "message.timestamp.type": "LogAppendTime" if self.stamps else "CreateTime",
            "cleanup.policy": "compact" if self.compacted else "delete",
            "message.timestamp.before.max.ms": str(self.before),
            "message.timestamp.after.max.ms": str(self.after),
            "compression.type": self.compression,
        }
        return TopicConfig.parse(given)[0]


settings = st.builds(
    Settings,
    stamps=st.booleans(),
    compacted=st.booleans(),
    before=st.sampled_from([0, 10, INT64_MAX]),
    after=st.sampled_from([0, 10, 3_600_000, INT64_MAX]),
    compression=st.sampled_from(["producer", "uncompressed", "lz4", "zstd"]),
)


def expected_code(batch: list[NewRecord], rules: Settings) -> int | None:
    """Return Kafka's code for a refused batch, None for an accepted one."""
    found = set()
    for record in batch:
        time = record.timestamp
        assert time is not None
        too_old, too_new = NOW - time > rules.before, time - NOW > rules.after
        if rules.compacted and record.key is None:
            found.add(87)
        elif not rules.stamps and time != NO_TIMESTAMP and (too_old or too_new):
            found.add(32)
    return min(found) if found else None


@pytest.mark.parametrize("name", PASSES)
@given(batches=st.lists(records, min_size=1, max_size=3), rules=settings, data=st.data())
def test_an_append_equals_the_model(
    name: str, batches: list[list[NewRecord]], rules: Settings, data: st.DataObject
) -> None:
    codecs = [data.draw(st.sampled_from(list(Codec)), "codec") for _ in batches]
    sent = b"".join(
        bytes(build_batch(batch, codec=codec)) for batch, codec in zip(batches, codecs, strict=True)
    )
    origin = AppendOrigin.SINK if len(batches) > 1 else AppendOrigin.CLIENT
    context = AppendContext(
        AppendTerms(origin),
        next_offset=50,
        leader_epoch=1,
        now_ms=NOW,
        append_ms=NOW + 1,
        stamp_ms=NOW + 1,
    )
    validator = Validator(PARTITION, rules.config(), body_check=PASSES[name])
    codes = [code for batch in batches if (code := expected_code(batch, rules)) is not None]
    if codes:
        with pytest.raises(TidelogError) as caught:
            validator.validate(sent, context)
        assert caught.value.code == codes[0]
        return
    result = validator.validate(sent, context)
    flat = [record for batch in batches for record in batch]
    found = [record for batch in result.batches for record in batch.records()]
    assert [(r.key, r.value, r.headers) for r in found] == [
        (r.key, r.value, r.headers) for r in flat
    ]
    assert [r.offset for r in found] == list(range(50, 50 + len(flat)))
    times = [NOW + 1 if rules.stamps else r.timestamp for r in flat]
    assert [r.timestamp for r in found] == times
    assert result.max_timestamp == max([-1, *(time for time in times if time is not None)])


@given(records)
def test_passes_equal_a_loop_over_all_records(batch: list[NewRecord]) -> None:
    view = RecordBatch(build_batch(batch))
    times = [record.timestamp or 0 for record in batch]
    known = [time for time in times if time != NO_TIMESTAMP]
    wanted = BodyFacts(
        max([NO_TIMESTAMP, *times]),
        min(known, default=INT64_MAX),
        any(record.key is None for record in batch),
        True,
    )
    for body_check in PASSES.values():
        facts = body_check(view.body(), view.record_count, view.base_timestamp)
        assert BodyFacts(*facts) == wanted


def outcome(body_check: BodyCheck, body: bytes, count: int, base: int) -> BodyFacts | None:
    """Return the check's result for a body; None if the check refuses the body."""
    try:
        return BodyFacts(*body_check(body, count, base))
    except CorruptRecord:
        return None


@given(
    records,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.integers(-1, 9),
    timestamps,
    st.integers(0, 30),
)
@example(batch=[NewRecord()], changes=[], count=1, base=0, cut=30)
def test_passes_agree_on_any_damage(
    batch: list[NewRecord], changes: list[tuple[int, int]], count: int, base: int, cut: int
) -> None:
    body = bytearray(RecordBatch(build_batch(batch, default_timestamp=0)).body())
    for at, byte in changes:
        body[at % len(body)] = byte
    damaged = bytes(body[: max(len(body) - cut, 0)] if cut > 20 else body)
    wanted = outcome(check_body, damaged, count, base)
    assert outcome(check_body_fast, damaged, count, base) == wanted
    if wanted is not None:
        repaired = renumber_body(damaged, count)
        assert check_body(repaired, count, base) == wanted._replace(deltas_in_order=True)


@given(records, st.sampled_from(list(Codec)), st.data())
def test_flipped_bit_is_refused_or_changes_nothing(
    batch: list[NewRecord], codec: Codec, data: st.DataObject
) -> None:
    sent = build_batch(batch, codec=codec)
    bit = data.draw(st.integers(0, len(sent) * 8 - 1))
    sent[bit // 8] ^= 1 << bit % 8
    context = AppendContext(FOREIGN, 0, 1, now_ms=0, append_ms=0, stamp_ms=0)
    config = TopicConfig(message_timestamp_after_max_ms=INT64_MAX)
    try:
        result = Validator(PARTITION, config).validate(bytes(sent), context)
    except TidelogError:
        return
    # Only a flipped bit in the leader epoch is accepted: no CRC covers this field, and the leader
    # overwrites it.
    assert bit // 8 in range(12, 16)
    found = [record for view in result.batches for record in view.records()]
    assert [(r.key, r.value, r.timestamp) for r in found] == [
        (r.key, r.value, r.timestamp) for r in batch
    ]
