"""A transaction marker is written despite a clock jump; it gets the last append time."""

import pytest
from tests.faults.seeded import START_MS
from tests.worlds.directories.logs import DAY_MS, new_log, put, reopen

from tidelog.errors import ClockJump
from tidelog.storage.log.log import Log

STAMPS_ALONE = {
    "message.timestamp.type": "LogAppendTime",
    "tidelog.append.time.enable": "false",
}


def end_transaction(log: Log) -> None:
    log.end_transaction(producer_id=9, producer_epoch=0, coordinator_epoch=0, commit=True)


@pytest.mark.parametrize("count", [0, 1])
def test_a_clock_that_jumps_ahead(count: int) -> None:
    env, directory, log = new_log()
    if count:
        put(log, 1)
    env.clock.jump(START_MS + DAY_MS)
    with pytest.raises(ClockJump):
        put(log, 1)
    end_transaction(log)
    assert log.append_time_of(count) == START_MS
    with pytest.raises(ClockJump):
        put(log, 1)
    env.clock.jump(START_MS - 1)
    directory.accept_clock()
    put(log, 1)
    assert log.append_time_of(count + 1) == START_MS


def test_a_last_append_time_far_ahead_is_a_clock_jump() -> None:
    env, directory, log = new_log()
    put(log, 1)
    directory.close()
    env.clock.jump(START_MS - DAY_MS)
    _, log = reopen(env)
    end_transaction(log)
    assert log.append_time_of(1) == START_MS
    with pytest.raises(ClockJump, match="the last append time on disk"):
        put(log, 1)


def test_a_log_with_only_log_append_times() -> None:
    env, _, log = new_log(STAMPS_ALONE)
    put(log, None)
    env.clock.jump(START_MS + DAY_MS)
    end_transaction(log)
    assert log.segments[-1].end_offset == 2
    with pytest.raises(ClockJump):
        put(log, None)
