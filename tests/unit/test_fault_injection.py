"""DamageFileSystem injects the requested failures, and checks the use of maps and syncs."""

import errno
from collections.abc import Callable

import pytest
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep
from tests.unit.test_faults import disk, durable, outcomes, put


class TestMaps:
    def test_cutting_a_mapped_file_fails_the_test(self) -> None:
        files = disk()
        file = put(files, "/d/a", b"abcd")
        view = files.map("/d/a", 2)
        with pytest.raises(AssertionError, match="a mapped file is cut from 4 to 3 bytes"):
            file.truncate(3)
        assert bytes(view) == b"ab"

    def test_a_mapped_file_that_grew_cannot_be_truncated(self) -> None:
        files = disk()
        file = put(files, "/d/a", b"abcd")
        view = files.map("/d/a")
        file.pwrite(b"ef", 4)
        with pytest.raises(AssertionError):
            file.truncate(3)
        del view
        file.truncate(3)
        assert file.pread(9, 0) == b"abc"

    def test_same_size_and_longer_is_no_cut(self) -> None:
        files = disk()
        file = put(files, "/d/a", b"abcd")
        view = files.map("/d/a")
        file.truncate(4)
        file.truncate(9)
        assert bytes(view) == b"abcd"

    def test_every_derived_view_counts(self) -> None:
        files = disk()
        file = put(files, "/d/a", b"abcd")
        part = files.map("/d/a")[1:2]
        with pytest.raises(AssertionError):
            file.truncate(0)
        part.release()


class TestFailures:
    CALLS: tuple[Callable[[DamageFileSystem], object], ...] = (
        lambda files: files.open("/d/new", create=True),
        lambda files: files.open("/d/a", write=True).pwrite(b"x", 0),
        lambda files: files.open("/d/a", write=True).truncate(0),
        lambda files: files.open("/d/a", write=True).sync(),
        lambda files: files.rename("/d/a", "/d/b"),
        lambda files: files.remove("/d/a"),
        lambda files: files.make_dirs("/d/x"),
        lambda files: files.remove_dir("/e"),
        lambda files: files.sync_dir("/d"),
        lambda files: files.set_mtime("/d/a", 5),
        lambda files: files.lock("/d/.lock"),
    )

    def prepared(self) -> DamageFileSystem:
        files = disk()
        files.make_dirs("/e")
        durable(files, "/d/a", b"abc").close()
        return files

    @pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
    @pytest.mark.parametrize("number", range(len(CALLS)))
    def test_a_failed_call_has_no_effect(self, number: int, kind: FaultKind) -> None:
        files = self.prepared()
        before = files.crash(Keep.EVERYTHING).fingerprint()
        files.writes.fault = Fault(files.calls, kind)
        with pytest.raises(OSError, match=r"error|space") as caught:
            self.CALLS[number](files)
        assert caught.value.errno == (errno.EIO if kind is FaultKind.EIO else errno.ENOSPC)
        assert files.crash(Keep.EVERYTHING).fingerprint() == before
        assert len(files.writes.failed) == 1

    def test_only_the_nth_call_fails(self) -> None:
        files = self.prepared()
        files.writes.fault = Fault(files.calls + 1, FaultKind.EIO)
        file = files.open("/d/a", write=True)
        file.pwrite(b"1", 0)
        with pytest.raises(OSError, match="Input/output"):
            file.pwrite(b"2", 1)
        file.pwrite(b"3", 2)
        assert file.pread(9, 0) == b"1b3"

    def test_sticky_fault_stays(self) -> None:
        files = self.prepared()
        files.writes.fault = Fault(files.calls, FaultKind.NO_SPACE, sticky=True)
        file = files.open("/d/a", write=True)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                file.pwrite(b"1", 0)
        assert file.pread(9, 0) == b"abc"

    def test_a_short_write_writes_half_and_returns_the_size(self) -> None:
        files = self.prepared()
        file = files.open("/d/a", write=True)
        files.writes.fault = Fault(files.calls, FaultKind.SHORT_WRITE)
        assert file.pwritev([b"12", b"345"], 0) == 2
        assert file.pread(9, 0) == b"12c"
        assert file.pwritev([b"12", b"345"], 0) == 5

    def test_read_fault_counts_reading_calls(self) -> None:
        files = self.prepared()
        file = files.open("/d/a")
        files.reads.fault = Fault(files.reads.calls + 1, FaultKind.EIO)
        assert file.pread(3, 0) == b"abc"
        with pytest.raises(OSError, match="Input/output"):
            file.pread(3, 0)
        assert file.pread(3, 0) == b"abc"

    def test_writes_before_a_failed_sync_stay_in_doubt(self) -> None:
        files = self.prepared()
        file = files.open("/d/a", write=True)
        file.pwrite(b"X", 0)
        files.writes.fault = Fault(files.calls, FaultKind.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        other = files.open("/d/a", write=True)
        other.pwrite(b"Y", 1)
        other.sync()
        assert outcomes(files, "/d/a") == {b"aYc", b"XYc"}
        assert files.crash(Keep.SYNCED).contents()["/d/a"] == b"aYc"

    def test_syncing_again_after_a_failure_fails_the_test(self) -> None:
        files = self.prepared()
        file = files.open("/d/a", write=True)
        files.writes.fault = Fault(files.calls, FaultKind.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        with pytest.raises(AssertionError, match="synced again"):
            file.sync()

    def test_a_full_disk_accepts_a_partial_write_and_then_nothing(self) -> None:
        files = DamageFileSystem(limit_bytes=10)
        file = put(files, "/a", b"12345678")
        assert file.pwrite(b"abcd", 8) == 2
        with pytest.raises(OSError, match="No space"):
            file.pwrite(b"cd", 10)
        assert file.pwrite(b"XY", 0) == 2
        with pytest.raises(OSError, match="No space"):
            file.truncate(11)
        assert files.used_bytes() == 10

    def test_full_disk_works_again_once_raised_or_freed(self) -> None:
        files = DamageFileSystem(limit_bytes=4)
        file = put(files, "/a", b"1234")
        other = files.open("/b", create=True)
        with pytest.raises(OSError, match="No space"):
            other.pwrite(b"x", 0)
        files.limit_bytes = 5
        assert other.pwrite(b"x", 0) == 1
        files.remove("/a")
        assert files.used_bytes() == 5
        file.close()
        assert other.pwrite(b"yyy", 1) == 3
