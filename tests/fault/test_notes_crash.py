"""Power is lost while segments are rolled, truncated and deleted: their notes stay correct.

Each record's value is the time of its append. A segment's note contains `seen_ms`, a time by which
all records of the segment had arrived. It must not be below the largest value in the segment.
"""

from functools import cache
from typing import NamedTuple

import pytest
from tests.core import thinned
from tests.fault.harness import CrashFound, Story, survey
from tests.fault.judge import RESTART_MS
from tests.faults import CrashState, DamageFileSystem, Keep, reopen, seeded_env
from tests.faults.journal import Change, Sync
from tests.faults.refused import opened
from tests.worlds.repetition import rarely

from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.topic_retention import Notes
from tidelog.storage.log.log import Log
from tidelog.storage.segment.roll import RollReason
from tidelog.types import NewRecord

ROOT, TOPIC = "/data", "notes"
WRITABLE = LogDirOptions(create=True)
SETTINGS = {
    "internal.segment.bytes": "400",
    "segment.ms": "5000",
    "retention.ms": "9000",
    "message.timestamp.after.max.ms": str(2**62),
    "file.delete.delay.ms": "0",
}
STATES, SWEPT = 500, 1_500


class Remembered(NamedTuple):
    """Reason and time of each finished segment's roll, by base offset."""

    rolls: dict[int, tuple[RollReason, int]]


class Life:
    """Rolls, truncations, deletions and stops in turn, with the notes expected after each."""

    def __init__(self, files: DamageFileSystem | None = None, *, timed: bool = True) -> None:
        self.env = seeded_env(3, files=files)
        self.files = self.env.files
        self.story: Story[Remembered] = Story(self.files, Remembered({}))
        self.settings = SETTINGS | {"tidelog.append.time.enable": str(timed).lower()}

    def run(self) -> None:
        directory = self.open()
        directory.create_topic(TOPIC, partitions=1, config=self.settings)
        log = directory.log(TOPIC, 0)
        for turn in range(8):
            self.append(log, ahead_ms=6_000 if turn == 3 else 0)
            self.tell(log)
        log.roll()
        self.tell(log)
        self.append(log)
        log.truncate_to(log.segments[-2].base_offset + 1)
        self.tell(log)
        for _ in range(3):
            self.append(log)
        self.tell(log)
        directory.close()
        self.tell(log)
        directory = self.open()
        log = directory.log(TOPIC, 0)
        for _ in range(4):
            self.append(log)
        self.tell(log)
        self.env.clock.advance(8_000)
        log.apply_retention()
        self.tell(log)
        self.append(log)
        directory.close()
        self.tell(log)

    def open(self) -> LogDir:
        return LogDir.open(ROOT, env=self.env, options=WRITABLE)

    def append(self, log: Log, ahead_ms: int = 0) -> None:
        self.env.clock.advance(500)
        now = self.env.clock.now_ms()
        value = b"%d" % now
        log.append([NewRecord(key=b"k" * 80, value=value, timestamp=now + ahead_ms)])

    def tell(self, log: Log) -> None:
        self.story.tell(Remembered(rolls_of(log)))


def rolls_of(log: Log) -> dict[int, tuple[RollReason, int]]:
    notes = Notes(log)
    return {
        segment.base_offset: (notes.reason(segment), notes.roll_ms(segment))
        for segment in log.segments[:-1]
    }


@cache
def lived(*, timed: bool = True) -> Life:
    life = Life(timed=timed)
    life.run()
    return life


def judge(state: CrashState, before: Remembered, after: Remembered) -> None:
    """Assert that notes exist and are true; no record is appended after its note's `seen_ms`."""
    env = seeded_env(1, files=reopen(state), now_ms=RESTART_MS)
    directory = opened(lambda: LogDir.open(ROOT, env=env, options=WRITABLE))
    if TOPIC not in directory.topics():
        return
    log = directory.log(TOPIC, 0)
    unknown = (RollReason.UNKNOWN, -1)
    for base, found in rolls_of(log).items():
        allowed = {each.rolls[base] for each in (before, after) if base in each.rolls}
        if before.rolls.get(base) != after.rolls.get(base):
            allowed.add(unknown)  # the crash is during this segment's roll
        assert found in allowed, f"segment {base}: {found}, {allowed} allowed"
    notes = Notes(log)
    for segment in log.segments:
        seen_ms = notes.seen_ms(segment)
        came = [int(r.value or b"") for r in log.records() if r.offset in span(segment)]
        assert seen_ms == -1 or not came or seen_ms >= max(came), f"{seen_ms}: {came}"


def span(segment: object) -> range:
    return range(segment.base_offset, segment.end_offset)  # type: ignore[attr-defined] # a Segment


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("keep", list(Keep))
def test_every_prefix_of_the_calls(keep: Keep, timed: bool) -> None:
    life = lived(timed=timed)
    assert {reason for reason, _ in life.story.latest.rolls.values()} >= {RollReason.SIZE}
    survey(life.files, life.story, life.files.prefixes(keep), judge)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("seeds", [range(STATES), rarely(range(STATES, SWEPT))], ids=str)
def test_seeded_states(seeds: range, timed: bool) -> None:
    life = lived(timed=timed)
    result = survey(life.files, life.story, life.files.crash_states(thinned(seeds)), judge)
    assert result.judged > result.drawn // 4


class ForgetsNotes(DamageFileSystem):
    """Claims to sync the notes without syncing them."""

    def record(self, path: str, change: Change) -> None:
        if not (isinstance(change, Sync) and path.split("/")[-1].startswith("segment-notes")):
            super().record(path, change)


def test_canary_notes_that_are_not_synced_are_caught() -> None:
    life = Life(ForgetsNotes())
    life.run()
    with pytest.raises(CrashFound, match="unknown"):
        survey(life.files, life.story, life.files.prefixes(Keep.SYNCED), judge)
