"""After an erasure in a tier, no object has the key, and other records are unchanged."""

from pathlib import Path

import pytest
from tests.faults import seeded_env
from tests.unit.storage.tiers.tiered import EAGER, NAME, Tiered, tier_env
from tests.worlds.directories.logs import PATH, TOPIC

from tidelog.env import Env
from tidelog.errors import CorruptFile, InvalidRequest, MissingFile, StorageFailure
from tidelog.objects.folder_store import PART_SUFFIX, open_folder
from tidelog.record.record import Record
from tidelog.storage import erasure
from tidelog.storage.directory.broker_files import GROUPS_FILE
from tidelog.storage.erasure import Erasure, erase
from tidelog.storage.tier import remote_segment
from tidelog.storage.tier.tier_files import TierOptions
from tidelog.storage.tier_manager.tier_store import verify
from tidelog.types import Codec, NewRecord

KEY = b"the one to be erased"
REQUESTS_MAX = 1_000


def tier_with_key(count: int, **settings: str) -> Tiered:
    """Write segments, most of them in the tier only, with the key in every third batch."""
    tiered = Tiered(base=seeded_env(3)).start(**{**EAGER, **settings})
    for number in range(count):
        tiered.base.clock.advance(10)
        key = KEY if number % 3 == 0 else b"k%d" % number
        codec = Codec.LZ4 if number % 4 == 0 else Codec.NONE
        records = [NewRecord(key=key, value=b"%060d" % number), NewRecord(key=b"o", value=b"")]
        tiered.log.append(records, codec=codec, batch_bytes=1 << 16)
    tiered.move()
    return tiered


def others(tiered: Tiered) -> list[Record]:
    return [record for record in tiered.log.records() if record.key != KEY]


def run(tiered: Tiered, *, execute: bool = True, accepts_lost_times: bool = False) -> Erasure:
    accepts = accepts_lost_times
    return erase(tiered.directory, TOPIC, KEY, execute=execute, accepts_lost_times=accepts)


def holders(tiered: Tiered) -> list[str]:
    """Return the names of the objects that contain the key uncompressed."""
    return [name for name, (data, _, _) in tiered.store.objects.items() if KEY in data]


@pytest.mark.parametrize("kept", ["0", "1500"])
def test_no_object_has_the_key_and_other_records_are_unchanged(kept: str) -> None:
    tiered = tier_with_key(60, local_retention_bytes=kept)
    assert holders(tiered)
    before = others(tiered)
    times = {record.offset: tiered.log.append_time_of(record.offset) for record in before}
    done = run(tiered)
    assert done.is_complete, done.not_reached
    assert not holders(tiered)
    for log in (tiered.log, tiered.reader(), tiered.reopen().log):
        assert [record for record in log.records() if record.key != KEY] == before
        assert [r.value for r in log.records() if r.key == KEY] == [None]
    assert {at: tiered.log.append_time_of(at) for at in times} == times
    assert not list(verify(tiered.directory, [NAME]))
    assert any(one.is_tiered for one in done.left)
    # Segments without a copy are copied again. After that, the key's only record is a tombstone.
    tiered.move(roll=True)
    assert others(tiered) == before
    assert sum(len(one.offsets) for one in run(tiered, execute=False).searched) == 1


def test_a_key_is_erased_if_the_log_starts_within_a_local_segment() -> None:
    tiered = tier_with_key(30, local_retention_bytes="-1")
    first, second = tiered.log.local_segments[:2]
    tiered.log.delete_records(second.base_offset - 1)
    assert first.base_offset < tiered.log.log_start_offset < second.base_offset
    before = others(tiered)
    assert run(tiered).is_complete
    assert not holders(tiered)
    assert others(tiered) == before
    tiered.move()
    tiered.reopen()
    assert others(tiered) == before


def test_garbage_and_orphans_are_erased_too() -> None:
    tiered = tier_with_key(30)
    run(tiered)  # removes the replaced objects at once
    tier = tiered.log.tier
    assert tier is not None
    assert not tier.record.manifest.garbage
    name = next(key for key in tiered.store.objects if key.endswith(".log"))
    orphan = f"{name.rsplit('/', 2)[0]}/{0:020d}-{'a' * 32}/{0:020d}.log"
    tiered.store.objects[orphan] = (KEY, "e", 0)
    done = run(tiered)
    assert not holders(tiered)
    assert [one for one in done.removed if "a" * 32 in one]


def test_replaced_objects_are_removed_although_the_clock_has_gone_back() -> None:
    tiered = tier_with_key(30)
    tier = tiered.log.tier
    assert tier is not None
    tiered.log.delete_records(tier.record.manifest.segments[0].end_offset)
    tiered.move()
    tiered.base.clock.jump(tiered.base.clock.now_ms() - 5)
    assert run(tiered).is_complete
    assert not holders(tiered)


def test_the_file_of_an_interrupted_upload_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered = Tiered(base=seeded_env(3))
    monkeypatch.setattr(tiered.store, "open", lambda *_: open_folder(f"file://{tmp_path}", {}))
    tiered.start(**EAGER)
    for _ in range(20):
        tiered.log.append([NewRecord(key=KEY, value=b"v" * 60)])
    tiered.move()
    folder = next(tmp_path.glob("t-*/0/*-*"))
    orphan = folder.with_name(f"{0:020d}-{'a' * 32}") / f"{0:020d}.log{PART_SUFFIX}"
    orphan.parent.mkdir()
    orphan.write_bytes(KEY)
    assert run(tiered).is_complete
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY in path.read_bytes()]


def test_an_erasure_continues_after_any_failed_request_of_the_store() -> None:
    number, is_told = 1, True
    while is_told:
        tiered = tier_with_key(16, local_retention_bytes="900")
        before, is_told = others(tiered), False
        tiered.store.fail_at = tiered.store.calls + number
        try:
            run(tiered)
        except StorageFailure:
            is_told = True
        tiered.store.fail_at = None
        number += 3
        assert number < REQUESTS_MAX, "every run fails"
        assert others(tiered.reopen(clean=False)) == before
        tiered.directory.accept_clock()
        done = run(tiered)
        assert done.is_complete, done.not_reached
        assert not holders(tiered)
        assert others(tiered) == before
    assert number > 30


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_append_times_that_could_be_restored_are_not_erased(is_lost: bool) -> None:
    tiered = tier_with_key(30)
    before, end = others(tiered), tiered.log.log_end_offset
    times = {record.offset: tiered.log.append_time_of(record.offset) for record in before}
    key = sorted(name for name in tiered.store.objects if name.endswith(".appendtime"))[1]
    data, etag, modified_ms = tiered.store.objects.pop(key)
    if not is_lost:
        tiered.store.objects[key] = data[:-1] + bytes([data[-1] ^ 1]), etag, modified_ms
    tiered.reopen()
    assert any(key in note for note in run(tiered, execute=False).receipt()["notes"])
    with pytest.raises((CorruptFile, MissingFile), match="--accept-lost-times") as caught:
        run(tiered)
    assert key in str(caught.value)
    assert tiered.log.log_end_offset == end
    tiered.store.objects[key] = data, etag, modified_ms
    tiered.reopen()
    assert run(tiered).is_complete
    assert {at: tiered.log.append_time_of(at) for at in times} == times


def test_an_erasure_that_accepts_lost_times_is_complete() -> None:
    tiered = tier_with_key(30)
    before = others(tiered)
    del tiered.store.objects[
        sorted(name for name in tiered.store.objects if name.endswith(".appendtime"))[1]
    ]
    tiered.reopen()
    assert run(tiered, accepts_lost_times=True).is_complete
    assert not holders(tiered)
    assert others(tiered) == before


def test_the_only_sound_copy_of_append_times_stays_in_the_tier() -> None:
    """An erasure drops the copies of all local segments after the first rewritten segment."""
    tiered = Tiered(base=seeded_env(3)).start(**{**EAGER, "local_retention_bytes": "-1"})
    for number in range(20):
        tiered.base.clock.advance(10)
        tiered.log.append([NewRecord(key=b"k" if number else KEY, value=b"%060d" % number)])
    tiered.move()
    keys = [name for name in tiered.store.objects if name.endswith(".appendtime")]
    segment = tiered.log.local_segments[2]
    path = segment.context.path(segment.base_offset, ".appendtime")
    data = tiered.disk.open(path).pread(1 << 20, 0)
    tiered.disk.remove(path)
    tiered.reopen()
    with pytest.raises(CorruptFile, match="--accept-lost-times") as caught:
        run(tiered)
    assert caught.value.path == path
    assert {*keys} <= {*tiered.store.objects}
    file = tiered.disk.open(path, create=True)
    file.pwrite(data, 0)
    file.close()
    assert run(tiered.reopen()).is_complete


def test_a_changed_epoch_in_a_large_object_is_not_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No batch's checksum covers the epoch, and a large object is read in pieces."""
    monkeypatch.setattr(erasure, "_CHUNK_BYTES", 200)
    monkeypatch.setattr(remote_segment, "WALK_BYTES", 100)
    tiered = tier_with_key(30)
    end, objects = tiered.log.log_end_offset, dict(tiered.store.objects)
    key = sorted(name for name in objects if name.endswith(".log"))[1]
    data, etag, modified_ms = objects[key]
    tiered.store.objects[key] = data[:15] + bytes([data[15] ^ 1]) + data[16:], etag, modified_ms
    tiered.reopen()
    for execute in (False, True):
        with pytest.raises(CorruptFile, match="its checksum is") as caught:
            run(tiered, execute=execute)
        assert key in str(caught.value.path)
    assert tiered.log.log_end_offset == end
    tiered.store.objects[key] = objects[key]
    assert run(tiered.reopen()).is_complete


def test_an_object_that_changes_after_the_search_is_not_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_segment, "WALK_BYTES", 100)
    tiered = tier_with_key(30)
    key = sorted(name for name in tiered.store.objects if name.endswith(".log"))[1]
    data, etag, modified_ms = tiered.store.objects[key]
    tiered.store.objects[key] = data[:15] + bytes([data[15] ^ 1]) + data[16:], etag, modified_ms
    tiered.reopen()
    hits = {int(key.rpartition("/")[2].partition(".")[0]): {1 << 40}}
    manifest = tiered.log.tier
    with pytest.raises(CorruptFile, match="its checksum is") as caught:
        erasure.purge_tier(tiered.directory, NAME, hits)
    assert key in str(caught.value.path)
    assert tiered.log.tier == manifest


def test_a_standby_is_refused() -> None:
    tiered = tier_with_key(6)
    file = tiered.disk.open(f"{PATH}/{GROUPS_FILE}", create=True)
    file.close()
    before = list(tiered.log.records())
    assert run(tiered, execute=False).searched
    with pytest.raises(InvalidRequest, match="standby"):
        run(tiered)
    assert list(tiered.log.records()) == before


class Cached(Tiered):
    """A directory whose blocks of tier objects are cached in a folder."""

    @property
    def env(self) -> Env:
        options = TierOptions(open_store=self.store.open, cache_dir="/cache", memory_bytes=0)
        return tier_env(self.base, options)


def test_no_cached_block_has_the_key_if_its_object_was_removed_before() -> None:
    tiered = Cached(base=seeded_env(3)).start(**EAGER)
    for number in range(30):
        tiered.log.append([NewRecord(key=KEY, value=b"%060d" % number)])
    tiered.move()
    assert len(list(tiered.reader().records())) == 30  # caches blocks
    tiered.log.truncate_to(10)
    tiered.move(grace_ms=-1)  # removes objects
    assert run(tiered).is_complete
    for entry in tiered.disk.list_dir("/cache"):
        file = tiered.disk.open(f"/cache/{entry.name}")
        assert KEY not in file.pread(file.size(), 0)
