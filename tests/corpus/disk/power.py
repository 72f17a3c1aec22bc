"""Content of a directory that is opened after a power loss during a workload.

Each crash is recorded in one line. The line has the number of calls before the crash, each
partition's first offset, end offset and record count, the reports of the recovery, a digest of the
calls of recovery and close, and a digest of the files after the close.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from tests.corpus.disk.calls import lines, of_journal
from tests.corpus.disk.library import MINUTE_MS, SMALL, some
from tests.faults import CrashState, DamageFileSystem, Keep, reopen, seeded_env

import tidelog

ROOT: Final = "/log"
# A crash is tried at every `STEP`-th call. Each crash is tried in three forms: all changes survive,
# only synced changes survive, or a random part of the unsynced changes survives.
STEP: Final = 3


def disk() -> DamageFileSystem:
    """Run a workload; return its disk, whose journal begins after the first clean close."""
    env = seeded_env(11)
    clock = env.clock
    with tidelog.open(ROOT, writable=True, env=env) as directory:
        directory.create_topic("plain")
        directory.create_topic("rolled", partitions=2, config=SMALL)
        directory.append("rolled", some(clock, 8))
    env.files.settle()
    with tidelog.open(ROOT, writable=True, env=env) as directory:
        for turn in range(4):
            clock.advance(20 * MINUTE_MS)
            directory.append("plain", some(clock, 4, turn * 4))
            directory.append("rolled", some(clock, 14, 20 + turn * 14), codec="gzip")
            if turn == 1:
                directory.flush()
        directory.create_topic("clean", config={"flush.messages": "2", **SMALL})
        directory.append("clean", some(clock, 5))
        directory.load_once("clean", some(clock, 6), source="a.csv")
        directory.alter_config("rolled", {"retention.bytes": "900"})
        directory.retain()
        directory.delete_topic("plain")
    return env.files


def states(files: DamageFileSystem) -> Iterator[tuple[str, CrashState]]:
    """Yield the disks after the crashes, each with a name."""
    for prefix in range(0, len(files.journal) + 1, STEP):
        yield "all", files.crash(Keep.EVERYTHING, prefix)
        yield "synced", files.crash(Keep.SYNCED, prefix)
        (drawn,) = files.crash_states([prefix], prefix=prefix)
        yield "drawn", drawn


def told(name: str, state: CrashState) -> str:
    """Return the result of a crash, in one line."""
    files, words = _opened(state)
    made = lines(of_journal(files.journal, ROOT))
    left = sorted(files.crash(Keep.EVERYTHING).contents().items())
    words += [f"calls {len(made)} {_digest(made)}", f"files {_digest(map(str, left))}"]
    return " ".join([f"{state.prefix} {name}:", *words])


def calls(state: CrashState) -> list[str]:
    """Return the calls of the recovery from a crash and of the clean close after it."""
    files, words = _opened(state)
    return [*words, *lines(of_journal(files.journal, ROOT))]


def _opened(state: CrashState) -> tuple[DamageFileSystem, list[str]]:
    files = reopen(state)
    env = seeded_env(12, files=files)
    env.clock.advance(3 * 60 * MINUTE_MS)
    words: list[str] = []
    try:
        with tidelog.open(ROOT, writable=True, env=env) as directory:
            words += _partitions(directory)
            words += [f"[{report}]" for report in directory.reports]
    except tidelog.TidelogError as error:
        words.append(f"{type(error).__name__}: {error}")
    return files, words


def _partitions(directory: tidelog.Directory) -> Iterator[str]:
    for topic, info in sorted(directory.topics().items()):
        names = [tidelog.TopicPartition(topic, number) for number in range(info.partitions)]
        first, end = directory.beginning_offsets(names), directory.end_offsets(names)
        for place in names:
            ends = f"{topic}-{place.partition} {first[place]}..{end[place]}"
            try:
                count = sum(1 for found, _ in directory.records(topic) if found == place)
            except tidelog.TidelogError as error:
                yield f"{ends} ({type(error).__name__}: {error})"
            else:
                yield f"{ends} ({count})"


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
