"""Open files and maps in bounded caches, and reading a file by chunks."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.worlds.directories.logs import batch, names, new_log, path_of, put, reader_of
from tests.worlds.needs import need

from tidelog.env import OsFileSystem
from tidelog.errors import CorruptBatch
from tidelog.storage.log.log_reader import LogReader
from tidelog.storage.open_files import FilePool, MapCache, PooledFile, walk_file


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = []
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 10)
        found.append(str(tmp_path / name))
    return found


def open_count(directory: Path) -> int:
    """Return the number of this process's descriptors for files in a directory."""
    links = Path("/proc/self/fd")
    need(links.exists(), "/proc/self/fd")
    targets = []
    for link in links.iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return sum(target.startswith(str(directory)) for target in targets)


class TestFilePool:
    def test_one_handle_a_path_until_it_is_evicted(self, paths: list[str]) -> None:
        pool = FilePool(OsFileSystem(), limit=2, write=False)
        first = pool.get(paths[0])
        assert pool.get(paths[0]) is first
        pool.get(paths[1])
        pool.get(paths[0])  # after this, the second file is the least recently used
        pool.get(paths[2])
        assert pool.get(paths[0]) is first
        pool.close()

    def test_no_more_descriptors_than_the_limit(self, paths: list[str], tmp_path: Path) -> None:
        pool = FilePool(OsFileSystem(), limit=1, write=False)
        for path in paths * 3:
            assert pool.get(path).pread(1, 0) == Path(path).name.encode()
        assert open_count(tmp_path) == 1
        pool.close()
        assert open_count(tmp_path) == 0

    def test_an_evicted_handle_still_works(self, paths: list[str], tmp_path: Path) -> None:
        """A thread that holds the handle may still read, so the file's descriptor stays open."""
        pool = FilePool(OsFileSystem(), limit=1, write=False)
        kept = pool.get(paths[0])
        pool.get(paths[1])
        pool.get(paths[2])
        assert kept.pread(3, 0) == b"aaa"
        del kept
        assert open_count(tmp_path) == 1
        pool.close()

    def test_a_held_file_marked_as_used_is_not_closed_first(self, paths: list[str]) -> None:
        pool = FilePool(OsFileSystem(), limit=2, write=False)
        first, _ = pool.hold(paths[0])
        second, _ = pool.hold(paths[1])
        third, _ = pool.hold(paths[2])
        assert [held.file is None for held in (first, second, third)] == [True, False, False]
        second.is_used = True
        pool.get(paths[0])
        assert [held.file is None for held in (second, third)] == [False, True]
        pool.get(paths[2])  # the second file was not used since the last eviction
        assert second.file is None
        pool.close()

    def test_if_all_are_used_the_oldest_is_closed(self, paths: list[str], tmp_path: Path) -> None:
        pool = FilePool(OsFileSystem(), limit=2, write=False)
        kept = [pool.hold(path)[0] for path in paths[:2]]
        for held in kept:
            held.is_used = True
        pool.get(paths[2])
        assert [held.file is None for held in kept] == [True, False]
        assert open_count(tmp_path) == 2
        pool.close()
        assert kept[1].file is None

    def test_the_holder_of_a_forgotten_file_loses_its_handle(self, paths: list[str]) -> None:
        pool = FilePool(OsFileSystem(), write=False)
        forgotten, _ = pool.hold(paths[0])
        pool.forget(paths[0])
        assert forgotten.file is None
        replaced, file = pool.hold(paths[0])
        with pool.replacing(paths[:1]):
            assert replaced.file is file
        assert pool.get(paths[0]) is not file
        assert replaced.file is not file
        pool.close()

    def test_a_forgotten_path_is_opened_again(self, paths: list[str]) -> None:
        pool = FilePool(OsFileSystem())
        pool.get(paths[0])
        pool.forget(paths[0])
        pool.forget(paths[0])
        Path(paths[0]).unlink()
        with pytest.raises(FileNotFoundError):
            pool.get(paths[0])

    def test_a_write_to_a_forgotten_file_opens_the_file_of_that_name(
        self, paths: list[str]
    ) -> None:
        pool = FilePool(OsFileSystem())
        held = PooledFile(pool, paths[0])
        held.write(b"1", 0)
        pool.forget(paths[0])
        Path(paths[1]).replace(paths[0])
        held.write(b"2", 1)
        assert Path(paths[0]).read_bytes() == b"b2bbbbbbbb"
        pool.close()

    def test_missing_files_are_created_only_with_create(self, tmp_path: Path) -> None:
        pool = FilePool(OsFileSystem())
        path = str(tmp_path / "new")
        with pytest.raises(FileNotFoundError):
            pool.get(path)
        pool.get(path, create=True)
        assert Path(path).exists()
        pool.close()


class TestMapCache:
    def test_maps_are_shared_until_forgotten_and_outlive_it(self, paths: list[str]) -> None:
        maps = MapCache(OsFileSystem(), limit=2)
        first = maps.get(paths[0])
        assert maps.get(paths[0]) is first
        maps.forget(paths[0])
        Path(paths[0]).unlink()
        assert bytes(first) == b"a" * 10

    def test_the_oldest_map_is_dropped_beyond_the_limit(self, paths: list[str]) -> None:
        maps = MapCache(OsFileSystem(), limit=2)
        views = [maps.get(path) for path in paths]
        assert maps.get(paths[2]) is views[2]
        assert maps.get(paths[0]) is not views[0]
        maps.clear()
        assert maps.get(paths[2]) is not views[2]

    def test_the_callback_of_an_evicted_map_is_called(self, paths: list[str]) -> None:
        maps = MapCache(OsFileSystem(), limit=2)
        told: list[str] = []
        for path in paths:
            maps.get(path, on_evict=partial(told.append, path))
        assert told == paths[:1]
        maps.get(paths[0])
        assert told == paths[:2]

    def test_an_empty_file_has_an_empty_map(self, tmp_path: Path) -> None:
        (tmp_path / "e").touch()
        assert len(MapCache(OsFileSystem()).get(str(tmp_path / "e"))) == 0


def test_segments_load_evicted_maps_again() -> None:
    env, directory, log = new_log({"internal.segment.bytes": "200", "index.interval.bytes": "0"})
    for number in range(20):
        put(log, 10 * number, 10 * number + 5)
    directory.close()
    reader = reader_of(env)
    assert len(reader.segments) > 6
    few = MapCache(env.files, limit=2)
    reader = LogReader.open(replace(reader.context, maps=few))
    for _ in range(2):
        for number in range(20):
            found = reader.offset_for_time(10 * number + 1)
            assert found is not None
            assert found.offset == 2 * number + 1
    assert len(mapped_names(env)) <= 2


def mapped_names(env: SeededEnv) -> list[str]:
    """Return the names of the partition's mapped files; the disk refuses to truncate these."""
    found = []
    for name in names(env):
        file = env.files.open(path_of(name), write=True)
        try:
            file.truncate(0)
        except AssertionError:
            found.append(name)
    return found


class TestWalkFile:
    def positions(self, data: bytes, chunk_bytes: int, start: int = 0) -> list[int]:
        files = seeded_env(1).files
        file = files.open("/log", create=True)
        file.pwrite(data, 0)
        walk = walk_file(file, "/log", start, len(data), chunk_bytes=chunk_bytes)
        return [position for position, _ in walk]

    @pytest.mark.parametrize("chunk_bytes", [17, 61, 70, 100, 1000])
    def test_every_batch_is_found_with_any_chunk_size(self, chunk_bytes: int) -> None:
        sizes = [len(batch([1] * count)) for count in (1, 9, 1, 30, 2)]
        data = b"".join(bytes(batch([1] * count)) for count in (1, 9, 1, 30, 2))
        expected = [sum(sizes[:number]) for number in range(5)]
        assert self.positions(data, chunk_bytes) == expected
        assert self.positions(data[:-1], chunk_bytes) == expected[:-1]
        assert self.positions(data + b"\0" * 5, chunk_bytes) == expected
        assert self.positions(data, chunk_bytes, expected[2]) == expected[2:]

    @pytest.mark.parametrize("chunk_bytes", [20, 80, 1000])
    def test_a_bad_frame_is_located_in_the_file(self, chunk_bytes: int) -> None:
        good = bytes(batch([1]))
        bad = good[:8] + b"\xff" * 4 + good[12:]
        with pytest.raises(CorruptBatch) as caught:
            self.positions(good * 3 + bad, chunk_bytes)
        assert (caught.value.path, caught.value.position) == ("/log", 3 * len(good))

    def test_a_huge_length_ends_the_walk_and_allocates_nothing(self) -> None:
        good = bytes(batch([1]))
        huge = good[:8] + b"\x7f\xff\xff\xff" + good[12:]
        assert self.positions(good + huge, 50) == [0]
