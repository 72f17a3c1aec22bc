"""Between the node and who watches it: facts for the exposition, the pages, the end of both."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.server.exposition import Exposition, GroupFacts
from tidelog.server.latency_counts import LatencyCounts
from tidelog.server.listening import naming
from tidelog.server.metrics_http import MetricsServer
from tidelog.server.node import LOGGER, Address
from tidelog.server.partitions import Partition
from tidelog.server.settings import metrics_place
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.env import Clock
    from tidelog.server.metrics import Counters
    from tidelog.server.node import Node


class NodeFacts:
    """What the exposition looks at, of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.counters: Counters = node.metrics
        self.clock: Clock = node.env.clock

    def partitions(self) -> Iterable[Partition]:
        """Those that are open."""
        return self._node.partitions.opened()

    def partition(self, topic: str, number: int) -> Partition | None:
        """One that is open, None where it is not."""
        return self._node.partitions.find_open(TopicPartition(topic, number))

    def groups(self) -> Iterable[GroupFacts]:
        """All loaded groups; none where no client has asked for one since the start."""
        return self._node.groups.facts() if self._node.has_groups else ()


async def start_pages(node: "Node", is_ready: Callable[[], bool]) -> MetricsServer:
    """Serve a node's pages where `tidelog.metrics.listen` says.

    Raises:
        ConfigError: `tidelog.metrics.listen` can't be read.
        OSError: The address can't be had.
    """
    place = metrics_place(node.config)
    assert place is not None
    facts = NodeFacts(node)
    latencies = LatencyCounts(facts, node.work)
    found = MetricsServer(Exposition(facts), node.work, is_ready, latencies.count)
    with naming(place):
        port = await found.start(place.host, place.port)
    node.metrics_address = Address(place.host, port)
    address = str(node.metrics_address)
    LOGGER.info("metrics on http://%s/metrics", address, extra={"address": address})
    return found
