"""Topics that are deleted together: after a power loss, each is complete or gone.

A complete topic has all partitions, each with all its records and its log start. After a topic is
gone, a new topic of the same name starts empty, and keeps its records.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest
from tests.core import thinned
from tests.fault.test_topics_crash import OPTIONS, ROOT, made_of, open_dir, settled
from tests.faults import (
    START_MS,
    CrashState,
    DamageFileSystem,
    Fault,
    FaultKind,
    Keep,
    SeededEnv,
    reopen,
    seeded_env,
)
from tests.faults.journal import Rename, Sync, SyncDir

from tidelog.errors import StorageFailure, UnknownTopic
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import NewTopic, read_topics
from tidelog.storage.files import TOPICS_FILE, random_topic_id
from tidelog.storage.text_files import write_partition_metadata
from tidelog.types import NewRecord

PARTITIONS = {"a": 2, "b": 1, "c": 3}
DOOMED = ("a", "c")


def durable_topics() -> tuple[SeededEnv, LogDir]:
    """Create topics with four durable records per partition; delete each partition's first one."""
    env, directory = settled()
    directory.topic_admin.create([NewTopic(name, count) for name, count in PARTITIONS.items()])
    for name, count in PARTITIONS.items():
        for number in range(count):
            append(directory, name, number, 4)
            directory.log(name, number).delete_records(1)
    directory.flush()
    directory.checkpoint()
    env.files.settle()
    return env, directory


def append(directory: LogDir, name: str, number: int, count: int) -> None:
    for _ in range(count):
        directory.log(name, number).append([NewRecord(value=b"v")])


def crashes(env: SeededEnv) -> list[CrashState]:
    fixed = [state for keep in Keep for state in thinned(env.files.prefixes(keep))]
    return [*fixed, *env.files.crash_states(thinned(range(100)))]


def judge(state: CrashState, *, is_over: bool) -> set[str]:
    """Assert that each topic is complete or gone, also for a reader; return the complete topics."""
    env = seeded_env(2, files=reopen(state), now_ms=START_MS + 1_000)
    with LogDir.open(ROOT, env=env) as reading:
        seen = set(reading.topics())
    directory = open_dir(env)
    there = directory.topics().keys()
    assert seen == there, str(state)
    assert {"old", "b"} <= there <= {"old", *PARTITIONS}, str(state)
    assert not (is_over and there & set(DOOMED)), str(state)
    for name in there - {"old"}:
        assert not directory.topic(name).foreign
        for number in range(PARTITIONS[name]):
            log = directory.log(name, number)
            assert (log.log_start_offset, log.log_end_offset) == (1, 4), f"{name}: {state}"
    begin_anew(env, directory)
    return set(there)


def begin_anew(env: SeededEnv, directory: LogDir) -> None:
    """Assert that new topics with the free names accept records, and keep them over a hard stop."""
    free = sorted(set(DOOMED) - directory.topics().keys())
    made = made_of(
        directory.topic_admin.create([NewTopic(name, PARTITIONS[name]) for name in free])
    )
    for name in made:
        append(directory, name, 1, 1)
    directory.flush()
    again = open_dir(replace(env, files=reopen(env.files.crash(Keep.SYNCED))))
    for name, info in made.items():
        assert again.topic(name) == replace(info, present=again.topic(name).present)
        for number in range(PARTITIONS[name]):
            log = again.log(name, number)
            assert (log.log_start_offset, log.log_end_offset) == (0, int(number == 1))


def test_topics_deleted_together_are_complete_or_absent() -> None:
    env, directory = durable_topics()
    directory.topic_admin.delete(DOOMED)
    calls, seen = len(env.files.journal), set[frozenset[str]]()
    for state in crashes(env):
        seen.add(frozenset(judge(state, is_over=state.prefix == calls)))
    assert seen == {frozenset({"old", *PARTITIONS}), frozenset({"old", "b"})}, "all or none"


def test_a_topic_that_was_never_opened_is_deleted_despite_a_torn_id() -> None:
    env, directory = settled()
    directory.topic_admin.create([NewTopic("a", 2)])
    directory.topic_admin.delete(["a"])
    for state in [*env.files.prefixes(Keep.SYNCED), *env.files.crash_states(thinned(range(100)))]:
        after = open_dir(seeded_env(2, files=reopen(state)))
        found = after.topics().get("a")
        assert found is None or (not found.foreign and found.partitions == 2), str(state)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
@pytest.mark.parametrize("sticky", [False, True])
def test_after_any_failed_call_all_topics_are_complete_or_absent(
    kind: FaultKind, sticky: bool
) -> None:
    for call in range(200):
        env, directory = durable_topics()
        with failing(env.files, Fault(env.files.calls + call, kind, sticky=sticky)):
            try:
                left = directory.topic_admin.hide(DOOMED)()
                is_refused = False
            except StorageFailure:
                left, is_refused = [], True
            is_over = not env.files.writes.failed
        assert set(DOOMED) & directory.topics().keys() == (set(DOOMED) if is_refused else set())
        if is_refused:
            shows_all(directory)
        else:
            directory.topic_admin.remove_set_aside(left)
            begin_anew(replace(env, files=env.files), directory)
        directory.abandon()
        after = open_dir(replace(env, files=reopen(env.files.crash(Keep.SYNCED))))
        if is_refused:
            shows_all(after)
        if is_over:
            return
    raise AssertionError("calls without end")


@contextmanager
def failing(files: DamageFileSystem, fault: Fault) -> Iterator[None]:
    files.writes.fault = fault
    yield
    files.writes.fault = None


def shows_all(directory: LogDir) -> None:
    """Assert that topics that could not be deleted are complete, and accept records."""
    for name, count in PARTITIONS.items():
        for number in range(count):
            log = directory.log(name, number)
            assert log.log_start_offset == 1
            end = log.log_end_offset
            log.append([NewRecord(value=b"w")])
            log.flush()
            assert log.log_end_offset == end + 1 >= 5


def test_a_nonexistent_topic_prevents_the_deletion_of_all() -> None:
    _, directory = durable_topics()
    with pytest.raises(UnknownTopic):
        directory.topic_admin.delete(["a", "x"])
    assert directory.topics().keys() == {"old", *PARTITIONS}
    directory.topic_admin.delete([])


def test_a_hundred_topics_cost_three_syncs_and_one_write_of_the_registry() -> None:
    env, directory = settled()
    names = [f"t{number}" for number in range(100)]
    directory.topic_admin.create([NewTopic(name) for name in names])
    for name in names:
        directory.log(name, 0)
    env.files.settle()
    directory.topic_admin.delete(names)
    changes = [entry.change for entry in env.files.journal]
    assert sum(isinstance(change, Sync | SyncDir) for change in changes) == 3
    renames = [change for change in changes if isinstance(change, Rename)]
    assert sum(change.name == TOPICS_FILE for change in renames) == 1


def test_a_deleted_topic_is_forgotten_when_its_directories_are_removed() -> None:
    env, directory = durable_topics()
    directory.topic_admin.delete(DOOMED)
    assert read_topics(env.files, ROOT).deleted.keys() == set(DOOMED)
    directory.close()
    assert not read_topics(env.files, ROOT).deleted
    env, directory = durable_topics()
    directory.topic_admin.delete(DOOMED)
    directory.create_topic("new")
    assert not read_topics(env.files, ROOT).deleted


def test_a_topic_of_that_name_created_by_another_program_is_kept() -> None:
    """Kafka creates a topic with the deleted topic's name and another id in the directory."""
    env, directory = durable_topics()
    directory.topic_admin.delete(DOOMED)
    directory.abandon()
    env.files.make_dirs(f"{ROOT}/a-0")
    topic_id = directory.topic("b").topic_id
    assert topic_id is not None
    write_partition_metadata(env.files, f"{ROOT}/a-0", topic_id)
    found = open_dir(env).topic("a")
    assert (found.foreign, found.present, found.topic_id) == (True, (0,), topic_id)


def test_a_directory_of_kafkas_is_deleted_completely_or_not_at_all() -> None:
    """The registry does not list topics that Kafka has created, but it records their deletion."""
    env = seeded_env(1)
    for number in range(3):
        env.files.make_dirs(f"{ROOT}/k-{number}")
        write_partition_metadata(env.files, f"{ROOT}/k-{number}", random_topic_id(Random(7)))
    directory = LogDir.open(ROOT, env=env, options=OPTIONS)
    env.files.settle()
    directory.topic_admin.delete(["k"])
    for state in crashes(env):
        topics = open_dir(seeded_env(2, files=reopen(state))).topics()
        assert "k" not in topics or topics["k"].present == (0, 1, 2), str(state)
