"""Administrative requests that the broker refuses: one request for each error message."""

from pathlib import Path
from typing import Final
from uuid import UUID

from tests.corpus.exchanges.registry import FLIGHTS, flights
from tests.corpus.exchanges.scripts.configs import (
    APPEND,
    BROKER,
    GROUP,
    SET,
    SHA_256,
    TOPIC,
    upsertion,
)
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value

_METADATA: Final = "metadata.version"
_DOWNGRADES: Final = (2, 3)


def play(home: Path) -> Stage:
    """Send requests that are refused."""
    with Stage(home / "data") as stage:
        flights(stage)
        _features(stage)
        _settings(stage)
        _topics(stage)
        _users(stage)
    with Stage(home / "fixed", {"delete.topic.enable": "false"}) as fixed:
        flights(fixed)
        fixed.chapter("deletion")
        deleted: Tree = {"topics": [{"name": FLIGHTS}], "timeout": 1000}
        fixed.main.ask("delete_topics", 6, deleted)
    stage.chapters |= {"deletion": fixed.chapters["deletion"]}
    return stage


def _features(stage: Stage) -> None:
    stage.chapter("features")
    for level, kind in ((-1, 1), (1, 1), (10, 1), *((10, kind) for kind in _DOWNGRADES), (10, 0)):
        update: Tree = {"feature": _METADATA, "max_version_level": level, "upgrade_type": kind}
        tree: Tree = {"feature_updates": [update], "timeout": 1000, "validate_only": False}
        stage.main.ask("update_features", 1, tree, f"level {level}, kind {kind}")


def _change(kind: int, name: str, key: str, operation: int, value: str | None) -> Tree:
    config: Tree = {"name": key, "config_operation": operation, "value": value}
    return {"resource_type": kind, "resource_name": name, "configs": [config]}


def _settings(stage: Stage) -> None:
    stage.chapter("settings")
    retention = _change(TOPIC, FLIGHTS, "retention.ms", SET, "1000")
    listeners = "listener.security.protocol.map"
    requests: dict[str, list[Value]] = {
        "a resource twice": [retention, retention],
        "no topic's name": [_change(TOPIC, "", "retention.ms", SET, "1")],
        "no group's name": [_change(GROUP, "", "consumer.session.timeout.ms", SET, "46000")],
        "a long group": [_change(GROUP, "g" * 5000, "consumer.session.timeout.ms", SET, "46000")],
        "no list of a group": [_change(GROUP, "g", "consumer.session.timeout.ms", APPEND, "1")],
        "no list": [_change(BROKER, "0", "log.retention.ms", APPEND, "1")],
        "no operation": [_change(BROKER, "0", "log.retention.ms", 9, "1")],
        "no setting": [_change(BROKER, "0", "no.such.setting", SET, "1")],
        "not dynamic": [_change(BROKER, "", listeners, SET, "A:PLAINTEXT")],
        "of one broker": [
            _change(BROKER, "", "sasl.kerberos.min.time.before.relogin", SET, "/none")
        ],
        "no broker": [_change(BROKER, "7", "log.retention.ms", SET, "1000")],
        "no number of a broker": [_change(BROKER, "x", "log.retention.ms", SET, "1000")],
        "no kind of resource": [_change(99, "x", "y", SET, "1")],
    }
    for words, resources in requests.items():
        tree: Tree = {"resources": resources, "validate_only": False}
        stage.main.ask("incremental_alter_configs", 1, tree, words)
    for kind, name in ((TOPIC, ""), (GROUP, ""), (BROKER, "7"), (BROKER, "x"), (99, "x")):
        one: Tree = {"resource_type": kind, "resource_name": name, "configuration_keys": []}
        stage.main.ask("describe_configs", 4, {"resources": [one]})


def _topics(stage: Stage) -> None:
    stage.chapter("topics")
    main, own = stage.main, stage.topics[FLIGHTS]
    deletions: dict[str, list[Value]] = {
        "neither name nor id": [{"name": None}],
        "name and id": [{"name": FLIGHTS, "topic_id": own}],
        "an id twice": [{"name": None, "topic_id": own}, {"name": None, "topic_id": own}],
        "a name twice": [{"name": "none"}, {"name": "none"}],
        "a name and its id": [{"name": FLIGHTS}, {"name": None, "topic_id": own}],
        "no such id": [{"name": None, "topic_id": UUID(int=9)}],
    }
    for words, topics in deletions.items():
        main.ask("delete_topics", 6, {"topics": topics, "timeout": 1000}, words)
    internal: Tree = {"name": "__consumer_offsets", "num_partitions": 1, "replication_factor": 1}
    many: Tree = {"name": "many", "num_partitions": 100_000, "replication_factor": 1}
    for topic in (internal, many):
        main.ask("create_topics", 7, {"topics": [topic], "timeout": 1000})
    for count in (1, 2, 200_000):
        grown: Tree = {"name": FLIGHTS, "count": count, "assignments": None}
        main.ask("create_partitions", 3, {"topics": [grown], "timeout": 1000})
    for name, number in ((FLIGHTS, -1), ("other", 0)):
        cursor: Tree = {"topic_name": name, "partition_index": number}
        paged: Tree = {"topics": [{"name": FLIGHTS}], "cursor": cursor}
        main.ask("describe_topic_partitions", 0, {**paged, "response_partition_limit": 9})


def _users(stage: Stage) -> None:
    stage.chapter("users")
    changes: dict[str, Tree] = {
        "a long name": upsertion("u" * 5000),
        "no salt": {**upsertion("ann"), "salt": b""},
        "a long password": {**upsertion("ann"), "salted_password": b"x" * 5000},
        "a mechanism that does not exist": upsertion("ann", 7),
    }
    for words, change in changes.items():
        tree: Tree = {"deletions": [], "upsertions": [change]}
        stage.main.ask("alter_user_scram_credentials", 0, tree, words)
    gone: Tree = {"deletions": [{"name": "u" * 5000, "mechanism": SHA_256}], "upsertions": []}
    stage.main.ask("alter_user_scram_credentials", 0, gone, "a long name")
    below: Tree = {"partition_index": 0, "start_offset": -5}
    for group in ("", "shared"):
        topic: Tree = {"topic_name": FLIGHTS, "partitions": [below]}
        stage.main.ask("alter_share_group_offsets", 0, {"group_id": group, "topics": [topic]})
        stage.main.ask("delete_share_group_offsets", 0, {"group_id": group, "topics": []})
