"""Scripts of the cluster itself, of authentication and of rights."""

from uuid import UUID

from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.registry import FLIGHTS, flights, script
from tests.corpus.exchanges.session import ADVERTISED, Stage
from tests.corpus.exchanges.values import Tree, Value, text

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SASL_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "advertised.listeners": f"PLAINTEXT://{ADVERTISED},SASL_PLAINTEXT://{ADVERTISED[:-1]}3",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
}
RIGHTS = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
ANY = 1
TOPIC, GROUP, CLUSTER = 2, 3, 4
MATCH, LITERAL, PREFIXED = 2, 3, 4
READ, WRITE, DESCRIBE = 3, 4, 8
DENY, ALLOW = 2, 3


@script("api_versions")
def api_versions(stage: Stage, version: int) -> None:
    def tree(name: str = "corpus", number: str = "1.0") -> Tree:
        return {"client_software_name": name, "client_software_version": number}

    main = stage.main
    main.normal("api_versions", version, tree())
    if version >= 3:
        main.refused("api_versions", version, tree(""))
        main.refused("api_versions", version, tree("a b", "-"))
    else:
        stage.line("later").raw(
            bytes([0, 18, 0, 90 + version, 0, 0, 0, 1, 0, 1, 99, 0]), f"a version of {90 + version}"
        )
    main.edge("api_versions", version, tree("x" * 200, "y" * 200))


def _shaken(stage: Stage, name: str) -> Line:
    """Return the connection of this name to the listener that requires SASL."""
    return stage.line(name, "SASL_PLAINTEXT")


@script("sasl_handshake", settings=SASL_SETTINGS)
def sasl_handshake(stage: Stage, version: int) -> None:
    line = _shaken(stage, f"in{version}")
    line.normal("sasl_handshake", version, {"mechanism": "SCRAM-SHA-256"})
    line.close()
    line.refused("sasl_handshake", version, {"mechanism": "GSSAPI"})
    line.close()
    line.edge("sasl_handshake", version, {"mechanism": ""})
    line.close()
    line.edge("sasl_handshake", version, {"mechanism": "SCRAM-SHA-512"})
    line.ask("metadata", 9, {"topics": []}, "before a log-in")
    line.close()
    stage.main.ask("sasl_handshake", version, {"mechanism": "PLAIN"}, "where nobody logs in")
    stage.main.close()


@script("sasl_authenticate", settings=SASL_SETTINGS)
def sasl_authenticate(stage: Stage, version: int) -> None:
    line, api = _shaken(stage, f"in{version}"), "sasl_authenticate"
    hello = b"n,,n=alice,r=abcdefgh"
    line.quiet("sasl_handshake", 1, {"mechanism": "SCRAM-SHA-256"})
    line.normal(api, version, {"auth_bytes": hello})
    line.refused(api, version, {"auth_bytes": b"c=biws,r=abcdefgh,p=AAAA"})
    line.close()
    line.refused(api, version, {"auth_bytes": hello})
    line.close()
    line.quiet("sasl_handshake", 1, {"mechanism": "SCRAM-SHA-512"})
    line.edge(api, version, {"auth_bytes": b""})
    line.close()


def acl(
    name: str, kind: int = TOPIC, *, operation: int = READ, permission: int = ALLOW, **more: Value
) -> Tree:
    """Return an ACL about a resource, for alice."""
    own: Tree = {"resource_type": kind, "resource_name": name, "resource_pattern_type": LITERAL}
    whom: Tree = {"principal": "User:alice", "host": "*"}
    return {**own, **whom, "operation": operation, "permission_type": permission, **more}


def filtered(
    kind: int = ANY, name: str | None = None, *, pattern: int = ANY, **more: Value
) -> Tree:
    """Return a filter of ACLs."""
    own: Tree = {"resource_type_filter": kind, "resource_name_filter": name}
    whom: Tree = {"principal_filter": None, "host_filter": None}
    kinds: Tree = {"pattern_type_filter": pattern, "operation": ANY, "permission_type": ANY}
    return {**own, **kinds, **whom, **more}


def _acls(stage: Stage) -> None:
    flights(stage)
    given: list[Value] = [
        acl(FLIGHTS),
        acl("fl", resource_pattern_type=PREFIXED, operation=WRITE),
        acl("*", operation=DESCRIBE, permission=DENY, host="10.0.0.1"),
        acl("g", GROUP, principal="User:bob"),
        acl("kafka-cluster", CLUSTER, operation=DESCRIBE),
    ]
    stage.main.quiet("create_acls", 3, {"creations": given})


@script("describe_acls", _acls, RIGHTS)
def describe_acls(stage: Stage, version: int) -> None:
    main, api = stage.main, "describe_acls"
    main.normal(api, version, filtered())
    main.normal(api, version, filtered(TOPIC, FLIGHTS, pattern=MATCH))
    main.refused(api, version, filtered(99))
    main.refused(api, version, filtered(pattern=9))
    main.refused(api, version, filtered(operation=0))
    main.edge(api, version, filtered(TOPIC, "nothing"))
    main.edge(api, version, filtered(principal_filter="User:bob"))
    main.edge(api, version, filtered(permission_type=DENY, host_filter="10.0.0.1"))


@script("create_acls", settings=RIGHTS)
def create_acls(stage: Stage, version: int) -> None:
    def tree(*acls: Value) -> Tree:
        return {"creations": list(acls)}

    main, api = stage.main, "create_acls"
    main.normal(api, version, tree(acl(FLIGHTS), acl("g", GROUP)))
    main.refused(api, version, tree(acl("")))
    main.refused(api, version, tree(acl("x", principal="alice")))
    main.refused(api, version, tree(acl("x", operation=ANY)))
    main.refused(api, version, tree(acl("x", permission=ANY)))
    main.refused(api, version, tree(acl("x", resource_pattern_type=MATCH)))
    main.refused(api, version, tree(acl("other", CLUSTER)))
    main.refused(api, version, tree(acl("x", 99)))
    main.refused(api, version, tree(acl("x", operation=15)))
    main.edge(api, version, tree(acl(FLIGHTS)))
    main.edge(api, version, tree(acl("x", host="no host"), acl("*")))
    main.edge(api, version, tree())
    main.ask("describe_acls", 3, filtered(), "which rules there are")


@script("delete_acls", _acls, RIGHTS)
def delete_acls(stage: Stage, version: int) -> None:
    def tree(*filters: Value) -> Tree:
        return {"filters": list(filters)}

    main, api = stage.main, "delete_acls"
    main.quiet("create_acls", 3, {"creations": [acl(f"t{version}"), acl(f"u{version}")]})
    main.normal(api, version, tree(filtered(TOPIC, f"t{version}", pattern=LITERAL)))
    main.refused(api, version, tree(filtered(99)))
    main.refused(api, version, tree(filtered(pattern=0)))
    main.edge(api, version, tree(filtered(TOPIC, "nothing")))
    main.edge(api, version, tree())
    both = filtered(TOPIC, f"u{version}", pattern=MATCH, operation=READ)
    main.edge(api, version, tree(both, both))


@script("describe_cluster")
def describe_cluster(stage: Stage, version: int) -> None:
    main, api = stage.main, "describe_cluster"
    main.normal(api, version, {"endpoint_type": 1})
    if version >= 1:
        main.refused(api, version, {"endpoint_type": 9})
        main.edge(api, version, {"endpoint_type": 2})
    main.edge(api, version, {"include_cluster_authorized_operations": True, "endpoint_type": 1})
    main.edge(api, version, {"include_fenced_brokers": True, "endpoint_type": 1})


@script("describe_quorum")
def describe_quorum(stage: Stage, version: int) -> None:
    def tree(topic: str, partition: int) -> Tree:
        return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]}

    main, api = stage.main, "describe_quorum"
    main.normal(api, version, tree("__cluster_metadata", 0))
    main.refused(api, version, tree(FLIGHTS, 0))
    main.refused(api, version, tree("__cluster_metadata", 4))
    main.edge(api, version, {"topics": []})


@script("update_features")
def update_features(stage: Stage, version: int) -> None:
    def tree(feature: str, level: int, kind: int = 1, *, only: bool = False) -> Tree:
        one: Tree = {"feature": feature, "max_version_level": level}
        kinds: Tree = {"allow_downgrade": kind > 1, "upgrade_type": kind}
        return {"feature_updates": [{**one, **kinds}], "timeout": 1000, "validate_only": only}

    main, api = stage.main, "update_features"
    main.normal(api, version, {"feature_updates": [], "timeout": 1000})
    main.refused(api, version, tree("no.such.feature", 1))
    main.refused(api, version, tree("metadata.version", 99))
    main.refused(api, version, tree("", 1))
    main.edge(api, version, tree("group.version", 1))
    main.edge(api, version, tree("group.version", 0, 2, only=True))
    main.edge(api, version, tree("group.version", 0, 9))


@script("unregister_broker")
def unregister_broker(stage: Stage, version: int) -> None:
    main, api = stage.main, "unregister_broker"
    main.normal(api, version, {"broker_id": 0})
    main.refused(api, version, {"broker_id": 9})
    main.edge(api, version, {"broker_id": -1})


def _cluster_id(stage: Stage) -> str:
    return text(stage.main.quiet("describe_cluster", 0, {}), "cluster_id")


@script("add_raft_voter")
def add_raft_voter(stage: Stage, version: int) -> None:
    def tree(voter: int, **more: Value) -> Tree:
        place: Tree = {"name": "CONTROLLER", "host": "h", "port": 9093}
        own: Tree = {"voter_id": voter, "voter_directory_id": UUID(int=6), "timeout": 1000}
        return {"cluster_id": None, **own, "listeners": [place], **more}

    main, api = stage.main, "add_raft_voter"
    main.normal(api, version, tree(1))
    main.refused(api, version, tree(1, cluster_id="another"))
    main.refused(api, version, tree(1, listeners=[]))
    main.edge(api, version, tree(-1, cluster_id=_cluster_id(stage)))
    main.edge(api, version, tree(0, ack_when_committed=False))


@script("remove_raft_voter")
def remove_raft_voter(stage: Stage, version: int) -> None:
    def tree(voter: int, **more: Value) -> Tree:
        own: Tree = {"voter_id": voter, "voter_directory_id": UUID(int=6)}
        return {"cluster_id": None, **own, **more}

    main, api = stage.main, "remove_raft_voter"
    main.normal(api, version, tree(1))
    main.refused(api, version, tree(1, cluster_id="another"))
    main.edge(api, version, tree(0, cluster_id=_cluster_id(stage)))
    main.edge(api, version, tree(-1))
