"""The real file system and `DamageFileSystem` fulfil one contract on files, maps and locks.

`DamageFileSystem` is useful only as far as it behaves like the real one.
"""

import pytest
from tests.contracts.place import Place, place

from tidelog.env import MAX_BUFFERS_PER_WRITE, mappable_file

__all__ = ["place"]  # the fixture


class TestOpen:
    def test_missing_file_is_not_found(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError):
            place.files.open(place.path("a"))
        with pytest.raises(FileNotFoundError):
            place.files.open(place.path("a"), write=True)
        assert place.names() == []

    def test_create_makes_an_empty_writable_file(self, place: Place) -> None:
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

    def test_a_file_as_a_directory_is_an_error(self, place: Place) -> None:
        place.put("a", b"")
        with pytest.raises(NotADirectoryError):
            place.files.open(place.path("a/b"))
        with pytest.raises(NotADirectoryError):
            place.files.open(place.path("a/b"), create=True)

    @pytest.mark.parametrize("create", [False, True])
    def test_directory_cannot_be_written(self, place: Place, create: bool) -> None:
        with pytest.raises(IsADirectoryError):
            place.files.open(place.root, write=True, create=create)

    def test_directory_cannot_be_read(self, place: Place) -> None:
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

    def test_a_gathered_write_is_one_write(self, place: Place) -> None:
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
    def test_a_negative_position_is_an_error(self, place: Place, position: int) -> None:
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
    def test_a_file_is_truncated_extended_and_emptied(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"0123456789"), write=True)
        file.truncate(4)
        assert file.pread(99, 0) == b"0123"
        file.truncate(6)
        assert file.pread(99, 0) == b"0123\0\0"
        file.truncate(6)
        file.truncate(0)
        assert file.size() == 0
        file.close()

    def test_a_negative_size_is_an_error(self, place: Place) -> None:
        file = place.files.open(place.put("a", b"abc"), write=True)
        with pytest.raises(OSError, match="Invalid argument"):
            file.truncate(-1)
        file.close()
        assert place.get("a") == b"abc"


class TestResidentMap:
    """Maps of a file's bytes that are already in memory. Some file systems don't support such maps.

    `DamageFileSystem` does not support them. So each read is a call of the file system, and a test
    can let it fail.
    """

    @pytest.mark.parametrize(("start", "size"), [(0, 20_000), (1, 19_999), (4_096, 1), (9_999, 7)])
    def test_a_part_is_as_it_is_read(self, place: Place, start: int, size: int) -> None:
        content = bytes(number % 251 for number in range(20_000))
        file = place.files.open(place.put("a", content))
        if (local := mappable_file(file)) is not None:
            view = local.map_resident(size, start)
            file.close()
            assert view is not None
            assert view.readonly
            assert bytes(view) == content[start : start + size]

    @pytest.mark.parametrize(("start", "size"), [(0, 0), (0, 20_001), (20_000, 1), (4_096, 20_000)])
    def test_more_than_there_is_is_left_to_reading(
        self, place: Place, start: int, size: int
    ) -> None:
        file = place.files.open(place.put("a", bytes(20_000)))
        if (local := mappable_file(file)) is not None:
            assert local.map_resident(size, start) is None
        file.close()


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

    @pytest.mark.parametrize("size", [4, 4_096, 4_097, 100_000])
    def test_a_map_of_a_file_that_grew_has_its_former_size(self, place: Place, size: int) -> None:
        path = place.put("a", b"0" * size)
        file = place.files.open(path, write=True)
        view = place.files.map(path)
        file.pwrite(b"more", size)
        assert bytes(view) == b"0" * size
        assert bytes(place.files.map(path)) == b"0" * size + b"more"
        file.close()

    @pytest.mark.parametrize("size", [4, 100_000])
    def test_a_new_map_shows_changes_and_an_old_map_may(self, place: Place, size: int) -> None:
        path = place.put("a", b"0" * size)
        file = place.files.open(path, write=True)
        view = place.files.map(path)
        file.pwrite(b"A", 0)
        assert bytes(view[:2]) in (b"A0", b"00"), "a small one may be a copy"
        assert bytes(place.files.map(path)[:2]) == b"A0"
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


class TestLock:
    def test_a_second_lock_is_refused_until_the_first_is_released(self, place: Place) -> None:
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
