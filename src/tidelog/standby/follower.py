"""Copies a leader's partitions continuously into a directory, and has a standby's control verbs.

Each round fetches from every broker the partitions that the broker leads, and writes the batches
unchanged: same bytes, offsets, leader epochs and timestamps. The directory holds all state between
two runs. A partition that can't continue stops with a reason; the other partitions continue. A
stopped partition, except for one whose disk failed, is retried after the next sync with the
cluster.

Control verbs: `status`, `flush`, `accept_clock` (which allows appends after promotion), `promote`
(stop following, make everything durable, release the lock) and `swap` (exchange finished segments).
Attaching is refused, because a standby has only records of its leader. Erasing is refused, because
the key has to be erased on the leader.

Life cycle: open, then `round` or `sync` any number of times, then close. A `with` block closes the
follower. Not thread-safe. Source: KIP-32, first draft (followers store the leader's append times);
Kafka 4.x ReplicaManager.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from tidelog.amounts import offsets_text, plural, verb
from tidelog.closing import Closing
from tidelog.control.server import ControlServer
from tidelog.control.verbs import VERBS, Arguments, Result, Verbs, holder_status
from tidelog.env import Env, os_env
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    CorruptFile,
    CorruptMessage,
    InvalidRequest,
    MissingFile,
    StorageFailure,
    TidelogError,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.remote import client
from tidelog.remote.broker_connection import Connect, connect_socket
from tidelog.remote.leader import (
    NO_LEADER,
    FetchLimits,
    Leader,
    LeaderSettings,
    LeaderTopic,
    Position,
)
from tidelog.standby.divergence import LOOK_AGAIN, check_copies
from tidelog.standby.partition_copy import Copy
from tidelog.standby.topic_sync import (
    NOT_READY,
    TopicChoice,
    chosen,
    ensure_same_ids,
    group_offsets,
    has_deletion_settings,
    left_out,
    merge_commits,
    sync_topic,
)
from tidelog.storage.directory.broker_files import (
    GroupOffsets,
    read_group_offsets,
    write_group_offsets,
)
from tidelog.storage.directory.log_dir import DirectoryAccess, LogDir, LogDirOptions
from tidelog.storage.open_files import as_storage_failure
from tidelog.types import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.log import Log

PROMOTE: Final = "promote"

# Minimum interval, in ms, between two syncs that a round requests (`_needs_look`).
_LOOK_INTERVAL_MS: Final = 250

# Pause, in seconds, of a round that has no broker to fetch from.
_PAUSE_S: Final = 0.25

# Maximum number of consecutive rounds in which the leader's high watermark is above the copied
# records, but the leader sends no records.
_IDLE_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options of a follower.

    Attributes:
        choice: Topics to follow, and the standby's own settings.
        limits: Limits of one round of fetching.
        sync_interval_ms: Interval of syncing topics, settings and group offsets, in ms.
        flush_interval_ms: Interval of making records and checkpoints durable, in ms.
        retain: Whether the standby runs the topics' retention itself, by its own clock.
        control: Whether other processes can send requests to the directory's control channel; see
            `answer`.
    """

    choice: TopicChoice = field(default_factory=TopicChoice)
    limits: FetchLimits = field(default_factory=FetchLimits)
    sync_interval_ms: int = 30_000
    flush_interval_ms: int = 5_000
    retain: bool = True
    control: bool = False


# Waits for a number of seconds; returns early if the process is to stop.
Pause: TypeAlias = Callable[[float], object]

_REAL_PAUSE: Final[Pause] = threading.Event().wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """External dependencies of a follower: files and clock, the network, waiting."""

    env: Env = field(default_factory=os_env)
    connect: Connect = connect_socket
    pause: Pause = _REAL_PAUSE


class Follower(Closing):
    """A directory that follows a cluster.

    Attributes:
        copies: The copied partitions, in the order of their first sync.
        notes: Messages for the user; the caller prints and removes them.
        group_count: Number of groups whose committed offsets the last sync wrote.
        is_promoted: Whether promotion was requested. If true, the owner must close the follower.
    """

    def __init__(
        self,
        directory: LogDir,
        leader: Leader,
        options: FollowOptions | None = None,
        *,
        pause: Pause = _REAL_PAUSE,
    ) -> None:
        self._directory = directory
        self._leader = leader
        self._options = options or FollowOptions()
        self._clock = directory.env.clock
        self._pause = pause
        self.copies: dict[TopicPartition, Copy] = {}
        self.notes: list[str] = []
        self.group_count = 0
        self.is_promoted = False
        self._control: ControlServer | None = None
        self._noted_lines: set[str] = set()
        # `_missing`: partitions that can't be copied: the leader doesn't return the partition, or
        # doesn't return the topic's retention settings. `_retained`: topics whose retention
        # settings the leader has returned.
        self._missing: dict[TopicPartition, TidelogError] = {}
        self._retained: set[str] = set()
        self._needs_look = True
        self._synced_ms = self._flushed_ms = self._clock.monotonic_ms()

    @classmethod
    def open(
        cls,
        path: str,
        host: str,
        port: int,
        options: FollowOptions | None = None,
        *,
        seams: Seams | None = None,
    ) -> Self:
        """Open (or create) the directory and sync with the cluster for the first time.

        Raises:
            ClusterFailure, UnsupportedVersion: The cluster can't be reached, refuses a request, or
                does not support a needed version of a request.
            InconsistentTopicId: The directory has another topic of the same name.
            UnknownTopic: A requested topic does not exist.
            DirectoryLocked: A process has the directory open for writing already.
            StorageFailure: The disk failed.
        """
        seams = seams or Seams()
        leader = Leader(host, port, seams.connect)
        try:
            leader.refresh()  # raises before a directory is created, if the leader can't be reached
            directory = LogDir.open(path, env=seams.env, options=LogDirOptions(create=True))
        except BaseException:
            leader.close()
            raise
        follower = cls(directory, leader, options, pause=seams.pause)
        try:
            follower.sync()
            if follower._options.control:
                try:
                    follower._control = ControlServer.open(directory, control_verbs(follower))
                except (InvalidRequest, OSError) as error:
                    reason = f"this process has no control channel: {error}"
                    follower.notes.append(reason)
        except BaseException:
            follower.close()
            raise
        return follower

    def answer(self) -> None:
        """Carry out the pending requests of the control channel; call this between two rounds."""
        if self._control is not None:
            self._control.wait(0.0)
            self._control.run_pending()

    def make_durable(self) -> None:
        """Make all copied records durable; raises StorageFailure."""
        self._directory.flush()
        self._directory.checkpoint()
        self._flushed_ms = self._clock.monotonic_ms()

    @property
    def leader_address(self) -> str:
        """Address of the leader as `host:port`."""
        return self._leader.address

    # -- topics ------------------------------------------------------------------------------

    def sync(self) -> None:
        """Sync with the cluster: topics, ids, partitions, settings, leaders, group offsets.

        Raises:
            ClusterFailure, InconsistentTopicId, UnknownTopic, StorageFailure: See `open`.
        """
        topics = chosen(self._leader.refresh(), self._options.choice, strict=not self.copies)
        ensure_same_ids(self._directory, topics)
        settings = self._leader.settings(list(topics))
        self._missing = {}
        for name, topic in topics.items():
            self._sync_topic(topic, settings.get(name))
        self._miss_unlisted(topics)
        self._sync_groups(topics)
        self._needs_look = False
        self._synced_ms = self._clock.monotonic_ms()

    def _sync_topic(self, topic: LeaderTopic, leader_settings: LeaderSettings | None) -> None:
        """Sync a topic with the leader's topic.

        If the leader doesn't return all retention settings, a topic that the directory lacks is not
        created, and retention doesn't run for a topic that the directory has.
        """
        name = topic.name
        if has_deletion_settings(leader_settings):
            self._retained.add(name)
        else:
            self._retained.discard(name)
            reason = f"the leader returned no retention settings for topic {name}"
            if name not in self._directory.topics():
                failure = ClusterFailure(self.leader_address, "copy the topic's settings", reason)
                for number in topic.partitions:
                    self._miss(TopicPartition(name, number), failure)
                return
            effect = "the local settings stay unchanged, and retention does not run for the topic"
            self._add_notes([f"{reason}: {effect}"])
        settings = leader_settings or LeaderSettings({}, frozenset())
        self._add_notes(sync_topic(self._directory, topic, settings, self._options.choice))
        self._sync_partitions(topic)

    def _sync_partitions(self, topic: LeaderTopic) -> None:
        for number, led in sorted(topic.partitions.items()):
            name = TopicPartition(topic.name, number)
            copy = self.copies.get(name)
            if copy is None:
                copy = Copy(name, topic.topic_id, self._log(name))
                self.copies[name] = copy
            copy.led_by(led)
            if not isinstance(copy.problem, StorageFailure):
                copy.problem = None

    def _log(self, name: TopicPartition) -> "Log":
        """Open a partition's log; if its directory is lost, create it to copy the records again."""
        try:
            return self._directory.log(name.topic, name.partition)
        except MissingFile as failure:
            self._add_notes([str(failure)])
            admin = self._directory.topic_admin
            admin.make_again(name, admin.get(name.topic))
            return self._directory.log(name.topic, name.partition)

    def _miss(self, name: TopicPartition, failure: ClusterFailure) -> None:
        self.copies.pop(name, None)
        self._missing[name] = failure
        self._add_notes([f"{name}: {failure.reason}"])

    def _miss_unlisted(self, topics: Mapping[str, LeaderTopic]) -> None:
        for name in left_out(self._directory, topics, self._options.choice):
            code = self._leader.refused.get(name.topic)
            answer = "no longer has it" if code is None else f"returned error {code}"
            reason = f"the leader {answer}; the copied records stay"
            self._miss(
                name, ClusterFailure(self.leader_address, f"follow {name}", reason, error_code=code)
            )

    def _sync_groups(self, topics: Mapping[str, LeaderTopic]) -> None:
        by_id = {topic.topic_id: name for name, topic in topics.items()}
        try:
            groups = group_offsets(self._leader, by_id)
        except ClusterFailure as failure:
            if failure.error_code not in NOT_READY:
                raise
            self._add_notes([f"{failure}: group offsets are copied at the next sync"])
            return
        fs, path = self._directory.env.files, self._directory.path
        try:
            try:
                stored_offsets = read_group_offsets(fs, path)
            except CorruptFile as error:
                self._add_notes([f"{error}; the file is rewritten"])
                stored_offsets = None
            groups = merge_commits(groups, {} if stored_offsets is None else stored_offsets.groups)
            topic_copied = any(name.topic == OFFSETS_TOPIC for name in self.copies)
            offsets = GroupOffsets(self._clock.now_ms(), groups, topic_copied)
            write_group_offsets(fs, path, offsets)
        except OSError as error:
            raise as_storage_failure(error, self._directory.path, "write group offsets") from error
        self.group_count = len(groups)

    def _add_notes(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self._noted_lines:
                self._noted_lines.add(line)
                self.notes.append(line)

    # -- rounds ------------------------------------------------------------------------------

    @property
    def is_caught_up(self) -> bool:
        """Whether every partition has all records up to the leader's high watermark."""
        return all(copy.is_caught_up for copy in self.copies.values())

    @property
    def problems(self) -> dict[TopicPartition, TidelogError]:
        """The stopped partitions, and the partitions that can't be copied, with the reasons."""
        problems = {name: copy.problem for name, copy in self.copies.items() if copy.problem}
        return {**self._missing, **problems}

    def round(self) -> int:
        """Fetch from every leader once and write the records; return the number of bytes copied.

        Raises:
            ClusterFailure: A broker can't be reached, or its response is invalid; records from
                other brokers may have been written. The next round tries again.
            InconsistentTopicId, UnknownTopic, StorageFailure: See `sync`.
        """
        try:
            return self._round()
        except TidelogError:
            # The connections are closed, because a late response to the failed request would be
            # read as the response to a later request.
            self._leader.close()
            self._needs_look = True
            raise

    def _round(self) -> int:
        self.answer()
        if self.is_promoted:
            return 0
        self._maintain()
        by_node = self._by_node()
        for node_id, copies in by_node.items():
            self._check(node_id, [copy for copy in copies if not copy.is_checked])
        requests = {
            node_id: [copy.position() for copy in copies if copy.is_checked and not copy.problem]
            for node_id, copies in by_node.items()
        }
        requests = {node_id: positions for node_id, positions in requests.items() if positions}
        if not requests:
            self._pause(_PAUSE_S)
            return 0
        return self._fetch(requests)

    def _check(self, node_id: int, copies: Sequence[Copy]) -> None:
        if not copies:
            return
        check_copies(self._leader, node_id, copies)
        for copy in copies:
            if copy.problem:
                self._stop(copy, copy.problem)
            self._needs_look |= not copy.is_checked and not copy.problem
            self._report(copy)

    def _fetch(self, requests: Mapping[int, Sequence[Position]]) -> int:
        for node_id, positions in requests.items():
            self._leader.send_fetch(node_id, positions, self._options.limits)
        before = self._copied_bytes()
        for node_id, positions in requests.items():
            for name, data in self._leader.receive_fetch(node_id, positions):
                self._take(self.copies[name], data)
        return self._copied_bytes() - before

    def _copied_bytes(self) -> int:
        return sum(copy.counts.size_bytes for copy in self.copies.values())

    def _by_node(self) -> dict[int, list[Copy]]:
        copies: defaultdict[int, list[Copy]] = defaultdict(list)
        for copy in self.copies.values():
            if copy.problem is None and copy.led.leader_id != NO_LEADER:
                copies[copy.led.leader_id].append(copy)
            elif copy.led.leader_id == NO_LEADER:
                self._needs_look = True
        return dict(copies)

    def _take(self, copy: Copy, data: PartitionData) -> None:
        code = data.error_code
        try:
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                copy.check_again("the offset is out of range", is_out_of_range=True)
            elif code in LOOK_AGAIN:
                copy.is_checked = False
                self._needs_look = True
            elif code:
                self._stop(
                    copy,
                    ClusterFailure(
                        self.leader_address, "fetch", client.named(code), error_code=code
                    ),
                )
            else:
                copy.take(data, self._leader)
        except TidelogError as error:
            self._stop(copy, error)

    def _stop(self, copy: Copy, error: TidelogError) -> None:
        copy.problem = error
        reason = f"{error}".removeprefix(f"{copy.name}: ")
        self._add_notes([f"{copy.name}: {reason}"])

    def _report(self, copy: Copy) -> None:
        """Report truncated offsets, and offsets that the leader deleted before they were copied."""
        self._add_notes(
            [
                f"{copy.name}: {offsets_text(cut.start, cut.end - 1)}"
                f" {verb(cut.end - cut.start, 'was', 'were')} truncated: the leader's log has other"
                " records there or none"
                for cut in copy.counts.truncations
            ]
        )
        self._add_notes([str(offsets) for offsets in copy.counts.lost])

    # -- periodic work -----------------------------------------------------------------------

    def _maintain(self) -> None:
        now = self._clock.monotonic_ms()
        passed_ms = now - self._synced_ms
        is_look_due = self._needs_look and passed_ms >= _LOOK_INTERVAL_MS
        if is_look_due or passed_ms >= self._options.sync_interval_ms:
            self.sync()
            self._retain()
        if now - self._flushed_ms >= self._options.flush_interval_ms:
            self.make_durable()

    def _retain(self) -> None:
        if not self._options.retain:
            return
        for copy in self.copies.values():
            try:
                if copy.name.topic in self._retained:
                    copy.log.apply_retention()
            except TidelogError as error:
                self._stop(copy, error)

    def rounds_to_catch_up(self) -> Iterator[int]:
        """Run rounds until every partition has caught up with its leader, or has stopped.

        Yields the number of bytes that each round copied.

        Raises:
            ClusterFailure: A round raised this error, or the leader repeatedly reports that it has
                more records but sends none.
            InconsistentTopicId, UnknownTopic, StorageFailure: See `sync`.
        """
        for copy in self.copies.values():
            copy.high_watermark = None  # the last known high watermark may be outdated
        idle = 0
        while not self.is_promoted and not all(
            copy.problem or copy.is_caught_up for copy in self.copies.values()
        ):
            copied_bytes = self.round()
            idle = 0 if copied_bytes else idle + 1
            if idle > _IDLE_ROUNDS:
                reason = (
                    "its high watermark is above the copied records, but it sends no records:"
                    f" {self._lagging()}"
                )
                raise ClusterFailure(self.leader_address, "catch up", reason)
            yield copied_bytes

    def _lagging(self) -> str:
        return ", ".join(
            f"{copy.name} lacks {'? offsets' if copy.lag is None else plural(copy.lag, 'offset')}"
            for copy in self.copies.values()
            if not copy.is_caught_up
        )

    def close(self) -> None:
        """Make everything durable, and close connections and directory; raises StorageFailure."""
        self._leader.close()
        if self._control is not None:
            self._control.retire()
        try:
            self._directory.close()
        finally:
            # The control channel's connections are closed after the directory, because the end of a
            # connection tells another process that the directory's lock is free.
            if self._control is not None:
                self._control.close()


def control_verbs(follower: Follower) -> Verbs:
    """Return a follower's control verbs, which run in the follower's thread between rounds."""

    def status(log_dir: DirectoryAccess, _: Arguments) -> Result:
        return holder_status(log_dir, verbs) | _state(follower)

    def flush(_: DirectoryAccess, __: Arguments) -> Result:
        follower.make_durable()
        return {}

    def promote(log_dir: DirectoryAccess, arguments: Arguments) -> Result:
        _ensure_complete(follower, arguments)
        follower.make_durable()
        follower.is_promoted = True
        return holder_status(log_dir, verbs) | _state(follower)

    def attach(log_dir: DirectoryAccess, _: Arguments) -> Result:
        raise InvalidRequest(
            f"{log_dir.path} is a standby of {follower.leader_address} and accepts only what it"
            " copies from there; promote it first"
        )

    def erase(log_dir: DirectoryAccess, _: Arguments) -> Result:
        raise InvalidRequest(
            f"{log_dir.path} is a standby of {follower.leader_address}: erase the key on the"
            " leader, so that the tombstone is copied; records that the standby already has can be"
            " erased after it is promoted"
        )

    verbs: Verbs = {
        "status": status,
        "flush": flush,
        PROMOTE: promote,
        "attach": attach,
        "accept_clock": VERBS["accept_clock"],
        "swap": VERBS["swap"],
        "erase": erase,
    }
    return verbs


def _ensure_complete(follower: Follower, arguments: Arguments) -> None:
    """Raise InvalidRequest if the request requires all records but a partition lacks records."""
    needs_all = arguments.get("needs_all", False)
    if not isinstance(needs_all, bool):
        raise CorruptMessage(
            f"promote: needs_all must be true or false, got {str(needs_all)[:20]!r}"
        )
    lacking = [copy for copy in follower.copies.values() if copy.problem or not copy.is_caught_up]
    if needs_all and lacking:
        first = lacking[0]
        lag = "? offsets" if first.lag is None else plural(first.lag, "offset")
        lack = f"{plural(len(follower.copies), 'partition')} {verb(len(lacking), 'lacks', 'lack')}"
        raise InvalidRequest(
            f"{len(lacking)} of {lack} records of {follower.leader_address}; {first.name}"
            f"{f': {first.reason}' if first.problem else f' lacks {lag}'}. The standby continues"
            " to follow; promote it without needs_all to give up the missing records"
        )


def _state(follower: Follower) -> dict[str, object]:
    return {
        "follows": follower.leader_address,
        "groups": follower.group_count,
        "partitions": [_partition_state(copy) for _, copy in sorted(follower.copies.items())],
    }


def _partition_state(copy: Copy) -> Result:
    return {
        "topic": copy.name.topic,
        "partition": copy.name.partition,
        "start": copy.log.log_start_offset,
        "end": copy.log.log_end_offset,
        "high_watermark": copy.high_watermark,
        "lag": copy.lag,
        "problem": copy.reason,
    }
