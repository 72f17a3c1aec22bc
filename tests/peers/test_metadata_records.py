"""Users, ACLs and quotas stored by Kafka's controller and by us: the same records, byte for byte.

The same requests are sent to a real Kafka and to our broker. Afterwards the records in Kafka's own
`__cluster_metadata-0` and in our `tidelog-metadata.log` are the same, apart from the random ids of
ACLs. Then Kafka's broker starts on a copy of our directory, which includes the log.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.clients.rights_talk import AclFields, allow, creation, deny
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

import tidelog
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.protocol.messages import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    METADATA,
    PRODUCE,
)
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaOperation,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.storage.directory.broker_files import METADATA_FILE
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

METADATA_TOPIC: Final = "__cluster_metadata"
WAIT_MS: Final = 90_000
KEYS: Final = {11, 14, 18, 19, 22}
ACLS: Final = {18, 19}
# A record's value begins with three bytes: frame version, key and version. In a record of an ACL,
# the ACL's id follows these bytes.
ID_AT, ID_END = 3, 19
SECURED: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}


def upsertion(name: str, mechanism: int, iterations: int) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=f"salt of {name}".encode(),
        salted_password=bytes(range(32 * mechanism)),
    )


def alteration(values: dict[str, float | None], **parts: str | None) -> QuotaAlteration:
    entity = [
        QuotaEntity(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in sorted(parts.items())
    ]
    ops = [
        QuotaOperation(key=key, value=value or 0.0, remove=value is None)
        for key, value in sorted(values.items())
    ]
    return QuotaAlteration(entity=entity, ops=ops)


def change_users(client: RawClient) -> None:
    """Create two users; replace the mechanism of one user, and change the other's iterations.

    Each request sets credentials of only one user, because Kafka processes the users of one request
    in the order of a hash table.
    """
    asked = [
        ([], [upsertion("ada", 1, 4096)]),
        ([], [upsertion("bob ü", 2, 8192)]),
        ([], [upsertion("ada", 2, 5000)]),
        ([ScramCredentialDeletion(name="ada", mechanism=1)], [upsertion("bob ü", 2, 4097)]),
    ]
    for gone, new in asked:
        request = AlterUserScramCredentialsRequest(deletions=gone, upsertions=new)
        told = client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        assert [found.error_code for found in told.results] == [0] * len(told.results)


def change_acls(client: RawClient) -> None:
    acls: list[AclFields] = [allow("READ"), deny("WRITE")]
    for acl in acls:
        request = CreateAclsRequest(creations=[creation("ada", acl)])
        told = client.ask(CREATE_ACLS, 3, request)
        assert [found.error_code for found in told.results] == [0]
    every = DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=3,
        permission_type=1,
    )
    deleted = client.ask(DELETE_ACLS, 3, DeleteAclsRequest(filters=[every]))
    assert len(deleted.filter_results[0].matching_acls) == 1


def change_quotas(client: RawClient) -> None:
    for asked in (
        alteration({"producer_byte_rate": 1e6, "request_percentage": 12.5}, client_id="app"),
        alteration({"consumer_byte_rate": 5e5}, client_id=None, user="ada"),
        alteration({"producer_byte_rate": 7.0}, user=None),
        alteration({"producer_byte_rate": None}, client_id="app"),
    ):
        request = AlterClientQuotasRequest(entries=[asked])
        told = client.ask(ALTER_CLIENT_QUOTAS, 1, request)
        assert [found.error_code for found in told.entries] == [0]


@dataclass(frozen=True)
class Kept:
    """Records of a broker's metadata log, in order, and responses about the topic of this log."""

    records: list[bytes]
    answers: list[object]


def values_of(*paths: Path) -> list[bytes]:
    """Return the values of all records of users, ACLs and quotas."""
    found = []
    for path in paths:
        for batch in walk(path.read_bytes()):
            if not batch.is_control:
                found += [record.value for record in batch.records() if record.value is not None]
    assert all(value[0] == 1 for value in found), "another frame"
    return [value for value in found if value[1] in KEYS]


def answers_about_the_topic(client: RawClient) -> list[object]:
    """Return the responses to requests that read or change the controller's own topic."""
    wanted = [MetadataRequestTopic(name=METADATA_TOPIC)]
    asked = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
    seen = client.ask(METADATA, 9, asked).topics
    everything = client.ask(METADATA, 9, MetadataRequest(topics=None)).topics
    new = CreatableTopic(name=METADATA_TOPIC, num_partitions=1, replication_factor=1)
    made = client.ask(
        CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new], timeout_ms=WAIT_MS)
    ).topics
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=METADATA_TOPIC, count=5, assignments=None)],
        timeout_ms=WAIT_MS,
    )
    grown = client.ask(CREATE_PARTITIONS, 3, more).results
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=METADATA_TOPIC)], timeout_ms=WAIT_MS)
    deleted = client.ask(DELETE_TOPICS, 6, gone).responses
    batch = bytes(build_batch([NewRecord(value=b"v")]))
    taken = client.ask(PRODUCE, 9, produce_request(METADATA_TOPIC, batch)).responses
    return [
        [(topic.name, topic.error_code, topic.is_internal) for topic in seen],
        METADATA_TOPIC in {topic.name for topic in everything},
        [(topic.name, topic.error_code, topic.error_message) for topic in made],
        [(topic.name, topic.error_code) for topic in grown],
        [(topic.name, topic.error_code) for topic in deleted],
        [part.error_code for topic in taken for part in topic.partition_responses],
    ]


def ask_all(bootstrap: str) -> list[object]:
    with RawClient(bootstrap) as client:
        change_users(client)
        change_acls(client)
        change_quotas(client)
        return answers_about_the_topic(client)


@pytest.fixture(scope="module")
def kafka(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Kept:
    folder = tmp_path_factory.mktemp("controller") / "broker"
    broker = Broker(kafka_jars, kafka_oracle, folder, settings=SECURED)
    try:
        broker.start()
        answers = ask_all(broker.bootstrap)
        broker.stop()
    finally:
        broker.kill()
    segments = sorted((folder / "metadata" / f"{METADATA_TOPIC}-0").glob("*.log"))
    return Kept(values_of(*segments), answers)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ours") / "data"


@pytest.fixture(scope="module")
def ours(data: Path) -> Kept:
    with tidelog.broker(str(data), settings=SECURED) as broker:
        answers = ask_all(broker.bootstrap_servers)
    return Kept(values_of(data / METADATA_FILE), answers)


def without_ids(values: list[bytes]) -> list[bytes]:
    """Return records with ACL ids replaced by numbers in the order of creation."""
    known: dict[bytes, bytes] = {}
    found = []
    for value in values:
        if value[1] not in ACLS:
            found.append(value)
            continue
        number = known.setdefault(value[ID_AT:ID_END], len(known).to_bytes(16, "big"))
        found.append(value[:ID_AT] + number + value[ID_END:])
    return found


@pytest.mark.parametrize("keys", [{11, 22}, ACLS, {14}], ids=["users", "acls", "quotas"])
def test_records_are_kafkas_byte_for_byte(kafka: Kept, ours: Kept, keys: set[int]) -> None:
    expected = [value for value in without_ids(kafka.records) if value[1] in keys]
    assert [value for value in without_ids(ours.records) if value[1] in keys] == expected
    assert len(expected) >= 3


def test_the_controllers_topic_is_none_that_clients_can_ask_for(kafka: Kept, ours: Kept) -> None:
    assert ours.answers == kafka.answers


def test_kafka_starts_on_a_directory_that_has_our_log(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, ours: Kept, data: Path, tmp_path: Path
) -> None:
    """Kafka leaves our log's file unchanged, and serves the topics and records that we wrote."""
    assert ours.records
    broker = Broker(kafka_jars, kafka_oracle, tmp_path / "broker")
    kept = (data / METADATA_FILE).read_bytes()
    try:
        broker.start()
        broker.create_topic("flights")
        broker.stop()
        shutil.copyfile(data / METADATA_FILE, broker.log_dir / METADATA_FILE)
        with LogDir.open(str(broker.log_dir), options=LogDirOptions(writable=True)) as directory:
            assert set(directory.topics()) == {"flights"}
            directory.log("flights", 0).append([NewRecord(value=b"ours")])
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert client.list_offsets("flights", -1)[0].offset == 1
        broker.stop()
    finally:
        broker.kill()
    assert (broker.log_dir / METADATA_FILE).read_bytes() == kept
