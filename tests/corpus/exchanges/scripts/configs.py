"""Scripts of settings, quotas and users of SCRAM."""

import hashlib

from tests.corpus.exchanges.registry import FLIGHTS, flights, script
from tests.corpus.exchanges.scripts.records import NOWHERE
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value

TOPIC, BROKER, BROKER_LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
SHA_256, SHA_512 = 1, 2


def _configs(stage: Stage) -> None:
    flights(stage)
    stage.create_topic("other", 1, cleanup_policy="compact", tidelog_lookup_clock="append")


@script("describe_configs", _configs)
def describe_configs(stage: Stage, version: int) -> None:
    def tree(kind: int, name: str, keys: Value = None, **more: Value) -> Tree:
        one: Tree = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        return {"resources": [one], "include_synonyms": False, **more}

    main, api = stage.main, "describe_configs"
    few: list[Value] = ["cleanup.policy", "retention.ms", "no.such"]
    main.normal(api, version, tree(TOPIC, "other", few, include_synonyms=True))
    main.normal(api, version, tree(TOPIC, FLIGHTS))
    main.normal(api, version, tree(BROKER, "0", ["log.retention.ms", "num.partitions"]))
    main.refused(api, version, tree(TOPIC, NOWHERE))
    main.refused(api, version, tree(TOPIC, "a b"))
    main.refused(api, version, tree(BROKER, "7"))
    main.refused(api, version, tree(BROKER, "x"))
    main.refused(api, version, tree(99, "x"))
    main.edge(api, version, tree(TOPIC, FLIGHTS, [], include_documentation=True))
    main.edge(api, version, tree(BROKER, ""))
    main.edge(api, version, tree(BROKER_LOGGER, "0"))
    main.edge(api, version, tree(GROUP, "g"))
    main.edge(api, version, tree(METRICS, "m"))
    main.edge(api, version, {"resources": []})
    if version == 4:
        every: Tree = {"include_synonyms": True, "include_documentation": True}
        main.edge(api, version, tree(BROKER, "0", None, **every))
        main.edge(api, version, tree(TOPIC, FLIGHTS, None, **every))


def altered(kind: int, name: str, only: bool, *settings: tuple[str, str | None]) -> Tree:
    """Return an AlterConfigs request."""
    given: list[Value] = [{"name": key, "value": value} for key, value in settings]
    one: Tree = {"resource_type": kind, "resource_name": name, "configs": given}
    return {"resources": [one], "validate_only": only}


@script("alter_configs")
def alter_configs(stage: Stage, version: int) -> None:
    main, api = stage.main, "alter_configs"
    main.normal(api, version, altered(TOPIC, FLIGHTS, False, ("retention.ms", "5000")))
    main.refused(api, version, altered(TOPIC, FLIGHTS, False, ("retention.ms", "x")))
    main.refused(api, version, altered(TOPIC, FLIGHTS, False, ("no.such", "1")))
    main.refused(api, version, altered(TOPIC, NOWHERE, False, ("retention.ms", "1")))
    main.refused(api, version, altered(BROKER, "0", False, ("log.dirs", "/x")))
    main.refused(api, version, altered(BROKER, "9", False, ("log.retention.ms", "1")))
    main.refused(api, version, altered(99, "x", False))
    main.edge(api, version, altered(TOPIC, FLIGHTS, True, ("retention.ms", "7")))
    main.edge(api, version, altered(BROKER, "0", False, ("log.retention.ms", "86400000")))
    main.edge(api, version, altered(TOPIC, FLIGHTS, False))
    main.edge(api, version, {"resources": []})
    asked: Tree = {"resource_type": TOPIC, "resource_name": FLIGHTS, "configuration_keys": None}
    asked["configuration_keys"] = ["retention.ms"]
    main.ask("describe_configs", 4, {"resources": [asked]}, "what is set")


@script("incremental_alter_configs")
def incremental_alter_configs(stage: Stage, version: int) -> None:
    def tree(
        kind: int, name: str, *changes: tuple[str, int, str | None], only: bool = False
    ) -> Tree:
        given: list[Value] = [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ]
        one: Tree = {"resource_type": kind, "resource_name": name, "configs": given}
        return {"resources": [one], "validate_only": only}

    main, api = stage.main, "incremental_alter_configs"
    main.normal(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", SET, "9000")))
    main.normal(api, version, tree(BROKER, "", ("log.retention.ms", SET, "90000000")))
    main.normal(api, version, tree(GROUP, "g", ("consumer.session.timeout.ms", SET, "46000")))
    main.refused(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", SET, "x")))
    main.refused(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", APPEND, "1")))
    main.refused(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", 9, "1")))
    main.refused(api, version, tree(TOPIC, FLIGHTS, ("no.such", SET, "1")))
    main.refused(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", SET, None)))
    twice = (("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    main.refused(api, version, tree(TOPIC, FLIGHTS, *twice))
    main.refused(api, version, tree(TOPIC, NOWHERE, ("retention.ms", SET, "1")))
    main.refused(api, version, tree(GROUP, "g", ("no.such", SET, "1")))
    main.refused(api, version, tree(BROKER, "0", ("broker.id", SET, "1")))
    main.refused(api, version, tree(BROKER_LOGGER, "0", ("root", SET, "LOUD")))
    main.edge(api, version, tree(TOPIC, FLIGHTS, ("cleanup.policy", APPEND, "compact")))
    main.edge(api, version, tree(TOPIC, FLIGHTS, ("cleanup.policy", SUBTRACT, "compact")))
    main.edge(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", DELETE, None)))
    main.edge(api, version, tree(TOPIC, FLIGHTS, ("retention.ms", SET, "1"), only=True))
    main.edge(api, version, tree(BROKER_LOGGER, "0", ("root", SET, "DEBUG")))
    main.edge(api, version, tree(BROKER, "", ("log.retention.ms", DELETE, None)))
    main.edge(api, version, {"resources": []})


def _listed(stage: Stage) -> None:
    flights(stage)
    config: Tree = {"name": "consumer.session.timeout.ms", "config_operation": SET}
    resource: Tree = {"resource_type": GROUP, "resource_name": "g"}
    resource["configs"] = [{**config, "value": "46000"}]
    stage.main.quiet("incremental_alter_configs", 1, {"resources": [resource]})


@script("list_config_resources", _listed)
def list_config_resources(stage: Stage, version: int) -> None:
    main, api = stage.main, "list_config_resources"
    main.normal(api, version, {"resource_types": [TOPIC]})
    main.refused(api, version, {"resource_types": [99]})
    main.edge(api, version, {"resource_types": []})
    main.edge(api, version, {"resource_types": [GROUP, BROKER, BROKER_LOGGER, METRICS]})


def quota(*entities: tuple[str, str | None], only: bool = False, **values: float | None) -> Tree:
    """Return an AlterClientQuotas request about one entity; a value of None removes the quota."""
    entity: list[Value] = [{"entity_type": kind, "entity_name": name} for kind, name in entities]
    ops: list[Value] = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in values.items()
    ]
    return {"entries": [{"entity": entity, "ops": ops}], "validate_only": only}


@script("alter_client_quotas")
def alter_client_quotas(stage: Stage, version: int) -> None:
    main, api, alice = stage.main, "alter_client_quotas", ("user", "alice")
    main.normal(api, version, quota(alice, producer_byte_rate=1024.0, request_percentage=50.0))
    main.normal(api, version, quota(("user", None), ("client-id", "c"), consumer_byte_rate=10.0))
    main.refused(api, version, quota(alice, no_such=1.0))
    main.refused(api, version, quota(alice, producer_byte_rate=0.0))
    main.refused(api, version, quota(alice, producer_byte_rate=1.5))
    main.refused(api, version, quota(("planet", "x"), producer_byte_rate=1.0))
    main.refused(api, version, quota(producer_byte_rate=1.0))
    main.refused(api, version, quota(("ip", "no address"), connection_creation_rate=1.0))
    main.refused(api, version, quota(("ip", "1.2.3.4"), producer_byte_rate=1.0))
    main.edge(api, version, quota(("ip", "1.2.3.4"), connection_creation_rate=5.0))
    main.edge(api, version, quota(alice, only=True, controller_mutation_rate=2.0))
    main.edge(api, version, quota(alice, producer_byte_rate=None))
    main.edge(api, version, {"entries": []})
    main.ask("describe_client_quotas", 1, {"components": [], "strict": False}, "what is set")


def _quotas(stage: Stage) -> None:
    flights(stage)
    for tree in (
        quota(("user", "alice"), producer_byte_rate=1024.0),
        quota(("user", None), consumer_byte_rate=10.0),
        quota(("user", "alice"), ("client-id", "c"), request_percentage=12.5),
        quota(("ip", None), connection_creation_rate=9.0),
    ):
        stage.main.quiet("alter_client_quotas", 1, tree)


@script("describe_client_quotas", _quotas)
def describe_client_quotas(stage: Stage, version: int) -> None:
    def tree(*parts: tuple[str, int, str | None], strict: bool = False) -> Tree:
        components: list[Value] = [
            {"entity_type": kind, "match_type": match, "match": name} for kind, match, name in parts
        ]
        return {"components": components, "strict": strict}

    main, api = stage.main, "describe_client_quotas"
    main.normal(api, version, tree())
    main.normal(api, version, tree(("user", 0, "alice")))
    main.refused(api, version, tree(("planet", 0, "x")))
    main.refused(api, version, tree(("user", 7, "x")))
    main.refused(api, version, tree(("user", 0, "a"), ("user", 0, "b")))
    main.refused(api, version, tree(("user", 0, "a"), ("ip", 0, "1.2.3.4")))
    main.edge(api, version, tree(("user", 0, "alice"), strict=True))
    main.edge(api, version, tree(("user", 1, None)))
    main.edge(api, version, tree(("user", 2, None), ("client-id", 2, None)))
    main.edge(api, version, tree(("ip", 2, None)))
    main.edge(api, version, tree(("user", 0, None)))


def upsertion(
    name: str, mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = b"salt"
) -> Tree:
    """Return a request's change of a SCRAM user; the new password is `password`."""
    kind = "sha256" if mechanism == SHA_256 else "sha512"
    salted = hashlib.pbkdf2_hmac(kind, b"password", salt, max(iterations, 1))
    own: Tree = {"name": name, "mechanism": mechanism, "iterations": iterations}
    return {**own, "salt": salt, "salted_password": salted}


@script("alter_user_scram_credentials")
def alter_user_scram_credentials(stage: Stage, version: int) -> None:
    def tree(*upsertions: Value, deletions: Value = None) -> Tree:
        return {"deletions": deletions or [], "upsertions": list(upsertions)}

    main, api = stage.main, "alter_user_scram_credentials"
    main.normal(api, version, tree(upsertion("alice"), upsertion("bob", SHA_512)))
    main.refused(api, version, tree(upsertion("carol", iterations=10)))
    main.refused(api, version, tree(upsertion("bob", 9)))
    main.refused(api, version, tree(upsertion("")))
    main.refused(api, version, tree(upsertion("bob", iterations=20_000)))
    main.refused(api, version, tree(upsertion("bob"), upsertion("bob")))
    main.refused(api, version, tree(deletions=[{"name": "nobody", "mechanism": SHA_256}]))
    main.edge(api, version, tree(deletions=[{"name": "bob", "mechanism": SHA_512}]))
    main.edge(api, version, tree())
    main.ask("describe_user_scram_credentials", 0, {"users": None}, "who is there")


def _users(stage: Stage) -> None:
    flights(stage)
    tree: Tree = {"deletions": [], "upsertions": [upsertion("alice"), upsertion("bob", SHA_512)]}
    stage.main.quiet("alter_user_scram_credentials", 0, tree)


@script("describe_user_scram_credentials", _users)
def describe_user_scram_credentials(stage: Stage, version: int) -> None:
    main, api = stage.main, "describe_user_scram_credentials"
    main.normal(api, version, {"users": [{"name": "alice"}]})
    main.refused(api, version, {"users": [{"name": "nobody"}, {"name": ""}]})
    main.refused(api, version, {"users": [{"name": "alice"}, {"name": "alice"}]})
    main.edge(api, version, {"users": None})
    main.edge(api, version, {"users": []})
