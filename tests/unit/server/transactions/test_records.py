"""Records of the coordinator's log: round trips, and refused records."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptMessage, UnsupportedVersion
from tidelog.protocol.messages.state_records import TRANSACTION_LOG_VALUE, TransactionLogValue
from tidelog.record.columns.decode import SECRET_BYTES
from tidelog.server.coordinator.log_kernels import KernelPieces
from tidelog.server.transactions.metadata import TransactionMetadata, TransactionState
from tidelog.server.transactions.state_topic import (
    TransactionReplay,
    by_topic,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord, TopicPartition

PLACES = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 5))
INT64 = st.integers(-1, 2**63 - 1)


@st.composite
def metadata(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(list(TransactionState)[:6]))
    places = st.frozensets(PLACES) if state is not TransactionState.EMPTY else st.just(frozenset())
    return TransactionMetadata(
        transactional_id=draw(st.text(max_size=20)),
        producer_id=draw(INT64),
        previous_producer_id=draw(INT64),
        next_producer_id=draw(INT64),
        producer_epoch=draw(st.integers(-1, 2**15 - 1)),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        state=state,
        partitions=draw(places),
        start_ms=draw(INT64),
        update_ms=draw(INT64),
        client_version=draw(st.integers(0, 2)),
    )


@given(metadata())
def test_a_written_record_is_read_back(made: TransactionMetadata) -> None:
    assert decode_key(encode_key(made.transactional_id)) == made.transactional_id
    assert decode_value(made.transactional_id, encode_value(made)) == made


def test_the_oldest_version_is_read() -> None:
    value = TransactionLogValue(
        producer_id=3,
        producer_epoch=1,
        transaction_timeout_ms=1000,
        transaction_status=0,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=5,
        transaction_start_timestamp_ms=-1,
    )
    found = decode_value("x", TRANSACTION_LOG_VALUE.write(0, value))
    assert found == TransactionMetadata(
        transactional_id="x", producer_id=3, producer_epoch=1, timeout_ms=1000, update_ms=5
    )


def test_an_invalid_record_is_refused() -> None:
    made = TransactionMetadata(transactional_id="x", producer_id=3, timeout_ms=1000)
    value = encode_value(made)
    with pytest.raises(UnsupportedVersion):
        decode_value("x", b"\0\2" + value[2:])
    for cut in range(2, len(value)):
        with pytest.raises(CorruptMessage):
            decode_value("x", value[:cut])
    for status in (-1, 6, 7, 99):
        wrong = TRANSACTION_LOG_VALUE.read(value)[1]
        wrong.transaction_status = status
        with pytest.raises(CorruptMessage, match=f"in unknown state {status}"):
            decode_value("x", TRANSACTION_LOG_VALUE.write(1, wrong))
    with pytest.raises(CorruptMessage, match="without a key"):
        decode_key(None)
    assert decode_key(b"\0\1whatever") is None


def test_partitions_are_grouped_by_topic_in_order() -> None:
    places = [TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("b", 0)]
    assert list(by_topic(places).items()) == [("a", [1]), ("b", [0, 2])]


@pytest.mark.parametrize("by_kernels", [False, True])
def test_the_last_record_of_a_key_applies(by_kernels: bool, tmp_path: Path) -> None:
    def record(name: str, producer_id: int | None) -> NewRecord:
        made = TransactionMetadata(
            transactional_id=name, producer_id=producer_id or 0, timeout_ms=1
        )
        value = None if producer_id is None else encode_value(made)
        return NewRecord(key=encode_key(name), value=value, timestamp=0)

    replay = TransactionReplay()
    writings = (
        [record("kept", 1), record("gone", 2), record("back", 3)],
        [record("kept", 4), record("gone", None), record("back", None)],
        [record("back", 5), NewRecord(key=b"\0\7of another kind", value=b"?", timestamp=0)],
    )
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("t")
        for records in writings:
            log_dir.log("t", 0).append(records)
        log_dir.flush()
        slices = list(log_dir.reader("t", 0).slices())
        kernels = KernelPieces(bytes(SECRET_BYTES), piece_bytes=200) if by_kernels else None
        list(replay.take(slices, lambda: kernels))
    assert {name: found.producer_id for name, found in replay.result().items()} == {
        "kept": 4,
        "back": 5,
    }
