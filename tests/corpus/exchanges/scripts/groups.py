"""Scripts of classic groups, and of groups with server-side assignment (KIP-848)."""

import struct

from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.registry import FLIGHTS, flights, script
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value, number, text

MEMBER_ID_REQUIRED = 79
DESCRIBE = "consumer_group_describe"
EPOCH = ("groups", 0, "group_epoch")


def subscription(*topics: str) -> bytes:
    """Return the subscription to topics in version 0 of the consumer protocol."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def joining(group: str, member: str = "", **more: Value) -> Tree:
    """Return a JoinGroup request."""
    protocols: list[Value] = [{"name": "range", "metadata": subscription(FLIGHTS)}]
    times: Tree = {"session_timeout": 10_000, "rebalance_timeout": 20_000}
    rest: Tree = {"protocol_type": "consumer", "protocols": protocols}
    return {"group_id": group, "member_id": member, **times, **rest, **more}


def synced(group: str, generation: int, member: str, **more: Value) -> Tree:
    """Return a SyncGroup request of the only member."""
    assignments: list[Value] = [{"member_id": member, "assignment": b"mine"}]
    names: Tree = {"protocol_type": "consumer", "protocol_name": "range"}
    own: Tree = {"group_id": group, "generation_id": generation, "member_id": member}
    return {**own, **names, "assignments": assignments, **more}


def ready(stage: Stage) -> None:
    """Create records; wait until the group coordinator is available."""
    flights(stage)
    asked: Tree = {"key": "g", "key_type": 0}
    stage.main.until("find_coordinator", 1, asked, "error_code", to=0)


def member_of(line: Line, group: str, *, instance: str | None = None) -> str:
    """Join a group as its only member; return the member's id. The requests are not recorded."""
    tree = joining(group, group_instance_id=instance)
    answer = line.quiet("join_group", 7, tree)
    if number(answer, "error_code") == MEMBER_ID_REQUIRED:
        answer = line.quiet("join_group", 7, {**tree, "member_id": text(answer, "member_id")})
    assert number(answer, "error_code") == 0, answer
    member = text(answer, "member_id")
    asked = synced(group, number(answer, "generation_id"), member, group_instance_id=instance)
    assert number(line.quiet("sync_group", 4, asked), "error_code") == 0
    return member


@script("join_group", ready)
def join_group(stage: Stage, version: int) -> None:
    main, group = stage.main, f"g{version}"
    answer = main.ask("join_group", version, joining(group), "a first time")
    member = text(answer, "member_id")
    if number(answer, "error_code") == MEMBER_ID_REQUIRED:
        main.normal("join_group", version, joining(group, member))
    else:
        main.normal("join_group", version, joining(group, member, session_timeout=11_000))
    main.refused("join_group", version, joining(""))
    main.refused("join_group", version, joining(group, "nobody"))
    main.refused("join_group", version, joining(group, session_timeout=1))
    main.refused("join_group", version, joining(f"o{version}", session_timeout=2**31 - 1))
    other: list[Value] = [{"name": "other", "metadata": b""}]
    main.refused("join_group", version, joining(group, protocols=other))
    main.refused("join_group", version, joining(group, protocol_type="connect"))
    main.refused("join_group", version, joining(f"p{version}", protocols=[]))
    main.edge("join_group", version, joining(group, member, reason="again"))
    if version >= 5:
        static = joining(f"s{version}", group_instance_id="i1")
        main.edge("join_group", version, static)
        main.edge("join_group", version, static)
        main.edge("join_group", version, joining(f"s{version}", "x", group_instance_id="i1"))
    main.ask("describe_groups", 5, {"groups": [group, f"s{version}"]})


@script("sync_group", ready)
def sync_group(stage: Stage, version: int) -> None:
    main, group = stage.main, f"g{version}"
    member = member_of(main, group)
    main.normal("sync_group", version, synced(group, 1, member))
    main.refused("sync_group", version, synced(group, 7, member))
    main.refused("sync_group", version, synced(group, 1, "nobody"))
    main.refused("sync_group", version, synced("", 1, member))
    main.refused("sync_group", version, synced("none", 1, member))
    if version >= 5:
        main.refused("sync_group", version, synced(group, 1, member, protocol_name="other"))
        main.refused("sync_group", version, synced(group, 1, member, protocol_type="connect"))
        main.edge("sync_group", version, synced(group, 1, member, protocol_name=None))
    main.edge("sync_group", version, synced(group, 1, member, assignments=[]))


@script("heartbeat", ready)
def heartbeat(stage: Stage, version: int) -> None:
    main, group = stage.main, f"g{version}"
    member = member_of(main, group)

    def tree(name: str, generation: int, who: str, instance: str | None = None) -> Tree:
        own: Tree = {"group_id": name, "generation_id": generation, "member_id": who}
        return {**own, "group_instance_id": instance}

    main.normal("heartbeat", version, tree(group, 1, member))
    main.refused("heartbeat", version, tree(group, 2, member))
    main.refused("heartbeat", version, tree(group, 1, "nobody"))
    main.refused("heartbeat", version, tree("none", 1, member))
    main.refused("heartbeat", version, tree("", 1, member))
    main.edge("heartbeat", version, tree(group, -1, member))
    main.edge("heartbeat", version, tree(group, 1, member, "i9"))
    stage.advance(10_001)
    main.ask("heartbeat", version, tree(group, 1, member), "after the session's timeout")


@script("leave_group", ready)
def leave_group(stage: Stage, version: int) -> None:
    main, group = stage.main, f"g{version}"
    member = member_of(main, group)
    static = member_of(main, f"s{version}", instance="i1")

    def tree(name: str, who: str, instance: str | None = None) -> Tree:
        one: Tree = {"member_id": who, "group_instance_id": instance, "reason": "done"}
        return {"group_id": name, "member_id": who, "members": [one]}

    main.refused("leave_group", version, tree(group, "nobody"))
    main.refused("leave_group", version, tree("none", member))
    main.refused("leave_group", version, tree("", member))
    main.normal("leave_group", version, tree(group, member))
    main.edge("leave_group", version, tree(group, member))
    if version >= 3:
        main.edge("leave_group", version, tree(f"s{version}", "", "i1"))
        main.edge("leave_group", version, {"group_id": group, "members": []})
    else:
        main.edge("leave_group", version, tree(f"s{version}", static))


def _several(stage: Stage) -> None:
    ready(stage)
    for name in ("one", "two"):
        member_of(stage.main, name)
    member = member_of(stage.main, "left")
    one: Tree = {"member_id": member, "group_instance_id": None}
    part: Tree = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}
    stage.main.quiet(
        "offset_commit",
        7,
        {
            "group_id": "left",
            "generation_id_or_member_epoch": 1,
            "member_id": member,
            "topics": [{"name": FLIGHTS, "partitions": [part]}],
        },
    )
    stage.main.quiet("leave_group", 3, {"group_id": "left", "members": [one]})


@script("describe_groups", _several)
def describe_groups(stage: Stage, version: int) -> None:
    main, api = stage.main, "describe_groups"
    main.normal(api, version, {"groups": ["one", "left"]})
    main.refused(api, version, {"groups": ["none", ""]})
    main.edge(api, version, {"groups": []})
    main.edge(api, version, {"groups": ["two", "two"], "include_authorized_operations": True})


@script("list_groups", _several)
def list_groups(stage: Stage, version: int) -> None:
    main = stage.main
    main.normal("list_groups", version, {})
    main.edge("list_groups", version, {"states_filter": ["Stable"], "types_filter": ["classic"]})
    main.edge("list_groups", version, {"states_filter": ["empty", "Dead"]})
    refused: Tree = {"states_filter": ["NoSuchState"], "types_filter": ["nothing"]}
    main.refused("list_groups", version, refused)


def _to_delete(stage: Stage) -> None:
    _several(stage)
    for number_ in range(3):
        part: Tree = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        tree: Tree = {
            "group_id": f"d{number_}",
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": FLIGHTS, "partitions": [part]}],
        }
        stage.main.quiet("offset_commit", 7, tree)


@script("delete_groups", _to_delete)
def delete_groups(stage: Stage, version: int) -> None:
    main, api = stage.main, "delete_groups"
    main.normal(api, version, {"groups_names": [f"d{version}"]})
    main.refused(api, version, {"groups_names": ["one", "none", ""]})
    main.edge(api, version, {"groups_names": []})
    main.edge(api, version, {"groups_names": [f"d{version}", f"d{version}"]})


def beating(group: str, member: str, epoch: int, **more: Value) -> Tree:
    """Return a ConsumerGroupHeartbeat request."""
    own: Tree = {"group_id": group, "member_id": member, "member_epoch": epoch}
    return {**own, "rebalance_timeout": -1, **more}


def begun(group: str, member: str, **more: Value) -> Tree:
    """Return the first heartbeat of a member."""
    first: Tree = {
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": [FLIGHTS],
        "topic_partitions": [],
    }
    return {**beating(group, member, 0), **first, **more}


def _epoch_of(stage: Stage, group: str) -> int:
    return number(stage.main.quiet(DESCRIBE, 1, {"group_ids": [group]}), *EPOCH)


@script("consumer_group_heartbeat", ready)
def consumer_group_heartbeat(stage: Stage, version: int) -> None:
    main, api, group = stage.main, "consumer_group_heartbeat", f"c{version}"
    given = "" if version == 0 else f"member-{version}"
    answer = main.normal(api, version, begun(group, given))
    member = text(answer, "member_id")
    epoch = number(answer, "member_epoch")
    main.normal(api, version, beating(group, member, epoch))
    main.refused(api, version, begun("", given))
    main.refused(api, version, beating(group, "nobody", 1))
    main.refused(api, version, beating(group, member, epoch + 5))
    main.refused(api, version, beating(group, member, -7))
    main.refused(api, version, begun(f"x{version}", "m", server_assignor="none"))
    main.refused(api, version, begun(f"x{version}", "m", subscribed_topic_names=None))
    main.refused(api, version, begun(f"x{version}", "m", rebalance_timeout=-1))
    held: list[Value] = [{"topic_id": stage.topics[FLIGHTS], "partitions": [0, 1]}]
    main.edge(api, version, beating(group, member, epoch, topic_partitions=held))
    main.edge(api, version, begun(group, "second", rack_id="r1", server_assignor="range"))
    main.edge(api, version, begun(group, "static", instance_id="i1"))
    epoch = _epoch_of(stage, group)
    main.edge(api, version, begun(group, "regex", subscribed_topic_regex="fl.*"))
    if version >= 1:
        # The group's epoch increases when the member joins, and again when a thread has evaluated
        # the member's regular expression.
        stage.main.until(DESCRIBE, 1, {"group_ids": [group]}, *EPOCH, to=epoch + 2)
    main.refused(api, version, begun(group, "broken", subscribed_topic_regex="fl(*"))
    main.edge(api, version, beating(group, "static", -2, instance_id="i1"))
    main.edge(api, version, beating(group, member, -1))
    main.ask("consumer_group_describe", 1, {"group_ids": [group]})


def _consumers(stage: Stage) -> None:
    ready(stage)
    stage.main.quiet("consumer_group_heartbeat", 1, begun("new", "m1"))
    stage.main.quiet("consumer_group_heartbeat", 1, begun("new", "m2", instance_id="i2"))
    member_of(stage.main, "classic")


@script("consumer_group_describe", _consumers)
def consumer_group_describe(stage: Stage, version: int) -> None:
    main, api = stage.main, "consumer_group_describe"
    main.normal(api, version, {"group_ids": ["new"]})
    main.refused(api, version, {"group_ids": ["none", "classic", ""]})
    main.edge(api, version, {"group_ids": []})
    main.edge(api, version, {"group_ids": ["new", "new"], "include_authorized_operations": True})
