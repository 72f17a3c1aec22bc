"""Section of the broker's benchmark: CPU per request with authentication, ACLs and quotas.

One client authenticates with PLAIN. The client has an ACL for the only topic. The client's quotas
of bytes and of request time are far above its use. The client sends one kind of request repeatedly,
with one request in flight.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from bench import broker_wire as wire
from bench.broker_cells import lines
from bench.broker_load import Address, Answers, ask, connect
from bench.broker_pair import Brokers, figure
from bench.broker_servers import Ours, Topics, await_served, cpu_s
from bench.harness import Case, Work
from tidelog.protocol.messages import (
    ALTER_CLIENT_QUOTAS,
    CREATE_ACLS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidelog.protocol.messages.configs import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaOperation,
)
from tidelog.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tidelog.protocol.messages.shared import QuotaEntity
from tidelog.protocol.requests import ClientConnection
from tidelog.record.builder import build_batch
from tidelog.server.security.operations import Operation, PatternType, Permission, ResourceType
from tidelog.types import NewRecord

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.protocol.schema import Api

TOPIC: Final = "secured"
USER, PASSWORD = "anna", "a password of the benchmark"
# The limits are far above the client's use, so the broker counts the use but never throttles.
QUOTAS: Final = {
    "producer_byte_rate": 1e12,
    "consumer_byte_rate": 1e12,
    "request_percentage": 100_000.0,
}
RECORDS: Final = 200
WARM_UP: Final = 300
Request = TypeVar("Request", bound="DataclassInstance")


def secured(brokers: Brokers) -> Iterator[Case]:
    """Yield the CPU per request of Produce, Fetch and ListOffsets."""
    server = SecuredBroker(brokers.folder / "secured")
    brokers.stack.callback(server.stop)
    server.start()
    count = brokers.size.single
    for name, requests in server.requests().items():
        yield figure(
            f"CPU of the secured broker, {name}",
            "us per request",
            server.cpu_of(requests, count),
            None,
            note="the broker authenticates, checks ACLs and counts quotas",
        )


class SecuredBroker:
    """A tidelog broker whose second listener requires authentication."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        users = folder / "users"
        users.write_text(f"{USER}={PASSWORD}\n")
        self._ours = Ours(folder, users=users)

    def start(self) -> None:
        """Start the broker, and create the topic, its ACL and the quotas."""
        self._ours.start()
        await_served(self._ours)
        Topics(self._ours).create(TOPIC, 1)
        address = _place(self._ours.bootstrap)
        ask(address, _framed(CREATE_ACLS, 3, CreateAclsRequest(creations=[_all_on_the_topic()])))
        ask(address, _framed(ALTER_CLIENT_QUOTAS, 1, _quotas()))

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self._ours.stop()

    def client(self) -> tuple[socket.socket, Answers]:
        """Return an authenticated connection."""
        sock = connect(("127.0.0.1", self._ours.sasl_port))
        answers = Answers(sock)
        sock.sendall(_framed(SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN")))
        answers.read()
        token = f"\0{USER}\0{PASSWORD}".encode()
        sock.sendall(_framed(SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=token)))
        code = int.from_bytes(answers.read()[4:6], "big")
        if code:
            raise RuntimeError(f"the log-in was refused: error {code}")
        return sock, answers

    def requests(self) -> dict[str, Sequence[bytes]]:
        """Return the requests by name; also write the records that Fetch and ListOffsets read."""
        value, now_ms = lines(100)[0], int(time.time() * 1000)
        batches = [
            bytes(build_batch([NewRecord(value=value, timestamp=now_ms + number)]))
            for number in range(RECORDS)
        ]
        produced = [wire.produce(TOPIC, [batch]) for batch in batches]
        sock, answers = self.client()
        check = wire.Produced(TOPIC, 1)
        for request in produced:
            sock.sendall(request)
            check.check(answers.read())
        sock.close()
        return {
            "produce one record": produced,
            "fetch existing records": [
                wire.fetch(TOPIC, [number], wait_ms=0) for number in range(RECORDS)
            ],
            "offset for a time": [
                wire.list_offsets(TOPIC, now_ms + number) for number in range(RECORDS)
            ],
        }

    def cpu_of(self, requests: Sequence[bytes], count: int) -> Work:
        """Return a function that measures the CPU of `count` requests, with one in flight."""
        sock, answers = self.client()

        def send(number: int) -> None:
            sock.sendall(requests[number % len(requests)])
            answers.read()

        def run() -> float:
            for number in range(WARM_UP):
                send(number)
            before = cpu_s(self._ours.pid)
            for number in range(count):
                send(number)
            return (cpu_s(self._ours.pid) - before) / count * 1e6

        return run


def _place(bootstrap: str) -> Address:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def _framed(api: "Api[Request, DataclassInstance]", version: int, message: Request) -> bytes:
    return b"".join(
        bytes(piece) for piece in ClientConnection("bench").request(api, version, message)
    )


def _all_on_the_topic() -> AclCreation:
    return AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=TOPIC,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{USER}",
        host="*",
        operation=Operation.ALL,
        permission_type=Permission.ALLOW,
    )


def _quotas() -> AlterClientQuotasRequest:
    ops = [QuotaOperation(key=key, value=value, remove=False) for key, value in QUOTAS.items()]
    entity = [QuotaEntity(entity_type="user", entity_name=USER)]
    return AlterClientQuotasRequest(entries=[QuotaAlteration(entity=entity, ops=ops)])
