"""Scripts of producer ids and transactions."""

from tests.corpus.exchanges.batches import TRANSACTIONAL, batch
from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.registry import FLIGHTS, script
from tests.corpus.exchanges.scripts.groups import ready
from tests.corpus.exchanges.scripts.records import NOWHERE, produced
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.exchanges.values import Tree, Value, number

TIMEOUT_MS = 60_000


def prepared(stage: Stage) -> None:
    """Create records; wait until the coordinators of groups and transactions are available."""
    ready(stage)
    asked: Tree = {"key": "t", "key_type": 1}
    stage.main.until("find_coordinator", 1, asked, "error_code", to=0)


def beginning(name: str | None, timeout_ms: int = TIMEOUT_MS, **more: Value) -> Tree:
    """Return an InitProducerId request."""
    own: Tree = {"transactional_id": name, "transaction_timeout": timeout_ms}
    return {**own, "producer_id": -1, "producer_epoch": -1, **more}


def producer_of(line: Line, name: str) -> tuple[int, int]:
    """Return a transactional producer's id and epoch; the request is not recorded."""
    line.until("init_producer_id", 4, beginning(name), "error_code", to=0)
    given = line.quiet("init_producer_id", 4, beginning(name))
    assert number(given, "error_code") == 0, given
    return number(given, "producer_id"), number(given, "producer_epoch")


def owner(name: str, producer: tuple[int, int]) -> Tree:
    """Return the fields that identify a transaction's producer."""
    producer_id, epoch = producer
    return {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}


def added(
    name: str, producer: tuple[int, int], *partitions: int, topic: str = FLIGHTS, **more: Value
) -> Tree:
    """Return an AddPartitionsToTxn request of a client (versions 0 to 3) or a broker (4 and 5)."""
    topics: list[Value] = [{"name": topic, "partitions": list(partitions)}]
    one: Tree = {**owner(name, producer), "topics": topics, "verify_only": False, **more}
    return {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": topics,
        "transactions": [one],
    }


def written(
    stage: Stage, name: str, producer: tuple[int, int], *, sequence: int = 0, version: int = 9
) -> Tree:
    """Return a Produce request within a transaction."""
    made = batch(NOW_MS, producer=(*producer, sequence), attributes=TRANSACTIONAL)
    return {**produced(stage, made), "transactional_id": name}


def ended(name: str, producer: tuple[int, int], *, committed: bool) -> Tree:
    """Return an EndTxn request."""
    return {**owner(name, producer), "committed": committed}


def started(stage: Stage, name: str) -> tuple[int, int]:
    """Start a transaction with a batch in it; the requests are not recorded."""
    producer = producer_of(stage.main, name)
    stage.main.quiet("add_partitions_to_txn", 3, added(name, producer, 0))
    produced_ = stage.main.quiet("produce", 9, written(stage, name, producer))
    assert number(produced_, "responses", 0, "partition_responses", 0, "error_code") == 0
    return producer


def finished(stage: Stage, name: str, state: str) -> None:
    """Wait until a transaction is in the given state."""
    tree: Tree = {"transactional_ids": [name]}
    path = ("transaction_states", 0, "transaction_state")
    stage.main.until("describe_transactions", 0, tree, *path, to=state)


@script("init_producer_id", prepared)
def init_producer_id(stage: Stage, version: int) -> None:
    main, api, name = stage.main, "init_producer_id", f"t{version}"
    main.normal(api, version, beginning(None))
    given = main.normal(api, version, beginning(name))
    main.normal(api, version, beginning(name))
    main.refused(api, version, beginning(name, 2**31 - 1))
    main.refused(api, version, beginning(name, 0))
    main.refused(api, version, beginning(""))
    own: Tree = {
        "producer_id": number(given, "producer_id"),
        "producer_epoch": number(given, "producer_epoch"),
    }
    main.edge(api, version, {**beginning(name), **own, "producer_epoch": 1})
    main.refused(api, version, {**beginning(name), **own, "producer_epoch": 9})
    main.edge(api, version, beginning(name, producer_id=77, producer_epoch=0))
    main.edge(api, version, beginning(name, producer_id=-1, producer_epoch=3))


@script("add_partitions_to_txn", prepared)
def add_partitions_to_txn(stage: Stage, version: int) -> None:
    main, api, name = stage.main, "add_partitions_to_txn", f"t{version}"
    producer = producer_of(main, name)
    main.normal(api, version, added(name, producer, 0, 1))
    main.refused(api, version, added("none", producer, 0))
    main.refused(api, version, added(name, (producer[0], 9), 0))
    main.refused(api, version, added(name, (producer[0] + 500, 0), 0))
    main.refused(api, version, added(name, producer, 0, topic=NOWHERE))
    main.refused(api, version, added(name, producer, 0, 8))
    main.edge(api, version, added(name, producer, 0))
    main.edge(api, version, added(name, producer))
    if version >= 4:
        main.edge(api, version, added(name, producer, 0, verify_only=True))
        main.edge(api, version, added(name, producer, 1, topic="__consumer_offsets"))
        main.edge(api, version, {"transactions": []})
    main.quiet("end_txn", 3, ended(name, producer, committed=False))
    finished(stage, name, "CompleteAbort")


@script("add_offsets_to_txn", prepared)
def add_offsets_to_txn(stage: Stage, version: int) -> None:
    main, api, name = stage.main, "add_offsets_to_txn", f"t{version}"
    producer = producer_of(main, name)
    main.normal(api, version, {**owner(name, producer), "group_id": "g"})
    main.refused(api, version, {**owner("none", producer), "group_id": "g"})
    main.refused(api, version, {**owner(name, (producer[0], 5)), "group_id": "g"})
    main.refused(api, version, {**owner("", producer), "group_id": "g"})
    main.edge(api, version, {**owner(name, producer), "group_id": ""})
    main.edge(api, version, {**owner(name, producer), "group_id": "g"})


@script("txn_offset_commit", prepared)
def txn_offset_commit(stage: Stage, version: int) -> None:
    def tree(who: tuple[int, int], offset: int, topic: str = FLIGHTS, **more: Value) -> Tree:
        part: Tree = {
            "partition_index": more.pop("partition", 0),
            "committed_offset": offset,
            "committed_metadata": more.pop("metadata", "m"),
        }
        topics: list[Value] = [{"name": topic, "partitions": [part]}]
        nobody: Tree = {"generation_id": -1, "member_id": ""}
        return {**owner(name, who), "group_id": group, "topics": topics, **nobody, **more}

    main, api, name, group = stage.main, "txn_offset_commit", f"t{version}", f"g{version}"
    producer = producer_of(main, name)
    main.ask(api, version, tree(producer, 1), "outside a transaction")
    main.quiet("add_offsets_to_txn", 3, {**owner(name, producer), "group_id": group})
    main.normal(api, version, tree(producer, 2))
    main.refused(api, version, tree((producer[0], 8), 2))
    main.refused(api, version, tree(producer, 2, NOWHERE))
    main.refused(api, version, tree(producer, 2, partition=6))
    main.refused(api, version, tree(producer, 2, metadata="m" * 5000))
    main.refused(api, version, tree(producer, 2, generation_id=3, member_id="nobody"))
    main.edge(api, version, tree(producer, 3, metadata=None))
    main.edge(api, version, {**tree(producer, 3), "topics": []})
    main.edge(api, version, {**tree(producer, 3), "group_id": ""})
    main.quiet("end_txn", 3, ended(name, producer, committed=True))
    finished(stage, name, "CompleteCommit")
    asked: Tree = {"group_id": group, "topics": None, "require_stable": True}
    main.ask("offset_fetch", 7, asked, "what was committed")


@script("end_txn", prepared)
def end_txn(stage: Stage, version: int) -> None:
    main, api, name = stage.main, "end_txn", f"t{version}"
    producer = started(stage, name)
    main.refused(api, version, ended(name, (producer[0], 7), committed=True))
    main.refused(api, version, ended("none", producer, committed=True))
    main.refused(api, version, ended(name, (producer[0] + 300, 0), committed=False))
    answer = main.normal(api, version, ended(name, producer, committed=True))
    finished(stage, name, "CompleteCommit")
    main.edge(api, version, ended(name, producer, committed=True))
    bumped = answer.get("producer_epoch")
    if version >= 5 and isinstance(bumped, int):
        producer = (number(answer, "producer_id"), bumped)
    main.edge(api, version, ended(name, producer, committed=False))
    finished(stage, name, "CompleteAbort" if version >= 5 else "CompleteCommit")
    empty = f"e{version}"
    main.edge(api, version, ended(empty, producer_of(main, empty), committed=True))


@script("write_txn_markers", prepared)
def write_txn_markers(stage: Stage, version: int) -> None:
    def tree(who: tuple[int, int], *partitions: int, topic: str = FLIGHTS) -> Tree:
        topics: list[Value] = [{"name": topic, "partition_indexes": list(partitions)}]
        own: Tree = {"producer_id": who[0], "producer_epoch": who[1]}
        end: Tree = {"transaction_result": False, "coordinator_epoch": 0}
        return {"markers": [{**own, **end, "topics": topics, "transaction_version": 1}]}

    main, api, name = stage.main, "write_txn_markers", f"t{version}"
    producer = started(stage, name)
    main.refused(api, version, tree(producer, 0, topic=NOWHERE))
    main.refused(api, version, tree(producer, 9))
    main.normal(api, version, tree(producer, 0))
    main.edge(api, version, tree(producer, 0))
    main.edge(api, version, tree((producer[0], -1), 0))
    main.edge(api, version, tree(producer))
    main.edge(api, version, {"markers": []})


@script("describe_producers", prepared)
def describe_producers(stage: Stage, version: int) -> None:
    def tree(*partitions: int, topic: str = FLIGHTS) -> Tree:
        return {"topics": [{"name": topic, "partition_indexes": list(partitions)}]}

    main, api = stage.main, "describe_producers"
    started(stage, "open")
    main.normal(api, version, tree(0))
    main.refused(api, version, tree(0, topic=NOWHERE))
    main.refused(api, version, tree(9))
    main.edge(api, version, tree(1))
    main.edge(api, version, {"topics": []})


def _states(stage: Stage) -> None:
    prepared(stage)
    started(stage, "open")
    for name, committed, state in (
        ("kept", True, "CompleteCommit"),
        ("dropped", False, "CompleteAbort"),
    ):
        producer = started(stage, name)
        stage.main.quiet("end_txn", 3, ended(name, producer, committed=committed))
        finished(stage, name, state)
    producer_of(stage.main, "empty")


@script("describe_transactions", _states)
def describe_transactions(stage: Stage, version: int) -> None:
    main, api = stage.main, "describe_transactions"
    names: list[Value] = ["open", "kept", "dropped", "empty"]
    main.normal(api, version, {"transactional_ids": names})
    main.refused(api, version, {"transactional_ids": ["none", ""]})
    main.edge(api, version, {"transactional_ids": []})
    main.edge(api, version, {"transactional_ids": ["open", "open"]})


@script("list_transactions", _states)
def list_transactions(stage: Stage, version: int) -> None:
    def tree(states: list[Value], **more: Value) -> Tree:
        rest: Tree = {"producer_id_filters": [], "duration_filter": -1}
        return {"state_filters": states, **rest, "transactional_id_pattern": None, **more}

    main, api = stage.main, "list_transactions"
    main.normal(api, version, tree([]))
    main.refused(api, version, tree(["NoSuchState"]))
    main.refused(api, version, tree([], transactional_id_pattern="a(*"))
    main.edge(api, version, tree(["Ongoing", "Empty"]))
    main.edge(api, version, tree([], producer_id_filters=[1, 99]))
    main.edge(api, version, tree([], duration_filter=1000))
    main.edge(api, version, tree([], transactional_id_pattern="[ko].*"))
