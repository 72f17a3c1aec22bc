"""Plans and reads of local files and the tier give one log's rows, with few requests."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.storage.tiers.tiered import NAME, Tiered, values
from tests.worlds.directories.logs import PATH, TOPIC, end, transact

from tidelog import scan
from tidelog.errors import CorruptFile, MissingFile
from tidelog.record.record import Record
from tidelog.scan import ReadOptions, RequestedRange
from tidelog.scan.latency import latency
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_retention import explain
from tidelog.storage.files import read_file, write_atomically
from tidelog.storage.tier.tier_files import record_path
from tidelog.storage.tier_manager.tier_compaction import compact_tier
from tidelog.types import ClockName, IsolationLevel

COMMITTED = IsolationLevel.READ_COMMITTED


def _pair() -> tuple[Tiered, Tiered]:
    plain, tiered = Tiered().start(), Tiered().start(**{"local.retention.bytes": "0"})
    for each in (plain, tiered):
        each.fill(80)
    tiered.move()
    return plain, tiered


def _rows(one: Tiered, wanted: RequestedRange, clock: ClockName) -> list[dict[str, object]]:
    plan = scan.plan(PATH, TOPIC, requested_range=wanted, clock=clock, env=one.env, split_bytes=900)
    columns = ["offset", "value", "timestamp", "appendTimestamp"]
    found: list[dict[str, object]] = scan.to_table(
        plan, columns, options=ReadOptions(env=one.env)
    ).to_pylist()
    return found


@pytest.mark.parametrize("clock", list(ClockName))
def test_every_range_reads_as_from_one_log(clock: ClockName) -> None:
    plain, tiered = _pair()
    first = plain.log.offset_for_time(0)
    assert first is not None
    start = first.timestamp
    for a, b in [(0, 5), (3, 41), (40, 80), (79, 90), (10, 10), (-5, 200)]:
        wanted = RequestedRange(start_ms=start + a * 1000, end_ms=start + b * 1000)
        assert _rows(tiered, wanted, clock) == _rows(plain, wanted, clock)
        count = scan.count(PATH, TOPIC, requested_range=wanted, clock=clock, env=tiered.env)
        expected = scan.count(PATH, TOPIC, requested_range=wanted, clock=clock, env=plain.env)
        assert count.records == expected.records
    for a, b in [(0, 80), (7, 9), (33, 66), (79, 80)]:
        wanted = RequestedRange(start_offset=a, end_offset=b)
        assert _rows(tiered, wanted, clock) == _rows(plain, wanted, clock)


@pytest.mark.parametrize("clock", list(ClockName))
def test_a_plan_over_many_segments_asks_the_store_only_about_its_edges(clock: ClockName) -> None:
    _, tiered = _pair()
    segments = len(tiered.log.segments)
    assert segments > 12
    first = tiered.log.offset_for_time(0)
    assert first is not None
    before = len(tiered.store.log)
    wanted = RequestedRange(start_ms=first.timestamp + 20_500, end_ms=first.timestamp + 60_500)
    env = tiered.env
    plan = scan.plan(PATH, TOPIC, requested_range=wanted, clock=clock, env=env)
    assert plan.scan_bytes > 0
    asked = tiered.store.log[before:]
    folders = {call.split("/")[2] for call in asked}
    assert len(folders) <= 2, asked
    before = len(tiered.store.log)
    assert scan.count(PATH, TOPIC, env=tiered.env).records == 80
    assert scan.plan(PATH, TOPIC, env=tiered.env).scan_bytes > 0
    assert tiered.store.log[before:] == []


def test_a_missing_object_is_named_with_the_next_step() -> None:
    _, tiered = _pair()
    key = next(key for key in sorted(tiered.store.objects) if key.endswith(".log"))
    del tiered.store.objects[key]
    with pytest.raises(FileNotFoundError, match="--verify"):
        list(tiered.reader().records())
    plan = scan.plan(PATH, TOPIC, env=tiered.env)
    with pytest.raises(MissingFile, match="--verify") as missing:
        scan.to_table(plan, options=ReadOptions(env=tiered.env))
    assert key in missing.value.path
    wanted = RequestedRange(start_offset=40, end_offset=60)
    assert len(_rows(tiered, wanted, ClockName.RECORD)) == 20, "what is elsewhere is read"


def test_a_reader_keeps_its_known_tier_if_the_record_is_unreadable() -> None:
    _, tiered = _pair()
    reader = LogDir.open(PATH, env=tiered.env).reader(TOPIC, 0)
    path = record_path(f"{PATH}/{TOPIC}-0")
    data = read_file(tiered.disk, path)
    write_atomically(tiered.disk, path, b"{}")
    with pytest.raises(CorruptFile, match="--restore"):
        reader.refresh()
    assert reader.tier is not None
    assert reader.tiered_segments()
    assert values(reader) == list(range(80))
    write_atomically(tiered.disk, path, data)
    reader.refresh()
    assert values(reader) == list(range(80))


def test_local_offsets_are_read_while_the_store_is_away() -> None:
    _, tiered = _pair()
    start = tiered.log.local_start_offset
    tiered.store.objects.clear()
    tiered.store.fail_at = tiered.store.calls + 1
    wanted = RequestedRange(start_offset=start)
    assert len(_rows(tiered, wanted, ClockName.RECORD)) == 80 - start
    tiered.fill(3)
    tiered.reopen(clean=False)
    tiered.fill(3)
    assert len(_rows(tiered, wanted, ClockName.RECORD)) == 86 - start
    assert tiered.store.fail_at == tiered.store.calls + 1, "nothing was asked"


def test_kernels_search_both_tiers() -> None:
    plain, tiered = _pair()
    first = plain.log.offset_for_time(0)
    assert first is not None
    for reader in (tiered.reader(), tiered.log):
        reader.use_kernels()
        for target in range(first.timestamp - 3000, first.timestamp + 90_000, 777):
            assert reader.offset_for_time(target) == plain.log.offset_for_time(target)


def test_latency_is_the_same_over_both() -> None:
    plain, tiered = _pair()
    found = latency(PATH, TOPIC, env=tiered.env)[TOPIC]
    expected = latency(PATH, TOPIC, env=plain.env)[TOPIC]
    assert dict(found.by_hour.items()) == dict(expected.by_hour.items())


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _spoil(tiered: Tiered, suffix: str, change: Callable[[bytes], bytes] | None) -> list[str]:
    """Change, or remove, all objects with the suffix; return their keys."""
    keys = [key for key in tiered.store.objects if key.endswith(suffix)]
    for key in keys:
        data, etag, modified_ms = tiered.store.objects.pop(key)
        if change is not None:
            tiered.store.objects[key] = change(data), etag, modified_ms
    return keys


@pytest.mark.parametrize("change", [None, _flipped, lambda data: data[:-1]])
def test_segments_are_read_if_their_zone_maps_in_the_store_are_missing_or_damaged(
    change: Callable[[bytes], bytes] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, tiered = _pair()
    expected = latency(PATH, TOPIC, env=plain.env)[TOPIC]
    keys = _spoil(tiered, ".zones", change)
    for cache in (None, str(tmp_path)):
        caplog.clear()
        found = latency(PATH, TOPIC, zone_cache=cache, env=tiered.env)[TOPIC]
        reports = [text for text in caplog.messages if ".zones" in text]
        if cache is not None:
            assert found.from_zone_maps == expected.from_zone_maps
        assert dict(found.by_hour) == dict(expected.by_hour)
        names = [key.rpartition("/")[2] for key in keys]
        assert [name for name in names if not any(name in text for text in reports)] == []
        assert [text for text in reports if text.count(".zones") != 1] == []
    stories = [explain(one.reader(), one.log.context.config).segments for one in (plain, tiered)]
    assert len({tuple(segment.records for segment in story) for story in stories}) == 1


@pytest.mark.parametrize("damage", [None, b"\xee" * 7])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_or_damaged_index_object_is_built_in_memory(
    suffix: str, damage: bytes | None
) -> None:
    _, tiered = _pair()
    for key in [key for key in tiered.store.objects if key.endswith(suffix)]:
        if damage is None:
            del tiered.store.objects[key]
        else:
            _, etag, modified_ms = tiered.store.objects[key]
            tiered.store.objects[key] = damage, etag, modified_ms
    reader = tiered.reader()
    records = {record.offset: record for record in reader.records()}
    for offset in (0, 21, 40):
        assert next(iter(reader.records(offset))).offset == offset
        match = reader.offset_for_time(records[offset].timestamp)
        assert match is not None
        assert match.offset == offset


def _all(tiered: Tiered) -> list[Record]:
    return list(tiered.reader().records(isolation=COMMITTED))


def test_aborted_records_stay_hidden_if_their_index_is_missing_in_the_store() -> None:
    _, tiered = _pair()
    transact(tiered.log, 7)
    end(tiered.log, 7, commit=False)
    tiered.fill(20)
    tiered.move()
    (key,) = _spoil(tiered, ".txnindex", None)
    before = dict(tiered.store.objects)
    plan = partial(scan.plan, PATH, TOPIC, env=tiered.env, isolation=COMMITTED)
    count = partial(scan.count, PATH, TOPIC, env=tiered.env, isolation=COMMITTED)
    read = partial(_all, tiered)
    compaction = partial(compact_tier, tiered.directory, NAME, CleanerOptions(is_asked=True))
    for call in (plan, count, read, compaction):
        with pytest.raises(MissingFile, match="--verify") as missing:
            call()
        assert key in missing.value.path
    assert tiered.store.objects == before
    assert scan.count(PATH, TOPIC, env=tiered.env).records == 101


def test_append_times_that_the_store_has_lost_are_reported_as_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, tiered = _pair()
    keys = _spoil(tiered, ".appendtime", None)
    segment = tiered.reader().segments[0]
    assert segment.append_times.unknown_in(0, segment.end_offset) == [(0, segment.end_offset)]
    (report,) = [text for text in caplog.messages if "append times unknown" in text]
    assert keys[0] in report
