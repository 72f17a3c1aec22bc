"""Records that are read one by one without Arrow are exactly the records of a time range."""

import itertools
from pathlib import Path

import pytest
from tests.worlds.directories.topics import append, make

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock
from tidelog.errors import DamagedLog, OffsetsGone
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

NAME = TopicPartition("t", 0)
TIMES = (10, 20, 30, 25, 40)
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_range_of_create_times_has_its_records_wherever_index_entries_are(
    tmp_path: Path, is_indexed: bool
) -> None:
    interval = "0" if is_indexed else "4096"
    path = make(str(tmp_path / "a"), "t", index_interval_bytes=interval)
    for time in TIMES:
        append(path, "t", 0, [NewRecord(value=b"v", timestamp=time)])
    with Directory.open(path) as directory:
        reads_of = directory.source.plain_reads
        with reads_of([NAME], ClockName.RECORD, IsolationLevel.READ_UNCOMMITTED) as reads:
            for start, end in itertools.combinations(range(9, 43), 2):
                wanted = RequestedRange(start_ms=start, end_ms=end)
                expected = [n for n, time in enumerate(TIMES) if start <= time < end]
                there = dict(reads.existing_records({NAME: wanted}, ScanStats()))
                assert [record.offset for record, _ in there[NAME]] == expected, (start, end)
                found = reads.read(NAME, wanted, ScanStats())
                assert [record.offset for record, _ in found] == expected, (start, end)


def test_a_range_of_rounded_append_times_has_every_record_that_may_be_in_it(tmp_path: Path) -> None:
    """A stored time is at most 999 ms before the append."""
    clock = ManualClock(NOW_MS)
    with Directory.open(str(tmp_path / "a"), writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic("t", config={"tidelog.append.time.granularity.ms": "1000"})
        for _ in range(2):
            directory.append("t", [NewRecord(value=b"v")])
            clock.advance(400)
        reads_of = directory.source.plain_reads
        with reads_of([NAME], ClockName.APPEND, IsolationLevel.READ_UNCOMMITTED) as reads:
            for start, expected in ((0, [0, 1]), (300, [0, 1]), (999, [0, 1]), (1_000, [])):
                wanted = RequestedRange(start_ms=NOW_MS + start, end_ms=NOW_MS * 2)
                found = reads.read(NAME, wanted, ScanStats())
                assert [record.offset for record, _ in found] == expected, start


@pytest.mark.parametrize("clock", ClockName)
def test_records_without_a_timestamp_are_counted_when_timestamps_are_selected(
    tmp_path: Path, clock: ClockName
) -> None:
    path = make(str(tmp_path / "a"), "t")
    for time in (10, -1, 20, 30, -1):
        append(path, "t", 0, [NewRecord(value=b"v", timestamp=time)])
    with Directory.open(path) as directory:
        reads_of = directory.source.plain_reads
        with reads_of([NAME], clock, IsolationLevel.READ_UNCOMMITTED) as reads:
            stats = ScanStats()
            found = reads.read(NAME, RequestedRange(timestamps=(20, 30)), stats)
            assert [record.offset for record, _ in found] == [2]
            assert stats.without_timestamp == 2


@pytest.fixture
def three_segments(tmp_path: Path) -> str:
    """Create three segments of two records each, appended 100 seconds apart."""
    clock = ManualClock(NOW_MS)
    with Directory.open(str(tmp_path / "a"), writable=True, env=Env(clock=clock)) as directory:
        directory.create_topic("t")
        for number in range(3):
            if number:
                directory.log("t", 0).roll()
            for time in TIMES[:2]:
                directory.append("t", [NewRecord(value=b"v", timestamp=NOW_MS + time)])
            clock.advance(100_000)
    return str(tmp_path / "a")


@pytest.mark.parametrize("base", [0, 2, 4])
@pytest.mark.parametrize("is_empty", [True, False])
def test_lost_offsets_are_an_error_after_the_records_before_them(
    three_segments: str, base: int, is_empty: bool
) -> None:
    log = Path(three_segments, "t-0", f"{base:020d}.log")
    whole = log.read_bytes()
    log.write_bytes(b"" if is_empty else whole[: len(whole) // 2])
    first_lost = base if is_empty else base + 1

    def offsets(clock: ClockName, wanted: RequestedRange) -> tuple[list[int], bool]:
        kept: list[int] = []
        reads_of = directory.source.plain_reads
        with reads_of([NAME], clock, IsolationLevel.READ_UNCOMMITTED) as reads:
            try:
                for _, rows in reads.existing_records({NAME: wanted}, ScanStats()):
                    kept.extend(record.offset for record, _ in rows)
                for record, _ in reads.read(NAME, wanted, ScanStats()):
                    kept.remove(record.offset)
            except (OffsetsGone, DamagedLog):
                return kept, True
        assert not kept, "both reads have the same records"
        return kept, False

    with Directory.open(three_segments) as directory:
        for start, end in itertools.combinations(range(7), 2):
            wanted = RequestedRange(start_offset=start, end_offset=end)
            is_lost = start < base + 2 and end > first_lost
            expected = [n for n in range(start, end) if n < first_lost] if is_lost else []
            assert offsets(ClockName.RECORD, wanted) == (expected, is_lost), wanted
        every_time = RequestedRange(start_ms=0, end_ms=NOW_MS * 2)
        for clock in ClockName:
            assert offsets(clock, every_time) == (list(range(first_lost)), True)
        if base < 4:
            # The append times of the lost records are between those of the records before and after
            # the loss.
            appended_ms = NOW_MS + base // 2 * 100_000
            later = RequestedRange(start_ms=appended_ms + 100_001, end_ms=NOW_MS * 2)
            assert offsets(ClockName.APPEND, later) == ([], False)
            earlier = RequestedRange(start_ms=0, end_ms=appended_ms)
            assert offsets(ClockName.APPEND, earlier)[1] is is_empty
