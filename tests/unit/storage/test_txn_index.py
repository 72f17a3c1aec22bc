"""The index of aborted transactions."""

import pytest

from tidelog.errors import CorruptIndex, InvalidRequest
from tidelog.storage.segment.txn_index import AbortedTxn, TxnIndex

FIRST = AbortedTxn(7, 100, 120, 115)
SECOND = AbortedTxn(8, 115, 130, 131)
THIRD = AbortedTxn(7, 140, 150, 151)


def index_of_three() -> TxnIndex:
    return TxnIndex(100, [FIRST, SECOND, THIRD])


def test_an_entry_is_a_version_and_four_numbers() -> None:
    assert TxnIndex(100).append(FIRST) == bytes.fromhex(
        "0000 0000000000000007 0000000000000064 0000000000000078 0000000000000073"
    )


def test_entries_are_read_back() -> None:
    index = index_of_three()
    again = TxnIndex.decode(bytes(index.encoded), 100)
    assert again.entries == [FIRST, SECOND, THIRD]
    assert index.size_bytes == len(index.encoded) == 102


def test_markers_must_follow_each_other() -> None:
    index = index_of_three()
    with pytest.raises(InvalidRequest):
        index.append(AbortedTxn(9, 145, 150, 151))
    assert index.entries == [FIRST, SECOND, THIRD]


@pytest.mark.parametrize(
    ("start", "end", "expected", "is_complete"),
    [
        (100, 101, [FIRST], True),
        (100, 115, [FIRST], True),
        (100, 116, [FIRST, SECOND], True),
        (120, 131, [FIRST, SECOND], True),
        (121, 131, [SECOND], True),
        (131, 140, [], True),
        (131, 151, [THIRD], True),
        (131, 152, [THIRD], False),
        (151, 500, [], False),
        (0, 500, [FIRST, SECOND, THIRD], False),
    ],
)
def test_collect_returns_overlapping_entries_and_whether_these_are_all(
    start: int, end: int, expected: list[AbortedTxn], is_complete: bool
) -> None:
    assert index_of_three().collect(start, end) == (expected, is_complete)


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (120, 0), (121, 1), (150, 2), (151, 3)])
def test_truncation_drops_markers_from_the_offset_on(offset: int, left: int) -> None:
    index = index_of_three()
    assert index.truncate_to(offset) == left * 34
    assert index.entries == [FIRST, SECOND, THIRD][:left]


def damaged() -> dict[str, bytes]:
    data = bytes(index_of_three().encoded)
    return {
        "cut": data[:-1],
        "longer": data + b"\0",
        "version": b"\0\1" + data[2:],
        "order": data[34:] + data[:34],
        "twice": data + data[-34:],
        "negative producer": data[:2] + b"\xff" * 8 + data[10:],
        "first above last": data[:10] + b"\x7f" + data[11:],
        "zeros": bytes(34),
    }


@pytest.mark.parametrize("damage", damaged())
def test_damage_is_an_error(damage: str) -> None:
    with pytest.raises(CorruptIndex):
        TxnIndex.decode(damaged()[damage], 100)


def test_a_transaction_that_ends_before_the_segment_is_an_error() -> None:
    with pytest.raises(CorruptIndex):
        TxnIndex.decode(bytes(index_of_three().encoded), 121)


def test_a_transaction_that_began_before_the_segment_is_fine() -> None:
    assert TxnIndex.decode(bytes(index_of_three().encoded), 110).entries[0] == FIRST
