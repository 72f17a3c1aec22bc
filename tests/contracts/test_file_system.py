"""One contract, two file systems: the machine's own and the one that tests break.

What the damage file system promises is worth something only as far as the real one does the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults import DamageFileSystem

from tidelog.env import MAX_BUFFERS_PER_WRITE, DirEntry, FileSystem, OsFileSystem


@dataclass(frozen=True, slots=True)
class Place:
    """A file system and an empty directory on it."""

    files: FileSystem
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes) -> str:
        path = self.path(name)
        file = self.files.open(path, create=True)
        if data:
            assert file.pwrite(data, 0) == len(data)
        file.close()
        return path

    def get(self, name: str) -> bytes:
        file = self.files.open(self.path(name))
        try:
            return file.pread(file.size() + 1, 0)
        finally:
            file.close()

    def names(self) -> list[str]:
        return [entry.name for entry in self.files.list_dir(self.root)]


@pytest.fixture(params=["os", "damage"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "os":
        yield Place(OsFileSystem(), str(tmp_path))
        return
    files = DamageFileSystem()
    files.make_dirs("/data")
    yield Place(files, "/data")


class TestOpen:
    def test_missing_file_is_not_found(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.open(place.path("a"))
        with pytest.raises(FileNotFoundError):
            place.files.open(place.path("a"), write=True)
        assert place.names() == []

    def test_create_makes_an_empty_file_and_lets_write(self, place: Place) -> None:
        file = place.files.open(place.path("a"), create=True)
        assert file.size() == 0
        assert file.pwrite(b"x", 0) == 1
        file.close()
        assert place.get("a") == b"x"

    def test_create_never_truncates(self, place: Place) -> None:
        place.put("a", b"kept")
        place.files.open(place.path("a"), create=True).close()
        assert place.get("a") == b"kept"

    def test_create_needs_the_directory(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.open(place.path("no/a"), create=True)

    def test_file_as_directory(self, place: Place) -> None:
        place.put("a", b"")
        with pytest.raises(NotADirectoryError):
            place.files.open(place.path("a/b"))
        with pytest.raises(NotADirectoryError):
            place.files.open(place.path("a/b"), create=True)

    @pytest.mark.parametrize("create", [False, True])
    def test_directory_can_not_be_written(self, place: Place, create: bool) -> None:
        with pytest.raises(IsADirectoryError):
            place.files.open(place.root, write=True, create=create)

    def test_directory_can_not_be_read(self, place: Place) -> None:
        file = place.files.open(place.root)
        with pytest.raises(IsADirectoryError):
            file.pread(1, 0)
        file.close()


class TestReadAndWrite:
    def test_read_stops_at_the_end(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"0123456789"))
        assert file.pread(4, 3) == b"3456"
        assert file.pread(100, 8) == b"89"
        assert file.pread(5, 10) == b""
        assert file.pread(5, 999) == b""
        assert file.pread(0, 0) == b""
        assert file.size() == 10
        file.close()

    def test_write_inside_and_across_the_end(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"0123"), write=True)
        assert file.pwrite(b"AB", 1) == 2
        assert file.pwrite(bytearray(b"CD"), 3) == 2
        assert file.pwrite(memoryview(b"xEx")[1:2], 5) == 1
        assert file.pread(10, 0) == b"0ABCDE"
        file.close()

    def test_gap_reads_as_zeros(self, place: Place) -> None:
        file = place.files.open(place.path("a"), create=True)
        file.pwrite(b"x", 3)
        assert file.pread(9, 0) == b"\0\0\0x"
        file.close()

    def test_empty_write_changes_nothing(self, place: Place) -> None:
        file = place.files.open(place.path("a"), create=True)
        assert file.pwrite(b"", 7) == 0
        assert file.pwritev([], 7) == 0
        assert file.size() == 0
        file.close()

    def test_gathered_write(self, place: Place) -> None:
        file = place.files.open(place.path("a"), create=True)
        assert file.pwritev([b"ab", bytearray(b""), memoryview(b"cd"), b"e"], 1) == 5
        assert file.pread(9, 0) == b"\0abcde"
        file.close()

    def test_too_many_buffers(self, place: Place) -> None:
        file = place.files.open(place.path("a"), create=True)
        assert file.pwritev([b"x"] * MAX_BUFFERS_PER_WRITE, 0) == MAX_BUFFERS_PER_WRITE
        with pytest.raises(OSError, match="Invalid argument"):
            file.pwritev([b"x"] * (MAX_BUFFERS_PER_WRITE + 1), 0)
        file.close()

    @pytest.mark.parametrize("position", [-1, -(2**40)])
    def test_negative_position(self, place: Place, position: int) -> None:
        file = place.files.open(place.put("a", b"abc"), write=True)
        with pytest.raises(OSError, match="Invalid argument"):
            file.pread(1, position)
        with pytest.raises(OSError, match="Invalid argument"):
            file.pwrite(b"x", position)
        file.close()

    def test_two_handles_see_one_file(self, place: Place) -> None:
        path = place.put("a", b"old")
        one, two = place.files.open(path, write=True), place.files.open(path)
        one.pwrite(b"new and longer", 0)
        assert two.pread(99, 0) == b"new and longer"
        assert two.size() == 14
        one.close()
        two.close()

    def test_read_only_handle_refuses_changes(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"abc"))
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.pwrite(b"x", 0)
        with pytest.raises(OSError, match=r"Invalid argument|Bad file descriptor"):
            file.truncate(0)
        file.close()
        assert place.get("a") == b"abc"

    def test_closed_handle_refuses_everything(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"abc"), write=True)
        file.close()
        file.close()
        for call in (
            lambda: file.pread(1, 0),
            lambda: file.pwrite(b"x", 0),
            lambda: file.pwritev([b"x"], 0),
            file.size,
            lambda: file.truncate(0),
        ):
            with pytest.raises(OSError, match="Bad file descriptor"):
                call()

    def test_closed_handle_refuses_sync(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"abc"), write=True)
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.sync()

    def test_sync_keeps_the_bytes(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"abc"), write=True)
        file.sync()
        file.sync()
        file.close()
        assert place.get("a") == b"abc"


class TestTruncate:
    def test_cut_extend_and_cut_to_nothing(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"0123456789"), write=True)
        file.truncate(4)
        assert file.pread(99, 0) == b"0123"
        file.truncate(6)
        assert file.pread(99, 0) == b"0123\0\0"
        file.truncate(6)
        file.truncate(0)
        assert file.size() == 0
        file.close()

    def test_negative_size(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"abc"), write=True)
        with pytest.raises(OSError, match="Invalid argument"):
            file.truncate(-1)
        file.close()
        assert place.get("a") == b"abc"


class TestMap:
    def test_whole_part_and_more_than_there_is(self, place: Place) -> None:
        path = place.put("a", b"0123456789")
        assert bytes(place.files.map(path)) == b"0123456789"
        assert bytes(place.files.map(path, 4)) == b"0123"
        assert bytes(place.files.map(path, 99)) == b"0123456789"
        assert bytes(place.files.map(path, 0)) == b""

    def test_empty_file(self, place: Place) -> None:
        assert bytes(place.files.map(place.put("a", b""))) == b""

    def test_is_a_read_only_view_of_bytes(self, place: Place) -> None:
        view = place.files.map(place.put("a", b"abc"))
        assert view.readonly
        assert view.format == "B"
        assert view[1] == ord("b")

    def test_sees_later_writes_also_when_the_file_grew(self, place: Place) -> None:
        path = place.put("a", b"0123")
        file = place.files.open(path, write=True)
        view = place.files.map(path)
        file.pwrite(b"A", 0)
        file.pwrite(b"more", 4)
        file.pwrite(b"B", 1)
        assert bytes(view) == b"AB23"
        assert bytes(place.files.map(path)) == b"AB23more"
        file.close()

    def test_outlives_the_name(self, place: Place) -> None:
        path = place.put("a", b"old")
        view = place.files.map(path)
        place.put("b", b"new")
        place.files.rename(place.path("b"), path)
        assert bytes(view) == b"old"
        place.files.remove(path)
        assert bytes(view) == b"old"

    def test_missing_file_and_directory(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.map(place.path("a"))
        with pytest.raises(OSError, match=r"No such device|Is a directory"):
            place.files.map(place.root)


class TestStat:
    def test_file(self, place: Place) -> None:
        found = place.files.stat(place.put("a", b"abc"))
        assert (found.size, found.is_dir) == (3, False)

    def test_directory(self, place: Place) -> None:
        assert place.files.stat(place.root).is_dir

    def test_missing(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.stat(place.path("a"))

    def test_identity_follows_the_file_not_the_name(self, place: Place) -> None:
        one, two = place.put("a", b""), place.put("b", b"")
        first, second = place.files.stat(one).identity, place.files.stat(two).identity
        assert first != second
        place.files.rename(two, one)
        assert place.files.stat(one).identity == second

    def test_mtime_as_set(self, place: Place) -> None:
        path = place.put("a", b"")
        place.files.set_mtime(path, 1_360_342_800_123)
        assert place.files.stat(path).mtime_ms == 1_360_342_800_123
        with pytest.raises(FileNotFoundError):
            place.files.set_mtime(place.path("b"), 0)

    def test_exists(self, place: Place) -> None:
        place.put("a", b"")
        assert place.files.exists(place.path("a"))
        assert place.files.exists(place.root)
        assert not place.files.exists(place.path("b"))
        assert not place.files.exists(place.path("a/b"))
        assert not place.files.exists(place.path("no/b"))


class TestDirectories:
    def test_list_is_sorted_and_tells_directories(self, place: Place) -> None:
        place.put("b", b"")
        place.files.make_dirs(place.path("c/d"))
        place.put("a", b"")
        assert place.files.list_dir(place.root) == [
            DirEntry("a", False),
            DirEntry("b", False),
            DirEntry("c", True),
        ]

    def test_list_of_nothing_and_of_a_file(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.list_dir(place.path("no"))
        with pytest.raises(NotADirectoryError):
            place.files.list_dir(place.put("a", b""))

    def test_make_dirs_twice_is_fine(self, place: Place) -> None:
        place.files.make_dirs(place.path("x/y/z"))
        place.files.make_dirs(place.path("x/y/z"))
        assert place.files.list_dir(place.path("x/y")) == [DirEntry("z", True)]

    def test_make_dirs_over_a_file(self, place: Place) -> None:
        path = place.put("a", b"")
        with pytest.raises(FileExistsError):
            place.files.make_dirs(path)
        with pytest.raises((NotADirectoryError, FileExistsError)):
            place.files.make_dirs(f"{path}/b")

    def test_remove_dir(self, place: Place) -> None:
        place.files.make_dirs(place.path("x/y"))
        with pytest.raises(OSError, match="not empty"):
            place.files.remove_dir(place.path("x"))
        place.files.remove_dir(place.path("x/y"))
        place.files.remove_dir(place.path("x"))
        assert place.names() == []

    def test_remove_dir_of_nothing_and_of_a_file(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.remove_dir(place.path("x"))
        with pytest.raises(NotADirectoryError):
            place.files.remove_dir(place.put("a", b""))

    def test_sync_dir(self, place: Place) -> None:
        place.files.sync_dir(place.root)
        with pytest.raises(FileNotFoundError):
            place.files.sync_dir(place.path("no"))


class TestRemove:
    def test_handle_outlives_the_name(self, place: Place) -> None:
        path = place.put("a", b"abc")
        file = place.files.open(path, write=True)
        place.files.remove(path)
        assert place.names() == []
        file.pwrite(b"X", 0)
        assert file.pread(9, 0) == b"Xbc"
        place.put("a", b"other")
        assert file.pread(9, 0) == b"Xbc"
        file.close()

    def test_missing_and_directory(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.remove(place.path("a"))
        with pytest.raises((IsADirectoryError, PermissionError)):
            place.files.remove(place.root)


class TestRename:
    def test_moves_the_file(self, place: Place) -> None:
        path = place.put("a", b"abc")
        place.files.rename(path, place.path("b"))
        assert place.names() == ["b"]
        assert place.get("b") == b"abc"

    def test_replaces_a_file_and_open_handles_keep_the_old_one(self, place: Place) -> None:
        old, new = place.put("a", b"old"), place.put("b", b"new")
        file = place.files.open(old)
        place.files.rename(new, old)
        assert place.names() == ["a"]
        assert place.get("a") == b"new"
        assert file.pread(9, 0) == b"old"
        file.close()

    def test_to_itself_changes_nothing(self, place: Place) -> None:
        path = place.put("a", b"abc")
        place.files.rename(path, path)
        assert place.get("a") == b"abc"

    def test_between_directories(self, place: Place) -> None:
        place.files.make_dirs(place.path("x"))
        path = place.put("a", b"abc")
        place.files.rename(path, place.path("x/b"))
        assert place.names() == ["x"]
        assert place.get("x/b") == b"abc"

    def test_directory_takes_its_content_along(self, place: Place) -> None:
        place.files.make_dirs(place.path("x"))
        place.put("x/a", b"abc")
        place.files.rename(place.path("x"), place.path("y"))
        assert place.names() == ["y"]
        assert place.get("y/a") == b"abc"

    def test_missing_source(self, place: Place) -> None:
        place.put("b", b"kept")
        with pytest.raises(FileNotFoundError):
            place.files.rename(place.path("a"), place.path("b"))
        assert place.get("b") == b"kept"

    def test_missing_target_directory(self, place: Place) -> None:
        path = place.put("a", b"kept")
        with pytest.raises(FileNotFoundError):
            place.files.rename(path, place.path("no/a"))
        assert place.get("a") == b"kept"

    def test_file_and_directory_do_not_replace_each_other(self, place: Place) -> None:
        path = place.put("a", b"abc")
        place.files.make_dirs(place.path("x"))
        with pytest.raises(IsADirectoryError):
            place.files.rename(path, place.path("x"))
        with pytest.raises(NotADirectoryError):
            place.files.rename(place.path("x"), path)
        assert place.names() == ["a", "x"]

    def test_directory_replaces_an_empty_one_only(self, place: Place) -> None:
        for name in ("x", "y", "z"):
            place.files.make_dirs(place.path(name))
        place.put("x/a", b"abc")
        with pytest.raises(OSError, match="not empty"):
            place.files.rename(place.path("y"), place.path("x"))
        place.files.rename(place.path("x"), place.path("z"))
        assert place.names() == ["y", "z"]
        assert place.get("z/a") == b"abc"

    def test_directory_does_not_go_into_itself(self, place: Place) -> None:
        place.files.make_dirs(place.path("x/y"))
        with pytest.raises(OSError, match="Invalid argument"):
            place.files.rename(place.path("x"), place.path("x/y/z"))


class TestLock:
    def test_second_holder_is_refused_until_the_first_lets_go(self, place: Place) -> None:
        path = place.path(".lock")
        held = place.files.lock(path)
        with pytest.raises(BlockingIOError):
            place.files.lock(path)
        held.close()
        held.close()
        again = place.files.lock(path)
        with pytest.raises(BlockingIOError):
            place.files.lock(path)
        again.close()

    def test_creates_the_file_and_leaves_its_bytes(self, place: Place) -> None:
        place.files.lock(place.path("new")).close()
        assert place.get("new") == b""
        path = place.put("old", b"abc")
        place.files.lock(path).close()
        assert place.get("old") == b"abc"

    def test_locked_file_can_be_read_and_written(self, place: Place) -> None:
        path = place.path(".lock")
        held = place.files.lock(path)
        file = place.files.open(path, write=True)
        file.pwrite(b"1234", 0)
        file.close()
        assert place.get(".lock") == b"1234"
        held.close()
