"""Lists and descriptions of groups while coordinators are not available or refuse requests."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as library

from tidelog.env import ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure
from tidelog.remote import client
from tidelog.remote.cluster import Cluster, connect
from tidelog.remote.view import GroupListing

TIMEOUT_S = 10.0
FOUND = SimpleNamespace(
    group_id="planes", state=SimpleNamespace(name="EMPTY"), type=SimpleNamespace(name="CONSUMER")
)


class Admin:
    """Substitute for the admin client: each list of groups gets the next of the given codes.

    0 is success. The last code is repeated.
    """

    def __init__(self, clock: ManualClock, *told: int) -> None:
        self._clock = clock
        self._told = list(told)
        self.asked = 0
        # librdkafka 2.16 doesn't wrap errors, and returns them with the results of other brokers.
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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


Told = Callable[..., tuple[Cluster, Admin]]


@pytest.fixture
def told(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return a function that creates a cluster whose client library returns the given codes."""

    def make(*codes: int) -> tuple[Cluster, Admin]:
        admin = Admin(clock, *codes)
        monkeypatch.setattr(library, "AdminClient", lambda *_, **__: admin)
        return connect("nowhere:1", timeout_s=TIMEOUT_S, clock=clock), admin

    return make


@pytest.mark.parametrize("code", sorted(client.COORDINATOR_COMES))
def test_a_list_of_groups_waits_for_coordinators(code: int, told: Told) -> None:
    cluster, admin = told(code, code, 0)
    assert cluster.group_listings() == [GroupListing("planes", "Empty", "Consumer")]
    assert admin.asked == 3
    assert cluster.groups() == ["planes"]


def test_missing_coordinators_are_an_error_after_one_timeout(
    clock: ManualClock, told: Told
) -> None:
    cluster, _ = told(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    began_ms = clock.monotonic_ms()
    with pytest.raises(ClusterFailure, match=r"list groups.*COORDINATOR_LOAD") as failure:
        cluster.groups()
    assert failure.value.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert clock.monotonic_ms() - began_ms == TIMEOUT_S * 1000


def test_a_broker_that_does_not_exist_is_reported_at_once(told: Told) -> None:
    cluster, _ = told(client.TRANSPORT, 0)
    with pytest.raises(ClusterFailure, match=r"list groups.*_TRANSPORT"):
        cluster.groups()


def test_exceptions_of_the_documented_class_are_cluster_failures_too(told: Told) -> None:
    cluster, admin = told(client.TRANSPORT)
    admin.wrap = KafkaException
    with pytest.raises(ClusterFailure, match=r"list groups.*_TRANSPORT"):
        cluster.groups()
