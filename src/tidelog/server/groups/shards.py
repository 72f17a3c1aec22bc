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
from typing import Final

from tidelog.errors import (
    CorruptData,
    MessageTooLarge,
    RecordListTooLarge,
    TidelogError,
    TopicExists,
)
from tidelog.record.builder import build_batch
from tidelog.server.groups.codes import Code
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.host import LOGGER, Host
from tidelog.server.groups.partitioning import partition_for
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.replay import LoadedGroup, Replay, revive
from tidelog.server.groups.reply import Reply
from tidelog.server.partitions import Partition
from tidelog.server.topics import OFFSETS_TOPIC
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.reading import LogSlice
from tidelog.types import NewRecord

# How much one piece of loading reads, and how many groups are made of it, before others run.
LOAD_PIECE_BYTES: Final = 1 << 20
LOAD_PIECE_GROUPS: Final = 200


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

    def __init__(self, node: Host) -> None:
        self._node = node
        self._states: list[ShardState] = []
        self._queue: deque[int] = deque()
        self._task: asyncio.Task[None] | None = None
        self._awaited: dict[int, Awaited] = {}
        self.on_loaded: Callable[[Sequence[ClassicGroup]], None] = lambda _groups: None
        self.on_lost: Callable[[int | None], None] = lambda _number: None
        node.closers.append(self.close)

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is none."""
        info = self._node.topics.find(OFFSETS_TOPIC)
        if info is None or self._states:
            return
        if info.foreign:
            # Kafka keeps its settings elsewhere; by default ones offsets would go with time.
            self._node.log_dir.alter_config(OFFSETS_TOPIC, self._topic_settings())
        self._begin(info.partitions)

    def _topic_settings(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._node.config.offsets_topic_segment_bytes),
        }

    def _begin(self, count: int) -> None:
        """Partitions are there: read them all."""
        self._states = [ShardState.WAITING] * count
        self._queue.extend(range(count))
        self._ensure_loading()

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
        partition = self._partition(number)
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

    def _partition(self, number: int) -> Partition | None:
        try:
            return self._node.partitions.get(OFFSETS_TOPIC, number)
        except TidelogError as error:
            LOGGER.warning("%s-%d can't be opened: %s", OFFSETS_TOPIC, number, error)
            return None

    # -- the topic ---------------------------------------------------------------------------

    def ensure_topic(self) -> Code:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        if self._states:
            return Code.NONE
        config = self._node.config
        try:
            info = self._node.topics.create(
                OFFSETS_TOPIC,
                config.offsets_topic_num_partitions,
                self._topic_settings(),
            )
        except TopicExists:
            info = self._node.log_dir.topic(OFFSETS_TOPIC)
            self._begin(info.partitions)
            return Code.NONE
        except TidelogError as error:
            LOGGER.warning("%s can't be created: %s", OFFSETS_TOPIC, error)
            return Code.COORDINATOR_NOT_AVAILABLE
        # There is nothing to read in what was made just now.
        self._states = [ShardState.ACTIVE] * info.partitions
        return Code.NONE

    def forget_topic(self) -> None:
        """The topic was deleted: there are no groups any more."""
        self._states = []
        self._queue.clear()
        self.on_lost(None)

    # -- writing -----------------------------------------------------------------------------

    def append(self, group_id: str, records: Sequence[GroupRecord]) -> Reply[Code]:
        """Write a group's records; when they are safe, or why they were not written."""
        number = self.number_of(group_id)
        partition = self._partition(number)
        if partition is None:
            return Reply.of(Code.NOT_COORDINATOR)
        now_ms = self._node.env.clock.now_ms()
        made = build_batch(
            [NewRecord(key=record.key, value=record.value, timestamp=now_ms) for record in records]
        )
        try:
            result = partition.append(made, origin=AppendOrigin.COORDINATOR, owned=True)
        except (MessageTooLarge, RecordListTooLarge):
            return Reply.of(Code.UNKNOWN_SERVER_ERROR)
        except TidelogError as error:
            LOGGER.warning("%s: %s", partition.name, error)
            self._lose(number)
            return Reply.of(Code.NOT_COORDINATOR)
        return self._await(number, partition, result.last_offset)

    def _await(self, number: int, partition: Partition, last_offset: int) -> Reply[Code]:
        """Safe is what readers may see."""
        if partition.high_watermark > last_offset:
            return Reply.of(Code.NONE)
        awaited = self._awaited.get(number)
        if awaited is None or awaited.partition is not partition:
            awaited = self._awaited[number] = Awaited(partition, lambda: self._lose(number))
        return awaited.add(last_offset)

    def settled(self, group_id: str) -> Reply[Code]:
        """When all that was written of a group's partition is safe."""
        awaited = self._awaited.get(self.number_of(group_id))
        return Reply.of(Code.NONE) if awaited is None else awaited.settled()

    def _lose(self, number: int) -> None:
        """A partition failed: what it had is read again when it works again."""
        if number < len(self._states) and self._states[number] is ShardState.ACTIVE:
            self._states[number] = ShardState.FAILED
            self.on_lost(number)

    # -- loading -----------------------------------------------------------------------------

    def _ensure_loading(self) -> None:
        if not self.is_loading:
            self._task = asyncio.get_running_loop().create_task(self._load_all())

    async def _load_all(self) -> None:
        while self._queue:
            number = self._queue.popleft()
            self._states[number] = ShardState.LOADING
            try:
                await self._load(number)
            except TidelogError as error:
                LOGGER.error("%s-%d can't be loaded: %s", OFFSETS_TOPIC, number, error)
                if number < len(self._states):
                    self._states[number] = ShardState.FAILED

    async def _load(self, number: int) -> None:
        log = self._node.partitions.get(OFFSETS_TOPIC, number).log
        replay = Replay()
        if log.log_end_offset > log.log_start_offset:
            pieces = _pieces(log.slices(), replay)
            while await self._node.work.run(next, pieces, None) is not None:
                pass
        loaded = await self._node.work.run(replay.groups)
        for line in replay.skipped:
            LOGGER.warning("%s-%d: left out: %s", OFFSETS_TOPIC, number, line)
        groups = await self._revive(loaded)
        if number < len(self._states):
            self._states[number] = ShardState.ACTIVE
            self.on_loaded(groups)

    async def _revive(self, loaded: dict[str, LoadedGroup]) -> list[ClassicGroup]:
        now_ms = self._node.env.clock.now_ms()
        groups = []
        for group_id, found in loaded.items():
            groups.append(revive(group_id, found, now_ms))
            if len(groups) % LOAD_PIECE_GROUPS == 0:
                await asyncio.sleep(0)
        return groups


class Awaited:
    """Writes to one partition that are not safe yet, in order. Belongs to the loop's thread."""

    def __init__(self, partition: Partition, on_failure: Callable[[], None]) -> None:
        self.partition = partition
        self._on_failure = on_failure
        self._waiting: deque[tuple[int, Reply[Code]]] = deque()

    def add(self, last_offset: int) -> Reply[Code]:
        """When records up to this offset, inclusive, are safe."""
        reply = Reply[Code]()
        if not self._waiting:
            self.partition.watch(self._look)
        self._waiting.append((last_offset, reply))
        return reply

    def settled(self) -> Reply[Code]:
        """When all of them are."""
        return self.add(self._waiting[-1][0]) if self._waiting else Reply.of(Code.NONE)

    def _look(self) -> None:
        if self.partition.failure is not None or self.partition.is_gone:
            self._fail()
            return
        end = self.partition.high_watermark
        while self._waiting and self._waiting[0][0] < end:
            self._waiting.popleft()[1].complete(Code.NONE)
        if not self._waiting:
            self.partition.unwatch(self._look)

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.partition.unwatch(self._look)
        for _, reply in waiting:
            reply.complete(Code.NOT_COORDINATOR)
        self._on_failure()


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
