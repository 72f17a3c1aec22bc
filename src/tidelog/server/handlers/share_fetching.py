"""The fetch of a share session: partitions in turn, what can be acquired of each, or a wait.

Nothing is acquired before there is enough for an answer, or the time is over. One fetch at a time
reads a share partition; who finds it read looks again when that is over. Of all that wait for one
the next in turn is woken (`turns`), and looks only where it was woken for.

Source: KIP-932, KIP-1206; Kafka 4.3's DelayedShareFetch, ShareFetchUtils.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.protocol.messages.share_fetch import AcquiredRecords, SharePartitionData
from tidelog.server.handlers.share_requests import Member, text_of
from tidelog.server.read_failures import tell_failure
from tidelog.server.segment_bytes import ColdRead
from tidelog.server.shares.kept import ShareKey
from tidelog.server.shares.reading import Part, Read, read
from tidelog.server.shares.sessions import SharedPartition
from tidelog.server.shares.states import Acquired, Wish
from tidelog.server.slices import Slices
from tidelog.types import Buffer, IsolationLevel

if TYPE_CHECKING:
    from tidelog.server.file_pieces import FilePiece
    from tidelog.server.node import Node
    from tidelog.server.shares.live import LiveShare

Answers = dict[SharedPartition, SharePartitionData]
# Partitions whose logs are looked for in one turn of the loop.
AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class ShareOrder:
    """What a fetch asks of all its partitions.

    Attributes:
        wish: How many records.
        min_bytes: How much it waits for.
        max_bytes: How much all partitions give together; a first batch comes whole even so.
        max_wait_ms: How long it waits.
        isolation: Which records of transactions are seen.
    """

    wish: Wish
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation: IsolationLevel


def refusal(named: SharedPartition, code: int) -> SharePartitionData:
    """An answer that is an error."""
    return SharePartitionData(
        partition_index=named.number, error_code=code, error_message=text_of(code)
    )


class ShareFetching:
    """One fetch, from its partitions to the answer. Belongs to the loop's thread."""

    def __init__(self, member: Member, order: ShareOrder) -> None:
        """A fetch that has not looked at anything."""
        self._member = member
        self._node: Node = member.context.node
        self._order = order
        self._live: dict[SharedPartition, LiveShare] = {}
        self._answers: Answers = {}
        self._changed = asyncio.Event()
        self._woken_for: dict[SharedPartition, None] = {}
        self._slices = Slices(self._node.env.clock)
        self._is_over = False
        self._has_news = False
        self.isolation = order.isolation
        self.is_busy = False

    def wake(self, key: ShareKey) -> None:
        """There may be something to acquire."""
        self._woken_for[SharedPartition(key.topic_id, key.partition)] = None
        self._changed.set()

    async def run(self, named: Sequence[SharedPartition]) -> Answers:
        """What each partition gives, those that give nothing left out."""
        rest = await self._open(named)
        if rest:
            if await self._look(self._live):
                return self._answers
            await self._open(rest, may_stop=False)
        if not self._live and (self._answers or not named):
            return self._answers
        timer = self._node.timers.after(max(self._order.max_wait_ms, 0), self._end_wait)
        try:
            self._join()
            is_over = await self._look(self._live)
            while not is_over:
                await self._changed.wait()
                is_over = await self._look(self._take_woken())
        finally:
            timer.cancel()
            self._leave()
        return self._answers

    async def _open(
        self, named: Sequence[SharedPartition], *, may_stop: bool = True
    ) -> Sequence[SharedPartition]:
        """Open partitions, up to the first that was not open yet and has records; the others.

        So the first records of a group wait for one partition, not for all; Kafka's brokers do so.
        """
        for start in range(0, len(named), AT_ONCE):
            piece = named[start : start + AT_ONCE]
            missing = self._node.partitions.unopened(self._member.names_of(piece))
            if missing:
                await self._node.partitions.open_beside(missing, self._node.work)
            for number, each in enumerate(piece, start + 1):
                if await self._open_one(each) and may_stop:
                    return named[number:]
                await self._slices.rest()
        return ()

    async def _open_one(self, named: SharedPartition) -> bool:
        """Open a partition, or say why not; whether it was not open yet and is an answer alone."""
        node, key = self._node, self._member.key_of(named)
        partition = self._member.find(named)
        is_new = node.shares.find(key) is None
        live: LiveShare | int = (
            partition if isinstance(partition, int) else await node.shares.open(key, partition)
        )
        if live == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # Left out: a later fetch may open it, and Java's consumer dies of that error.
            return False
        if isinstance(live, int):
            self._answers[named] = refusal(named, live)
            return False
        self._live[named] = live
        return is_new and self._order.min_bytes <= 1 and live.has_some(self.isolation)

    # -- the wait ----------------------------------------------------------------------------

    def _end_wait(self) -> None:
        self._is_over = True
        self._changed.set()

    def _join(self) -> None:
        for live in self._live.values():
            live.join(self)

    def _leave(self) -> None:
        for live in self._live.values():
            live.leave(self)

    def _take_woken(self) -> Iterable[SharedPartition]:
        """Where to look: all of them count where it wants more than what one has got now."""
        self._changed.clear()
        woken_for, self._woken_for = self._woken_for, {}
        return woken_for if self._order.min_bytes <= 1 else self._live

    async def _look(self, named: Iterable[SharedPartition]) -> bool:
        """Acquire what there is; whether that is the answer."""
        is_over = self._is_over or self._order.max_wait_ms <= 0
        chosen: list[SharedPartition] = []
        self.is_busy = True
        try:
            for each in named:
                if self._choose(each):
                    chosen.append(each)
                await self._slices.rest()
            reads = {each: found for each in chosen if (found := await self._read(each, chosen))}
            size_bytes = sum(found.size_bytes for found in reads.values())
            if is_over or size_bytes >= max(self._order.min_bytes, 1):
                await self._acquire(reads)
        finally:
            for each in chosen:
                self._live[each].end_reading()
            self.is_busy = False
        return is_over or self._has_news

    def _choose(self, named: SharedPartition) -> bool:
        """Whether a partition is to be read now, by this fetch; it is its own then."""
        live = self._live[named]
        if live.partition.is_gone:
            self._tell(named, refusal(named, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return False
        if live.is_gone:
            # Let go of, or begun anew: the next fetch opens it, so that one is to come soon.
            self._has_news = True
            return False
        # What has its answer is left to others; this fetch is about to end, and leaves it then.
        return named not in self._answers and live.begin_reading(self)

    # -- reading -----------------------------------------------------------------------------

    async def _read(self, named: SharedPartition, chosen: Sequence[SharedPartition]) -> Read | None:
        live = self._live[named]
        share = max(self._order.max_bytes // len(chosen), 1)
        records, isolation = live.records, self._order.isolation
        wanted_end = records.wanted_end(self._order.wish.records_max)
        part = Part(records.fetch_offset, wanted_end, records.end, share)

        def find(*, may_block: bool) -> Read | None:
            return read(live.partition, part, isolation, may_block=may_block)

        return await self._tried(named, lambda: find(may_block=False), lambda: find(may_block=True))

    async def _tried(
        self,
        named: SharedPartition,
        now: "Callable[[], Read | None]",
        later: "Callable[[], Read | None]",
    ) -> Read | None:
        """A read, in a thread where it has to be; None where it fails, which is the answer."""
        try:
            try:
                return now()
            except ColdRead:
                return await self._node.reads.run(later)
        except (OSError, TidelogError) as error:
            tell_failure(self._live[named].partition.log, error)
            self._tell(named, refusal(named, _code_of(error)))
            return None

    async def _acquire(self, reads: "dict[SharedPartition, Read]") -> None:
        """Let the member have what was read, one partition after the other until it has enough."""
        left = self._order.wish.records_max
        for named, found in reads.items():
            live = self._live[named]
            if live.is_gone or left <= 0:
                continue
            wish = Wish(
                records_max=left,
                batch_records=self._order.wish.batch_records,
                is_strict=self._order.wish.is_strict,
            )
            before = live.records.position
            acquired = live.acquire(self._member.member_id, found.offered, wish)
            left -= sum(each.size for each in acquired)
            if acquired:
                await self._answer(named, found, acquired)
            elif live.records.position != before:
                self._has_news = True  # all was hidden: who asks again gets what lies behind it

    async def _answer(
        self, named: SharedPartition, found: Read, acquired: Sequence[Acquired]
    ) -> None:
        try:
            records = await self._records(found, acquired)
        except (OSError, TidelogError) as error:
            # What was acquired comes back when its time is over.
            tell_failure(self._live[named].partition.log, error)
            self._tell(named, refusal(named, _code_of(error)))
            return
        data = SharePartitionData(
            partition_index=named.number,
            # The writer asks for lengths only; the connection makes bytes of a piece of a file.
            records=[cast("Buffer", records)],
            acquired_records=[
                AcquiredRecords(
                    first_offset=each.first, last_offset=each.last, delivery_count=each.count
                )
                for each in acquired
            ],
        )
        self._tell(named, data)

    async def _records(self, found: Read, acquired: Sequence[Acquired]) -> "Buffer | FilePiece":
        try:
            return found.records(acquired)
        except ColdRead:
            found.let_block()
            return await self._node.reads.run(found.records, acquired)

    def _tell(self, named: SharedPartition, data: SharePartitionData) -> None:
        """Something to say that can't wait."""
        self._answers[named] = data
        self._has_news = True


def _code_of(error: Exception) -> int:
    if not isinstance(error, TidelogError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR if error.code is None else error.code
