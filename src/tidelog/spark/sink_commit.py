"""Making staged segments visible: under the directory's lock, or by asking who holds it.

A writer that finds the lock taken asks its holder through the control channel
(`tidelog.control`); where the holder serves none, it waits a while: another writer's commit takes
seconds at most.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.control.client import ControlClient, find_holder
from tidelog.env import Env
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.storage import writers
from tidelog.storage.attach import AttachResult, WriterVersion, attach
from tidelog.storage.log_dir import LogDir, LogDirOptions

if TYPE_CHECKING:
    from tidelog.spark.sink_options import SinkOptions
    from tidelog.storage.staging import StagedSegment

_PAUSE_MS: Final = 50
_Answer = TypeVar("_Answer")


def attach_staged(
    options: "SinkOptions",
    staged: "Iterable[StagedSegment]",
    *,
    commit_id: str,
    version: WriterVersion | None,
) -> AttachResult:
    """Make staged segments part of the directory, all together; what became of them.

    Args:
        options: Of the write.
        staged: What the chosen attempts of all tasks have staged.
        commit_id: 32 hexadecimal digits.
        version: Whose version it is; None where nobody counts.

    Raises:
        DirectoryLocked: Another process has the directory open for writing, serves no control
            channel, and did not let go in time. Nothing was changed.
        TidelogError: What `attach` raises, here or in the process that holds the lock.
    """
    env, segments = options.env(), list(staged)

    def under_lock(log_dir: LogDir) -> AttachResult:
        return attach(log_dir, segments, commit_id=commit_id, version=version)

    def through(holder: ControlClient) -> AttachResult:
        if options.clock_ms is not None:
            raise InvalidRequest(
                f"option clock.ms: another process has {options.path} open for writing, and commits"
                " by its own clock"
            )
        return holder.attach(segments, commit_id=commit_id, version=version)

    return _by_lock_or_holder(options, env, under_lock, through)


def ensure_reachable(options: "SinkOptions") -> None:
    """Fail before the work, not after it: somebody must be able to commit.

    Raises:
        InvalidRequest: There is no such directory.
        UnknownTopic: No such topic.
        DirectoryLocked: As `attach_staged`.
    """
    env = options.env()
    with LogDir.open(options.path, env=env) as log_dir:
        if options.topic is not None:
            log_dir.topic(options.topic)

    from tidelog.storage.files import LOCK_FILE

    for _ in _tries(options.lock_wait_ms):
        try:
            env.files.lock(f"{options.path}/{LOCK_FILE}").close()
            return
        except BlockingIOError:
            holder = find_holder(options.path)
            if holder is not None:
                holder.close()
                return
    raise _locked(options.path)


def is_committed(options: "SinkOptions", version: WriterVersion) -> bool:
    """Whether a version is surely there in all of its topics.

    False also where it is just being committed, and where its topics are not known yet.
    """
    marks, topics = writers.read_marks(options.env().files, options.path), version.topics or ()
    done = writers.find_done_topics(marks, version.writer, version.version, topics)
    return bool(topics) and len(done) == len(topics)


def _by_lock_or_holder(
    options: "SinkOptions",
    env: Env,
    under_lock: Callable[[LogDir], _Answer],
    through: Callable[[ControlClient], _Answer],
) -> _Answer:
    for _ in _tries(options.lock_wait_ms):
        try:
            with LogDir.open(
                options.path, env=env, options=LogDirOptions(writable=True)
            ) as log_dir:
                return under_lock(log_dir)
        except DirectoryLocked:
            holder = find_holder(options.path)
        if holder is not None:
            with holder:
                return through(holder)
    raise _locked(options.path)


def _tries(wait_ms: int) -> Iterator[None]:
    """Once, then again after each pause until the wait is over."""
    yield
    for _ in range(wait_ms // _PAUSE_MS):
        threading.Event().wait(_PAUSE_MS / 1000)
        yield


def _locked(path: str) -> DirectoryLocked:
    return DirectoryLocked(
        f"{path}: another process has it open for writing and serves no control channel"
        " (see docs/control.md); stop it, or let it serve one"
    )
