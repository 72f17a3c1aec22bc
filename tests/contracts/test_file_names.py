"""Contract of the real file system and `DamageFileSystem` on names, directories and renames."""

import pytest
from tests.contracts.place import Place, place

from tidelog.env import DirEntry

__all__ = ["place"]  # the fixture


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

    def test_a_set_modification_time_is_returned(self, place: Place) -> None:
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
    def test_a_list_is_sorted_and_marks_directories(self, place: Place) -> None:
        place.put("b", b"")
        place.files.make_dirs(place.path("c/d"))
        place.put("a", b"")
        assert place.files.list_dir(place.root) == [
            DirEntry("a", False),
            DirEntry("b", False),
            DirEntry("c", True),
        ]

    def test_listing_a_missing_directory_or_a_file_is_an_error(self, place: Place) -> None:
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

    def test_removing_a_missing_directory_or_a_file_is_an_error(self, place: Place) -> None:
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

    def test_a_moved_directory_keeps_its_content(self, place: Place) -> None:
        place.files.make_dirs(place.path("x"))
        place.put("x/a", b"abc")
        place.files.rename(place.path("x"), place.path("y"))
        assert place.names() == ["y"]
        assert place.get("y/a") == b"abc"

    def test_a_missing_source_is_an_error(self, place: Place) -> None:
        place.put("b", b"kept")
        with pytest.raises(FileNotFoundError):
            place.files.rename(place.path("a"), place.path("b"))
        assert place.get("b") == b"kept"

    def test_a_missing_target_directory_is_an_error(self, place: Place) -> None:
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

    def test_a_directory_cannot_be_moved_into_itself(self, place: Place) -> None:
        place.files.make_dirs(place.path("x/y"))
        with pytest.raises(OSError, match="Invalid argument"):
            place.files.rename(place.path("x"), place.path("x/y/z"))
