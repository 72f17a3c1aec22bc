"""Scripts of the APIs that describe topics and change them."""

from uuid import UUID

from tests.corpus.exchanges.registry import FLIGHTS, flights, script
from tests.corpus.exchanges.scripts.records import NOWHERE
from tests.corpus.exchanges.session import HOME_SHOWN, Stage
from tests.corpus.exchanges.values import Tree, Value


@script("metadata")
def metadata(stage: Stage, version: int) -> None:
    def tree(*names: str, create: bool = False) -> Tree:
        topics: list[Value] = [{"name": name} for name in names]
        return {"topics": topics, "allow_auto_topic_creation": create}

    main = stage.main
    main.normal("metadata", version, tree(FLIGHTS))
    main.normal("metadata", version, {"topics": None if version else []})
    main.refused("metadata", version, tree("no topic", FLIGHTS))
    main.refused("metadata", version, tree("x" * 250))
    if version >= 4:
        main.refused("metadata", version, tree(NOWHERE))
    main.edge("metadata", version, tree())
    main.edge("metadata", version, tree(FLIGHTS, FLIGHTS))
    main.edge("metadata", version, tree(f"made{version}", create=True))
    main.ask("metadata", version, tree(f"made{version}"), "what was made by asking")
    rights: Tree = {
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    main.edge("metadata", version, {**tree(FLIGHTS), **rights})
    if version >= 10:
        own: list[Value] = [{"topic_id": stage.topics[FLIGHTS], "name": None}]
        main.edge("metadata", version, {"topics": own})
        main.edge("metadata", version, {"topics": [{"topic_id": UUID(int=9), "name": None}]})


def _topic(name: str, partitions: int = 1, copies: int = 1, **configs: str | None) -> Tree:
    given: list[Value] = [
        {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
    ]
    counts: Tree = {"num_partitions": partitions, "replication_factor": copies}
    return {"name": name, **counts, "configs": given}


@script("create_topics")
def create_topics(stage: Stage, version: int) -> None:
    def tree(*topics: Value, only: bool = False) -> Tree:
        return {"topics": list(topics), "timeout": 1000, "validate_only": only}

    main, own = stage.main, f"new{version}"
    main.normal("create_topics", version, tree(_topic(own, 2, retention_ms="1000")))
    main.refused("create_topics", version, tree(_topic(own)))
    main.refused("create_topics", version, tree(_topic("a/b"), _topic("."), _topic("")))
    main.refused("create_topics", version, tree(_topic("zero", 0), _topic("many", 1, 3)))
    main.refused("create_topics", version, tree(_topic("bad", retention_ms="x")))
    main.refused("create_topics", version, tree(_topic("bad", no_such="x")))
    main.refused("create_topics", version, tree(_topic("bad", retention_ms=None)))
    main.refused("create_topics", version, tree(_topic("same"), _topic("same")))
    main.edge("create_topics", version, tree(_topic(f"a.{version}")))
    main.refused("create_topics", version, tree(_topic(f"a_{version}")))
    main.edge("create_topics", version, tree(_topic(f"only{version}"), only=True))
    main.edge("create_topics", version, tree())
    main.edge("create_topics", version, tree(_topic("d" * 249 if version == 7 else f"d{version}")))
    main.edge("create_topics", version, tree(_topic(f"default{version}", -1, -1)))
    assigned: Tree = {
        **_topic(f"assigned{version}", -1, -1),
        "assignments": [
            {"partition_index": 0, "broker_ids": [0]},
            {"partition_index": 1, "broker_ids": [0]},
        ],
    }
    main.edge("create_topics", version, tree(assigned))
    elsewhere: Tree = {**assigned, "name": "else"}
    elsewhere["assignments"] = [{"partition_index": 0, "broker_ids": [5]}]
    main.refused("create_topics", version, tree(elsewhere))


def _many(stage: Stage) -> None:
    flights(stage)
    for version in range(1, 7):
        for letter in "ab":
            stage.create_topic(f"{letter}{version}", 1)


@script("delete_topics", _many)
def delete_topics(stage: Stage, version: int) -> None:
    def tree(*names: str) -> Tree:
        by_name: list[Value] = [{"name": name, "topic_id": UUID(int=0)} for name in names]
        return {"topic_names": list(names), "topics": by_name, "timeout": 1000}

    main = stage.main
    main.normal("delete_topics", version, tree(f"a{version}"))
    main.refused("delete_topics", version, tree(f"a{version}"))
    main.refused("delete_topics", version, tree(NOWHERE, "a b"))
    main.edge("delete_topics", version, tree())
    main.edge("delete_topics", version, tree(f"b{version}", f"b{version}"))
    if version >= 6:
        by_id: Tree = {"name": None, "topic_id": stage.topics["b6"]}
        main.edge("delete_topics", version, {"topics": [by_id], "timeout": 1000})
        main.edge("delete_topics", version, {"topics": [by_id], "timeout": 1000})
        both: Tree = {"name": FLIGHTS, "topic_id": stage.topics[FLIGHTS]}
        main.refused("delete_topics", version, {"topics": [both], "timeout": 1000})


def _growing(stage: Stage) -> None:
    flights(stage)
    for version in range(4):
        stage.create_topic(f"g{version}", 2)


@script("create_partitions", _growing)
def create_partitions(stage: Stage, version: int) -> None:
    def tree(topic: str, count: int, *, only: bool = False, places: Value = None) -> Tree:
        one: Tree = {"name": topic, "count": count, "assignments": places}
        return {"topics": [one], "timeout": 1000, "validate_only": only}

    main, own, api = stage.main, f"g{version}", "create_partitions"
    main.normal(api, version, tree(own, 3))
    main.refused(api, version, tree(own, 2))
    main.refused(api, version, tree(own, 3))
    main.refused(api, version, tree(NOWHERE, 3))
    main.refused(api, version, tree(own, 5, places=[{"broker_ids": [0]}]))
    main.refused(api, version, tree(own, 4, places=[{"broker_ids": [3]}]))
    main.edge(api, version, tree(own, 9, only=True))
    main.edge(api, version, tree(own, 4, places=[{"broker_ids": [0]}]))
    main.edge(api, version, {"topics": [], "timeout": 1000})


@script("describe_topic_partitions")
def describe_topic_partitions(stage: Stage, version: int) -> None:
    def tree(*names: str, limit: int = 100, cursor: Value = None) -> Tree:
        topics: list[Value] = [{"name": name} for name in names]
        return {"topics": topics, "response_partition_limit": limit, "cursor": cursor}

    main, api = stage.main, "describe_topic_partitions"
    main.normal(api, version, tree(FLIGHTS))
    main.refused(api, version, tree(NOWHERE, "a b"))
    main.refused(api, version, tree(FLIGHTS, cursor={"topic_name": "a", "partition_index": -4}))
    main.edge(api, version, tree())
    main.edge(api, version, tree(FLIGHTS, limit=1))
    main.edge(api, version, tree(cursor={"topic_name": FLIGHTS, "partition_index": 1}))
    main.edge(api, version, tree(FLIGHTS, limit=0))


@script("describe_log_dirs")
def describe_log_dirs(stage: Stage, version: int) -> None:
    def tree(topic: str, *partitions: int) -> Tree:
        return {"topics": [{"topic": topic, "partitions": list(partitions)}]}

    main, api = stage.main, "describe_log_dirs"
    main.normal(api, version, tree(FLIGHTS, 0, 1))
    main.normal(api, version, {"topics": None})
    main.refused(api, version, tree(NOWHERE, 0))
    main.refused(api, version, tree(FLIGHTS, 8))
    main.edge(api, version, tree(FLIGHTS))
    main.edge(api, version, {"topics": []})


@script("alter_replica_log_dirs")
def alter_replica_log_dirs(stage: Stage, version: int) -> None:
    def tree(path: str, topic: str, partition: int) -> Tree:
        topics: list[Value] = [{"name": topic, "partitions": [partition]}]
        return {"dirs": [{"path": path, "topics": topics}]}

    main, api, home = stage.main, "alter_replica_log_dirs", str(stage.home)
    main.normal(api, version, tree(home, FLIGHTS, 0))
    main.refused(api, version, tree(f"{HOME_SHOWN}/elsewhere", FLIGHTS, 0))
    main.refused(api, version, tree(home, NOWHERE, 0))
    main.refused(api, version, tree("not/absolute", FLIGHTS, 0))
    main.edge(api, version, tree(home, FLIGHTS, 7))
    main.edge(api, version, {"dirs": []})


@script("elect_leaders")
def elect_leaders(stage: Stage, version: int) -> None:
    def tree(topic: str, partition: int, kind: int = 0) -> Tree:
        topics: list[Value] = [{"topic": topic, "partitions": [partition]}]
        return {"election_type": kind, "topic_partitions": topics, "timeout": 1000}

    main, api = stage.main, "elect_leaders"
    main.normal(api, version, tree(FLIGHTS, 0))
    main.refused(api, version, tree(NOWHERE, 0))
    main.refused(api, version, tree(FLIGHTS, 5))
    main.edge(api, version, tree(FLIGHTS, 1, 1))
    main.edge(api, version, tree(FLIGHTS, 1, 9))
    main.edge(api, version, {"topic_partitions": None, "timeout": 1000})
    main.edge(api, version, {"topic_partitions": [], "timeout": 1000})


@script("alter_partition_reassignments")
def alter_partition_reassignments(stage: Stage, version: int) -> None:
    def tree(topic: str, partition: int, replicas: Value) -> Tree:
        part: Tree = {"partition_index": partition, "replicas": replicas}
        return {"timeout": 1000, "topics": [{"name": topic, "partitions": [part]}]}

    main, api = stage.main, "alter_partition_reassignments"
    main.normal(api, version, tree(FLIGHTS, 0, [0]))
    main.refused(api, version, tree(FLIGHTS, 0, [1]))
    main.refused(api, version, tree(FLIGHTS, 0, [0, 0]))
    main.refused(api, version, tree(FLIGHTS, 0, []))
    main.refused(api, version, tree(NOWHERE, 0, [0]))
    main.refused(api, version, tree(FLIGHTS, 6, [0]))
    main.edge(api, version, tree(FLIGHTS, 0, None))
    main.edge(api, version, {**tree(FLIGHTS, 0, [0, 1]), "allow_replication_factor_change": False})
    main.edge(api, version, {"timeout": 1000, "topics": []})


@script("list_partition_reassignments")
def list_partition_reassignments(stage: Stage, version: int) -> None:
    def tree(topic: str, partition: int) -> Tree:
        topics: list[Value] = [{"name": topic, "partition_indexes": [partition]}]
        return {"timeout": 1000, "topics": topics}

    main, api = stage.main, "list_partition_reassignments"
    main.normal(api, version, {"timeout": 1000, "topics": None})
    main.refused(api, version, tree(NOWHERE, 0))
    main.edge(api, version, tree(FLIGHTS, 0))
    main.edge(api, version, {"timeout": 0, "topics": []})
