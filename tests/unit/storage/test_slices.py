"""The byte ranges that contain given offsets, and aborted transactions in these ranges."""

import pytest
from tests.worlds.directories.logs import (
    SMALL,
    batch,
    fill,
    new_log,
    new_records,
    offsets,
    put,
    read,
    reader_of,
    write,
)
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import CorruptBatch
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_end_marker
from tidelog.record.legacy import build_legacy_message
from tidelog.storage.log.log import Log
from tidelog.storage.log.producer_loading import rebuild_txn_index
from tidelog.storage.segment.active_segment import TailSegment
from tidelog.storage.segment.slices import (
    AbortedFilter,
    LogSlice,
    records_of,
    slice_segment,
    slices,
)
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import Codec


def varied() -> Log:
    """Write batches of one to four records into several segments; each batch has an index entry."""
    _, _, log = new_log(SMALL)
    for number in range(40):
        log.append(new_records([number] * (1 + number % 4)), batch_bytes=1 << 20)
    assert len(log.segments) > 4
    return log


def test_every_range_gives_exactly_its_records_from_few_bytes() -> None:
    log = varied()
    end = log.log_end_offset
    for start in range(0, end, 3):
        for stop in range(start, end + 1, 5):
            parts = list(slices(log.segments, start, stop))
            found = [o for part in parts for o in slice_offsets(part)]
            assert found == list(range(start, stop))
            for part in parts:
                batches = [b for _, b in part.batches()]
                wanted = sum(b.size_bytes for b in batches)
                # The range may have one batch too many at each end.
                assert part.size_bytes <= wanted + 2 * 200


def slice_offsets(part: LogSlice) -> list[int]:
    return [
        record.offset
        for _, found in part.batches()
        for record in found.records()
        if part.start_offset <= record.offset < part.end_offset
    ]


def test_slices_begin_and_end_between_batches() -> None:
    log = varied()
    for segment in log.segments:
        part = slice_segment(segment, segment.base_offset + 3, segment.end_offset - 2)
        if part is None:
            continue
        places = {0, segment.size_bytes}
        position = 0
        for found in segment.walk_file(0, segment.size_bytes):
            position = found[0]
            places.add(position)
        assert {part.start_position, part.end_position} <= places


def test_a_segment_without_the_range_gives_none() -> None:
    log = varied()
    first, second = log.segments[:2]
    assert slice_segment(first, first.end_offset, first.end_offset + 5) is None
    assert slice_segment(second, 0, second.base_offset) is None
    assert list(slices([], 0, 5)) == []


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_legacy_messages_and_wrappers(magic: int, codec: Codec) -> None:
    """A range that begins or ends inside a wrapper gives only the records of the range."""
    _, _, log = new_log(SMALL)
    for number in range(12):
        data = build_legacy_set(
            new_records([-1 if magic == 0 else number] * 3),
            magic=magic,
            codec=codec,
            base_offset=number * 3,
        )
        log.follower.append(data)
    put(log, 5)
    assert len(log.segments) >= 2
    for start in range(37):
        for stop in (start + 1, start + 4, 37):
            assert offsets(log.records(start, stop)) == list(range(start, min(stop, 37)))


def test_an_unreadable_wrapper_is_an_error_only_for_ranges_that_include_it() -> None:
    env, directory, log = new_log()
    put(log, 1)
    directory.close()
    name = "00000000000000000000.log"
    bad = build_legacy_message(None, b"junk", magic=1, offset=1, timestamp=5, attributes=1)
    write(env, name, read(env, name) + bytes(bad))
    reader = reader_of(env)
    assert offsets(reader.records(0, 1)) == [0]
    with pytest.raises(CorruptBatch, match=name):
        list(reader.records(1))


class TestAbortedFilter:
    def view(self, offset: int, producer_id: int, *, transactional: bool = True) -> RecordBatch:
        data = batch(
            [1],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        return RecordBatch(data)

    def test_drops_a_producers_batches_from_begin_to_marker(self) -> None:
        aborted = AbortedFilter([AbortedTxn(5, 3, 9, 10), AbortedTxn(5, 20, 25, 26)])
        dropped = [n for n in range(30) if aborted.drops(self.view(n, 5))]
        assert dropped == [*range(3, 10), *range(20, 26)]

    def test_other_transactions_and_other_records_are_kept(self) -> None:
        aborted = AbortedFilter([AbortedTxn(5, 3, 9, 10)])
        assert not aborted.drops(self.view(4, 6))
        assert not aborted.drops(self.view(4, 5, transactional=False))
        marker = build_end_marker(
            commit=False,
            producer_id=5,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=9,
        )
        assert not aborted.drops(RecordBatch(marker))
        assert aborted
        assert not AbortedFilter([])


def test_records_of_a_range_in_the_middle_of_a_batch() -> None:
    _, _, log = new_log()
    put(log, 1, 2, 3, 4)
    fill(log, 1)
    assert offsets(log.records(1, 3)) == [1, 2]


@pytest.mark.parametrize("bit", [0x10, 0x20], ids=["transactional", "control"])
def test_a_flipped_bit_hides_no_records(bit: int) -> None:
    """A flag that hides a batch from readers is trusted only if the batch's checksum is correct."""
    env, directory, log = new_log()
    for _ in range(3):
        put(log, 1, 2)
    directory.close()
    name = f"{0:020d}.log"
    data = bytearray(read(env, name))
    data[len(data) // 3 + 22] ^= bit
    write(env, name, bytes(data))
    part = next(iter(reader_of(env).slices()))
    every_producer = AbortedFilter([AbortedTxn(-1, 0, 5, 6)])
    with pytest.raises(CorruptBatch, match=name):
        list(records_of(part, every_producer))
    assert isinstance(part.segment, TailSegment)
    with pytest.raises(CorruptBatch, match=name):
        rebuild_txn_index(part.segment.context, part.segment, [])
