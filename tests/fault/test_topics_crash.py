"""Topics that are created together: after a power loss, each exists completely or not at all.

Acknowledged topics exist. If a power loss has torn a directory's `partition.metadata`, it is
rewritten before the partition accepts records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from tests.core import thinned
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

from tidelog.errors import InvalidPartitions, InvalidTopic, StorageFailure, TopicExists
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.topic_registry import NewTopic, TopicInfo
from tidelog.storage.files import TOPICS_FILE
from tidelog.storage.log.durability import AT_ONCE, Deferral
from tidelog.storage.text_files import read_partition_metadata
from tidelog.types import NewRecord, TopicPartition

ROOT = "/data"
NEW = [NewTopic("a", 2, {"retention.ms": "7"}), NewTopic("b", 1), NewTopic("c", 3)]
COUNTS = {"a": 3, "c": 4}


def at_once() -> Deferral:
    return AT_ONCE


OPTIONS = LogDirOptions(create=True, deferrals=at_once)


def open_dir(env: SeededEnv) -> LogDir:
    return LogDir.open(ROOT, env=env, options=OPTIONS)


def settled() -> tuple[SeededEnv, LogDir]:
    """Return a directory with one durable topic; all crash states are after its creation."""
    env = seeded_env(1)
    directory = open_dir(env)
    directory.create_topic("old")
    env.files.settle()
    return env, directory


def made_of(found: Sequence[object]) -> dict[str, TopicInfo]:
    topics = [each[0] for each in found if isinstance(each, tuple)]
    return {info.name: info for info in topics}


def judge(
    state: CrashState, before: Mapping[str, TopicInfo], after: Mapping[str, TopicInfo]
) -> None:
    """Assert that each topic is as before or after the change, has its id, and accepts records."""
    env = seeded_env(2, files=reopen(state), now_ms=START_MS + 1_000)
    directory = open_dir(env)
    for name, info in directory.topics().items():
        assert name in after, f"{name}: {state}"
        versions = [each[name].partitions for each in (before, after) if name in each]
        assert info.partitions in versions, f"{name}: {state}"
        assert not info.foreign
        assert (info.topic_id, info.given) == (after[name].topic_id, after[name].given)
        for number in range(info.partitions):
            directory.log(name, number).append([NewRecord(value=b"v")])
    assert directory.topics().keys() >= before.keys(), str(state)
    assert_has_ids(directory, env)


def assert_has_ids(directory: LogDir, env: SeededEnv) -> None:
    """Assert that all directories have their topic's id after another power loss.

    The partitions have accepted records, so the ids must be durable.
    """
    files = reopen(env.files.crash(Keep.SYNCED))
    for name, info in directory.topics().items():
        for number in range(info.partitions):
            assert id_of(files, f"{name}-{number}") == info.topic_id


def id_of(files: DamageFileSystem, place: str) -> UUID | None:
    return read_partition_metadata(files, f"{ROOT}/{place}")


def states_of(env: SeededEnv) -> list[CrashState]:
    fixed = [state for keep in Keep for state in env.files.prefixes(keep)]
    return [*fixed, *env.files.crash_states(thinned(range(300)))]


def test_topics_created_together_exist_completely_or_not_at_all() -> None:
    env, directory = settled()
    before = dict(directory.topics())
    made = made_of(directory.topic_admin.create(NEW))
    calls, after = len(env.files.journal), {**before, **made}
    assert made.keys() == {"a", "b", "c"}
    seen = set()
    for state in states_of(env):
        judge(state, after if state.prefix == calls else before, after)
        seen.add(state.prefix)
    assert seen == set(range(calls + 1))


def test_partitions_added_together_exist_completely_or_not_at_all() -> None:
    env, directory = settled()
    directory.topic_admin.create(NEW)
    env.files.settle()
    before = dict(directory.topics())
    grown = directory.topic_admin.grow(COUNTS)
    assert [each.partitions for each in grown if isinstance(each, TopicInfo)] == [3, 4]
    calls, after = len(env.files.journal), dict(directory.topics())
    for state in states_of(env):
        judge(state, after if state.prefix == calls else before, after)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
@pytest.mark.parametrize("sticky", [False, True])
def test_after_any_failed_call_each_topic_exists_or_is_refused(
    kind: FaultKind, sticky: bool
) -> None:
    for call in range(200):
        env, directory = settled()
        env.files.writes.fault = Fault(env.files.calls + call, kind, sticky=sticky)
        found = directory.topic_admin.create(NEW)
        is_over = not env.files.writes.failed
        env.files.writes.fault = None
        made = made_of(found)
        refused = [each for each in found if isinstance(each, StorageFailure)]
        assert len(made) + len(refused) == len(NEW)
        assert directory.topics().keys() == {"old", *made}
        for name, info in made.items():
            for number in range(info.partitions):
                directory.log(name, number)
        directory.abandon()  # a kill: acknowledged topics stay, no topic is partial
        after = open_dir(replace(env, files=reopen(env.files.crash(Keep.EVERYTHING))))
        names = after.topics().keys()
        assert {"old", *made} <= names <= {"old", "a", "b", "c"}
        if not sticky:
            assert names == {"old", *made} or call < 6, "only the registry's own calls leave doubt"
        assert not any(info.foreign for info in after.topics().values())
        if is_over:
            return
    raise AssertionError("calls without end")


def test_a_topic_that_cannot_be_created_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, directory = settled()
    (failed,) = (NewTopic("b", 1),)
    make_dirs = env.files.make_dirs

    def failing(path: str) -> None:
        if path == f"{ROOT}/b-0":
            raise OSError(28, "No space left on device")
        make_dirs(path)

    monkeypatch.setattr(env.files, "make_dirs", failing)
    found = directory.topic_admin.create(NEW)
    assert made_of(found).keys() == {"a", "c"}
    assert isinstance(found[1], StorageFailure)
    monkeypatch.undo()
    directory.topic_admin.create([failed])
    assert directory.topics().keys() == {"a", "b", "c", "old"}
    directory.close()
    assert open_dir(env).topics().keys() == {"a", "b", "c", "old"}


def test_each_is_refused_for_its_own_reason() -> None:
    _, directory = settled()
    asked = [NewTopic(name) for name in ("old", "", "x.y", "x_y", "z", "z")]
    found = directory.topic_admin.create([*asked, NewTopic("n", 0), NewTopic("k", 1)])
    kinds = [type(each) for each in found]
    refused = [TopicExists, InvalidTopic, tuple, InvalidTopic, tuple, TopicExists]
    assert kinds == [*refused, InvalidPartitions, tuple]
    assert directory.topics().keys() == {"k", "old", "x.y", "z"}


def test_a_hundred_topics_cost_three_syncs_and_one_write_of_the_registry() -> None:
    env, directory = settled()
    directory.topic_admin.create([NewTopic(f"t{number}") for number in range(100)])
    changes = [entry.change for entry in env.files.journal]
    assert sum(isinstance(change, Sync | SyncDir) for change in changes) == 3
    renames = [change for change in changes if isinstance(change, Rename)]
    assert sum(change.name == TOPICS_FILE for change in renames) == 1


def test_a_clean_stop_leaves_ids_that_are_durable() -> None:
    env, directory = settled()
    directory.topic_admin.create(NEW)
    directory.close()
    files = reopen(env.files.crash(Keep.SYNCED))
    for new in NEW:
        found = {id_of(files, f"{new.name}-{number}") for number in range(new.partitions)}
        assert found == {directory.topics()[new.name].topic_id}


def test_a_partition_can_be_settled_before_it_is_opened() -> None:
    """`settle` writes a new partition's files, by renames; without it, the first opening does."""
    env, directory = settled()
    directory.topic_admin.create(NEW)
    for number in range(3):
        directory.topic_admin.settle(TopicPartition("c", number))
    calls = len(env.files.journal)
    directory.log("c", 0)
    directory.log("a", 0)
    later = env.files.journal[calls:]
    renamed = {entry.path.split("/")[2] for entry in later if isinstance(entry.change, Rename)}
    assert renamed == {"a-0"}
    files = reopen(env.files.crash(Keep.SYNCED))
    for number in range(3):
        assert id_of(files, f"c-{number}") == directory.topics()["c"].topic_id
