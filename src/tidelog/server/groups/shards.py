"""The partitions of `__consumer_offsets` behind the groups: created, loaded, written to.

A partition is read before its groups are served: in threads, in pieces, those first that somebody
asks for. Until then its groups are answered with COORDINATOR_LOAD_IN_PROGRESS. One that fails is
let go of with its groups, and read again when its log works again.

Source: Kafka 4.3's coordinator runtime.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Final

from tidelog.errors import CorruptData, TidelogError, TopicExists
from tidelog.server.groups.codes import Code
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.host import LOGGER, Host
from tidelog.server.groups.journal import OffsetsLog
from tidelog.server.groups.partitioning import partition_for
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.replay import LoadedGroup, Replay, revive
from tidelog.server.groups.reply import Reply
from tidelog.server.groups.standby import Standby
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.storage.reading import LogSlice
from tidelog.storage.topics import TopicInfo
from tidelog.types import TopicPartition

# How much one piece of loading reads, and how many groups are made of it, before others run.
LOAD_PIECE_BYTES: Final = 1 << 20
LOAD_PIECE_GROUPS: Final = 200
# A partition that could not be read is tried again at most so often.
RETRY_MS: Final = 30_000


class ShardState(Enum):
    """How far a partition is."""

    WAITING = "waiting"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


class Shards:
    """All partitions of the topic. Belongs to the loop's thread.

    Attributes:
        on_loaded: Called with the groups of a partition that was loaded.
        on_lost: Called with the number of a partition that can't be served any more, None for all.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._states: list[ShardState] = []
        self._queue: deque[int] = deque()
        self._failed_ms: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._log = OffsetsLog(host)
        self._log.on_lost = self._lose
        self._standby = Standby(host, self._log)
        self.on_loaded: Callable[[Sequence[ClassicGroup]], None] = lambda _groups: None
        self.on_lost: Callable[[int | None], None] = lambda _number: None
        host.closers.append(self.close)

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        if self._states or self.is_loading:
            return
        if self._standby.is_there:
            self._task = asyncio.get_running_loop().create_task(self._promote())
        elif (info := self._host.topics.find(OFFSETS_TOPIC)) is not None:
            self._adopt(info)
            self._ensure_loading()

    def _adopt(self, info: TopicInfo, state: "ShardState | None" = None) -> None:
        """The topic is there: read its partitions, unless they are in this state already."""
        self._states = [state or ShardState.WAITING] * info.partitions
        if state is None:
            self._queue.extend(range(info.partitions))

    def close(self) -> None:
        """Load no more."""
        if self._task is not None:
            self._task.cancel()

    # -- questions ---------------------------------------------------------------------------

    def number_of(self, group_id: str) -> int:
        """A group's partition; there must be some."""
        return partition_for(group_id, len(self._states))

    def code_for(self, group_id: str) -> Code:
        """Why a group can't be served now, `NONE` where it can."""
        if not self._states:
            return Code.NOT_COORDINATOR
        number = self.number_of(group_id)
        state = self._states[number]
        if state is ShardState.ACTIVE:
            return Code.NONE
        if state is ShardState.FAILED:
            return self._try_again(number)
        if state is ShardState.WAITING and self._queue[0] != number:
            # Somebody waits for this one.
            self._queue.remove(number)
            self._queue.appendleft(number)
        return Code.COORDINATOR_LOAD_IN_PROGRESS

    def _try_again(self, number: int) -> Code:
        """A partition whose disk failed is read when that works again; a damaged one seldom."""
        now_ms = self._host.env.clock.monotonic_ms()
        if now_ms - self._failed_ms.get(number, now_ms - RETRY_MS) < RETRY_MS:
            return Code.NOT_COORDINATOR
        partition = self._log.partition(number)
        if partition is None or partition.failure is not None:
            return Code.NOT_COORDINATOR
        self._states[number] = ShardState.WAITING
        self._queue.append(number)
        self._ensure_loading()
        return Code.COORDINATOR_LOAD_IN_PROGRESS

    @property
    def is_loading(self) -> bool:
        """Whether some partition waits to be loaded."""
        return self._task is not None and not self._task.done()

    # -- the topic ---------------------------------------------------------------------------

    @property
    def has_topic(self) -> bool:
        """Whether the topic is there."""
        return bool(self._states)

    async def ensure_topic(self) -> Code:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        if self._states:
            return Code.NONE
        self.resume()
        if not self._states and self.is_loading:  # what a standby knew comes first
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE if self._states else await self._create_topic(ShardState.ACTIVE)

    async def _create_topic(self, state: ShardState | None) -> Code:
        """Create it; its partitions, which have nothing to read, are in that state."""
        host = self._host
        make = partial(
            host.log_dir.create_topic,
            OFFSETS_TOPIC,
            partitions=host.config.offsets_topic_num_partitions,
            config=self._topic_settings(),
        )
        try:
            async with host.topics.changing:
                info, _ = await host.work.run(make)
        except TopicExists:
            info, state = host.log_dir.topic(OFFSETS_TOPIC), None
        except TidelogError as error:
            LOGGER.warning("%s can't be created: %s", OFFSETS_TOPIC, error)
            return Code.COORDINATOR_NOT_AVAILABLE
        if not self._states:
            self._adopt(info, state)
            self._ensure_loading()
        return Code.NONE

    def _topic_settings(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._host.config.offsets_topic_segment_bytes),
        }

    def forget_topic(self) -> None:
        """The topic was deleted: there are no groups any more."""
        self._states = []
        self._queue.clear()
        self.on_lost(None)

    # -- writing -----------------------------------------------------------------------------

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> Reply[Code]:
        """Write a group's records; when they are safe, or why they were not written."""
        return self._log.append(self.number_of(group_id), records)

    def settled(self, group_id: str) -> Reply[Code]:
        """When all that was written of a group's partition is safe."""
        return self._log.settled(self.number_of(group_id))

    def _lose(self, number: int) -> None:
        """A partition failed: what it had is read again when it works again."""
        if number < len(self._states) and self._states[number] is ShardState.ACTIVE:
            self._states[number] = ShardState.FAILED
            self.on_lost(number)

    # -- loading -----------------------------------------------------------------------------

    def _ensure_loading(self) -> None:
        if self._queue and not self.is_loading:
            self._task = asyncio.get_running_loop().create_task(self._load_all())

    async def _promote(self) -> None:
        """Serve a standby's groups: its offsets go into the topic while that is loaded."""
        is_read = await self._standby.read()
        info = self._host.topics.find(OFFSETS_TOPIC)
        if info is not None:
            self._adopt(info)
        else:
            await self._create_topic(None)
        await self._load_all()
        if is_read and self._states and set(self._states) == {ShardState.ACTIVE}:
            await self._standby.finish(len(self._states))

    async def _claim(self) -> None:
        """Kafka keeps the topic's settings elsewhere: by default ones offsets would go in time."""
        host = self._host
        info = host.topics.find(OFFSETS_TOPIC)
        if info is not None and info.foreign:
            async with host.topics.changing:
                await host.work.run(host.log_dir.save_config, OFFSETS_TOPIC, self._topic_settings())
                host.log_dir.follow_config(OFFSETS_TOPIC)

    async def _load_all(self) -> None:
        try:
            await self._claim()
        except TidelogError as error:
            LOGGER.error("settings of %s can't be kept: %s", OFFSETS_TOPIC, error)
        while self._queue:
            # Another list stands for another topic, should this one be deleted meanwhile.
            states, number = self._states, self._queue.popleft()
            states[number] = ShardState.LOADING
            try:
                await self._load(states, number)
            except TidelogError as error:
                LOGGER.error("%s-%d can't be loaded: %s", OFFSETS_TOPIC, number, error)
            except Exception:  # noqa: BLE001 - one partition's trouble is not the others'
                LOGGER.exception("%s-%d can't be loaded", OFFSETS_TOPIC, number)
            if states[number] is ShardState.LOADING:
                states[number] = ShardState.FAILED
                self._failed_ms[number] = self._host.env.clock.monotonic_ms()

    async def _load(self, states: list[ShardState], number: int) -> None:
        """Read a partition; it is active then, unless what a standby knew can't be written."""
        partitions = self._host.partitions
        await partitions.open_beside([TopicPartition(OFFSETS_TOPIC, number)], self._host.work)
        log = partitions.get(OFFSETS_TOPIC, number).log
        replay = Replay()
        if log.log_end_offset > log.log_start_offset:
            pieces = _pieces(log.slices(), replay)
            while await self._host.work.run(next, pieces, None) is not None:
                pass
        loaded = await self._host.work.run(replay.groups)
        for line in replay.skipped:
            LOGGER.warning("%s-%d: left out: %s", OFFSETS_TOPIC, number, line)
        groups = await self._revive(loaded)
        if states is self._states and self._standby.take_in(number, len(states), groups):
            states[number] = ShardState.ACTIVE
            self.on_loaded(tuple(groups.values()))

    async def _revive(self, loaded: dict[str, LoadedGroup]) -> dict[str, ClassicGroup]:
        now_ms = self._host.env.clock.now_ms()
        groups: dict[str, ClassicGroup] = {}
        for group_id, found in loaded.items():
            groups[group_id] = revive(group_id, found, now_ms)
            if len(groups) % LOAD_PIECE_GROUPS == 0:
                await asyncio.sleep(0)
        return groups


def _pieces(slices: Iterator[LogSlice], replay: Replay) -> Iterator[int]:
    """Feed batches to the replay; a pause after each piece, with its bytes."""
    taken = 0
    for part in slices:
        for position, batch in part.batches():
            try:
                batch.ensure_valid()
                replay.add(batch)
            except CorruptData as error:
                raise error.located(part.segment.log_path, position - batch.at) from error
            taken += len(batch.view)
            if taken >= LOAD_PIECE_BYTES:
                yield taken
                taken = 0
