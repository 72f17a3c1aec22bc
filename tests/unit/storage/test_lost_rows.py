"""If the last rows of append times are lost, the last remaining row holds for only one append."""

import pytest
from tests.faults import SeededEnv, seeded_env

from tidelog.storage.clocks.append_times import HEADER_SIZE, ROW_SIZE
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.files import APPEND_TIME_CHECKPOINT_FILE, read_file
from tidelog.storage.segment.lost_times import lost_times
from tidelog.types import NewRecord

PATH = "/data"
APPENDS = 5
WRITABLE = LogDirOptions(create=True)


def _two_segments() -> tuple[SeededEnv, list[int]]:
    """Write a finished and an active segment of five appends each; return disk and append times."""
    env = seeded_env(1)
    times = []
    with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
        directory.create_topic("t")
        log = directory.log("t", 0)
        for number in range(2 * APPENDS):
            env.clock.advance(10)
            log.append([NewRecord(value=b"v"), NewRecord(value=b"w")])
            times += [env.clock.now_ms()] * 2
            if number + 1 == APPENDS:
                log.roll()
    return env, times


@pytest.mark.parametrize("rows", range(APPENDS + 1))
@pytest.mark.parametrize("base", [0, 2 * APPENDS])
def test_rows_cut_off_at_a_border_make_times_unknown_never_wrong(base: int, rows: int) -> None:
    env, times = _two_segments()
    file = env.files.open(f"{PATH}/t-0/{base:020}.appendtime", write=True)
    file.truncate(HEADER_SIZE + rows * ROW_SIZE)
    file.close()
    for options in (LogDirOptions(), WRITABLE):
        with LogDir.open(PATH, env=env, options=options) as directory:
            log = directory.reader("t", 0)
            found = [log.append_time_of(offset) for offset in range(len(times))]
        wrong = [o for o, ms in enumerate(found) if ms is not None and ms != times[o]]
        assert wrong == []
        cut = range(base, base + 2 * APPENDS)
        assert all(found[o] == times[o] for o in range(len(times)) if o not in cut)
        # The remaining rows are trusted; the last of them only for the records of one append.
        assert sum(found[o] is not None for o in cut) >= 2 * rows


@pytest.mark.parametrize("rows", range(1, APPENDS))
def test_lost_rows_stay_known_after_the_file_was_rewritten(rows: int) -> None:
    env, _ = _two_segments()
    path = f"{PATH}/t-0/{0:020}.appendtime"
    file = env.files.open(path, write=True)
    file.truncate(HEADER_SIZE + rows * ROW_SIZE)
    file.close()
    env.files.remove(f"{PATH}/t-0/{APPEND_TIME_CHECKPOINT_FILE}")
    before = read_file(env.files, path)
    for _ in range(2):
        with LogDir.open(PATH, env=env, options=WRITABLE) as directory:
            loss = lost_times(directory.log("t", 0).segments[0])
        assert loss is not None
        assert loss.reason.endswith(f"rows, but it had {APPENDS + 1}")
    assert read_file(env.files, path) != before


def test_no_row_lost_means_every_time_known() -> None:
    env, times = _two_segments()
    with LogDir.open(PATH, env=env) as directory:
        log = directory.reader("t", 0)
        assert [log.append_time_of(offset) for offset in range(len(times))] == times
