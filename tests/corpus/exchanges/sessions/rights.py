"""Requests of each API by several identities: with all rights, with few, with none."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.corpus.exchanges.identities import AUTHORIZER, PASSWORD, USERS, listeners, logged_in
from tests.corpus.exchanges.line import Stopped
from tests.corpus.exchanges.registry import FLIGHTS, SCRIPTS, Script
from tests.corpus.exchanges.scripts.cluster import (
    CLUSTER,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    acl,
)
from tests.corpus.exchanges.scripts.groups import member_of, ready
from tests.corpus.exchanges.scripts.records import fetched
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value, listed

ALL = 2
HIDDEN = "hidden"
TRANSACTIONAL_ID = 5
# Requests that require no rights; the session `log_ins` covers authentication.
WITHOUT_RIGHTS = {"sasl_handshake", "sasl_authenticate"}


def settings(folder: Path) -> Mapping[str, str]:
    """Return settings of a broker with users of PLAIN and an authorizer."""
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in USERS))
    return {
        **listeners("PLAINTEXT", "SASL_PLAINTEXT"),
        "sasl.enabled.mechanisms": "PLAIN",
        "tidelog.sasl.plain.users.file": str(users),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }


def acls() -> list[Value]:
    """Return ACLs: alice has all rights; `reader` has a few on topics, groups and transactions."""
    kinds = {TOPIC: "*", GROUP: "*", CLUSTER: "kafka-cluster", TRANSACTIONAL_ID: "*"}
    every: list[Value] = [acl(name, kind, operation=ALL) for kind, name in kinds.items()]
    reader: list[Value] = [
        acl(FLIGHTS, TOPIC, operation=READ, principal="User:reader"),
        acl("*", GROUP, operation=READ, principal="User:reader"),
        acl("*", TRANSACTIONAL_ID, operation=DESCRIBE, principal="User:reader"),
    ]
    return [*every, *reader]


def play(home: Path, announced: Mapping[str, tuple[int, int]]) -> Iterator[Stage]:
    """Send each API's first normal request in its last version, as each identity."""
    for api, (_, last) in sorted(announced.items()):
        if api not in WITHOUT_RIGHTS:
            yield _asked(home / api, api, last)


def mixed(home: Path) -> Stage:
    """Send requests about an allowed and a denied resource."""
    with Stage(home / "data", settings(home)) as stage:
        ready(stage)
        stage.create_topic(HIDDEN)
        stage.main.quiet("create_acls", 3, {"creations": acls()})
        member_of(stage.main, "g")
        stage.chapter("mixed")
        for user in reversed(USERS):
            line = logged_in(stage.line(user, "SASL_PLAINTEXT"), user)
            for api, version, tree in _of_both(stage):
                line.ask(api, version, tree, f"as {user}")
    return stage


def _of_both(stage: Stage) -> list[tuple[str, int, Tree]]:
    """Return requests about a readable and a hidden topic, and about groups of both kinds."""
    topics: list[Value] = [{"name": name} for name in (FLIGHTS, HIDDEN)]
    part: Tree = {"partition_index": 0, "timestamp": -1}
    ends: list[Value] = [{"name": name, "partitions": [part]} for name in (FLIGHTS, HIDDEN)]
    committed_: Tree = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    kept: list[Value] = [{"name": name, "partitions": [committed_]} for name in (FLIGHTS, HIDDEN)]
    named: list[Value] = [{"name": name, "partition_indexes": [0]} for name in (FLIGHTS, HIDDEN)]
    rights: Tree = {
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    resources: list[Value] = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["retention.ms"]}
        for name in (FLIGHTS, HIDDEN)
    ]
    new: list[Value] = [
        {"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("new", FLIGHTS)
    ]
    read = fetched(stage, 0)
    hidden = fetched(stage, 0, HIDDEN)
    two = [*listed(read, "topics"), *listed(hidden, "topics")]
    return [
        ("metadata", 9, {"topics": None, **rights}),
        ("metadata", 10, {"topics": topics, **rights}),
        ("metadata", 9, {"topics": [{"name": "none"}], "allow_auto_topic_creation": True}),
        (
            "describe_cluster",
            1,
            {"endpoint_type": 1, "include_cluster_authorized_operations": True},
        ),
        ("list_offsets", 7, {"topics": ends}),
        ("fetch", 12, {**read, "topics": two}),
        ("fetch", 13, {**read, "topics": two}),
        (
            "offset_commit",
            8,
            {"group_id": "kept", "generation_id_or_member_epoch": -1, "topics": kept},
        ),
        ("offset_fetch", 7, {"group_id": "kept", "topics": named}),
        ("offset_fetch", 7, {"group_id": "kept", "topics": None}),
        ("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g", "kept"]}),
        ("find_coordinator", 4, {"key_type": 1, "coordinator_keys": ["t"]}),
        ("describe_groups", 5, {"groups": ["g", "none"], "include_authorized_operations": True}),
        ("list_groups", 4, {"states_filter": []}),
        ("describe_configs", 4, {"resources": resources}),
        ("describe_topic_partitions", 0, {"topics": topics, "response_partition_limit": 10}),
        ("describe_producers", 0, {"topics": named}),
        ("create_topics", 7, {"topics": new, "timeout": 1000, "validate_only": True}),
        ("delete_topics", 6, {"topics": [{"name": "none"}, {"name": HIDDEN}], "timeout": 1000}),
        (
            "init_producer_id",
            4,
            {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
        ),
    ]


def _asked(home: Path, api: str, version: int) -> Stage:
    script = SCRIPTS[api]
    with Stage(home / "data", {**script.settings, **settings(home)}) as stage:
        stage.main.quiet("create_acls", 3, {"creations": acls()})
        script.prepare(stage)
        tree = _first_normal(stage, script, version)
        stage.chapters.clear()
        stage.chapter(api)
        for user in reversed(USERS):
            line = logged_in(stage.line(user, "SASL_PLAINTEXT"), user)
            line.ask(api, version, tree, f"as {user}")
    return stage


def _first_normal(stage: Stage, script: Script, version: int) -> Tree:
    stage.stops = True
    try:
        script.play(stage, version)
    except Stopped as stopped:
        return stopped.tree
    raise AssertionError("a script without a normal request")
