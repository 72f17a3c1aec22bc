"""Refused commits of offsets, for a group without members: the error code in each version."""

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import GROUP_KEY, Transacting, find_coordinator

from tidelog.protocol.messages import OFFSET_COMMIT
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.server.embedded import Broker

ILLEGAL_GENERATION, INVALID_TXN_STATE, GROUP_ID_NOT_FOUND, TRANSACTION_ABORTABLE = 22, 48, 69, 120


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize(("version", "code"), [(8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)])
def test_a_generation_of_a_group_that_does_not_exist(
    broker: Broker, generation: int, version: int, code: int
) -> None:
    broker.call(lambda node: node.log_dir.create_topic("flights", partitions=1))
    place = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=None
    )
    with RawClient(broker.bootstrap_servers) as client:
        find_coordinator(client, "gone", GROUP_KEY)

        def commit(generation: int) -> int:
            asked = OffsetCommitRequest(
                group_id="gone",
                generation_id_or_member_epoch=generation,
                member_id="m" if generation >= 0 else "",
                topics=[OffsetCommitRequestTopic(name="flights", partitions=[place])],
            )
            answer = client.ask(OFFSET_COMMIT, version, asked)
            return answer.topics[0].partitions[0].error_code

        assert commit(generation) == code
        assert commit(-1) == 0


@pytest.mark.parametrize(("version", "code"), [(3, INVALID_TXN_STATE), (4, TRANSACTION_ABORTABLE)])
def test_offsets_outside_of_the_transaction(broker: Broker, version: int, code: int) -> None:
    broker.call(lambda node: node.log_dir.create_topic("flights", partitions=1))
    with RawClient(broker.bootstrap_servers) as client:
        producer = Transacting(client, "t")
        assert producer.init() == 0
        assert producer.commit_offset("g", "flights", 1, version) == code
        assert producer.add_offsets("g") == 0
        assert producer.commit_offset("g", "flights", 1, version) == 0
