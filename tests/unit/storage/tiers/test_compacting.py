"""Compaction of segments that are only in the tier, compared with a dict of the topic's keys."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

import pytest
from tests.core import one_in
from tests.faults import reopen, seeded_env
from tests.faults.journal import Rename, SyncDir
from tests.unit.storage.tiers.tiered import EAGER, NAME, Tiered
from tests.worlds.directories.logs import PATH, TOPIC, WRITABLE

from tidelog.errors import (
    CleaningAborted,
    CorruptData,
    CorruptFile,
    InvalidRequest,
    MissingFile,
    StorageFailure,
    UnsupportedCompression,
)
from tidelog.record.builder import build_batch
from tidelog.storage.compaction import cleaner, source_reader
from tidelog.storage.compaction.cleaner import CleaningReport
from tidelog.storage.compaction.cleaning_plan import (
    CleanerOptions,
    CleaningPlan,
    CleaningState,
    plan_cleaning,
)
from tidelog.storage.compaction.job import CleaningJob
from tidelog.storage.compaction.worker import InProcess
from tidelog.storage.directory.log_dir import DirectoryAccess, LogDir
from tidelog.storage.erasure import erase
from tidelog.storage.log.append_types import AppendTerms
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.compaction_history import read_history
from tidelog.storage.tier import remote_segment
from tidelog.storage.tier.manifest import TierSegment
from tidelog.storage.tier.remote_segment import RemoteSegment
from tidelog.storage.tier.tier_files import TierFiles, TierOptions
from tidelog.storage.tier_manager import tier_compaction
from tidelog.storage.tier_manager.orphans import collect
from tidelog.storage.tier_manager.tier_compaction import (
    Rewritten,
    TierCleaner,
    Workplace,
    aliases_of,
    compact_tier,
)
from tidelog.storage.tier_manager.tier_store import PartitionTier, verify
from tidelog.types import ClockName, Codec, IsolationLevel, NewRecord

RETENTION_MS = 60_000
REQUESTS_MAX = 1_000
COMMITTED = IsolationLevel.READ_COMMITTED
SETTINGS = {
    **EAGER,
    "cleanup.policy": "compact",
    "delete.retention.ms": str(RETENTION_MS),
    "min.cleanable.dirty.ratio": "0.0",
}

Table = dict[bytes | None, bytes]


def start(seed: int = 1, **settings: str) -> Tiered:
    return Tiered(base=seeded_env(seed)).start(**{**SETTINGS, **settings})


def put(tiered: Tiered, key: int, value: str | None, codec: Codec = Codec.NONE) -> None:
    tiered.base.clock.advance(10)
    data = None if value is None else value.encode() + b"." * 40
    tiered.log.append([NewRecord(key=b"k%d" % key, value=data)], codec=codec)


def put_with_transactions(tiered: Tiered, count: int, keys: int = 7) -> None:
    """Append records of few keys with some tombstones and aborted transactions."""
    for number in range(count):
        codec = Codec.LZ4 if number % 4 == 0 else Codec.NONE
        put(tiered, number % keys, None if number % 5 == 4 else f"v{number}", codec)
        if number % 20 == 10:
            transact(tiered, number, commit=number % 40 == 10)


def transact(tiered: Tiered, number: int, *, commit: bool) -> None:
    producer = 1000 + tiered.log.log_end_offset
    record = NewRecord(key=b"k0", value=b"transaction %d" % number)
    data = build_batch(
        [record], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )
    tiered.log.append_batches(data, AppendTerms(owned=True))
    tiered.log.end_transaction(
        producer_id=producer, producer_epoch=0, coordinator_epoch=0, commit=commit
    )


def table(log: LogView) -> Table:
    found = {record.key: record.value for record in log.records(isolation=COMMITTED)}
    return {key: value for key, value in found.items() if value is not None}


def compact(
    tiered: Tiered, *, is_asked: bool = True, accepts_lost_times: bool = False
) -> CleaningReport:
    options = CleanerOptions(is_asked=is_asked, accepts_lost_times=accepts_lost_times)
    return compact_tier(tiered.directory, NAME, options)


def tier_keys(tiered: Tiered) -> list[bytes | None]:
    """Return the keys of committed records that only the tier has."""
    local = tiered.log.local_start_offset
    return [r.key for r in tiered.log.records(isolation=COMMITTED) if r.offset < local]


def test_a_truncated_segment_keeps_its_append_times() -> None:
    tiered = start(internal_segment_bytes="2500")
    for number in range(9):
        tiered.log.append([NewRecord(key=b"k%d" % (number % 4), value=b"v")])  # at the same time
    tiered.log.roll()
    put(tiered, 5, "this segment stays local")
    tiered.move()
    tiered.log.truncate_to(6)
    assert tiered.log.local_start_offset == 6
    before = {one.offset: tiered.log.append_time_of(one.offset) for one in tiered.log.records()}
    assert None not in before.values()
    compact(tiered)
    after = {one.offset: tiered.log.append_time_of(one.offset) for one in tiered.log.records()}
    assert list(after) == [2, 3, 4, 5]
    assert after == {offset: before[offset] for offset in after}


def test_a_truncation_before_the_first_batch_of_a_segment_keeps_no_empty_segment() -> None:
    tiered = start(internal_segment_bytes="2500")
    for number in range(9):
        put(tiered, number % 4, "v")
    tiered.log.roll()
    put(tiered, 5, "this segment stays local")
    tiered.move()
    compact(tiered)
    assert [record.offset for record in tiered.log.records()][:2] == [5, 6]
    tiered.log.truncate_to(5)
    tier = tiered.log.tier
    assert tier is not None
    assert not tier.record.manifest.segments
    tiered.move()
    assert erase(tiered.directory, TOPIC, b"k1", execute=True).is_complete
    assert not [name for name in tiered.store.objects if name.endswith(".log")]


def test_the_tier_keeps_the_last_record_of_each_key() -> None:
    tiered = start()
    put_with_transactions(tiered, 120)
    tiered.move(roll=True)
    before = {r.offset: r for r in tiered.log.records(isolation=COMMITTED)}
    expected, end = table(tiered.log), tiered.log.log_end_offset
    times = {offset: tiered.log.append_time_of(offset) for offset in before}
    report = compact(tiered)
    assert 0 < report.records_after < report.records_before
    for log in (tiered.log, tiered.reader(), tiered.reopen().log):
        assert table(log) == expected
        left = list(log.records(isolation=COMMITTED))
        assert all(before[record.offset] == record for record in left)
        assert log.log_end_offset == end
        assert {r.offset: log.append_time_of(r.offset) for r in left} == {
            r.offset: times[r.offset] for r in left
        }
    keys = tier_keys(tiered)
    assert len(keys) == len(set(keys)) > 0
    assert not list(verify(tiered.directory, [NAME]))
    assert not [e for e in tiered.disk.list_dir("/data/t-0") if ".cleaned" in e.name]


@pytest.mark.parametrize("position", [1, 20, 30, -1], ids=["offset", "checksum", "count", "value"])
def test_the_error_of_a_damaged_object_names_the_object(position: int) -> None:
    tiered = start()
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    compact(tiered)
    objects = tiered.store.objects
    damaged = [key for key in objects if key.endswith(".log")]
    for key in damaged:
        data, etag, modified_ms = objects[key]
        changed = bytearray(data)
        changed[position] ^= 1
        objects[key] = bytes(changed), etag, modified_ms
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    with pytest.raises(CorruptData) as caught:
        compact(tiered)
    path = str(caught.value.path)
    assert path.startswith("s3://bucket/")
    assert path.partition("#")[0].rpartition("/")[2] in {key.rpartition("/")[2] for key in damaged}
    assert str(caught.value).count(".log") == 1


def test_a_changed_epoch_in_an_object_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checksum of a batch covers the epoch. A large object is read in pieces."""
    monkeypatch.setattr(source_reader, "PIECE_BYTES", 1)
    monkeypatch.setattr(remote_segment, "WALK_BYTES", 1)
    tiered = start()
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    rows = manifest_rows(tiered)
    for row in rows[:-1]:  # the last object is not compacted yet
        key = f"{folder(tiered)}/{row.key('.log')}"
        data, etag, modified_ms = tiered.store.objects[key]
        changed = data[:15] + bytes([data[15] ^ 1]) + data[16:]
        tiered.store.objects[key] = changed, etag, modified_ms
        tiered.reopen()
        with pytest.raises(CorruptData, match="its checksum is") as caught:
            compact(tiered)
        assert key in str(caught.value.path)
        tiered.store.objects[key] = data, etag, modified_ms
    assert manifest_rows(tiered) == rows
    tiered.reopen()
    assert compact(tiered).passes == 1


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_append_times_that_could_be_restored_are_not_compacted_away(is_lost: bool) -> None:
    tiered = start()
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    before, rows = table(tiered.reader()), manifest_rows(tiered)
    times = {n: tiered.log.append_time_of(n) for n in range(tiered.log.log_end_offset)}
    key = sorted(key for key in tiered.store.objects if key.endswith(".appendtime"))[1]
    data, etag, modified_ms = tiered.store.objects.pop(key)
    if not is_lost:
        tiered.store.objects[key] = data[:-1] + bytes([data[-1] ^ 1]), etag, modified_ms
    tiered.reopen()
    with pytest.raises((CorruptFile, MissingFile), match="--accept-lost-times") as caught:
        compact(tiered)
    assert key in str(caught.value)
    assert manifest_rows(tiered) == rows
    tiered.store.objects[key] = data, etag, modified_ms
    tiered.reopen()
    assert compact(tiered).passes == 1
    assert table(tiered.reader()) == before
    for record in tiered.reader().records():
        assert tiered.log.append_time_of(record.offset) == times[record.offset]


def test_lost_append_times_are_unknown_if_that_is_accepted() -> None:
    tiered = start()
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    before = table(tiered.reader())
    times = {n: tiered.log.append_time_of(n) for n in range(tiered.log.log_end_offset)}
    lost = manifest_rows(tiered)[1]
    del tiered.store.objects[f"{folder(tiered)}/{lost.key('.appendtime')}"]
    tiered.reopen()
    assert compact(tiered, accepts_lost_times=True).passes == 1
    assert table(tiered.reader()) == before
    for record in tiered.reader().records():
        is_lost = lost.base_offset <= record.offset < lost.end_offset
        expected = None if is_lost else times[record.offset]
        assert tiered.log.append_time_of(record.offset) == expected


def test_an_object_that_a_worker_can_not_read_is_no_unknown_time() -> None:
    """After the plan has read an object, the object is damaged, and another worker reads it."""
    tiered = start()
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    damaged = manifest_rows(tiered)[1]
    key = f"{folder(tiered)}/{damaged.key('.appendtime')}"
    data, etag, modified_ms = tiered.store.objects[key]

    class Elsewhere(TierCleaner):
        def rewrite(
            self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
        ) -> Iterator[Rewritten]:
            tiered.store.objects[key] = data[:-1], etag, modified_ms
            yield self.rewritten(job, segments)

    worker = Elsewhere(
        workplace=Workplace.beside(tiered.log),
        tier=PartitionTier(tiered.store, folder(tiered)),
        tier_files=TierFiles(tiered.disk, TierOptions(open_store=tiered.store.open)),
        draw_uid=lambda: "0" * 32,
    )
    with pytest.raises(CorruptFile, match="appendtime"):
        compact_tier(tiered.directory, NAME, CleanerOptions(is_asked=True), worker)


def manifest_rows(tiered: Tiered) -> tuple[TierSegment, ...]:
    tier = tiered.log.tier
    assert tier is not None
    return tier.record.manifest.segments


def folder(tiered: Tiered) -> str:
    tier = tiered.log.tier
    assert tier is not None
    return tier.record.folder


def test_the_error_of_an_undefined_codec_names_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = start()
    put_with_transactions(tiered, 60)
    tiered.move(roll=True)
    paths: list[str] = []

    def aliases(segments: Iterable[RemoteSegment], directory: str) -> dict[str, str]:
        found = aliases_of(segments, directory)
        paths.extend(found)
        return found

    def clean(_self: InProcess, _job: CleaningJob) -> NoReturn:
        raise UnsupportedCompression(f"{paths[0]}: codec 5 is unknown")

    monkeypatch.setattr(tier_compaction, "aliases_of", aliases)
    monkeypatch.setattr(InProcess, "clean", clean)
    with pytest.raises(UnsupportedCompression, match=r"^s3://bucket/[^ ]*: codec 5 is unknown$"):
        compact(tiered)


def test_a_cleaning_is_cancelled_if_its_segments_were_deleted_after_planning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiered = start(cleanup_policy="compact,delete")
    put_with_transactions(tiered, 120)
    tiered.move(roll=True)

    def delete_meanwhile(
        log_dir: DirectoryAccess, state: CleaningState, options: CleanerOptions
    ) -> CleaningPlan:
        plan = plan_cleaning(log_dir, state, options)
        tiered.log.delete_records(plan.sources[1].base_offset)
        tiered.move(grace_ms=10_000)
        return plan

    monkeypatch.setattr(cleaner, "plan_cleaning", delete_meanwhile)
    with pytest.raises(CleaningAborted):
        compact(tiered)
    monkeypatch.undo()
    expected = table(tiered.log)
    assert compact(tiered).passes > 0
    assert table(tiered.reopen().log) == expected


def test_lookups_on_both_clocks_find_the_remaining_records() -> None:
    tiered = start()
    put_with_transactions(tiered, 100)
    tiered.move(roll=True)
    compact(tiered)
    log = tiered.reopen().log
    left = list(log.records(isolation=COMMITTED))
    for record in left:
        at = log.offset_for_time(record.timestamp)
        assert at is not None
        assert at.offset <= record.offset
        append_ms = log.append_time_of(record.offset)
        assert append_ms is not None
        at = log.offset_for_time(append_ms, clock=ClockName.APPEND)
        assert at is not None
        assert at.timestamp >= append_ms


def test_local_segments_are_not_compacted_before_they_are_only_in_the_tier() -> None:
    tiered = start(local_retention_bytes="1500")
    put_with_transactions(tiered, 100)
    tiered.move(roll=True)
    local = tiered.log.local_start_offset
    here = [r for r in tiered.log.records() if r.offset >= local]
    assert 0 < local < here[-1].offset
    compact(tiered)
    assert [r for r in tiered.log.records() if r.offset >= local] == here
    assert tiered.directory.cleaner_offset(NAME) == local


def test_a_tombstone_is_removed_after_its_time_even_without_new_records() -> None:
    tiered = start()
    for number in range(20):
        put(tiered, number, "v")
    put(tiered, 3, None)
    for number in range(20, 40):
        put(tiered, number, "v")
    tiered.move(roll=True)
    compact(tiered)
    assert tier_keys(tiered).count(b"k3") == 1
    assert compact(tiered, is_asked=False).passes == 0
    tiered.base.clock.advance(RETENTION_MS + RETENTION_MS // 10 + 1)
    assert compact(tiered, is_asked=False).passes == 1
    assert b"k3" not in tier_keys(tiered)
    assert len(table(tiered.log)) == 39


def test_a_segment_without_remaining_records_keeps_its_offsets() -> None:
    tiered = start()
    for _ in range(30):
        put(tiered, 1, "old")
    tiered.log.roll()
    tiered.move()
    for _ in range(30):
        put(tiered, 1, "new")
    tiered.move(roll=True)
    end, local = tiered.log.log_end_offset, tiered.log.local_start_offset
    left = list(range(local - 1, end))
    compact(tiered)
    log = tiered.reopen().log
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    assert [r.offset for r in log.records()] == left
    assert not list(verify(tiered.directory, [NAME]))
    compact(tiered)  # the result can be compacted again
    assert [r.offset for r in tiered.log.records()] == left


def test_a_small_map_needs_several_passes() -> None:
    tiered = start()
    put_with_transactions(tiered, 150, keys=60)
    tiered.move(roll=True)
    expected = table(tiered.log)
    options = CleanerOptions(is_asked=True, dedupe_buffer_bytes=1 << 20, load_factor=0.0005)
    report = compact_tier(tiered.directory, NAME, options)
    assert report.stopped is None
    assert report.passes > 1
    assert table(tiered.log) == expected
    keys = tier_keys(tiered)
    assert len(keys) == len(set(keys))


def test_tables_of_the_past_are_not_called_exact() -> None:
    tiered = start()
    put_with_transactions(tiered, 100)
    tiered.move(roll=True)
    compact(tiered)
    history = read_history(tiered.base.files, "/data/t-0")
    assert history is not None
    since = history.exact_since_ms(ClockName.APPEND)
    last = tiered.log.append_time_of(tiered.log.local_start_offset - 1)
    assert since is not None
    assert last is None or since >= last - 1000


def test_a_partition_without_a_tier_is_refused() -> None:
    tiered = start()
    put(tiered, 1, "v")
    with pytest.raises(InvalidRequest, match="no tier"):
        compact(tiered)


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_compactions_keep_the_table_in_random_histories(seeds: range) -> None:
    for seed in seeds:
        tiered = start(seed, local_retention_bytes=("0", "1500")[seed % 2])
        dice = tiered.base.random
        for _ in range(6):
            put_with_transactions(tiered, dice.randrange(1, 40), keys=dice.choice((3, 11)))
            tiered.base.clock.advance(dice.choice((0, RETENTION_MS, 2 * RETENTION_MS)))
            tiered.move(roll=dice.random() < 0.7, grace_ms=dice.choice((0, 5000)))
            expected, before = table(tiered.log), set(tiered.log.records())
            compact(tiered, is_asked=dice.random() < 0.5)
            assert table(tiered.log) == expected
            assert set(tiered.log.records()) <= before
            if dice.random() < 0.4:
                tiered.reopen(clean=dice.random() < 0.5)
                tiered.directory.accept_clock()
                assert table(tiered.log) == expected
        assert not list(verify(tiered.directory, [NAME]))


def fails_with_store(tiered: Tiered) -> bool:
    """Return whether a compaction fails because of the store."""
    try:
        compact(tiered)
    except StorageFailure:
        return True
    return False


@pytest.mark.parametrize("after", [False, True])
def test_a_store_that_fails_at_any_request_leaves_the_old_or_the_new(after: bool) -> None:
    told = number = 0
    is_failed = True
    while is_failed:
        tiered = start()
        put_with_transactions(tiered, 24)
        tiered.move(roll=True)
        expected, before = table(tiered.log), list(tiered.log.records())
        store = tiered.store
        number += one_in()
        assert number < REQUESTS_MAX, "every run fails"
        store.fail_at, store.fails_after = store.calls + number, after
        is_failed = fails_with_store(tiered)
        told += is_failed
        store.fail_at = None
        for log in (tiered.reader(), tiered.log):
            assert table(log) == expected
            assert set(log.records()) <= set(before)
        tiered.reopen(clean=False)
        compact(tiered)
        assert table(tiered.log) == expected
        assert not list(verify(tiered.directory, [NAME]))
        collect(tiered.directory, [NAME], grace_ms=0)
        assert table(tiered.reopen().log) == expected
    assert told > 10 // one_in()


def test_a_power_loss_at_any_call_leaves_the_old_or_the_new() -> None:
    tiered = start()
    put_with_transactions(tiered, 24)
    tiered.move(roll=True)
    tiered.log.flush()
    expected = table(tiered.log)
    whole = len(list(tiered.log.records()))
    tiered.disk.settle()
    objects: list[dict[str, tuple[bytes, str, int]]] = []
    moments: list[int] = []

    def note() -> None:
        objects.append(dict(tiered.store.objects))
        moments.append(len(tiered.disk.journal))

    note()
    tiered.store.on_change = note
    compact(tiered)
    tiered.store.on_change = None
    left = set()
    for moment in range(len(tiered.disk.journal) + 1):
        last = max(n for n, at in enumerate(moments) if at <= moment)
        state = next(iter(tiered.disk.crash_states([moment], prefix=moment)))
        again = Tiered(base=seeded_env(5, files=reopen(state)))
        again.base.clock.set(tiered.base.clock.now_ms())
        again.store.objects = dict(objects[last])
        again.directory = LogDir.open(PATH, env=again.env, options=WRITABLE)
        again.directory.accept_clock()
        assert table(again.log) == expected, moment
        left.add(count := len(list(again.log.records())))
        history = read_history(again.base.files, "/data/t-0")
        # A log that lacks records needs this history: without it, a table of the past would be
        # called exact.
        assert count == whole or (history and history.exact_since_ms(ClockName.APPEND)), moment
        if moment % 7 == 0:
            compact(again)
            assert table(again.log) == expected
            assert not list(verify(again.directory, [NAME]))
    assert len(left) == 2  # the record counts before and after the compaction


def final_names(tiered: Tiered, since: int) -> list[str]:
    """Return the files that were replaced on the disk.

    Asserts that each file was synced just before its rename, and its folder just after.
    """
    entries = tiered.disk.journal[since:]
    found = []
    for at, entry in enumerate(entries):
        if isinstance(entry.change, Rename):
            before, after = entries[at - 1], entries[at + 1]
            assert (before.path, str(before.change)) == (entry.path, "sync")
            assert isinstance(after.change, SyncDir)
            assert after.path == entry.path.rpartition("/")[0]
            found.append(entry.change.name)
    return found


def test_a_compaction_replaces_files_and_objects_in_an_order_that_loses_nothing() -> None:
    tiered = start()
    put_with_transactions(tiered, 24)
    tiered.move(roll=True)
    stored, begin = dict(tiered.store.objects), len(tiered.disk.journal)
    order: list[str] = []

    def note() -> None:
        """Note the files that were replaced since the last change in the store, and the change."""
        nonlocal stored, begin
        order.extend(final_names(tiered, begin))
        begin = len(tiered.disk.journal)
        changed = {key for key, value in tiered.store.objects.items() if stored.get(key) != value}
        assert not stored.keys() - tiered.store.objects.keys()
        (key,) = changed
        order.append("/".join(key.split("/")[2:]))
        stored = dict(tiered.store.objects)

    tiered.store.on_change = note
    compact(tiered)
    order += final_names(tiered, begin)
    copies = [name for name in order if "/" in name]
    segments = dict.fromkeys(name.split("/")[0] for name in copies)
    # A segment's log is the last object that is copied, so a copy with a log is complete.
    for segment in segments:
        own = [name for name in copies if name.startswith(f"{segment}/")]
        assert own[-1].endswith(".log")
        assert own == copies[copies.index(own[0]) :][: len(own)]
    assert len(segments) > 2
    # The history is stored before the manifest, which is stored before the position of the cleaner.
    assert order[: len(copies)] == copies
    assert order[len(copies) :] == [
        "cleaner-offset-checkpoint",
        "compaction-history",
        "tidelog-tier.json",
        "manifest.json",
        "tidelog-tier.json",
        "cleaner-offset-checkpoint",
    ]
