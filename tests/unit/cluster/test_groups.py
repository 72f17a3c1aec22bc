"""Groups of a cluster whose coordinators are not there yet, or refuse."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.cluster import codes, groups
from tidelog.cluster.client import Client
from tidelog.cluster.view import GroupListing
from tidelog.env import ManualClock
from tidelog.errors import ClusterFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.admin import AdminClient

TIMEOUT_S = 10.0
FOUND = SimpleNamespace(
    group_id="planes", state=SimpleNamespace(name="EMPTY"), type=SimpleNamespace(name="CONSUMER")
)


class Admin:
    """Answers each list of groups with the next of `codes` (0: found), at last with the last."""

    def __init__(self, clock: ManualClock, *told: int) -> None:
        self._clock = clock
        self._told = list(told)
        self.asked = 0
        # Errors come bare in 2.16, beside what other brokers found.
        self.wrap: Callable[[KafkaError], object] = lambda error: error

    def list_consumer_groups(self, **_: object) -> "Future[SimpleNamespace]":
        code = self._told[min(self.asked, len(self._told) - 1)]
        self.asked += 1
        answer: Future[SimpleNamespace] = Future()
        errors = [self.wrap(KafkaError(code))] if code else []
        answer.set_result(SimpleNamespace(valid=[] if code else [FOUND], errors=errors))
        return answer

    def poll(self, seconds: float) -> None:
        self._clock.advance(int(seconds * 1000))


class FakeClient(Client):
    """A client whose admin client is `told`."""

    def __init__(self, *told: int) -> None:
        clock = ManualClock()
        super().__init__("nowhere:1", {}, timeout_s=TIMEOUT_S, clock=clock)
        self.clock = clock
        self.told = Admin(clock, *told)

    def admin(self) -> "AdminClient":
        return cast("AdminClient", self.told)


@pytest.mark.parametrize("code", sorted(codes.COORDINATOR_COMES))
def test_a_list_of_groups_waits_for_coordinators(code: int) -> None:
    client = FakeClient(code, code, 0)
    assert groups.listings(client) == [GroupListing("planes", "Empty", "Consumer")]
    assert client.told.asked == 3
    assert groups.names(client) == ["planes"]


def test_coordinators_that_never_come_are_an_error_after_one_time_out() -> None:
    client = FakeClient(codes.COORDINATOR_LOAD_IN_PROGRESS)
    began_ms = client.clock.monotonic_ms()
    with pytest.raises(ClusterFailure, match=r"list groups.*COORDINATOR_LOAD") as failure:
        groups.names(client)
    assert failure.value.error_code == codes.COORDINATOR_LOAD_IN_PROGRESS
    assert client.clock.monotonic_ms() - began_ms == TIMEOUT_S * 1000


def test_a_broker_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(ClusterFailure, match=r"list groups.*_TRANSPORT"):
        groups.names(FakeClient(codes.TRANSPORT, 0))


def test_errors_are_told_also_as_the_librarys_documents_promise_them() -> None:
    client = FakeClient(codes.TRANSPORT)
    client.told.wrap = KafkaException
    with pytest.raises(ClusterFailure, match=r"list groups.*_TRANSPORT"):
        groups.names(client)
