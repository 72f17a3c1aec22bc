"""Counters of the running broker, cheap enough for every request.

`Metrics` does nothing; `Counters` counts. Both belong to the event loop's thread and use plain
numbers without locks. `metrics.exposition` reads them at a scrape.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.storage.log.append import AppendResult
from tidelog.types import Buffer, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.compaction.cleaner import CleaningReport


# Upper bounds of the buckets, inclusive, in seconds; a last one without a bound follows.
REQUEST_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0),
)


# From a producer's clock to ours; negative ones (its clock is ahead) fall into the first bucket.
LATENCY_BUCKETS_S: Final = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0),
    *(60.0, 300.0, 3600.0, 86400.0),
)


class Metrics:
    """The hooks; this one keeps nothing. For the loop's thread."""

    def request(self, api_name: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """A request was answered.

        Args:
            api_name: Kafka's name of the API, `Produce`.
            seconds: From its last byte read to its answer handed to the socket, or kept for
                those that go with it.
            bytes_in: Of the request's frame, its length field included.
            bytes_out: Of the answer's; 0 where there is none (acks=0).
        """

    def connection_opened(self) -> None:
        """A client was let in."""

    def connection_closed(self) -> None:
        """A client that was let in has gone."""

    def connection_refused(self) -> None:
        """A client was turned away (`max.connections`)."""

    def login_failed(self, mechanism: str) -> None:
        """Somebody was not who he said he was.

        Args:
            mechanism: Such as `PLAIN`; one of those that are known, `TLS` for a handshake.
        """

    def logged_in(self, mechanism: str) -> None:
        """Somebody has said who he is, by this mechanism."""

    def malformed(self) -> None:
        """A request that breaks the protocol closed its connection."""

    def write_skipped(self, topic: str) -> None:
        """A numbered write from outside was committed before, and added nothing to this topic."""

    def produced(self, topic: str, data: Buffer, result: AppendResult) -> None:
        """Batches of a client were appended (or were there already, which counts nothing).

        Args:
            topic: Its name.
            data: The batches as they are stored.
            result: Where and when.
        """

    def fetched(self, topic: str, records: int, size_bytes: int) -> None:
        """Batches were handed to a client, and it has gone on by so many offsets."""

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its figures go, so that names don't pile up."""


class Histogram:
    """Counts by buckets, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """One bucket up to and with each bound, ascending, and one behind the last."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Count in what somebody else has counted by the same bounds."""
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]
        self.total += total


class RequestTally:
    """What came of one API."""

    __slots__ = ("bytes_in", "bytes_out", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(REQUEST_BUCKETS_S)
        self.bytes_in = 0
        self.bytes_out = 0


class TopicTally:
    """What came and went of one topic since the start."""

    __slots__ = (
        *("bytes_in", "bytes_out", "latency", "records_in", "records_out", "writes_skipped"),
    )

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        self.bytes_out = 0
        self.writes_skipped = 0
        self.latency = Histogram(LATENCY_BUCKETS_S)


class CleanerTally:
    """What compaction has done since the start.

    Attributes:
        runs: Cleanings that ended well.
        failures: Those that did not.
        at_work: Cleaners at work now.
        busy_ms: Time that they were at work, in ms.
        bytes_read: From log files.
        bytes_written: Into log files.
        records_removed: Records that went.
        failing: Partitions whose last cleaning failed, and why.
        ratios: Dirty share of each partition when it was last looked at.
        last_ms: When each partition was last cleaned, wall time in ms.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.failures = 0
        self.at_work = 0
        self.busy_ms = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_removed = 0
        self.failing: dict[TopicPartition, str] = {}
        self.ratios: dict[TopicPartition, float] = {}
        self.last_ms: dict[TopicPartition, int] = {}

    def looked(self, name: TopicPartition, ratio: float) -> None:
        """A partition was looked at."""
        self.ratios[name] = ratio

    def cleaned(self, report: "CleaningReport", now_ms: int) -> None:
        """A run has ended well; where nothing was due it counts nothing."""
        self.failing.pop(report.name, None)
        if not report.passes:
            return
        self.runs += 1
        self.bytes_read += report.bytes_read
        self.bytes_written += report.bytes_written
        self.records_removed += report.records_before - report.records_after
        self.ratios[report.name] = 0.0
        self.last_ms[report.name] = now_ms

    def failed(self, name: TopicPartition, reason: str) -> None:
        """A run has failed."""
        self.failures += 1
        self.failing[name] = reason

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        for figures in (self.failing, self.ratios, self.last_ms):
            for name in [name for name in figures if name.topic == topic]:
                figures.pop(name)


class Counters(Metrics):
    """The hooks that count. Figures begin at 0 with the process.

    Attributes:
        apis: By the API's name.
        topics: By topic, as long as it exists.
        cleaner: What compaction has done.
        connections: Clients connected now.
        connections_opened: Ever.
        connections_refused: Turned away, ever.
        malformed_requests: Ever.
        logins: Ever, by mechanism and outcome (`ok`, `failed`).
    """

    def __init__(self) -> None:
        self.apis: defaultdict[str, RequestTally] = defaultdict(RequestTally)
        self.topics: defaultdict[str, TopicTally] = defaultdict(TopicTally)
        self.cleaner = CleanerTally()
        self.connections = 0
        self.connections_opened = 0
        self.connections_refused = 0
        self.malformed_requests = 0
        self.logins: defaultdict[tuple[str, str], int] = defaultdict(int)

    def request(self, api_name: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """See `Metrics`."""
        tally = self.apis[api_name]
        times = tally.seconds  # as `observe`, without the call
        times.counts[bisect_left(times.bounds, seconds)] += 1
        times.total += seconds
        tally.bytes_in += bytes_in
        tally.bytes_out += bytes_out

    def connection_opened(self) -> None:
        """See `Metrics`."""
        self.connections += 1
        self.connections_opened += 1

    def connection_closed(self) -> None:
        """See `Metrics`."""
        self.connections -= 1

    def connection_refused(self) -> None:
        """See `Metrics`."""
        self.connections_refused += 1

    def login_failed(self, mechanism: str) -> None:
        """See `Metrics`."""
        self.logins[mechanism, "failed"] += 1

    def logged_in(self, mechanism: str) -> None:
        """See `Metrics`."""
        self.logins[mechanism, "ok"] += 1

    def malformed(self) -> None:
        """See `Metrics`."""
        self.malformed_requests += 1

    def write_skipped(self, topic: str) -> None:
        """See `Metrics`."""
        self.topics[topic].writes_skipped += 1

    def produced(self, topic: str, data: Buffer, result: AppendResult) -> None:
        """See `Metrics`."""
        if result.is_duplicate:
            return
        tally = self.topics[topic]
        tally.records_in += result.last_offset - result.base_offset + 1
        tally.bytes_in += len(data)

    def fetched(self, topic: str, records: int, size_bytes: int) -> None:
        """See `Metrics`."""
        tally = self.topics[topic]
        tally.records_out += records
        tally.bytes_out += size_bytes

    def forget_topic(self, topic: str) -> None:
        """See `Metrics`."""
        self.topics.pop(topic, None)
        self.cleaner.forget_topic(topic)
