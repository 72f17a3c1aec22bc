"""The table of rights through five clients, with our broker and, in the sweep, with Kafka."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.server.rights.filling import create_everything, kafkas_settings, our_settings
from tests.worlds.clients.rights_drivers import AioKafka, Confluent, Driver, KafkaPython
from tests.worlds.clients.rights_model import EVERYBODY, ModelAcl
from tests.worlds.clients.rights_process_drivers import Java, Kcat
from tests.worlds.clients.rights_table import CHIEF, ELSEWHERE, HERE, WORLDS, Step
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

import tidelog
from tidelog.server.security.operations import ResourceType

ROWS_LEAST = 400
# Users whose rows a plain test run checks; a sweep checks all users.
QUICK = {("strict", "u1"), ("loose", "v1")}
USERS = [
    pytest.param(
        world,
        user,
        id=f"{world}-{user}",
        marks=() if (world, user) in QUICK else pytest.mark.slow,
    )
    for world, found in WORLDS.items()
    for user in found.users
]


def _of_ours(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(f"rights-{name}")
    with tidelog.broker(str(folder / "data"), settings=our_settings(WORLDS[name], folder)) as run:
        create_everything(run.bootstrap_servers, WORLDS[name])
        yield run.bootstrap_servers


@pytest.fixture(scope="module")
def our_strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our broker in strict mode: it allows only what an ACL allows."""
    yield from _of_ours("strict", tmp_path_factory)


@pytest.fixture(scope="module")
def our_loose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our broker in loose mode: it allows all operations on resources without ACLs."""
    yield from _of_ours("loose", tmp_path_factory)


def _of_kafka(home: KafkaHome, oracle: Oracle, folder: Path, name: str) -> Iterator[str]:
    broker = Broker(home, oracle, folder, settings=kafkas_settings(WORLDS[name]))
    broker.start()
    try:
        create_everything(broker.bootstrap, WORLDS[name])
        yield broker.bootstrap
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def kafka_strict(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Kafka, which allows only what an ACL allows."""
    yield from _of_kafka(kafka_jars, kafka_oracle, tmp_path_factory.mktemp("rights-ks"), "strict")


@pytest.fixture(scope="module")
def kafka_loose(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Kafka, which allows all operations on resources without ACLs."""
    yield from _of_kafka(kafka_jars, kafka_oracle, tmp_path_factory.mktemp("rights-kl"), "loose")


def _java(request: pytest.FixtureRequest) -> Driver:
    return Java(request.getfixturevalue("kafka_oracle"))


CLIENTS: dict[str, Callable[[pytest.FixtureRequest], Driver]] = {
    "confluent": lambda _: Confluent(),
    "kafka-python": lambda _: KafkaPython(),
    "aiokafka": lambda _: AioKafka(),
    "kcat": lambda _: Kcat(),
    "java": _java,
}
CLIENTS_OF = [
    pytest.param(name, marks=pytest.mark.kafka if name == "java" else ()) for name in CLIENTS
]
BROKERS = ["our", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])]


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("client", CLIENTS_OF)
@pytest.mark.parametrize(("world", "user"), USERS)
def test_rows(
    world: str, user: str, client: str, broker: str, request: pytest.FixtureRequest
) -> None:
    driver = CLIENTS[client](request)
    bootstrap: str = request.getfixturevalue(f"{broker}_{world}")
    rows = WORLDS[world].rows_of(user)
    asked = {step: [row.name for row in rows if row.step is step] for step in Step}
    told = driver.ask(bootstrap, user, asked)
    expected = {(row.step, row.name): row.is_allowed for row in rows}
    wrong = {place: may for place, may in told.items() if expected[place] != may}
    assert told.keys() == expected.keys()
    assert not wrong


# -- the table itself ----------------------------------------------------------------------------


def test_the_table_is_large_and_both_results_are_frequent() -> None:
    rows = [row for world in WORLDS.values() for row in world.rows]
    assert len(rows) >= ROWS_LEAST
    assert all(len(world.rows) == len(set(world.rows)) for world in WORLDS.values())
    counts = Counter((row.step, row.is_allowed) for row in rows)
    for step in Step:
        least = 4 if step is Step.NUMBER else 15
        assert min(counts[step, True], counts[step, False]) >= least, counts
    allowed = sum(row.is_allowed for row in rows) / len(rows)
    assert 0.3 < allowed < 0.7


def test_the_table_has_acls_of_all_kinds() -> None:
    acls = [acl for world in WORLDS.values() for acl in world.acls.acls]
    kinds = set(ResourceType) - {
        ResourceType.UNKNOWN,
        ResourceType.ANY,
        ResourceType.USER,
        ResourceType.DELEGATION_TOKEN,
    }
    assert {acl.kind for acl in acls} == kinds
    for host in ("*", HERE, ELSEWHERE):
        assert {acl.allows for acl in acls if acl.host == host} == {True, False}
    for form in ("prefix", "wildcard", "name"):
        assert {acl.allows for acl in acls if _form_of(acl) == form} == {True, False}
    assert {acl.allows for acl in acls if acl.principal == EVERYBODY} == {True, False}
    assert {acl.allows for acl in acls if acl.principal == f"User:{CHIEF}"} == {False}
    assert {row.user for world in WORLDS.values() for row in world.rows} >= {CHIEF, "u0", "v0"}


def _form_of(acl: ModelAcl) -> str:
    if acl.is_prefix:
        return "prefix"
    return "wildcard" if acl.name == "*" else "name"
