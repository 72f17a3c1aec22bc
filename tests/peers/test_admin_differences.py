"""Odd admin requests to which Kafka and our broker intentionally respond differently."""

import uuid

import pytest
from tests.peers.test_admin_answers import (
    NODE,
    Pair,
    Question,
    altering,
    creating,
    deleting,
    described,
    growing,
    metadata,
    ours,
    pair,
    showing,
    topic,
)
from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import until_so

from tidelog.protocol.messages import DESCRIBE_CONFIGS, FIND_COORDINATOR, METADATA
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

pytestmark = pytest.mark.kafka

__all__ = ["ours", "pair"]  # the fixtures

UNKNOWN, NOT_VALID, NAME, CONFIG, POLICY, UNKNOWN_ID = -1, 42, 17, 40, 44, 100


def codes(pair: Pair, question: Question) -> tuple[list[object], list[object]]:
    """Return the second column of Kafka's response, and the same column of our response."""
    theirs, own = ([row[1] for row in question(client)] for client in (pair.kafka, pair.ours))
    return theirs, own


def fresh(pair: Pair) -> str:
    name = f"d{uuid.uuid4().hex}"
    pair.agree_on(creating(topic(name)))
    return name


@pytest.mark.parametrize(
    ("given", "code", "shown"),
    [(" 5 ", 0, "5"), ("+5", 0, "5"), ("\x015", CONFIG, None)],
)
def test_only_kafka_describes_values_as_they_were_given(
    pair: Pair, given: str, code: int, shown: str | None
) -> None:
    question = creating(topic(f"d{uuid.uuid4().hex}", retention_ms=given))
    (theirs,), (own,) = question(pair.kafka), question(pair.ours)
    assert theirs[1] == 0
    assert ("retention.ms", given) in theirs[-1]  # type: ignore[operator] # a tuple
    assert own[1] == code
    assert own[-1] == (() if shown is None else (("retention.ms", shown),))


def test_kafka_stumbles_over_more_partitions_than_there_can_be(pair: Pair) -> None:
    assert codes(pair, growing((fresh(pair), (1 << 31) - 1, None))) == ([UNKNOWN], [POLICY])


def test_kafka_stumbles_over_an_empty_name(pair: Pair) -> None:
    theirs, own = described("")(pair.kafka), described("")(pair.ours)
    assert (theirs[0][1], own[0][1]) == (UNKNOWN, NAME)


def test_only_kafka_responds_to_an_invalid_cursor_in_the_order_of_the_request(pair: Pair) -> None:
    question = described("b", "a", "a", start=("a", -1))
    theirs, own = question(pair.kafka), question(pair.ours)
    assert [row[:2] for row in theirs[:-1]] == [(name, NOT_VALID) for name in "baa"]
    assert [row[:2] for row in own[:-1]] == [(name, NOT_VALID) for name in "ab"]


def test_kafka_fails_on_a_topic_with_neither_name_nor_id(pair: Pair) -> None:
    question = metadata(12, MetadataRequestTopic(name=None))
    theirs, own = question(pair.kafka), question(pair.ours)
    assert (theirs[0][0], theirs[1][1]) == (0, UNKNOWN)
    assert (own[0][0], own[1][1]) == (1, UNKNOWN_ID)


def test_a_topic_to_delete_by_name_and_id_is_refused_in_one_row_by_kafka(pair: Pair) -> None:
    name = fresh(pair)

    def told(client: RawClient, *names: str) -> list[object]:
        row = metadata(12, MetadataRequestTopic(name=name))
        # Kafka's broker gets the topic after its controller has created it.
        until_so(lambda: not row(client)[1][1], f"{name} is known")
        rows = deleting(*names, ids=(id_of(client, name),))(client)
        return [row[1] for row in sorted(rows, key=lambda row: str(row[1]))]

    assert (told(pair.kafka, name), told(pair.ours, name)) == ([NOT_VALID], [NOT_VALID] * 2)
    theirs, own = told(pair.kafka, name, name), told(pair.ours, name, name)
    assert (theirs, own) == ([0, NOT_VALID], [NOT_VALID] * 2)


def id_of(client: RawClient, name: str) -> uuid.UUID:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return client.ask(METADATA, 12, asked).topics[0].topic_id


def test_texts_about_coordinators_of_unknown_kinds_are_kafkas_own(pair: Pair) -> None:
    asked = FindCoordinatorRequest(key_type=9, coordinator_keys=["a"])
    theirs, own = (
        client.ask(FIND_COORDINATOR, 4, asked).coordinators[0] for client in (pair.kafka, pair.ours)
    )
    assert theirs.error_code == own.error_code == NOT_VALID
    assert theirs.error_message
    assert own.error_message == ""


def test_synonyms_of_broker_settings_differ(pair: Pair) -> None:
    """Only Kafka lists `log.retention.hours` as a synonym; tidelog lists `log.dirs` twice."""
    keys = ["log.dir", "log.dirs", "log.retention.ms"]
    resource = DescribeConfigsResource(
        resource_type=4, resource_name=str(NODE), configuration_keys=keys
    )
    asked = DescribeConfigsRequest(resources=[resource], include_synonyms=True)

    def told(client: RawClient) -> dict[str, list[str]]:
        (found,) = client.ask(DESCRIBE_CONFIGS, 4, asked).results
        return {one.name: [synonym.name for synonym in one.synonyms] for one in found.configs}

    theirs, own = told(pair.kafka), told(pair.ours)
    assert "log.retention.hours" in theirs["log.retention.ms"]
    assert theirs["log.dir"] == own["log.dir"] == ["log.dir"]
    assert (theirs["log.dirs"], own["log.dirs"]) == (["log.dirs"], ["log.dirs"] * 2)
    assert own["log.retention.ms"] == ["log.retention.ms"]


def test_a_list_is_kept_without_blanks_and_repeats_by_ours_alone(pair: Pair) -> None:
    """Our broker can remove an item that was set with blanks; Kafka ignores the removal."""
    name, policy = f"d{uuid.uuid4().hex}", "cleanup.policy"
    pair.agree_on(creating(topic(name, cleanup_policy=" compact , delete"), version=4))
    pair.agree_on(altering((policy, 3, "compact"), name=name))
    kafka_shows, we_show = (showing(name, policy)(client)[-1][1] for client in clients_of(pair))
    assert (kafka_shows, we_show) == ("compact,delete", "delete")


def clients_of(pair: Pair) -> tuple[RawClient, RawClient]:
    """Return both connections, once Kafka's broker has applied all earlier changes."""
    barrier = fresh(pair)
    row = metadata(12, MetadataRequestTopic(name=barrier))
    until_so(lambda: not row(pair.kafka)[1][1], f"{barrier} is known")
    return pair.kafka, pair.ours
