"""Checks of a directory: read it by commands, serve it, extend it."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tests.corpus import still
from tests.corpus.before import made
from tests.corpus.before.archives import NOW_FILE
from tests.corpus.disk import served
from tests.corpus.exchanges.batches import batch, batch_lines
from tests.corpus.exchanges.identities import Scram, scram
from tests.corpus.exchanges.registry import append
from tests.corpus.exchanges.scripts.cluster import filtered
from tests.corpus.exchanges.scripts.records import fetched
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value, at, number
from tests.corpus.shell import command_line, run

import tidelog
from tidelog import ManualClock, NewRecord

Answer = tuple[str, list[str]]
_HOUR_MS = 3_600_000
_PLAIN = ("-o", "json", "--key-as", "bytes", "--value-as", "bytes")
_SETTINGS = {"secured": made.SECURED, "standby": served.LEADER}


def answers(name: str, folder: Path) -> Iterator[Answer]:
    """Yield all results, each with its name; the last steps change the directory."""
    yield from facts(folder)
    for topic in _topics():
        rows = [line for word in ("describe", "why") for line in _said(word, topic)]
        yield f"shown/{topic}", rows
    yield "doctor", _said("doctor", "data")
    if name == "standby":
        yield "followed", _followed(folder)
    yield "served", _served(name, folder)
    if name == "secured":
        yield "rights", _rights(folder)
    yield "appended", [*_appended(), *_said("doctor", "data")]


def alike(folder: Path) -> Iterator[Answer]:
    """Yield results that must be equal in every version: of reads, then of an append."""
    yield from facts(folder)
    yield "appended", _appended()


def facts(folder: Path) -> Iterator[Answer]:
    """Yield the records, counts and offsets, which every version must read from the same files."""
    os.chdir(folder)
    still.set_time(int(Path(NOW_FILE).read_text()))
    for topic in _topics():
        yield f"read/{topic}", _run("read", topic, *_PLAIN)
        yield f"counts/{topic}", _counts(topic)


def _topics() -> list[str]:
    listed = run("topics", "--data", "data", "-o", "json").out.decode().splitlines()
    return sorted(str(json.loads(line)["topic"]) for line in listed)


def _run(*arguments: str) -> list[str]:
    line = [*arguments, "--data", "data"]
    return [command_line(line), *run(*line).lines()]


def _said(word: str, topic: str) -> list[str]:
    if word == "doctor":
        return [*run("doctor", topic, "-o", "json").lines()]
    return _run(word, topic, "-o", "json")


def _counts(topic: str) -> list[str]:
    lines: list[str] = []
    with tidelog.open("data") as directory:
        names = [
            tidelog.TopicPartition(topic, number_)
            for number_ in range(directory.topic(topic).partitions)
        ]
        begins = directory.beginning_offsets(names)
        lines += [f"begins {place}: {offset}" for place, offset in begins.items()]
        for isolation in tidelog.IsolationLevel:
            ends = directory.end_offsets(names, isolation=isolation)
            lines += [f"ends {place} {isolation.name}: {end}" for place, end in ends.items()]
            lines.append(f"counts {isolation.name}: {directory.count(topic, isolation=isolation)}")
        for back in (100_000, 30, 12, 3, 2, 1, 0):
            time_ms = max(still.now_ms() - back * _HOUR_MS // 2, 0)
            for clock in tidelog.ClockName:
                found = directory.offsets_at(topic, time_ms, clock=clock)
                lines += [f"{clock} {time_ms} {place}: {first}" for place, first in found.items()]
                count = directory.count(topic, start=time_ms, clock=clock)
                lines.append(f"{clock} {time_ms} counts {count}, {count.without_time} without time")
    return lines


# -- a broker --------------------------------------------------------------------------------------


def _stage(name: str, data: Path) -> Stage:
    settings = _SETTINGS.get(name, served.SETTINGS)
    return Stage(data, settings, clock=ManualClock(still.now_ms()))


def _served(name: str, folder: Path) -> list[str]:
    """Serve the directory; return, for each partition, the batches that consumers receive."""
    lines: list[str] = []
    with _stage(name, folder / "data") as stage:
        # A broker on a standby's directory creates the topic of group offsets in the background, at
        # a time that varies between runs.
        stage.main.until("find_coordinator", 1, {"key": "g", "key_type": 0}, "error_code", to=0)
        answer = stage.main.quiet("metadata", 9, {"topics": None})
        for topic, partition in sorted(_places(answer)):
            for isolation in (0, 1):
                lines += [f"{topic}-{partition} isolation {isolation}"]
                lines += _consumed(stage, topic, partition, isolation)
        stage.chapter("offsets")
        stage.main.ask("list_groups", 4, {"states_filter": []})
    return [*lines, *stage.said]


def _places(answer: Tree) -> Iterator[tuple[str, int]]:
    topics = at(answer, "topics")
    assert isinstance(topics, list)
    for topic in topics:
        parts = at(topic, "partitions")
        assert isinstance(parts, list)
        for part in parts:
            yield str(at(topic, "name")), number(part, "partition_index")


def _consumed(stage: Stage, topic: str, partition: int, isolation: int) -> Iterator[str]:
    where: Tree = {"partition_index": partition, "timestamp": -2}
    asked: list[Value] = [{"name": topic, "partitions": [where]}]
    begins = stage.main.quiet("list_offsets", 7, {"topics": asked})
    offset = number(begins, "topics", 0, "partitions", 0, "offset")
    tree = fetched(stage, offset, topic, partition=partition, isolation_level=isolation)
    found = at(stage.main.quiet("fetch", 12, tree), "responses", 0, "partitions", 0)
    assert isinstance(found, dict)
    records = found.pop("records")
    assert isinstance(records, bytes | None)
    digest = hashlib.sha256(records or b"").hexdigest()[:32]
    yield f"  {found} {len(records or b'')} bytes {digest}"
    yield from (f"  {line}" for line in batch_lines({"records": records}))


def _rights(folder: Path) -> list[str]:
    """Return the ACLs, users and quotas, and results of requests of each user."""
    with _stage("secured", folder / "data") as stage:
        stage.chapter("rights")
        stage.main.ask("describe_acls", 3, filtered())
        stage.main.ask("describe_user_scram_credentials", 0, {"users": None})
        stage.main.ask("describe_client_quotas", 1, {"components": [], "strict": False})
        for user, kind in (("alice", "sha256"), ("bob", "sha512"), ("eve", "sha256")):
            line = stage.line(user, "SASL_PLAINTEXT")
            scram(line, f"SCRAM-SHA-{kind[3:]}", Scram(user, "password", kind))
            for topic in ("open", "closed"):
                line.ask("fetch", 12, fetched(stage, 0, topic), f"{user} reads {topic}")
            line.close()
    return stage.said


def _followed(folder: Path) -> list[str]:
    """Append to the leader, copy to the standby, and return what the standby then has."""
    with _stage("standby", folder / "leader") as stage:
        for partition in (0, 1):
            append(stage, "t", batch(still.now_ms(), [b"new", None]), partition)
        leader = f"127.0.0.1:{next(iter(stage.broker.ports.values()))}"
        ran = run("follow", leader, "--data", "data", "--once", "-o", "json")
    lines = [line.replace(leader, "LEADER") for line in ran.lines()]
    return [*lines, *_run("read", "t", *_PLAIN), *_run("offsets", "t", "--at", "latest")]


def _appended() -> list[str]:
    """Append more records."""
    still.advance(1000)
    with tidelog.open("data", writable=True) as directory:
        for topic in directory.topics():
            if not topic.startswith("__"):
                rows = [NewRecord(key=b"new", value=b"%d" % n) for n in range(3)]
                directory.append(topic, rows, partition=0)
        lines = [f"reported: {line}" for line in directory.reports]
        names = list(directory.topics())
    for topic in names:
        lines += _run("offsets", topic, "--at", "latest", "-o", "json")
    return lines
