"""ACLs of our broker: they are stored durably, and every request is checked against them."""

import errno
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.worlds.brokers.logins import is_closed, logged_in, plain
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.clients.rights_talk import (
    PATIENCE_S,
    AclFields,
    allow,
    creation,
    deny,
    everything,
)

import tidelog
from tidelog.config import BrokerConfig
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.env import File, OsFileSystem, os_env
from tidelog.errors import ConfigError, CorruptFile
from tidelog.protocol.messages import (
    BY_KEY,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.modern_groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatAssignment,
)
from tidelog.protocol.messages.security import (
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
)
from tidelog.record.builder import build_batch
from tidelog.server.admin.metadata_log import MetadataLog
from tidelog.server.api import table
from tidelog.server.api.guards import closed
from tidelog.server.api.table import OPEN, ROWS, guard_of
from tidelog.server.embedded import Broker
from tidelog.server.security.operations import ResourceType
from tidelog.storage.directory.broker_files import METADATA_FILE, SecurityState
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord

TOPIC_DENIED: Final = 29
GROUP_DENIED: Final = 30
STORAGE_ERROR: Final = 56
USERS: Final = ("boss", "alice", "bob")
PASSWORD: Final = "sesame"
BATCH: Final = bytes(build_batch([NewRecord(value=b"v")]))


def settings_in(folder: Path, **more: str) -> dict[str, str]:
    """Return settings of a broker with the super user `boss`; ACLs decide for all other users."""
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in USERS))
    found = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "tidelog.sasl.plain.users.file": str(users),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:boss",
    }
    return found | {name.replace("_", "."): value for name, value in more.items()}


def start(folder: Path, **more: str) -> Broker:
    """Start a broker on a directory that is kept after the broker stops."""
    return tidelog.broker(str(folder / "data"), settings=settings_in(folder, **more))


broker = broker_fixture(settings_in, topics={"flights": 1, "secret": 1})


def login(broker: Broker, user: str) -> RawClient:
    """Return a connection that is authenticated as this user."""
    return logged_in(broker, plain(user, PASSWORD))


def add(broker: Broker, user: str, *acls: AclFields) -> list[int]:
    """Add ACLs as boss; return the error codes."""
    with login(broker, "boss") as boss:
        asked = CreateAclsRequest(creations=[creation(user, acl) for acl in acls])
        return [each.error_code for each in boss.ask(CREATE_ACLS, 3, asked).results]


def remove_all(broker: Broker) -> int:
    """Remove all ACLs as boss; return how many were removed."""
    every = everything()
    names = DeleteAclsFilter.__dataclass_fields__
    wanted = DeleteAclsFilter(**{name: getattr(every, name) for name in names})
    with login(broker, "boss") as boss:
        (found,) = boss.ask(DELETE_ACLS, 3, DeleteAclsRequest(filters=[wanted])).filter_results
        return len(found.matching_acls)


def acls_of(broker: Broker) -> int:
    """Return the number of ACLs that the broker has."""
    with login(broker, "boss") as boss:
        found = boss.ask(DESCRIBE_ACLS, 3, everything())
        return sum(len(resource.acls) for resource in found.resources)


def produced(broker: Broker, user: str, topic: str = "flights") -> int:
    """Produce one record as this user; return the error code."""
    with login(broker, user) as client:
        return client.produce(topic, BATCH).error_code


def test_acls_apply_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with start(tmp_path) as running:
        running.call(lambda node: node.log_dir.create_topic("flights", partitions=1))
        assert produced(running, "alice") == TOPIC_DENIED
        assert add(running, "alice", allow("WRITE")) == [0]
        assert produced(running, "alice") == 0
        assert add(running, "*", deny("WRITE", name="secret")) == [0]
    assert (tmp_path / "data" / METADATA_FILE).stat().st_mode & 0o777 == 0o600
    with start(tmp_path) as again:
        assert acls_of(again) == 2
        assert (produced(again, "alice"), produced(again, "bob")) == (0, TOPIC_DENIED)
        assert remove_all(again) == 2
        assert produced(again, "alice") == TOPIC_DENIED
    with start(tmp_path) as last:
        assert acls_of(last) == 0


def test_acls_stay_while_authorization_is_switched_off(tmp_path: Path) -> None:
    with start(tmp_path) as running:
        assert add(running, "alice", allow("READ")) == [0]
    with start(tmp_path, authorizer_class_name="") as open_broker, login(open_broker, "bob") as bob:
        assert bob.ask(DESCRIBE_ACLS, 3, everything()).error_code == 54
    with start(tmp_path) as again:
        assert acls_of(again) == 1


def test_a_damaged_log_of_acls_stops_the_start(tmp_path: Path) -> None:
    with start(tmp_path) as running:
        assert add(running, "alice", deny("READ")) == [0]
    place = tmp_path / "data" / METADATA_FILE
    whole = place.read_bytes()
    for damaged in (whole[:-3], whole.replace(b"flights", b"fl\0ghts"), b"?", whole + whole):
        assert damaged != whole
        place.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=METADATA_FILE):
            start(tmp_path).close()
    place.write_bytes(whole)
    with start(tmp_path) as again:
        assert acls_of(again) == 1


def test_an_acl_of_an_unknown_kind_stops_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    acl = (99, "flights", 3, "User:alice", "*", 3, 3)
    with LogDir.open(str(data), options=LogDirOptions(create=True)) as log_dir:
        MetadataLog(log_dir).keep_security(SecurityState(acls=frozenset({acl})))
    with pytest.raises(CorruptFile, match=f"^{data}/{METADATA_FILE}: an ACL of an unknown kind"):
        start(tmp_path).close()


class FullDisk(OsFileSystem):
    """A disk that, while `is_full` is set, has no space for the file with the ACLs."""

    def __init__(self) -> None:
        self.is_full = False

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if self.is_full and write and METADATA_FILE in path:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return super().open(path, write=write, create=create)


class LateFailure(OsFileSystem):
    """A disk on which a rename takes place but then raises an error, while `fails` is set."""

    def __init__(self) -> None:
        self.fails = False

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self.fails and target.endswith(METADATA_FILE):
            raise OSError(errno.EIO, "input/output error", target)


def test_an_acl_stored_by_a_failed_write_is_removed(tmp_path: Path) -> None:
    disk = LateFailure()
    env = replace(os_env(), files=disk)
    settings = settings_in(tmp_path)
    with tidelog.broker(str(tmp_path / "data"), settings=settings, env=env) as running:
        running.call(lambda node: node.log_dir.create_topic("flights", partitions=1))
        disk.fails = True
        assert add(running, "alice", allow("WRITE")) == [STORAGE_ERROR]
        disk.fails = False
        assert produced(running, "alice") == TOPIC_DENIED
        assert remove_all(running) == 0
    with tidelog.broker(str(tmp_path / "data"), settings=settings) as again:
        assert produced(again, "alice") == TOPIC_DENIED


def test_an_acl_that_cannot_be_stored_does_not_apply(tmp_path: Path) -> None:
    disk = FullDisk()
    env = replace(os_env(), files=disk)
    with tidelog.broker(str(tmp_path / "data"), settings=settings_in(tmp_path), env=env) as running:
        running.call(lambda node: node.log_dir.create_topic("flights", partitions=1))
        assert add(running, "alice", allow("READ")) == [0]
        disk.is_full = True
        assert add(running, "alice", allow("WRITE")) == [STORAGE_ERROR]
        assert produced(running, "alice") == TOPIC_DENIED
        assert acls_of(running) == 1
        disk.is_full = False
        assert add(running, "alice", allow("WRITE")) == [0]
        assert produced(running, "alice") == 0


def test_the_setting_allows_resources_without_acls_to_all_users(tmp_path: Path) -> None:
    with start(tmp_path, allow_everyone_if_no_acl_found="true") as running:
        running.call(lambda node: node.log_dir.create_topic("flights", partitions=1))
        assert produced(running, "bob") == 0
        assert add(running, "alice", allow("READ")) == [0]
        assert produced(running, "bob") == TOPIC_DENIED


def test_a_denied_part_without_acks_closes_the_connection_and_keeps_the_allowed_part(
    broker: Broker,
) -> None:
    assert add(broker, "alice", allow("WRITE"), allow("READ")) == [0, 0]
    with login(broker, "alice") as alice:
        request = produce_request("flights", BATCH)
        request.acks = 0
        request.topic_data += produce_request("secret", BATCH).topic_data
        alice.send(PRODUCE, 9, request)
        assert is_closed(alice)
    with login(broker, "boss") as boss:
        assert [len(boss.read_all(name)) for name in ("flights", "secret")] == [1, 0]


def test_a_removed_right_ends_a_fetch_session_too(broker: Broker) -> None:
    assert add(broker, "alice", allow("READ")) == [0]
    assert produced(broker, "boss") == 0
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=9999)
    begin = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_epoch=0,
        topics=[FetchTopic(topic="flights", partitions=[wanted])],
        rack_id="",
    )
    with login(broker, "alice") as alice:
        first = alice.ask(FETCH, 12, begin)
        assert first.responses[0].partitions[0].records
        remove_all(broker)
        more = replace(begin, session_id=first.session_id, session_epoch=1, topics=[])
        then = alice.ask(FETCH, 12, more)
        assert [part.error_code for part in then.responses[0].partitions] == [TOPIC_DENIED]
        assert not then.responses[0].partitions[0].records


def test_of_several_groups_each_is_found_by_its_own_rights(broker: Broker) -> None:
    assert add(broker, "alice", allow("DESCRIBE", ResourceType.GROUP, "mine")) == [0]
    asked = FindCoordinatorRequest(coordinator_keys=["theirs", "mine", "others"])
    with login(broker, "alice") as alice:
        told = alice.ask(FIND_COORDINATOR, 4, asked).coordinators
    found = {each.key: (each.error_code, each.port > 0) for each in told}
    assert found == {
        "mine": (0, True),
        "theirs": (GROUP_DENIED, False),
        "others": (GROUP_DENIED, False),
    }


def test_an_expression_finds_topics_that_the_member_may_see(broker: Broker) -> None:
    rights = (allow("READ", ResourceType.GROUP, "g"), allow("DESCRIBE"))
    assert add(broker, "alice", *rights) == [0, 0]
    joining = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[],
        subscribed_topic_regex=".*",
        topic_partitions=[],
    )
    ids = broker.call(lambda node: {i.topic_id: n for n, i in node.topics.all().items()})
    with login(broker, "alice") as alice:
        alice.ask(FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["g"]))
        found = _assigned(alice, joining)
    assert [ids[part.topic_id] for part in found.topic_partitions] == ["flights"]


def _assigned(client: RawClient, joining: ConsumerGroupHeartbeatRequest) -> HeartbeatAssignment:
    """Join as a member that subscribes by a regular expression; return its first assignment."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        said = client.ask(CONSUMER_GROUP_HEARTBEAT, 1, joining)
        if said.assignment is not None and said.assignment.topic_partitions:
            return said.assignment
        if not said.error_code:
            joining = replace(
                joining,
                member_epoch=said.member_epoch,
                subscribed_topic_names=None,
                subscribed_topic_regex=None,
                topic_partitions=None,
                rebalance_timeout_ms=-1,
            )
    raise AssertionError("nothing was assigned")


# -- guards --------------------------------------------------------------------------------------


def test_each_api_has_a_guard() -> None:
    """Each API is open to all or guarded.

    An API that is neither would require all rights on the cluster.
    """
    is_open = {row.key: row.guard == OPEN for row in ROWS if row.guard}
    assert is_open.keys() == {row.key for row in ROWS}
    assert {key: guard_of(key) is None for key in is_open} == is_open
    assert closed not in map(guard_of, is_open)
    assert is_open.keys() <= set(BY_KEY)


def test_an_api_without_a_guard_is_shut(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    row = table.BY_KEY[METADATA.key]._replace(guard=None)
    monkeypatch.setattr(table, "BY_KEY", {**table.BY_KEY, METADATA.key: row})
    guard_of.cache_clear()
    try:
        with login(broker, "alice") as alice, login(broker, "boss") as boss:
            alice.send(METADATA, 9, MetadataRequest(topics=[]))
            assert is_closed(alice)
            assert boss.ask(METADATA, 9, MetadataRequest(topics=[])).brokers
    finally:
        guard_of.cache_clear()


_NOT_LOADED: Final = """
import sys, tidelog
from tests.worlds.clients.raw import RawClient
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord
with tidelog.broker() as broker, RawClient(broker.bootstrap_servers) as client:
    broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
    assert client.produce("t", bytes(build_batch([NewRecord(value=b"v")]))).error_code == 0
    assert len(client.read_all("t")) == 1
loaded = [name for name in sys.modules if "security.auth" in name]
assert not [name for name in loaded if name.startswith("tidelog")], loaded
"""


def test_a_broker_without_an_authorizer_does_not_even_load_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NOT_LOADED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["alice", ":alice", "User:", "User:a;b"])
def test_super_users_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"super\.users"):
        start(tmp_path, super_users=text).close()


def test_another_authorizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        BrokerConfig.parse({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"})
