"""Changes of files by a broker: Produce, transactions, deleted records, groups, attached files.

A workload sends requests to a broker, which has the stage's clock and random numbers.
"""

import json
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.corpus.disk.library import HOUR_MS, MINUTE_MS
from tests.corpus.exchanges.batches import TRANSACTIONAL, batch
from tests.corpus.exchanges.registry import append
from tests.corpus.exchanges.scripts.groups import ready
from tests.corpus.exchanges.scripts.offsets import committed
from tests.corpus.exchanges.scripts.transactions import (
    added,
    beginning,
    ended,
    finished,
    prepared,
    producer_of,
)
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value, number
from tests.worlds.waiting import PATIENCE_S

Workload = Callable[[Stage], None]
# Settings that switch background work off, except work whose result a workload waits for.
SETTINGS: Final[Mapping[str, str]] = {
    "log.retention.check.interval.ms": "600000",
    "log.initial.task.delay.ms": "600000",
    "log.cleaner.enable": "false",
    "log.flush.offset.checkpoint.interval.ms": "864000000",
    "log.flush.start.offset.checkpoint.interval.ms": "864000000",
    "transaction.max.timeout.ms": "2147483647",
}
# Settings of a broker that advertises its listener's own address.
LEADER: Final[Mapping[str, str]] = {**SETTINGS, "advertised.listeners": ""}
_SMALL: Final = {"internal_segment_bytes": "600", "index_interval_bytes": "100"}


def _values(first: int, count: int = 4) -> list[bytes | None]:
    return [b"%03d " % n + b"v" * 30 for n in range(first, first + count)]


def produce(stage: Stage) -> None:
    """Append batches, compressed and not; restart; append batches of an idempotent producer."""
    stage.create_topic("t", 2, **_SMALL)
    stage.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
    stage.create_topic("packed", 1, compression_type="zstd", **_SMALL)
    for turn in range(6):
        stage.advance(MINUTE_MS)
        now_ms = stage.clock.now_ms()
        for topic in ("t", "stamped", "packed"):
            made = batch(now_ms - 2000, _values(turn * 4), attributes=turn % 2, step_ms=300)
            append(stage, topic, made)
    given = stage.main.quiet("init_producer_id", 4, {"transactional_id": None, "producer_id": -1})
    own = number(given, "producer_id")
    for sequence in (0, 4, 4, 8):
        stage.advance(1000)
        made = batch(stage.clock.now_ms(), _values(sequence), producer=(own, 0, sequence))
        append(stage, "t", made, 1)
    stage.restart()
    append(stage, "t", batch(stage.clock.now_ms(), _values(12), producer=(own, 0, 12)), 1)


def transactions(stage: Stage) -> None:
    """Commit, abort and time out a transaction; leave one open while the broker restarts."""
    prepared(stage)
    stage.create_topic("t", 1, internal_segment_bytes="900")

    def write(name: str, producer: tuple[int, int], sequence: int, count: int = 2) -> None:
        made = batch(
            stage.clock.now_ms(),
            _values(sequence, count),
            producer=(*producer, sequence),
            attributes=TRANSACTIONAL,
        )
        part: Tree = {"index": 0, "records": made}
        topics: list[Value] = [{"name": "t", "partition_data": [part]}]
        asked: Tree = {"acks": -1, "timeout": 1000, "topic_data": topics}
        answer = stage.main.quiet("produce", 9, {**asked, "transactional_id": name})
        assert number(answer, "responses", 0, "partition_responses", 0, "error_code") == 0, answer

    def begin(name: str) -> tuple[int, int]:
        producer = producer_of(stage.main, name)
        stage.main.quiet("add_partitions_to_txn", 3, added(name, producer, 0, topic="t"))
        write(name, producer, 0)
        return producer

    for name, is_committed in (("first", True), ("second", False), ("third", True)):
        stage.advance(1000)
        producer = begin(name)
        stage.advance(1000)
        write(name, producer, 2, 5)
        append(stage, "t", batch(stage.clock.now_ms(), _values(90)))
        stage.main.quiet("end_txn", 3, ended(name, producer, committed=is_committed))
        finished(stage, name, "CompleteCommit" if is_committed else "CompleteAbort")
    stage.main.until("init_producer_id", 4, beginning("late", 20_000), "error_code", to=0)
    begin("open")
    stage.restart()
    stage.main.until("find_coordinator", 1, {"key": "open", "key_type": 1}, "error_code", to=0)
    append(stage, "t", batch(stage.clock.now_ms(), _values(95)))


def deleted(stage: Stage) -> None:
    """Records are deleted up to an offset, inside and at the end of segments, then by retention."""
    stage.create_topic("t", 2, retention_ms=f"{HOUR_MS}", **_SMALL)
    for turn in range(10):
        stage.advance(MINUTE_MS)
        append(stage, "t", batch(stage.clock.now_ms(), _values(turn * 4)), turn % 2)
    for partition, offset in ((0, 3), (0, 17), (1, -1)):
        part: Tree = {"partition_index": partition, "offset": offset}
        topics: list[Value] = [{"name": "t", "partitions": [part]}]
        stage.main.quiet("delete_records", 2, {"topics": topics, "timeout": 1000})
    append(stage, "t", batch(stage.clock.now_ms(), _values(90)), 1)
    stage.restart()
    append(stage, "t", batch(stage.clock.now_ms(), _values(94)), 0)


def groups(stage: Stage) -> None:
    """Offsets of groups are committed, committed again, and deleted."""
    ready(stage)
    for turn in range(4):
        stage.advance(1000)
        for group in ("a", "b"):
            answer = stage.main.quiet("offset_commit", 8, committed(stage, group, turn))
            assert "'error_code': 0" in str(answer), answer
    stage.main.quiet("delete_groups", 2, {"groups_names": ["b"]})


def attached(stage: Stage) -> None:
    """Attach files that another process has staged, by a request over the control channel."""
    stage.create_topic("t", 1, internal_segment_bytes="900")
    append(stage, "t", batch(stage.clock.now_ms(), _values(0)))
    stage.advance(MINUTE_MS)
    segments = [_staged(stage, number_) for number_ in range(2)]
    own: dict[str, object] = {"commit_id": "0" * 32, "writer": ["w", 1, None]}
    _control(stage, "attach", {"segments": segments, **own})
    stage.advance(MINUTE_MS)
    append(stage, "t", batch(stage.clock.now_ms(), _values(40)))


def _staged(stage: Stage, order: int) -> dict[str, object]:
    """Stage a file; return the arguments that describe it."""
    now_ms = stage.clock.now_ms()
    first, second = (bytearray(batch(now_ms + n, _values(20 + n * 4))) for n in range(2))
    second[:8] = struct.pack(">q", 4)
    data = bytes(first + second)
    Path(stage.home, "t-0", f"part-{order}.log.staging").write_bytes(data)
    return {
        "topic": "t",
        "partition": 0,
        "name": f"part-{order}",
        "order": [order],
        "record_count": 8,
        "size_bytes": len(data),
        "batch_bytes_max": max(len(first), len(second)),
        "min_timestamp": now_ms,
        "max_timestamp": now_ms + 4,
        "has_null_key": False,
    }


def _control(stage: Stage, verb: str, arguments: dict[str, object]) -> None:
    given = json.dumps({"version": 1, "verb": verb, "arguments": arguments}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(PATIENCE_S)
        line.connect(str(stage.home / "tidelog-control.sock"))
        line.sendall(struct.pack(">I", len(given)) + given)
        answer = line.recv(1 << 16)
    stage.said.append(f"{verb}: {answer[4:].decode()}")


WORKLOADS: Final[Mapping[str, Workload]] = {
    "produce": produce,
    "transactions": transactions,
    "delete-records": deleted,
    "group-offsets": groups,
    "attach": attached,
}
