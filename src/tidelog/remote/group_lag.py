"""Lag of a consumer group in offsets, records and seconds, and the time until it catches up.

`observe` requests offsets and records; `lag_of` computes the lag from them. Lag in seconds is the
age of the first record that the group hasn't read, not an estimate. The age is measured from the
record's append time, which comes from a tidelog broker or from the directory of a broker of the
cluster. If the append time is unknown, the age is measured from the record's timestamp, which is a
LogAppendTime or a create time. The result names the clock that was used.

Groups can also be read without a broker, from `__consumer_offsets` in the directory of a Kafka or
tidelog broker. A commit in a transaction takes effect with the transaction's commit marker. A
standby's directory has the offsets that were last copied from its leader. In a cluster of several
brokers, a broker's directory has only some groups: the groups whose partition of
`__consumer_offsets` is in this directory.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tidelog.amounts import duration_text, plural
from tidelog.directory import Directory
from tidelog.env import Clock, Env
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.wire import NO_UUID
from tidelog.remote.own_logs import Counter, OwnLogs, TimedRecord, first_record
from tidelog.remote.view import (
    ClusterView,
    Committed,
    Count,
    Group,
    GroupOffsets,
    RemoteRecord,
    Watermarks,
)
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.groups.replay import LoadedGroup, Replay
from tidelog.storage.directory.broker_files import read_group_offsets
from tidelog.storage.log.log_reader import LogView
from tidelog.types import OFFSETS_TOPIC, IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    from tidelog.server.groups.committed_offsets import CommittedOffset


SAMPLES_MAX: Final = 20

# Maximum number of partitions from which one consumer reads the first unread records. One timeout
# applies to all partitions of a consumer together, so a consumer with too many partitions would
# exceed it.
_UNREAD_AT_ONCE: Final = 1000


class AgeClock(StrEnum):
    """Clock by which a record's age was measured."""

    APPEND = "append"
    LOG_APPEND_TIME = "log-append-time"
    CREATE_TIME = "create-time"


class State(StrEnum):
    """State of a group's commit in a partition: `OK`, or why the group can't continue from it."""

    OK = "ok"
    NO_COMMIT = "no commit"
    LOST = "records lost"
    BEYOND_END = "beyond the end"


@dataclass(frozen=True, slots=True)
class Unread:
    """The first record that a group has not read, with its time in ms and the clock of that time.

    Time and clock are None if neither the append time nor the timestamp of the record is known.
    """

    offset: int
    time_ms: int | None
    clock: AgeClock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Offsets and times of a group in one partition at one moment.

    Attributes:
        partition: The partition.
        now_ms: Wall time in ms.
        monotonic_ms: Monotonic time in ms, for rates.
        committed: The committed offset, which is the next offset that the group reads; None if
            nothing was committed.
        start: Log start offset.
        end: Offset after the last record that the group may see.
        left: Number of records from the group's next offset to `end`.
        unread: The first unread record, None if there is none.
        member: Client id of the member that the partition is assigned to; None if no member has the
            partition.
        log_end: Log end offset, which is above `end` if an open transaction hides records from the
            group. None if the log end was not requested; it is requested only if the next offset is
            above `end`.
    """

    partition: TopicPartition
    now_ms: int
    monotonic_ms: int
    committed: int | None
    start: int
    end: int
    left: Count
    unread: Unread | None
    member: str | None = None
    log_end: int | None = None

    @property
    def last_end(self) -> int:
        """The log end offset, which may be above `end`; `end` if the log end was not requested."""
        return self.end if self.log_end is None else self.log_end

    @property
    def next_offset(self) -> int:
        """Next offset to read: the committed offset, but at least the log start."""
        return max(self.start if self.committed is None else self.committed, self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Lag of a group in one partition.

    Attributes:
        seen: The observation that the lag is computed from.
        offset_lag: Number of offsets from the next offset to the end. The number of records is
            lower if some of these offsets were compacted away or are transaction markers.
        lost: Number of offsets deleted before the group read them.
        behind_ms: Age in ms of the first unread record. 0 if all records are read; None if the
            record has no time; negative if the clock of its time was ahead of this machine's clock.
        offsets_per_s: Offsets consumed per second between the first and last of the stored
            observations; None if no time has passed between these two, or there is only one.
        arrivals_per_s: Offsets appended per second between the first and last of the stored
            observations; None if no time has passed between these two, or there is only one.
        catch_up_s: Seconds until the group reaches the end if both rates stay the same: 0 if all
            records are read, None if a rate is unknown, infinite if the group reads no faster than
            producers append.
        state: Whether the group can continue from its commit; if it can't, the reason.
    """

    seen: Observation
    offset_lag: int
    lost: int
    behind_ms: int | None
    offsets_per_s: float | None
    arrivals_per_s: float | None
    catch_up_s: float | None
    state: State


def lag_cells(lag: PartitionLag) -> list[str | int | bool | None]:
    """Return the cells of a partition in tables of lags.

    The cells are: topic, partition, committed offset, log start, end, offset lag, lost offsets,
    unread records and whether their number is exact, offset and time in ms of the first unread
    record, time behind in ms, and the clock of this time.
    """
    seen, unread = lag.seen, lag.seen.unread
    clock = None if unread is None else unread.clock
    return [
        seen.partition.topic,
        seen.partition.partition,
        seen.committed,
        seen.start,
        seen.end,
        lag.offset_lag,
        lag.lost,
        seen.left.records,
        seen.left.is_exact,
        None if unread is None else unread.offset,
        None if unread is None else unread.time_ms,
        lag.behind_ms,
        None if clock is None else clock.value,
    ]


def observe(  # noqa: PLR0913 - what is read, and how
    cluster: ClusterView,
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    clock: Clock,
    counter: Counter,
    own: OwnLogs | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[Observation]:
    """Observe the group's lag in each of the partitions once.

    Args:
        cluster: The cluster.
        group: The group.
        partitions: The partitions to observe.
        clock: Wall time and monotonic time of the observation.
        counter: Function that counts records between two offsets.
        own: The cluster's own directory, for append times; None if it is not available.
        isolation: Isolation of the group's consumers, which decides where the log ends for them.

    Raises:
        UnknownGroup, ClusterFailure: The group does not exist, or the cluster can't be reached.
        InvalidRequest: `own` has another topic of the same name, with a different id.
    """
    offsets = GroupOffsets(cluster.group(group), cluster.committed(group, partitions))
    observations = observe_groups(
        cluster,
        {group: partitions},
        {group: offsets},
        clock=clock,
        counter=counter,
        own=own,
        isolation=isolation,
    )
    return observations[group]


def observe_groups(  # noqa: PLR0913 - what is read, and how
    cluster: ClusterView,
    partitions: Mapping[str, Sequence[TopicPartition]],
    offsets: Mapping[str, GroupOffsets],
    *,
    clock: Clock,
    counter: Counter,
    own: OwnLogs | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[str, list[Observation]]:
    """Observe the lag of several groups once.

    The log start and end of each partition are requested once for all groups. Raises the errors of
    `observe`.

    Args:
        cluster: The cluster.
        partitions: For each group, the partitions to observe.
        offsets: Each of these groups, with its committed offsets.
        clock: See `observe`.
        counter: See `observe`.
        own: See `observe`.
        isolation: See `observe`.
    """
    marks = cluster.watermarks(
        dict.fromkeys(name for names in partitions.values() for name in names), isolation=isolation
    )
    next_offsets = {
        (group, name): _next_offset(offsets[group].committed.get(name), marks[name])
        for group, names in partitions.items()
        for name in names
    }
    ahead = {name for (_, name), offset in next_offsets.items() if offset > marks[name].end}
    log_ends = cluster.watermarks(sorted(ahead)) if ahead else {}
    behind = {
        (name, offset) for (_, name), offset in next_offsets.items() if offset < marks[name].end
    }
    unread = _unread_at(cluster, own, behind, isolation)
    members = {group: _assignments(offsets[group].group) for group in partitions}
    now_ms, monotonic_ms = clock.now_ms(), clock.monotonic_ms()

    def observation(group: str, name: TopicPartition) -> Observation:
        offset = next_offsets[group, name]
        return Observation(
            partition=name,
            now_ms=now_ms,
            monotonic_ms=monotonic_ms,
            committed=_offset(offsets[group].committed.get(name)),
            start=marks[name].start,
            end=marks[name].end,
            left=_left(counter, name, offset, marks[name].end, unread.get((name, offset))),
            unread=unread.get((name, offset)),
            member=members[group].get(name),
            log_end=log_ends[name].end if name in log_ends else None,
        )

    return {group: [observation(group, name) for name in partitions[group]] for group in partitions}


def _assignments(group: Group | None) -> dict[TopicPartition, str]:
    members = () if group is None else group.members
    return {name: member.client_id for member in members for name in member.partitions}


def _offset(committed: Committed | None) -> int | None:
    return None if committed is None else committed.offset


def _next_offset(committed: Committed | None, mark: Watermarks) -> int:
    return mark.start if committed is None else max(committed.offset, mark.start)


def _left(
    counter: Counter, partition: TopicPartition, start: int, end: int, unread: Unread | None
) -> Count:
    """Count the unread records in [start, end).

    `unread` is the first of these records, None if there is none.
    """
    if unread is None:
        return Count(0, is_exact=True)
    return counter(partition, max(start, unread.offset), end)


def _unread_at(
    cluster: ClusterView,
    own: OwnLogs | None,
    offsets: Iterable[tuple[TopicPartition, int]],
    isolation: IsolationLevel,
) -> dict[tuple[TopicPartition, int], Unread | None]:
    """Return the first unread record at or after each offset; None or no entry if there is none.

    A consumer can read a partition from only one offset. If several offsets of a partition are
    given, each further offset needs a further consumer.
    """
    unread: dict[tuple[TopicPartition, int], Unread | None] = {}
    waiting = sorted(offsets)
    while waiting:
        chosen: dict[TopicPartition, int] = {}
        further = []
        for name, offset in waiting:
            if name in chosen or len(chosen) == _UNREAD_AT_ONCE:
                further.append((name, offset))
            else:
                chosen[name] = offset
        records = _first_unread(cluster, own, chosen, isolation)
        unread |= {(name, chosen[name]): record for name, record in records.items()}
        waiting = further
    return unread


def _first_unread(
    cluster: ClusterView,
    own: OwnLogs | None,
    offsets: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
) -> dict[TopicPartition, Unread | None]:
    unread: dict[TopicPartition, Unread | None] = {}
    if own is not None:
        for partition, offset in offsets.items():
            if own.has(partition):
                unread[partition] = _unread_of_ours(own, partition, offset, isolation)
    missing = {p: offset for p, offset in offsets.items() if unread.get(p) is None}
    records = cluster.first_records(missing, isolation=isolation) if missing else {}
    created = {
        p: record.offset
        for p, record in records.items()
        if record is not None and record.timestamp_type is not TimestampType.LOG_APPEND_TIME
    }
    append_times = cluster.append_times(created) if created else {}
    return unread | {
        p: _unread_of_theirs(record, append_times.get(p)) for p, record in records.items()
    }


def _unread_of_ours(
    own: OwnLogs, partition: TopicPartition, offset: int, isolation: IsolationLevel
) -> Unread | None:
    record = own.first_record(partition, offset, isolation)
    return None if record is None else unread_of(record)


def unread_of(record: TimedRecord) -> Unread:
    """Return a directory's record as `Unread`, with its append time, or else its timestamp."""
    if record.append_ms is not None:
        return Unread(record.offset, record.append_ms, AgeClock.APPEND)
    clock = None if record.record_ms is None else AgeClock.CREATE_TIME
    return Unread(record.offset, record.record_ms, clock)


def _unread_of_theirs(record: RemoteRecord | None, append_ms: int | None) -> Unread | None:
    if record is None:
        return None
    if append_ms is not None:
        return Unread(record.offset, append_ms, AgeClock.APPEND)
    if record.timestamp is None:
        return Unread(record.offset, None, None)
    stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
    clock = AgeClock.LOG_APPEND_TIME if stamped else AgeClock.CREATE_TIME
    return Unread(record.offset, record.timestamp, clock)


class History:
    """The last observations of each partition, from which rates are computed. Not thread-safe.

    When a group is reset to an earlier offset, older observations of the partition are dropped.
    """

    def __init__(self, samples: int = SAMPLES_MAX) -> None:
        self._samples = samples
        self._observations: dict[TopicPartition, deque[Observation]] = {}

    def add(self, observations: Iterable[Observation]) -> list[PartitionLag]:
        """Add an observation of each partition, and return each partition's lag."""
        return [self._add(observation) for observation in observations]

    def _add(self, observation: Observation) -> PartitionLag:
        history = self._observations.setdefault(observation.partition, deque(maxlen=self._samples))
        if history and observation.next_offset < history[-1].next_offset:
            history.clear()
        history.append(observation)
        return lag_of(history[0], observation)


def lag_of(first: Observation, last: Observation) -> PartitionLag:
    """Return the lag at the later of two observations, with the rates between them."""
    offset_lag = max(last.end - last.next_offset, 0)
    consumed = _per_second(first, last, last.next_offset - first.next_offset)
    arrived = _per_second(first, last, last.end - first.end)
    return PartitionLag(
        seen=last,
        offset_lag=offset_lag,
        lost=0 if last.committed is None else max(last.start - last.committed, 0),
        behind_ms=_behind_ms(last),
        offsets_per_s=consumed,
        arrivals_per_s=arrived,
        catch_up_s=_catch_up_s(offset_lag if last.unread else 0, consumed, arrived),
        state=_state(last),
    )


def _behind_ms(observation: Observation) -> int | None:
    if observation.unread is None:
        return 0
    return (
        None
        if observation.unread.time_ms is None
        else observation.now_ms - observation.unread.time_ms
    )


def _per_second(first: Observation, last: Observation, offsets: int) -> float | None:
    passed_ms = last.monotonic_ms - first.monotonic_ms
    return offsets * 1000 / passed_ms if passed_ms > 0 else None


def _catch_up_s(offset_lag: int, consumed: float | None, arrived: float | None) -> float | None:
    if offset_lag == 0:
        return 0.0
    if consumed is None or arrived is None:
        return None
    gain = consumed - arrived
    return offset_lag / gain if gain > 0 else float("inf")


def _state(observation: Observation) -> State:
    if observation.committed is None:
        return State.NO_COMMIT
    if observation.committed < observation.start:
        return State.LOST
    return State.BEYOND_END if observation.committed > observation.last_end else State.OK


def over_limits(
    lags: Iterable[PartitionLag], *, max_lag: int | None = None, max_ms: int | None = None
) -> list[str]:
    """Return one line for each limit that a partition violates.

    Args:
        lags: Lag of all partitions.
        max_lag: Maximum number of unread records. If this number is known only as an upper bound,
            the upper bound is compared with the maximum. A partition without a committed offset
            violates the limits as if the group had read nothing, because a group may start at the
            log start.
        max_ms: Maximum age in ms of the first unread record. A record without a time violates the
            limit, because its age is unknown.

    If a limit is given, a partition whose committed offset is beyond the log's end also yields a
    line. The log of this partition was truncated or recreated, so it is unknown how much of the log
    the group has read.
    """
    lines = []
    for lag in lags:
        name, remaining = lag.seen.partition, lag.seen.left
        if lag.state is State.BEYOND_END and not (max_lag is None and max_ms is None):
            lines.append(
                f"{name}: the committed offset {lag.seen.committed} is above the log end offset"
                f" {lag.seen.last_end}: the log was truncated or recreated; the lag is unknown"
            )
        is_new = lag.state is State.NO_COMMIT
        if max_lag is not None and remaining.records > max_lag:
            at_most = "" if remaining.is_exact else "at most "
            records = f"{at_most}{plural(remaining.records, 'record')}"
            left = f"no committed offset, {records} in the log" if is_new else f"{records} left"
            lines.append(f"{name}: {left}, limit {max_lag:,}")
        if max_ms is not None and lag.behind_ms is None:
            lines.append(
                f"{name}: the lag in seconds is unknown, because the first unread record has no"
                f" time; the limit is {duration_text(max_ms / 1000)}"
            )
        elif max_ms is not None and lag.behind_ms is not None and lag.behind_ms > max_ms:
            age = duration_text(lag.behind_ms / 1000, rounded=ceil)
            limit = duration_text(max_ms / 1000)
            behind = f"no committed offset, first record {age} old" if is_new else f"{age} behind"
            lines.append(f"{name}: {behind}, limit {limit}")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryGroups:
    """Consumer groups in a directory.

    Attributes:
        positions: For each group, the next offset that the group reads in each partition.
        notes: One line for each commit or other record that was left out, with the reason.
        missing: Indexes of the partitions of `__consumer_offsets` that the directory doesn't have.
            The commits in these partitions are unknown.
        partitions: Count of the partitions of `__consumer_offsets`, as far as the directory shows
            it; 0 if the directory has none of these partitions.
    """

    positions: Mapping[str, Mapping[TopicPartition, int]]
    notes: tuple[str, ...] = ()
    missing: frozenset[int] = frozenset()
    partitions: int = 0

    def may_be_elsewhere(self, group: str) -> bool:
        """Return whether another broker of the cluster may store the group."""
        return bool(self.partitions) and partition_for(group, self.partitions) in self.missing


def read_groups(directory: Directory, env: Env) -> DirectoryGroups | None:
    """Read the groups of a directory.

    Args:
        directory: The directory; the caller has refreshed it.
        env: Access to the directory's files.

    Returns:
        None if the directory has neither `__consumer_offsets` nor a standby's group offsets.

    Raises:
        CorruptData: Batches of `__consumer_offsets` are damaged; the error names the file and the
            position.
        CorruptFile, UnsupportedVersion: The standby's file of group offsets can't be read.
        StorageFailure, OSError: A file can't be read.
    """
    standby_offsets = read_group_offsets(env.files, directory.path.rstrip("/"))
    topic = directory.topics().get(OFFSETS_TOPIC)
    if standby_offsets is None and topic is None:
        return None
    groups: dict[str, dict[TopicPartition, int]] = {}
    for group, commits in ({} if standby_offsets is None else standby_offsets.groups).items():
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in commits}
        groups[group] = offsets
    if topic is None:
        return DirectoryGroups(positions=groups)
    notes: list[str] = []
    for number in topic.present:
        loaded = _load(directory.partition(OFFSETS_TOPIC, number), notes)
        for group, one in loaded.items():
            offsets = _positions(directory, group, one, notes)
            # Commits in the partitions of `__consumer_offsets` replace the offsets that a standby
            # copied from its leader, because the commits are newer.
            if offsets:
                groups[group] = {**groups.get(group, {}), **offsets}
    return DirectoryGroups(
        positions=groups,
        notes=tuple(notes),
        missing=frozenset(range(topic.partitions)) - frozenset(topic.present),
        partitions=topic.partitions,
    )


def _load(log: LogView, notes: list[str]) -> dict[str, LoadedGroup]:
    """Read the groups in one partition of `__consumer_offsets`."""
    replay = Replay()
    if log.log_end_offset > log.log_start_offset:
        for _ in replay.take(log.slices()):
            pass  # Each step yields control to an event loop, but no loop runs here.
    loaded = replay.groups()
    notes += [f"{log.topic_partition}: skipped a record: {line}" for line in replay.skipped]
    return loaded


def _positions(
    directory: Directory, group: str, loaded: LoadedGroup, notes: list[str]
) -> dict[TopicPartition, int]:
    """Return a group's next offsets; leave out commits for a deleted topic of the same name."""
    newest: dict[TopicPartition, CommittedOffset] = {}
    for topic, partition, commit in loaded.offsets:
        name = TopicPartition(topic, partition)
        newer = newest.get(name)
        # A group's commits for a partition can have two keys, one in the old and one in the new key
        # format. The newer commit applies.
        if newer is None or newer.record_offset < commit.record_offset:
            newest[name] = commit
    positions: dict[TopicPartition, int] = {}
    for name, commit in newest.items():
        topic_id = _topic_id(directory, name.topic)
        if NO_UUID not in (topic_id, commit.topic_id) and topic_id != commit.topic_id:
            notes.append(
                f"group {group}: its committed offset for {name} belongs to a deleted topic of the"
                " same name, and is left out"
            )
        else:
            positions[name] = commit.offset
    return positions


def _topic_id(directory: Directory, topic: str) -> UUID:
    info = directory.topics().get(topic)
    return NO_UUID if info is None or info.topic_id is None else info.topic_id


def observe_directory(
    directory: Directory,
    env: Env,
    name: TopicPartition,
    committed: int,
    isolation: IsolationLevel,
) -> Observation:
    """Observe a group's position in a directory, without a broker.

    `left` is the number of unread offsets, an upper bound of the number of unread records.

    Args:
        directory: Directory that has the partition.
        env: Clock for the observation.
        name: The partition to observe.
        committed: The next offset that the group reads.
        isolation: Isolation of the group's consumers.
    """
    log = directory.partition(name.topic, name.partition)
    start, end = log.log_start_offset, max(log.end_offset(isolation), log.log_start_offset)
    offset = max(committed, start)
    record = first_record(log, offset, isolation) if offset < end else None
    is_visible = record is not None and record.offset < end
    return Observation(
        partition=name,
        now_ms=env.clock.now_ms(),
        monotonic_ms=env.clock.monotonic_ms(),
        committed=committed,
        start=start,
        end=end,
        left=Count(max(end - offset, 0), is_exact=False),
        unread=unread_of(record) if record is not None and is_visible else None,
        log_end=log.log_end_offset,
    )
