"""All share partitions that are being read, and what is kept of the others.

One is opened at the first fetch that names it, from what is kept of it; where nothing is, it begins
where the group's settings say. It is let go of when nobody has a record of it, or its topic or what
is kept of it goes.
"""

import asyncio
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.server.arrivals import arrival
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.share.group import ShareGroup
from tidelog.server.partitions import Partition
from tidelog.server.shares.host import ShareHost
from tidelog.server.shares.kept import UNKNOWN_START, KeptState, ShareKey
from tidelog.server.shares.live import LiveShare, Surroundings
from tidelog.server.shares.sessions import SessionKey, ShareSession, ShareSessions
from tidelog.server.shares.settings import ShareSettings
from tidelog.server.shares.share_partition import SharePartition
from tidelog.server.shares.share_states import LOGGER, ShareStates
from tidelog.server.time_lookups import find_time
from tidelog.server.topics import SHARE_STATE_TOPIC
from tidelog.storage.topic_info import TopicInfo
from tidelog.types import OffsetAndTimestamp

# So long a fetch waits for what is kept to be loaded (share.coordinator.write.timeout.ms).
LOAD_MS: Final = 5000
# Share partitions in memory: who may read a group may name as many as there are partitions.
LIVE_MAX: Final = 250_000


class Shares:
    """Belongs to the loop's thread.

    Attributes:
        states: What is kept.
        sessions: What members have asked for once.
        settings: What holds for a group.
    """

    def __init__(self, node: ShareHost) -> None:
        """Begin to read what is kept."""
        self._node = node
        self.states = ShareStates(node)
        self.sessions = ShareSessions(node.config.group_share_max_share_sessions)
        self.settings = ShareSettings(lambda: node.config, node.group_texts)
        self._around = Surroundings(node.env.clock, node.timers, self.states, self.settings.limits)
        self._live: dict[ShareKey, LiveShare] = {}
        self._opening: dict[ShareKey, asyncio.Task[LiveShare | ErrorCode]] = {}
        self.states.on_lost = self._lose
        node.topics.on_deleted.append(self._forget_topic)
        node.closers.append(self.close)
        self.states.resume()

    def close(self) -> None:
        """Wait for nothing any more."""
        for task in self._opening.values():
            task.cancel()
        self._lose(list(self._live))

    def find(self, key: ShareKey) -> LiveShare | None:
        """A share partition that was opened; None for none."""
        found = self._live.get(key)
        if found is not None and found.partition.is_gone:
            self._drop(found)
            return None
        return found

    @property
    def live_count(self) -> int:
        """How many are open."""
        return len(self._live)

    # -- opening -----------------------------------------------------------------------------

    async def open(self, key: ShareKey, partition: Partition) -> LiveShare | ErrorCode:
        """A share partition, opened where it was not; or why it can't be."""
        code = self._code_of_group(key)
        if code:
            return code
        found = self.find(key)
        if found is not None:
            return found
        if len(self._live) >= LIVE_MAX:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(key, partition))
            self._opening[key] = task
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        # Who asked first may go away: the others wait on.
        return await asyncio.shield(task)

    def _code_of_group(self, key: ShareKey) -> ErrorCode:
        """Why nobody may read it for its group: none shares it, or which do can't be told now."""
        groups = self._node.groups
        group = groups.find(key.group_id)
        if isinstance(group, ShareGroup):
            topic = group.shared.get(key.topic_id)
            if topic is not None and key.partition in topic.partitions:
                return ErrorCode.NONE
        is_known = groups.shards.code_for(key.group_id) is ErrorCode.NONE
        return ErrorCode.UNKNOWN_SERVER_ERROR if is_known else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _open(self, key: ShareKey, partition: Partition) -> LiveShare | ErrorCode:
        if not await self.is_ready(key):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            start = await self._start(key, partition)
        except (OSError, TidelogError) as error:
            LOGGER.warning("%s: where to begin can't be told: %s", key.text, error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if partition.is_gone:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Looked at again: it may have been changed or lost meanwhile.
        if self.states.code_for(key) is not ErrorCode.NONE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._code_of_group(key)
        if code:
            return code
        kept = self.states.find(key) or KeptState()
        first = kept.start if kept.start != UNKNOWN_START else start
        records = SharePartition(first, kept.batches, self.settings.limits(key.group_id))
        made = LiveShare(key, partition, records, self._around)
        self._live[key] = made
        return made

    async def is_ready(self, key: ShareKey) -> bool:
        """Whether what is kept can be told, after a wait for it to be loaded."""
        if await self.states.ensure_topic() is not ErrorCode.NONE:
            return False
        changed = asyncio.Event()
        self.states.watch(changed.set)
        timer = self._node.timers.after(LOAD_MS, changed.set)
        try:
            while self.states.code_for(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                if timer.is_cancelled:
                    return False
                changed.clear()
                await changed.wait()
        finally:
            timer.cancel()
            self.states.unwatch(changed.set)
        return self.states.code_for(key) is ErrorCode.NONE

    async def _start(self, key: ShareKey, partition: Partition) -> int:
        """Where a group begins that has not begun; the log's start where it has."""
        kept = self.states.find(key)
        if kept is not None and kept.start != UNKNOWN_START:
            return kept.start
        kind, ago_ms = self.settings.reset(key.group_id)
        if kind == "earliest":
            return partition.log.log_start_offset
        if kind == "latest":
            return partition.high_watermark
        since_ms = self._node.env.clock.now_ms() - ago_ms
        found = find_time(partition.log, max(since_ms, 0), self._node.reads)
        if found is not None and not isinstance(found, OffsetAndTimestamp):
            found = await found()
        # Nothing is that young: what comes from now on is.
        return partition.high_watermark if found is None else found.offset

    # -- members -----------------------------------------------------------------------------

    def end_session(self, key: SessionKey) -> bool:
        """A member goes: its session ends, and nobody has its records; whether it had a session."""
        session = self.sessions.end(key)
        if session is None:
            return False
        self._release(session)
        return True

    def drop_session(self, key: SessionKey, session: ShareSession) -> None:
        """A connection was closed: its session ends, if it is the member's still."""
        if self.sessions.find(key) is session:
            self.sessions.end(key)
            self._release(session)

    def _release(self, session: ShareSession) -> None:
        group_id, member_id = session.key
        for topic_id, number in session.partitions:
            found = self.find(ShareKey(group_id, topic_id, number))
            if found is not None:
                # Only then is nothing on its way any more.
                found.release(member_id).then(partial(self._let_go, found))
        session.partitions.clear()

    def _let_go(self, live: LiveShare, _said: object) -> None:
        """Keep nothing in memory that can be read again, and that nobody uses."""
        if live.is_gone:
            return
        kept = self.states.find(live.key)
        if kept is not None and kept.start != UNKNOWN_START and live.is_idle:
            self._drop(live)

    # -- tools -------------------------------------------------------------------------------

    async def begin_anew(self, key: ShareKey, start: int) -> ErrorCode:
        """Let a group read from an offset on, whatever it has read; once that is safe."""
        return await self._changed(key, start)

    async def forget(self, key: ShareKey) -> ErrorCode:
        """Forget where a group is; once that is safe."""
        return await self._changed(key, None)

    async def _changed(self, key: ShareKey, start: int | None) -> ErrorCode:
        if not await self.is_ready(key):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await arrival(self.change_now(key, start))

    def change_now(self, key: ShareKey, start: int | None) -> Reply[ErrorCode]:
        """Begin anew from an offset on, or be forgotten (None); when it is safe, or why not."""
        live = self._live.get(key)
        if live is not None:
            self._drop(live)
        states = self.states
        return states.forget(key) if start is None else states.initialize(key, start)

    # -- what goes ---------------------------------------------------------------------------

    def _drop(self, live: LiveShare) -> None:
        if self._live.get(live.key) is live:
            del self._live[live.key]
        live.close()

    def _lose(self, keys: list[ShareKey]) -> None:
        """What is kept of them can't be told any more, or may be other than was thought."""
        for key in keys:
            live = self._live.get(key)
            if live is not None:
                self._drop(live)

    def _forget_topic(self, info: TopicInfo) -> None:
        if info.name == SHARE_STATE_TOPIC:
            self._lose(list(self._live))
            self.states.forget_topic()
            return
        gone = [live for live in self._live.values() if live.partition.is_gone]
        for live in gone:
            self._drop(live)
        for key in self.states.keys_without(self._has_topic):
            self.states.forget(key)

    def _has_topic(self, topic_id: UUID) -> bool:
        return self._node.topics.find_by_id(topic_id) is not None
