"""After any damage, a repair rebuilds derived files, and lookups give the same results."""

import random
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st
from tests.faults import SeededEnv
from tests.worlds.directories.logs import PATH, snapshot_of, write
from tests.worlds.directories.sick import PARTITION, T0, counting, full_log, look, mend

from tidelog.record.record import Record
from tidelog.storage import files, log_files
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_loading import IndexBuilder
from tidelog.storage.segment.segment import iterate_batches
from tidelog.types import ClockName, IsolationLevel, OffsetAndTimestamp

DERIVED = (
    log_files.OFFSET_INDEX_SUFFIX,
    log_files.TIME_INDEX_SUFFIX,
    log_files.TXN_INDEX_SUFFIX,
    log_files.ZONES_SUFFIX,
    log_files.SNAPSHOT_SUFFIX,
)
PRIMARY = (log_files.LOG_SUFFIX, log_files.APPEND_TIME_SUFFIX)

Damage = Callable[[random.Random, bytes], bytes | None]


def flip(source: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def cut(source: random.Random, data: bytes) -> bytes:
    return data[: source.randrange(len(data) + 1)]


def pad(source: random.Random, data: bytes) -> bytes:
    return data + bytes(source.choice((4, 8, 12, 24, 34, 120, 4096)))


def zero(_source: random.Random, data: bytes) -> bytes:
    return bytes(len(data))


def scramble(source: random.Random, data: bytes) -> bytes:
    return source.randbytes(len(data) + source.randrange(40))


def lose(_source: random.Random, _data: bytes) -> None:
    return None


DAMAGES: list[Damage] = [flip, cut, pad, zero, scramble, lose]

SOUND = full_log()
mend(SOUND)


def derived_names() -> list[str]:
    names = [entry.name for entry in SOUND.files.list_dir(PARTITION)]
    found = [name for name in names if name.endswith(DERIVED)]
    return [*found, files.LEADER_EPOCH_CHECKPOINT_FILE, files.APPEND_TIME_CHECKPOINT_FILE]


def contents(env: SeededEnv) -> dict[str, bytes | None]:
    return snapshot_of(env, PATH)


def answers(env: SeededEnv) -> list[object]:
    """Return every record, and lookups on both clocks."""
    with LogDir.open(PATH, env=env) as directory:
        log = directory.reader("t", 0)
        committed = [each.offset for each in log.records(isolation=IsolationLevel.READ_COMMITTED)]
        return [records_of(log), committed, *lookups(log)]


def records_of(log: LogView) -> list[Record]:
    return list(log.records())


def lookups(log: LogView) -> list[OffsetAndTimestamp | None]:
    times = [0, T0, *(T0 + step * 331 for step in range(70)), T0 + 10**9]
    return [log.offset_for_time(ms, clock=clock) for clock in ClockName for ms in times]


def freshly_built(env: SeededEnv) -> dict[str, bytes]:
    """Return the content of indexes and zone maps that are newly built from the log."""
    built: dict[str, bytes] = {}
    with LogDir.open(PATH, env=env) as directory:
        for segment in directory.reader("t", 0).segments:
            base = segment.base_offset
            builder = IndexBuilder(segment.context.config, base)
            for position, batch in iterate_batches(segment, 0, segment.size_bytes):
                builder.add(batch, position)
            for suffix, index in zip(DERIVED[:2], builder.finish(), strict=True):
                built[log_files.file_name(base, suffix)] = bytes(index.encoded)
            if isinstance(segment, ClosedSegment):
                built[log_files.file_name(base, log_files.ZONES_SUFFIX)] = zone_map_files.build(
                    segment
                )
    return built


EXPECTED = answers(SOUND)
BEFORE = contents(SOUND)


@given(
    names=st.sets(st.sampled_from(derived_names()), min_size=1, max_size=5),
    damage=st.sampled_from(DAMAGES),
    seed=st.integers(0, 2**32),
)
def test_a_repair_restores_damaged_files(names: set[str], damage: Damage, seed: int) -> None:
    env = full_log()
    mend(env)
    assert contents(env) == BEFORE
    damaged = do_damage(env, names, damage, random.Random(seed))
    assert mend(env) == []
    assert counting(look(env)) == []
    after = contents(env)
    for path, data in BEFORE.items():
        if path.endswith(PRIMARY):
            assert after[path] == data
    assert answers(env) == EXPECTED
    built = freshly_built(env)
    for name, changed in damaged.items():
        found = after.get(f"{PARTITION}/{name}")
        if name in built:
            assert found == built[name] or is_unseen_cut(name, changed, damaged)
        elif name.endswith(log_files.SNAPSHOT_SUFFIX) and changed is None:
            assert found is None  # a repair leaves obsolete files, which normal operation deletes
        elif name != files.APPEND_TIME_CHECKPOINT_FILE:
            assert found == BEFORE[f"{PARTITION}/{name}"]


def do_damage(
    env: SeededEnv, names: set[str], damage: Damage, source: random.Random
) -> dict[str, bytes | None]:
    """Damage the files; return the new contents of the changed files, None for a removed file."""
    damaged = {}
    for name in sorted(names):
        data = BEFORE[f"{PARTITION}/{name}"]
        assert data is not None
        changed = damage(source, data)
        env.files.remove(f"{PARTITION}/{name}")
        if changed is not None:
            write(env, name, changed)
        if changed != data:
            damaged[name] = changed
    return damaged


def is_unseen_cut(name: str, changed: bytes | None, damaged: Mapping[str, bytes | None]) -> bool:
    """Whether a file is an index whose missing end a check can't detect.

    An offset index is valid even if its last entries are missing. Only the segment's zone map would
    show that they are missing.
    """
    data = BEFORE[f"{PARTITION}/{name}"]
    assert data is not None
    is_cut = changed is not None and data.startswith(changed)
    zones = name.replace(log_files.OFFSET_INDEX_SUFFIX, log_files.ZONES_SUFFIX)
    return is_cut and zones != name and (zones in damaged or f"{PARTITION}/{zones}" not in BEFORE)
