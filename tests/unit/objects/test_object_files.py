"""Topic directories in an object store give the same results as on disk, with few requests."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.worlds.directories.copies import CountingStore, copy_into
from tests.worlds.directories.random_logs import SPAN_MS, T0, TOPIC, make_log_dir, records_of

from tidelog.env import Env, ManualClock, OsFileSystem
from tidelog.errors import InvalidRequest, OffsetsGone, ReadOnly
from tidelog.objects import ObjectFiles, open_store
from tidelog.objects.object_files import SMALL_BYTES
from tidelog.scan import ReadOptions, RequestedRange, ScanStats, plan, read, to_table
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import ClockName, IsolationLevel, NewRecord

SEEDS = (1, 2, 3)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(open_store(f"memory://{uuid.uuid4().hex}/logs"))


def env_of(store: CountingStore, *, block_bytes: int = 1024) -> Env:
    """Return an Env with small blocks, so that a small log has many blocks."""
    cache_bytes = 8 * block_bytes
    files = ObjectFiles(
        store, local=OsFileSystem(), block_bytes=block_bytes, cache_bytes=cache_bytes
    )
    return Env(files=files, clock=ManualClock(T0))


@pytest.fixture(params=SEEDS)
def copied(request: pytest.FixtureRequest, tmp_path: Path, store: CountingStore) -> Path:
    directory = tmp_path / "logs"
    make_log_dir(str(directory), request.param)
    copy_into(store, directory)
    store.reset()
    return directory


def questions() -> Iterator[tuple[RequestedRange, ClockName, IsolationLevel]]:
    times = (RequestedRange(), RequestedRange(start_ms=T0 + SPAN_MS // 3, end_ms=T0 + SPAN_MS // 2))
    offsets = (RequestedRange(start_offset=40, end_offset=130),)
    for wanted in times + offsets:
        for clock in ClockName:
            for isolation in IsolationLevel:
                yield wanted, clock, isolation


def test_reads_equal_those_from_disk(copied: Path, store: CountingStore) -> None:
    for wanted, clock, isolation in questions():
        env = env_of(store)
        here = plan(
            str(copied),
            requested_range=wanted,
            clock=clock,
            isolation=isolation,
            fail_on_data_loss=False,
        )
        there = plan(
            store.url,
            requested_range=wanted,
            clock=clock,
            isolation=isolation,
            env=env,
            fail_on_data_loss=False,
        )
        assert there.bounds == here.bounds
        assert there.scan_bytes == here.scan_bytes
        assert all(split.directory == store.url for split in there)
        rows = to_table(there, options=ReadOptions(env=env))
        assert rows == to_table(here)


def test_lookups_equal_those_on_disk(copied: Path, store: CountingStore) -> None:
    times = range(T0 - 10, T0 + SPAN_MS, SPAN_MS // 7)
    with LogDir.open(str(copied)) as here, LogDir.open(store.url, env=env_of(store)) as there:
        assert there.topics().keys() == here.topics().keys()
        assert there.topic(TOPIC).topic_id == here.topic(TOPIC).topic_id
        for number in range(2):
            near, far = here.reader(TOPIC, number), there.reader(TOPIC, number)
            assert far.log_end_offset == near.log_end_offset
            assert far.last_stable_offset == near.last_stable_offset
            assert far.max_timestamp() == near.max_timestamp()
            for clock in ClockName:
                for time in times:
                    found = far.offset_for_time(time, clock=clock)
                    assert found == near.offset_for_time(time, clock=clock)
    assert there.reports == here.reports


def test_a_store_without_indexes_and_zone_maps_gives_the_same_rows(
    copied: Path, store: CountingStore, tmp_path: Path
) -> None:
    for path in copied.rglob("*"):
        if path.suffix in (".index", ".timeindex", ".zones", ".appendtime", ".json"):
            path.unlink()
            store.delete(path.relative_to(copied).as_posix())
    wanted = RequestedRange(start_ms=T0 + SPAN_MS // 3, end_ms=T0 + SPAN_MS // 2)
    cache = tmp_path / "zones"
    for _ in range(2):
        env = env_of(store)
        found = plan(store.url, requested_range=wanted, env=env, zone_cache=str(cache))
        rows = to_table(found, options=ReadOptions(env=env))
        assert rows == to_table(plan(str(copied), requested_range=wanted))
        assert list(cache.glob("*.zones"))


def test_a_replaced_or_missing_object_is_planned_again(copied: Path, store: CountingStore) -> None:
    env = env_of(store)
    whole = to_table(plan(str(copied)))
    found = plan(store.url, env=env)
    for path in sorted(copied.rglob("*.log")):
        store.delete(path.relative_to(copied).as_posix())
        store.put(path.relative_to(copied).as_posix(), path.read_bytes() + b"\0")
    assert to_table(found, options=ReadOptions(env=env)) == whole
    found = plan(store.url, env=env)
    first = min(copied.rglob("*.log"))
    for path in first.parent.glob(f"{first.stem}.*"):
        store.delete(path.relative_to(copied).as_posix())
    with pytest.raises(OffsetsGone, match=rf"{TOPIC}-0: offsets 0 to "):
        to_table(found, options=ReadOptions(env=env))


@pytest.fixture
def long(tmp_path: Path, store: CountingStore) -> Path:
    """Create a directory with a log of about 30 MB."""
    directory = tmp_path / "long"
    with LogDir.open(str(directory), options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC)
        log = log_dir.log(TOPIC, 0)
        for number in range(30):
            log.append([NewRecord(value=bytes((number,)) * 1_000_000)])
    copy_into(store, directory)
    store.reset()
    return directory


def test_an_object_that_is_replaced_while_it_is_read(long: Path, store: CountingStore) -> None:
    """A read that began on the old object continues on the new one, and returns the same rows.

    Two ranges are fetched from the old object before the first rows are returned.
    """
    env = env_of(store, block_bytes=1 << 20)
    for split in plan(store.url, env=env):
        expected = to_table([split], options=ReadOptions(env=env))
        stats = ScanStats()
        batches = read(split, options=ReadOptions(env=env, rows=10), stats=stats)
        first = next(batches)
        replace_logs(long, store)
        rest = list(batches)
        assert stats.replanned > 0
        assert pa.Table.from_batches([first, *rest]) == expected


def replace_logs(directory: Path, store: CountingStore) -> None:
    """Replace each log file of a directory's copy by a new object with the same bytes."""
    for path in directory.rglob("*.log"):
        key = path.relative_to(directory).as_posix()
        store.delete(key)
        store.put(key, path.read_bytes())


def test_an_object_that_is_replaced_after_planning(long: Path, store: CountingStore) -> None:
    env = env_of(store, block_bytes=1 << 20)
    (split,) = plan(store.url, env=env)
    options = ReadOptions(env=env)
    expected = to_table([split], options=options)
    replace_logs(long, store)
    stats = ScanStats()
    assert pa.Table.from_batches(read(split, options=options, stats=stats)) == expected
    assert stats.replanned > 0


def test_a_long_piece_is_read_by_ranges_and_each_byte_once(
    long: Path, store: CountingStore
) -> None:
    env = env_of(store, block_bytes=1 << 20)
    found = plan(store.url, columns=["value"], env=env)
    store.reset()
    assert to_table(found, ["value"], options=ReadOptions(env=env)) == to_table(
        plan(str(long)), ["value"]
    )
    assert store.read_bytes == found.scan_bytes
    assert max(size for _, _, size in store.reads) < 10_000_000


def test_the_machine_finds_the_store_by_its_url(copied: Path, store: CountingStore) -> None:
    rows = to_table(plan(store.url))
    assert rows == to_table(plan(str(copied)))
    assert records_of(store.url, 1) == records_of(str(copied), 1)


def test_directories_there_are_read_only(copied: Path, store: CountingStore) -> None:
    with pytest.raises(ReadOnly, match="read only; write to a directory on disk"):
        LogDir.open(store.url, options=LogDirOptions(writable=True))
    files = ObjectFiles(store, local=OsFileSystem())
    url = store.url
    for change in (
        lambda: files.open(f"{url}/x", create=True),
        lambda: files.remove(f"{url}/x"),
        lambda: files.rename(f"{url}/x", f"{url}/y"),
        lambda: files.make_dirs(f"{url}/x"),
        lambda: files.lock(f"{url}/x"),
        lambda: files.set_mtime(f"{url}/x", 0),
        lambda: files.sync_dir(url),
        lambda: files.remove_dir(url),
    ):
        with pytest.raises(OSError, match="read only"):
            change()


def test_a_url_without_a_directory_is_an_error(store: CountingStore) -> None:
    with pytest.raises(InvalidRequest, match="no such directory"):
        LogDir.open(store.url, env=env_of(store))


def test_a_refresh_sees_new_records(copied: Path, store: CountingStore) -> None:
    with LogDir.open(store.url, env=env_of(store)) as there:
        assert there.reader(TOPIC, 0).log_end_offset > 0
        other = Path(f"{copied}-more")
        make_log_dir(str(other), 9, steps=90)
        for info in list(store.list("")):
            store.delete(info.key)
        copy_into(store, other)
        there.refresh()
        with LogDir.open(str(other)) as here:
            assert there.reader(TOPIC, 0).log_end_offset == here.reader(TOPIC, 0).log_end_offset
            assert there.topic(TOPIC).topic_id == here.topic(TOPIC).topic_id


def test_a_prefetch_caches_small_objects_and_missing_ones_and_no_part_of_a_large_one(
    store: CountingStore,
) -> None:
    contents = {
        f"{size}/x": bytes(range(251)) * (size // 251) + bytes(size % 251)
        for size in (0, 1, SMALL_BYTES, SMALL_BYTES + 1, 2 * SMALL_BYTES)
    }
    for key, data in contents.items():
        store.put(key, data)
    files = ObjectFiles(store, local=OsFileSystem())
    files.prefetch(f"{store.url}/{key}" for key in (*contents, "missing/x"))
    store.reset()
    with pytest.raises(FileNotFoundError):
        files.open(f"{store.url}/missing/x")
    for key, data in contents.items():
        is_cached = len(data) <= SMALL_BYTES
        file = files.open(f"{store.url}/{key}")
        assert file.size() == len(data)
        assert file.pread(len(data), 0) == data
        assert bytes(files.map(f"{store.url}/{key}")) == data
        assert (store.requests == 0) is is_cached
    store.delete("1/x")
    files.forget(store.url)
    with pytest.raises(FileNotFoundError):
        files.open(f"{store.url}/1/x")


def test_a_large_map_is_no_memory(store: CountingStore) -> None:
    data = bytes(range(251)) * 80_000
    for name in ("x.index", "x.log"):
        store.put(name, data)
        files = ObjectFiles(store, local=OsFileSystem())
        view = files.map(f"{store.url}/{name}")
        assert bytes(view) == data
        assert view.readonly
        assert bytes(files.map(f"{store.url}/{name}", 1000)) == data[:1000]


def test_sequential_reads_need_few_requests_and_random_reads_few_bytes(
    store: CountingStore,
) -> None:
    data = bytes(range(251)) * 4000
    store.put("x.log", data)
    files = ObjectFiles(store, local=OsFileSystem(), block_bytes=1000, cache_bytes=20_000)
    file = files.open(f"{store.url}/x.log")
    store.reset()
    assert b"".join(file.pread(777, at) for at in range(0, len(data), 777)) == data
    assert store.calls["read"] < len(data) / 10_000 + 10
    assert store.read_bytes == len(data)
    assert file.pread(10, len(data) - 3) == data[-3:]
    assert file.pread(10, len(data)) == b""
    store.reset()
    for at in (900_000, 500, 700_000, 500):
        assert file.pread(1200, at) == data[at : at + 1200]
    assert store.read_bytes == 3 * 2000


class TestCounts:
    """Limits on the requests and bytes of each operation, on a directory with large segments."""

    @pytest.fixture
    def large(self, tmp_path: Path, store: CountingStore) -> Path:
        directory = tmp_path / "large"
        config = {"internal.segment.bytes": "1000000", "index.interval.bytes": "4096"}
        make_log_dir(str(directory), 5, partitions=1, steps=40, config=config)
        with LogDir.open(str(directory), options=LogDirOptions(writable=True)) as log_dir:
            log = log_dir.log(TOPIC, 0)
            for _ in range(40):
                log.append(
                    [
                        NewRecord(key=b"k", value=bytes(1000), timestamp=T0 + n * 10)
                        for n in range(100)
                    ],
                    batch_bytes=16_384,
                )
        copy_into(store, directory)
        store.reset()
        return directory

    def test_a_plan_of_all_records_needs_few_requests(
        self, large: Path, store: CountingStore
    ) -> None:
        found = plan(store.url, env=env_of(store, block_bytes=65_536), split_bytes=1 << 20)
        assert len(found) > 3
        segments = len(list(large.rglob("*.log")))
        # A plan may make two listings. It may read small files of the directory and the partition,
        # files of append times, and the indexes and the log of the last segment.
        assert store.calls["list"] == 2
        last = -(-max(large.rglob("*.log")).stat().st_size // 65_536)
        assert store.requests <= 2 + 5 + (segments + 1) + 2 + last
        store.reset()
        plan(store.url, columns=["value"], env=env_of(store, block_bytes=65_536))
        assert store.requests <= 2 + 5 + 2 + last

    def test_a_plan_by_time_needs_few_requests(self, large: Path, store: CountingStore) -> None:
        wanted = RequestedRange(start_ms=T0 + 300, end_ms=T0 + 500)
        plan(store.url, requested_range=wanted, env=env_of(store, block_bytes=4_096))
        segments = len(list(large.rglob("*.log")))
        logs = [size for key, _, size in store.reads if key.endswith(".log")]
        # The zone map of each finished segment is verified against the segment's first and last
        # batch.
        assert len([size for size in logs if size <= 4_096]) <= 2 * segments
        assert store.requests <= 2 + 5 + 2 * segments + 2 + len(logs)

    def test_a_lookup_by_time_needs_few_requests(self, large: Path, store: CountingStore) -> None:
        with LogDir.open(store.url, env=env_of(store, block_bytes=65_536)) as there:
            reader = there.reader(TOPIC, 0)
            store.reset()
            assert reader.offset_for_time(T0 + 555) is not None
            logs = sum(size for key, _, size in store.reads if key.endswith(".log"))
            assert logs <= 4 * 65_536
            before = store.requests
            assert reader.offset_for_time(T0 + 556) is not None
            assert store.requests == before

    def test_a_refresh_lists_each_folder_once(self, large: Path, store: CountingStore) -> None:
        with LogDir.open(store.url, env=env_of(store, block_bytes=65_536)) as there:
            there.reader(TOPIC, 0)
            store.reset()
            there.refresh()
            there.reader(TOPIC, 0)
            assert store.calls["list"] == 2

    def test_reading_asks_for_each_byte_once(self, large: Path, store: CountingStore) -> None:
        env = env_of(store, block_bytes=65_536)
        found = plan(store.url, columns=["value"], env=env)
        store.reset()
        rows = to_table(found, ["value"], options=ReadOptions(env=env))
        assert rows == to_table(plan(str(large)), ["value"])
        assert store.calls.keys() == {"read"}
        assert store.read_bytes == found.scan_bytes
        assert store.requests == sum(len(split.pieces) for split in found)

    def test_splits_carry_no_settings(self, large: Path, store: CountingStore) -> None:
        found = plan(store.url, env=env_of(store))
        assert {split.directory for split in found} == {store.url}
        assert "secret" not in repr(ReadOptions(store_options={"secret_access_key": "secret"}))
