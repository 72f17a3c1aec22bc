"""Questions to a cluster that is not ready yet: asked again, within one time-out."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from tidelog.cluster import codes, offsets
from tidelog.cluster.client import Client
from tidelog.env import ManualClock
from tidelog.errors import ClusterFailure
from tidelog.types import IsolationLevel, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PLACE = TopicPartition("t", 0)
FOUND = OffsetAndTimestamp(7, 1000, 3)
TIMEOUT_S = 10.0


class Admin:
    """Answers each request with the next of `codes` (0: found), at last always with the last."""

    def __init__(self, clock: ManualClock, *told: int) -> None:
        self._clock = clock
        self._told = list(told)
        self.asked = 0

    def list_offsets(
        self, places: Mapping[Place, object], **_: object
    ) -> "dict[Place, Future[SimpleNamespace]]":
        code = self._told[min(self.asked, len(self._told) - 1)]
        self.asked += 1
        answer: Future[SimpleNamespace] = Future()
        if code:
            answer.set_exception(KafkaException(KafkaError(code)))
        else:
            found = SimpleNamespace(offset=7, timestamp=1000, leader_epoch=3)
            answer.set_result(found)
        return dict.fromkeys(places, answer)

    def poll(self, seconds: float) -> None:
        self._clock.advance(int(seconds * 1000))


class FakeClient(Client):
    """A client whose admin client is `told`."""

    def __init__(self, clock: ManualClock, told: Admin) -> None:
        super().__init__("nowhere:1", {}, timeout_s=TIMEOUT_S, clock=clock)
        self._told = told

    def admin(self) -> "AdminClient":
        return cast("AdminClient", self._told)


def look_up(*told: int) -> tuple[Admin, OffsetAndTimestamp]:
    clock = ManualClock()
    admin = Admin(clock, *told)
    client = FakeClient(clock, admin)
    found = offsets.lookup(client, {PLACE: offsets.EARLIEST}, IsolationLevel.READ_UNCOMMITTED)
    return admin, found[PLACE]


@pytest.mark.parametrize("code", sorted(codes.LEADER_COMES))
def test_a_lookup_waits_for_the_leader(code: int) -> None:
    admin, found = look_up(code, code, 0)
    assert found == FOUND
    assert admin.asked == 3


def test_a_leader_that_never_comes_is_an_error_after_one_time_out() -> None:
    clock = ManualClock()
    admin = Admin(clock, codes.NOT_LEADER_OR_FOLLOWER)
    began_ms = clock.monotonic_ms()
    with pytest.raises(ClusterFailure, match="NOT_LEADER") as failure:
        offsets.lookup(
            FakeClient(clock, admin), {PLACE: offsets.LATEST}, IsolationLevel.READ_UNCOMMITTED
        )
    assert failure.value.error_code == codes.NOT_LEADER_OR_FOLLOWER
    assert clock.monotonic_ms() - began_ms == TIMEOUT_S * 1000


def test_what_waiting_does_not_mend_is_told_at_once() -> None:
    with pytest.raises(ClusterFailure, match="UNKNOWN_TOPIC_OR_PART"):
        look_up(codes.UNKNOWN_TOPIC_OR_PARTITION, 0)
