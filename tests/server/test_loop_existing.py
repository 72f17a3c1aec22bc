"""No request blocks the event loop for long, however many objects its response contains."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.server.loop_meter import HELD_MAX_S, MeteredBroker, metered_broker
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import GROUP_KEY, find_coordinator
from tests.worlds.waiting import until_kernels_loaded, until_so

from tidelog.protocol.messages import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    LIST_GROUPS,
    LIST_TRANSACTIONS,
    OFFSET_FETCH,
    AnyApi,
)
from tidelog.protocol.messages.classic_groups import DescribeGroupsRequest, ListGroupsRequest
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaOperation,
)
from tidelog.protocol.messages.group_offsets import OffsetFetchGroup, OffsetFetchRequest
from tidelog.protocol.messages.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.shared import NamedIndexes, QuotaEntity
from tidelog.protocol.messages.transactions import DescribeProducersRequest, ListTransactionsRequest
from tidelog.server.api.node import Node
from tidelog.server.groups.classic_group import ClassicGroup, Member
from tidelog.server.groups.committed_offsets import CommittedOffset
from tidelog.server.security.authorizer import Acl
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.storage.directory.broker_files import ScramCredential
from tidelog.storage.log.producers import ProducerEntry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.storage.directory.broker_files import Entity

# Number of objects. The larger number is a broker's maximum number of ACLs and of users. A test
# fails if the loop spends 1 us on each object.
MANY = [100_000, 20_000]
# Maximum number of measurements of one kind of request. A busy machine can slow down some of them.
MEASUREMENTS = 6
TOPIC = "there"
GROUP = "has much"
SECRETS = ScramCredential(salt=b"s" * 16, iterations=4096, stored_key=b"k" * 32, server_key=b"k")
ANY = 1


@pytest.fixture(scope="module", params=MANY)
def many(request: pytest.FixtureRequest) -> int:
    """Number of objects."""
    return int(request.param)


@pytest.fixture(scope="module")
def limit_s(many: int) -> float:
    """Maximum time in seconds for which a request may block the loop."""
    return HELD_MAX_S * many / MANY[0]


@pytest.fixture(scope="module")
def metered(many: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    path = str(tmp_path_factory.mktemp("metered"))
    settings = {
        **SETTINGS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with pytest.MonkeyPatch.context() as patch, metered_broker(path, patch, settings) as running:
        running.broker.call(lambda node: node.log_dir.create_topic(TOPIC))
        with RawClient(running.broker.bootstrap_servers) as client:
            find_coordinator(client, GROUP, GROUP_KEY)
            find_coordinator(client, GROUP)
        until_kernels_loaded()
        until_so(lambda: running.broker.call(lambda node: node.partitions.has_kernels))
        yield running


def acls_of(node: Node) -> frozenset[Acl]:
    assert node.rules.authorizer is not None
    return node.rules.authorizer.acls


def held_by(
    metered: MeteredBroker,
    limit_s: float,
    api: AnyApi,
    version: int,
    *requests: "DataclassInstance",
) -> float:
    """Return the fewest CPU seconds for which a request blocks the loop; the first is not counted.

    Requests are sent until one, but not the first, takes less than `limit_s`. If only one request
    is given, it is sent at most `MEASUREMENTS` times.
    """
    held = []
    with RawClient(metered.broker.bootstrap_servers) as client:
        for request in requests if len(requests) > 1 else requests * MEASUREMENTS:
            gc.collect()
            gc.freeze()  # the loop then spends no time on the test's garbage
            metered.held_s()
            client.send(api, version, request)
            answer = client.receive()
            held.append(metered.held_s())
            assert not getattr(answer, "error_code", 0)
            if len(held) > 1 and held[-1] < limit_s:
                break
    return min(held[1:])


def change(metered: MeteredBroker, act: Callable[[Node], Awaitable[None]]) -> None:
    """Run a change in the broker's loop, and wait until the change is done."""
    tasks: list[asyncio.Future[None]] = []
    metered.broker.call(lambda node: tasks.append(asyncio.ensure_future(act(node))))
    until_so(tasks[0].done)
    tasks[0].result()


def test_groups(metered: MeteredBroker, many: int, limit_s: float) -> None:
    def fill(node: Node) -> None:
        for number in range(many):
            node.groups._context.get_or_create(f"group-{number}")

    metered.broker.call(fill)
    assert held_by(metered, limit_s, LIST_GROUPS, 4, ListGroupsRequest()) < limit_s
    with RawClient(metered.broker.bootstrap_servers) as client:
        listed = client.ask(LIST_GROUPS, 4, ListGroupsRequest()).groups
        dead = client.ask(LIST_GROUPS, 4, ListGroupsRequest(states_filter=["Dead"])).groups
    assert {f"group-{number}" for number in range(many)} <= {each.group_id for each in listed}
    assert dead == []


def test_offsets_of_a_group(metered: MeteredBroker, many: int, limit_s: float) -> None:
    def fill(node: Node) -> None:
        offsets = node.groups._context.get_or_create(GROUP).offsets
        for number in range(many):
            offsets.put(TOPIC, number, CommittedOffset(number))

    metered.broker.call(fill)
    old = OffsetFetchRequest(group_id=GROUP, topics=None)
    new = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=GROUP, topics=None)])
    assert held_by(metered, limit_s, OFFSET_FETCH, 5, old) < limit_s
    assert held_by(metered, limit_s, OFFSET_FETCH, 9, new) < limit_s
    with RawClient(metered.broker.bootstrap_servers) as client:
        (group,) = client.ask(OFFSET_FETCH, 9, new).groups
    found = {each.partition_index: each.committed_offset for each in group.topics[0].partitions}
    assert found == {number: number for number in range(many)}


def test_members_of_a_group(metered: MeteredBroker, many: int, limit_s: float) -> None:
    def fill(node: Node) -> None:
        group = node.groups._context.get_or_create("crowd")
        assert isinstance(group, ClassicGroup)
        for number in range(many):
            member = Member(member_id=f"m{number}", session_timeout_ms=1, rebalance_timeout_ms=1)
            group.members[member.member_id] = member

    metered.broker.call(fill)
    asked = DescribeGroupsRequest(groups=["crowd"])
    assert held_by(metered, limit_s, DESCRIBE_GROUPS, 5, asked) < limit_s


def test_transactional_ids(metered: MeteredBroker, many: int, limit_s: float) -> None:
    def fill(node: Node) -> None:
        for number in range(many):
            node.transactions.table.create(f"x{number}", number, 1000)

    metered.broker.call(fill)
    assert held_by(metered, limit_s, LIST_TRANSACTIONS, 0, ListTransactionsRequest()) < limit_s


def test_producers_of_a_partition(metered: MeteredBroker, many: int, limit_s: float) -> None:
    def fill(node: Node) -> None:
        states = node.partitions.get(TOPIC, 0).log.producer_states()
        for number in range(many):
            states._producers[number] = ProducerEntry(number)

    metered.broker.call(fill)
    topic = NamedIndexes(name=TOPIC, partition_indexes=[0])
    asked = DescribeProducersRequest(topics=[topic])
    assert held_by(metered, limit_s, DESCRIBE_PRODUCERS, 0, asked) < limit_s
    with RawClient(metered.broker.bootstrap_servers) as client:
        (partition,) = client.ask(DESCRIBE_PRODUCERS, 0, asked).topics[0].partitions
    assert {each.producer_id for each in partition.active_producers} == set(range(many))


def test_acls(metered: MeteredBroker, many: int, limit_s: float) -> None:
    rules = [
        Acl(
            resource_type=ResourceType.GROUP,
            name=f"of {number % (many // 2)}",
            pattern=PatternType.LITERAL,
            principal=f"User:{number}",
            host="*",
            operation=Operation.READ,
            permission=Permission.ALLOW,
        )
        for number in range(many - 10)
    ]

    async def add(node: Node) -> None:
        await node.rules.add_acls(rules)

    change(metered, add)
    every = DescribeAclsRequest(
        resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY
    )
    assert held_by(metered, limit_s, DESCRIBE_ACLS, 2, every) < limit_s
    created = [
        AclCreation(
            resource_type=ResourceType.GROUP,
            resource_name=f"new {number}",
            resource_pattern_type=PatternType.LITERAL,
            principal="User:x",
            host="*",
            operation=Operation.READ,
            permission_type=Permission.DENY,
        )
        for number in range(MEASUREMENTS)
    ]
    creating = [CreateAclsRequest(creations=[each]) for each in created]
    assert held_by(metered, limit_s, CREATE_ACLS, 2, *creating) < limit_s
    names = [each.resource_name for each in created]
    deleting = [deletion(name) for name in names]
    assert held_by(metered, limit_s, DELETE_ACLS, 2, *deleting) < limit_s
    kept = metered.broker.call(acls_of)
    assert kept == frozenset(rules)
    assert held_by(metered, limit_s, DELETE_ACLS, 2, deletion("absent"), deletion(None)) < limit_s
    assert not metered.broker.call(acls_of)


def deletion(name: str | None) -> DeleteAclsRequest:
    wanted = DeleteAclsFilter(
        resource_type_filter=ANY,
        resource_name_filter=name,
        pattern_type_filter=ANY,
        operation=ANY,
        permission_type=ANY,
    )
    return DeleteAclsRequest(filters=[wanted])


def test_users(metered: MeteredBroker, many: int, limit_s: float) -> None:
    def fill(scram: dict[tuple[str, int], ScramCredential]) -> None:
        for number in range(many - 10):
            scram[f"user{number}", 1] = SECRETS

    change(metered, lambda node: node.rules.change_credentials(fill))
    every = DescribeUserScramCredentialsRequest(users=None)
    assert held_by(metered, limit_s, DESCRIBE_USER_SCRAM_CREDENTIALS, 0, every) < limit_s
    altering = [
        AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=f"new {number}",
                    mechanism=1,
                    iterations=4096,
                    salt=b"s" * 16,
                    salted_password=b"p" * 32,
                )
            ]
        )
        for number in range(MEASUREMENTS)
    ]
    assert held_by(metered, limit_s, ALTER_USER_SCRAM_CREDENTIALS, 0, *altering) < limit_s


def test_quotas(metered: MeteredBroker, many: int, limit_s: float) -> None:
    quotas: dict[Entity, dict[str, float]] = {
        (("user", f"user{number}"),): {"producer_byte_rate": 1e6} for number in range(many - 10)
    }
    change(metered, lambda node: node.cluster.change(lambda state: state._replace(quotas=quotas)))
    every = DescribeClientQuotasRequest(components=[], strict=False)
    assert held_by(metered, limit_s, DESCRIBE_CLIENT_QUOTAS, 0, every) < limit_s
    altering = [
        AlterClientQuotasRequest(
            entries=[
                QuotaAlteration(
                    entity=[QuotaEntity(entity_type="user", entity_name=f"new {number}")],
                    ops=[QuotaOperation(key="producer_byte_rate", value=1e6)],
                )
            ]
        )
        for number in range(MEASUREMENTS)
    ]
    assert held_by(metered, limit_s, ALTER_CLIENT_QUOTAS, 0, *altering) < limit_s
    change(metered, lambda node: node.cluster.change(lambda state: state._replace(quotas={})))
