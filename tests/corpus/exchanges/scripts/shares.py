"""Scripts of share groups (KIP-932)."""

from uuid import UUID

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.registry import FLIGHTS, append, script
from tests.corpus.exchanges.scripts.groups import member_of, ready
from tests.corpus.exchanges.scripts.records import NOWHERE
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.exchanges.values import Tree, Value, number

MEMBER = "0123456789abcdefghijkl"
OTHER = "zyxwvutsrqponmlkjihgfe"


def sharing(group: str, member: str, epoch: int, **more: Value) -> Tree:
    """Return a ShareGroupHeartbeat request; the first one names the topics."""
    names: Value = [FLIGHTS] if epoch == 0 else None
    own: Tree = {"group_id": group, "member_id": member, "member_epoch": epoch}
    return {**own, "subscribed_topic_names": names, **more}


def parts_of(stage: Stage, *batches: tuple[int, int, int], partition: int = 0) -> Value:
    """Return the topic with acknowledged `batches`: first offset, last offset and type of each."""
    acknowledged: list[Value] = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in batches
    ]
    part: Tree = {"partition_index": partition, "acknowledgement_batches": acknowledged}
    return [{"topic_id": stage.topics[FLIGHTS], "partitions": [part]}]


def lent(stage: Stage, group: str, member: str, epoch: int, **more: Value) -> Tree:
    """Return a ShareFetch request; the broker must respond at once."""
    own: Tree = {"group_id": group, "member_id": member, "share_session_epoch": epoch}
    limits: Tree = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    counts: Tree = {"max_records": 100, "batch_size": 100}
    return {**own, **limits, **counts, "topics": parts_of(stage), **more}


def acknowledged(stage: Stage, group: str, member: str, epoch: int, topics: Value) -> Tree:
    """Return a ShareAcknowledge request."""
    own: Tree = {"group_id": group, "member_id": member, "share_session_epoch": epoch}
    return {**own, "topics": topics}


def earliest(stage: Stage, group: str) -> None:
    """Set a share group's start to the first record; the request is not recorded."""
    config: Tree = {
        "name": "share.auto.offset.reset",
        "config_operation": 0,
        "value": "earliest",
    }
    resource: Tree = {"resource_type": 32, "resource_name": group, "configs": [config]}
    stage.main.quiet("incremental_alter_configs", 1, {"resources": [resource]})


def opened(stage: Stage, group: str, member: str = MEMBER) -> None:
    """Add a member to a share group, and start the group's partitions; records no request."""
    earliest(stage, group)
    answer = stage.main.quiet("share_group_heartbeat", 1, sharing(group, member, 0))
    asked: Tree = sharing(group, member, number(answer, "member_epoch"))
    stage.main.until("share_group_heartbeat", 1, asked, "error_code", to=0)
    states: Tree = {
        "groups": [{"group_id": group, "topics": [{"topic_name": FLIGHTS, "partitions": [0, 1]}]}]
    }
    path = ("groups", 0, "topics", 0, "partitions", 1, "error_code")
    stage.main.until("describe_share_group_offsets", 0, states, *path, to=0)


@script("share_group_heartbeat", ready)
def share_group_heartbeat(stage: Stage, version: int) -> None:
    main, api = stage.main, "share_group_heartbeat"
    answer = main.normal(api, version, sharing("s", MEMBER, 0))
    epoch = number(answer, "member_epoch")
    main.normal(api, version, sharing("s", MEMBER, epoch))
    main.refused(api, version, sharing("", MEMBER, 0))
    main.refused(api, version, sharing("s", "", 0))
    main.refused(api, version, sharing("s", OTHER, 4))
    main.refused(api, version, sharing("s", MEMBER, epoch + 9))
    main.refused(api, version, sharing("s", MEMBER, -5))
    main.refused(api, version, sharing("t", OTHER, 0, subscribed_topic_names=None))
    main.edge(api, version, sharing("s", OTHER, 0, rack_id="r1"))
    main.edge(api, version, sharing("s", OTHER, 0, subscribed_topic_names=[NOWHERE]))
    main.edge(api, version, sharing("s", OTHER, -1))
    main.edge(api, version, sharing("s", OTHER, -1))
    member_of(main, "classic")
    main.refused(api, version, sharing("classic", MEMBER, 0))


def _shared(stage: Stage) -> None:
    ready(stage)
    opened(stage, "s")
    member_of(stage.main, "classic")


@script("share_group_describe", _shared)
def share_group_describe(stage: Stage, version: int) -> None:
    main, api = stage.main, "share_group_describe"
    main.normal(api, version, {"group_ids": ["s"]})
    main.refused(api, version, {"group_ids": ["none", "classic", ""]})
    main.edge(api, version, {"group_ids": [], "include_authorized_operations": True})
    main.edge(api, version, {"group_ids": ["s", "s"], "include_authorized_operations": True})


@script("share_fetch", ready)
def share_fetch(stage: Stage, version: int) -> None:
    main, api, group = stage.main, "share_fetch", f"s{version}"
    opened(stage, group)
    line = stage.line(f"fetcher{version}")
    main.refused(api, version, lent(stage, group, MEMBER, 3))
    line.normal(api, version, lent(stage, group, MEMBER, 0))
    line.normal(api, version, lent(stage, group, MEMBER, 1, topics=parts_of(stage, (0, 1, 1))))
    line.refused(api, version, lent(stage, group, MEMBER, 9))
    line.refused(api, version, lent(stage, group, MEMBER, 2, topics=parts_of(stage, (0, 1, 1))))
    line.edge(api, version, lent(stage, group, MEMBER, 3, topics=parts_of(stage, (2, 2, 2))))
    line.edge(api, version, lent(stage, group, MEMBER, 4, topics=parts_of(stage, (2, 4, 3))))
    line.refused(api, version, lent(stage, group, MEMBER, 5, topics=parts_of(stage, (9, 4, 1))))
    unknown: list[Value] = [{"topic_id": UUID(int=5), "partitions": [{"partition_index": 0}]}]
    line.refused(api, version, lent(stage, group, MEMBER, 6, topics=unknown))
    append(stage, FLIGHTS, batch(NOW_MS, [b"new"]))
    line.edge(api, version, lent(stage, group, MEMBER, 7, topics=[]))
    line.edge(api, version, lent(stage, group, MEMBER, 8, max_records=0))
    renewed = lent(stage, group, MEMBER, 9, topics=parts_of(stage, (5, 5, 4)), is_renew_ack=True)
    line.edge(api, version, {**renewed, "min_bytes": 0, "max_bytes": 0, "max_records": 0})
    line.edge(api, version, lent(stage, group, MEMBER, 10, share_acquire_mode=1, max_records=1))
    line.refused(api, version, lent(stage, group, "", 0))
    line.refused(api, version, lent(stage, "", MEMBER, 0))
    line.edge(api, version, lent(stage, group, MEMBER, -1, topics=[]))


@script("share_acknowledge", ready)
def share_acknowledge(stage: Stage, version: int) -> None:
    main, api, group = stage.main, "share_acknowledge", f"s{version}"
    opened(stage, group)
    line = stage.line(f"fetcher{version}")
    main.refused(api, version, acknowledged(stage, group, MEMBER, 1, parts_of(stage, (0, 0, 1))))
    line.ask("share_fetch", 1, lent(stage, group, MEMBER, 0))
    line.normal(api, version, acknowledged(stage, group, MEMBER, 1, parts_of(stage, (0, 1, 1))))
    line.refused(api, version, acknowledged(stage, group, MEMBER, 7, parts_of(stage, (2, 2, 1))))
    line.refused(api, version, acknowledged(stage, group, MEMBER, 2, parts_of(stage, (0, 0, 1))))
    line.refused(api, version, acknowledged(stage, group, MEMBER, 3, parts_of(stage, (2, 2, 9))))
    line.edge(api, version, acknowledged(stage, group, MEMBER, 4, parts_of(stage, (2, 2, 2))))
    line.edge(api, version, acknowledged(stage, group, MEMBER, 5, []))
    renewed = acknowledged(stage, group, MEMBER, 6, parts_of(stage, (3, 3, 4)))
    line.edge(api, version, {**renewed, "is_renew_ack": True})
    line.edge(api, version, acknowledged(stage, group, MEMBER, -1, parts_of(stage, (3, 4, 1))))
    asked: Tree = {"group_id": group, "topics": None}
    main.ask("describe_share_group_offsets", 0, {"groups": [asked]}, "where it stands")


def _offsets(group: str, *partitions: int, topic: str = FLIGHTS) -> Tree:
    topics: list[Value] = [{"topic_name": topic, "partitions": list(partitions)}]
    return {"groups": [{"group_id": group, "topics": topics}]}


@script("describe_share_group_offsets", _shared)
def describe_share_group_offsets(stage: Stage, version: int) -> None:
    main, api = stage.main, "describe_share_group_offsets"
    main.normal(api, version, _offsets("s", 0, 1))
    main.refused(api, version, _offsets("none", 0))
    main.refused(api, version, _offsets("s", 9))
    main.refused(api, version, _offsets("s", 0, topic=NOWHERE))
    main.refused(api, version, _offsets("classic", 0))
    main.edge(api, version, {"groups": [{"group_id": "s", "topics": None}]})
    main.edge(api, version, {"groups": []})


def _left(stage: Stage) -> None:
    """Create a share group with a member, and a share group, `left`, whose only member has left."""
    _shared(stage)
    opened(stage, "left")
    stage.main.quiet("share_group_heartbeat", 1, sharing("left", MEMBER, -1))


@script("alter_share_group_offsets", _left)
def alter_share_group_offsets(stage: Stage, version: int) -> None:
    def tree(group: str, partition: int, offset: int, topic: str = FLIGHTS) -> Tree:
        part: Tree = {"partition_index": partition, "start_offset": offset}
        return {"group_id": group, "topics": [{"topic_name": topic, "partitions": [part]}]}

    main, api = stage.main, "alter_share_group_offsets"
    main.normal(api, version, tree("left", 0, 2))
    main.refused(api, version, tree("s", 0, 2))
    main.refused(api, version, tree("none", 0, 2))
    main.refused(api, version, tree("left", 0, 2, NOWHERE))
    main.refused(api, version, tree("left", 9, 2))
    main.edge(api, version, tree("left", 0, -1))
    main.edge(api, version, {"group_id": "left", "topics": []})
    main.ask("describe_share_group_offsets", 1, _offsets("left", 0, 1), "where it stands")


@script("delete_share_group_offsets", _left)
def delete_share_group_offsets(stage: Stage, version: int) -> None:
    def tree(group: str, topic: str = FLIGHTS) -> Tree:
        return {"group_id": group, "topics": [{"topic_name": topic}]}

    main, api = stage.main, "delete_share_group_offsets"
    main.refused(api, version, tree("s"))
    main.refused(api, version, tree("none"))
    main.refused(api, version, tree("left", NOWHERE))
    main.normal(api, version, tree("left"))
    main.edge(api, version, tree("left"))
    main.edge(api, version, {"group_id": "left", "topics": []})
    main.ask("describe_share_group_offsets", 1, _offsets("left", 0, 1), "where it stands")
