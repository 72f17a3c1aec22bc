"""A broker in this process: clients find it, two don't get one directory, a closed one is gone."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.server.raw import RawClient
from tests.waiting import PATIENCE_S

import tidelog
from tidelog.errors import Closed, ConfigError, DirectoryLocked
from tidelog.protocol.messages import METADATA
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.server.in_process import Broker
from tidelog.server.topics import INTERNAL_TOPICS


def test_client_sees_broker_and_creates_a_topic_by_asking(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    asked = admin.list_topics("flights", timeout=PATIENCE_S)
    every = admin.list_topics(timeout=PATIENCE_S)
    found = [(b.id, f"{b.host}:{b.port}") for b in asked.brokers.values()]
    assert found == [(0, broker.bootstrap_servers)]
    assert list(every.topics) == ["flights"]
    assert every.cluster_id == broker.call(lambda node: node.cluster_id)


def test_a_topic_that_is_created_by_asking_is_told_to_who_asks_again(broker: Broker) -> None:
    """As Kafka: a client that has deleted a topic and looks whether it is gone finds it gone."""
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name="flights")], allow_auto_topic_creation=True
    )
    with RawClient(broker.bootstrap_servers) as client:
        (first,) = client.ask(METADATA, 9, message).topics
        (second,) = client.ask(METADATA, 9, message).topics
    assert (first.error_code, first.name, first.partitions) == (3, "flights", [])
    assert (second.error_code, len(second.partitions)) == (0, 1)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_a_topic_of_the_broker_s_own_is_created_by_asking_as_its_keeper_makes_it(
    broker: Broker, name: str
) -> None:
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
    )
    with RawClient(broker.bootstrap_servers) as client:
        (first,) = client.ask(METADATA, 9, message).topics
        (second,) = client.ask(METADATA, 9, message).topics
    assert (first.error_code, first.is_internal, first.partitions) == (3, True, [])
    assert (second.error_code, second.is_internal) == (0, True)
    info = broker.call(lambda node: node.topics.find(name))
    assert info is not None
    assert "segment.bytes" in info.given
    assert "min.insync.replicas" not in info.given


def test_several_run_in_one_process() -> None:
    with tidelog.broker() as one, tidelog.broker() as other:
        assert one.bootstrap_servers != other.bootstrap_servers
        assert one.data != other.data


def test_directory_has_one_broker(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)), pytest.raises(DirectoryLocked, match="another process"):
        tidelog.broker(str(tmp_path))


def test_temporary_directory_goes_with_the_broker() -> None:
    with tidelog.broker() as running:
        place = Path(running.data)
        assert place.is_dir()
    assert not place.exists()
    with pytest.raises(Closed):
        running.call(lambda node: node.node_id)


def test_clean_stop_leaves_its_mark(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)) as running:
        running.call(lambda node: node.topics.create("flights"))
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with tidelog.open(str(tmp_path)) as log:
        assert list(log.topics()) == ["flights"]


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions\?"):
        tidelog.broker(settings={"num.partition": "3"})
