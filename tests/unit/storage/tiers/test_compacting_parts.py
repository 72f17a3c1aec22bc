"""Compaction of a tier in parts, by workers that each have a separate reader and folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from tests.core import one_in
from tests.unit.storage.tiers.test_compacting import (
    COMMITTED,
    RETENTION_MS,
    compact,
    put,
    start,
    table,
    tier_keys,
)
from tests.unit.storage.tiers.tiered import NAME, Tiered

from tidelog.errors import CorruptFile, StorageFailure
from tidelog.storage.compaction.cleaner import CleaningReport
from tidelog.storage.compaction.cleaning_plan import CleanerOptions
from tidelog.storage.compaction.job import CleaningJob, parts_of
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.tier.manifest import decode_row, encode_row
from tidelog.storage.tier.remote_segment import RemoteSegment
from tidelog.storage.tier_manager.orphans import collect
from tidelog.storage.tier_manager.tier_compaction import (
    Rewritten,
    TierCleaner,
    Workplace,
    compact_tier,
)
from tidelog.storage.tier_manager.tier_store import PartitionTier, verify

SCRATCH = "/scratch"
PART_BYTES = 1500
REQUESTS_MAX = 1_000


def nothing() -> None:
    """Do nothing between two rounds; the default of `between`."""


@dataclass
class Workers:
    """Runs parts like remote tasks: all parts of a round run before any result is installed."""

    tiered: Tiered
    round: int = 2
    parts: int = 0
    between: Callable[[], None] = nothing
    stop_at: int | None = None
    left: list[str] = field(default_factory=list)

    def rewrite(
        self, job: CleaningJob, segments: Mapping[int, RemoteSegment]
    ) -> Iterator[Rewritten]:
        parts = list(parts_of(job, PART_BYTES))
        for at in range(0, len(parts), self.round):
            done = [self._do(part, segments) for part in parts[at : at + self.round]]
            for each in done:
                if self.parts == self.stop_at:
                    raise StorageFailure("/data", "be alive", "somebody has pulled the plug")
                self.parts += 1
                yield Rewritten.from_json(each.to_json())
                self.between()

    def _do(self, part: CleaningJob, segments: Mapping[int, RemoteSegment]) -> Rewritten:
        told = json.dumps([encode_row(segments[s.base_offset].row) for s in part.sources])
        log_dir = LogDir.open("/data", env=self.tiered.env)
        log = log_dir.reader(NAME.topic, NAME.partition)
        view, random = log.tier, self.tiered.base.random
        assert view is not None
        self.tiered.disk.make_dirs(SCRATCH)
        cleaner = TierCleaner(
            workplace=Workplace(log, SCRATCH),
            tier=PartitionTier(log_dir.tier_files.store(view.record.url), view.record.folder),
            tier_files=log_dir.tier_files,
            draw_uid=lambda: f"{random.getrandbits(128):032x}",
        )
        mine = [view.segment(decode_row(row)) for row in json.loads(told)]
        job = CleaningJob.from_json(part.to_json())
        found = cleaner.rewritten(job, {each.base_offset: each for each in mine})
        self.left += [entry.name for entry in self.tiered.disk.list_dir(SCRATCH)]
        log_dir.close()
        return found


def put_plain(tiered: Tiered, count: int, keys: int = 7) -> None:
    """Append without transactions, because a log with transactions is compacted as one part."""
    for number in range(count):
        put(tiered, number % keys, None if number % 5 == 4 else f"v{number}")


def share(tiered: Tiered, workers: Workers | None = None) -> CleaningReport:
    options = CleanerOptions(is_asked=True)
    return compact_tier(tiered.directory, NAME, options, workers or Workers(tiered))


def test_parts_keep_the_records_that_one_cleaner_keeps() -> None:
    alone, shared = start(), start()
    for tiered in (alone, shared):
        put_plain(tiered, 120, keys=30)
        tiered.move(roll=True)
    expected, workers = table(alone.log), Workers(shared)
    reports = [compact(alone), share(shared, workers)]
    assert workers.parts > 3
    assert (workers.left, table(shared.log)) == ([], expected)
    for one, other in zip(alone.log.records(), shared.log.records(), strict=True):
        assert one == other
        assert alone.log.append_time_of(one.offset) == shared.log.append_time_of(one.offset)
    assert reports[0].records_after == reports[1].records_after < reports[1].records_before
    assert reports[0].cleaned_to == reports[1].cleaned_to
    assert not list(verify(shared.directory, [NAME]))
    assert table(shared.reopen().log) == expected
    # Nothing is left to compact, and the store has no unreferenced objects.
    assert compact(shared, is_asked=False).passes == 0
    assert collect(shared.directory, [NAME], grace_ms=0).folders == []


def test_a_reader_continues_while_parts_are_installed() -> None:
    tiered = start()
    put_plain(tiered, 120, keys=30)
    tiered.move(roll=True)
    expected, old, seen = table(tiered.log), tiered.reader(), list[int]()
    records = old.records(isolation=COMMITTED)
    begun = {(first := next(records)).key: first.value}

    def look() -> None:
        log = tiered.reader()
        assert table(log) == expected
        seen.append(len(list(log.records())))

    share(tiered, Workers(tiered, round=1, between=look))
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 2
    found = begun | {record.key: record.value for record in records}
    assert {key: value for key, value in found.items() if value is not None} == expected


def test_a_stopped_run_continues_after_the_installed_parts() -> None:
    for stop_at in range(6):
        tiered = start()
        put_plain(tiered, 120, keys=30)
        tiered.move(roll=True)
        expected, before = table(tiered.log), tiered.log.size_bytes()
        with pytest.raises(StorageFailure, match="plug"):
            share(tiered, Workers(tiered, round=1, stop_at=stop_at))
        assert table(tiered.reopen(clean=False).log) == expected
        assert (tiered.log.size_bytes() < before) == (stop_at > 0)
        report = share(tiered)
        assert report.bytes_before < before or not stop_at
        assert table(tiered.log) == expected
        keys = tier_keys(tiered)
        assert len(keys) == len(set(keys))
        assert not list(verify(tiered.directory, [NAME]))


def test_a_tombstone_is_removed_with_its_part_and_no_record_returns() -> None:
    """Earlier parts are installed first, so a deleted record is gone before its tombstone is."""
    for stop_at in (*range(8), None):
        tiered = start()
        for number in range(20):
            put(tiered, number, "old")
        for number in range(5):
            put(tiered, number, None)
        for number in range(20, 40):
            put(tiered, number, "v")
        tiered.move(roll=True)
        share(tiered)
        assert tier_keys(tiered).count(b"k3") == 1
        # The tombstones expire before the next run. This run fails after it has installed `stop_at`
        # parts.
        tiered.base.clock.advance(2 * RETENTION_MS)
        expected = table(tiered.log)
        try:
            share(tiered, Workers(tiered, round=1, stop_at=stop_at))
        except StorageFailure:
            assert stop_at is not None
        for log in (tiered.log, tiered.reader(), tiered.reopen(clean=False).log):
            assert table(log) == expected
        share(tiered)
        assert table(tiered.log) == expected
        assert b"k3" not in tier_keys(tiered)


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 100), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_compactions_in_parts_keep_the_table_in_random_histories(seeds: range) -> None:
    for seed in seeds:
        tiered = start(seed, local_retention_bytes=("0", "1500")[seed % 2])
        dice = tiered.base.random
        for _ in range(5):
            put_plain(tiered, dice.randrange(1, 60), keys=dice.choice((3, 11, 40)))
            tiered.base.clock.advance(dice.choice((0, RETENTION_MS, 2 * RETENTION_MS)))
            tiered.move(roll=dice.random() < 0.7, grace_ms=dice.choice((0, 5000)))
            expected, before = table(tiered.log), set(tiered.log.records())
            stop_at = dice.choice((None, None, 0, 1, 2))
            try:
                share(tiered, Workers(tiered, round=dice.choice((1, 3)), stop_at=stop_at))
            except StorageFailure:
                assert stop_at is not None
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
        share(tiered)
    except StorageFailure:
        return True
    return False


@pytest.mark.parametrize("after", [False, True])
def test_a_store_that_fails_at_any_request_loses_nothing(after: bool) -> None:
    told = number = 0
    is_failed = True
    while is_failed:
        tiered = start()
        put_plain(tiered, 24)
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
        share(tiered)
        assert table(tiered.log) == expected
        assert not list(verify(tiered.directory, [NAME]))
        collect(tiered.directory, [NAME], grace_ms=0)
        assert table(tiered.reopen().log) == expected
    assert told > 10 // one_in()


def test_an_invalid_result_is_refused() -> None:
    for text in ("[]", '["{}", 3]', "{}", "", '["{}", []', '["nonsense", []]'):
        with pytest.raises(CorruptFile):
            Rewritten.from_json(text)
