"""A writer's version is stored with each commit, so that a replayed batch is not added twice."""

import pytest
from tests.core import thinned
from tests.faults import Fault, FaultKind, Keep, reopen, seeded_env
from tests.worlds.directories.staged import (
    ROOT,
    TOPIC,
    WRITABLE,
    expected,
    make_directory,
    stage,
    values,
)

from tidelog.env import Env
from tidelog.errors import (
    CorruptFile,
    InvalidRequest,
    StorageFailure,
    TopicExists,
    UnsupportedVersion,
)
from tidelog.storage import commits
from tidelog.storage.directory.attach import AttachResult, WriterVersion, attach, find_done
from tidelog.storage.directory.log_dir import LogDir

QUERY = "query/a"


def commit(env: Env, label: str, version: int, count: int = 9) -> AttachResult:
    """Attach one batch of a query to both partitions."""
    staged = [*stage(env, 0, label, count), *stage(env, 1, label, count)] if count else []
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        return attach(log_dir, staged, version=WriterVersion(QUERY, version))


def test_a_version_is_attached_once() -> None:
    env = seeded_env(1)
    make_directory(env)
    assert not commit(env, "a", 4).was_done
    for version in (4, 3, 0):
        assert commit(env, "again", version).was_done
    assert values(env, 0) == expected(0, "a", 9)
    mark = commits.read_marks(env.files, ROOT)[QUERY]
    assert mark[:3] == (4, env.clock.now_ms(), "")
    assert not commit(env, "b", 5).was_done
    assert len(values(env, 1)) == 19


def test_a_version_without_rows_is_remembered_too() -> None:
    env = seeded_env(1)
    make_directory(env)
    assert not commit(env, "a", 0, count=0).was_done
    assert commit(env, "a", 0).was_done


def test_an_existing_version_returns_its_offsets_and_its_note() -> None:
    env = seeded_env(1)
    make_directory(env)
    version = WriterVersion(QUERY, 4, "rows of the source")
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        first = attach(log_dir, stage(env, 0, "a", 9), version=version)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        again = attach(log_dir, stage(env, 0, "b", 3), version=WriterVersion(QUERY, 4, "others"))
        older = attach(log_dir, [], version=WriterVersion(QUERY, 3))
    assert (first.note, again.note) == ("rows of the source", "rows of the source")
    places = [
        {name: (r.first_offset, r.end_offset, r.append_time_ms) for name, r in one.items()}
        for one in (first.partitions, again.partitions)
    ]
    assert places[0] == places[1] != {}
    assert (older.was_done, older.note, older.partitions) == (True, "", {})


def test_a_note_has_its_limit() -> None:
    env = seeded_env(1)
    make_directory(env)
    version = WriterVersion(QUERY, 4, "x" * (commits.NOTE_CHARACTERS_MAX + 1))
    with (
        LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir,
        pytest.raises(InvalidRequest, match="a note of 1048577 characters"),
    ):
        attach(log_dir, stage(env, 0, "a", 9), version=version)


def test_writers_do_not_know_each_other() -> None:
    env = seeded_env(1)
    make_directory(env)
    commit(env, "a", 4)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        other = attach(log_dir, stage(env, 0, "o"), version=WriterVersion("query/b", 0))
    assert not other.was_done
    assert commits.read_marks(env.files, ROOT).keys() == {QUERY, "query/b"}


def test_a_recreated_topic_has_no_versions_of_the_former_topic() -> None:
    env = seeded_env(1)
    make_directory(env)
    version = WriterVersion("app/a", 4, topics=(TOPIC,))
    other = WriterVersion("app/a", 4, topics=(f"{TOPIC}s",))
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        attach(log_dir, stage(env, 0, "a", 9), version=version)
        attach(log_dir, [], version=other)
        with pytest.raises(TopicExists):
            log_dir.create_topic(TOPIC)
        assert find_done(log_dir, version) is not None
        log_dir.delete_topic(TOPIC)
        log_dir.create_topic(TOPIC)
        assert find_done(log_dir, version) is None
        assert find_done(log_dir, other) is not None
        assert not attach(log_dir, stage(env, 0, "b", 3), version=version).was_done
        assert find_done(log_dir, version) is not None


@pytest.mark.parametrize("keep", list(Keep))
def test_power_loss_at_every_call_and_the_batch_again(keep: Keep) -> None:
    """After a power loss at any call, the replayed batch is in both partitions exactly once."""
    env = seeded_env(1)
    make_directory(env)
    commit(env, "first", 0)
    env.files.settle()
    commit(env, "a", 1)
    was_done = []
    for state in thinned(env.files.prefixes(keep)):
        again = seeded_env(99, files=reopen(state))
        again.clock.set(env.clock.now_ms())
        was_done.append(commit(again, "a", 1).was_done)
        assert values(again, 0) == [*expected(0, "first", 9), *expected(0, "a", 9)[1:]], str(state)
        assert values(again, 1) == [*expected(1, "first", 9), *expected(1, "a", 9)[1:]], str(state)
    assert not was_done[0]
    assert was_done[-1]


def test_power_loss_in_seeded_ways_and_the_batch_again() -> None:
    env = seeded_env(1)
    make_directory(env)
    env.files.settle()
    commit(env, "a", 0)
    outcomes = set()
    for state in env.files.crash_states(thinned(range(300))):
        again = seeded_env(99, files=reopen(state))
        again.clock.set(env.clock.now_ms())
        outcomes.add(commit(again, "a", 0).was_done)
        assert values(again, 0) == expected(0, "a", 9), str(state)
        assert values(again, 1) == expected(1, "a", 9), str(state)
    assert outcomes == {True, False}


def test_after_any_failed_call_the_batch_is_not_attached_twice() -> None:
    """Neither a process in which a call failed nor a new process attaches the batch twice."""
    env = seeded_env(1)
    make_directory(env)
    env.files.settle()
    clean, before = env.files.crash(Keep.SYNCED), env.files.calls
    commit(env, "a", 0)
    count = env.files.calls - before
    failed = 0
    for call in thinned(range(0, count, 2)):
        again = seeded_env(1, files=reopen(clean, fault=Fault(call, FaultKind.EIO)))
        again.clock.set(env.clock.now_ms())
        try:
            commit(again, "a", 0)
        except (StorageFailure, OSError):
            failed += 1
        commit(again, "a", 0)
        assert values(again, 0) == expected(0, "a", 9), call
        assert values(again, 1) == expected(1, "a", 9), call
    assert failed > 15


def test_after_a_failed_commit_only_reopening_continues() -> None:
    """The process can't know whether the version was attached, so it must reopen the directory."""
    env = seeded_env(1)
    make_directory(env)
    staged = stage(env, 0, "a", 9)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        path = f"{ROOT}/tidelog-commit-{'0' * 32}.json"
        env.files.open(path, create=True).pwrite(commits.encode_commit(commits.Commit()), 0)
        with pytest.raises(StorageFailure, match="unfinished"):
            attach(log_dir, staged, version=WriterVersion(QUERY, 0))
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        assert not attach(log_dir, staged, version=WriterVersion(QUERY, 0)).was_done


@pytest.mark.parametrize("name", ["", "x" * 513])
def test_names_that_are_refused(name: str) -> None:
    env = seeded_env(1)
    make_directory(env)
    with (
        LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir,
        pytest.raises(InvalidRequest, match="name"),
    ):
        attach(log_dir, [], version=WriterVersion(name, 0))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "writers": {"a": [1]}}',
        b'{"version": 1, "writers": {"a": ["1", 2]}}',
        b'{"version": 1, "writers": {"a": [-1, 2]}}',
    ],
)
def test_damaged_files_are_not_taken_for_empty(text: bytes) -> None:
    """If a damaged file counted as empty, a batch could be attached twice."""
    env = seeded_env(1)
    make_directory(env)
    env.files.open(f"{ROOT}/{commits.WRITERS_FILE}", create=True).pwrite(text, 0)
    with pytest.raises(CorruptFile, match=r"tidelog-writers\.json"):
        commit(env, "a", 0)
    assert values(env, 0) == [b"0"]


def test_a_later_version_of_the_file_is_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        commits.decode_marks(b'{"version": 2, "writers": {}}')


APP = "app/splitter"
OTHER = "ships"


def commit_topics(env: Env, label: str, version: int, *topics: str) -> AttachResult:
    """Attach nine rows to each topic, as one version of a writer that counts versions by topic."""
    staged = [one for t in topics for one in stage(env, 0, f"{t}-{label}", 9, topic=t)]
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        return attach(log_dir, staged, version=WriterVersion(APP, version, topics=topics))


def make_two_topics(env: Env) -> None:
    make_directory(env)
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        for topic in (OTHER, "new"):
            log_dir.create_topic(topic, partitions=1)


def rows_by_topic(result: AttachResult) -> dict[str, int]:
    return {n.topic: r.end_offset - r.first_offset for n, r in result.partitions.items()}


def test_each_topic_counts_the_versions_of_an_application_by_itself() -> None:
    env = seeded_env(1)
    make_two_topics(env)
    assert rows_by_topic(commit_topics(env, "a", 3, TOPIC)) == {TOPIC: 9}
    assert rows_by_topic(commit_topics(env, "a", 3, OTHER)) == {OTHER: 9}
    again = commit_topics(env, "a", 3, TOPIC)
    assert (again.was_done, again.skipped, again.record_count) == (True, {TOPIC: 3}, 0)


def test_a_version_that_one_topic_has_is_written_to_the_other_topics() -> None:
    env = seeded_env(1)
    make_two_topics(env)
    commit_topics(env, "a", 5, TOPIC)
    both = commit_topics(env, "b", 4, TOPIC, OTHER)
    assert (both.was_done, both.skipped, rows_by_topic(both)) == (False, {TOPIC: 5}, {OTHER: 9})
    marks = commits.read_marks(env.files, ROOT)
    assert commit_topics(env, "c", 4, TOPIC, OTHER).skipped == {TOPIC: 5, OTHER: 4}
    commit_topics(env, "c", 4, OTHER, "new")
    kept = commits.read_marks(env.files, ROOT)
    assert {name: kept[name] for name in marks} == marks
    assert rows_by_topic(commit_topics(env, "d", 6, TOPIC, OTHER)) == {TOPIC: 9, OTHER: 9}
