"""Only one directory writes to a tier. Its copies and restored backups don't change the tier."""

import dataclasses
from collections.abc import Callable

import pytest
from tests.faults import Keep, reopen, seeded_env
from tests.unit.storage.tiers.tiered import NAME, Tiered, moved, values
from tests.worlds.directories.logs import PATH, TOPIC, WRITABLE

from tidelog.errors import StorageFailure, TierConflict
from tidelog.objects.store import ObjectInfo
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.erasure import erase
from tidelog.storage.tier.manifest import Manifest
from tidelog.storage.tier_manager.mover import merge
from tidelog.storage.tier_manager.orphans import collect, restore
from tidelog.storage.tier_manager.tier_store import PartitionTier, verify
from tidelog.types import NewRecord

EAGER = {"local.retention.bytes": "0"}
ALL_LOCAL = {"local.retention.bytes": "-1"}
_seeds = iter(range(100, 10_000))


def copy_of(tiered: Tiered) -> Tiered:
    """Return a closed second directory with the same bytes (`cp -r`) and the same store."""
    tiered.log.flush()
    disk = reopen(tiered.disk.crash(Keep.EVERYTHING))
    copied = Tiered(base=seeded_env(next(_seeds), files=disk), store=tiered.store)
    copied.base.clock.advance(tiered.base.clock.now_ms() - copied.base.clock.now_ms())
    tiered.store.clock = tiered.base.clock
    return copied


def reopened(tiered: Tiered, prepare: Callable[[LogDir], None] | None = None) -> Tiered:
    options = WRITABLE
    if prepare is not None:
        options = LogDirOptions(writable=True, prepare=prepare)
    tiered.directory = LogDir.open(PATH, env=tiered.env, options=options)
    return tiered


def stored(tiered: Tiered) -> tuple[Manifest, set[str]]:
    """Return the manifest in the store and the keys of all objects."""
    (key,) = (key for key in tiered.store.objects if key.endswith("/manifest.json"))
    found, _ = PartitionTier(tiered.store, key.removesuffix("/manifest.json")).read()
    assert found is not None
    return found, set(tiered.store.objects)


def restored(tiered: Tiered, *, takes_over: bool = False) -> Tiered:
    """Open the directory after `tidelog tier --restore`."""

    def prepare(state: LogDir) -> None:
        restore(state, NAME, takes_over=takes_over)

    return reopened(tiered, prepare)


# -- a directory from a backup -----------------------------------------------------------------


def test_a_directory_from_a_backup_changes_nothing_until_it_is_restored() -> None:
    tiered = moved(20)
    backup = copy_of(tiered)
    tiered.fill(20)
    tiered.move()
    expected = values(tiered.reader())
    end = stored(tiered)[0].end_offset
    before = stored(tiered)
    tiered.directory.abandon()  # the disk is lost
    reopened(backup)
    with pytest.raises(TierConflict, match=r"restored from a backup.*--restore"):
        backup.move(grace_ms=0)
    orphans = collect(backup.directory, [NAME], grace_ms=-1)
    assert "restored from a backup" in orphans.refused[str(NAME)]
    assert stored(backup) == before
    backup.directory.close()
    restored(backup)
    assert values(backup.log) == expected[:end] == list(range(end))
    backup.fill(20)
    backup.move(grace_ms=0)
    assert values(backup.reader()) == list(range(end + 20))
    assert list(verify(backup.directory, [NAME])) == []


def test_records_of_a_restored_directory_are_not_dropped_for_those_of_the_store() -> None:
    tiered = moved(20)
    backup = copy_of(tiered)
    tiered.fill(20)
    tiered.move()
    before = stored(tiered)
    reopened(backup)
    for _ in range(5):  # records that are appended before the conflict is detected
        backup.log.append([NewRecord(value=b"other")])
    with pytest.raises(TierConflict):
        backup.move()
    end = backup.log.log_end_offset
    backup.directory.close()
    with pytest.raises(TierConflict, match="other records than the store"):
        restored(backup)
    reopened(backup)
    assert [record.value for record in backup.log.records(20)] == [b"other"] * 5
    assert backup.log.log_end_offset == end
    with pytest.raises(TierConflict, match="--drop-theirs"):
        backup.move(takes_over=True)
    assert stored(backup) == before
    backup.move(takes_over=True, drops_theirs=True)
    assert [record.value for record in backup.reader().records(20)] == [b"other"] * 5
    with pytest.raises(TierConflict):
        tiered.move()


# -- copies of a directory ---------------------------------------------------------------------


def test_of_two_copies_one_writes_and_the_other_is_refused() -> None:
    first = moved(20)
    second = reopened(copy_of(first))
    first.fill(13)
    second.fill(17)
    first.move()
    before = stored(first)
    for _ in range(2):
        with pytest.raises(TierConflict, match="a copy of this directory writes to the same store"):
            second.move(grace_ms=0, roll=True)
        assert stored(second) == before
        first.move()
    assert values(first.reader()) == list(range(33))
    assert values(second.reader()) == list(range(37))


def test_a_copy_that_was_never_ahead_becomes_the_writer_by_its_first_change() -> None:
    first = moved(20)
    second = reopened(copy_of(first))
    second.fill(13)
    second.move()
    first.fill(3)
    with pytest.raises(TierConflict):
        first.move(roll=True)
    assert values(second.reader()) == list(range(33))


def test_a_copy_deletes_nothing_by_retention_erasure_or_as_a_topic() -> None:
    first = moved(20, **EAGER, **{"retention.ms": "60000"})
    second = reopened(copy_of(first))
    first.fill(10)
    first.move()
    before, end = stored(first), second.log.log_end_offset
    second.base.clock.advance(3_600_000)
    with pytest.raises(TierConflict):
        second.move(grace_ms=0)
    with pytest.raises(TierConflict):
        erase(second.directory, TOPIC, b"k", execute=True)
    assert second.log.log_end_offset == end, "not even a tombstone"
    second.directory.delete_topic(TOPIC)
    for _ in range(2):
        (reason,) = collect(second.directory, [], grace_ms=-1).refused.values()
        assert "deleted here" in reason
    assert stored(second) == before
    assert values(first.reader()) == list(range(first.log.log_start_offset, 30))


def test_a_copy_that_is_taken_over_by_name_stops_the_other_one() -> None:
    first = moved(20)
    second = reopened(copy_of(first))
    first.move(roll=True)
    first.fill(5)
    with pytest.raises(TierConflict):
        second.move(roll=True)
    second.directory.close()
    restored(second).fill(7)
    second.move(roll=True)
    with pytest.raises(TierConflict):
        first.move(roll=True)
    assert values(second.reader()) == list(range(27))


# -- requirements on the manifest and the local files ------------------------------------------


def test_a_manifest_without_segments_of_the_record_stops_every_change() -> None:
    tiered = moved(20)
    manifest, keys = stored(tiered)
    record = tiered.log.tier
    assert record is not None
    tier = PartitionTier(tiered.store, record.record.folder)
    tier.update(lambda _: dataclasses.replace(manifest, segments=manifest.segments[:1]))
    for takes_over in (False, True):
        with pytest.raises(TierConflict, match=r"lacks|not written by"):
            tiered.move(grace_ms=0, takes_over=takes_over, drops_theirs=takes_over)
    tiered.directory.close()
    with pytest.raises(TierConflict, match="lacks offsets"):
        restored(tiered)
    assert stored(tiered)[1] == keys
    assert values(tiered.reader()) == list(range(20))


def test_a_missing_local_file_removes_nothing_from_the_tier() -> None:
    tiered = moved(20, **ALL_LOCAL)
    before = stored(tiered)
    victim = tiered.log.local_segments[1]
    tiered.directory.close()
    tiered.disk.remove(victim.log_path)
    reopened(tiered)
    with pytest.raises(TierConflict, match="is missing, but the tier has this file"):
        tiered.move(grace_ms=0)
    assert stored(tiered) == before
    tiered.directory.close()
    restored(tiered)
    assert values(tiered.log) == list(range(20))
    tiered.move(grace_ms=0)
    assert values(tiered.reader()) == list(range(20))


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_change_whose_response_was_lost_is_recognized(
    is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered = moved(20)
    tiered.fill(20)
    swap = tiered.store.put_if

    def lossy(key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        monkeypatch.undo()
        swap(key, data, etag=etag)
        if is_answered:
            return None  # a retry after a request that had succeeded
        raise StorageFailure("store", "put_if", "no answer")

    monkeypatch.setattr(tiered.store, "put_if", lossy)
    if is_answered:
        tiered.move()
    else:
        with pytest.raises(StorageFailure, match="no answer"):
            tiered.move()
        tiered.reopen(clean=False)
        tiered.move()
    assert values(tiered.reader()) == list(range(40))
    assert list(verify(tiered.directory, [NAME])) == []


def test_a_directory_without_an_id_is_named_in_a_refusal() -> None:
    tiered = moved(20)
    assert tiered.log.tier is not None
    mine = tiered.log.tier.record.manifest
    other = dataclasses.replace(mine, writer="")
    moves = "moves this partition's segments; this directory"
    for theirs, ours, told in (
        (other, mine, rf": another directory {moves} is {mine.writer}\. Stop"),
        (mine, other, rf": directory {mine.writer} {moves} has no id\. Stop"),
    ):
        record = dataclasses.replace(tiered.log.tier.record, manifest=ours)
        with pytest.raises(TierConflict, match=told):
            merge(theirs, record, [], 0, lambda _segment, _row: True)
