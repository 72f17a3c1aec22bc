"""LogAppendTime never decreases, even without append times or after the log became empty."""

import pytest
from tests.faults import Keep, SeededEnv, seeded_env
from tests.faults import reopen as restored
from tests.worlds.directories.logs import DAY_MS, HOUR_MS, new_log, put, reader_of, reopen

from tidelog.errors import ClockJump
from tidelog.storage.log.log import Log
from tidelog.types import NewRecord

STAMPS = {"message.timestamp.type": "LogAppendTime"}
OFF = {"tidelog.append.time.enable": "false"}


def stamps(env: SeededEnv) -> list[int]:
    reader = reader_of(env)
    return [record.timestamp for record in reader.records(reader.log_start_offset)]


def append(log: Log) -> int:
    """Append a record and return its timestamp."""
    offset = log.append([NewRecord(value=b"v")]).base_offset
    (record,) = log.records(offset)
    return record.timestamp


class TestTheAppendClockIsOff:
    def test_append_times_do_not_decrease_if_the_clock_is_set_back(self) -> None:
        env, _, log = new_log(STAMPS | OFF)
        put(log, None)
        env.clock.jump(env.clock.now_ms() - HOUR_MS // 2)
        put(log, None)
        first, second = stamps(env)
        assert first == second

    def test_stamps_stay_over_a_restart_on_a_slower_clock(self) -> None:
        env, directory, log = new_log(STAMPS | OFF)
        put(log, None)
        directory.close()
        env.clock.jump(env.clock.now_ms() - HOUR_MS // 2)
        _, log = reopen(env)
        put(log, None)
        first, second = stamps(env)
        assert first == second

    def test_a_clock_jump_stops_only_appends_with_log_append_time(self) -> None:
        env, _, log = new_log(STAMPS | OFF)
        put(log, None)
        env.clock.jump(env.clock.now_ms() + 2 * HOUR_MS)
        with pytest.raises(ClockJump):
            put(log, None)
        env, _, log = new_log(OFF)
        put(log, None)
        env.clock.jump(env.clock.now_ms() + 2 * HOUR_MS)
        put(log, None)

    def test_no_append_time_is_kept(self) -> None:
        _, _, log = new_log(STAMPS | OFF)
        put(log, None)
        assert not log.segments[-1].append_times.row_count


@pytest.mark.parametrize("enabled", ["true", "false"])
@pytest.mark.parametrize("keep", [None, Keep.SYNCED, Keep.EVERYTHING])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_append_times_do_not_decrease_if_retention_emptied_the_log(
    enabled: str, keep: Keep | None, is_rolled: bool
) -> None:
    env, directory, log = new_log(
        STAMPS
        | {"retention.ms": str(HOUR_MS), "tidelog.append.time.enable": enabled}
        | {"file.delete.delay.ms": "0"}
    )
    put(log, None)
    env.clock.advance(DAY_MS)
    last_ms = append(log)
    if is_rolled:
        log.roll()
    env.clock.advance(DAY_MS)
    assert log.apply_retention()
    assert not log.active.size_bytes
    assert log.log_start_offset == log.log_end_offset == 2
    if keep is not None:
        env = seeded_env(2, files=restored(env.files.crash(keep)), now_ms=env.clock.now_ms())
    else:
        directory.close()
    env.clock.jump(last_ms - HOUR_MS // 2)
    _, log = reopen(env)
    assert append(log) == last_ms
    assert stamps(env) == [last_ms]


def test_a_log_that_is_cut_begins_again_at_its_own_last_time() -> None:
    env, directory, log = new_log(STAMPS)
    first_ms = append(log)
    env.clock.advance(HOUR_MS)
    append(log)
    directory.close()
    directory, log = reopen(env)
    log.truncate_to(1)
    env.clock.jump(first_ms + 5)
    assert append(log) == first_ms + 5
