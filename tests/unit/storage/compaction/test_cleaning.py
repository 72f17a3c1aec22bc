"""Cleaning, apart from the choice of records: files, damage, full offset maps."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest
from tests.faults.seeded import SeededEnv
from tests.unit.storage.compaction.segments import (
    NOW_MS,
    TOPIC_ID,
    Log,
    append_ms,
    make_job,
    make_log,
    names,
    new_env,
    path,
    put,
    read,
    record,
    small_rules,
    views,
    write_log,
)
from tests.worlds.constants import set_constant

from tidelog.config import TopicConfig
from tidelog.errors import (
    CleaningFailed,
    ConfigError,
    CorruptFile,
    InvalidRequest,
    StorageFailure,
)
from tidelog.record.batch_walk import walk
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT, DEFAULT_DECOMPRESSION_LIMIT
from tidelog.record.record import Record
from tidelog.storage import log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.compaction.job import CleaningJob, CleaningResult, Group
from tidelog.storage.compaction.worker import CleanerProcess, clean
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.index_loading import IndexBuilder
from tidelog.types import Codec, NewRecord

CLEANED = log_files.CLEANED_SUFFIX
COMPACTION = "tidelog.storage.compaction"


def cleaned_records(env: SeededEnv, base: int = 0) -> list[Record]:
    return [r for b in walk(read(env, base, log_files.LOG_SUFFIX + CLEANED)) for r in b.records()]


@pytest.mark.parametrize("codec", Codec)
def test_the_last_record_of_each_key_is_left(codec: Codec) -> None:
    env, log = new_env(), make_log(codec=codec)
    sources = write_log(env, log, [9, 9])
    cleaned = clean(make_job(sources), env)
    found = [(r.key, r.offset) for r in cleaned_records(env)]
    last = {f"{(7 * n) % 17}".encode(): n for n in range(150)}
    assert found == sorted(last.items(), key=lambda item: item[1])
    assert cleaned.keys == 17
    assert {batch.codec for batch in walk(read(env, 0, ".log.cleaned"))} == {codec}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("value", ["v", None])
def test_a_message_without_a_create_time_has_none_after_a_cleaning(
    codec: Codec, value: str | None
) -> None:
    log = Log()
    newest = [record("a", value, 1), record("b", value, 2)]
    for stamp in (3, 4):
        log.legacy(newest, magic=1, codec=codec, append_time_ms=stamp)
    env = new_env()
    before = [one for batch in views(log.batches) for one in batch.records()][2:]
    clean(make_job(write_log(env, log, [])), env)
    after = cleaned_records(env)
    assert after == before
    assert [(one.timestamp, one.create_timestamp) for one in after] == [(4, None)] * 2


@pytest.mark.parametrize(("beyond", "last_offsets"), [(0, [0, 1]), (1, [0]), (100, [0])])
def test_a_batch_at_the_end_of_the_cleaned_range_stays_without_records(
    beyond: int, last_offsets: list[int]
) -> None:
    log = Log()
    log.data([record("a", "later", 5)])
    log.data([record("a", "earlier", 1)])
    env = new_env()
    (source,) = write_log(env, log, [])
    rules = small_rules(strategy="timestamp")
    clean(make_job([source], rules=rules, upper_bound_offset=source.end_offset + beyond), env)
    assert [r.value for r in cleaned_records(env)] == [b"later"]
    assert [batch.last_offset for batch in walk(read(env, 0, ".log.cleaned"))] == last_offsets


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_segment_that_would_outgrow_its_indexes_gets_no_delete_horizons(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    for at in range(0, 60, 20):
        log.data([record(f"{at + n}:{n * 7919}", None, at) for n in range(20)], codec=codec)
    log.marker(4, commit=True)
    env = new_env()
    (source,) = write_log(env, log, [])
    job = make_job([source])
    clean(job, env)
    grown = read(env, 0, ".log.cleaned")
    assert len(grown) > source.size_bytes
    assert all(batch.delete_horizon_ms == NOW_MS + 100 for batch in views([grown]))
    set_constant(monkeypatch, "INT32_MAX", source.size_bytes, inside=COMPACTION)
    cleaned = clean(job, env)
    assert read(env, 0, ".log.cleaned") == read(env, 0, ".log")
    (found,) = cleaned.groups
    assert (found.records_after, found.tombstones_after, found.markers_after) == (61, 60, 1)
    # If the grown log is exactly as large as the limit, the batches get delete horizons.
    set_constant(monkeypatch, "INT32_MAX", len(grown), inside=COMPACTION)
    clean(job, env)
    assert read(env, 0, ".log.cleaned") == grown


def test_the_files_beside_the_log_are_those_of_the_batches() -> None:
    env, log = new_env(), make_log(batches=40, keys=150)
    sources = write_log(env, log, [20])
    rules = small_rules(index_interval_bytes=300)
    cleaned = clean(make_job(sources, rules=rules), env)
    data = read(env, 0, ".log.cleaned")
    builder = IndexBuilder(replace(TopicConfig(), index_interval_bytes=300), 0)
    for batch in walk(data):
        builder.add(batch, batch.at)
    offset_index, time_index = builder.finish()
    assert read(env, 0, ".index.cleaned") == bytes(offset_index.encoded)
    assert read(env, 0, ".timeindex.cleaned") == bytes(time_index.encoded)
    zones = read(env, 0, ".zones.cleaned")
    found = ZoneMap.decode(zones)
    assert found.identity.log_size == len(data)
    assert set(found.siblings) == {".index", ".timeindex", ".appendtime"}
    (group,) = cleaned.groups
    assert {f"{0:020d}{suffix}{CLEANED}" for suffix in group.suffixes} == set(names(env))
    assert env.files.stat(path(0, ".log.cleaned")).mtime_ms == NOW_MS


def test_joined_segments_have_the_modification_time_of_the_last_one() -> None:
    env, log = new_env(), make_log(batches=40, keys=150)
    sources = write_log(env, log, [20], mtimes=(NOW_MS - 9_000, NOW_MS - 5_000))
    cleaned = clean(make_job(sources), env)
    assert len(sources) == 2
    assert len(cleaned.groups) == 1
    assert env.files.stat(path(0, ".log.cleaned")).mtime_ms == NOW_MS - 5_000


def test_append_times_stay_with_their_batches() -> None:
    env, log = new_env(), make_log(batches=40, keys=150)
    sources = write_log(env, log, [20])
    unknown_from = sources[0].end_offset - 12
    sources[0] = replace(sources[0], append_end=unknown_from)
    clean(make_job(sources), env)
    data = read(env, 0, ".appendtime.cleaned")
    times, damage = AppendTimes.decode(data, 0, TOPIC_ID)
    assert damage is None
    before = {batch.base_offset: append_ms(batch) for batch in views(log.batches)}
    seen = set()
    for batch in walk(read(env, 0, ".log.cleaned")):
        known = not unknown_from <= batch.base_offset < sources[0].end_offset
        expected = before[batch.base_offset] if known else None
        assert times.time_at(batch.base_offset) == expected
        seen.add(known)
    assert seen == {True, False}
    by_offset = {b.base_offset: b for b in walk(read(env, 0, ".log.cleaned"))}
    rows = [row for row in times.rows() if row.append_ms >= 0]
    assert all(row.batch_crc == fingerprint(by_offset[row.offset]) for row in rows)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([5000, 5000], [5000, 5000]),
        ([5000, 5001], [5000, 5001]),
        ([4999, 5000], [None, 5000]),
        ([4998, 4999], [None, None]),
    ],
)
def test_times_after_unknown_ones_are_kept_unless_the_append_clock_would_go_back(
    second: list[int], expected: list[int | None]
) -> None:
    env, log = new_env(), Log()
    for number in range(4):
        log.data([record(number)])
    sources = write_log(env, log, [2])
    for source, times_ms in zip(sources, ([5000, 5000], second), strict=True):
        times = AppendTimes(source.base_offset, TOPIC_ID)
        for batch, time_ms in zip(
            views(log.batches)[source.base_offset : source.end_offset], times_ms, strict=True
        ):
            times.note(batch.base_offset, time_ms, fingerprint(batch))
        times.close(source.end_offset)
        put(env, source.base_offset, log_files.APPEND_TIME_SUFFIX, times.encode())
    sources[0] = replace(sources[0], append_end=1)
    clean(make_job(sources), env)
    times, damage = AppendTimes.decode(read(env, 0, ".appendtime.cleaned"), 0, TOPIC_ID)
    assert damage is None
    assert [times.time_at(offset) for offset in range(4)] == [5000, None, *expected]


def test_a_group_starts_at_the_offset_of_its_first_source() -> None:
    env, log = new_env(), make_log()
    sources = write_log(env, log, [10, 10])
    bases = [source.base_offset for source in sources]
    groups = [
        Group(bases=(bases[0],), drop_expired=True),
        Group(bases=(bases[1], bases[2]), drop_expired=True),
    ]
    cleaned = clean(make_job(sources, groups=groups), env)
    first, second = cleaned.groups
    assert first.bytes_after == 0
    assert (first.end_offset, second.base_offset) == (bases[1], bases[1])
    assert second.bases == (bases[1], bases[2])
    assert read(env, 0, ".log.cleaned") == b""
    assert second.records_after == 17
    assert second.records_before == 100
    assert second.bytes_after == len(read(env, bases[1], ".log.cleaned"))
    assert cleaned.bytes_written == first.bytes_after + second.bytes_after
    assert CleaningResult.from_json(cleaned.to_json()) == cleaned


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_while_a_batch_of_its_transaction_is_outside_the_job(
    commit: bool,
) -> None:
    """Without the marker, a reader of the whole log would find a transaction that never ends."""
    log = Log()
    log.data([record(1)], producer_id=4, transactional=True)
    log.data([record(2)])
    log.marker(4, commit=commit)
    env = new_env()
    first, second = write_log(env, log, [1])
    rules = small_rules(delete_retention_ms=0)
    groups = [Group(bases=(second.base_offset,), drop_expired=True)]
    alone = make_job([second], map_from=1, groups=groups, aborted=log.aborted, rules=rules)
    # Two runs: if the first set a delete horizon, the second would drop the marker.
    for _ in range(2):
        clean(alone, env)
        put_back(env, second.base_offset)
        (marker,) = [b for b in walk(read(env, second.base_offset, ".log")) if b.is_control]
        assert marker.delete_horizon_ms is None
        size = env.files.stat(path(second.base_offset, log_files.LOG_SUFFIX)).size
        alone = replace(alone, sources=(replace(second, size_bytes=size),))
    # A job that also rewrites all earlier segments reads the transaction's record. This job, too,
    # sets no delete horizon.
    whole = make_job([first, *alone.sources], aborted=log.aborted, rules=rules)
    clean(whole, env)
    left = [b for b in walk(read(env, 0, ".log.cleaned")) if b.is_control]
    assert [b.delete_horizon_ms for b in left] == [None]


def put_back(env: SeededEnv, base: int) -> None:
    """Replace the source log by the cleaned log."""
    name = path(base, log_files.LOG_SUFFIX)
    env.files.rename(name + CLEANED, name)


def passes(env: SeededEnv, job: CleaningJob) -> Iterator[CleaningResult]:
    """Run passes until all keys are mapped; each pass reads the output of the previous pass."""
    while True:
        cleaned = clean(job, env)
        yield cleaned
        if cleaned.mapped_to == job.map_to:
            return
        assert cleaned.mapped_to > job.map_from
        (group,) = cleaned.groups
        (source,) = job.sources
        for suffix in group.suffixes:
            env.files.rename(path(0, suffix + CLEANED), path(0, suffix))
        source = replace(source, size_bytes=group.bytes_after)
        job = replace(job, sources=(source,), map_from=cleaned.mapped_to)


@pytest.mark.parametrize("strategy", ["offset", "timestamp"])
@pytest.mark.parametrize("verify", [False, True])
def test_more_keys_than_the_maps_capacity_need_more_passes(strategy: str, verify: bool) -> None:
    env, log, numbers = new_env(), Log(), count()
    for _ in range(120):
        records = [
            (n, record(n % 4000, timestamp=n % 7)) for n in (next(numbers) for _ in range(100))
        ]
        log.data([each for _, each in records])
    (source,) = write_log(env, log, [])
    # About 2,000 keys fit into the map.
    rules = small_rules(strategy=strategy, verify_keys=verify, load_factor=0.05)
    done = list(passes(env, make_job([source], rules=rules)))
    assert len(done) > 2
    left = cleaned_records(env)
    best: dict[bytes, tuple[int, int]] = {}
    for n in range(12_000):
        rank = (n % 7 if strategy == "timestamp" else 0, n)
        best[b"%d" % (n % 4000)] = max(best.get(b"%d" % (n % 4000), (-1, -1)), rank)
    assert {r.key: r.offset for r in left if r.offset == best[r.key or b""][1]} == {
        key: offset for key, (_, offset) in best.items()
    }
    assert len(left) == 4000


def test_a_tombstone_after_a_full_map_stays_until_its_key_is_mapped() -> None:
    """The first pass sets the delete horizon; its map becomes full within the tombstone's batch."""
    env, log = new_env(), Log()
    log.data([record("K")])
    log.data([record(key) for key in "abcd"] + [record("K", None)])
    (source,) = write_log(env, log, [])
    rules = small_rules(delete_retention_ms=0, load_factor=5e-5)  # room for two keys
    tables = []
    for done in passes(env, make_job([source], rules=rules)):
        assert done.keys <= 2
        left = {r.key: r.value for r in cleaned_records(env)}
        tables.append({key: value for key, value in left.items() if value is not None})
    assert len(tables) == 3
    assert b"K" not in tables[-1]
    assert set(tables[-1]) == {b"a", b"b", b"c", b"d"}


def test_a_key_that_has_no_room_among_the_verified_stops_it_and_is_named() -> None:
    """A cleaning fails if a key is too long for the map, which could never contain the key."""
    env, log = new_env(), Log()
    rules = small_rules(verify_keys=True)
    longest = "k" * (rules.dedupe_buffer_bytes // 2 - 4)
    log.data([record(longest), record(1)])
    sources = write_log(env, log, [])
    clean(make_job(sources, rules=rules), env)
    longer = Log()
    longer.data([record(1), record(longest + "k"), record(longest + "k", None)])
    sources = write_log(env, longer, [])
    with pytest.raises(CleaningFailed, match=r"524288 bytes.*log\.cleaner\.dedupe\.buffer\.size"):
        clean(make_job(sources, rules=rules), env)
    assert names(env) == []
    clean(make_job(sources), env)


def test_equal_hashes_lose_no_key_if_keys_are_verified() -> None:
    env, log = new_env(), Log()
    for n in range(60):
        log.data([record(f"k{(n * 10 + i) % 400}", f"v{n}") for i in range(10)])
    sources = write_log(env, log, [30])
    job = make_job(sources, rules=small_rules(verify_keys=True))
    clean(job, env, hash_mask=(0xFF, 0))
    assert len({r.key for r in cleaned_records(env)}) == 400
    assert len(cleaned_records(env)) == 400
    unverified = replace(job, rules=small_rules())
    clean(unverified, env, hash_mask=(0xFF, 0))
    assert len(cleaned_records(env)) < 400  # colliding keys lost records


class Stop(Exception):
    """Raised to end a cleaning."""


class Limited:
    """Throttle that raises Stop after the given number of bytes."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def take(self, size_bytes: int) -> None:
        self.left -= size_bytes
        if self.left < 0:
            raise Stop


def test_a_throttle_sees_all_bytes_and_can_stop_it() -> None:
    env, log = new_env(), make_log()
    sources = write_log(env, log, [10, 10])
    watch = Limited(1 << 30)
    cleaned = clean(make_job(sources), env, watch)
    used = (1 << 30) - watch.left
    assert used == cleaned.bytes_read + cleaned.bytes_written
    for limit in (0, used // 2, used - 1):
        with pytest.raises(Stop):
            clean(make_job(sources), env, Limited(limit))
        assert names(env) == []


def test_a_failing_disk_leaves_no_file() -> None:
    env, log = new_env(), make_log()
    sources = write_log(env, log, [10])
    env.files.remove(path(sources[1].base_offset, ".log"))
    with pytest.raises(StorageFailure):
        clean(make_job(sources), env)
    assert names(env) == []


def test_a_job_is_equal_after_json() -> None:
    env, log = new_env(), make_log()
    sources = write_log(env, log, [10])
    job = make_job(sources, active_producers={4: (7, 1)})
    assert CleaningJob.from_json(job.to_json()) == job
    assert job.seed.hex() not in repr(job)
    with pytest.raises(CorruptFile, match="`seed` must be 16 bytes"):
        CleaningJob.from_json(job.to_json().replace(job.seed.hex(), "no digits"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"strategy": "newest"}, "strategy"),
        ({"strategy": "header"}, "header"),
        ({"header": "version"}, "header"),
        ({"hash_name": "crc"}, "hash of keys"),
        ({"delete_retention_ms": -1}, "delete.retention.ms"),
        ({"dedupe_buffer_bytes": 1023}, "log.cleaner.dedupe.buffer.size"),
        ({"load_factor": 0.0}, "log.cleaner.io.buffer.load.factor"),
        ({"load_factor": 1.0}, "log.cleaner.io.buffer.load.factor"),
        ({"index_interval_bytes": -1}, "index.interval.bytes"),
        ({"segment_index_bytes": 0}, "segment.index.bytes"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        small_rules(**changes)


def test_an_inconsistent_job_is_refused() -> None:
    """A job with a wrong seed or range, or with segments in wrong order or groups, is refused."""
    first, second = write_log(new_env(), make_log(), [10])
    sound = make_job([first, second])
    groups = [Group(bases=(each.base_offset,), drop_expired=True) for each in (first, second)]
    wrong: list[tuple[dict[str, object], str]] = [
        ({"seed": b"short"}, "seed of 5 bytes"),
        ({"sources": (second, first)}, f"segment {first.base_offset} is out of order"),
        ({"groups": (Group(bases=(), drop_expired=True),)}, "without segments"),
        ({"groups": (Group(bases=(3,), drop_expired=True),)}, "not a source"),
        ({"groups": (groups[0], groups[0])}, "in two groups"),
        ({"groups": (groups[1], groups[0])}, "out of order"),
        ({"map_from": sound.map_to + 1}, "can't be mapped"),
    ]
    for changes, says in wrong:
        with pytest.raises(InvalidRequest, match=says):
            replace(sound, **changes)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_batch_that_is_larger_than_a_group_is_cleaned_alone(is_mapped: bool) -> None:
    env, log = new_env(), Log()
    log.data([record(1)], codec=Codec.LZ4)
    log.data([NewRecord(key=b"large", value=bytes(6 << 20))], codec=Codec.LZ4)
    log.data([record(2), record(1)], codec=Codec.LZ4)
    sources = write_log(env, log, [])
    clean(make_job(sources, map_from=0 if is_mapped else 2), env)
    found = cleaned_records(env)
    assert [each.offset for each in found] == [1, 2, 3]
    assert found[0].value == bytes(6 << 20)


def test_the_death_of_the_cleaner_process_is_an_error() -> None:
    env = new_env()
    job = make_job(write_log(env, make_log(), [10]))
    worker = CleanerProcess(1e308)
    process = worker._begin()
    assert process.stdin is not None
    process.stdin.close()  # ends the process at once, like a kill
    with pytest.raises(CleaningFailed, match="ended with status 0"):
        worker.clean(job)
    with pytest.raises(StorageFailure, match="/data/t-0"):
        worker.clean(job)  # in a new process, which doesn't find the directory
    worker.stop()
    with pytest.raises(CleaningFailed, match="the cleaner was stopped"):
        worker.clean(job)


@pytest.mark.slow  # uses about 700 MB of memory
def test_a_body_that_grows_beyond_the_limit_of_appends_can_be_read() -> None:
    """A cleaning makes timestamp deltas relative to the delete horizon, which takes more bytes."""
    env, sizes = new_env(), [1_000_000] * 134
    log = long_log(sizes)
    while missing := APPEND_DECOMPRESSION_LIMIT - body_bytes(log.batches[0]):
        sizes[-1] += missing
        log = long_log(sizes)
    (source,) = write_log(env, log, [])
    for _ in range(2):
        (group,) = clean(make_job([source]), env).groups
        put_back(env, 0)
        source = replace(source, size_bytes=group.bytes_after)
    left = read(env, 0, ".log")
    assert APPEND_DECOMPRESSION_LIMIT < body_bytes(left) <= DEFAULT_DECOMPRESSION_LIMIT
    assert source.size_bytes < 1 << 20


def long_log(sizes: Sequence[int]) -> Log:
    """Return a log of one batch: a tombstone, then for each size a record of that many zeros."""
    log = Log()
    records = [NewRecord(key=b"%3d" % n, value=bytes(size)) for n, size in enumerate(sizes)]
    log.data([NewRecord(key=b"t", value=None), *records], codec=Codec.ZSTD)
    return log


def body_bytes(data: bytes) -> int:
    (batch,) = walk(data)
    return len(batch.body())


def test_a_body_that_no_reader_would_open_is_written_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body above the limit of decompression stays uncompressed.

    Only other programs write batches whose bodies become larger than the limit when they are
    cleaned.
    """
    env, log = new_env(), Log()
    log.data([record(n) for n in range(9)], codec=Codec.LZ4)
    log.data([record(n, None) for n in range(8)], codec=Codec.LZ4)
    log.data([record(8, None)], codec=Codec.LZ4)
    (source,) = write_log(env, log, [])
    longest = body_bytes(log.batches[1])
    set_constant(monkeypatch, "DEFAULT_DECOMPRESSION_LIMIT", longest, inside=COMPACTION)
    clean(make_job([source]), env)
    plain, packed = walk(read(env, 0, ".log.cleaned"))
    assert (plain.codec, packed.codec) == (Codec.NONE, Codec.LZ4)
    assert [r.offset for r in cleaned_records(env)] == [*range(9, 18)]
