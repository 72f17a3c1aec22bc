"""Transactions that commit, abort, are fenced or time out, and the records that readers get."""

from pathlib import Path

from tests.corpus.exchanges.batches import TRANSACTIONAL, batch
from tests.corpus.exchanges.registry import FLIGHTS
from tests.corpus.exchanges.scripts.records import fetched, produced, searched
from tests.corpus.exchanges.scripts.transactions import (
    added,
    beginning,
    ended,
    finished,
    owner,
    prepared,
)
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.exchanges.values import Tree, Value, number

TIMEOUT_MS = 20_000
CHECK_MS = 10_000
Producer = tuple[int, int]


def play(home: Path) -> Stage:
    """Play each way in which a transaction can end."""
    with Stage(home, is_measured=True) as stage:
        prepared(stage)
        _committed(stage)
        _aborted(stage)
        _fenced(stage)
        _timed_out(stage)
        _second_version(stage)
        _restarted(stage)
    return stage


def _begun(stage: Stage, name: str) -> Producer:
    given = stage.main.ask("init_producer_id", 4, beginning(name, TIMEOUT_MS))
    return number(given, "producer_id"), number(given, "producer_epoch")


def _written(
    stage: Stage, name: str, producer: Producer, *values: bytes, sequence: int = 0, version: int = 9
) -> None:
    made = batch(NOW_MS, values, producer=(*producer, sequence), attributes=TRANSACTIONAL)
    stage.main.ask("produce", version, {**produced(stage, made), "transactional_id": name})


def _seen(stage: Stage, offset: int) -> None:
    """Record reads from an offset on: of all records, and of committed records."""
    main = stage.main
    main.ask("fetch", 12, fetched(stage, offset), "all records")
    main.ask("fetch", 12, fetched(stage, offset, isolation_level=1), "committed records")
    main.ask("list_offsets", 6, {**searched(-1), "isolation_level": 1}, "the end of these")
    parts: list[Value] = [{"name": FLIGHTS, "partition_indexes": [0]}]
    main.ask("describe_producers", 0, {"topics": parts})


def _offsets_in(stage: Stage, name: str, producer: Producer, group: str) -> None:
    main = stage.main
    main.ask("add_offsets_to_txn", 3, {**owner(name, producer), "group_id": group})
    part: Tree = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "t"}
    topics: list[Value] = [{"name": FLIGHTS, "partitions": [part]}]
    nobody: Tree = {"generation_id": -1, "member_id": "", "group_id": group}
    main.ask("txn_offset_commit", 3, {**owner(name, producer), **nobody, "topics": topics})
    _kept_offsets(stage, group)


def _kept_offsets(stage: Stage, group: str) -> None:
    parts: list[Value] = [{"name": FLIGHTS, "partition_indexes": [0]}]
    asked: Tree = {"group_id": group, "topics": parts}
    stage.main.ask("offset_fetch", 7, {**asked, "require_stable": True}, "stable")
    stage.main.ask("offset_fetch", 7, {**asked, "require_stable": False}, "unstable")


def _committed(stage: Stage) -> None:
    stage.chapter("committed")
    name = "committed"
    producer = _begun(stage, name)
    _written(stage, name, producer, b"too early")
    stage.main.ask("add_partitions_to_txn", 3, added(name, producer, 0))
    _written(stage, name, producer, b"one", b"two")
    _offsets_in(stage, name, producer, "g")
    _seen(stage, 5)
    stage.main.ask("end_txn", 3, ended(name, producer, committed=True))
    finished(stage, name, "CompleteCommit")
    _seen(stage, 5)
    _kept_offsets(stage, "g")


def _aborted(stage: Stage) -> None:
    stage.chapter("aborted")
    name = "aborted"
    producer = _begun(stage, name)
    stage.main.ask("add_partitions_to_txn", 3, added(name, producer, 0, 1))
    _written(stage, name, producer, b"gone")
    _offsets_in(stage, name, producer, "g")
    stage.main.ask("end_txn", 3, ended(name, producer, committed=False))
    finished(stage, name, "CompleteAbort")
    _seen(stage, 8)
    _kept_offsets(stage, "g")


def _fenced(stage: Stage) -> None:
    stage.chapter("fenced")
    name = "fenced"
    old = _begun(stage, name)
    stage.main.ask("add_partitions_to_txn", 3, added(name, old, 0))
    _written(stage, name, old, b"by the old one")
    stage.main.ask("init_producer_id", 4, beginning(name, TIMEOUT_MS), "another begins")
    finished(stage, name, "CompleteAbort")
    new = _begun(stage, name)
    _written(stage, name, old, b"late", sequence=1)
    stage.main.ask("add_partitions_to_txn", 3, added(name, old, 0), "by the old one")
    stage.main.ask("end_txn", 3, ended(name, old, committed=True), "by the old one")
    stage.main.ask("add_partitions_to_txn", 3, added(name, new, 0))
    _written(stage, name, new, b"by the new one")
    stage.main.ask("end_txn", 3, ended(name, new, committed=True))
    finished(stage, name, "CompleteCommit")
    _seen(stage, 10)


def _timed_out(stage: Stage) -> None:
    stage.chapter("timed-out")
    name = "slow"
    producer = _begun(stage, name)
    stage.main.ask("add_partitions_to_txn", 3, added(name, producer, 0))
    _written(stage, name, producer, b"slow")
    stage.advance(TIMEOUT_MS - CHECK_MS)
    stage.main.ask("describe_transactions", 0, {"transactional_ids": [name]}, "still open")
    stage.advance(2 * CHECK_MS + 1)
    finished(stage, name, "CompleteAbort")
    stage.main.ask("describe_transactions", 0, {"transactional_ids": [name]})
    stage.main.ask("end_txn", 3, ended(name, producer, committed=True), "too late")
    _written(stage, name, producer, b"too late", sequence=1)
    _begun(stage, name)
    _seen(stage, 14)


def _second_version(stage: Stage) -> None:
    """Transactions of version 2 (KIP-890): each end raises the epoch; Produce adds partitions."""
    stage.chapter("second-version")
    name = "second"
    given = stage.main.ask("init_producer_id", 5, beginning(name, TIMEOUT_MS))
    producer = number(given, "producer_id"), number(given, "producer_epoch")
    _written(stage, name, producer, b"implied", version=12)
    end = stage.main.ask("end_txn", 5, ended(name, producer, committed=True))
    finished(stage, name, "CompleteCommit")
    raised = number(end, "producer_id"), number(end, "producer_epoch")
    stage.main.ask("end_txn", 5, ended(name, producer, committed=True), "once more")
    _written(stage, name, raised, b"next", version=12)
    _written(stage, name, producer, b"by the old epoch", sequence=1, version=12)
    stage.main.ask("end_txn", 5, ended(name, raised, committed=False))
    finished(stage, name, "CompleteAbort")
    _seen(stage, 16)


def _restarted(stage: Stage) -> None:
    """An open transaction and committed records are still in the log after a restart."""
    stage.chapter("restarted")
    name = "lasting"
    producer = _begun(stage, name)
    stage.main.ask("add_partitions_to_txn", 3, added(name, producer, 1))
    made = batch(NOW_MS, [b"before"], producer=(*producer, 0), attributes=TRANSACTIONAL)
    tree: Tree = {**produced(stage, made, partition=1), "transactional_id": name}
    stage.main.ask("produce", 9, tree)
    stage.restart()
    finished(stage, name, "Ongoing")
    stage.main.ask("describe_transactions", 0, {"transactional_ids": [name]})
    stage.main.ask("fetch", 12, fetched(stage, 0, partition=1, isolation_level=1))
    stage.main.ask("end_txn", 3, ended(name, producer, committed=True))
    finished(stage, name, "CompleteCommit")
    stage.main.ask("fetch", 12, fetched(stage, 0, partition=1, isolation_level=1))
    _kept_offsets(stage, "g")
