"""A broker in this process: clients find it, its directory is locked, and it can be closed."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.env import Env, ManualClock
from tidelog.errors import Closed, ConfigError, DirectoryLocked, InvalidRequest
from tidelog.protocol.messages import METADATA
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.server.embedded import Broker
from tidelog.types import INTERNAL_TOPICS, NewRecord


def test_client_sees_broker_and_creates_a_topic_by_asking(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    asked = admin.list_topics("flights", timeout=PATIENCE_S)
    every = admin.list_topics(timeout=PATIENCE_S)
    found = [(b.id, f"{b.host}:{b.port}") for b in asked.brokers.values()]
    assert found == [(0, broker.bootstrap_servers)]
    assert list(every.topics) == ["flights"]
    assert every.cluster_id == broker.call(lambda node: node.cluster_id)


def test_an_auto_created_topic_is_in_the_second_response(broker: Broker) -> None:
    """As in Kafka, the first response has the error UNKNOWN_TOPIC_OR_PARTITION, not the topic."""
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name="flights")], allow_auto_topic_creation=True
    )
    with RawClient(broker.bootstrap_servers) as client:
        (first,) = client.ask(METADATA, 9, message).topics
        (second,) = client.ask(METADATA, 9, message).topics
    assert (first.error_code, first.name, first.partitions) == (3, "flights", [])
    assert (second.error_code, len(second.partitions)) == (0, 1)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_an_internal_topic_is_created_on_request_with_its_own_settings(
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


def test_run_due_closes_connections_that_are_idle_by_a_moved_clock() -> None:
    clock = ManualClock(1_700_000_000_000)
    settings = {"connections.max.idle.ms": 60_000}
    asked = MetadataRequest(topics=[])
    running = tidelog.broker(settings=settings, env=Env(clock=clock))
    with running, RawClient(running.bootstrap_servers) as client:
        client.ask(METADATA, 9, asked)
        clock.advance(59_999)
        running.run_due()
        client.ask(METADATA, 9, asked)
        clock.advance(60_001)
        assert running.run_due() >= 1
        with pytest.raises(ConnectionError):
            client.receive()
    with pytest.raises(Closed, match="the broker is closed"):
        running.run_due()


def test_several_run_in_one_process() -> None:
    with tidelog.broker() as one, tidelog.broker() as other:
        assert one.bootstrap_servers != other.bootstrap_servers
        assert one.data != other.data


def test_directory_has_one_broker(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)), pytest.raises(DirectoryLocked, match="this process"):
        tidelog.broker(str(tmp_path))


def test_a_temporary_directory_is_removed_with_the_broker() -> None:
    with tidelog.broker() as running:
        place = Path(running.data)
        assert place.is_dir()
    assert not place.exists()
    with pytest.raises(Closed):
        running.call(lambda node: node.node_id)


def test_clean_stop_leaves_its_mark(tmp_path: Path) -> None:
    with tidelog.broker(str(tmp_path)) as running:
        running.call(lambda node: node.log_dir.create_topic("flights"))
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with tidelog.open(str(tmp_path)) as log:
        assert list(log.topics()) == ["flights"]


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions\?"):
        tidelog.broker(settings={"num.partition": "3"})


def test_a_directory_of_the_settings_is_used_and_stays(tmp_path: Path) -> None:
    named = tmp_path / "named"
    with tidelog.broker(settings={"log.dirs": str(named)}) as running:
        assert running.data == str(named)
    assert (named / ".kafka_cleanshutdown").exists()
    with tidelog.broker(str(tmp_path / "given"), settings={"log.dirs": str(named)}) as running:
        assert running.data == str(tmp_path / "given")
    with pytest.raises(ConfigError, match="has several directories"):
        tidelog.broker(settings={"log.dirs": f"{named},{named}2"})


def test_a_listener_of_the_settings_has_their_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        place = "{}:{}".format(*taken.getsockname())
    with tidelog.broker(settings={"listeners": f"PLAINTEXT://{place}"}) as running:
        assert running.bootstrap_servers == place
        with RawClient(place) as client:
            (told,) = client.ask(METADATA, 9, MetadataRequest(topics=[])).brokers
        assert f"{told.host}:{told.port}" == place
    with tidelog.broker(port=0, settings={"listeners": f"PLAINTEXT://{place}"}) as running:
        assert running.bootstrap_servers.startswith("127.0.0.1:")


def test_a_wildcard_listener_advertises_the_machines_name() -> None:
    settings = {"listeners": "PLAINTEXT://0.0.0.0:0"}
    with tidelog.broker(settings=settings, insecure=True) as running:
        assert running.bootstrap_servers == f"127.0.0.1:{running.ports['PLAINTEXT']}"
        with RawClient(running.bootstrap_servers) as client:
            (told,) = client.ask(METADATA, 9, MetadataRequest(topics=[])).brokers
    assert told.host == socket.getfqdn()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_shows_ipv6_addresses_of_members_as_kafka_does(protocol: str) -> None:
    settings = {**SETTINGS, "listeners": "PLAINTEXT://[::1]:0"}
    with tidelog.broker(settings=settings) as running:
        running.call(lambda node: node.log_dir.create_topic("flights"))
        address = running.bootstrap_servers
        options = {"bootstrap.servers": address, "group.id": "g", "group.protocol": protocol}
        with closing(Consumer(options)) as consumer:
            consumer.subscribe(["flights"])
            admin, hosts = AdminClient({"bootstrap.servers": address}), list[str]()
            for _ in range(int(PATIENCE_S * 10)):
                consumer.poll(0.1)
                described = admin.describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
                if hosts := [member.host for member in described.members]:
                    break
            assert hosts == ["/0:0:0:0:0:0:0:1"]


def test_all_addresses_of_ipv6_are_not_those_of_ipv4() -> None:
    settings = {"listeners": "PLAINTEXT://[::]:0"}
    with tidelog.broker(settings=settings, insecure=True) as running:
        port = running.ports["PLAINTEXT"]
        assert running.bootstrap_servers == f"[::1]:{port}"
        with socket.create_connection(("::1", port), timeout=PATIENCE_S):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


TWO = "A://[::1]:0,B://127.0.0.1:0"


def test_bootstrap_servers_is_the_first_of_several_listeners() -> None:
    settings = {"listeners": TWO, "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
    with tidelog.broker(settings=settings) as running:
        assert running.bootstrap_servers == f"[::1]:{running.ports['A']}"
    with pytest.raises(ConfigError, match="has 2 listeners"):
        tidelog.broker(port=0, settings=settings)


@pytest.mark.parametrize("name", ["listeners", "tidelog.metrics.listen"])
def test_listening_for_other_machines_needs_insecure(name: str) -> None:
    place = "PLAINTEXT://0.0.0.0:0" if name == "listeners" else "0.0.0.0:0"
    with pytest.raises(ConfigError, match=f"^{name}=.*pass insecure=True"):
        tidelog.broker(settings={name: place})
    with tidelog.broker(settings={name: place}, insecure=True):
        pass


@pytest.mark.parametrize("port", [99_999, -1, "x", 1.5, True])
def test_an_impossible_port_is_refused(port: int) -> None:
    refused = rf"^port(=| is ){port!r}[: ].*whole number"
    with pytest.raises((ConfigError, InvalidRequest), match=refused):
        tidelog.broker(port=port)


def test_settings_may_be_numbers_and_flags() -> None:
    given = {"num.partitions": 3, "auto.create.topics.enable": False}
    with tidelog.broker(settings=given) as running:
        config = running.call(lambda node: node.config)
    assert (config.num_partitions, config.auto_create_topics_enable) == (3, False)
    with pytest.raises(ConfigError, match=r"^num\.partitions: must be a text, a number"):
        tidelog.broker(settings={"num.partitions": None})


def test_the_address_of_metrics_is_known() -> None:
    with tidelog.broker(settings={"tidelog.metrics.listen": "127.0.0.1:0"}) as running:
        address = running.metrics_address
        assert address is not None
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S):
            pass
    with tidelog.broker() as running:
        assert running.metrics_address is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_another_program_left_without_an_id_is_read(
    tmp_path: Path, protocol: str
) -> None:
    """The broker creates a missing topic id. Kafka before 2.8 writes none; backups may lack it."""
    with tidelog.open(tmp_path / "source", writable=True) as source:
        source.create_topic("t")
        source.append("t", [NewRecord(value=b"%d" % number) for number in range(10)])
    data = tmp_path / "data"
    (data / "t-0").mkdir(parents=True)
    for log in (tmp_path / "source" / "t-0").glob("*.log"):
        (data / "t-0" / log.name).write_bytes(log.read_bytes())
    with tidelog.broker(str(data), settings=SETTINGS) as broker:
        given = broker.call(lambda node: node.topics.all()["t"].topic_id)
        with tidelog.connect(broker.bootstrap_servers) as cluster:
            assert [record.offset for _, record in cluster.records("t")] == list(range(10))
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "readers",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        came = [message.value() for message in consumer.consume(10, timeout=PATIENCE_S)]
        consumer.close()
        assert came == [b"%d" % number for number in range(10)]
    with tidelog.broker(str(data), settings=SETTINGS) as broker:
        assert broker.call(lambda node: node.topics.all()["t"].topic_id) == given is not None
