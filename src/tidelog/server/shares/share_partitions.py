"""All open share partitions, and the share sessions of members.

The first fetch that names a share partition opens it from its persisted state. If there is no
persisted state, the share partition starts at the offset that the group's settings define. A share
partition is closed when it is idle after the end of a session that used it, when its topic is
deleted, and when its state is deleted, reset or unloaded.

A share session remembers the partitions that a member reads. Epoch 0 starts a new session, -1 ends
the session, and any other epoch must be one above the last epoch. If the maximum number of sessions
is reached, a new session is refused: no old session is removed to make room.

Used only in the event loop's thread.

Source: KIP-932; Kafka 4.3's ShareSessionCache, ShareSession, ShareSessionContext, GroupConfig,
ShareGroupConfig.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
)
from uuid import UUID

from tidelog.config import BrokerConfig
from tidelog.config.group import (
    SHARE_DELIVERY_LIMIT,
    SHARE_ISOLATION,
    SHARE_LOCK_DURATION,
    SHARE_LOCKS,
    SHARE_RENEW,
    SHARE_RESET,
    group_text,
    group_value,
)
from tidelog.config.values import parse_reset
from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.server.groups.modern_group import ShareGroup
from tidelog.server.partitions.offset_lookup import find_offset
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.services import Services
from tidelog.server.runtime.reply import Reply
from tidelog.server.shares.open_partition import OpenSharePartition, Surroundings
from tidelog.server.shares.record_runs import Limits
from tidelog.server.shares.share_partition import SharePartition
from tidelog.server.shares.state_topic import (
    LOGGER,
    UNKNOWN_START,
    PersistedState,
    ShareKey,
    ShareStates,
)
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.types import INT32_MAX, SHARE_STATE_TOPIC, IsolationLevel

if TYPE_CHECKING:
    from tidelog.server.groups.coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Settings of share groups, looked up at each use so that changes apply at once.

    Attributes:
        config: Returns the broker's current settings.
        texts: Returns a group's own settings, by group id.
    """

    config: Callable[[], BrokerConfig]
    texts: Callable[[str], Mapping[str, str]]

    def limits(self, group_id: str) -> Limits:
        """Return the limits of a group's share partitions."""
        texts, config = self.texts(group_id), self.config()
        return Limits(
            locks_max=group_value(SHARE_LOCKS, texts, config),
            deliveries_max=group_value(SHARE_DELIVERY_LIMIT, texts, config),
            lock_ms=group_value(SHARE_LOCK_DURATION, texts, config),
            may_renew=group_text(SHARE_RENEW, texts).lower() == "true",
        )

    def isolation(self, group_id: str) -> IsolationLevel:
        """Return the isolation level of a group."""
        is_committed = group_text(SHARE_ISOLATION, self.texts(group_id)) == "read_committed"
        return IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED

    def reset(self, group_id: str) -> tuple[str, int]:
        """Return where a group starts (`earliest`, `latest`, `by_duration`), and a duration in ms.

        For `earliest` and `latest` the duration is 0.
        """
        return parse_reset(group_text(SHARE_RESET, self.texts(group_id)))


# Maximum number of partitions in all sessions. The limit bounds the memory for sessions, because
# clients can name any number of partitions.
PARTITIONS_MAX: Final = 250_000


class SessionKey(NamedTuple):
    """Member of a group."""

    group_id: str
    member_id: str


class SharedPartition(NamedTuple):
    """Partition in a request."""

    topic_id: UUID
    number: int


@dataclass(slots=True)
class ShareSession:
    """Partitions that one member reads.

    Attributes:
        key: Group and member.
        epoch: Epoch that the next request of the session must have.
        partitions: Partitions in the order of their first request. The value of a partition is true
            if the next response must include the partition even without changes.
        on_end: Called once when the session ends, for whatever reason.
    """

    key: SessionKey
    epoch: int = 1
    partitions: dict[SharedPartition, bool] = field(default_factory=dict)
    on_end: Callable[[], None] = lambda: None

    def rotated(self, epoch: int) -> list[SharedPartition]:
        """Return the session's partitions, rotated by the epoch.

        The epoch increases with each request, so each request begins with a different partition, in
        turn.
        """
        partitions = list(self.partitions)
        turn = epoch % len(partitions) if partitions else 0
        return partitions[turn:] + partitions[:turn]


class ShareSessions:
    """All share sessions."""

    def __init__(self, sessions_max: int) -> None:
        """Allow at most `sessions_max` sessions."""
        self.sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: SessionKey) -> ShareSession | None:
        """Return a member's session; None if the member has no session."""
        return self._sessions.get(key)

    def begin(self, key: SessionKey, named: Iterable[SharedPartition]) -> ShareSession | ErrorCode:
        """Start a new session, which replaces the member's old session.

        If a limit is reached, return an error code.
        """
        self.end(key)
        if len(self._sessions) >= self.sessions_max:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = ShareSession(key)
        code = self._add(session, named, is_new=False)
        if code:
            return code
        self._sessions[key] = session
        self._partitions += len(session.partitions)
        return session

    def advance(
        self,
        key: SessionKey,
        epoch: int,
        named: Iterable[SharedPartition] = (),
        forgotten: Iterable[SharedPartition] = (),
    ) -> ShareSession | ErrorCode:
        """Continue a session with its next request, or return an error code."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        before = len(session.partitions)
        self._partitions -= before
        code = self._add(session, named, is_new=True)
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self._partitions += len(session.partitions)
        if code:
            return code
        session.epoch = _after(epoch)
        return session

    def _add(
        self, session: ShareSession, named: Iterable[SharedPartition], *, is_new: bool
    ) -> ErrorCode:
        room = PARTITIONS_MAX - self._partitions
        for partition in named:
            if partition not in session.partitions:
                if len(session.partitions) >= room:
                    return ErrorCode.SHARE_SESSION_LIMIT_REACHED
                session.partitions[partition] = is_new
        return ErrorCode.NONE

    def end(self, key: SessionKey) -> ShareSession | None:
        """Remove a member's session and return it; None if the member has no session.

        If the caller keeps the returned session, the caller must clear the session's partitions.
        """
        session = self._sessions.pop(key, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.on_end()
        return session


def _after(epoch: int) -> int:
    return 1 if epoch == INT32_MAX else epoch + 1


# Maximum time in ms that a fetch waits for the state to be loaded
# (share.coordinator.write.timeout.ms).
LOAD_MS: Final = 5000

# Maximum number of open share partitions. Without this limit, a client could open a share partition
# for every partition of the broker.
LIVE_MAX: Final = 250_000


class SharePartitions:
    """The share partitions and sessions that are open. Used only in the event loop's thread.

    Attributes:
        states: Persisted states.
        sessions: Share sessions of members.
        settings: Settings of groups.
    """

    def __init__(
        self,
        services: Services,
        groups: "Callable[[], GroupCoordinator]",
        group_texts: Callable[[str], Mapping[str, str]],
    ) -> None:
        """Start loading the persisted states.

        Args:
            services: Services of the broker.
            groups: Returns the group coordinator.
            group_texts: Returns the settings of a single group, as texts.
        """
        self._services = services
        self._groups = groups
        self.states = ShareStates(services, self._lose)
        self.sessions = ShareSessions(services.config.group_share_max_share_sessions)
        self.settings = ShareSettings(lambda: services.config, group_texts)
        self._around = Surroundings(
            services.env.clock, services.timers, self.states, self.settings.limits
        )
        self._live: dict[ShareKey, OpenSharePartition] = {}
        self._opening: dict[ShareKey, asyncio.Task[OpenSharePartition | ErrorCode]] = {}
        services.topics.on_deleted.append(self._forget_topic)
        services.closers.append(self.close)
        self.states.topic.resume()

    def close(self) -> None:
        """Cancel pending opens and close all share partitions."""
        for task in self._opening.values():
            task.cancel()
        self._lose(list(self._live))

    def find(self, key: ShareKey) -> OpenSharePartition | None:
        """Return an open share partition; None if it is not open."""
        share = self._live.get(key)
        if share is not None and share.partition.is_deleted:
            self._drop(share)
            return None
        return share

    # -- opening -----------------------------------------------------------------------------

    async def open(self, key: ShareKey, partition: Partition) -> OpenSharePartition | ErrorCode:
        """Return a share partition, opened if necessary, or an error code."""
        code = self._code_of_group(key)
        if code:
            return code
        share = self.find(key)
        if share is not None:
            return share
        if len(self._live) >= LIVE_MAX:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(key, partition))
            self._opening[key] = task
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        # If the first request is canceled, the other requests still wait.
        return await asyncio.shield(task)

    def _code_of_group(self, key: ShareKey) -> ErrorCode:
        """Return NONE, or an error if the group isn't loaded or doesn't share the partition."""
        groups = self._groups()
        group = groups.find(key.group_id)
        if isinstance(group, ShareGroup):
            topic = group.shared.get(key.topic_id)
            if topic is not None and key.partition in topic.partitions:
                return ErrorCode.NONE
        is_known = groups.topic.error_for(key.group_id) is ErrorCode.NONE
        return ErrorCode.UNKNOWN_SERVER_ERROR if is_known else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _open(self, key: ShareKey, partition: Partition) -> OpenSharePartition | ErrorCode:
        if not await self.is_ready(key):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            start = await self._start(key, partition)
        except (OSError, TidelogError) as error:
            LOGGER.warning("%s: can't determine the start offset: %s", key.text, error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if partition.is_deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Check again, because the state may have been changed or unloaded meanwhile.
        if self.states.error_for(key) is not ErrorCode.NONE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._code_of_group(key)
        if code:
            return code
        state = self.states.find(key) or PersistedState()
        first = state.start if state.start != UNKNOWN_START else start
        records = SharePartition(first, state.batches, self.settings.limits(key.group_id))
        share = OpenSharePartition(key, partition, records, self._around)
        self._live[key] = share
        return share

    async def is_ready(self, key: ShareKey) -> bool:
        """Wait for the persisted state, at most `LOAD_MS`; return whether it can be used."""
        if await self.states.topic.ensure_topic() is not ErrorCode.NONE:
            return False
        changed = asyncio.Event()
        self.states.watch(changed.set)
        timer = self._services.timers.after(LOAD_MS, changed.set)
        try:
            while self.states.error_for(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                if timer.is_cancelled:
                    return False
                changed.clear()
                await changed.wait()
        finally:
            timer.cancel()
            self.states.unwatch(changed.set)
        return self.states.error_for(key) is ErrorCode.NONE

    async def _start(self, key: ShareKey, partition: Partition) -> int:
        """Return the persisted start offset.

        If no start offset is persisted, return the start that the group's settings define.
        """
        state = self.states.find(key)
        if state is not None and state.start != UNKNOWN_START:
            return state.start
        kind, ago_ms = self.settings.reset(key.group_id)
        if kind == "earliest":
            return partition.log.log_start_offset
        if kind == "latest":
            return partition.high_watermark
        since_ms = self._services.env.clock.now_ms() - ago_ms
        log = partition.log
        match = find_offset(log, max(since_ms, 0), log.log_end_offset, self._services.reads)
        if callable(match):
            match = await match()
        # If no record is recent enough, the group begins at the high watermark.
        return partition.high_watermark if match is None else match.offset

    # -- members -----------------------------------------------------------------------------

    def drop_session(self, session: ShareSession) -> None:
        """End a session and release its records, unless the member has begun another session."""
        if self.sessions.find(session.key) is session:
            self.sessions.end(session.key)
            self._release(session)

    def _release(self, session: ShareSession) -> None:
        group_id, member_id = session.key
        for topic_id, number in session.partitions:
            share = self.find(ShareKey(group_id, topic_id, number))
            if share is not None:
                # When the release is written, no write for the member is pending any more.
                share.release(member_id).then(partial(self._close_if_idle, share))
        session.partitions.clear()

    def _close_if_idle(self, live: OpenSharePartition, _code: object) -> None:
        """Close a share partition if it is idle and its state is stored. A fetch reopens it."""
        if live.is_closed:
            return
        state = self.states.find(live.key)
        if state is not None and state.start != UNKNOWN_START and live.is_idle:
            self._drop(live)

    # -- tools -------------------------------------------------------------------------------

    async def reset(self, key: ShareKey, start: int) -> ErrorCode:
        """Reset a share partition to an offset; returns when the reset is durable."""
        if not await self.is_ready(key):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self.change_now(key, start)

    def change_now(self, key: ShareKey, start: int | None) -> Reply[ErrorCode]:
        """Reset a share partition to an offset, or delete its state if `start` is None.

        The reply completes with NONE once the change is durable, or with an error code.
        """
        live = self._live.get(key)
        if live is not None:
            self._drop(live)
        states = self.states
        return states.forget(key) if start is None else states.initialize(key, start)

    # -- closing -----------------------------------------------------------------------------

    def _drop(self, live: OpenSharePartition) -> None:
        if self._live.get(live.key) is live:
            del self._live[live.key]
        live.close()

    def _lose(self, keys: list[ShareKey]) -> None:
        """Close share partitions whose persisted state was unloaded or may have changed."""
        for key in keys:
            live = self._live.get(key)
            if live is not None:
                self._drop(live)

    def _forget_topic(self, info: TopicInfo) -> None:
        if info.name == SHARE_STATE_TOPIC:
            self._lose(list(self._live))
            self.states.topic.forget_topic()
            return
        deleted = [live for live in self._live.values() if live.partition.is_deleted]
        for live in deleted:
            self._drop(live)
        for key in self.states.keys_without(self._has_topic):
            self.states.forget(key)

    def _has_topic(self, topic_id: UUID) -> bool:
        return self._services.topics.find_by_id(topic_id) is not None
