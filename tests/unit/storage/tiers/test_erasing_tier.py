"""After an erasure in a tier, no object has the key, and other records are unchanged."""

import pytest
from tests.faults import seeded_env
from tests.unit.storage.tiers.tiered import EAGER, NAME, Tiered
from tests.worlds.directories.logs import PATH, TOPIC

from tidelog.errors import InvalidRequest, StorageFailure
from tidelog.record.record import Record
from tidelog.storage.directory.broker_files import GROUPS_FILE
from tidelog.storage.erasure import Erasure, erase
from tidelog.storage.tier_manager.tier_store import verify
from tidelog.types import Codec, NewRecord

KEY = b"the one to be erased"


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


def run(tiered: Tiered, *, execute: bool = True) -> Erasure:
    return erase(tiered.directory, TOPIC, KEY, execute=execute)


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
    # Segments without a copy are copied again. A tombstone is then the only record of the key.
    tiered.move(roll=True)
    assert others(tiered) == before
    assert sum(len(one.offsets) for one in run(tiered, execute=False).searched) == 1


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
        assert others(tiered.reopen(clean=False)) == before
        tiered.directory.accept_clock()
        done = run(tiered)
        assert done.is_complete, done.not_reached
        assert not holders(tiered)
        assert others(tiered) == before
    assert number > 30


def test_a_standby_is_refused() -> None:
    tiered = tier_with_key(6)
    file = tiered.disk.open(f"{PATH}/{GROUPS_FILE}", create=True)
    file.close()
    before = list(tiered.log.records())
    assert run(tiered, execute=False).searched
    with pytest.raises(InvalidRequest, match="standby"):
        run(tiered)
    assert list(tiered.log.records()) == before
