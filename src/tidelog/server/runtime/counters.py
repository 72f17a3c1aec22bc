"""Counters of the running broker, cheap enough for every request.

`Counters` is used only in the event loop's thread, so its plain numbers need no locks.
`metrics.exposition` reads the counters at a scrape.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.storage.log.append_types import AppendResult
from tidelog.types import Buffer, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.compaction.cleaner import CleaningReport


# Upper bounds (inclusive, in seconds) of the buckets for request times. One more bucket counts
# longer times.
REQUEST_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0),
)

# Upper bounds, in seconds, of latencies: append time minus create time. Negative latencies (the
# producer's clock is ahead) count in the first bucket.
LATENCY_BUCKETS_S: Final = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0),
    *(60.0, 300.0, 3600.0, 86400.0),
)


class Histogram:
    """Histogram: the number of values in each bucket, and the sum of all values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create a bucket for each inclusive upper bound (ascending), and one more bucket.

        The last bucket counts larger values.
        """
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add counts that were made with the same bounds."""
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]
        self.total += total


class RequestTally:
    """Counts of one API."""

    __slots__ = ("bytes_in", "bytes_out", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(REQUEST_BUCKETS_S)
        self.bytes_in = 0
        self.bytes_out = 0


class TopicTally:
    """Counts of one topic since the start."""

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
    """Counts of compaction since the start.

    Attributes:
        runs: Number of successful cleanings.
        failures: Number of failed cleanings.
        at_work: Number of cleanings that are running now.
        busy_ms: Total time of cleanings, in ms.
        bytes_read: Number of bytes read from log files.
        bytes_written: Number of bytes written to log files.
        records_removed: Number of records removed.
        failing: Reason of the failure, for each partition whose last cleaning failed.
        ratios: Dirty ratio of each partition at the last inspection.
        last_ms: Wall time in ms when each partition was last cleaned.
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

    def inspected(self, name: TopicPartition, ratio: float) -> None:
        """Remember the dirty ratio of an inspected partition."""
        self.ratios[name] = ratio

    def cleaned(self, report: "CleaningReport", now_ms: int) -> None:
        """Clear the partition's failure. If the cleaning made any pass, also count it."""
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
        """Count a failed cleaning."""
        self.failures += 1
        self.failing[name] = reason

    def forget_topic(self, topic: str) -> None:
        """Drop the entries of a deleted topic's partitions."""
        for figures in (self.failing, self.ratios, self.last_ms):
            for name in [name for name in figures if name.topic == topic]:
                figures.pop(name)


class Counters:
    """Counts of one broker, from 0 at its start. Used only in the event loop's thread.

    Attributes:
        apis: Counts by API name.
        topics: Counts by topic. Deleted topics are dropped.
        cleaner: Counts of compaction.
        connections: Number of open connections.
        connections_opened: Number of connections admitted since the start.
        connections_refused: Number of connections refused since the start.
        malformed_requests: Number of malformed requests since the start.
        logins: Number of authentications since the start, by mechanism and outcome (`ok`,
            `failed`).
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
        """Count an answered request.

        Args:
            api_name: Kafka's name of the API, such as `Produce`.
            seconds: Time from reading the request's last byte until the response was handed to the
                socket, or held to be sent with other responses.
            bytes_in: Size of the request's frame, including its length field.
            bytes_out: Size of the response's frame; 0 without a response (acks=0).
        """
        tally = self.apis[api_name]
        times = tally.seconds
        times.counts[bisect_left(times.bounds, seconds)] += 1
        times.total += seconds
        tally.bytes_in += bytes_in
        tally.bytes_out += bytes_out

    def connection_opened(self) -> None:
        """Count an admitted connection."""
        self.connections += 1
        self.connections_opened += 1

    def connection_closed(self) -> None:
        """Count the end of an admitted connection."""
        self.connections -= 1

    def connection_refused(self) -> None:
        """Count a refused connection (`max.connections`)."""
        self.connections_refused += 1

    def login_failed(self, mechanism: str) -> None:
        """Count a failed authentication.

        Args:
            mechanism: A known mechanism, such as `PLAIN`; `TLS` for a TLS handshake; `other` for a
                mechanism that is not enabled.
        """
        self.logins[mechanism, "failed"] += 1

    def logged_in(self, mechanism: str) -> None:
        """Count a successful authentication."""
        self.logins[mechanism, "ok"] += 1

    def malformed(self) -> None:
        """Count a malformed request, which closed its connection."""
        self.malformed_requests += 1

    def write_skipped(self, topic: str) -> None:
        """Count a versioned write that added nothing, because its version was already committed."""
        self.topics[topic].writes_skipped += 1

    def produced(self, topic: str, data: Buffer, result: AppendResult) -> None:
        """Count batches that a client appended. Duplicates are not counted.

        Args:
            topic: The topic's name.
            data: The batches as they are stored.
            result: Result of the append.
        """
        if result.is_duplicate:
            return
        tally = self.topics[topic]
        tally.records_in += result.last_offset - result.base_offset + 1
        tally.bytes_in += len(data)

    def fetched(self, topic: str, records: int, size_bytes: int) -> None:
        """Count bytes and records of a response to a client.

        `records` is a number of offsets: by how many a consumer has advanced, or how many a share
        member has acquired.
        """
        tally = self.topics[topic]
        tally.records_out += records
        tally.bytes_out += size_bytes

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a deleted topic, so that they don't accumulate."""
        self.topics.pop(topic, None)
        self.cleaner.forget_topic(topic)
