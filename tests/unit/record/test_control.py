"""Control records and transaction markers."""

import pytest

from tidelog.errors import CorruptRecord
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch, build_empty_batch, build_end_marker
from tidelog.record.header import HEADER_SIZE
from tidelog.record.record import (
    CONTROL_KEY,
    END_MARKER_VALUE,
    ControlType,
    EndMarker,
    pack_end_marker,
    read_control_type,
    read_end_marker,
    unpack_end_marker,
)
from tidelog.types import NewRecord

TIME = 1_700_000_000_000


def test_a_commit_marker() -> None:
    batch = RecordBatch(
        build_end_marker(
            commit=True,
            producer_id=7,
            producer_epoch=1,
            coordinator_epoch=9,
            timestamp=TIME,
            base_offset=50,
            leader_epoch=2,
        )
    )
    (record,) = batch.records()
    assert (record.key, record.value) == (
        bytes.fromhex("00000001"),
        bytes.fromhex("000000000009"),
    )
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 1, -1)
    assert (batch.base_offset, batch.leader_epoch, batch.record_count) == (50, 2, 1)
    assert batch.control_type() is ControlType.COMMIT
    marker = read_end_marker(record)
    assert (marker.kind, marker.coordinator_epoch, marker.is_commit) == (
        ControlType.COMMIT,
        9,
        True,
    )


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
@pytest.mark.parametrize("epoch", [0, 9, 2**31 - 1, -1])
def test_a_plain_marker_equals_one_of_the_general_builder_and_reader(
    kind: ControlType, epoch: int
) -> None:
    key, value = CONTROL_KEY.pack(0, kind), END_MARKER_VALUE.pack(0, epoch)
    made = build_batch([NewRecord(key=key, value=value, timestamp=TIME)])
    body = bytes(made[HEADER_SIZE:])
    assert pack_end_marker(kind, epoch) == body
    marker = unpack_end_marker(body)
    (record,) = RecordBatch(made).records()
    assert marker == read_end_marker(record) == EndMarker(kind, epoch)


@pytest.mark.parametrize("at", range(17))
def test_any_other_body_than_a_plain_marker_is_not_unpacked(at: int) -> None:
    body = bytearray(pack_end_marker(ControlType.COMMIT, 9))
    body[at] ^= 0x40
    # Any number is valid as the coordinator's epoch.
    assert (unpack_end_marker(body) is None) is (at not in range(12, 16))
    assert unpack_end_marker(body + b"\0") is None


def test_an_abort_marker() -> None:
    batch = RecordBatch(
        build_end_marker(
            commit=False, producer_id=7, producer_epoch=1, coordinator_epoch=0, timestamp=TIME
        )
    )
    (record,) = batch.records()
    assert batch.control_type() is ControlType.ABORT
    assert not read_end_marker(record).is_commit


def test_an_emptied_control_batch_has_an_unknown_type() -> None:
    data = build_empty_batch(base_offset=0, last_offset=0, max_timestamp=0, control=True)
    assert RecordBatch(data).control_type() is ControlType.UNKNOWN


@pytest.mark.parametrize("number", range(7))
def test_the_types_of_kafka(number: int) -> None:
    assert read_control_type(bytes((0, 0, 0, number))) == number


def test_later_types_are_unknown_and_later_versions_are_read() -> None:
    assert read_control_type(bytes.fromhex("0000 0007")) is ControlType.UNKNOWN
    assert read_control_type(bytes.fromhex("0000 ffff")) is ControlType.UNKNOWN
    assert read_control_type(bytes.fromhex("0005 0001 ab")) is ControlType.COMMIT


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", bytes.fromhex("ffff0000")])
def test_other_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(CorruptRecord):
        read_control_type(key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("00000002", "000000000000"),
        ("00000001", None),
        ("00000001", "0000000000"),
        ("00000000", "ffff00000000"),
    ],
)
def test_other_markers_are_refused(key: str, value: str | None) -> None:
    new = NewRecord(key=bytes.fromhex(key), value=None if value is None else bytes.fromhex(value))
    (record,) = RecordBatch(build_batch([new], base_offset=4, control=True)).records()
    with pytest.raises(CorruptRecord) as caught:
        read_end_marker(record)
    assert caught.value.offset == 4


def test_a_later_marker_is_read_as_version_0() -> None:
    new = NewRecord(key=bytes.fromhex("00010000"), value=bytes.fromhex("0003 00000005 ff"))
    (record,) = RecordBatch(build_batch([new], control=True)).records()
    assert read_end_marker(record).coordinator_epoch == 5
