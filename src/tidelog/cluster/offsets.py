"""Offsets and settings of a cluster's partitions, through its admin client."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.cluster import codes
from tidelog.cluster.client import Client
from tidelog.cluster.view import Watermarks
from tidelog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]


# The id of all zeros, which older brokers answer.
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def watermarks(
    client: Client, partitions: Sequence[TopicPartition], isolation: IsolationLevel
) -> dict[TopicPartition, Watermarks]:
    """Log start, and high watermark or (READ_COMMITTED) last stable offset."""
    starts = lookup(client, dict.fromkeys(partitions, EARLIEST_TIMESTAMP), isolation)
    ends = lookup(client, dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation)
    return {p: Watermarks(starts[p].offset, ends[p].offset) for p in partitions}


def lookup(
    client: Client, times: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """What ListOffsets answers to times in ms or special values; offset -1 for no match.

    Raises:
        ClusterFailure: A partition is led by nobody, or its leader did not answer in time.
    """
    from confluent_kafka import IsolationLevel as Level
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    if not times:
        return {}
    level = Level.READ_COMMITTED if isolation else Level.READ_UNCOMMITTED
    # Its constructor hands out an object of the subclass that fits.
    places = {
        Place(p.topic, p.partition): OffsetSpec(ms)  # type: ignore[abstract]
        for p, ms in times.items()
    }

    def ask() -> "dict[Place, ListOffsetsResultInfo]":
        futures = client.admin().list_offsets(
            places, isolation_level=level, request_timeout=client.timeout_s
        )
        found: dict[Place, ListOffsetsResultInfo] = {}
        for place, future in futures.items():
            operation = f"look up offsets of {TopicPartition(place.topic, place.partition)}"
            found |= client.results(operation, {place: future})
        return found

    # The client library asks once, also in the moment in which a partition changes its leader.
    found = client.answer(ask, unready=codes.LEADER_COMES)
    answers = {
        TopicPartition(place.topic, place.partition): OffsetAndTimestamp(
            answer.offset, answer.timestamp, answer.leader_epoch
        )
        for place, answer in found.items()
    }
    # Where a leader can't be reached, the client library reports no error: the result has the
    # offset with which it was made, -1001. A log's start and end are never negative.
    silent = [
        name
        for name, time_ms in times.items()
        if name not in answers
        or answers[name].offset < (0 if time_ms in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP) else -1)
    ]
    if silent:
        reason = f"no answer from the leader within {client.timeout_s:g} s"
        raise client.unanswered("look up offsets", silent, reason)
    return answers


def topic_settings(client: Client, topic: str) -> dict[str, str]:
    """A topic's settings in force, under Kafka's names."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        ConfigResource,
        ResourceType,
    )

    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked = client.admin().describe_configs([resource], request_timeout=client.timeout_s)
    found = client.results(f"read the settings of {topic}", asked)[resource]
    return {name: entry.value for name, entry in found.items() if entry.value is not None}


def topic_ids(client: Client, topics: Sequence[str]) -> dict[str, str | None]:
    """Topics' ids as Kafka prints them, None where the cluster has none."""
    from confluent_kafka import TopicCollection

    if not topics:
        return {}
    asked = client.admin().describe_topics(
        TopicCollection(list(topics)), request_timeout=client.timeout_s
    )
    found = client.results(f"describe {', '.join(topics)}", asked)
    return {topic: id_text(found[topic].topic_id) for topic in topics}


def id_text(topic_id: object) -> str | None:
    """Return an id of the client library as Kafka prints it; None where it stands for no id."""
    if topic_id is None or str(topic_id) == _NO_TOPIC_ID:
        return None
    # librdkafka writes it in base64's usual alphabet, Kafka in the one for addresses.
    return str(topic_id).replace("+", "-").replace("/", "_")
