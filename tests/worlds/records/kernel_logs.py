"""Logs for tests of kernels and columns: every format, codec and oddity, valid and damaged."""

import struct

from hypothesis import strategies as st
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.types import (
    INT64_MAX,
    INT64_MIN,
    NO_TIMESTAMP,
    Codec,
    Header,
    NewRecord,
    TimestampType,
)

times = st.one_of(
    st.integers(0, 20),
    st.sampled_from((NO_TIMESTAMP, INT64_MAX, INT64_MIN, -5)),
    st.integers(INT64_MIN, INT64_MAX),
)
contents = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=60, max_size=200))
headers = st.lists(
    st.builds(Header, st.text(st.characters(codec="utf-8"), max_size=4), contents), max_size=3
).map(tuple)
records = st.builds(
    NewRecord.of_log, key=contents, value=contents, timestamp=times, headers=st.just(()) | headers
)


@st.composite
def batches(draw: st.DrawFn, codecs: tuple[Codec, ...] = (Codec.NONE, *Codec)) -> bytes:
    """Draw one magic-2 batch, as a producer, a leader or a cleaner may have written it."""
    chosen = draw(st.lists(records, min_size=1, max_size=6))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(chosen), max_size=len(chosen)))
    deltas = [sum(gaps[: i + 1]) + i for i in range(len(chosen))]
    stamped = draw(st.booleans())
    append_ms = draw(times) if stamped else None
    if stamped and draw(st.booleans()):
        # If a batch has LogAppendTime, Kafka's cleaner writes the batch's append time into its
        # records.
        chosen = [
            NewRecord.of_log(
                key=each.key, value=each.value, timestamp=append_ms, headers=each.headers
            )
            for each in chosen
        ]
    has_producer = draw(st.booleans())
    return bytes(
        build_batch(
            chosen,
            base_offset=draw(st.integers(0, 100) | st.just(INT64_MAX - 100)),
            leader_epoch=draw(st.sampled_from((-1, 0, 7))),
            codec=draw(st.sampled_from(codecs)),
            timestamp_type=TimestampType(int(stamped)),
            append_time_ms=append_ms,
            producer_id=5 if has_producer else -1,
            producer_epoch=3 if has_producer else -1,
            base_sequence=draw(st.sampled_from((0, 2**31 - 2))) if has_producer else -1,
            transactional=has_producer,
            control=draw(st.integers(0, 9)) == 0,
            delete_horizon_ms=draw(st.none() | st.integers(0, 99)),
            offset_deltas=deltas,
            last_offset_delta=deltas[-1] + draw(st.integers(0, 2)),
        )
    )


@st.composite
def legacy_sets(draw: st.DrawFn, first: int = 0) -> bytes:
    """Draw a message set of magic 0 or 1, plain or in a wrapper; offsets are at least `first`."""
    magic = draw(st.sampled_from((0, 1)))
    chosen = draw(
        st.lists(
            st.builds(NewRecord, key=contents, value=contents, timestamp=st.integers(-1, 50)),
            min_size=1,
            max_size=4,
        )
    )
    codec = draw(st.sampled_from((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)))
    stamped = magic == 1 and draw(st.booleans())
    return bytes(
        build_legacy_set(
            chosen,
            magic=magic,
            codec=codec,
            base_offset=first + draw(st.integers(0, 100)),
            append_time_ms=draw(st.integers(0, 50)) if stamped else None,
        )
    )


def in_sequence(found: list[bytes]) -> bytes:
    """Return magic-2 batches one after the other, with ascending offsets."""
    log, next_offset = bytearray(), 0
    for batch in found:
        moved = bytearray(batch)
        struct.pack_into(">q", moved, 0, next_offset)
        log += moved
        next_offset = RecordBatch(moved).last_offset + 1
    return bytes(log)


@st.composite
def _logs(draw: st.DrawFn) -> bytes:
    """Draw batches and message sets with ascending offsets, as in every log."""
    log, next_offset = bytearray(), 0
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.integers(0, 2)) == 0:
            part = bytearray(draw(legacy_sets(next_offset)))
        else:
            part = bytearray(draw(batches()))
            base = next_offset + draw(st.integers(0, 3))
            struct.pack_into(">q", part, 0, base)
        log += part
        next_offset = max(batch.last_offset for batch in walk(part)) + 1
    return bytes(log)


logs = _logs()


@st.composite
def damaged_logs(draw: st.DrawFn) -> bytes:
    """Draw a log with a few changed bytes and a cut end, or random bytes."""
    log = bytearray(draw(logs))
    if not log or draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    for _ in range(draw(st.integers(0, 4))):
        # New bytes are mostly small numbers, which give wrong but plausible lengths and counts.
        log[draw(st.integers(0, len(log) - 1))] = draw(st.integers(0, 20) | st.integers(0, 255))
    return bytes(log[: draw(st.just(len(log)) | st.integers(0, len(log)))])
