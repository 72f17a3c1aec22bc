"""The clocks, Env, and the behavior that needs the real file system."""

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.faults import START_MS, seeded_env
from tests.worlds.needs import need

from tidelog.env import Clock, Env, ManualClock, OsFileSystem, SystemClock, UnsyncedFiles, os_env

BILLENNIUM_MS = 1_000_000_000_000  # 9 September 2001


def times(clock: Clock) -> tuple[int, int]:
    return clock.now_ms(), clock.monotonic_ms()


class TestManualClock:
    def test_starts_at_the_given_time(self) -> None:
        assert times(ManualClock(5)) == (5, 0)
        assert times(ManualClock()) == (0, 0)

    def test_advance_moves_both_times(self) -> None:
        clock = ManualClock(100)
        clock.advance(7)
        assert times(clock) == (107, 7)

    def test_advance_back_moves_wall_time_only(self) -> None:
        clock = ManualClock(100)
        clock.advance(10)
        clock.advance(-30)
        assert times(clock) == (80, 10)

    def test_set_never_sets_back_the_monotonic_clock(self) -> None:
        clock = ManualClock(100)
        clock.set(150)
        assert times(clock) == (150, 50)
        clock.set(120)
        assert times(clock) == (120, 50)

    def test_jump_moves_wall_time_while_none_passes(self) -> None:
        clock = ManualClock(100)
        clock.jump(10_000)
        assert times(clock) == (10_000, 0)
        clock.jump(5)
        assert times(clock) == (5, 0)


def test_system_clock_counts_milliseconds_and_runs_on() -> None:
    clock = SystemClock()
    first, second = clock.monotonic_ms(), clock.monotonic_ms()
    assert first <= second
    assert BILLENNIUM_MS < clock.now_ms() < 10 * BILLENNIUM_MS


def test_os_env_is_the_real_thing_and_draws_differ() -> None:
    env = os_env()
    assert isinstance(env.files, OsFileSystem)
    assert isinstance(env.clock, SystemClock)
    assert env.random.getrandbits(64) != os_env().random.getrandbits(64)


def test_env_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Env().clock = ManualClock()  # type: ignore[misc]  # frozen: this is what is tested


class TestSeededEnv:
    def test_same_seed_same_draws(self) -> None:
        one, two, other = seeded_env(3), seeded_env(3), seeded_env(4)
        draws = [[env.random.getrandbits(32) for _ in range(4)] for env in (one, two, other)]
        assert draws[0] == draws[1]
        assert draws[0] != draws[2]

    def test_files_take_their_times_from_the_clock(self) -> None:
        env = seeded_env(0)
        assert env.clock.now_ms() == START_MS
        env.clock.advance(25)
        env.files.open("/a", create=True).close()
        assert env.files.stat("/a").mtime_ms == START_MS + 25


class TestOsFileSystem:
    def test_new_names_are_for_the_owner_alone(self, tmp_path: Path) -> None:
        files = OsFileSystem()
        files.make_dirs(str(tmp_path / "a"))
        files.open(str(tmp_path / "b"), create=True).close()
        assert (tmp_path / "a").stat().st_mode & 0o077 == 0
        assert (tmp_path / "b").stat().st_mode & 0o077 == 0

    def test_a_file_has_its_size_mode_and_time_in_ms(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"abc")
        path.chmod(0o640)
        os.utime(path, ns=(0, 1_500_000_000_123_999_999))
        found = OsFileSystem().stat(str(path))
        assert (found.size, found.mtime_ms, found.permissions) == (3, 1_500_000_000_123, 0o640)
        assert not found.is_dir
        OsFileSystem().set_mtime(str(path), 1_600_000_000_456)
        assert path.stat().st_mtime_ns == 1_600_000_000_456_000_000
        assert OsFileSystem().stat(str(path)).mtime_ms == 1_600_000_000_456

    def test_a_dangling_link_is_a_name(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        assert OsFileSystem().exists(str(tmp_path / "link"))

    def test_maps_need_no_descriptor(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"abc")
        before = _open_descriptors()
        views = [OsFileSystem().map(str(path)) for _ in range(50)]
        assert _open_descriptors() == before
        assert {bytes(view) for view in views} == {b"abc"}

    def test_a_map_ends_with_its_last_view(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"x" * resource.getpagesize() * 3)
        view = OsFileSystem().map(str(path))
        part = view[5:10]
        del view
        gc.collect()
        assert bytes(part) == b"xxxxx"
        assert _is_mapped(path)
        del part
        gc.collect()
        assert not _is_mapped(path)

    def test_a_failed_call_leaks_no_descriptor(self, tmp_path: Path) -> None:
        files = OsFileSystem()
        path = str(tmp_path / "lock")
        held = files.lock(path)
        before = _open_descriptors()
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                files.lock(path)
            with pytest.raises(OSError, match=r"No such device|Is a directory"):
                files.map(str(tmp_path))
        assert _open_descriptors() == before
        held.close()


def _open_descriptors() -> int:
    for listing in ("/proc/self/fd", "/dev/fd"):
        if Path(listing).is_dir():
            return len(list(Path(listing).iterdir()))
    raise AssertionError("this system lists no descriptors")


def _is_mapped(path: Path) -> bool:
    maps = Path("/proc/self/maps")
    need(maps.exists(), "/proc/self/maps")
    return str(path) in maps.read_text()


_JAVA_LIKE_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_conflicts_with_a_jvms_lock(tmp_path: Path) -> None:
    """Java's FileChannel.lock takes a POSIX record lock, which flock on Linux would ignore."""
    path = str(tmp_path / ".lock")
    command = [sys.executable, "-c", _JAVA_LIKE_LOCK, path]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            OsFileSystem().lock(path)
        other.communicate(b"")
    OsFileSystem().lock(path).close()


def test_unsynced_files_are_written_and_never_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: synced.append(name), raising=False)
    path = str(tmp_path / "a")
    for disk in (OsFileSystem(), UnsyncedFiles()):
        file = disk.open(path, create=True)
        assert file.pwrite(b"x", 0) == 1
        file.sync()
        disk.sync_dir(str(tmp_path))
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.sync()
        with pytest.raises(FileNotFoundError):
            disk.sync_dir(f"{path}-missing")
        assert bool(synced) == (type(disk) is OsFileSystem)
        assert disk.open(path).pread(2, 0) == b"x"
        synced.clear()
