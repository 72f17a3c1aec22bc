"""ACLs for IPv6 clients: Kafka compares addresses as text, tidelog accepts each notation."""

from pathlib import Path
from typing import Final

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker, free_port
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import until_so

import tidelog
from tidelog.config.broker import STANDARD_AUTHORIZER
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import CREATE_ACLS, FIND_COORDINATOR
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.security import AclCreation, CreateAclsRequest
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType

pytestmark = pytest.mark.kafka

JAVAS: Final = "0:0:0:0:0:0:0:1"
# Hosts of ACLs. Each ACL denies access to a group that has the name of the host. A further ACL
# allows access to all groups.
HOSTS: Final = (JAVAS, "::1", "0::0001", "0:0:0:0:0:0:0:2")
RIGHTS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}


class SixBroker(Broker):
    """Kafka with a second listener, on the IPv6 loopback address."""

    def start(self) -> None:
        port = free_port()
        self.six = f"::1:{port}"
        self._settings |= {
            "listeners": f"{self._settings['listeners']},SIX://[::1]:{port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},SIX://[::1]:{port}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
        }
        self._write_properties({})
        super().start()


def denied(address: str) -> list[str]:
    """Add the ACLs, and return the hosts whose ACL applies to a client on the IPv6 loopback."""
    acls = [
        AclCreation(
            resource_type=ResourceType.GROUP,
            resource_name=host,
            resource_pattern_type=PatternType.LITERAL,
            principal="User:*",
            host=host,
            operation=Operation.ALL,
            permission_type=Permission.ALLOW if host == "*" else Permission.DENY,
        )
        for host in ("*", *HOSTS)
    ]
    with RawClient(address) as client:
        made = client.ask(CREATE_ACLS, 3, CreateAclsRequest(creations=acls)).results
        assert not any(each.error_code for each in made)

        def found() -> list[str]:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=list(HOSTS))
            rows = client.ask(FIND_COORDINATOR, 4, request).coordinators
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return [
                host for host in HOSTS for row in rows if (row.key, row.error_code) == (host, code)
            ]

        until_so(lambda: JAVAS in found(), "Kafka applies the ACLs some time after its response")
        return found()


def test_only_tidelog_compares_ipv6_addresses_in_each_notation(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path: Path
) -> None:
    kafka = SixBroker(kafka_jars, kafka_oracle, tmp_path / "kafka", settings=RIGHTS)
    kafka.start()
    try:
        theirs = denied(kafka.six)
    finally:
        kafka.stop()
    settings = RIGHTS | {"listeners": "PLAINTEXT://[::1]:0"}
    with tidelog.broker(str(tmp_path / "ours"), settings=settings) as running:
        ours = denied(running.bootstrap_servers.replace("[", "").replace("]", ""))
    assert (theirs, ours) == ([JAVAS], list(HOSTS[:3]))
