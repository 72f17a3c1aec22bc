"""Requests to a cluster that is not ready are repeated within one timeout."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka import admin as library

from tidelog.env import ManualClock
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure
from tidelog.remote import client
from tidelog.remote.cluster import connect
from tidelog.types import OffsetAndTimestamp, TopicPartition

PLACE = TopicPartition("t", 0)
FOUND = OffsetAndTimestamp(7, 1000, 3)
TIMEOUT_S = 10.0


class Admin:
    """Substitute for the client library: each request gets the next of the given error codes.

    0 is success. The last code is repeated.
    """

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


LookUp = Callable[[Admin], OffsetAndTimestamp | None]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def look_up(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> LookUp:
    """Return a function that looks up a time in a cluster whose client library is replaced."""

    def ask(admin: Admin) -> OffsetAndTimestamp | None:
        monkeypatch.setattr(library, "AdminClient", lambda *_, **__: admin)
        cluster = connect("nowhere:1", timeout_s=TIMEOUT_S, clock=clock)
        return cluster.offsets_for_times({PLACE: 1000})[PLACE]

    return ask


@pytest.mark.parametrize("code", sorted(client.LEADER_COMES))
def test_a_lookup_waits_for_the_leader(code: int, clock: ManualClock, look_up: LookUp) -> None:
    admin = Admin(clock, code, code, 0)
    assert look_up(admin) == FOUND
    assert admin.asked == 3


def test_a_missing_leader_is_an_error_after_one_timeout(
    clock: ManualClock, look_up: LookUp
) -> None:
    began_ms = clock.monotonic_ms()
    with pytest.raises(ClusterFailure, match="NOT_LEADER") as failure:
        look_up(Admin(clock, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert failure.value.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert clock.monotonic_ms() - began_ms == TIMEOUT_S * 1000


def test_an_error_that_waiting_does_not_resolve_is_raised_at_once(
    clock: ManualClock, look_up: LookUp
) -> None:
    with pytest.raises(ClusterFailure, match="UNKNOWN_TOPIC_OR_PART"):
        look_up(Admin(clock, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0))
