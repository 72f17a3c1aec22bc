"""Authorization of share fetches: READ on group and topics, checked at each request."""

from pathlib import Path

from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import GROUP, TOPIC, World, acquired, of, said, world

from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.error_codes import ErrorCode
from tidelog.server.security.authorizer import Acl, RuleTable
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.server.shares.record_runs import AckType

ANNA = "User:anna"
READ_GROUP = (ResourceType.GROUP, GROUP)
READ_TOPIC = (ResourceType.TOPIC, TOPIC)


def allow(it: World, *resources: tuple[ResourceType, str]) -> None:
    """Allow Anna to read these resources and no others."""
    assert it.node.authorizer is not None
    it.node.authorizer.use(
        RuleTable(
            Acl(
                resource_type=kind,
                name=name,
                pattern=PatternType.LITERAL,
                principal=ANNA,
                host="*",
                operation=Operation.READ,
                permission=Permission.ALLOW,
            )
            for kind, name in resources
        )
    )


@on_a_loop
async def test_a_group_that_may_not_be_read(path: Path) -> None:
    async with world(path, authorizer_class_name=STANDARD_AUTHORIZER) as it:
        one = it.member()
        one.connection.principal = ANNA
        allow(it, READ_TOPIC)
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (await one.fetch(0)).error_code == denied
        assert await one.say(said(0, 0, AckType.ACCEPT)) == denied


@on_a_loop
async def test_a_topic_that_may_not_be_read_any_more(path: Path) -> None:
    async with world(path, authorizer_class_name=STANDARD_AUTHORIZER) as it:
        it.produce(10)
        one = it.member()
        one.connection.principal = ANNA
        allow(it, READ_GROUP, READ_TOPIC)
        assert acquired(await one.fetch(0, records=1)) == [(0, 9, 1)]
        allow(it, READ_GROUP)
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await one.say(said(0, 9, AckType.ACCEPT)) == denied
        data = of(await one.fetch(0, acks=[said(0, 9, AckType.ACCEPT)]))
        assert data is not None
        assert (data.error_code, data.acknowledge_error_code) == (denied, denied)
        assert not data.acquired_records
        allow(it, READ_GROUP, READ_TOPIC)
        assert await one.say(said(0, 9, AckType.ACCEPT)) == 0
