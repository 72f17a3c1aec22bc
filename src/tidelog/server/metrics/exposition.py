"""The broker's metrics in Prometheus text format, generated in chunks.

Partitions, groups and counters are read at each scrape; only times of segments and of the first
batch are cached. No record is decoded. The only batch header that is read is the header of the
log's first batch; it is read again when the log start has changed. The text is written directly,
because Prometheus's client library would create several objects for each of up to 100,000 samples.
Only the metrics of the process (CPU, memory, descriptors) come from Prometheus's library.
Partitions, topics, groups and commits beyond a limit are omitted, and metrics show how many of them
are omitted. `Counters` (`runtime.counters`) states exactly what each counter counts.

Used only in the event loop's thread. Source: Prometheus text format 0.0.4.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from itertools import islice
from typing import Final, Protocol

from tidelog.env import Clock
from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.counters import Counters, Histogram
from tidelog.storage.log.log import Log
from tidelog.types import MS_PER_SECOND, NO_TIMESTAMP, TopicPartition

# Number of segments that are examined before other tasks of the event loop run. The number is low,
# because each segment may have to open its time index.
_SEGMENTS_AT_ONCE: Final = 20
# Number of segments that are visited before other tasks run, including segments that need no
# examination.
_VISITED_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Current state of one partition; times in ms, None if unknown or not applicable.

    Attributes:
        name: Topic and number.
        log_start_offset: First offset that can be read.
        high_watermark: End (exclusive) of the records that consumers may read.
        last_stable_offset: Offset below which no transaction is open.
        log_end_offset: Offset of the next record.
        producers: Number of known producers with an id.
        open_transactions: Number of open transactions.
        segments: Number of segments, including segments in a tier.
        size_bytes: Bytes of its log files.
        is_offline: Whether its disk has failed, so that it accepts no appends until it is reopened.
        oldest_record_ms: Largest timestamp of the first batch.
        newest_record_ms: Largest timestamp of all records.
        oldest_append_ms: Append time of the first record.
        newest_append_ms: Append time of the last record.
        last_roll_ms: Append time of the active segment's first record; None if the segment is empty
            or the only one.
        last_deletion_ms: Time of the last deletion by retention since the broker started.
    """

    name: TopicPartition
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    producers: int
    open_transactions: int
    segments: int
    size_bytes: int
    is_offline: bool
    oldest_record_ms: int | None = None
    newest_record_ms: int | None = None
    oldest_append_ms: int | None = None
    newest_append_ms: int | None = None
    last_roll_ms: int | None = None
    last_deletion_ms: int | None = None


class PartitionStats:
    """Collects the state of one partition at each scrape."""

    def __init__(self) -> None:
        # Size in bytes and largest timestamp of each finished segment, by base offset.
        self._largest: dict[int, tuple[int, int]] = {}
        self._first: tuple[int, int | None, int | None] = (-1, None, None)

    def examine(self, partition: Partition) -> Iterator[None]:
        """Examine new finished segments, a few at each step; other tasks can run between the steps.

        A finished segment is examined once, and again if its size has changed, for example by
        compaction. A replacement of equal size is not noticed. Segments whose files can't be read
        are skipped, and examined again at the next scrape.
        """
        largest: dict[int, tuple[int, int]] = {}
        count = 0
        for number, segment in enumerate(tuple(partition.log.segments[:-1]), 1):
            known = self._largest.get(segment.base_offset)
            with suppress(OSError, TidelogError):
                size_bytes = segment.size_bytes
                if known is None or known[0] != size_bytes:
                    count += 1
                    known = size_bytes, segment.largest_timestamp
                largest[segment.base_offset] = known
            if count >= _SEGMENTS_AT_ONCE or not number % _VISITED_AT_ONCE:
                count = 0
                yield
        self._largest = largest

    def find(self, partition: Partition) -> PartitionFacts:
        """Return the current state, with the results of `examine`.

        Times that can't be read are None.
        """
        log, states = partition.log, partition.log.producer_states()
        times: dict[str, int | None] = {}
        size_bytes = 0
        with suppress(OSError, TidelogError):
            size_bytes = log.size_bytes()
            times = self._times(log)
        return PartitionFacts(
            name=partition.name,
            log_start_offset=log.log_start_offset,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_end_offset=log.log_end_offset,
            producers=len(states),
            open_transactions=states.open_count,
            segments=len(log.segments),
            size_bytes=size_bytes,
            is_offline=partition.failure is not None,
            last_deletion_ms=partition.last_deletion_ms,
            **times,
        )

    def _times(self, log: Log) -> dict[str, int | None]:
        start, end = log.log_start_offset, log.log_end_offset
        if start >= end:
            return {}
        if self._first[0] != start:
            self._first = (start, *_first_times(log, start))
        active = log.segments[-1]
        has_rolled = len(log.segments) > 1 and active.end_offset > active.base_offset
        first = log.segments[0].base_offset
        finished = (ms for base, (_, ms) in self._largest.items() if base >= first)
        return {
            "oldest_record_ms": self._first[1],
            "oldest_append_ms": self._first[2],
            "newest_record_ms": _time_or_none(max([*finished, active.largest_timestamp])),
            "newest_append_ms": log.append_time_of(end - 1),
            "last_roll_ms": log.append_time_of(active.base_offset) if has_rolled else None,
        }


def _first_times(log: Log, start: int) -> tuple[int | None, int | None]:
    """Return the largest timestamp of the first batch, and the append time at the log start."""
    append_ms = log.append_time_of(start)
    for part in log.slices(start, start + 1):
        for _, batch in part.batches():
            return _time_or_none(batch.max_timestamp), append_ms
    return None, append_ms


def _time_or_none(ms: int) -> int | None:
    return None if ms == NO_TIMESTAMP else ms


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Maximum numbers of partitions, topics, groups and committed offsets of groups in one scrape.
PARTITIONS_MAX: Final = 10_000

TOPICS_MAX: Final = 2_000
GROUPS_MAX: Final = 5_000
COMMITS_MAX: Final = 10_000

# Number of partitions, topics, groups or commits that are examined before other tasks of the event
# loop may run. Ten times as many samples are written before other tasks may run.
_AT_ONCE: Final = 20

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name without the prefix, its type, its help text."""

    name: str
    kind: str
    text: str

    @property
    def full_name(self) -> str:
        """Name with the prefix."""
        return f"tidelog_{self.name}"

    def head(self) -> str:
        """Return the HELP and TYPE lines."""
        return f"# HELP {self.full_name} {self.text}\n# TYPE {self.full_name} {self.kind}\n"


def _gauge(name: str, text: str) -> Family:
    return Family(name, "gauge", text)


def _counter(name: str, text: str) -> Family:
    return Family(name, "counter", text)


BUILD: Final = _gauge("build_info", "Always 1; the label is the version of the broker.")
CONNECTIONS: Final = _gauge("connections", "Open connections.")

OPENED: Final = _counter(
    "connections_opened_total", "Connections accepted since the broker started."
)

REFUSED: Final = _counter(
    "connections_refused_total", "Connections refused since the broker started."
)

MALFORMED: Final = _counter(
    "malformed_requests_total", "Malformed requests, whose connections were closed."
)

LOGINS: Final = _counter(
    "logins_total", "Authentications by SASL mechanism and outcome, and failed TLS handshakes."
)

LEFT_OUT: Final = _gauge("metrics_left_out", "Series omitted because of the limit on series.")

REQUEST_SECONDS: Final = Family(
    "request_seconds", "histogram", "Time from the last byte of a request to its response, by API."
)

REQUEST_BYTES: Final = _counter("request_bytes_total", "Bytes of requests, by API.")
RESPONSE_BYTES: Final = _counter("response_bytes_total", "Bytes of responses, by API.")
RECORDS_IN: Final = _counter("topic_records_in_total", "Records appended by clients.")
BYTES_IN: Final = _counter("topic_bytes_in_total", "Bytes of batches appended by clients.")

RECORDS_OUT: Final = _counter(
    "topic_records_out_total",
    "Records fetched by clients (number of offsets by which they advanced) and acquired by share"
    " groups.",
)

BYTES_OUT: Final = _counter("topic_bytes_out_total", "Bytes of batches sent to clients.")

SKIPPED: Final = _counter(
    "topic_writes_skipped_total", "Versioned writes skipped because they were already committed."
)

LATENCY: Final = Family(
    "topic_latency_seconds",
    "histogram",
    "Append time minus create time of each record; negative if the producer's clock is ahead.",
)

LOG_START: Final = _gauge("partition_log_start_offset", "First offset that can be read.")

HIGH_WATERMARK: Final = _gauge(
    "partition_high_watermark",
    "High watermark: end offset (exclusive) of the records that consumers may read.",
)

LAST_STABLE: Final = _gauge(
    "partition_last_stable_offset", "Last stable offset: no transaction is open below it."
)

LOG_END: Final = _gauge("partition_log_end_offset", "Log end offset: offset of the next record.")
PRODUCERS: Final = _gauge("partition_producers", "Idempotent producers whose state is stored.")
OPEN: Final = _gauge("partition_open_transactions", "Open transactions.")
SEGMENTS: Final = _gauge("partition_segments", "Segments, including those in a tier.")
SIZE: Final = _gauge("partition_size_bytes", "Bytes of log files.")

OFFLINE: Final = _gauge(
    "partition_offline",
    "1 if the partition is offline after a disk failure and rejects appends, else 0.",
)

OLDEST: Final = _gauge(
    "partition_oldest_time_seconds", "Unix time of the first batch, by the clock in the label."
)

NEWEST: Final = _gauge(
    "partition_newest_time_seconds", "Largest Unix time of any record, by the clock in the label."
)

LAST_ROLL: Final = _gauge(
    "partition_last_roll_time_seconds",
    "Unix time at which the active segment got its first record.",
)

LAST_DELETION: Final = _gauge(
    "partition_last_deletion_time_seconds",
    "Unix time of the last deletion by retention since the broker started; absent until the first"
    " deletion.",
)

CLEANER_RUNS: Final = _counter("cleaner_runs_total", "Successful compactions.")
CLEANER_FAILURES: Final = _counter("cleaner_failures_total", "Compactions that failed.")
CLEANER_AT_WORK: Final = _gauge("cleaner_at_work", "Partitions that are being compacted now.")
CLEANER_SECONDS: Final = _counter("cleaner_busy_seconds_total", "Total time of compactions.")
CLEANER_READ: Final = _counter("cleaner_read_bytes_total", "Log bytes that compactions read.")
CLEANER_WRITTEN: Final = _counter("cleaner_written_bytes_total", "Bytes that compactions wrote.")

CLEANER_REMOVED: Final = _counter(
    "cleaner_removed_records_total", "Records removed by compactions."
)

DIRTY_RATIO: Final = _gauge(
    "partition_dirty_ratio",
    "Dirty ratio of the compactable part of the log, at the last inspection.",
)

COMPACTION_FAILING: Final = _gauge(
    "partition_compaction_failing", "1 if the last compaction failed; it is retried."
)

LAST_COMPACTION: Final = _gauge(
    "partition_last_compaction_time_seconds",
    "Unix time of the last compaction since the broker started; absent until the first compaction.",
)

GROUP_MEMBERS: Final = _gauge("group_members", "Members of a consumer group.")
COMMITTED: Final = _gauge("group_committed_offset", "Next offset that a group will read.")
LAG: Final = _gauge("group_lag", "High watermark minus the committed offset.")

BEHIND: Final = _gauge(
    "group_behind_seconds",
    "Current time minus the append time of the first unread record; 0 if none is unread.",
)


class GroupFacts(Protocol):
    """The part of a group's state that metrics show."""

    @property
    def group_id(self) -> str:
        """Id of the group."""
        ...

    @property
    def members(self) -> int:
        """Number of members of the group."""
        ...

    @property
    def offsets(self) -> Iterable[tuple[str, int, int]]:
        """Committed offsets of the group: topic, partition and offset."""
        ...


class MetricsSource(Protocol):
    """Sources of the metrics."""

    @property
    def counters(self) -> Counters:
        """The broker's counters."""
        ...

    @property
    def clock(self) -> Clock:
        """Clock by which a group's delay is computed."""
        ...

    def partitions(self) -> Iterable[Partition]:
        """Return the open partitions."""
        ...

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return an open partition, or None if it is not open."""
        ...

    def groups(self) -> Iterable[GroupFacts]:
        """Return all loaded groups."""
        ...


class Exposition:
    """Writes the text of each scrape."""

    def __init__(self, facts: MetricsSource) -> None:
        self._facts = facts
        self._finders: dict[TopicPartition, PartitionStats] = {}
        self._omitted: dict[str, int] = {}

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the text in pieces. Other tasks of the event loop may run between two pieces."""
        self._omitted = {"partitions": 0, "topics": 0, "groups": 0, "commits": 0}
        yield self._broker()
        yield self._requests()
        yield self._cleaner()
        for text in self._topics():
            yield text
            await asyncio.sleep(0)
        async for text in self._partitions():
            yield text
        async for text in self._groups():
            yield text
        yield _family(LEFT_OUT, ((_labels(kind=k), n) for k, n in self._omitted.items()))

    def _broker(self) -> str:
        counters = self._facts.counters
        logins = counters.logins.items()
        return "".join(
            (
                _family(BUILD, [(_labels(version=version("tidelog")), 1)]),
                _family(CONNECTIONS, [("", counters.connections)]),
                _family(OPENED, [("", counters.connections_opened)]),
                _family(REFUSED, [("", counters.connections_refused)]),
                _family(MALFORMED, [("", counters.malformed_requests)]),
                _family(LOGINS, ((_labels(mechanism=m, outcome=o), n) for (m, o), n in logins)),
            )
        )

    def _requests(self) -> str:
        apis = sorted(self._facts.counters.apis.items())
        seconds = "".join(_histogram(REQUEST_SECONDS, {"api": n}, t.seconds) for n, t in apis)
        return (
            f"{REQUEST_SECONDS.head()}{seconds}"
            + _family(REQUEST_BYTES, [(_labels(api=n), t.bytes_in) for n, t in apis])
            + _family(RESPONSE_BYTES, [(_labels(api=n), t.bytes_out) for n, t in apis])
        )

    def _cleaner(self) -> str:
        tally = self._facts.counters.cleaner
        ratios = list(islice(tally.ratios.items(), PARTITIONS_MAX))
        failing = list(islice(tally.failing, PARTITIONS_MAX))
        last = list(islice(tally.last_ms.items(), PARTITIONS_MAX))
        return "".join(
            (
                _family(CLEANER_RUNS, [("", tally.runs)]),
                _family(CLEANER_FAILURES, [("", tally.failures)]),
                _family(CLEANER_AT_WORK, [("", tally.at_work)]),
                _family(CLEANER_SECONDS, [("", tally.busy_ms / MS_PER_SECOND)]),
                _family(CLEANER_READ, [("", tally.bytes_read)]),
                _family(CLEANER_WRITTEN, [("", tally.bytes_written)]),
                _family(CLEANER_REMOVED, [("", tally.records_removed)]),
                _family(DIRTY_RATIO, ((_partition_labels(n), ratio) for n, ratio in ratios)),
                _family(COMPACTION_FAILING, ((_partition_labels(n), 1) for n in failing)),
                _family(
                    LAST_COMPACTION, ((_partition_labels(n), ms / MS_PER_SECOND) for n, ms in last)
                ),
            )
        )

    def _topics(self) -> Iterator[str]:
        tallies = list(islice(self._facts.counters.topics.items(), TOPICS_MAX))
        self._omitted["topics"] = max(len(self._facts.counters.topics) - TOPICS_MAX, 0)
        topics = [(_labels(topic=name), tally) for name, tally in tallies]
        yield _family(RECORDS_IN, [(label, t.records_in) for label, t in topics])
        yield _family(BYTES_IN, [(label, t.bytes_in) for label, t in topics])
        yield _family(RECORDS_OUT, [(label, t.records_out) for label, t in topics])
        yield _family(BYTES_OUT, [(label, t.bytes_out) for label, t in topics])
        yield _family(SKIPPED, [(label, t.writes_skipped) for label, t in topics])
        yield LATENCY.head()
        for at in range(0, len(tallies), _AT_ONCE):
            part = tallies[at : at + _AT_ONCE]
            yield "".join(_histogram(LATENCY, {"topic": n}, t.latency) for n, t in part)

    # -- partitions --------------------------------------------------------------------------

    async def _partitions(self) -> AsyncIterator[str]:
        opened = list(self._facts.partitions())
        self._omitted["partitions"] = max(len(opened) - PARTITIONS_MAX, 0)
        facts: list[PartitionFacts] = []
        labels: list[str] = []
        finders: dict[TopicPartition, PartitionStats] = {}
        for number, partition in enumerate(opened[:PARTITIONS_MAX]):
            finder = self._finders.get(partition.name) or PartitionStats()
            finders[partition.name] = finder
            for _ in finder.examine(partition):
                await asyncio.sleep(0)
            if not partition.is_deleted:
                facts.append(finder.find(partition))
                labels.append(_partition_labels(partition.name))
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        self._finders = finders
        for family, samples in _partition_families(facts, labels):
            yield family.head()
            while part := "".join(islice(samples, _AT_ONCE * 10)):
                yield part
                await asyncio.sleep(0)

    # -- groups ------------------------------------------------------------------------------

    async def _groups(self) -> AsyncIterator[str]:
        members: list[str] = []
        commits: list[tuple[str, int, int | None, float | None]] = []
        groups = list(self._facts.groups())
        self._omitted["groups"] = max(len(groups) - GROUPS_MAX, 0)
        for number, group in enumerate(groups[:GROUPS_MAX]):
            label = _labels(group=group.group_id)
            members.append(f"{GROUP_MEMBERS.full_name}{label} {group.members}\n")
            for topic, partition, offset in group.offsets:
                if len(commits) >= COMMITS_MAX:
                    self._omitted["commits"] += 1
                    continue
                named = _labels(group=group.group_id, topic=topic, partition=partition)
                lag, behind = self._progress(topic, partition, offset)
                commits.append((named, offset, lag, behind))
                if not len(commits) % _AT_ONCE:
                    await asyncio.sleep(0)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        yield GROUP_MEMBERS.head() + "".join(members)
        yield _family(COMMITTED, ((label, offset) for label, offset, _, _ in commits))
        yield _family(LAG, ((label, lag) for label, _, lag, _ in commits))
        yield _family(BEHIND, ((label, behind) for label, _, _, behind in commits))

    def _progress(self, topic: str, number: int, offset: int) -> tuple[int | None, float | None]:
        """Return a group's lag, and its delay in seconds by append times; None if unknown."""
        partition = self._facts.partition(topic, number)
        if partition is None:
            return None, None
        first = max(offset, partition.log.log_start_offset)
        if first >= partition.high_watermark:
            return max(partition.high_watermark - offset, 0), 0.0
        try:
            append_ms = partition.log.append_time_of(first)
        except (OSError, TidelogError):
            append_ms = None
        behind = None
        if append_ms is not None:
            behind = max(self._facts.clock.now_ms() - append_ms, 0) / MS_PER_SECOND
        return partition.high_watermark - offset, behind


def _partition_families(
    facts: list[PartitionFacts], labels: list[str]
) -> Iterator[tuple[Family, Iterator[str]]]:
    plain: tuple[tuple[Family, Iterable[int]], ...] = (
        (LOG_START, (fact.log_start_offset for fact in facts)),
        (HIGH_WATERMARK, (fact.high_watermark for fact in facts)),
        (LAST_STABLE, (fact.last_stable_offset for fact in facts)),
        (LOG_END, (fact.log_end_offset for fact in facts)),
        (PRODUCERS, (fact.producers for fact in facts)),
        (OPEN, (fact.open_transactions for fact in facts)),
        (SEGMENTS, (fact.segments for fact in facts)),
        (SIZE, (fact.size_bytes for fact in facts)),
        (OFFLINE, (int(fact.is_offline) for fact in facts)),
    )
    for family, values in plain:
        name = family.full_name
        yield family, (f"{name}{lab} {n}\n" for lab, n in zip(labels, values, strict=True))
    rolls = zip(labels, (fact.last_roll_ms for fact in facts), strict=True)
    yield LAST_ROLL, _times(LAST_ROLL.full_name, rolls)
    deletions = zip(labels, (fact.last_deletion_ms for fact in facts), strict=True)
    yield LAST_DELETION, _times(LAST_DELETION.full_name, deletions)
    oldest = ((fact.oldest_record_ms, fact.oldest_append_ms) for fact in facts)
    yield OLDEST, _times(OLDEST.full_name, _by_clock(labels, oldest))
    newest = ((fact.newest_record_ms, fact.newest_append_ms) for fact in facts)
    yield NEWEST, _times(NEWEST.full_name, _by_clock(labels, newest))


def _by_clock(
    labels: Iterable[str], times: Iterable[tuple[int | None, int | None]]
) -> Iterator[tuple[str, int | None]]:
    """Yield the times, each with the labels of its partition and clock."""
    for label, (record_ms, append_ms) in zip(labels, times, strict=True):
        yield f'{label[:-1]},clock="record"}}', record_ms
        yield f'{label[:-1]},clock="append"}}', append_ms


def _times(name: str, samples: Iterable[tuple[str, int | None]]) -> Iterator[str]:
    return (f"{name}{label} {ms / MS_PER_SECOND}\n" for label, ms in samples if ms is not None)


def _family(family: Family, samples: Iterable[tuple[str, float | None]]) -> str:
    name = family.full_name
    lines = (f"{name}{label} {value}\n" for label, value in samples if value is not None)
    return family.head() + "".join(lines)


def _histogram(family: Family, labels: Mapping[str, str], histogram: Histogram) -> str:
    name = family.full_name
    labeled = _labels(**labels)
    opened = labeled[:-1]
    lines = []
    total = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{opened},le="{bound}"}} {total}\n')
    lines.append(f"{name}_sum{labeled} {histogram.total}\n{name}_count{labeled} {total}\n")
    return "".join(lines)


def _partition_labels(name: TopicPartition) -> str:
    return _labels(topic=name.topic, partition=name.partition)


def _labels(**labels: str | int) -> str:
    """Return `{name="value",...}`. Special characters in values are escaped."""
    pairs = (f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def process_figures() -> str:
    """Return Prometheus's metrics of the process: CPU, memory, descriptors.

    Any thread may call this.
    """
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return bytes(generate_latest(registry)).decode()
