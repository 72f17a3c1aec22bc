"""Topics, settings, log dirs and the cluster, through the admin interfaces of two clients."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import TopicPartition as KafkaPartition
from kafka.admin import KafkaAdminClient
from tests.worlds.waiting import PATIENCE_S

from tidelog.errors import TidelogError
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker
from tidelog.storage.directory import topic_registry
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.files import TOPICS_FILE

Answered: TypeAlias = topic_registry.CreatedTopic | TidelogError
TIMEOUT_S: Final = PATIENCE_S
TOPIC: Final = "flights"


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    """Admin client of librdkafka."""
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def java_like(broker: Broker) -> Iterator[KafkaAdminClient]:
    """kafka-python's admin client, which uses the newest versions."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def create(admin: AdminClient, *topics: NewTopic, trial: bool = False) -> list[str]:
    """Create topics; return the error names, empty for success."""
    futures = admin.create_topics(list(topics), validate_only=trial)
    return [error_of(future) for future in futures.values()]


def error_of(future: object) -> str:
    """Return the name of a future's error, empty if it succeeded."""
    try:
        future.result(timeout=TIMEOUT_S)  # type: ignore[attr-defined] # no types there
    except KafkaException as error:
        return str(error.args[0].name())
    return ""


def settings_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    """Return all settings of a topic or broker."""
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    found: dict[str, ConfigEntry] = future.result(timeout=TIMEOUT_S)
    return found


def alter(admin: AdminClient, *entries: ConfigEntry, trial: bool = False) -> str:
    """Change settings of the topic; return the error's name, empty for success."""
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=list(entries))
    (future,) = admin.incremental_alter_configs([resource], validate_only=trial).values()
    return error_of(future)


def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    """Return one change of a topic's setting."""
    return ConfigEntry(name, value, incremental_operation=operation)


class TestTopics:
    def test_a_topic_is_created_described_changed_and_deleted(
        self, admin: AdminClient, broker: Broker
    ) -> None:
        config = {"retention.ms": "7"}
        assert create(admin, NewTopic(TOPIC, 3, config=config), trial=True) == [""]
        assert admin.list_topics(timeout=TIMEOUT_S).topics == {}
        assert create(admin, NewTopic(TOPIC, 3, config=config)) == [""]
        assert create(admin, NewTopic(TOPIC, 3)) == ["TOPIC_ALREADY_EXISTS"]
        (grown,) = admin.create_partitions([NewPartitions(TOPIC, 5)]).values()
        assert error_of(grown) == ""
        (again,) = admin.create_partitions([NewPartitions(TOPIC, 5)]).values()
        assert error_of(again) == "INVALID_PARTITIONS"
        (described,) = admin.describe_topics(TopicCollection([TOPIC])).values()
        found = described.result(timeout=TIMEOUT_S)
        assert [part.id for part in found.partitions] == [0, 1, 2, 3, 4]
        assert str(found.topic_id) != ""
        assert broker.call(lambda node: node.log_dir.topic(TOPIC).config.retention_ms) == 7
        (gone,) = admin.delete_topics([TOPIC]).values()
        assert error_of(gone) == ""
        (gone,) = admin.delete_topics([TOPIC]).values()
        assert error_of(gone) == "UNKNOWN_TOPIC_OR_PART"
        assert create(admin, NewTopic(TOPIC, 1)) == [""]

    def test_many_topics_are_deleted_together_each_with_its_own_result(
        self, admin: AdminClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"t{number}" for number in range(60)]
        assert set(create(admin, *(NewTopic(name, 2) for name in names))) == {""}
        writes = list[str]()
        files = broker.call(lambda node: node.env.files)
        rename = files.rename

        def watched(source: str, target: str) -> None:
            writes.extend([target] if target.endswith(TOPICS_FILE) else [])
            rename(source, target)

        monkeypatch.setattr(files, "rename", watched)
        futures = admin.delete_topics([*names[:30], "none", *names[30:]])
        said = {name: error_of(future) for name, future in futures.items()}
        assert said == {**dict.fromkeys(names, ""), "none": "UNKNOWN_TOPIC_OR_PART"}
        assert len(writes) == 1
        assert admin.list_topics(timeout=TIMEOUT_S).topics == {}
        assert create(admin, NewTopic("t7", 1)) == [""]

    def test_invalid_topics_are_refused_one_by_one(self, admin: AdminClient) -> None:
        refused = create(
            admin,
            NewTopic("a b", 1),
            NewTopic("two", 1, replication_factor=2),
            NewTopic("nobody", 1, replica_assignment=[[7]]),
            NewTopic("unset", 1, config={"retention.msec": "1"}),
            NewTopic("fine", 2, replica_assignment=[[0], [0]]),
        )
        assert refused == [
            "TOPIC_EXCEPTION",
            "INVALID_REPLICATION_FACTOR",
            "INVALID_REPLICA_ASSIGNMENT",
            "INVALID_CONFIG",
            "",
        ]
        assert len(admin.list_topics(timeout=TIMEOUT_S).topics["fine"].partitions) == 2

    def test_topics_of_one_request_are_made_together(
        self, admin: AdminClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[list[str]] = []

        def watch(node: Node) -> None:
            admin = node.log_dir.topic_admin
            create, grow = admin.create, admin.grow

            def creating(new: Sequence[topic_registry.NewTopic]) -> list[Answered]:
                asked.append([each.name for each in new])
                return create(new)

            def growing(counts: Mapping[str, int]) -> list[TopicInfo | TidelogError]:
                asked.append(list(counts))
                return grow(counts)

            monkeypatch.setattr(admin, "create", creating)
            monkeypatch.setattr(admin, "grow", growing)

        broker.call(watch)
        refused = create(admin, NewTopic("a", 1), NewTopic("b c", 1), NewTopic("d", 2))
        assert refused == ["", "TOPIC_EXCEPTION", ""]
        grown = [NewPartitions("a", 3), NewPartitions("d", 2), NewPartitions("e", 2)]
        ends = [error_of(future) for future in admin.create_partitions(grown).values()]
        assert ends == ["", "INVALID_PARTITIONS", "UNKNOWN_TOPIC_OR_PART"]
        assert asked == [["a", "d"], ["a"]]
        found = admin.list_topics(timeout=TIMEOUT_S).topics
        assert {name: len(topic.partitions) for name, topic in found.items()} == {"a": 3, "d": 2}


class TestSettings:
    def test_changes_count_at_once(self, admin: AdminClient, broker: Broker) -> None:
        create(admin, NewTopic(TOPIC, 1))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0})
        producer.produce(TOPIC, bytes(100))
        assert producer.flush(TIMEOUT_S) == 0  # opens the partition
        small = entry("max.message.bytes", "150", AlterConfigOpType.SET)
        clock = entry("tidelog.retention.clock", "append", AlterConfigOpType.SET)
        assert alter(admin, small, clock, trial=True) == ""
        assert settings_of(admin, ResourceType.TOPIC, TOPIC)["max.message.bytes"].is_default
        assert alter(admin, small, clock) == ""
        found = settings_of(admin, ResourceType.TOPIC, TOPIC)
        shown = found["max.message.bytes"]
        assert shown.value == "150"
        assert ConfigSource(shown.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert list(shown.synonyms) == ["max.message.bytes", "message.max.bytes"]
        assert found["tidelog.retention.clock"].value == "append"
        refused: list[str] = []
        producer.produce(
            TOPIC, bytes(1000), on_delivery=lambda e, _: refused.append(str(e and e.name()))
        )
        producer.flush(TIMEOUT_S)
        assert refused == ["MSG_SIZE_TOO_LARGE"]
        assert alter(admin, entry("max.message.bytes", None, AlterConfigOpType.DELETE)) == ""
        producer.produce(TOPIC, bytes(1000))
        assert producer.flush(TIMEOUT_S) == 0

    def test_list_settings_are_extended_and_invalid_values_refused(
        self, admin: AdminClient
    ) -> None:
        create(admin, NewTopic(TOPIC, 1))
        policy = "cleanup.policy"
        assert alter(admin, entry(policy, "compact", AlterConfigOpType.APPEND)) == ""
        assert alter(admin, entry(policy, "delete", AlterConfigOpType.SUBTRACT)) == ""
        assert settings_of(admin, ResourceType.TOPIC, TOPIC)[policy].value == "compact"
        wrong = entry("retention.ms", "soon", AlterConfigOpType.SET)
        good = entry(policy, "delete", AlterConfigOpType.SET)
        assert alter(admin, good, wrong) == "INVALID_CONFIG"
        assert settings_of(admin, ResourceType.TOPIC, TOPIC)[policy].value == "compact"
        (unknown,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "nope")]).values()
        assert error_of(unknown) == "UNKNOWN_TOPIC_OR_PART"

    def test_brokers_are_shown_and_stay(self, admin: AdminClient) -> None:
        found = settings_of(admin, ResourceType.BROKER, "0")
        assert found["offsets.topic.num.partitions"].value == "3"
        assert found["log.retention.hours"].value == "168"
        assert found["num.partitions"].is_read_only
        change = [entry("num.partitions", "3", AlterConfigOpType.SET)]
        resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=change)
        (future,) = admin.incremental_alter_configs([resource]).values()
        assert error_of(future) == "INVALID_REQUEST"


def test_newest_versions_of_each(java_like: KafkaAdminClient, broker: Broker) -> None:
    made = java_like.create_topics({TOPIC: {"num_partitions": 2, "replication_factor": 1}})
    assert [topic["error_code"] for topic in made["topics"]] == [0]
    cluster = java_like.describe_cluster()
    assert cluster["controller_id"] == 0
    assert [f"{b['host']}:{b['port']}" for b in cluster["brokers"]] == [broker.bootstrap_servers]
    described = java_like.describe_topics([TOPIC])
    assert [len(topic["partitions"]) for topic in described] == [2]
    dirs = java_like.describe_log_dirs()
    assert broker.data in str(dirs)
    # The cluster is one broker with one directory, where the partition already is. So a request to
    # move the partition there changes nothing.
    place = KafkaPartition(TOPIC, 0)
    elected = java_like.elect_leaders(0, {TOPIC: [0, 1]}).replica_election_results
    assert [(part[0], part[1]) for part in elected[0][1]] == [(0, 84), (1, 84)]
    assert java_like.alter_partition_reassignments({place: [0]}) == {place: None}
    assert java_like.list_partition_reassignments() == {}
    assert TOPIC in java_like.list_topics()
    java_like.delete_topics([TOPIC])
    assert TOPIC not in java_like.list_topics()
