"""DamageFileSystem follows the rules in its docstring: one test per rule and per failure."""

import pytest
from tests.faults import (
    SECTOR_SIZE,
    CrashState,
    DamageFileSystem,
    Keep,
    reopen,
)

from tidelog.env import File, ManualClock

SEEDS = range(400)


def disk() -> DamageFileSystem:
    files = DamageFileSystem(clock=ManualClock(1000))
    files.make_dirs("/d")
    files.settle()
    return files


def put(files: DamageFileSystem, path: str, data: bytes) -> File:
    file = files.open(path, create=True)
    file.pwrite(data, 0)
    return file


def durable(files: DamageFileSystem, path: str, data: bytes) -> File:
    file = put(files, path, data)
    files.settle()
    return file


def at_the_end(files: DamageFileSystem) -> list[CrashState]:
    return list(files.crash_states(SEEDS, prefix=len(files.journal)))


def outcomes(files: DamageFileSystem, path: str) -> set[bytes | None]:
    """Return the contents that a file may have if a crash follows the last call; None if lost."""
    return {state.contents().get(path) for state in at_the_end(files)}


def listings(files: DamageFileSystem) -> set[frozenset[str]]:
    return {
        frozenset(path for path, data in state.contents().items() if data is not None)
        for state in at_the_end(files)
    }


class TestBytes:
    def test_synced_bytes_are_kept_in_every_crash(self) -> None:
        files = disk()
        file = durable(files, "/d/a", b"old")
        file.pwrite(b"new", 0)
        file.truncate(2)
        file.sync()
        assert outcomes(files, "/d/a") == {b"ne"}

    def test_unsynced_write_is_kept_lost_or_torn_at_any_byte(self) -> None:
        files = disk()
        durable(files, "/d/a", b"....").pwrite(b"ABCD", 0)
        found = outcomes(files, "/d/a")
        assert {b"....", b"ABCD", b"A...", b"AB..", b"ABC.", b"..C."} <= found

    def test_large_write_is_torn_by_sectors_of_the_file(self) -> None:
        files = disk()
        old = b"." * SECTOR_SIZE * 4
        durable(files, "/d/a", old).pwrite(b"X" * SECTOR_SIZE * 3, SECTOR_SIZE // 2)
        half, full = SECTOR_SIZE // 2, SECTOR_SIZE
        middle_lost = b"." * half + b"X" * half + b"." * full + b"X" * (full + half) + b"." * half
        only_middle = b"." * full + b"X" * full + b"." * 2 * full
        assert {middle_lost, only_middle} <= outcomes(files, "/d/a")

    def test_later_write_survives_an_earlier_lost_one(self) -> None:
        files = disk()
        file = durable(files, "/d/a", b"..")
        file.pwrite(b"A", 0)
        file.pwrite(b"B", 1)
        assert outcomes(files, "/d/a") == {b"..", b"A.", b".B", b"AB"}

    def test_size_survives_without_bytes_as_zeros(self) -> None:
        files = disk()
        durable(files, "/d/a", b"..").pwrite(b"AB", 2)
        assert {b"..", b"..\0\0", b"..A", b"..A\0", b"..AB"} <= outcomes(files, "/d/a")

    def test_lost_write_below_a_kept_one_leaves_zeros(self) -> None:
        files = disk()
        file = durable(files, "/d/a", b"")
        file.pwrite(b"A", 0)
        file.pwrite(b"B", 1)
        assert outcomes(files, "/d/a") == {b"", b"\0", b"\0\0", b"A", b"A\0", b"\0B", b"AB"}

    def test_truncation_is_kept_or_lost_and_frees_later_writes(self) -> None:
        files = disk()
        file = durable(files, "/d/a", b"....")
        file.truncate(1)
        file.pwrite(b"A", 1)
        assert outcomes(files, "/d/a") == {b"....", b".", b".A..", b".A", b".\0"}

    def test_files_suffer_independently(self) -> None:
        files = disk()
        one, two = durable(files, "/d/a", b"."), durable(files, "/d/b", b".")
        one.pwrite(b"A", 0)
        two.pwrite(b"B", 0)
        found = {(s.contents()["/d/a"], s.contents()["/d/b"]) for s in at_the_end(files)}
        assert found == {(b".", b"."), (b"A", b"."), (b".", b"B"), (b"A", b"B")}

    def test_modification_time_is_kept_or_lost(self) -> None:
        files = disk()
        file = durable(files, "/d/a", b".")
        files.clock = ManualClock(2000)
        file.pwrite(b"A", 0)
        assert {reopen(s).stat("/d/a").mtime_ms for s in at_the_end(files)} == {1000, 2000}


class TestNames:
    def test_creation_is_kept_or_lost_even_if_the_file_was_synced(self) -> None:
        files = disk()
        put(files, "/d/a", b"A").sync()
        assert outcomes(files, "/d/a") == {None, b"A"}
        files.sync_dir("/d")
        assert outcomes(files, "/d/a") == {b"A"}

    def test_synced_name_of_an_unsynced_file_shows_no_bytes_for_sure(self) -> None:
        files = disk()
        put(files, "/d/a", b"A")
        files.sync_dir("/d")
        assert outcomes(files, "/d/a") == {b"", b"\0", b"A"}

    def test_removal_is_kept_or_lost(self) -> None:
        files = disk()
        durable(files, "/d/a", b"A")
        files.remove("/d/a")
        assert outcomes(files, "/d/a") == {None, b"A"}
        files.sync_dir("/d")
        assert outcomes(files, "/d/a") == {None}

    def test_rename_is_atomic(self) -> None:
        files = disk()
        durable(files, "/d/a", b"A")
        files.rename("/d/a", "/d/b")
        assert listings(files) == {frozenset({"/d/a"}), frozenset({"/d/b"})}
        files.sync_dir("/d")
        assert listings(files) == {frozenset({"/d/b"})}

    def test_replacing_rename_shows_the_old_or_the_new_file(self) -> None:
        files = disk()
        durable(files, "/d/a", b"old")
        put(files, "/d/t", b"new").sync()
        files.rename("/d/t", "/d/a")
        assert outcomes(files, "/d/a") == {b"old", b"new"}

    def test_renamed_unsynced_file_may_be_empty(self) -> None:
        files = disk()
        durable(files, "/d/a", b"old")
        put(files, "/d/t", b"n")
        files.rename("/d/t", "/d/a")
        files.sync_dir("/d")
        assert outcomes(files, "/d/a") == {b"", b"\0", b"n"}

    def test_a_file_never_has_two_names(self) -> None:
        files = disk()
        durable(files, "/d/a", b"A")
        files.rename("/d/a", "/d/b")
        files.rename("/d/b", "/d/c")
        assert listings(files) == {frozenset({name}) for name in ("/d/a", "/d/b", "/d/c")}

    def test_name_used_again_shows_any_of_its_files(self) -> None:
        files = disk()
        durable(files, "/d/a", b"old")
        files.remove("/d/a")
        put(files, "/d/a", b"new").sync()
        assert outcomes(files, "/d/a") == {None, b"old", b"new"}

    def test_changes_of_different_names_are_independent(self) -> None:
        files = disk()
        for name in ("/d/a", "/d/b"):
            put(files, name, b"")
        names = listings(files)
        assert names == {
            frozenset(),
            frozenset({"/d/a"}),
            frozenset({"/d/b"}),
            frozenset({"/d/a", "/d/b"}),
        }

    def test_rename_between_directories_needs_both_synced(self) -> None:
        files = disk()
        files.make_dirs("/e")
        durable(files, "/d/a", b"A")
        files.rename("/d/a", "/e/a")
        both = {frozenset({"/d/a"}), frozenset({"/e/a"})}
        files.sync_dir("/e")
        assert listings(files) == both
        files.sync_dir("/d")
        assert listings(files) == {frozenset({"/e/a"})}

    def test_an_unsynced_directory_is_lost_with_its_content(self) -> None:
        files = disk()
        files.make_dirs("/d/x")
        put(files, "/d/x/a", b"A").sync()
        files.sync_dir("/d/x")
        assert {tuple(sorted(s.contents())) for s in at_the_end(files)} == {
            ("/d",),
            ("/d", "/d/x", "/d/x/a"),
        }
        files.sync_dir("/d")
        assert outcomes(files, "/d/x/a") == {b"A"}

    def test_a_renamed_directory_keeps_its_files(self) -> None:
        files = disk()
        files.make_dirs("/d/x")
        durable(files, "/d/x/a", b"A")
        files.rename("/d/x", "/d/y")
        assert listings(files) == {frozenset({"/d/x/a"}), frozenset({"/d/y/a"})}

    def test_a_removed_directory_may_return(self) -> None:
        files = disk()
        files.make_dirs("/d/x")
        files.settle()
        files.remove_dir("/d/x")
        assert {"/d/x" in s.contents() for s in at_the_end(files)} == {True, False}
        files.sync_dir("/d")
        assert {"/d/x" in s.contents() for s in at_the_end(files)} == {False}


class TestCrash:
    def workload(self) -> DamageFileSystem:
        files = disk()
        file = put(files, "/d/a", b"one")
        file.sync()
        files.sync_dir("/d")
        file.pwrite(b"two", 3)
        files.rename("/d/a", "/d/b")
        return files

    def test_prefixes_with_everything_kept(self) -> None:
        states = [state.contents() for state in self.workload().prefixes(Keep.EVERYTHING)]
        contents = [{p: d for p, d in state.items() if d is not None} for state in states]
        one, two = {"/d/a": b"one"}, {"/d/a": b"onetwo"}
        assert contents == [{}, {"/d/a": b""}, one, one, one, two, {"/d/b": b"onetwo"}]

    def test_prefixes_with_only_synced_changes(self) -> None:
        states = [state.contents().get("/d/a") for state in self.workload().prefixes(Keep.SYNCED)]
        assert states == [None, None, None, None, b"one", b"one", b"one"]

    def test_seed_repeats_itself_alone_and_among_others(self) -> None:
        files = self.workload()
        many = {state.seed: state for state in files.crash_states(range(50))}
        assert len(many) == 50
        for seed in (0, 17, 49):
            (alone,) = files.crash_states([seed])
            assert alone == many[seed]
            (replayed,) = self.workload().crash_states([seed])
            assert replayed == many[seed]

    def test_seeds_reach_every_moment_in_order(self) -> None:
        moments = [state.prefix for state in self.workload().crash_states(range(200))]
        assert moments == sorted(moments)
        assert set(moments) == set(range(7))

    def test_text_names_seed_and_call(self) -> None:
        files = self.workload()
        (state,) = files.crash_states([5], prefix=5)
        assert str(state) == (
            "crash seed 5, power lost after call 5 of 6 (/d/a: write 3 bytes at 3)"
        )
        assert files.explain(state).splitlines()[1].startswith("write 3 bytes at 3: ")

    def test_a_reopened_state_is_durable_and_can_crash_again(self) -> None:
        files = reopen(self.workload().crash(Keep.EVERYTHING))
        assert files.journal == []
        file = files.open("/d/b", write=True)
        file.pwrite(b"X", 0)
        assert files.crash(Keep.SYNCED).contents()["/d/b"] == b"onetwo"
        assert files.crash(Keep.EVERYTHING).contents()["/d/b"] == b"Xnetwo"
        files.open("/d/new", create=True).close()
        assert files.stat("/d/new").identity != files.stat("/d/b").identity

    def test_crash_leaves_the_running_machine_alone(self) -> None:
        files = self.workload()
        reopen(files.crash(Keep.EVERYTHING)).open("/d/b", write=True).truncate(0)
        assert files.open("/d/b").pread(9, 0) == b"onetwo"

    def test_locks_end_with_the_power(self) -> None:
        files = disk()
        files.lock("/d/.lock")
        again = reopen(files.crash(Keep.EVERYTHING))
        again.lock("/d/.lock")
        with pytest.raises(BlockingIOError):
            again.lock("/d/.lock")

    def test_the_fingerprint_depends_only_on_names_and_bytes(self) -> None:
        files = self.workload()
        prints = [state.fingerprint() for state in files.prefixes(Keep.EVERYTHING)]
        assert prints[2] == prints[3] == prints[4]
        assert len(set(prints)) == 5
