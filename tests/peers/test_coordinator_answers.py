"""Real Kafka and our broker give the same responses about coordinators of share partitions."""

from typing import Final

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import until

import tidelog
from tidelog.protocol.messages import FIND_COORDINATOR
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest

pytestmark = pytest.mark.kafka

ID: Final = "nT3i4OXyR0mr0my1RZx9pQ"
KEYS: Final = (
    *(f"g:{ID}:{number}" for number in ("0", "-1", "+1", "2147483647", "\u0663")),
    *(f"g:{ID}:{number}" for number in ("", "x", " 1", "2147483648", "-2147483649")),
    *(f"{group}:{ID}:0" for group in ("a:g", " g ", "\u2003", "g\n")),
    *(f"{group}:{ID}:0" for group in ("", " ", "\t")),
    *(f"g:{topic}:0" for topic in (f"{ID}==", f"{ID[:-1]}R", "A" * 22)),
    *(f"g:{topic}:0" for topic in ("", "AA", f"{ID}A", f"{ID}=", f"{ID[:-1]}", f" {ID}", "!" * 22)),
    f"g:{ID}:0:",
    f"g:{ID}:0::",
    "bare",
    "",
    "::",
)
NOT_AVAILABLE: Final = 15


def answers(bootstrap: str, version: int) -> list[tuple[str, int, bool]]:
    """Return each key, its error code, and whether the response names a broker for the key."""
    asked = FindCoordinatorRequest(key_type=2, coordinator_keys=list(KEYS))
    client = RawClient(bootstrap)
    try:
        told = until(
            lambda: client.ask(FIND_COORDINATOR, version, asked).coordinators,
            lambda found: all(each.error_code != NOT_AVAILABLE for each in found),
        )
    finally:
        client.close()
    return [(each.key, each.error_code, each.port > 0) for each in told]


@pytest.mark.parametrize("version", [4, 6])
def test_share_partitions_have_a_coordinator(kafka_broker: Broker, version: int) -> None:
    with tidelog.broker() as ours:
        assert answers(ours.bootstrap_servers, version) == answers(kafka_broker.bootstrap, version)
