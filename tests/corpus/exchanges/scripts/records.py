"""Scripts of Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch."""

from uuid import UUID

from tests.corpus.exchanges.batches import batch, old_set
from tests.corpus.exchanges.codec import TAGS
from tests.corpus.exchanges.registry import FLIGHTS, append, flights, script
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.exchanges.values import Tree, Value, number

NOWHERE = "nowhere"
# Our tagged field that requests append times.
WITH_TIMES: Value = {"10000": b"\1"}


def topic_of(stage: Stage, name: str = FLIGHTS, key: str = "name") -> Tree:
    """Return a topic with name and id; a version of a request encodes only one of the two."""
    return {key: name, "topic_id": stage.topics.get(name, UUID(int=77))}


def produced(
    stage: Stage, records: bytes | None, topic: str = FLIGHTS, *, partition: int = 0, acks: int = -1
) -> Tree:
    """Return a Produce request for one partition."""
    part: Tree = {"index": partition, "records": records}
    whole: Value = [{**topic_of(stage, topic), "partition_data": [part]}]
    return {"acks": acks, "timeout": 1000, "topic_data": whole}


@script("produce")
def produce(stage: Stage, version: int) -> None:
    main = stage.main
    made = batch(NOW_MS) if version >= 3 else old_set(min(version, 1), [(b"k", b"v")], NOW_MS)
    main.normal("produce", version, produced(stage, made))
    main.refused("produce", version, produced(stage, made, NOWHERE))
    main.refused("produce", version, produced(stage, made[:-1] + b"!"))
    main.refused("produce", version, produced(stage, made, partition=9))
    main.refused("produce", version, produced(stage, made, acks=7))
    zipped = batch(NOW_MS - 5, [None, b"", b"x" * 40], keys=[None] * 3, attributes=1)
    main.edge("produce", version, produced(stage, zipped, partition=1))
    main.edge("produce", version, produced(stage, None))
    main.edge("produce", version, produced(stage, b""))
    main.edge("produce", version, {"acks": 1, "timeout": 0, "topic_data": []})
    parts: list[Value] = [
        {"index": 0, "records": batch(NOW_MS, [b"a"])},
        {"index": 1, "records": batch(NOW_MS, [b"b"])},
        {"index": 2, "records": batch(NOW_MS, [b"c"])},
    ]
    several: list[Value] = [{**topic_of(stage), "partition_data": parts}]
    main.edge("produce", version, {"acks": 1, "timeout": 0, "topic_data": several})
    if version >= 3:
        _numbered(stage, version)
        main.no_answer("produce", version, produced(stage, made, acks=0), "acks=0")
        ends: list[Value] = [{"partition_index": 0, "timestamp": -1}]
        main.ask("list_offsets", 2, {"topics": [{"name": FLIGHTS, "partitions": ends}]})


def _numbered(stage: Stage, version: int) -> None:
    """Send batches with sequence numbers: repeated, after a gap, in a later epoch, of a new id."""
    main = stage.main
    given = main.quiet("init_producer_id", 4, {"transactional_id": None, "producer_id": -1})
    own = number(given, "producer_id")
    for sequence, words in ((0, "first"), (0, "again"), (5, "behind a gap"), (2, "next")):
        made = batch(NOW_MS, producer=(own, 0, sequence))
        main.ask("produce", version, produced(stage, made), f"numbered: {words}")
    made = batch(NOW_MS, producer=(own, 3, 4))
    main.ask("produce", version, produced(stage, made), "numbered: a later epoch, not from 0")
    made = batch(NOW_MS, producer=(own + 1000, 0, 0))
    main.ask("produce", version, produced(stage, made), "numbered: an id that nobody got")


def fetched(
    stage: Stage,
    offset: int,
    topic: str = FLIGHTS,
    *,
    partition: int = 0,
    largest: int = 1 << 20,
    **more: Value,
) -> Tree:
    """Return a Fetch request for one partition; the broker must respond at once."""
    part: Tree = {
        "partition": partition,
        "current_leader_epoch": more.pop("leader_epoch", -1),
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": largest,
    }
    session: Tree = {"session_id": 0, "session_epoch": -1}
    whole: Value = [{**topic_of(stage, topic, "topic"), "partitions": [part]}]
    rest: Tree = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": whole}
    return {**rest, **session, **more}


@script("fetch")
def fetch(stage: Stage, version: int) -> None:
    main = stage.main
    main.normal("fetch", version, fetched(stage, 0))
    main.normal("fetch", version, fetched(stage, 3))
    main.refused("fetch", version, fetched(stage, 99))
    main.refused("fetch", version, fetched(stage, -1))
    main.refused("fetch", version, fetched(stage, 0, NOWHERE))
    main.refused("fetch", version, fetched(stage, 0, partition=2))
    main.refused("fetch", version, fetched(stage, 0, leader_epoch=5))
    main.edge("fetch", version, fetched(stage, 5))
    main.edge("fetch", version, fetched(stage, 0, partition=1))
    main.edge("fetch", version, fetched(stage, 0, largest=1))
    main.edge("fetch", version, fetched(stage, 0, max_bytes=1))
    main.edge("fetch", version, fetched(stage, 0, isolation_level=1))
    main.edge("fetch", version, fetched(stage, 0, leader_epoch=0, rack_id="r1"))
    main.edge("fetch", version, {**fetched(stage, 0), "topics": []})
    if version >= 7:
        _session(stage, version)
    if version >= 12:
        main.edge("fetch", version, {**fetched(stage, 0), TAGS: WITH_TIMES})
        main.edge("fetch", version, fetched(stage, 0, cluster_id="another"))


def _session(stage: Stage, version: int) -> None:
    """Open a fetch session, fetch new records, send a wrong epoch, remove a partition, close it."""
    main = stage.main
    first = main.ask("fetch", version, fetched(stage, 0, session_epoch=0), "session: open")
    own: Tree = {"session_id": number(first, "session_id")}
    nothing: Tree = {**fetched(stage, 0), **own, "topics": []}
    main.ask("fetch", version, {**nothing, "session_epoch": 1}, "session: nothing new")
    append(stage, FLIGHTS, batch(NOW_MS, [b"late"]))
    seen: Tree = {**fetched(stage, 5), **own, "session_epoch": 2}
    main.ask("fetch", version, seen, "session: from another offset")
    main.ask("fetch", version, {**nothing, "session_epoch": 9}, "session: a wrong epoch")
    dropped: Value = [{**topic_of(stage, key="topic"), "partitions": [0]}]
    tree: Tree = {**nothing, "session_epoch": 3, "forgotten_topics_data": dropped}
    main.ask("fetch", version, tree, "session: forget")
    main.ask("fetch", version, {**nothing, "session_epoch": -1}, "session: close")
    main.ask("fetch", version, {**nothing, "session_epoch": 4}, "session: closed before")


def searched(timestamp: int, *, topic: str = FLIGHTS, partition: int = 0, epoch: int = -1) -> Tree:
    """Return a ListOffsets request for one partition."""
    part: Tree = {
        "partition_index": partition,
        "current_leader_epoch": epoch,
        "timestamp": timestamp,
        "max_num_offsets": 2,
    }
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}], "timeout": 1000}


@script("list_offsets")
def list_offsets(stage: Stage, version: int) -> None:
    main = stage.main
    for time in (-1, -2, NOW_MS - 2000, NOW_MS - 1500, NOW_MS - 999):
        main.normal("list_offsets", version, searched(time))
    main.refused("list_offsets", version, searched(-1, topic=NOWHERE))
    main.refused("list_offsets", version, searched(-1, partition=7))
    main.refused("list_offsets", version, searched(-1, epoch=3))
    main.refused("list_offsets", version, searched(-99))
    for special in (-3, -4, -5, -6, -7, 0, NOW_MS, 2**63 - 1):
        main.edge("list_offsets", version, searched(special))
    main.edge("list_offsets", version, searched(NOW_MS - 2000, partition=1))
    main.edge("list_offsets", version, searched(-3, partition=1))
    main.edge("list_offsets", version, {**searched(-1), "isolation_level": 1})
    main.edge("list_offsets", version, {"topics": []})
    twice: list[Value] = [{"partition_index": 0, "timestamp": -1}] * 2
    main.edge("list_offsets", version, {"topics": [{"name": FLIGHTS, "partitions": twice}]})


def _long(stage: Stage) -> None:
    flights(stage)
    for version in range(3):
        name = f"t{version}"
        stage.create_topic(name)
        for round_ in range(3):
            append(stage, name, batch(NOW_MS + round_))


@script("delete_records", _long)
def delete_records(stage: Stage, version: int) -> None:
    def tree(topic: str, partition: int, offset: int) -> Tree:
        part: Tree = {"partition_index": partition, "offset": offset}
        return {"topics": [{"name": topic, "partitions": [part]}], "timeout": 1000}

    main, own = stage.main, f"t{version}"
    main.normal("delete_records", version, tree(own, 0, 3))
    main.refused("delete_records", version, tree(own, 0, 99))
    main.refused("delete_records", version, tree(own, 0, -2))
    main.refused("delete_records", version, tree(NOWHERE, 0, 1))
    main.refused("delete_records", version, tree(own, 5, 1))
    main.edge("delete_records", version, tree(own, 0, 1))
    main.edge("delete_records", version, tree(own, 0, -1))
    main.edge("delete_records", version, tree(own, 1, 0))
    main.ask("fetch", 12, fetched(stage, 0, own), "below the new start")
    main.ask("list_offsets", 2, searched(-2, topic=own))


@script("offset_for_leader_epoch")
def offset_for_leader_epoch(stage: Stage, version: int) -> None:
    def tree(epoch: int, topic: str = FLIGHTS, partition: int = 0, current: int = -1) -> Tree:
        part: Tree = {
            "partition": partition,
            "current_leader_epoch": current,
            "leader_epoch": epoch,
        }
        return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}

    main, api = stage.main, "offset_for_leader_epoch"
    main.normal(api, version, tree(0))
    main.refused(api, version, tree(0, NOWHERE))
    main.refused(api, version, tree(0, partition=4))
    main.refused(api, version, tree(0, current=2))
    main.edge(api, version, tree(5))
    main.edge(api, version, tree(-1))
    main.edge(api, version, tree(0, partition=1, current=0))
    main.edge(api, version, {"replica_id": -1, "topics": []})
