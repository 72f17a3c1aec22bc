"""Scripts of committed offsets and of their coordinators."""

from uuid import UUID

from tests.corpus.exchanges.registry import FLIGHTS, script
from tests.corpus.exchanges.scripts.groups import member_of, ready
from tests.corpus.exchanges.scripts.records import NOWHERE, topic_of
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value, shown


def committed(
    stage: Stage,
    group: str,
    offset: int,
    topic: str = FLIGHTS,
    *,
    partition: int = 0,
    **more: Value,
) -> Tree:
    """Return an OffsetCommit request without a member, unless one is given."""
    part: Tree = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": more.pop("metadata", "note"),
    }
    own: Tree = {"group_id": group, "generation_id_or_member_epoch": -1, "retention_time": -1}
    return {**own, "topics": [{**topic_of(stage, topic), "partitions": [part]}], **more}


@script("offset_commit", ready)
def offset_commit(stage: Stage, version: int) -> None:
    main, api, group = stage.main, "offset_commit", f"g{version}"
    member = member_of(main, group)
    who: Tree = {"generation_id_or_member_epoch": 1, "member_id": member}
    wrong: Tree = {"generation_id_or_member_epoch": 4, "member_id": member}
    nobody: Tree = {"generation_id_or_member_epoch": 1, "member_id": "nobody"}
    lonely = f"l{version}"
    main.normal(api, version, committed(stage, lonely, 2))
    main.normal(api, version, {**committed(stage, group, 3), **who})
    main.refused(api, version, {**committed(stage, group, 3), **wrong})
    main.refused(api, version, {**committed(stage, group, 3), **nobody})
    main.refused(api, version, committed(stage, group, 3))
    main.refused(api, version, committed(stage, lonely, 3, NOWHERE))
    main.refused(api, version, committed(stage, lonely, 3, partition=8))
    main.refused(api, version, committed(stage, lonely, 3, metadata="m" * 5000))
    main.refused(api, version, committed(stage, f"z{version}", 3, generation_id_or_member_epoch=0))
    main.edge(api, version, committed(stage, lonely, -1))
    main.edge(api, version, committed(stage, lonely, 2**62, metadata=None))
    main.edge(api, version, committed(stage, "", 1))
    main.edge(api, version, {**committed(stage, lonely, 1), "topics": []})
    main.edge(api, version, committed(stage, lonely, 1, retention_time=5))
    wanted: Tree = {"group_id": lonely, "topics": None}
    main.ask("offset_fetch", 7, wanted, "what was kept")


def _kept(stage: Stage) -> None:
    ready(stage)
    stage.main.quiet("offset_commit", 7, committed(stage, "kept", 4))
    stage.main.quiet("offset_commit", 7, committed(stage, "kept", 1, partition=1, metadata=""))
    stage.main.quiet("offset_commit", 7, committed(stage, "other", 2))


@script("offset_fetch", _kept)
def offset_fetch(stage: Stage, version: int) -> None:
    def tree(group: str, *partitions: int, topic: str = FLIGHTS, **more: Value) -> Tree:
        topics: Value = [{**topic_of(stage, topic), "partition_indexes": list(partitions)}]
        one: Tree = {"group_id": group, "topics": topics}
        more_of_group: Tree = {"member_id": None, "member_epoch": -1, **more}
        return {**one, "groups": [{**one, **more_of_group}]}

    main, api = stage.main, "offset_fetch"
    main.normal(api, version, tree("kept", 0, 1))
    main.refused(api, version, tree("kept", 9))
    main.refused(api, version, tree("kept", 0, topic=NOWHERE))
    main.refused(api, version, tree("none", 0))
    main.edge(api, version, tree("kept"))
    main.edge(api, version, {**tree("kept", 0), "require_stable": True})
    if version >= 2:
        every: Tree = {"group_id": "kept", "topics": None}
        main.edge(api, version, {**every, "groups": [every]})
    if version >= 8:
        groups: list[Value] = [{"group_id": name, "topics": None} for name in ("kept", "other")]
        main.edge(api, version, {"groups": groups})
        main.edge(api, version, {"groups": []})
    if version >= 9:
        main.refused(api, version, tree("kept", 0, member_id="m", member_epoch=3))
    if version >= 10:
        parts: Tree = {"topic_id": UUID(int=0), "partition_indexes": [0]}
        main.refused(api, version, {"groups": [{"group_id": "kept", "topics": [parts]}]})


@script("offset_delete", _kept)
def offset_delete(stage: Stage, version: int) -> None:
    def tree(group: str, *partitions: int, topic: str = FLIGHTS) -> Tree:
        parts: list[Value] = [{"partition_index": number} for number in partitions]
        return {"group_id": group, "topics": [{"name": topic, "partitions": parts}]}

    main, api = stage.main, "offset_delete"
    main.normal(api, version, tree("kept", 0))
    main.refused(api, version, tree("none", 0))
    main.refused(api, version, tree("kept", 9))
    main.refused(api, version, tree("kept", 0, topic=NOWHERE))
    stage.main.quiet("offset_commit", 7, committed(stage, "busy", 3))
    member_of(main, "busy")
    main.refused(api, version, tree("busy", 0))
    main.ask("offset_fetch", 7, {"group_id": "busy", "topics": None}, "what a subscriber keeps")
    main.edge(api, version, tree("kept", 0))
    main.edge(api, version, tree("kept"))
    main.edge(api, version, tree("kept", 1))
    main.ask("offset_fetch", 7, {"group_id": "kept", "topics": None}, "what is left")


@script("find_coordinator", ready)
def find_coordinator(stage: Stage, version: int) -> None:
    def tree(key: str, kind: int = 0) -> Tree:
        return {"key": key, "key_type": kind, "coordinator_keys": [key]}

    main, api = stage.main, "find_coordinator"
    stage.main.until(api, 1, tree("t", 1), "error_code", to=0)
    main.normal(api, version, tree("g"))
    if version >= 1:
        main.normal(api, version, tree("t", 1))
        main.refused(api, version, tree("g", 7))
        main.refused(api, version, tree("no share key", 2))
        main.edge(api, version, tree(f"g:{shown(stage.topics[FLIGHTS])}:0", 2))
    main.refused(api, version, tree("x" * 32_767))
    main.edge(api, version, tree(""))
    main.edge(api, version, {"coordinator_keys": ["a", "b", "a"], "key": "é"})
    main.edge(api, version, {"coordinator_keys": [], "key": "a"})
