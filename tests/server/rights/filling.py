"""Settings, topics with one record each, and ACLs of a broker for a table of rights."""

from functools import partial
from pathlib import Path
from typing import Final

from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.rights_table import BOSS, GROUPS, IDS, TOPICS, World
from tests.worlds.clients.rights_talk import (
    PASSWORD,
    codes_in,
    count_acls,
    logged_in,
    patiently,
)
from tests.worlds.waiting import until_so

from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.protocol.messages import (
    CREATE_ACLS,
    CREATE_TOPICS,
    FIND_COORDINATOR,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.security import CreateAclsRequest
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

BATCH: Final = bytes(build_batch([NewRecord(value=b"v")]))
SHARED: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def our_settings(world: World, folder: Path) -> dict[str, str]:
    """Return the settings of our broker; write the file of users that they name."""
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in (BOSS, *world.users)))
    own = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "tidelog.sasl.plain.users.file": str(users),
    }
    return SHARED | world.settings | own


def kafkas_settings(world: World) -> dict[str, str]:
    """Return the settings of Kafka."""
    logins = " ".join(f'user_{name}="{PASSWORD}"' for name in (BOSS, *world.users))
    own = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": (
            f'{PLAIN} username="{BOSS}" password="{PASSWORD}" {logins};'
        ),
    }
    return SHARED | world.settings | own


def create_everything(bootstrap: str, world: World) -> None:
    """Create topics, records and ACLs; return once ACLs apply and coordinators are available."""
    with logged_in(bootstrap, BOSS) as client:
        topics = [
            CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for name in TOPICS
        ]
        made = client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics, timeout_ms=90_000))
        assert not any(codes_in(made)), made
        for name in TOPICS:
            until_so(partial(_takes_a_record, client, name), f"{name} takes a record")
        acls = [acl.on_the_wire() for acl in world.acls.acls]
        said = client.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=acls))
        assert not any(codes_in(said)), said
        until_so(lambda: count_acls(client) == len(acls), "all rules are there")
        for kind, keys in enumerate((GROUPS, IDS)):
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
            found = patiently(client, FIND_COORDINATOR, 4, asked)
            assert not any(codes_in(found)), found


def _takes_a_record(client: RawClient, topic: str) -> bool:
    return client.produce(topic, BATCH).error_code == 0
