"""A directory that is open for reading while another process appends, compacts and deletes."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.faults import SeededEnv, seeded_env
from tests.faults.hooked import HookedDisk
from tests.worlds.directories.logs import new_log, reader_of
from tests.worlds.directories.plain_cleaner import PlainWorker

from tidelog.directory import Directory
from tidelog.env import DirEntry, Env, LayeredFiles
from tidelog.errors import Closed, CorruptBatch, MissingFile, OffsetsGone, UnknownTopic
from tidelog.storage.compaction.cleaner import clean_partition
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import SETTLED_MS
from tidelog.storage.log.log_reader import LogView
from tidelog.types import (
    ClockName,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    TopicPartition,
)

Call: TypeAlias = Callable[..., object]

PATH = "/data"
NAME = TopicPartition("t", 0)
COMPACTED = {"cleanup.policy": "compact"}
PLAIN = {"retention.ms": "-1"}
ASKED = CleanerOptions(is_asked=True)


def keyed(*keys: int, time: int = 0) -> list[NewRecord]:
    return [NewRecord(key=b"k%d" % key, value=b"v", timestamp=time + key) for key in keys]


def written(config: dict[str, str]) -> tuple[SeededEnv, Directory]:
    """Write a topic of five finished segments of four records, and one record after them."""
    env = seeded_env(1)
    writer = Directory.open(PATH, writable=True, env=env)
    writer.create_topic("t", config=config)
    for number in range(5):
        env.clock.advance(1_000)
        writer.append("t", keyed(number, number + 1, number + 2, 9, time=100 * number))
        writer.log("t", 0).roll()
    writer.append("t", keyed(50, time=1_000))
    writer.flush()
    return env, writer


def compact(env: SeededEnv, writer: Directory) -> None:
    """Merge all finished segments into one, which gets the name of the first."""
    clean_partition(writer.log_dir, NAME, PlainWorker(env), ASKED)
    assert len(writer.log("t", 0).segments) == 2


def offsets(view: LogView) -> list[int]:
    return [record.offset for record in view.records()]


class TestAnswersAreOfNow:
    """Each call returns the directory's present state, not the state when it was opened."""

    def test_appends_are_seen_by_every_call(self) -> None:
        env, writer = written(PLAIN)
        reader = Directory.open(PATH, env=env)
        for end in (22, 23):
            assert len(list(reader.records("t"))) == end - 1
            assert reader.count("t") == end - 1
            assert reader.read("t").read_all().num_rows == end - 1
            assert reader.end_offsets([NAME]) == {NAME: end - 1}
            assert reader.partition("t", 0).log_end_offset == end - 1
            spans = reader.time_spans("t")
            assert spans[NAME].last_ms == 1_000 + 28 + end
            assert reader.offsets_at("t", 1_051) == {
                NAME: OffsetAndTimestamp(21, 1_051, 0) if end == 23 else None
            }
            env.clock.advance(1_000)
            writer.append("t", keyed(51, time=1_000))
            writer.flush()

    def test_topics_that_are_created_deleted_and_changed(self) -> None:
        env, writer = written(PLAIN)
        reader = Directory.open(PATH, env=env)
        assert list(reader.topics()) == ["t"]
        env.clock.advance(1_000)
        writer.create_topic("u", partitions=2)
        assert list(reader.topics()) == ["t", "u"]
        assert len(reader.partitions("u")) == 2
        writer.delete_topic("t")
        writer.alter_config("u", {"retention.ms": "5"})
        with pytest.raises(UnknownTopic):
            reader.partitions("t")
        assert reader.topic("u").given == {"retention.ms": "5"}

    def test_a_topic_that_was_created_again(self) -> None:
        env, writer = written(PLAIN)
        reader = Directory.open(PATH, env=env)
        assert len(list(reader.records("t"))) == 21
        writer.delete_topic("t")
        writer.create_topic("t", config=PLAIN)
        writer.append("t", keyed(1))
        writer.flush()
        assert [record.key for _, record in reader.records("t")] == [b"k1"]

    def test_a_topic_that_was_created_again_with_segments_of_the_same_names(self) -> None:
        env = seeded_env(1)
        writer = Directory.open(PATH, writable=True, env=env)
        reader = Directory.open(PATH, env=env)
        for keys in ((1, 2, 3), (4, 5), (6, 7, 8, 9)):
            writer.create_topic("t")
            writer.append("t", keyed(*keys[:2]))
            writer.log("t", 0).roll()
            writer.append("t", keyed(*keys[2:]))
            writer.flush()
            read = [record.key for _, record in reader.records("t")]
            assert read == [b"k%d" % key for key in keys]
            writer.delete_topic("t")

    def test_settings_that_change_while_segments_are_replaced(self) -> None:
        env, writer = written(COMPACTED)
        reader = Directory.open(PATH, env=env)
        assert len(list(reader.records("t"))) == 21
        compact(env, writer)
        writer.alter_config("t", {"retention.ms": "5"})
        fresh = Directory.open(PATH, env=env)
        assert list(reader.records("t")) == list(fresh.records("t"))

    def test_zone_maps_that_are_written_after_a_read(self) -> None:
        env, writer = written(PLAIN)
        path = f"{PATH}/t-0/00000000000000000004.zones"
        env.files.rename(path, f"{path}.later")
        reader = Directory.open(PATH, env=env)
        assert reader.partition("t", 0).segments[1].zones is None
        env.files.rename(f"{path}.later", path)
        assert reader.partition("t", 0).segments[1].zones is not None
        writer.close()

    def test_append_times_that_appear_change_or_go(self) -> None:
        env, writer = written(PLAIN)
        writer.close()
        path = f"{PATH}/t-0/00000000000000000004.appendtime"
        reader = Directory.open(PATH, env=env)
        known = reader.partition("t", 0).append_time_of(4)
        for number in range(3):
            env.clock.advance(SETTLED_MS)
            env.files.rename(path, f"{path}.{number}")
            assert reader.partition("t", 0).append_time_of(4) is None
            assert reader.without_append_time(NAME) == 4
            env.clock.advance(SETTLED_MS)
            env.files.rename(f"{path}.{number}", path)
            assert reader.partition("t", 0).append_time_of(4) == known is not None
            assert reader.without_append_time(NAME) == 0

    def test_a_directory_that_was_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        Directory.open(path, writable=True).close()
        reader = Directory.open(path)
        assert not reader.topics()
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(MissingFile, match="the directory no longer exists"):
            reader.topics()
        assert repr(reader) == f"Directory('{path}', read only, MissingFile)"

    def test_a_call_reads_the_directory_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In an object store, each listing of a directory needs several requests."""
        env, writer = written(PLAIN)
        writer.log_dir.add_partitions("t", 9)
        reader = Directory.open(PATH, env=env)
        looks: list[None] = []
        refresh = LogDir.refresh

        def look(log_dir: LogDir) -> None:
            looks.append(None)
            refresh(log_dir)

        monkeypatch.setattr(LogDir, "refresh", look)
        assert len(list(reader.records("t"))) == 21
        assert len(looks) == 1
        reader.end_offsets([TopicPartition("t", number) for number in range(9)])
        assert len(looks) == 2

    def test_representations(self) -> None:
        env, writer = written(PLAIN)
        reader = Directory.open(PATH, env=env)
        before = repr(reader), reader._repr_html_()
        env.clock.advance(1_000)
        writer.create_topic("u")
        writer.append("t", keyed(1, 2, 3))
        writer.flush()
        fresh = Directory.open(PATH, env=env)
        after = repr(reader), reader._repr_html_()
        assert after == (repr(fresh), fresh._repr_html_())
        assert after[0] != before[0]
        assert after[1] != before[1]

    def test_records_that_were_deleted(self) -> None:
        env, writer = written(PLAIN)
        reader = Directory.open(PATH, env=env)
        assert reader.beginning_offsets([NAME]) == {NAME: 0}
        env.clock.advance(1_000)
        writer.log("t", 0).delete_records(6)
        writer.log_dir.checkpoint()
        assert reader.beginning_offsets([NAME]) == {NAME: 6}
        assert next(iter(reader.records("t")))[1].offset == 6


def lookups(view: LogView) -> list[object]:
    """Return results of searches on both clocks, append times, size, and last stable offset."""
    times = itertools.product(ClockName, range(0, 1_100, 7))
    return [
        *(view.offset_for_time(time_ms, clock=clock) for clock, time_ms in times),
        view.max_timestamp(),
        [view.append_time_of(offset) for offset in range(21)],
        view.without_append_time(),
        view.size_bytes(),
        view.last_stable_offset,
    ]


class TestSegmentsReplacedUnderAView:
    """A partition is opened before compaction merges its segments, and read afterwards."""

    @pytest.mark.parametrize(
        "read",
        [
            offsets,
            lambda view: [r.offset for r in view.records(5, 15)],
            lambda view: [r.offset for r in view.timed_records(IsolationLevel.READ_COMMITTED)],
            lookups,
        ],
        ids=["records", "part", "timed", "lookups"],
    )
    def test_an_older_view_has_the_results_of_a_new_one(
        self, read: Callable[[LogView], list[object]]
    ) -> None:
        env, writer = written(COMPACTED)
        view = Directory.open(PATH, env=env).partition("t", 0)
        assert len(view.segments) == 6
        compact(env, writer)
        assert read(view) == read(Directory.open(PATH, env=env).partition("t", 0))
        assert len(view.segments) == 2

    @pytest.mark.parametrize("count", range(21))
    def test_a_running_read_continues_at_the_next_offset(self, count: int) -> None:
        env, writer = written(COMPACTED)
        reading = Directory.open(PATH, env=env).partition("t", 0).records()
        before = [record.offset for record in itertools.islice(reading, count)]
        compact(env, writer)
        kept = offsets(Directory.open(PATH, env=env).partition("t", 0))
        read = before + [record.offset for record in reading]
        assert read == sorted(set(read))
        assert set(read) >= set(kept)

    @pytest.mark.parametrize("count", range(21))
    def test_calls_of_the_directory_between_records(self, count: int) -> None:
        env, writer = written(COMPACTED)
        directory = Directory.open(PATH, env=env)
        readings = [directory.records("t") for _ in range(2)]
        before = [[each.offset for _, each in itertools.islice(one, count)] for one in readings]
        compact(env, writer)
        assert directory.end_offsets([NAME]) == {NAME: 21}
        kept = offsets(directory.partition("t", 0))
        for known, one in zip(before, readings, strict=True):
            read = known + [record.offset for _, record in one]
            assert read == sorted(set(read))
            assert set(read) >= set(kept)

    def test_a_topic_that_is_created_again_under_a_read(self) -> None:
        env, writer = written(PLAIN)
        reading = Directory.open(PATH, env=env).partition("t", 0).records()
        assert next(reading).offset == 0
        writer.delete_topic("t")
        writer.create_topic("t", config=PLAIN)
        writer.append("t", keyed(*range(30)))
        writer.flush()
        with pytest.raises(MissingFile):
            list(reading)

    def test_a_running_read_of_deleted_segments_is_an_error(self) -> None:
        env, writer = written(PLAIN)
        directory = Directory.open(PATH, env=env)
        reading = directory.partition("t", 0).records()
        unread = directory.partition("t", 0).records()
        assert [record.offset for record in itertools.islice(reading, 4)] == [0, 1, 2, 3]
        log = writer.log("t", 0)
        log.delete_records(12)
        writer.log_dir.checkpoint()
        gone = tuple(f"{base:020}" for base in (0, 4, 8))
        for entry in env.files.list_dir(f"{PATH}/t-0"):
            if entry.name.startswith(gone):
                env.files.remove(f"{PATH}/t-0/{entry.name}")
        with pytest.raises(
            OffsetsGone, match="t-0: offsets 4 to 11: deleted, the log starts at offset 12"
        ):
            list(reading)
        assert [record.offset for record in unread] == list(range(12, 21))


class TestReadsDuringASwap:
    """A reader reads at each rename, sync and removal while compaction replaces segments."""

    @pytest.mark.parametrize("how", ["directory", "view"])
    def test_reads_find_the_segments_before_or_after_the_swap(
        self, tmp_path: Path, how: str
    ) -> None:
        path = str(tmp_path / "log")
        disk = HookedDisk()
        writer = Directory.open(path, writable=True, env=Env(files=disk))
        writer.create_topic("t", config=COMPACTED)
        for number in range(5):
            writer.append("t", keyed(number, number + 1, number + 2, 9))
            writer.log("t", 0).roll()
        writer.append("t", keyed(50))
        writer.flush()
        reader = Directory.open(path)
        view = reader.partition("t", 0)
        looks: list[list[int]] = []

        def look(call: str, _path: str) -> None:
            if call in ("rename", "sync_dir", "remove"):
                disk.hook = lambda _call, _path: None
                if how == "view":
                    view.refresh()
                looks.append(offsets(view if how == "view" else reader.partition("t", 0)))
                disk.hook = look

        before = offsets(view)
        disk.hook = look
        clean_partition(writer.log_dir, NAME, PlainWorker(Env()), ASKED)
        disk.hook = lambda _call, _path: None
        after = offsets(Directory.open(path).partition("t", 0))
        assert before != after
        seen = [before, *looks, offsets(reader.partition("t", 0))]
        assert [offsets for offsets, _ in itertools.groupby(seen)] == [before, after]
        assert len(looks) > 5


class TestDamageIsStillDamage:
    def test_a_flipped_bit_in_a_finished_segment_is_an_error(self) -> None:
        env, writer = written(PLAIN)
        writer.close()
        view = Directory.open(PATH, env=env).partition("t", 0)
        path = f"{PATH}/t-0/00000000000000000004.log"
        file = env.files.open(path, write=True)
        byte = file.pread(1, 70)
        file.pwrite(bytes([byte[0] ^ 1]), 70)
        file.close()
        with pytest.raises(CorruptBatch, match=r"00000000000000000004\.log"):
            list(view.records())


CALLS: dict[str, Callable[[Directory], object]] = {
    "topics": lambda directory: directory.topics(),
    "topic": lambda directory: directory.topic("t"),
    "partitions": lambda directory: directory.partitions("t"),
    "partition": lambda directory: directory.partition("t", 0),
    "ends": lambda directory: directory.end_offsets([NAME]),
    "starts": lambda directory: directory.beginning_offsets([NAME]),
    "lookup": lambda directory: directory.offsets_for_times({NAME: 0}),
    "scan": lambda directory: directory.scan("t"),
    "count": lambda directory: directory.count("t"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_call_of_a_closed_directory_is_an_error(call: Callable[[Directory], object]) -> None:
    env, writer = written(PLAIN)
    reader = Directory.open(PATH, env=env)
    call(reader)
    reader.close()
    for closed in (reader, writer):
        closed.close()
        with pytest.raises(Closed, match="/data: the directory is closed"):
            call(closed)


class TestCallsOfAReader:
    """A reader reads from the disk again only the parts that may have changed."""

    def test_finished_segments_of_an_unchanged_directory_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env, _ = written(PLAIN)
        reader = Directory.open(PATH, env=env)
        env.clock.advance(SETTLED_MS + 1)
        expected = reader.offsets_for_times({NAME: 300})
        touched: set[str] = set()
        for name in ("stat", "open", "map"):
            call = getattr(env.files, name)

            def note(path: str, *rest: object, call: Call = call, **named: object) -> object:
                touched.add(path)
                return call(path, *rest, **named)

            monkeypatch.setattr(env.files, name, note)
        assert reader.offsets_for_times({NAME: 300}) == expected
        segments = {path for path in touched if path.startswith(f"{PATH}/t-0/0")}
        assert segments
        assert all(path.startswith(f"{PATH}/t-0/00000000000000000020.") for path in segments)

    def test_changes_are_seen_at_any_age_of_the_directory(self) -> None:
        env, writer = written(PLAIN)
        reader = Directory.open(PATH, env=env)

        def seen() -> list[int]:
            env.clock.advance(SETTLED_MS + 1)
            return offsets(reader.partition("t", 0))

        assert seen() == list(range(21))
        writer.append("t", keyed(51, time=2_000))
        writer.flush()
        assert seen() == list(range(22))
        writer.log("t", 0).roll()
        writer.append("t", keyed(52, time=2_000))
        writer.flush()
        assert seen() == list(range(23))
        writer.log("t", 0).delete_records(8)
        writer.log("t", 0).flush()
        assert seen() == list(range(8, 23))
        compacted, compactor = written(COMPACTED)
        reader, env = Directory.open(PATH, env=compacted), compacted
        before = seen()
        assert seen() == before
        compact(compacted, compactor)
        assert seen() == offsets(compactor.partition("t", 0)) != before


def test_a_last_segment_that_is_deleted_before_it_is_opened_is_no_error() -> None:
    env, _, log = new_log({"file.delete.delay.ms": "0"})
    log.append([NewRecord(value=b"old")])
    has_changed = False

    class Busy(LayeredFiles):
        """Files of a directory whose last segment is rolled and deleted after it was listed."""

        def list_dir(self, path: str) -> list[DirEntry]:
            nonlocal has_changed
            entries = super().list_dir(path)
            if path.endswith("-0") and not has_changed:
                has_changed = True
                log.roll()
                log.append([NewRecord(value=b"new")])
                log.delete_records(1)
                log.apply_retention()
            return entries

    reader = reader_of(Env(files=Busy(env.files), clock=env.clock, random=env.random))
    assert [record.value for record in reader.records()] == [b"new"]
