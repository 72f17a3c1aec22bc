"""Records one by one, without Arrow: exactly those of a range of time."""

import itertools
from pathlib import Path

import pytest
from tests.worlds.directories.topics import append, make

from tidelog.directory import Directory
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

NAME = TopicPartition("t", 0)
TIMES = (10, 20, 30, 25, 40)


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
                there = dict(reads.there({NAME: wanted}, ScanStats()))
                assert [record.offset for record, _ in there[NAME]] == expected, (start, end)
                found = reads.read(NAME, wanted, ScanStats())
                assert [record.offset for record, _ in found] == expected, (start, end)
