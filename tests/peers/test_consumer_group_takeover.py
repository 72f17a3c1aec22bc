"""A group of the consumer protocol with Kafka, with our broker, and with Kafka again.

Each broker is killed, and the next one reads its `__consumer_offsets`: it describes the same group,
and the members continue in their epochs.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.peers.consumer_talk import (
    ROUTES,
    ROUTES_PARTITIONS,
    ROUTES_SUBSCRIBED,
    STOPS,
    STOPS_PARTITIONS,
    ConsumerTalk,
)
from tests.worlds.brokers.victims import Nursery, Victim
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.either import kafka_fixture

from tidelog.protocol.messages.classic_groups import JoinGroupResponse
from tidelog.protocol.messages.shared import GroupProtocol

pytestmark = pytest.mark.kafka

GROUP = "handed over"
# Timeout in ms, so long that no member expires while a broker starts.
SESSION_MS = "600000"
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
}
NAMES = ("A", "B", "C")


@dataclass(frozen=True, slots=True)
class Seen:
    """A group as one broker describes it, and the state of the group's members."""

    told: list[object]
    talk: ConsumerTalk
    classic: JoinGroupResponse

    def goes_on(self, bootstrap: str) -> ConsumerTalk:
        """Assert that the next broker describes the same group, and accepts the members' epochs."""
        talk = ConsumerTalk(bootstrap, GROUP)
        talk.epochs, talk.owned = self.talk.epochs, self.talk.owned
        told = look(talk)
        differ = [
            f"{now}\n   before: {was}"
            for now, was in zip(told, self.told, strict=True)
            if now != was
        ]
        assert not differ, "\n".join(differ)
        beat = talk.heartbeat_code(self.classic.member_id, self.classic.generation_id)
        assert beat == 0
        before = dict(talk.epochs)
        for name in NAMES:
            answer = talk.beat_owning(name)
            assert (answer.error_code, answer.member_id) == (0, name)
            assert answer.member_epoch >= before[name]
        return talk


def look(talk: ConsumerTalk) -> list[object]:
    """Return the description of the group: its members, their partitions and committed offsets."""
    start = len(talk.told)
    talk.describe_consumers()
    talk.listed()
    talk.fetch_as(None, -1)
    return talk.told[start:]


def gather(bootstrap: str) -> Seen:
    """Join members: one names topics, one is static, one has an expression, one is classic."""
    talk = ConsumerTalk(bootstrap, GROUP)
    talk.enter("A", ROUTES, STOPS)
    talk.enter("B", instance_id="seat", rack_id="here", server_assignor="range")
    joined = talk.enter("C", subscribed_topic_names=[], subscribed_topic_regex="st.*")
    asked = talk.beat_request("C", joined.member_epoch, topic_partitions=[])
    talk.await_epoch("C", asked, joined.member_epoch + 1)
    protocols = [GroupProtocol(name="range", metadata=ROUTES_SUBSCRIBED)]
    classic = talk.join(protocols=protocols, session_timeout_ms=int(SESSION_MS))
    talk.settle(*NAMES)
    return seen(talk, classic)


def change(talk: ConsumerTalk, classic: JoinGroupResponse) -> Seen:
    """Change a member's topics, let members rejoin if the broker requires it, and commit again."""
    talk.beat("A", subscribed_topic_names=[STOPS])
    talk.settle(*NAMES)
    protocols = [GroupProtocol(name="range", metadata=ROUTES_SUBSCRIBED)]
    again = talk.join(classic.member_id, protocols=protocols, session_timeout_ms=int(SESSION_MS))
    talk.settle(*NAMES)
    return seen(talk, again)


def seen(talk: ConsumerTalk, classic: JoinGroupResponse) -> Seen:
    """Return the state after the classic member got its assignment and the member A committed."""
    protocols = [GroupProtocol(name="range", metadata=ROUTES_SUBSCRIBED)]
    classic = talk.join(classic.member_id, protocols=protocols, session_timeout_ms=int(SESSION_MS))
    assert talk.sync(classic) == 0
    talk.commit(talk.epochs["A"], "A", talk.epochs["A"], topic=ROUTES)
    return Seen(look(talk), talk, classic)


kafka = kafka_fixture(SETTINGS, is_started=False, scope="function")


def test_a_group_is_taken_over_and_back(kafka: Broker, tmp_path: Path) -> None:
    kafka.start()
    kafka.create_topic(ROUTES, ROUTES_PARTITIONS)
    kafka.create_topic(STOPS, STOPS_PARTITIONS)
    theirs = gather(kafka.bootstrap)
    theirs.talk.close()
    kafka.kill()
    options = [part for name, text in SETTINGS.items() for part in ("--set", f"{name}={text}")]
    with Nursery(tmp_path / "log") as nursery:
        ours = Victim(nursery, kafka.log_dir, *options)
        ours.start()
        talk = theirs.goes_on(ours.bootstrap)
        changed = change(talk, theirs.classic)
        assert changed.told != theirs.told
        talk.close()
        ours.kill()
        ours.start()
        changed.goes_on(ours.bootstrap).close()
        ours.kill()
    kafka.start()
    changed.goes_on(kafka.bootstrap).close()
