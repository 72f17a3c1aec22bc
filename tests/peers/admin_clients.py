"""Results of admin clients, for the steps of admin_table that each client supports.

A result is the broker's error code, 0 for success. If a client hides the code, the result is the
text or state that the client shows instead.
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from aiokafka import TopicPartition as AioPlace
from aiokafka import admin as aio
from aiokafka import errors as aio_errors
from aiokafka.admin.config_resource import (
    ConfigResource as AioResource,
)
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramMechanism, UserScramCredentialDeletion
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaAdminClient, admin
from kafka import TopicPartition as PyPlace
from kafka import errors as py_errors
from kafka.structs import TopicPartitionReplica
from tests.peers.admin_table import (
    BROKER_ID,
    BROKER_KEY,
    NO_FOLDER,
    NOWHERE,
    SEEN,
    SOMEONE,
    Step,
)
from tests.worlds.clients.rights_drivers import key_of
from tests.worlds.clients.rights_process_drivers import java_config
from tests.worlds.clients.rights_talk import GROUP, MADE
from tests.worlds.clients.secured import TIMEOUT_S
from tests.worlds.kafka.oracle import Oracle

if TYPE_CHECKING:
    from concurrent.futures import Future

Shown: TypeAlias = int | str
Told: TypeAlias = dict[Step, Shown]

CHANGE: Final = {"retention.ms": "1000000"}
BROKER_CHANGE: Final = {BROKER_KEY: "15001"}
LATER: Final = "User:later"


# -- confluent-kafka -----------------------------------------------------------------------------


def by_confluent(bootstrap: str, user: str) -> Told:
    """Run librdkafka's admin client through confluent-kafka."""
    client = AdminClient(key_of(user).librdkafka(bootstrap))
    told: Told = {step: _code_of(call, client) for step, call in CONFLUENT.items()}
    # If the user must not describe ACLs, this client shows no ACLs and no error.
    anything = AclBindingFilter(*_ANY)  # type: ignore[arg-type]  # no names: all of them
    rules = client.describe_acls(anything).result(TIMEOUT_S)
    return told | {Step.RULES: "rules" if rules else "no rules"}


def _code_of(call: Callable[[AdminClient], object], client: AdminClient) -> int:
    try:
        (future,) = cast("Mapping[object, Future[object]]", call(client)).values()
        found = future.result(TIMEOUT_S)
    except KafkaException as refused:
        return _number(refused)
    # An election returns a dict: for each partition an error, or None.
    failed = [each for each in found.values() if each] if isinstance(found, dict) else []
    return next((_number(each) for each in failed if isinstance(each, KafkaException)), 0)


def _number(refused: KafkaException) -> int:
    return cast("KafkaError", refused.args[0]).code()


def _set_by_confluent(kind: ResourceType, name: str, values: Mapping[str, str]) -> ConfigResource:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    return ConfigResource(kind, name, incremental_configs=entries)


def _set_all_by_confluent(client: AdminClient) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return client.alter_configs([ConfigResource(ResourceType.TOPIC, MADE, set_config=CHANGE)])


_RULE: Final = (
    ResourceType.TOPIC,
    "later",
    ResourcePatternType.LITERAL,
    LATER,
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
_ANY: Final[tuple[object, ...]] = (
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)
_OF_BROKER: Final = ConfigResource(ResourceType.BROKER, str(BROKER_ID))
_SCRAM: Final = ScramMechanism.SCRAM_SHA_256
# The step that describes users' keys is left out: if it is denied, librdkafka 2.16.1 frees memory
# that it has not allocated and crashes the process, with any broker.
CONFLUENT: Final[Mapping[Step, Callable[[AdminClient], object]]] = {
    Step.GROW: lambda client: client.create_partitions([NewPartitions(MADE, 2)]),
    Step.SET: lambda client: client.incremental_alter_configs(
        [_set_by_confluent(ResourceType.TOPIC, MADE, CHANGE)]
    ),
    Step.SET_ALL: _set_all_by_confluent,
    Step.DELETE: lambda client: client.delete_topics([MADE]),
    Step.CREATE: lambda client: client.create_topics([NewTopic(MADE, 1, 1)]),
    Step.LOOK: lambda client: client.describe_configs([ConfigResource(ResourceType.TOPIC, SEEN)]),
    Step.TRIM: lambda client: client.delete_records([TopicPartition(SEEN, 0, 0)]),
    Step.FORGET: lambda client: client.delete_consumer_groups([GROUP]),
    Step.ADD_RULE: lambda client: client.create_acls([AclBinding(*_RULE)]),
    Step.DROP_RULE: lambda client: client.delete_acls([AclBindingFilter(*_RULE)]),
    Step.CHANGE_USERS: lambda client: client.alter_user_scram_credentials(
        [UserScramCredentialDeletion(SOMEONE, _SCRAM)]
    ),
    Step.ELECT: lambda client: {
        0: client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(SEEN, 0)])
    },
    Step.LOOK_AT_BROKER: lambda client: client.describe_configs([_OF_BROKER]),
    Step.SET_BROKER: lambda client: client.incremental_alter_configs(
        [_set_by_confluent(ResourceType.BROKER, str(BROKER_ID), BROKER_CHANGE)],
        validate_only=True,
    ),
}


# -- kafka-python --------------------------------------------------------------------------------


def by_kafka_python(bootstrap: str, user: str) -> Told:
    """Run kafka-python's admin client."""
    client = KafkaAdminClient(**key_of(user).kafka_python(bootstrap))
    try:
        return {step: _shown_by(call, client) for step, call in KAFKA_PYTHON.items()}
    finally:
        client.close()


def _shown_by(call: Callable[[KafkaAdminClient], object], client: KafkaAdminClient) -> Shown:
    """Return a result's error code, 0 for the result None, or else the result as text."""
    try:
        found = call(client)
    except py_errors.KafkaError as refused:
        return cast("int", refused.errno)
    if found is None:
        return 0
    code = getattr(found, "errno", None)  # some results are classes of errors with an errno
    return str(found) if code is None else cast("int", code)


def _setting(
    kind: admin.ConfigResourceType, name: str, values: Mapping[str, str] | None = None
) -> list[admin.ConfigResource]:
    return [admin.ConfigResource(kind, name, None if values is None else dict(values))]


def _set(client: KafkaAdminClient, *, incremental: bool) -> str:
    """Change a topic's setting; return the client's text about the result."""
    told = client.alter_configs(
        _setting(admin.ConfigResourceType.TOPIC, MADE, CHANGE),
        raise_on_unknown=False,
        incremental=incremental,
    )
    return cast("str", told["topic"][MADE])


def _set_broker(client: KafkaAdminClient) -> str:
    told = client.alter_configs(
        _setting(admin.ConfigResourceType.BROKER, str(BROKER_ID), BROKER_CHANGE),
        validate_only=True,
        raise_on_unknown=False,
    )
    return cast("str", told["broker"][str(BROKER_ID)])


def _has_settings(client: KafkaAdminClient, kind: admin.ConfigResourceType, name: str) -> str:
    """Return "settings" or "no settings": a denial raises no error, but hides all settings."""
    found = client.describe_configs(_setting(kind, name), config_filter="all")
    return "settings" if found[kind.name.lower()][name] else "no settings"


def _folders(client: KafkaAdminClient) -> str:
    """Return "folders" or "no folders": a denial raises no error, but hides all folders."""
    (found,) = client.describe_log_dirs({SEEN: [0]})
    return "folders" if found["log_dirs"] else "no folders"


def _done(_: object) -> None:
    """Ignore the result: the client reports a failure only by an exception."""


def _rule_by_kafka_python() -> admin.ACL:
    return admin.ACL(
        principal=LATER,
        host="*",
        operation=admin.ACLOperation.READ,
        permission_type=admin.ACLPermissionType.ALLOW,
        resource_pattern=admin.ResourcePattern(admin.ResourceType.TOPIC, "later"),
    )


def _all_rules() -> admin.ACLFilter:
    pattern = admin.ResourcePatternFilter(
        admin.ResourceType.ANY, None, admin.ACLResourcePatternType.ANY
    )
    return admin.ACLFilter(None, None, admin.ACLOperation.ANY, admin.ACLPermissionType.ANY, pattern)


def _user_of(client: KafkaAdminClient) -> str:
    (found,) = client.describe_user_scram_credentials([SOMEONE]).values()
    return "unknown" if found["error"] else "known"


def _forget_user(client: KafkaAdminClient) -> str:
    """Delete a user; return the result in one word, because the brokers' texts differ."""
    said = client.alter_user_scram_credentials([_GONE])[SOMEONE]
    return "unknown" if said == _UNKNOWN_USER else "refused"


_UNKNOWN_USER: Final = "Attempt to delete a user credential that does not exist"
_PLACE: Final = PyPlace(SEEN, 0)
_REPLICA: Final = TopicPartitionReplica(SEEN, 0, BROKER_ID)
_GONE: Final = admin.UserScramCredentialDeletion(SOMEONE, admin.ScramMechanism.SCRAM_SHA_256)
KAFKA_PYTHON: Final[Mapping[Step, Callable[[KafkaAdminClient], object]]] = {
    Step.GROW: lambda client: _done(client.create_partitions({MADE: 2})),
    Step.SET: lambda client: _set(client, incremental=True),
    Step.SET_ALL: lambda client: _set(client, incremental=False),
    Step.DELETE: lambda client: _done(client.delete_topics([MADE])),
    Step.CREATE: lambda client: _done(
        client.create_topics({MADE: {"num_partitions": 1, "replication_factor": 1}})
    ),
    Step.LOOK: lambda client: _has_settings(client, admin.ConfigResourceType.TOPIC, SEEN),
    Step.TRIM: lambda client: _done(client.delete_records({_PLACE: 0})),
    Step.PRODUCERS: lambda client: _done(client.describe_producers([_PLACE])),
    Step.FORGET_OFFSETS: lambda client: client.delete_group_offsets(GROUP, [_PLACE])[_PLACE],
    Step.FORGET: lambda client: client.delete_groups([GROUP])[GROUP],
    Step.RULES: lambda client: client.describe_acls(_all_rules())[1],
    Step.ADD_RULE: lambda client: next(
        iter(client.create_acls([_rule_by_kafka_python()])["failed"]), None
    ),
    Step.DROP_RULE: lambda client: client.delete_acls([_rule_by_kafka_python()])[0][2],
    Step.USERS: _user_of,
    Step.CHANGE_USERS: _forget_user,
    Step.ELECT: lambda client: _done(client.elect_leaders(0, {SEEN: [0]})),
    Step.LOOK_AT_BROKER: lambda client: _has_settings(
        client, admin.ConfigResourceType.BROKER, str(BROKER_ID)
    ),
    Step.SET_BROKER: _set_broker,
    Step.DIRS: _folders,
    Step.MOVE: lambda client: client.alter_replica_log_dirs({_REPLICA: NO_FOLDER})[_REPLICA],
    Step.REASSIGN: lambda client: client.alter_partition_reassignments(
        {PyPlace(NOWHERE, 0): [BROKER_ID]}
    )[PyPlace(NOWHERE, 0)],
    Step.ONGOING: lambda client: _done(client.list_partition_reassignments()),
    Step.RESOURCES: lambda client: _done(client.list_config_resources(["BROKER"])),
    Step.QUORUM: lambda client: _done(client.describe_metadata_quorum()),
}


# -- aiokafka ------------------------------------------------------------------------------------


def by_aiokafka(bootstrap: str, user: str) -> Told:
    """Run aiokafka's admin client, which supports few of the steps."""
    return asyncio.run(_by_aiokafka(bootstrap, user))


async def _by_aiokafka(bootstrap: str, user: str) -> Told:
    client = aio.AIOKafkaAdminClient(**key_of(user).aiokafka(bootstrap))
    await client.start()
    try:
        return {step: await _heard(call(client)) for step, call in AIOKAFKA.items()}
    finally:
        await client.close()


async def _heard(call: Awaitable[object]) -> int:
    try:
        found = await asyncio.wait_for(call, TIMEOUT_S)
    except aio_errors.KafkaError as refused:
        return cast("int", refused.errno)
    return next(iter(_codes(found)), 0)


def _codes(found: object) -> list[int]:
    """Return the error codes in the client's response, or in each response of a list."""
    if isinstance(found, list):
        return [code for each in found for code in _codes(each)]
    rows = [
        row
        for name in ("topic_errors", "topic_error_codes", "resources")
        for row in getattr(found, name, ())
    ]
    # The error code is the first integer in a row: a row about a topic begins with the topic's
    # name, other rows with the code.
    return [next(each for each in row if isinstance(each, int)) for row in rows]


AIOKAFKA: Final[Mapping[Step, Callable[[aio.AIOKafkaAdminClient], Awaitable[object]]]] = {
    Step.GROW: lambda client: client.create_partitions({MADE: aio.NewPartitions(2)}),
    Step.SET_ALL: lambda client: client.alter_configs([AioResource("topic", MADE, CHANGE)]),
    Step.DELETE: lambda client: client.delete_topics([MADE]),
    Step.CREATE: lambda client: client.create_topics([aio.NewTopic(MADE, 1, 1)]),
    Step.LOOK: lambda client: client.describe_configs([AioResource("topic", SEEN)]),
    Step.TRIM: lambda client: client.delete_records(
        {AioPlace(SEEN, 0): aio.RecordsToDelete(before_offset=0)}
    ),
    Step.LOOK_AT_BROKER: lambda client: client.describe_configs(
        [AioResource("broker", str(BROKER_ID))]
    ),
}


# -- Java ----------------------------------------------------------------------------------------


def by_java(oracle: Oracle, bootstrap: str, user: str) -> Told:
    """Run Kafka's own client, in the oracle's JVM."""
    told = oracle.ask(
        "administer",
        config=java_config(bootstrap, user),
        made=MADE,
        seen=SEEN,
        group=GROUP,
        someone=SOMEONE,
        nowhere=NOWHERE,
        broker=BROKER_ID,
        broker_key=BROKER_KEY,
        no_folder=NO_FOLDER,
    )
    return {Step(name): code for name, code in cast("dict[str, int]", told).items()}
