"""Fetch sessions with deleted and recreated topics get equal responses from Kafka and tidelog."""

from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

import pytest
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until_so

from tidelog.protocol.messages import CREATE_TOPICS, DELETE_TOPICS, FETCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

pytestmark = pytest.mark.kafka

TOPIC: Final = "sessions-by-id"
WAIT_MS: Final = 90_000
FETCH_BYTES: Final = 1 << 16
BY_ID: Final = 13
GONE, UNKNOWN_ID, OTHER_ID = 3, 100, 103
ours = broker_fixture(is_temporary=True, scope="module")


@pytest.fixture(params=["kafka", "ours"])
def client(request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """A connection to Kafka in one run of the test, and to our broker in another run."""
    if request.param == "kafka":
        bootstrap = request.getfixturevalue("kafka_broker").bootstrap
    else:
        bootstrap = request.getfixturevalue("ours").bootstrap_servers
    with RawClient(bootstrap) as found:
        yield found


def create(client: RawClient) -> UUID:
    """Create the topic, wait until it can be read, and return the topic's id."""
    asked = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[asked], timeout_ms=WAIT_MS)
    (made,) = client.ask(CREATE_TOPICS, 7, request).topics
    assert made.error_code == 0
    until_so(lambda: Session(client, made.topic_id).code == 0, "the new topic can be read")
    return made.topic_id


def delete(client: RawClient) -> None:
    states = [DeleteTopicState(name=TOPIC)]
    request = DeleteTopicsRequest(topics=states, timeout_ms=WAIT_MS)
    (told,) = client.ask(DELETE_TOPICS, 6, request).responses
    assert told.error_code == 0


class Session:
    """A fetch session with one partition.

    Attributes:
        code: The partition's error in the last response; 0 if there is none, or if the response
            lacks the partition.
    """

    def __init__(self, client: RawClient, topic_id: UUID, *, is_kept: bool = True) -> None:
        self._client = client
        self._epoch = 0 if is_kept else -1
        self._number = 0
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=FETCH_BYTES)
        self.code = self._asked([FetchTopic(topic_id=topic_id, partitions=[wanted])])

    def go_on(self) -> int:
        """Fetch in the session; return the partition's error, 0 if the response lacks it."""
        self.code = self._asked([])
        return self.code

    def _asked(self, topics: list[FetchTopic]) -> int:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            session_id=self._number,
            session_epoch=self._epoch,
            topics=topics,
            rack_id="",
        )
        told = self._client.ask(FETCH, BY_ID, request)
        assert told.error_code == 0
        self._number, self._epoch = told.session_id, self._epoch + 1
        return told.responses[0].partitions[0].error_code if told.responses else 0


def test_a_session_distinguishes_a_deleted_from_a_recreated_topic(client: RawClient) -> None:
    """The session gets an error for a deleted topic, and another error for a recreated topic."""
    session = Session(client, create(client))
    delete(client)
    until_so(has_error(session, GONE), "the session hears that the topic is gone")
    assert session.go_on() == GONE
    other = create(client)
    until_so(has_error(session, OTHER_ID), "the session hears of another topic with that name")
    assert session.go_on() == OTHER_ID
    assert Session(client, other).code == 0
    delete(client)


def test_a_fetch_without_a_session_gets_an_unknown_topic_id(client: RawClient) -> None:
    topic_id = create(client)
    delete(client)
    until_so(
        lambda: Session(client, topic_id, is_kept=False).code == UNKNOWN_ID, "the topic is gone"
    )
    create(client)
    assert Session(client, topic_id, is_kept=False).code == UNKNOWN_ID
    delete(client)


def has_error(session: Session, code: int) -> Callable[[], bool]:
    """Return a function that fetches; it returns True if the partition's error is `code`."""
    return lambda: session.go_on() == code
