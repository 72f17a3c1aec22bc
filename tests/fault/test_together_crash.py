"""Power is lost between the steps of an append to several logs together.

Each record's value is the time of its append, so the log's content gives the expected append times.
"""

from functools import cache

import pytest
from tests.core import thinned
from tests.fault.judge import RESTART_MS
from tests.faults import CrashState, Keep, reopen, seeded_env
from tests.faults.refused import opened

from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendResult, AppendTerms
from tidelog.storage.log.log import append_together
from tidelog.types import NewRecord

ROOT, TOPIC, LOGS, ROUNDS = "/data", "together", 3, 8
WRITABLE = LogDirOptions(create=True)
SETTINGS = {
    "internal.segment.bytes": "400",
    "index.interval.bytes": "0",
    "message.timestamp.after.max.ms": str(2**62),
}
SEEDED_STATES = 300


class Life:
    """Appends to all logs, in rounds. After one of the rounds, the second log is flushed.

    Attributes:
        sent: The values of each log, in order.
        told: For each round: the number of calls up to its end, and each log's number of
            acknowledged records.
    """

    def __init__(self) -> None:
        self.env = seeded_env(5)
        self.files = self.env.files
        self.sent: list[list[bytes]] = [[] for _ in range(LOGS)]
        self.told: list[tuple[int, list[int]]] = []

    def run(self) -> None:
        directory = LogDir.open(ROOT, env=self.env, options=WRITABLE)
        directory.create_topic(TOPIC, partitions=LOGS, config=SETTINGS)
        logs = [directory.log(TOPIC, number) for number in range(LOGS)]
        self.tell()
        for turn in range(ROUNDS):
            self.env.clock.advance(turn % 2)  # every other round adds a row to the append times
            value = b"%d" % self.env.clock.now_ms()
            asked = [
                (log, memoryview(growing_batch(value, number))) for number, log in enumerate(logs)
            ]
            terms = AppendTerms(owned=True, is_bounded=True)
            for number, outcome in enumerate(append_together(asked, terms)):
                assert isinstance(outcome, AppendResult)
                self.sent[number] += [value] * (number + 1)
            self.tell()
            if turn == ROUNDS // 2:
                logs[1].flush()

    def tell(self) -> None:
        self.told.append((len(self.files.journal), list(map(len, self.sent))))

    def acknowledged_before(self, prefix: int) -> list[int]:
        """Return how many records of each log are acknowledged after `prefix` calls."""
        return [ends for calls, ends in self.told if calls <= prefix][-1]


def growing_batch(value: bytes, number: int) -> bytearray:
    """Return a batch of `number` + 1 records."""
    records = [NewRecord(value=value, timestamp=int(value))] * (number + 1)
    return bytearray(build_batch(records))


@cache
def lived() -> Life:
    life = Life()
    life.run()
    return life


def judge(state: CrashState, *, is_all_kept: bool) -> None:
    life = lived()
    env = seeded_env(5, files=reopen(state), now_ms=RESTART_MS)
    with opened(lambda: LogDir.open(ROOT, env=env, options=WRITABLE)) as directory:
        for number in range(LOGS):
            log = directory.log(TOPIC, number)
            found = [record.value for record in log.records()]
            assert found == life.sent[number][: len(found)]
            if is_all_kept:
                assert len(found) >= life.acknowledged_before(state.prefix)[number]
            for offset, value in enumerate(found):
                assert value is not None
                assert log.append_time_of(offset) in (None, int(value))


@pytest.mark.parametrize("keep", list(Keep))
def test_every_prefix_of_the_calls(keep: Keep) -> None:
    life = lived()
    judged = 0
    for state in life.files.prefixes(keep):
        if state.prefix >= life.told[0][0]:
            judge(state, is_all_kept=keep is Keep.EVERYTHING)
            judged += 1
    assert judged > 2 * LOGS * ROUNDS  # calls also write append times and indexes


def test_seeded_states() -> None:
    life = lived()
    for state in life.files.crash_states(thinned(range(SEEDED_STATES))):
        if state.prefix >= life.told[0][0]:
            judge(state, is_all_kept=False)


def test_a_kill_leaves_each_log_its_appends_so_far() -> None:
    """An unacknowledged append may be in some logs and missing in other logs."""
    life = lived()
    found = set()
    for state in life.files.prefixes(Keep.EVERYTHING):
        if state.prefix >= life.told[0][0]:
            env = seeded_env(5, files=reopen(state), now_ms=RESTART_MS)
            with LogDir.open(ROOT, env=env, options=WRITABLE) as directory:
                ends = [directory.log(TOPIC, number).log_end_offset for number in range(LOGS)]
            found.add(tuple(end // (number + 1) for number, end in enumerate(ends)))
    # In each round, the logs are written in order; a round ends before the next one begins.
    assert {(1, 0, 0), (1, 1, 0), (1, 1, 1), (2, 1, 1)} <= found
