"""After a failure of store or disk at any step, a complete copy of the records is used."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.core import thinned
from tests.faults import DamageFileSystem, Fault, FaultKind, Keep, reopen, seeded_env
from tests.faults.refused import opened
from tests.unit.storage.tiers.fake_store import FakeStore
from tests.unit.storage.tiers.tiered import NAME, TIERED, Tiered, moved, values
from tests.worlds.directories.logs import PATH, TOPIC, WRITABLE

from tidelog.errors import CorruptBatch, CorruptData, CorruptFile, StorageFailure
from tidelog.objects.store import ObjectInfo
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.tier.manifest import seal
from tidelog.storage.tier.tier_record import read_record
from tidelog.storage.tier_manager.mover import MoveOptions, tier_partition
from tidelog.storage.tier_manager.orphans import collect, restore
from tidelog.storage.tier_manager.tier_store import verify
from tidelog.types import TopicPartition

EAGER = {"local.retention.bytes": "0"}


def settled(tiered: Tiered) -> None:
    """Run the tier without failures; check that the store has no damage and no unknown folders."""
    tiered.move(grace_ms=0)
    collect(tiered.directory, [NAME], grace_ms=-1)
    tiered.move(grace_ms=0)
    assert list(verify(tiered.directory, [NAME])) == []
    tier = tiered.log.tier
    assert tier is not None
    folders = {key.split("/")[2] for key in tiered.store.objects if "manifest" not in key}
    assert folders == tier.record.manifest.folders()


def _work(tiered: Tiered) -> None:
    tiered.move(grace_ms=500)
    tiered.fill(12)
    tiered.move(grace_ms=500)
    tiered.log.delete_records(9)
    tiered.move(grace_ms=500)


def _calls_of_work() -> int:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    before = tiered.store.calls
    _work(tiered)
    return tiered.store.calls - before


@pytest.mark.parametrize("fails_after", [False, True])
def test_every_call_to_the_store_may_fail(fails_after: bool) -> None:
    total = _calls_of_work()
    assert total > 60
    for number in thinned(range(1, total + 1)):
        tiered = Tiered().start(**EAGER)
        tiered.fill(16)
        tiered.store.fail_at = tiered.store.calls + number
        tiered.store.fails_after = fails_after
        with pytest.raises(StorageFailure):
            _work(tiered)
        assert tiered.log.failure is None, "a store's failure takes no partition offline"
        end, start = tiered.log.log_end_offset, tiered.log.log_start_offset
        assert values(tiered.reader()) == list(range(start, end))
        tiered.reopen(clean=bool(number % 2))
        assert values(tiered.log) == list(range(start, end))
        settled(tiered)
        assert values(tiered.reader()) == list(range(start, end))


def test_a_torn_upload_is_found_before_the_local_copy_is_deleted() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    base = [s.base_offset for s in tiered.log.local_segments][2]
    tiered.store.tear = lambda key, data: data[:-1] if key.endswith(f"{base:020d}.log") else data
    report = tiered.move()
    assert report.copied == 2
    assert report.stopped is not None
    assert "were written" in report.stopped
    assert tiered.log.local_segments[0].base_offset == base
    assert values(tiered.reader()) == list(range(16))
    tiered.store.tear = None
    settled(tiered)


def test_a_changed_object_is_detected() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    tiered.move()
    for key, (data, etag, ms) in sorted(tiered.store.objects.items()):
        if "manifest" in key or key.endswith(".zones"):
            continue
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        tiered.store.objects[key] = bytes(damaged), etag, ms
        problems = list(verify(tiered.directory, [NAME]))
        assert [problem.where.endswith(key) for problem in problems] == [True]
        if key.endswith(".log"):
            with pytest.raises(CorruptData, match=key.split("/")[-1]):
                values(tiered.reader())
        else:
            assert values(tiered.reader()) == list(range(16))
        tiered.store.objects[key] = data, etag, ms


def test_a_dry_run_of_a_collection_writes_nothing() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    tiered.move()
    tiered.log.delete_records(9)  # not yet in the manifest in the store
    before, record = dict(tiered.store.objects), tiered.log.tier
    assert collect(tiered.directory, [NAME], grace_ms=-1, dry_run=True).refused == {}
    assert tiered.store.objects == before
    assert tiered.log.tier == record
    collect(tiered.directory, [NAME], grace_ms=-1)
    assert tiered.store.objects != before


def cut_manifest(tiered: Tiered, key: str) -> None:
    data, etag, ms = tiered.store.objects[key]
    tiered.store.objects[key] = data[:-9], etag, ms


def raise_version(tiered: Tiered, key: str) -> None:
    data, etag, ms = tiered.store.objects[key]
    inner = json.dumps({**json.loads(data)["manifest"], "version": 2}).encode()
    tiered.store.objects[key] = seal(inner, b', "manifest": '), etag, ms


def move_store(tiered: Tiered, key: str) -> None:
    changes = {"tidelog.tier.url": "memory://elsewhere"}
    tiered.directory.alter_config(key.split("-")[0], changes)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_manifest, "truncated or invalid"),
        (raise_version, "version 2; this release reads up to version 1"),
        (move_store, "its tier is at .*, not memory://elsewhere"),
    ],
)
def test_a_tier_that_is_refused_does_not_keep_others_from_being_collected(
    spoil: Callable[[Tiered, str], None], reason: str
) -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    tiered.store.fail_at = tiered.store.calls + 5
    with pytest.raises(StorageFailure):
        tiered.move()
    orphans = {key for key in tiered.store.objects if "manifest" not in key}
    assert orphans
    tiered.move()
    other = TopicPartition("another", 0)
    tiered.directory.create_topic(other.topic, config={**TIERED, **EAGER})
    tier_partition(tiered.directory, other, MoveOptions())
    (manifest,) = (key for key in tiered.store.objects if re.search("another.*manifest", key))
    spoil(tiered, manifest)
    collected = collect(tiered.directory, [other, NAME], grace_ms=-1)
    assert list(collected.refused) == [str(other)]
    assert re.search(reason, collected.refused[str(other)])
    assert not orphans & set(tiered.store.objects)


def test_a_list_that_is_behind_does_no_harm() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(16)
    tiered.store.fail_at = tiered.store.calls + 5
    with pytest.raises(StorageFailure):
        tiered.move()
    orphans = {key for key in tiered.store.objects if "manifest" not in key}
    assert orphans
    tiered.move()
    live = set(tiered.store.objects) - orphans
    tiered.store.hidden = set(live)
    folder = next(iter(live)).split("/")[0]
    gone = f"{folder}/0/{'0' * 20}-{'a' * 32}/{'0' * 20}.log"
    tiered.store.ghosts = [
        ObjectInfo(gone, 1, "e", tiered.base.clock.now_ms()),
        ObjectInfo(f"{folder}/0/not-ours/file", 1, "e", 0),
    ]
    assert collect(tiered.directory, [NAME]).objects == 0, "younger than the grace period"
    tiered.base.clock.advance(3_600_001)
    assert collect(tiered.directory, [NAME], dry_run=True).objects >= len(orphans)
    assert orphans <= set(tiered.store.objects)
    collect(tiered.directory, [NAME])
    assert not orphans & set(tiered.store.objects)
    assert live <= set(tiered.store.objects)
    assert values(tiered.reader()) == list(range(16))


@dataclass
class Recorder:
    """Records the store's objects after each change, with the disk's journal size at that time."""

    tiered: Tiered
    states: list[tuple[int, dict[str, tuple[bytes, str, int]]]] = field(default_factory=list)
    flushed: list[tuple[int, int, int]] = field(default_factory=list)

    def note(self) -> None:
        moment = len(self.tiered.disk.journal)
        self.states.append((moment, dict(self.tiered.store.objects)))

    def promise(self) -> None:
        """Flush all records, and record the log's start and end as durable."""
        log = self.tiered.log
        log.flush()
        moment = len(self.tiered.disk.journal)
        self.flushed.append((moment, log.log_start_offset, log.log_end_offset))

    def stores_at(self, moment: int) -> Iterator[dict[str, tuple[bytes, str, int]]]:
        """Yield the store's possible contents at this size of the disk's journal."""
        before = [objects for at, objects in self.states if at < moment]
        yield before[-1] if before else self.states[0][1]
        for at, objects in self.states:
            if at == moment:
                yield objects


def _recorded() -> tuple[Tiered, Recorder]:
    tiered = Tiered().start(**EAGER)
    tiered.fill(10)
    tiered.log.flush()
    tiered.disk.settle()
    recorder = Recorder(tiered)
    recorder.note()
    tiered.store.on_change = recorder.note
    recorder.promise()
    tiered.move(grace_ms=500)
    tiered.fill(8)
    recorder.promise()
    tiered.move(grace_ms=500)
    tiered.log.delete_records(5)
    tiered.move(grace_ms=500)
    recorder.promise()
    tiered.fill(3)
    recorder.promise()
    return tiered, recorder


def _seen_before_recovery(reader: LogView) -> list[int]:
    """Return the offsets that a reader gets; if the disk lost a page, the offsets before it."""
    found = []
    with contextlib.suppress(CorruptBatch):
        for record in reader.records():
            assert record.value is not None
            assert record.value.startswith(b"%d." % record.offset)
            found.append(record.offset)
    return found


def _judge(files: DamageFileSystem, objects: dict[str, tuple[bytes, str, int]], end: int) -> None:
    env = seeded_env(7, files=files)
    env.clock.advance(10**6)
    found = Tiered(base=env, store=FakeStore(objects=dict(objects), clock=env.clock))
    seen = _seen_before_recovery(LogDir.open(PATH, env=found.env).reader(TOPIC, 0))
    assert seen == list(range(seen[0], seen[-1] + 1))
    assert seen[0] in (0, 5)
    assert seen[-1] + 1 >= end
    found.directory = opened(lambda: LogDir.open(PATH, env=found.env, options=WRITABLE))
    start = found.log.log_start_offset
    assert values(found.log) == list(range(start, found.log.log_end_offset))
    assert found.log.log_end_offset >= end
    assert start in (0, 5)
    found.fill(2)
    settled(found)
    assert values(found.reader()) == list(range(start, found.log.log_end_offset))
    found.directory.close()


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call_of_the_disk(keep: Keep) -> None:
    tiered, recorder = _recorded()
    for prefix, state in enumerate(tiered.disk.prefixes(keep)):
        end = max((e for at, _, e in recorder.flushed if at <= prefix), default=10)
        for objects in recorder.stores_at(prefix):
            try:
                _judge(reopen(state), objects, end)
            except BaseException as error:
                error.add_note(f"{state}, {len(objects)} objects")
                raise


def test_power_loss_in_seeded_ways() -> None:
    tiered, recorder = _recorded()
    for state in tiered.disk.crash_states(range(100)):
        end = max((e for at, _, e in recorder.flushed if at <= state.prefix), default=10)
        *_, objects = recorder.stores_at(state.prefix)
        try:
            _judge(reopen(state), objects, end)
        except BaseException as error:
            error.add_note(tiered.disk.explain(state))
            raise


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_while_a_log_is_cut_into_its_tier(keep: Keep) -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(20)
    tiered.move()
    tiered.log.flush()
    tiered.disk.settle()
    tiered.log.truncate_to(7)
    cut_at = len(tiered.disk.journal)
    tiered.fill(4)
    tiered.log.flush()
    flushed_at = len(tiered.disk.journal)
    for prefix, state in enumerate(tiered.disk.prefixes(keep)):
        env = seeded_env(7, files=reopen(state))
        env.clock.advance(10**6)
        found = Tiered(base=env, store=tiered.store)
        objects = dict(tiered.store.objects)
        seen = values(LogDir.open(PATH, env=found.env).reader(TOPIC, 0))
        found.directory = LogDir.open(PATH, env=found.env, options=WRITABLE)
        end = found.log.log_end_offset
        assert seen[:7] == list(range(7)), state
        assert seen == list(range(len(seen))), state
        assert values(found.log) == list(range(end)), state
        assert end >= (11 if prefix >= flushed_at else 7), state
        assert end == 20 or end < 20 - 1 or prefix < cut_at, state
        found.fill(2)
        settled(found)
        assert values(found.reader()) == list(range(end + 2)), state
        found.directory.close()
        tiered.store.objects = objects


def test_a_damaged_record_is_refused_and_restored_from_the_store() -> None:
    tiered = Tiered().start(**EAGER)
    tiered.fill(30)
    tiered.move()
    tiered.directory.close()
    path = f"{PATH}/{TOPIC}-0/tidelog-tier.json"
    before = read_record(tiered.disk, f"{PATH}/{TOPIC}-0")
    file = tiered.disk.open(path, write=True)
    file.pwrite(b"!", 40)
    file.close()
    with pytest.raises(CorruptFile, match="--restore"):
        tiered.reader()
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=WRITABLE)
    with pytest.raises(CorruptFile, match="--restore"):
        _ = tiered.log
    assert restore(tiered.directory, NAME) == before
    assert values(tiered.log) == list(range(30))
    assert values(tiered.reader()) == list(range(30))


def test_a_restored_record_does_not_bring_deleted_records_back() -> None:
    """The manifest in the store lacks the newest log start; the directory's checkpoint has it."""
    tiered = moved()
    tiered.log.delete_records(17)
    tiered.directory.close()
    tiered.disk.remove(f"{PATH}/{TOPIC}-0/tidelog-tier.json")

    def prepare(state: LogDir) -> None:
        assert restore(state, NAME).log_start_offset == 0

    options = LogDirOptions(writable=True, prepare=prepare)
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=options)
    assert values(tiered.log) == list(range(17, 40))


def test_a_record_of_the_tier_is_used_only_once_it_is_stored() -> None:
    whole = Tiered().start(**TIERED)
    whole.fill(8)
    before = whole.disk.calls
    whole.move()
    assert whole.log.segment_list.tier.rows
    for call in range(before, whole.disk.calls):
        failing = Tiered().start(**TIERED)
        failing.fill(8)
        log = failing.log
        failing.disk.writes.fault = Fault(call, FaultKind.EIO)
        with contextlib.suppress(StorageFailure):
            failing.move()
        stored = read_record(failing.disk, f"{PATH}/{TOPIC}-0")
        rows = () if stored is None else stored.manifest.segments
        assert len(log.segment_list.tier.rows) <= len(rows), call


def _released_next() -> Tiered:
    """Return a log with all segments but the last in the tier.

    The next retention pass will delete the local files of these segments.
    """
    tiered = moved(24, local_retention_ms="-2")
    tiered.directory.alter_config(TOPIC, EAGER)
    tiered.log.flush()
    tiered.disk.settle()
    return tiered


def test_records_are_read_from_the_tier_if_the_disk_fails_while_local_files_are_deleted() -> None:
    tiered = _released_next()
    before = tiered.disk.calls
    tiered.log.apply_retention()
    assert tiered.log.local_start_offset > 0
    for call in range(before, tiered.disk.calls):
        failing = _released_next()
        failing.disk.writes.fault = Fault(call, FaultKind.EIO)
        with pytest.raises(StorageFailure):
            failing.log.apply_retention()
        assert values(failing.log) == list(range(24))


def test_a_crash_that_keeps_some_deletions_of_local_files_hides_no_records() -> None:
    tiered = _released_next()
    tiered.log.apply_retention()
    for state in tiered.disk.crash_states(range(40)):
        env = seeded_env(7, files=reopen(state))
        assert values(Tiered(base=env, store=tiered.store).reader()) == list(range(24)), state


def test_a_disk_that_fails_to_read_is_reported_by_a_collection() -> None:
    failures = 0
    for number in range(1, 8):
        tiered = Tiered().start(**EAGER)
        tiered.fill(8)
        tiered.move()
        tiered.directory.delete_topic(TOPIC)
        reads = tiered.disk.reads
        reads.fault = Fault(reads.calls + number, FaultKind.EIO)
        try:
            collect(tiered.directory, [], grace_ms=-1)
        except StorageFailure:
            failures += 1
    assert failures
