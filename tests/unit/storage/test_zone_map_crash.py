"""After a power loss while zone maps are written, a remaining map is complete, or is not used."""

from collections.abc import Sequence

import pytest
from tests.core import thinned
from tests.faults import DamageFileSystem, Keep, reopen, seeded_env
from tests.faults.refused import opened
from tests.faults.seeded import SeededEnv
from tests.worlds.directories.logs import PATH, TOPIC, fill, new_dir, put

from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.segment import Segment
from tidelog.types import ClockName

CONFIG = {"internal.segment.bytes": "400", "index.interval.bytes": "0"}
WRITABLE = LogDirOptions(create=True)


def work(env: SeededEnv) -> None:
    """Finish, flush and truncate segments, finish them again, then close the directory cleanly."""
    with new_dir(env, CONFIG) as directory:
        env.files.settle()
        log = directory.log(TOPIC, 0)
        fill(log, 12)
        log.flush()
        log.truncate_to(7)
        env.clock.advance(1000)
        fill(log, 9, value=b"w" * 61)
        log.flush()


def judge(files: DamageFileSystem) -> int:
    """Compare zone maps with the log, in a reader and the writer; return how many a reader used."""
    env = seeded_env(99, files=files)
    env.clock.advance(10**6)
    used = check(LogDir.open(PATH, env=env).reader(TOPIC, 0).segments)
    with opened(lambda: LogDir.open(PATH, env=env, options=WRITABLE)) as directory:
        log = directory.log(TOPIC, 0)
        check(log.segments)
        zone_map_files.build_missing(log.segments)
        assert check(log.segments) == len(log.segments) - 1
        put(log, 5)
    return used


def check(segments: Sequence[Segment]) -> int:
    used = 0
    for segment in segments:
        if not isinstance(segment, ClosedSegment):
            assert segment.zones is None
            continue
        built = ZoneMap.decode(zone_map_files.build(segment, by_kernels=False))
        found = segment.zones_on(ClockName.APPEND)
        if found is not None:
            assert list(found.zones()) == list(built.zones())
            assert (found.total, dict(found.latency)) == (built.total, dict(built.latency))
            used += 1
        elif segment.zones is not None:
            assert segment.zones.total.times(ClockName.RECORD) == built.total.times(
                ClockName.RECORD
            )
    return used


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call(keep: Keep) -> None:
    env = seeded_env(1)
    work(env)
    used = [judge(reopen(state)) for state in env.files.prefixes(keep)]
    assert used[-1] > 0 or keep is Keep.SYNCED


def test_power_loss_in_seeded_ways() -> None:
    env = seeded_env(1)
    work(env)
    used = set()
    for state in env.files.crash_states(thinned(range(150))):
        try:
            used.add(judge(reopen(state)))
        except Exception as error:
            raise AssertionError(f"{error!r}\n{env.files.explain(state)}") from error
    assert len(used) > 1
