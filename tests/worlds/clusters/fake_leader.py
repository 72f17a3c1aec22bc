"""Fake leader that serves Kafka's protocol from a tidelog directory in memory.

The fake leader replaces only the follower's transport, with functions on bytes. So every test of a
standby uses the whole protocol. `mangle` may change a response before it is sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tests.faults import SeededEnv, seeded_env

from tidelog.config.topic import TOPIC_CONFIG_BY_NAME
from tidelog.errors import UnknownTopic
from tidelog.protocol.framing import Frames
from tidelog.protocol.messages import BY_KEY, group_offsets
from tidelog.protocol.messages import classic_groups as gr
from tidelog.protocol.messages import configs as cf
from tidelog.protocol.messages import fetch as fe
from tidelog.protocol.messages import list_offsets as of
from tidelog.protocol.messages import metadata as md
from tidelog.protocol.requests import ReceivedRequest, read_request, write_response
from tidelog.record.batch_walk import walk
from tidelog.remote.broker_connection import Transport
from tidelog.standby.follower import Follower, Seams
from tidelog.storage.directory.broker_files import GroupOffset
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    Buffer,
    IsolationLevel,
    NewRecord,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HOST, PORT, NODE = "leader", 9092, 1
LEADER_PATH = "/leader"
Mangle = Callable[[ReceivedRequest, "DataclassInstance"], "DataclassInstance"]


@dataclass
class FakeLeader:
    """Brokers that lead the partitions of `directory` in turn: partition N by broker N mod `nodes`.

    Attributes:
        nodes: How many brokers exist; broker N listens on port `PORT` + N.
        shift: Number of brokers by which the leadership of all partitions has moved.
        groups: Committed offsets of groups.
        groups_error: Error code of the response that lists groups.
        moved_to: Index of the broker to which the groups move after a request has listed the
            groups; None if they don't move.
        versions: Highest version of an API by the API's key; by default the last declared version.
        mangle: Called with every request and its response; returns the response to send.
        wire: Called with a response's bytes; returns the bytes to send.
        is_down: Whether connections are refused.
        asked: Names of the requested APIs, in order.
    """

    env: SeededEnv = field(default_factory=lambda: seeded_env(2))
    nodes: int = 1
    shift: int = 0
    groups: dict[str, list[GroupOffset]] = field(default_factory=dict)
    groups_error: int = 0
    moved_to: int | None = None
    versions: dict[int, int] = field(default_factory=dict)
    mangle: Mangle = lambda _request, answer: answer
    wire: Callable[[bytes], bytes] = lambda data: data
    is_down: bool = False
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = self._open()
        self.node = 0

    def _open(self) -> LogDir:
        return LogDir.open(LEADER_PATH, env=self.env, options=LogDirOptions(create=True))

    def create(self, topic: str = "t", partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        settings.setdefault("message.timestamp.after.max.ms", str(2**63 - 1))
        settings.setdefault("retention.ms", "-1")
        self.directory.create_topic(topic, partitions=partitions, config=settings)

    def log(self, topic: str = "t", partition: int = 0) -> Log:
        return self.directory.log(topic, partition)

    def put(self, *values: bytes, topic: str = "t", partition: int = 0) -> None:
        """Append one batch with a record for each value."""
        records = [NewRecord(key=b"k", value=value, timestamp=1000) for value in values]
        self.log(topic, partition).append(records, batch_bytes=1 << 20)

    def restart(self) -> None:
        """Stop and start the leader, which increases the leader epoch."""
        self.directory.close()
        self.directory = self._open()

    def connect(self, host: str, port: int) -> Transport:
        if self.is_down:
            raise ConnectionRefusedError("down")
        assert host == HOST
        return _FakeTransport(self, port - PORT)

    def seams(self, env: SeededEnv) -> Seams:
        """Return a standby's replaceable parts: `env`, connections to this leader, and pauses.

        Instead of a pause, only the clock is advanced.
        """
        return Seams(
            env=env,
            connect=self.connect,
            pause=lambda seconds: env.clock.advance(int(seconds * 1000)),
        )

    def node_of(self, partition: int) -> int:
        """Return the index of the broker that leads a partition."""
        return (partition + self.shift) % self.nodes

    def answer(self, frame: Buffer, node: int = 0) -> bytes:
        request = read_request(frame)
        self.asked.append(request.api.name)
        self.node = node
        handlers = {
            18: self._api_versions,
            3: self._metadata,
            1: self._fetch,
            2: self._list_offsets,
            23: self._epochs,
            32: self._configs,
            16: self._list_groups,
            9: self._offset_fetch,
            10: self._find_coordinator,
        }
        answer = self.mangle(request, handlers[request.api.key](request))
        return self.wire(b"".join(bytes(part) for part in write_response(request, answer)))

    def _api_versions(self, _request: ReceivedRequest) -> "DataclassInstance":
        return md.ApiVersionsResponse(
            api_keys=[
                md.ApiVersion(
                    api_key=key,
                    min_version=api.first,
                    max_version=self.versions.get(key, api.last),
                )
                for key, api in BY_KEY.items()
            ]
        )

    def _metadata(self, _request: ReceivedRequest) -> "DataclassInstance":
        topics = []
        for info in self.directory.topics().values():
            assert info.topic_id is not None
            partitions = [
                md.MetadataPartition(
                    partition_index=number,
                    leader_id=NODE + self.node_of(number),
                    leader_epoch=self.log(info.name, number).leader_epoch,
                )
                for number in range(info.partitions)
            ]
            topics.append(
                md.MetadataTopic(name=info.name, topic_id=info.topic_id, partitions=partitions)
            )
        return md.MetadataResponse(
            brokers=[
                md.MetadataBroker(node_id=NODE + number, host=HOST, port=PORT + number)
                for number in range(self.nodes)
            ],
            topics=topics,
        )

    def _find(self, topic: str, partition: int) -> Log | None:
        try:
            return self.log(topic, partition)
        except UnknownTopic:
            return None

    def _fetch(self, request: ReceivedRequest) -> "DataclassInstance":
        asked = cast("fe.FetchRequest", request.message)
        names = {info.topic_id: info.name for info in self.directory.topics().values()}
        responses = [
            fe.FetchableTopic(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    self._fetched(
                        topic.topic or names.get(topic.topic_id, ""),
                        wanted,
                        IsolationLevel(asked.isolation_level),
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
        return fe.FetchResponse(responses=responses)

    def _fetched(
        self, topic: str, wanted: fe.FetchPartition, isolation: IsolationLevel
    ) -> fe.PartitionData:
        found = fe.PartitionData(partition_index=wanted.partition, aborted_transactions=[])
        log = self._find(topic, wanted.partition)
        if log is None:
            found.error_code = 100
        elif self.node_of(wanted.partition) != self.node:
            found.error_code = 6
        elif wanted.current_leader_epoch != log.leader_epoch:
            found.error_code = 74 if wanted.current_leader_epoch < log.leader_epoch else 75
        elif not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            found.error_code = 1
        else:
            self._fill(found, log, wanted)
            if isolation is IsolationLevel.READ_COMMITTED:
                _commit_only(found, log, wanted)
        return found

    def _fill(self, found: fe.PartitionData, log: Log, wanted: fe.FetchPartition) -> None:
        found.high_watermark = log.high_watermark
        found.log_start_offset = log.log_start_offset
        found.last_stable_offset = log.last_stable_offset
        epoch = wanted.last_fetched_epoch
        if epoch >= 0:
            known, end = log.leader_epochs.end_offset_for(epoch, log.log_end_offset)
            if known < epoch or end < wanted.fetch_offset:
                found.diverging_epoch = fe.DivergingEpoch(epoch=known, end_offset=end)
                return
        found.records = _bytes_from(log, wanted.fetch_offset, wanted.partition_max_bytes)

    def _list_offsets(self, request: ReceivedRequest) -> "DataclassInstance":
        asked = cast("of.ListOffsetsRequest", request.message)
        return of.ListOffsetsResponse(
            topics=[
                of.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        of.ListOffsetsPartitionResponse(
                            partition_index=wanted.partition_index,
                            offset=(
                                self.log(topic.name, wanted.partition_index).log_start_offset
                                if wanted.timestamp
                                in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP)
                                else self.log(topic.name, wanted.partition_index).high_watermark
                            ),
                        )
                        for wanted in topic.partitions
                    ],
                )
                for topic in asked.topics
            ]
        )

    def _epochs(self, request: ReceivedRequest) -> "DataclassInstance":
        asked = cast("of.OffsetForLeaderEpochRequest", request.message)
        answer = of.OffsetForLeaderEpochResponse()
        for topic in asked.topics:
            results = []
            for wanted in topic.partitions:
                log = self.log(topic.topic, wanted.partition)
                log.swaps.begin_epoch()  # as Kafka does on becoming the leader
                known, end = log.leader_epochs.end_offset_for(
                    wanted.leader_epoch, log.log_end_offset
                )
                results.append(
                    of.EpochEndOffset(
                        partition=wanted.partition, leader_epoch=known, end_offset=end
                    )
                )
            answer.topics.append(
                of.OffsetForLeaderTopicResult(topic=topic.topic, partitions=results)
            )
        return answer

    def _configs(self, request: ReceivedRequest) -> "DataclassInstance":
        asked = cast("cf.DescribeConfigsRequest", request.message)
        return cf.DescribeConfigsResponse(
            results=[
                cf.DescribeConfigsResult(
                    resource_type=cf.TOPIC_RESOURCE,
                    resource_name=resource.resource_name,
                    configs=self._configs_of(resource.resource_name),
                )
                for resource in asked.resources
            ]
        )

    def _configs_of(self, topic: str) -> list[cf.DescribedConfig]:
        """Return a topic's settings as a broker reports them: the topic's own, and defaults."""
        given = self.directory.topic(topic).given
        defaults = {key: "?" for key in TOPIC_CONFIG_BY_NAME if key not in given}
        return [
            cf.DescribedConfig(name=key, value=value, config_source=source)
            for values, source in (
                (defaults, cf.ConfigSource.DEFAULT),
                (given, cf.ConfigSource.TOPIC),
            )
            for key, value in values.items()
        ]

    def _list_groups(self, _request: ReceivedRequest) -> "DataclassInstance":
        return gr.ListGroupsResponse(
            error_code=self.groups_error,
            groups=[
                gr.ListedGroup(group_id=name, protocol_type="consumer") for name in self.groups
            ],
        )

    def _find_coordinator(self, _request: ReceivedRequest) -> "DataclassInstance":
        node_id = NODE + (self.moved_to or 0)
        return gr.FindCoordinatorResponse(
            node_id=node_id, coordinators=[gr.Coordinator(node_id=node_id)]
        )

    def _offset_fetch(self, request: ReceivedRequest) -> "DataclassInstance":
        asked = cast("group_offsets.OffsetFetchRequest", request.message)
        name = asked.groups[0].group_id if request.version >= 8 else asked.group_id
        if self.moved_to not in (None, self.node):
            refused = group_offsets.OffsetFetchGroupResponse(group_id=name, error_code=16)
            return group_offsets.OffsetFetchResponse(error_code=16, groups=[refused])
        if request.version < 8:
            return group_offsets.OffsetFetchResponse(
                topics=[
                    group_offsets.OffsetFetchTopicResponse(
                        name=commit.topic,
                        partitions=[
                            group_offsets.OffsetFetchPartitionResponse(
                                partition_index=commit.partition, committed_offset=commit.offset
                            )
                        ],
                    )
                    for commit in self.groups[name]
                ]
            )
        topics = []
        for commit in self.groups[name]:
            topic_id = self.directory.topic(commit.topic).topic_id
            assert topic_id is not None
            partition = group_offsets.OffsetFetchPartitionResponse(
                partition_index=commit.partition,
                committed_offset=commit.offset,
                metadata=commit.metadata,
            )
            topics.append(
                group_offsets.OffsetFetchTopicResponse(
                    name=commit.topic, topic_id=topic_id, partitions=[partition]
                )
            )
        return group_offsets.OffsetFetchResponse(
            groups=[group_offsets.OffsetFetchGroupResponse(group_id=name, topics=topics)]
        )


def _commit_only(found: fe.PartitionData, log: Log, wanted: fe.FetchPartition) -> None:
    """Drop records at or after the last stable offset, and add the list of aborted transactions."""
    stable, kept = log.last_stable_offset, b""
    end = wanted.fetch_offset
    for batch in walk(found.batches):
        if batch.base_offset < stable:
            kept, end = kept + bytes(batch.view), batch.next_offset
    found.records = kept
    found.aborted_transactions = [
        fe.AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for segment in log.segments
        for entry in segment.txn_index.collect(wanted.fetch_offset, end)[0]
    ]


def _bytes_from(log: Log, start: int, max_bytes: int) -> bytes:
    """Return the whole batches from offset `start` on: at least one, more if they fit."""
    out = b""
    for part in log.slices(start):
        for _, batch in part.batches():
            if batch.last_offset < start:
                continue
            data = bytes(batch.view)
            if out and len(out) + len(data) > max_bytes:
                return out
            out += data
    return out


def catch_up(follower: Follower) -> None:
    """Run rounds until every partition has caught up with its leader, or has stopped."""
    for _ in follower.rounds_to_catch_up():
        pass


def leader_of_twelve() -> FakeLeader:
    """Return a leader with twelve records in one partition, in four batches."""
    found = FakeLeader()
    found.create()
    for number in range(4):
        found.put(*(b"%d" % (number * 3 + n) for n in range(3)))
    return found


class _FakeTransport:
    def __init__(self, leader: FakeLeader, node: int) -> None:
        self._leader = leader
        self._node = node
        self._frames = Frames()
        self._answers: deque[bytes] = deque()

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._leader.is_down:
            raise ConnectionResetError("down")
        for part in parts:
            self._frames.feed(part)
        while (frame := self._frames.next()) is not None:
            self._answers.append(self._leader.answer(frame, self._node))

    def begin_answer(self) -> None:
        pass

    def receive(self, max_bytes: int) -> bytes:
        if not self._answers:
            return b""
        data = self._answers.popleft()
        if len(data) > max_bytes:
            self._answers.appendleft(data[max_bytes:])
        return data[:max_bytes]

    def close(self) -> None:
        self._answers.clear()
