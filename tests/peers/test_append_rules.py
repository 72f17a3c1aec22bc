"""Kafka's leader and ours validate the same appends: errors and logs are equal.

Both get a series of batches with one topic's settings. Most batches are invalid in one way.
Separate tests at the end cover intended differences; docs/differences.md gives the reasons.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.samples import T0, draw_records

from tidelog.config import TopicConfig
from tidelog.errors import TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.header import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    CONTROL_BIT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    seal,
)
from tidelog.storage.log.append_types import FOREIGN, AppendContext
from tidelog.storage.log.batch_building import write_anew
from tidelog.storage.log.validator import Validator
from tidelog.types import INT64_MAX, Codec, NewRecord, TimestampType, TopicPartition

pytestmark = pytest.mark.kafka

PARTITION = TopicPartition("rules", 0)
NOW = T0
STEP_COUNT = 60
CONFIGS: dict[str, dict[str, str]] = {
    "default": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "both-policies": {"cleanup.policy": "compact,delete", "message.timestamp.after.max.ms": "1000"},
    "limits": {"message.timestamp.before.max.ms": "500", "message.timestamp.after.max.ms": "700"},
    "lz4": {"compression.type": "lz4"},
    "plain": {"compression.type": "uncompressed"},
    "stamped-zstd": {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"},
    "small": {"max.message.bytes": "400"},
    "small-segments": {"internal.segment.bytes": "600"},
}


@dataclass
class Answer:
    """A leader's response to one append: Kafka's error code, or the assigned offsets."""

    code: int | None
    first_offset: int = -1
    last_offset: int = -1
    max_timestamp: int = -1


def sealed(batch: bytearray, at: int, value: int, size: int) -> bytearray:
    """Return the batch with one header field changed and a valid CRC."""
    batch[at : at + size] = value.to_bytes(size, "big", signed=True)
    seal(batch, 0)
    return batch


def flip(batch: bytearray, rng: random.Random) -> bytearray:
    batch[rng.randrange(17, len(batch))] ^= 1 << rng.randrange(8)
    return batch


DAMAGES: tuple[Callable[[bytearray, random.Random], bytearray], ...] = (
    lambda batch, _: sealed(batch, 0, 5, 8),
    lambda batch, rng: sealed(batch, LAST_OFFSET_DELTA_AT, rng.randrange(-2, 9), 4),
    lambda batch, rng: sealed(batch, RECORD_COUNT_AT, rng.randrange(-2, 9), 4),
    lambda batch, _: sealed(batch, MAX_TIMESTAMP_AT, 12345, 8),
    lambda batch, _: sealed(batch, ATTRIBUTES_AT, batch[ATTRIBUTES_AT + 1] | CONTROL_BIT, 2),
    lambda batch, rng: sealed(batch, PRODUCER_ID_AT, rng.randrange(2**40), 8),
    lambda batch, _: sealed(batch, BASE_SEQUENCE_AT, 3, 4),
    lambda batch, _: batch + batch,
    lambda batch, _: batch + batch[:50],
    lambda batch, rng: batch + batch[: rng.randrange(1, 12)],
    flip,
)


def draw_append(rng: random.Random, *, stamps: bool) -> bytearray:
    """Return a batch that is often invalid in one way.

    With `stamps`, some of the returned batches are flagged LogAppendTime.
    """
    records = [settled(record, rng) for record in draw_records(rng, rng.randrange(1, 7))]
    flagged = stamps and rng.random() < 0.15
    batch = build_batch(
        records,
        codec=rng.choice([Codec.NONE, Codec.NONE, *Codec]),
        timestamp_type=TimestampType(int(flagged)),
        append_time_ms=NOW if flagged else None,
    )
    return rng.choice(DAMAGES)(batch, rng) if rng.random() < 0.5 else batch


def settled(record: NewRecord, rng: random.Random) -> NewRecord:
    """Return the record, in most cases with the key k in place of its own key.

    A timestamp of INT64_MAX is replaced by a time near NOW in nine of ten cases, because the error
    for such a timestamp hides other errors.
    """
    time = record.timestamp
    key = record.key if rng.random() < 0.3 else b"k"
    if time == INT64_MAX and rng.random() < 0.9:
        time = NOW + rng.choice([-501, -500, 0, 700, 701, 1000, 1001])
    return NewRecord(key=key, value=record.value, timestamp=time, headers=record.headers)


def ask_kafka(
    oracle: Oracle, directory: Path, config: dict[str, str], appends: list[bytearray]
) -> tuple[list[Answer], bytes]:
    """Return Kafka's results, and the content of Kafka's log over all segments."""
    partition = directory / str(PARTITION)
    steps = [{"do": "append", "data": data, "leader_epoch": 4, "now_ms": NOW} for data in appends]
    told = oracle.run(Script(partition, steps, config, now_ms=NOW))
    logs = b"".join(path.read_bytes() for path in sorted(partition.glob("*.log")))
    return [kafka_answer(cast("dict[str, object]", answer)) for answer in told], logs


def kafka_answer(told: dict[str, object]) -> Answer:
    if "error" in told:
        return Answer(cast("int", told["code"]))
    numbers = [cast("int", told[name]) for name in ("first_offset", "last_offset", "max_timestamp")]
    return Answer(None, *numbers)


def ask_ours(config: dict[str, str], appends: list[bytearray]) -> tuple[list[Answer], bytes]:
    """Return our results, and the bytes that we would write."""
    validator = Validator(PARTITION, TopicConfig.parse(config)[0])
    answers, written, next_offset = [], bytearray(), 0
    for data in appends:
        context = AppendContext(FOREIGN, next_offset, 4, now_ms=NOW, append_ms=NOW, stamp_ms=NOW)
        try:
            valid = validator.validate(bytes(data), context)
        except TidelogError as error:
            answers.append(Answer(error.code))
            continue
        answers.append(Answer(None, valid.first_offset, valid.last_offset, valid.max_timestamp))
        written += valid.data
        next_offset = valid.last_offset + 1
    return answers, bytes(written)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_same_appends_same_errors_same_bytes(
    kafka_oracle: Oracle, quick_path: Path, name: str, seed: int
) -> None:
    rng = random.Random(f"{name} {seed}")
    config = CONFIGS[name]
    stamps = config.get("message.timestamp.type") == "LogAppendTime"
    appends = [draw_append(rng, stamps=stamps) for _ in range(STEP_COUNT)]
    theirs, their_log = ask_kafka(kafka_oracle, quick_path, config, appends)
    ours, our_log = ask_ours(config, appends)
    for number, (kafka, tidelog) in enumerate(zip(theirs, ours, strict=True)):
        assert tidelog == kafka, f"append {number} of seed {seed}: {appends[number].hex()}"
    assert any(answer.code is None for answer in theirs)
    assert any(answer.code is not None for answer in theirs)
    if "compression.type" not in config:
        assert our_log == their_log
        return
    assert described(our_log) == described(their_log)


def described(log: bytes) -> list[object]:
    """Return fields and records of the batches; the compressed bytes differ between libraries."""
    return [
        (
            (batch.base_offset, batch.last_offset, batch.leader_epoch),
            (batch.codec, batch.timestamp_type, batch.max_timestamp),
            list(batch.records()),
        )
        for batch in walk(log)
        if isinstance(batch, RecordBatch)
    ]


@pytest.mark.parametrize("name", ["default", "compacted", "stamped", "lz4"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_delete_horizon_set_by_a_producer_is_stored_equally(
    kafka_oracle: Oracle, quick_path: Path, name: str, codec: Codec
) -> None:
    """Both logs accept a delete horizon: unchanged batches keep it, rewritten batches lose it."""
    records = [NewRecord(key=b"k", value=None, timestamp=NOW + at) for at in range(3)]
    batch = build_batch(records, codec=codec, delete_horizon_ms=NOW - 1000)
    theirs, their_log, ours, our_log = both(kafka_oracle, quick_path, CONFIGS[name], batch)
    assert (ours, ours.code) == (theirs, None)
    horizons = [one.delete_horizon_ms for one in walk(our_log) if isinstance(one, RecordBatch)]
    of_theirs = [one.delete_horizon_ms for one in walk(their_log) if isinstance(one, RecordBatch)]
    assert horizons == of_theirs
    assert described(our_log) == described(their_log)
    if name in ("default", "compacted"):
        assert (our_log, horizons) == (their_log, [NOW - 1000])


# --- intended differences


def both(
    oracle: Oracle, directory: Path, config: dict[str, str], append: bytearray
) -> tuple[Answer, bytes, Answer, bytes]:
    """Return Kafka's result and log, and ours."""
    (theirs,), their_log = ask_kafka(oracle, directory, config, [append])
    (ours,), our_log = ask_ours(config, [append])
    return theirs, their_log, ours, our_log


def wrong_deltas() -> bytearray:
    """Return a batch of three records with offset deltas 0, 2, 2."""
    batch = build_batch([NewRecord(key=b"k", timestamp=NOW)] * 3)
    # Position of the second record's offset delta. Before it are the header, the first record (8
    # bytes), and the second record's length, attributes and timestamp delta (1 byte each).
    at = HEADER_SIZE + 8 + 3
    assert batch[at] == 2, "the varint of 1"
    batch[at] = 4
    seal(batch, 0)
    return batch


def test_wrong_offset_deltas_kafka_keeps_them_we_repair_them(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    theirs, their_log, ours, our_log = both(kafka_oracle, quick_path, {}, wrong_deltas())
    assert ours == theirs
    (seen,) = kafka_oracle.read_batches(their_log)
    assert [record.offset for record in seen.records] == [0, 2, 2]
    (repaired,) = walk(our_log)
    assert [record.offset for record in repaired.records()] == [0, 1, 2]


def test_wrong_offset_deltas_in_a_compressed_batch_kafka_stumbles_over_itself(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    plain = wrong_deltas()
    batch = write_anew(RecordBatch(plain), plain[HEADER_SIZE:], codec=Codec.LZ4)
    theirs, _, ours, our_log = both(kafka_oracle, quick_path, {}, batch)
    assert (theirs.code, ours.code) == (-1, None)
    (repaired,) = walk(our_log)
    assert [record.offset for record in repaired.records()] == [0, 1, 2]


def test_log_append_time_flag_on_create_time_topic_kafka_believes_the_header(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    batch = build_batch(
        [NewRecord(timestamp=NOW), NewRecord(timestamp=NOW + 900)],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_time_ms=NOW - 100,
    )
    theirs, their_log, ours, our_log = both(kafka_oracle, quick_path, {}, batch)
    (seen,) = kafka_oracle.read_batches(their_log)
    assert [record.timestamp for record in seen.records] == [NOW, NOW + 900]
    assert seen.fields["max_timestamp"] == theirs.max_timestamp == NOW - 100
    (own,) = walk(our_log)
    assert [record.timestamp for record in own.records()] == [NOW, NOW + 900]
    assert own.max_timestamp == ours.max_timestamp == NOW + 900


def test_only_tidelog_has_an_error_code_for_an_undefined_codec(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    batch = sealed(build_batch([NewRecord(timestamp=NOW)]), ATTRIBUTES_AT, 6, 2)
    theirs, _, ours, _ = both(kafka_oracle, quick_path, {}, batch)
    assert (theirs.code, ours.code) == (-1, 76)


def test_only_tidelog_refuses_an_append_without_a_whole_batch(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    batch = build_batch([NewRecord(timestamp=NOW)])[:-1]
    theirs, their_log, ours, _ = both(kafka_oracle, quick_path, {}, batch)
    assert (theirs.code, theirs.first_offset, their_log) == (None, -1, b"")
    assert ours.code == 87, "as Kafka answers on the wire, before its log is asked"
