"""Commands can describe and reset a group that has committed offsets with a metadata text."""

import pytest
from tests.contracts.broker_commands import Shell, only
from tests.worlds.clients.raw import RawClient

import tidelog
from tidelog.protocol.messages import OFFSET_COMMIT, OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.remote.view import Committed
from tidelog.server.embedded import Broker
from tidelog.types import NewRecord, TopicPartition

PLACE = TopicPartition("t", 0)
# Texts of several lengths: for some lengths, the client library returns extra random bytes.
TEXTS = ("", "a", "ab", "abc", "é" * 12, "x" * 200)


@pytest.fixture
def shell(broker: Broker) -> Shell:
    broker.call(lambda node: node.log_dir.create_topic("t"))
    with tidelog.connect(broker.bootstrap_servers) as log:
        log.append("t", [NewRecord(value=b"v")] * 9)
        log.cluster.commit("g", {PLACE: Committed(1)})  # then the broker has loaded its groups
    return Shell(broker.bootstrap_servers)


def commit(address: str, group: str, text: str) -> None:
    """Commit offset 3 with a metadata text, as some consumers do."""
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=text
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[part])
    message = OffsetCommitRequest(group_id=group, member_id="", topics=[topic])
    with RawClient(address) as client:
        answer = client.ask(OFFSET_COMMIT, 7, message)
    assert answer.topics[0].partitions[0].error_code == 0


def offset_and_text(address: str, group: str) -> tuple[int, str | None]:
    """Return the committed offset and its metadata text, read without a client library."""
    topic = OffsetFetchTopic(name="t", partition_indexes=[0])
    with RawClient(address) as client:
        answer = client.ask(OFFSET_FETCH, 5, OffsetFetchRequest(group_id=group, topics=[topic]))
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.metadata


@pytest.mark.parametrize("text", TEXTS)
def test_a_group_with_commit_metadata_is_described_and_reset(shell: Shell, text: str) -> None:
    commit(shell.bootstrap, "g", text)
    for _ in range(3):
        (group,) = shell.rows("groups", "describe", "g")
        assert only(group["offsets"])["offset"] == 3
        (row,) = shell.rows("lag", "g")
        assert row["committed"] == 3
    shell.rows("rewind", "--group", "g", "--to", "earliest", "--execute")
    assert offset_and_text(shell.bootstrap, "g") == (0, "")


@pytest.mark.parametrize("epoch", [None, 0])
def test_a_commit_of_ours_carries_no_text(shell: Shell, epoch: int | None) -> None:
    with tidelog.connect(shell.bootstrap) as log:
        log.cluster.commit("g", {PLACE: Committed(5, epoch)})
        assert log.cluster.committed("g") == {PLACE: Committed(5, epoch)}
    assert offset_and_text(shell.bootstrap, "g") == (5, "")
