"""Power is lost while records are deleted: `deletion-history` never names a deletion that was lost.

A crash may lose the event of a deletion, but each event that is left names offsets that are below
the log start, and is equal to the event that was written.
"""

from functools import cache
from typing import NamedTuple

import pytest
from tests.core import thinned
from tests.fault.harness import CrashFound, Story, survey
from tests.fault.judge import RESTART_MS
from tests.faults import CrashState, Keep, reopen, seeded_env
from tests.faults.refused import opened
from tests.worlds.repetition import rarely

from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log import deletion
from tidelog.storage.log.log import Log
from tidelog.storage.segment.deletion_history import (
    DeletionEvent,
    StartRule,
    add_deletions,
    read_deletions,
)
from tidelog.types import NewRecord

ROOT, TOPIC = "/data", "gone"
WRITABLE = LogDirOptions(create=True)
SETTINGS = {
    "internal.segment.bytes": "400",
    "retention.ms": "2000",
    "file.delete.delay.ms": "0",
}
STATES, SWEPT = 300, 1_500


class Recorded(NamedTuple):
    """The events so far."""

    events: list[DeletionEvent]


class Life:
    """Deletions by age, by size and by request in turn, with restarts."""

    def __init__(self) -> None:
        self.env = seeded_env(3)
        self.files = self.env.files
        self.story: Story[Recorded] = Story(self.files, Recorded([]))

    def run(self) -> None:
        directory = self.open()
        directory.create_topic(TOPIC, partitions=1, config=SETTINGS)
        log = directory.log(TOPIC, 0)
        for turn in range(4):
            for _ in range(4):
                self.append(log)
            self.env.clock.advance(1_000)
            log.apply_retention()
            self.tell()
            log.delete_records(log.log_start_offset + 1)
            self.tell()
            if turn == 1:
                directory.close()
                directory = self.open()
                log = directory.log(TOPIC, 0)
                directory.alter_config(TOPIC, {"retention.bytes": "900", "retention.ms": "-1"})
                self.tell()
        directory.close()
        self.tell()

    def open(self) -> LogDir:
        return LogDir.open(ROOT, env=self.env, options=WRITABLE)

    def append(self, log: Log) -> None:
        self.env.clock.advance(500)
        log.append([NewRecord(key=b"k" * 80, value=b"v", timestamp=self.env.clock.now_ms())])
        self.tell()

    def tell(self) -> None:
        found, problems = read_deletions(self.files, f"{ROOT}/{TOPIC}-0")
        assert problems == []
        self.story.tell(Recorded(found))


@cache
def lived() -> Life:
    life = Life()
    life.run()
    return life


def judge(state: CrashState, before: Recorded, after: Recorded) -> None:
    """Assert that the file is whole and has only true events.

    The events are the first ones of the list after the step, or all of the list before the step.
    """
    files = reopen(state)
    found, problems = read_deletions(files, f"{ROOT}/{TOPIC}-0")
    assert problems == []
    assert found in (after.events[: len(found)], before.events)
    env = seeded_env(1, files=files, now_ms=RESTART_MS)
    directory = opened(lambda: LogDir.open(ROOT, env=env, options=WRITABLE))
    if TOPIC in directory.topics():
        start = directory.log(TOPIC, 0).log_start_offset
        assert all(event.end_offset <= start for event in found), f"{found}, start {start}"


@pytest.mark.parametrize("keep", list(Keep))
def test_every_prefix_of_the_calls(keep: Keep) -> None:
    life = lived()
    rules = {event.rule for event in life.story.latest.events}
    assert rules == {"time", "size", StartRule.DELETE_RECORDS}
    survey(life.files, life.story, life.files.prefixes(keep), judge)


@pytest.mark.parametrize("seeds", [range(STATES), rarely(range(STATES, SWEPT))], ids=str)
def test_seeded_states(seeds: range) -> None:
    life = lived()
    result = survey(life.files, life.story, life.files.crash_states(thinned(seeds)), judge)
    assert result.judged > result.drawn // 4


def test_canary_an_event_before_its_deletion_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def move_early(self: deletion.Deleter, offset: int, events: list[DeletionEvent]) -> None:
        add_deletions(self._segments.context, events)
        move(self, offset, events)

    move = deletion.Deleter._move_start
    monkeypatch.setattr(deletion.Deleter, "_move_start", move_early)
    life = Life()
    life.run()
    with pytest.raises(CrashFound, match="start"):
        survey(life.files, life.story, life.files.prefixes(Keep.EVERYTHING), judge)
