"""Leader epochs of brokers' partitions, asked in Kafka's own protocol: librdkafka tells no ends.

Source: KIP-320, OffsetForLeaderEpoch.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from tidelog.cluster.follow_leader import Leader, LeaderPartition, LeaderTopic
from tidelog.cluster.follow_transport import connect_socket, split_server
from tidelog.cluster.partition_fetch import FetchSettings
from tidelog.errors import ClusterFailure
from tidelog.types import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition

UNKNOWN: Final = (NO_LEADER_EPOCH, NO_OFFSET)


class BrokerEpochs:
    """The epochs of one cluster. One owner; connects at the first question."""

    def __init__(self, bootstrap: str, settings: FetchSettings | None) -> None:
        """Nothing is asked yet.

        Args:
            bootstrap: `host:port[,host:port]`.
            settings: How brokers are reached in plain text, None where they can't be.
        """
        self._servers = bootstrap.split(",")
        self._settings = settings
        self._leader: Leader | None = None
        self._topics: dict[str, LeaderTopic] = {}

    @property
    def is_direct(self) -> bool:
        """Whether brokers can be asked."""
        return self._settings is not None

    def ends_of(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The largest epoch up to each that is given, and its end; (-1, -1) where unknown.

        Raises:
            ClusterFailure: A broker can't be reached, or refuses.
        """
        leader = self._refresh()
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for name, epoch in epochs.items():
            by_node.setdefault(self._node_of(name), {})[name] = epoch
        found = dict.fromkeys(epochs, UNKNOWN)
        for node_id, asked in by_node.items():
            for name, end in leader.ends_of_epochs(node_id, asked).items():
                if isinstance(end, ClusterFailure):
                    raise end
                found[name] = (end.epoch, end.end_offset)
        return found

    def epochs_below(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The epoch of the last offset below each end, -1 where unknown.

        Walks down from the newest epoch: most logs are asked twice.
        """
        self._refresh()
        found = dict.fromkeys(ends, NO_LEADER_EPOCH)
        left = {name: self._epoch_of(name) for name, end in ends.items() if end > 0}
        left = {name: epoch for name, epoch in left.items() if epoch >= 0}
        while left:
            for name, (epoch, end) in self.ends_of(left).items():
                if epoch < 0 or end < ends[name]:
                    del left[name]  # the epoch above it wrote the offset
                    continue
                found[name] = epoch
                left[name] = epoch - 1
                if epoch == 0:
                    del left[name]
        return found

    def _epoch_of(self, name: TopicPartition) -> int:
        return self._partition(name).leader_epoch

    def _node_of(self, name: TopicPartition) -> int:
        return self._partition(name).leader_id

    def _partition(self, name: TopicPartition) -> LeaderPartition:
        topic = self._topics.get(name.topic)
        found = None if topic is None else topic.partitions.get(name.partition)
        if found is None or found.leader_id < 0:
            reason = "nobody leads it now" if found is not None else "there is no such partition"
            raise ClusterFailure(",".join(self._servers), f"ask for epochs of {name}", reason)
        return found

    def _refresh(self) -> Leader:
        """The server asked, after it told who leads what; the next time another if it is gone."""
        leader = self._find()
        try:
            self._topics = leader.refresh()
        except ClusterFailure:
            self.close()
            raise
        return leader

    def _find(self) -> Leader:
        """The first server that answers."""
        if self._leader is not None:
            return self._leader
        assert self._settings is not None
        connect = partial(connect_socket, timeout_s=self._settings.timeout_ms / 1000)
        failed: ClusterFailure | None = None
        for server in self._servers:
            leader = Leader(*split_server(server), connect)
            try:
                leader.refresh()
            except ClusterFailure as error:
                leader.close()
                failed = error
                continue
            self._leader = leader
            return leader
        assert failed is not None
        raise failed

    def close(self) -> None:
        """Close all connections."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None
