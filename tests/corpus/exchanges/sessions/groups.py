"""Each kind of group with several members: assignments, removed members, stored state."""

from pathlib import Path

from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.registry import FLIGHTS
from tests.corpus.exchanges.scripts.groups import beating, begun, joining, ready, synced
from tests.corpus.exchanges.scripts.offsets import committed
from tests.corpus.exchanges.scripts.shares import (
    MEMBER,
    OTHER,
    acknowledged,
    earliest,
    lent,
    opened,
    parts_of,
    sharing,
)
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value, number, text

SESSION_MS = 10_000
CONSUMER_SESSION_MS = 45_000
# Delay in ms between a group's first change and the new assignment. The new assignment covers all
# changes during the delay.
ASSIGNED_MS = 1000


def play(home: Path) -> Stage:
    """Play the life of each kind of group."""
    with Stage(home, is_measured=True) as stage:
        ready(stage)
        _classic(stage)
        _static(stage)
        _consumer(stage)
        _uneven(stage)
        _upgraded(stage)
        _share(stage)
        _deleted(stage)
        _restarted(stage)
    return stage


def _joined(line: Line, group: str) -> str:
    """Request a member id, and return it; the exchange is recorded."""
    return text(line.ask("join_group", 7, joining(group), "for an id"), "member_id")


def _classic(stage: Stage) -> None:
    stage.chapter("classic")
    one, two, group = stage.line("one"), stage.line("two"), "classic"
    first = _joined(one, group)
    one.ask("join_group", 7, joining(group, first))
    one.ask("sync_group", 5, synced(group, 1, first))
    one.ask("offset_commit", 8, _commit(stage, group, 1, first))
    second = _joined(two, group)
    two.send("join_group", 7, joining(group, second), "waits for the first member")
    _beats_until(one, group, first, 1)
    stage.settle()
    two.note_silence()
    one.ask("join_group", 7, joining(group, first))
    two.receive()
    mine: list[Value] = [
        {"member_id": first, "assignment": b"p0"},
        {"member_id": second, "assignment": b"p1"},
    ]
    two.send("sync_group", 5, synced(group, 2, second, assignments=[]), "waits for the leader")
    stage.settle()
    two.note_silence()
    one.ask("sync_group", 5, synced(group, 2, first, assignments=mine))
    two.receive()
    stage.main.ask("describe_groups", 6, {"groups": [group]})
    one.ask("offset_commit", 8, _commit(stage, group, 1, first), "of an old generation")
    one.ask("offset_commit", 8, _commit(stage, group, 2, first))
    stage.advance(SESSION_MS - 1000)
    one.ask("heartbeat", 4, _beat(group, 2, first), "the second is silent")
    stage.advance(1001)
    stage.main.ask("describe_groups", 6, {"groups": [group]}, "the second has gone")
    one.ask("heartbeat", 4, _beat(group, 2, first))
    one.ask("join_group", 7, joining(group, first))
    two.ask("heartbeat", 4, _beat(group, 2, second))
    leaving: Tree = {"group_id": group, "members": [{"member_id": first}]}
    one.ask("leave_group", 5, leaving)
    stage.main.ask("describe_groups", 6, {"groups": [group]}, "empty")
    _offsets(stage, group)


def _commit(stage: Stage, group: str, generation: int, member: str) -> Tree:
    own: Tree = {"generation_id_or_member_epoch": generation, "member_id": member}
    return {**committed(stage, group, generation), **own}


def _offsets(stage: Stage, group: str) -> None:
    stage.main.ask("offset_fetch", 7, {"group_id": group, "topics": None}, "what was committed")


def _beat(group: str, generation: int, member: str) -> Tree:
    return {"group_id": group, "generation_id": generation, "member_id": member}


def _beats_until(line: Line, group: str, member: str, generation: int) -> None:
    """Wait until a heartbeat's response requires the member to rejoin, and record this exchange."""
    line.until("heartbeat", 4, _beat(group, generation, member), "error_code", to=27)
    line.ask("heartbeat", 4, _beat(group, generation, member))


def _static(stage: Stage) -> None:
    stage.chapter("static")
    line, group = stage.line("one"), "static"
    tree = joining(group, group_instance_id="i1")
    first = text(line.ask("join_group", 7, tree), "member_id")
    line.ask("sync_group", 5, synced(group, 1, first, group_instance_id="i1"))
    again = text(line.ask("join_group", 7, tree, "after a restart"), "member_id")
    line.ask("heartbeat", 4, {**_beat(group, 1, first), "group_instance_id": "i1"}, "fenced")
    line.ask("heartbeat", 4, {**_beat(group, 1, again), "group_instance_id": "i1"})
    line.ask("sync_group", 5, synced(group, 1, again, group_instance_id="i1"))
    stage.main.ask("describe_groups", 6, {"groups": [group]})
    member: Tree = {"member_id": "", "group_instance_id": "i1", "reason": "by an admin"}
    stage.main.ask("leave_group", 5, {"group_id": group, "members": [member]})
    stage.main.ask("describe_groups", 6, {"groups": [group]})


def _held(stage: Stage, *partitions: int) -> list[Value]:
    return [{"topic_id": stage.topics[FLIGHTS], "partitions": list(partitions)}]


def _epoch(answer: Tree) -> int:
    return number(answer, "member_epoch")


def _consumer(stage: Stage) -> None:
    stage.chapter("consumer")
    api, group, line = "consumer_group_heartbeat", "consumer", stage.line("one")
    first = _epoch(line.ask(api, 1, begun(group, "m1")))
    line.ask(api, 1, beating(group, "m1", first, topic_partitions=_held(stage, 0, 1)))
    line.ask(api, 1, begun(group, "m2"), "a second member, before groups are assigned again")
    stage.advance(ASSIGNED_MS)
    second = _epoch(line.ask(api, 1, beating(group, "m2", first), "is assigned one"))
    line.ask(api, 1, beating(group, "m1", first), "has to give one away")
    line.ask(api, 1, beating(group, "m2", second), "still waits")
    kept = _held(stage, 0)
    answer = line.ask(api, 1, beating(group, "m1", first, topic_partitions=kept), "has given it")
    line.ask(api, 1, beating(group, "m2", second), "has got it")
    line.ask(api, 1, beating(group, "m2", second, topic_partitions=_held(stage, 1)))
    stage.main.ask("consumer_group_describe", 1, {"group_ids": [group]})
    _commits(stage, group, _epoch(answer))
    _thrown_out(stage, group, _epoch(answer))
    stage.main.ask("list_groups", 5, {"states_filter": [], "types_filter": ["consumer"]})
    _offsets(stage, group)


def _commits(stage: Stage, group: str, epoch: int) -> None:
    own: Tree = {"generation_id_or_member_epoch": epoch, "member_id": "m1"}
    stage.main.ask("offset_commit", 9, {**committed(stage, group, 3), **own})
    old: Tree = {"generation_id_or_member_epoch": epoch - 1, "member_id": "m1"}
    stage.main.ask("offset_commit", 9, {**committed(stage, group, 4), **old}, "of an old epoch")
    stage.main.ask("offset_commit", 8, {**committed(stage, group, 4), **old}, "of an old epoch")


def _thrown_out(stage: Stage, group: str, epoch: int) -> None:
    """A silent member expires, a topic is created, a static member is away for a while."""
    api, line = "consumer_group_heartbeat", stage.line("one")
    line.ask(api, 1, begun(group, "m3", subscribed_topic_names=["nowhere"]))
    line.ask(api, 1, beating(group, "m3", -1), "leaves")
    stage.advance(CONSUMER_SESSION_MS - ASSIGNED_MS)
    epoch = _epoch(line.ask(api, 1, beating(group, "m1", epoch), "m2 is silent"))
    stage.advance(ASSIGNED_MS)
    line.ask(api, 1, beating(group, "m2", epoch), "was thrown out")
    epoch = _epoch(line.ask(api, 1, beating(group, "m1", epoch)))
    stage.main.ask("consumer_group_describe", 1, {"group_ids": [group]})
    stage.create_topic("later", 1)
    stage.advance(ASSIGNED_MS)
    both: list[Value] = [FLIGHTS, "later"]
    line.ask(api, 1, beating(group, "m1", epoch, subscribed_topic_names=both))
    stage.main.ask("consumer_group_describe", 1, {"group_ids": [group]})
    line.ask(api, 1, begun(group, "static", instance_id="i1"))
    line.ask(api, 1, beating(group, "static", -2, instance_id="i1"), "away for a while")
    line.ask(api, 1, begun(group, "static2", instance_id="i1"), "back")


def _uneven(stage: Stage) -> None:
    """Let each assignor assign partitions to members with different topics."""
    stage.chapter("uneven")
    api, line = "consumer_group_heartbeat", stage.line("one")
    for topic, partitions in (("few", 1), ("some", 3), ("many", 5)):
        stage.create_topic(topic, partitions)
    wishes: dict[str, list[Value]] = {
        "all": ["few", "some", "many"],
        "large": ["some", "many"],
        "one": ["many"],
        "other": ["few", "some"],
    }
    for assignor in ("uniform", "range"):
        group = f"uneven-{assignor}"
        for member, topics in wishes.items():
            tree = begun(group, member, subscribed_topic_names=topics, server_assignor=assignor)
            line.ask(api, 1, tree)
            stage.advance(ASSIGNED_MS)
            epoch = _epoch(line.quiet(api, 1, tree))
            line.ask(api, 1, beating(group, member, epoch))
        stage.main.ask("consumer_group_describe", 1, {"group_ids": [group]})
        line.ask(api, 1, beating(group, "large", -1), "leaves")
        stage.advance(ASSIGNED_MS)
        line.ask(api, 1, begun(group, "all", subscribed_topic_names=["few"]))
        stage.main.ask("consumer_group_describe", 1, {"group_ids": [group]})


def _upgraded(stage: Stage) -> None:
    """A classic group is upgraded by a member of the consumer protocol, and downgraded again."""
    stage.chapter("upgraded")
    group, one, main = "upgraded", stage.line("one"), stage.main
    api, describe = "consumer_group_heartbeat", "consumer_group_describe"
    first = _joined(one, group)
    one.ask("join_group", 7, joining(group, first))
    one.ask("sync_group", 5, synced(group, 1, first, assignments=[]))
    epoch = _epoch(main.ask(api, 1, begun(group, "new")))
    main.ask(describe, 1, {"group_ids": [group]})
    main.ask("describe_groups", 6, {"groups": [group]})
    one.ask("heartbeat", 4, _beat(group, 1, first))
    generation = number(one.ask("join_group", 7, joining(group, first)), "generation_id")
    one.ask("sync_group", 5, synced(group, generation, first, assignments=[]))
    one.ask("heartbeat", 4, _beat(group, generation, first))
    one.ask("offset_commit", 8, _commit(stage, group, generation, first))
    main.ask(api, 1, beating(group, "new", epoch, topic_partitions=_held(stage, 0)))
    second = _joined(one, group)
    one.ask("join_group", 7, joining(group, second), "another of the old kind")
    main.ask(describe, 1, {"group_ids": [group]})
    main.ask(api, 1, beating(group, "new", -1), "the last of the new kind leaves")
    main.ask("list_groups", 5, {"states_filter": [], "types_filter": []})
    one.ask("heartbeat", 4, _beat(group, generation, first))
    main.ask("describe_groups", 6, {"groups": [group]})
    _offsets(stage, group)


def _share(stage: Stage) -> None:
    stage.chapter("share")
    group, one, two = "share", stage.line("one"), stage.line("two")
    opened(stage, group)
    one.ask("share_group_heartbeat", 1, sharing(group, OTHER, 0), "a second member")
    stage.main.ask("share_group_describe", 1, {"group_ids": [group]})
    one.ask("share_fetch", 1, lent(stage, group, MEMBER, 0, max_records=2), "two records")
    two.ask("share_fetch", 1, lent(stage, group, OTHER, 0), "the others")
    one.ask(
        "share_acknowledge", 1, acknowledged(stage, group, MEMBER, 1, parts_of(stage, (0, 0, 1)))
    )
    one.ask(
        "share_acknowledge", 1, acknowledged(stage, group, MEMBER, 2, parts_of(stage, (1, 1, 2)))
    )
    two.ask("share_fetch", 1, lent(stage, group, OTHER, 1), "what was given back")
    stage.advance(30_001)
    one.ask("share_fetch", 1, lent(stage, group, MEMBER, 3), "what locks have let go")
    two.ask(
        "share_acknowledge", 1, acknowledged(stage, group, OTHER, 2, parts_of(stage, (1, 1, 1)))
    )
    one.ask(
        "share_acknowledge", 1, acknowledged(stage, group, MEMBER, 4, parts_of(stage, (1, 2, 3)))
    )
    asked: Tree = {"groups": [{"group_id": group, "topics": None}]}
    stage.main.ask("describe_share_group_offsets", 1, asked)
    one.ask("share_fetch", 1, lent(stage, group, MEMBER, -1, topics=[]), "ends its session")
    two.ask("share_fetch", 1, lent(stage, group, OTHER, 3), "what the ended session let go")
    for epoch in range(4, 8):
        stage.advance(30_001)
        two.ask("share_fetch", 1, lent(stage, group, OTHER, epoch), "until they are given up")
    stage.main.ask("describe_share_group_offsets", 1, asked)
    stage.main.ask("share_group_describe", 1, {"group_ids": [group]}, "who is left")


def _deleted(stage: Stage) -> None:
    """A topic is deleted and created again: groups keep no state of the deleted topic."""
    stage.chapter("deleted")
    name, main = "gone", stage.main
    stage.create_topic(name, 1)
    main.ask("offset_commit", 8, committed(stage, "lonely", 7, name))
    earliest(stage, "sharers")
    wish: Tree = sharing("sharers", MEMBER, 0, subscribed_topic_names=[name])
    main.ask("share_group_heartbeat", 1, wish)
    every: Tree = {"groups": [{"group_id": "sharers", "topics": None}]}
    path = ("groups", 0, "topics", 0, "partitions", 0, "error_code")
    named: Tree = {"topic_name": name, "partitions": [0]}
    asked: Tree = {"groups": [{"group_id": "sharers", "topics": [named]}]}
    main.until("describe_share_group_offsets", 1, asked, *path, to=0)
    main.ask("delete_topics", 6, {"topics": [{"name": name}], "timeout": 1000})
    main.until("offset_fetch", 7, {"group_id": "lonely", "topics": None}, "topics", to=[])
    _offsets(stage, "lonely")
    main.ask("describe_share_group_offsets", 1, asked)
    main.ask("share_group_describe", 1, {"group_ids": ["sharers"]})
    stage.create_topic(name, 1)
    _offsets(stage, "lonely")
    main.ask("describe_share_group_offsets", 1, asked)
    main.ask("describe_share_group_offsets", 1, every)


def _restarted(stage: Stage) -> None:
    stage.chapter("restarted")
    stage.restart()
    asked: Tree = {"key": "g", "key_type": 0}
    stage.main.until("find_coordinator", 1, asked, "error_code", to=0)
    stage.main.until("list_groups", 5, {}, "error_code", to=0)
    stage.main.ask("list_groups", 5, {"states_filter": [], "types_filter": []})
    stage.main.ask("describe_groups", 6, {"groups": ["classic", "static", "upgraded"]})
    stage.main.ask("consumer_group_describe", 1, {"group_ids": ["consumer"]})
    stage.main.ask("share_group_describe", 1, {"group_ids": ["share"]})
    for group in ("classic", "consumer"):
        _offsets(stage, group)
    stage.main.ask("share_fetch", 1, lent(stage, "share", MEMBER, 0), "after the restart")
