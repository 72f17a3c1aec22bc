"""If the sink's user lacks a right, the error is typed and names the missing right."""

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from tests.peers.test_sink_broker import once, options, rows
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.either import kafka_fixture
from tests.worlds.waiting import until_so

from tidelog.errors import NotAuthorized
from tidelog.spark.broker_sink import send

pytestmark = pytest.mark.kafka

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}

strict_broker = kafka_fixture(ACLS)


def deny(broker: Broker, kind: ResourceType, name: str) -> None:
    """Deny Write by an ACL; wait until the broker shows it, some time after the response."""
    acl = (
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    admin = AdminClient(broker.client_config())  # a variable, because futures end with the client
    for future in admin.create_acls([AclBinding(*acl)]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)
    until_so(
        lambda: bool(admin.describe_acls(AclBindingFilter(*acl)).result(REQUEST_TIMEOUT_S)),
        f"the rule about {name}",
    )


def test_topics_and_transactional_ids_that_are_denied(strict_broker: Broker) -> None:
    for topic in ("closed", "open"):
        strict_broker.create_topic(topic)
    deny(strict_broker, ResourceType.TOPIC, "closed")
    with pytest.raises(NotAuthorized, match="closed"):
        send(options(strict_broker, "closed"), iter([rows(5)]), task=0, claim=None)
    with pytest.raises(NotAuthorized, match="closed"):
        once(strict_broker, "closed", 0, rows(5))
    deny(strict_broker, ResourceType.TRANSACTIONAL_ID, "test/open/0")
    with pytest.raises(NotAuthorized, match="begin a transaction"):
        once(strict_broker, "open", 0, rows(5))
    assert send(options(strict_broker, "open"), iter([rows(5)]), task=0, claim=None).records == 5
