"""Members of a share group, controlled by a test, on real Kafka or on our broker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from tests.worlds.clients.raw import RawClient
from tests.worlds.waiting import Patience, until

from tidelog.protocol.messages import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
)
from tidelog.protocol.messages.classic_groups import FindCoordinatorRequest
from tidelog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.modern_groups import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidelog.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from tidelog.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

GROUP_CONFIG: Final = 32
Ack = tuple[int, int, list[int]]
# Parts of a response: its error code, then for each partition its index, the error codes of fetch
# and acknowledgement, the acquired ranges, and the base offsets of the batches.
Told = tuple[int, list[tuple[int, int, int, list[tuple[int, int, int]], list[int]]]]


@dataclass
class Member:
    """A member of a group on one broker; tracks the epoch of its share session."""

    client: RawClient
    group: str
    topic: str
    topic_id: UUID
    name: str = field(default_factory=lambda: str(uuid4()))
    epoch: int = 0

    def join(self) -> None:
        """Join the group, and wait until the topic's partition is assigned."""
        found = FindCoordinatorRequest(coordinator_keys=[self.group])
        until(
            lambda: self.client.ask(FIND_COORDINATOR, 4, found).coordinators[0].error_code,
            lambda code: code == 0,
        )
        told = until(lambda: self._beat(0), lambda told: told.error_code == 0)
        patience = Patience()
        while told.assignment is None or not told.assignment.topic_partitions:
            patience.check(told)
            told = self._beat(told.member_epoch)
            assert told.error_code == 0, told

    def _beat(self, epoch: int) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.name,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=[self.topic],
        )
        return self.client.ask(SHARE_GROUP_HEARTBEAT, 1, request)

    def topics(self, acks: Sequence[Ack], partition: int = 0) -> list[ShareFetchTopic]:
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acks
        ]
        asked = ShareFetchPartition(partition_index=partition, acknowledgement_batches=batches)
        return [ShareFetchTopic(topic_id=self.topic_id, partitions=[asked])]

    def fetch(self, *acks: Ack, **changes: object) -> Told:
        """Acknowledge some records and fetch more; return the response without the records."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            max_wait_ms=300,
            min_bytes=1,
            max_records=1000,
            batch_size=500,
            topics=self.topics(acks),
        )
        for name, value in changes.items():
            setattr(request, name, value)
        return plain(self.client.ask(SHARE_FETCH, 2, request))

    def begin(self, **changes: object) -> Told:
        """Fetch until records are acquired: the broker first loads the group's state."""
        return until(lambda: self.fetch(**changes), has_lent)

    def say(self, *acks: Ack, **changes: object) -> tuple[int, list[int]]:
        """Acknowledge records; return the error codes of the response and of each partition."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        topics = [
            ShareFetchTopic(topic_id=each.topic_id, partitions=each.partitions)
            for each in self.topics(acks)
        ]
        request = ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.name, share_session_epoch=epoch, topics=topics
        )
        for name, value in changes.items():
            setattr(request, name, value)
        response = self.client.ask(SHARE_ACKNOWLEDGE, 2, request)
        codes = [data.error_code for topic in response.responses for data in topic.partitions]
        return response.error_code, codes


def plain(response: ShareFetchResponse) -> Told:
    partitions = []
    for topic in response.responses:
        for data in topic.partitions:
            lent = [
                (each.first_offset, each.last_offset, each.delivery_count)
                for each in data.acquired_records
            ]
            records = data.records
            assert records is None or isinstance(records, bytes | bytearray | memoryview)
            bases = [batch.base_offset for batch in walk(bytes(records or b""))]
            found = (data.partition_index, data.error_code, data.acknowledge_error_code)
            partitions.append((*found, joined(lent), bases))
    return response.error_code, partitions


def joined(lent: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join adjacent ranges with the same delivery count, because Kafka returns some separately."""
    found: list[tuple[int, int, int]] = []
    for first, last, count in lent:
        if found and found[-1][1] + 1 == first and found[-1][2] == count:
            found[-1] = (found[-1][0], last, count)
        else:
            found.append((first, last, count))
    return found


def has_lent(told: Told) -> bool:
    return any(lent for _, _, _, lent, _ in told[1])


class Side:
    """One of the two brokers, with a topic for each test."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.client = RawClient(bootstrap)
        self._clients = [self.client]
        self.topic = f"shared-{uuid4()}"
        self.topic_id = self._topic()
        self.group = f"group-{uuid4()}"
        self.set(**{"share.auto.offset.reset": "earliest"})

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _topic(self) -> UUID:
        ask = self.client.ask
        created = CreatableTopic(name=self.topic, num_partitions=1, replication_factor=1)
        ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[created], timeout_ms=60_000))
        named = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)])
        found = until(
            lambda: ask(METADATA, 12, named).topics[0],
            lambda topic: not topic.error_code and bool(topic.partitions),
        )
        return found.topic_id

    def set(self, **texts: str) -> None:
        configs = [
            IncrementallyAlteredConfig(name=name, config_operation=0, value=value)
            for name, value in texts.items()
        ]
        resource = IncrementalAlterConfigsResource(
            resource_type=GROUP_CONFIG, resource_name=self.group, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = self.client.ask(INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert [each.error_code for each in answer.responses] == [0]
        # Kafka's broker applies the change some time after its response, with the next metadata
        # image.
        until(lambda: self._settings(*texts), lambda shown: shown == texts)

    def _settings(self, *names: str) -> dict[str, str | None]:
        resource = DescribeConfigsResource(
            resource_type=GROUP_CONFIG, resource_name=self.group, configuration_keys=list(names)
        )
        request = DescribeConfigsRequest(resources=[resource])
        (answer,) = self.client.ask(DESCRIBE_CONFIGS, 4, request).results
        return {config.name: config.value for config in answer.configs}

    def member(self) -> Member:
        """Return a member on a connection of its own."""
        client = RawClient(self._bootstrap)
        self._clients.append(client)
        made = Member(client, self.group, self.topic, self.topic_id)
        made.join()
        return made

    def produce(self, *sizes: int) -> None:
        for size in sizes:
            batch = build_batch([NewRecord(value=b"v") for _ in range(size)])
            assert self.client.produce(self.topic, bytes(batch)).error_code == 0

    def delete_below(self, offset: int) -> None:
        asked = DeleteRecordsPartition(partition_index=0, offset=offset)
        topic = DeleteRecordsTopic(name=self.topic, partitions=[asked])
        self.client.ask(DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[topic], timeout_ms=9000))
