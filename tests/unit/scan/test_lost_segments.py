"""Each reader reports a segment missing in the middle of a log as a loss, not as a gap."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worlds.records.legacy_sets import build_legacy_set

import tidelog
from tidelog import scan
from tidelog.amounts import offsets_text
from tidelog.env import os_env
from tidelog.errors import LostOffsets, OffsetsGone
from tidelog.record.batch_walk import walk
from tidelog.record.legacy import build_legacy_message
from tidelog.scan.latency import latency, lateness
from tidelog.storage.checks.directory_check import DirectoryCheck
from tidelog.storage.checks.findings import Finding, Severity
from tidelog.storage.checks.repair import repair
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.types import Codec, NewRecord, TopicPartition

TOPIC = "t"
DELETE = {"internal.segment.bytes": "2000"}
COMPACT = DELETE | {"cleanup.policy": "compact"}


def make(root: Path, config: dict[str, str]) -> list[int]:
    """Write 60 records into several segments; return the segments' base offsets."""
    with tidelog.open(str(root), writable=True) as log:
        log.create_topic(TOPIC, partitions=1, config=config)
        for number in range(60):
            log.append(TOPIC, [NewRecord(key=b"k%d" % number, value=b"v" * 150, timestamp=number)])
    return sorted(int(path.stem) for path in root.glob(f"{TOPIC}-0/*.log"))


def lose(root: Path, base: int) -> None:
    """Delete all files of a segment."""
    for path in root.glob(f"{TOPIC}-0/{base:020d}.*"):
        path.unlink()


def all_records(root: str) -> int:
    with tidelog.open(root) as log:
        return len(list(log.records(TOPIC)))


def all_rows(root: str) -> int:
    return scan.to_table(scan.plan(root, TOPIC), ["offset"]).num_rows


def all_counted(root: str) -> int:
    return scan.count(root, TOPIC).records


def all_keys(root: str) -> int:
    with tidelog.open(root) as log:
        return sum(part.num_rows for part in log.table(TOPIC, inexact="mark").to_arrow())


READERS = [all_records, all_rows, all_counted, all_keys]


@pytest.mark.parametrize("read", READERS)
def test_readers_name_the_lost_offsets(tmp_path: Path, read: Callable[[str], int]) -> None:
    bases = make(tmp_path, DELETE)
    assert len(bases) > 3
    assert read(str(tmp_path)) == 60
    lose(tmp_path, bases[2])
    with pytest.raises(
        OffsetsGone, match=f"offsets {bases[2]} to {bases[3] - 1}.*segment"
    ) as raised:
        read(str(tmp_path))
    (lost,) = raised.value.lost
    assert (lost.start, lost.end) == (bases[2], bases[3])


def test_latencies_are_those_of_the_remaining_records(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    late = lateness(str(tmp_path), TOPIC)[TOPIC]
    assert late.records == 60 - (bases[3] - bases[2])
    measured = latency(str(tmp_path), TOPIC)[TOPIC]
    assert measured.total.count == late.records
    for (lost,) in (late.stats.lost, measured.stats.lost):
        assert (lost.start, lost.end) == (bases[2], bases[3])


@pytest.mark.parametrize("has_zones", [True, False])
def test_a_range_of_time_may_have_had_the_lost_records(tmp_path: Path, has_zones: bool) -> None:
    """Lost records may be in the time range, even if all records before them are too old for it."""
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    if not has_zones:
        for path in tmp_path.glob(f"{TOPIC}-0/*.zones"):
            path.unlink()
    with tidelog.open(str(tmp_path)) as log:
        wanted = log.scan(TOPIC, start=bases[-1])
        with pytest.raises(OffsetsGone, match=f"offsets {bases[2]} to {bases[3] - 1}"):
            wanted.counts()
        with pytest.raises(OffsetsGone, match=f"offsets {bases[2]} to {bases[3] - 1}"):
            wanted.to_arrow().read_all()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("read", READERS)
def test_offsets_after_old_formats_are_lost_too(
    tmp_path: Path, read: Callable[[str], int], magic: int, codec: Codec
) -> None:
    with tidelog.open(str(tmp_path), writable=True) as log:
        log.create_topic(TOPIC, config=DELETE)
        for number in range(20):
            records = [NewRecord(key=b"k%d" % key, value=b"v", timestamp=number) for key in (0, 1)]
            old = build_legacy_set(records, magic=magic, codec=codec)
            log.log(TOPIC, 0).append_batches(old, AppendTerms(takes_legacy=True))
            if number in (8, 12):
                log.log(TOPIC, 0).roll()
    assert read(str(tmp_path)) == (40 if read is not all_keys else 2)
    lose(tmp_path, 18)
    with pytest.raises(OffsetsGone, match="offsets 18 to 25"):
        read(str(tmp_path))
    with tidelog.open(str(tmp_path)) as log, pytest.raises(OffsetsGone, match="offsets 18 to 25"):
        log.offsets_at(TOPIC, 10)


@pytest.mark.parametrize("attributes", [1, 7])
def test_a_message_that_cannot_be_decompressed_hides_no_loss_from_a_search(
    tmp_path: Path, attributes: int
) -> None:
    """The message's header has no count, so the other messages show whether there are gaps."""
    with tidelog.open(str(tmp_path), writable=True) as log:
        log.create_topic(TOPIC, config=DELETE)
        for number in range(20):
            records = [NewRecord(key=b"k%d" % key, value=b"v", timestamp=number) for key in (0, 1)]
            old = build_legacy_set(records, magic=1, codec=Codec.GZIP)
            log.log(TOPIC, 0).append_batches(old, AppendTerms(takes_legacy=True))
            if number in (8, 12):
                log.log(TOPIC, 0).roll()
    path = tmp_path / f"{TOPIC}-0" / f"{0:020d}.log"
    batches = [bytes(batch.view) for batch in walk(path.read_bytes())]
    bad = build_legacy_message(None, b"junk", magic=1, offset=7, timestamp=3, attributes=attributes)
    batches[3] = bytes(bad)
    path.write_bytes(b"".join(batches))
    with tidelog.open(str(tmp_path)) as log:
        assert log.offsets_at(TOPIC, 10)
    lose(tmp_path, 18)
    with tidelog.open(str(tmp_path)) as log, pytest.raises(OffsetsGone, match="offsets 18 to 25"):
        log.offsets_at(TOPIC, 10)


@pytest.mark.parametrize("read", READERS)
def test_offsets_after_a_segment_with_gaps_may_have_been_compacted(
    tmp_path: Path, read: Callable[[str], int]
) -> None:
    bases = make(tmp_path, DELETE)
    log = tmp_path / f"{TOPIC}-0" / f"{bases[1]:020d}.log"
    first, _, *others = [bytes(batch.view) for batch in walk(log.read_bytes())]
    lose(tmp_path, bases[1])
    log.write_bytes(b"".join([first, *others]))
    lose(tmp_path, bases[2])
    assert read(str(tmp_path)) == 60 - 1 - (bases[3] - bases[2])


def test_a_range_fails_only_if_it_includes_lost_offsets(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    first, end = bases[2], bases[3]
    with tidelog.open(str(tmp_path)) as log:
        reader = log.partition(TOPIC, 0)
        assert len(list(reader.records(0, first))) == first
        assert len(list(reader.records(end, 60))) == 60 - end
        for start, stop in ((first, end), (first + 1, end), (first - 1, first + 1)):
            with pytest.raises(OffsetsGone, match=offsets_text(max(start, first), stop - 1)):
                list(reader.records(start, stop))
    for start, stop in ((0, first), (end, 60)):
        wanted = scan.RequestedRange(start_offset=start, end_offset=stop)
        assert scan.count(str(tmp_path), TOPIC, requested_range=wanted).records == stop - start


def test_accepted_losses_are_in_the_statistics(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    options, stats = scan.ReadOptions(fail_on_data_loss=False), scan.ScanStats()
    table = scan.to_table(scan.plan(str(tmp_path), TOPIC), ["offset"], options=options, stats=stats)
    assert table.num_rows == 60 - (bases[3] - bases[2])
    assert [(lost.start, lost.end) for lost in stats.lost] == [(bases[2], bases[3])]
    assert all(isinstance(lost, LostOffsets) for lost in stats.lost)


@pytest.mark.parametrize("read", READERS)
def test_gaps_of_compacted_topics_are_none(tmp_path: Path, read: Callable[[str], int]) -> None:
    bases = make(tmp_path, COMPACT)
    lose(tmp_path, bases[2])
    assert read(str(tmp_path)) == 60 - (bases[3] - bases[2])


@pytest.mark.parametrize("read", READERS)
def test_a_topic_that_was_compacted_once_may_have_gaps(
    tmp_path: Path, read: Callable[[str], int]
) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {bases[2]}\n")
    assert read(str(tmp_path)) == 60 - (bases[3] - bases[2])


def check(root: Path) -> list[Finding]:
    whole = DirectoryCheck(os_env().files, str(root), clock=os_env().clock)
    return [*whole.load(), *whole.findings()]


def test_doctor_names_the_offsets(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    assert not [one for one in check(tmp_path) if one.counts]
    lose(tmp_path, bases[2])
    found = [one for one in check(tmp_path) if "missing between" in one.damage]
    (finding,) = found
    assert f"offsets {bases[2]} to {bases[3] - 1}" in finding.damage
    assert finding.offset == bases[2]


def empty(root: Path, base: int) -> None:
    """Truncate a segment's log to 0 bytes."""
    (root / f"{TOPIC}-0" / f"{base:020d}.log").write_bytes(b"")


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("read", READERS)
def test_a_finished_segment_without_a_byte_is_lost(
    tmp_path: Path, read: Callable[[str], int], number: int
) -> None:
    bases = make(tmp_path, DELETE)
    empty(tmp_path, bases[number])
    with pytest.raises(OffsetsGone, match=f"offsets {bases[number]} to {bases[number + 1] - 1}"):
        read(str(tmp_path))


def test_a_range_fails_only_if_it_includes_offsets_of_an_emptied_segment(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    empty(tmp_path, bases[2])
    first, end = bases[2], bases[3]
    with tidelog.open(str(tmp_path)) as log:
        reader = log.partition(TOPIC, 0)
        assert len(list(reader.records(0, first))) == first
        assert len(list(reader.records(end, 60))) == 60 - end
        for start, stop in ((first, end), (first + 1, end - 1), (first - 1, first + 1)):
            with pytest.raises(OffsetsGone, match=offsets_text(max(start, first), stop - 1)):
                list(reader.records(start, stop))
    options, stats = scan.ReadOptions(fail_on_data_loss=False), scan.ScanStats()
    table = scan.to_table(scan.plan(str(tmp_path), TOPIC), ["offset"], options=options, stats=stats)
    assert table.num_rows == 60 - (end - first)
    assert [(lost.start, lost.end) for lost in stats.lost] == [(first, end)]


@pytest.mark.parametrize("read", READERS)
def test_an_empty_segment_of_a_compacted_topic_is_none(
    tmp_path: Path, read: Callable[[str], int]
) -> None:
    bases = make(tmp_path, COMPACT)
    empty(tmp_path, bases[2])
    assert read(str(tmp_path)) == 60 - (bases[3] - bases[2])


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("take", [lose, empty])
def test_a_search_by_time_does_not_step_over_lost_offsets(
    tmp_path: Path, take: Callable[[Path, int], None], number: int
) -> None:
    """Searches on both clocks fail at lost offsets; times before them are still found."""
    bases = make(tmp_path, DELETE)
    if take is lose and number == 0:
        number = 1  # without the first segment, the log would just begin later
    take(tmp_path, bases[number])
    first, end = bases[number], bases[number + 1]
    name = TopicPartition(TOPIC, 0)
    with tidelog.open(str(tmp_path)) as log:
        for before in range(first):
            found = log.offsets_at(TOPIC, before)[name]
            assert found is not None
            assert found.offset == before
        if first:
            found = log.offsets_at(TOPIC, 0, clock="append")[name]
            assert found is not None
            assert found.offset == 0
        for behind in (first, end, 59, 60):
            with pytest.raises(OffsetsGone, match=f"offsets {first} to {end - 1}"):
                log.offsets_at(TOPIC, behind)
        with pytest.raises(OffsetsGone, match=f"offsets {first} to {end - 1}"):
            log.offsets_at(TOPIC, 2**50, clock="append")
        reader = log.partition(TOPIC, 0)
        with pytest.raises(OffsetsGone, match=f"offsets {first} to {end - 1}"):
            reader.max_timestamp()


def test_a_search_by_time_steps_over_gaps_of_a_compacted_topic(tmp_path: Path) -> None:
    bases = make(tmp_path, COMPACT)
    lose(tmp_path, bases[2])
    with tidelog.open(str(tmp_path)) as log:
        found = log.offsets_at(TOPIC, bases[2])[TopicPartition(TOPIC, 0)]
    assert found is not None
    assert found.offset == bases[3]


def test_a_plan_from_a_time_after_lost_offsets_reports_them(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    wanted = scan.RequestedRange(start_ms=bases[2])
    with pytest.raises(OffsetsGone, match=f"offsets {bases[2]} to {bases[3] - 1}"):
        scan.plan(str(tmp_path), TOPIC, requested_range=wanted, times=scan.TimeMode.POSITIONS)
    planned = scan.plan(
        str(tmp_path),
        TOPIC,
        requested_range=wanted,
        times=scan.TimeMode.POSITIONS,
        fail_on_data_loss=False,
    )
    assert [(lost.start, lost.end) for lost in planned.lost] == [(bases[2], bases[3])]
    assert scan.to_table(planned, ["offset"])["offset"].to_pylist() == list(range(bases[3], 60))


def cut(root: Path, base: int) -> None:
    """Remove the last batch of a segment."""
    path = root / f"{TOPIC}-0" / f"{base:020d}.log"
    data = path.read_bytes()
    *_, last = walk(memoryview(data))
    path.write_bytes(data[: -last.size_bytes])


def mend(root: Path) -> None:
    """Repair as `tidelog doctor --repair` does."""
    whole = DirectoryCheck(os_env().files, str(root), clock=os_env().clock)
    repair(os_env(), whole, [*whole.load(), *whole.findings()])


def reopen(root: Path) -> None:
    """Open the directory for writing, and close it again."""
    with tidelog.open(str(root), writable=True):
        pass


def map_anew(root: Path) -> None:
    """Build missing zone maps."""
    with tidelog.open(str(root)) as log:
        segments = log.partition(TOPIC, 0).segments
        zone_map_files.build_missing(each for each in segments if isinstance(each, ClosedSegment))


def ensure_loss_reported(root: Path, first: int, end: int) -> None:
    """Check that all readers and doctor name the lost offsets, also with zone maps in a cache."""
    gone = offsets_text(first, end - 1)
    for read in READERS:
        with pytest.raises(OffsetsGone, match=gone):
            read(str(root))
    for _ in ("building", "using"):
        for wanted in (
            scan.RequestedRange(),
            scan.RequestedRange(start_ms=0),
            scan.RequestedRange(start_offset=end - 1),
        ):
            with pytest.raises(OffsetsGone, match=f"(to|offset) {end - 1}"):
                scan.count(str(root), TOPIC, requested_range=wanted, zone_cache=f"{root}.cache")
    planned = scan.plan(str(root), TOPIC)
    options, stats = scan.ReadOptions(fail_on_data_loss=False), scan.ScanStats()
    assert scan.to_table(planned, ["offset"], options=options, stats=stats).num_rows < 60
    assert [(lost.start, lost.end) for lost in stats.lost] == [(first, end)]
    with tidelog.open(str(root)) as log:
        with pytest.raises(OffsetsGone, match=gone):
            log.offsets_at(TOPIC, end)
        lost = log.partition(TOPIC, 0).lost_offsets()
    assert [(one.start, one.end) for one in lost] == [(first, end)]
    errors = [one for one in check(root) if one.severity is Severity.ERROR]
    assert first in [one.offset for one in errors]


DISPOSABLE = [(), (".zones",), (".zones", ".index", ".timeindex")]


@pytest.mark.parametrize("suffixes", DISPOSABLE, ids=str)
@pytest.mark.parametrize("take", [lose, empty, cut])
def test_no_file_that_is_rebuilt_hides_a_loss(
    tmp_path: Path, take: Callable[[Path, int], None], suffixes: tuple[str, ...]
) -> None:
    root = tmp_path / "log"
    bases = make(root, DELETE)
    take(root, bases[2])
    first, end = (bases[3] - 1 if take is cut else bases[2]), bases[3]
    for rebuild in (mend, mend, reopen, map_anew, mend):
        for path in root.glob(f"{TOPIC}-0/*"):
            if path.suffix in suffixes:
                path.unlink()
        rebuild(root)
        ensure_loss_reported(root, first, end)


def test_offsets_that_are_lost_below_the_log_start_are_no_concern(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.log(TOPIC, 0).delete_records(bases[3])
    assert searches(tmp_path) == [bases[3], 59, bases[3], 59]
    mend(tmp_path)
    assert searches(tmp_path) == [bases[3], 59, bases[3], 59]
    assert [read(str(tmp_path)) for read in READERS] == [60 - bases[3]] * len(READERS)
    assert not [one for one in check(tmp_path) if one.counts]


def searches(root: Path) -> list[int]:
    """Return the offsets that four searches find; searches without a result are left out.

    They search timestamp 0, timestamp 59, append time 0, and the largest timestamp.
    """
    name = TopicPartition(TOPIC, 0)
    with tidelog.open(str(root)) as log:
        latest = log.partition(TOPIC, 0).max_timestamp()
        found = [
            log.offsets_at(TOPIC, 0)[name],
            log.offsets_at(TOPIC, 59)[name],
            log.offsets_at(TOPIC, 0, clock="append")[name],
            latest,
        ]
    return [one.offset for one in found if one is not None]


def test_searches_fail_if_the_last_lost_offset_is_the_log_start(tmp_path: Path) -> None:
    bases = make(tmp_path, DELETE)
    lose(tmp_path, bases[2])
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        log_dir.log(TOPIC, 0).delete_records(bases[3] - 1)
    with pytest.raises(OffsetsGone, match=f"offsets {bases[2]} to {bases[3] - 1}"):
        searches(tmp_path)


@pytest.mark.parametrize("read", READERS)
def test_a_repair_makes_no_gap_of_a_compacted_topic_a_loss(
    tmp_path: Path, read: Callable[[str], int]
) -> None:
    bases = make(tmp_path, COMPACT)
    lose(tmp_path, bases[2])
    mend(tmp_path)
    assert read(str(tmp_path)) == 60 - (bases[3] - bases[2])
    assert not [one for one in check(tmp_path) if one.counts]
