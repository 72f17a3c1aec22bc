"""`tidelog.connect_async`: the calls of `RemoteDirectory` for a program with an event loop.

Nothing blocks the loop: what waits runs in a few threads of the connection's own, and an append
occupies one only while its records are queued, not while they are on their way.

Life cycle: `await connect_async(...)` -> calls -> `await close()`, best by `async with`. For one
loop; any number of its tasks.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from tidelog.arguments import reads_arguments
from tidelog.directory import When
from tidelog.env import Env
from tidelog.errors import Closed
from tidelog.record.record import Record
from tidelog.remote.cluster import TIMEOUT_S
from tidelog.remote.remote_directory import RemoteDirectory, connect
from tidelog.remote.topics import RemoteTopic
from tidelog.storage.log.append import AppendResult
from tidelog.types import (
    ClockName,
    Compression,
    Isolation,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    RecordCount,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.frames import TopicChoice
    from tidelog.scan import ScanStats


_Answer = TypeVar("_Answer")


_Item = TypeVar("_Item")


# Questions that wait side by side; more wait their turn.
_THREADS: Final = 8


@reads_arguments()
class AsyncRemoteDirectory:
    """The topics of a cluster; every call is `RemoteDirectory`'s, awaited.

    Arguments, answers and errors are those of the call of the same name there.
    """

    def __init__(self, directory: RemoteDirectory) -> None:
        self._directory = directory
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidelog-connect")
        self._is_closed = False

    @property
    def bootstrap(self) -> str:
        """Where it is, `host:port[,host:port]`."""
        return self._directory.bootstrap

    async def _run(self, ask: Callable[[], _Answer]) -> _Answer:
        if self._is_closed:
            raise Closed(f"the connection to {self.bootstrap} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    # -- topics ------------------------------------------------------------------------------

    async def topics(self) -> Mapping[str, RemoteTopic]:
        """See `RemoteDirectory.topics`."""
        return await self._run(self._directory.topics)

    async def topic(self, name: str) -> RemoteTopic:
        """See `RemoteDirectory.topic`."""
        return await self._run(lambda: self._directory.topic(name))

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """See `RemoteDirectory.partitions`."""
        return await self._run(lambda: self._directory.partitions(topic))

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """See `RemoteDirectory.create_topic`."""
        make = self._directory.create_topic
        await self._run(lambda: make(name, partitions=partitions, config=config, exist_ok=exist_ok))

    async def delete_topic(self, name: str) -> None:
        """See `RemoteDirectory.delete_topic`."""
        await self._run(lambda: self._directory.delete_topic(name))

    async def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """See `RemoteDirectory.alter_config`."""
        await self._run(lambda: self._directory.alter_config(name, changes))

    # -- appending ---------------------------------------------------------------------------

    async def append(
        self,
        topic: str,
        records: Iterable[NewRecord],
        *,
        partition: int | None = None,
        codec: Compression | None = None,
    ) -> dict[int, AppendResult]:
        """See `RemoteDirectory.append`; records of a call that is cancelled may be in the log."""
        send = self._directory.send
        sent = await self._run(lambda: send(topic, records, partition=partition, codec=codec))
        return await _answer_of(sent)

    async def append_table(
        self, topic: str, table: "pa.Table | pa.RecordBatch", *, codec: Compression | None = None
    ) -> dict[int, AppendResult]:
        """See `RemoteDirectory.append_table`."""
        send = self._directory.send_table
        return await _answer_of(await self._run(lambda: send(topic, table, codec=codec)))

    async def flush(self) -> None:
        """See `RemoteDirectory.flush`."""
        await self._run(self._directory.flush)

    # -- lookups by time ---------------------------------------------------------------------

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See `RemoteDirectory.offsets_for_times`."""
        return await self._run(lambda: self._directory.offsets_for_times(times, clock=clock))

    async def offsets_at(
        self, topic: str, when: When, *, clock: str = ClockName.RECORD
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See `RemoteDirectory.offsets_at`."""
        return await self._run(lambda: self._directory.offsets_at(topic, when, clock=clock))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """See `RemoteDirectory.beginning_offsets`."""
        return await self._run(lambda: self._directory.beginning_offsets(partitions))

    async def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """See `RemoteDirectory.end_offsets`."""
        return await self._run(lambda: self._directory.end_offsets(partitions, isolation=isolation))

    def point(self, when: When) -> int:
        """See `RemoteDirectory.point`; asks nobody."""
        return self._directory.point(when)

    def range(self, text: str) -> tuple[int, int]:
        """See `RemoteDirectory.range`; asks nobody."""
        return self._directory.range(text)

    # -- reading -----------------------------------------------------------------------------

    def records(
        self, topic: str, *, isolation: Isolation = IsolationLevel.READ_UNCOMMITTED
    ) -> AsyncIterator[tuple[TopicPartition, Record]]:
        """See `RemoteDirectory.records`; for `async for`."""
        return self._each(lambda: self._directory.records(topic, isolation=isolation))

    def read(  # noqa: PLR0913 - one keyword for each way to choose
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        strict: bool = False,
        stats: "ScanStats | None" = None,
    ) -> "AsyncIterator[pa.RecordBatch]":
        """See `RemoteDirectory.read`; its batches for `async for`, fetched as they are asked for.

        Errors come with the first batch.
        """
        found = self._directory.scan(
            topic,
            start=start,
            end=end,
            clock=clock,
            columns=columns,
            isolation=isolation,
            strict=strict,
        )
        return self._each(lambda: iter(found.to_arrow(stats=stats)))

    async def table(
        self,
        topics: "TopicChoice" = None,
        *,
        during: str | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> "pa.Table":
        """The records of topics in memory as an Arrow table; see `RemoteDirectory.scan`."""
        found = self._directory.scan(
            topics, during=during, clock=clock, columns=columns, isolation=isolation
        )
        return await self._run(found.to_table)

    async def count(
        self,
        topic: str,
        *,
        start: When | None = None,
        end: When | None = None,
        clock: str = ClockName.RECORD,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    ) -> RecordCount:
        """See `RemoteDirectory.count`."""
        found = self._directory.scan(topic, start=start, end=end, clock=clock, isolation=isolation)
        return await self._run(found.count)

    async def _each(self, begin: Callable[[], Iterator[_Item]]) -> AsyncIterator[_Item]:
        """The items of an iterator that blocks, each taken in a thread.

        Who stops early, or is cancelled, leaves the iterator to a thread that closes it once it
        has come back from what it waits for.
        """
        steps = _Steps(begin)
        try:
            while True:
                found = await self._run(steps.take)
                if not found:
                    return
                yield found[0]
        finally:
            with suppress(RuntimeError):  # nothing is left to close once the threads have gone
                self._threads.submit(steps.close)

    # -- closing -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is on its way, then let go; what is called later raises Closed."""
        if self._is_closed:
            return
        self._is_closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._directory.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _answer_of(sent: "Future[_Answer]") -> _Answer:
    """The answer of records on their way; cancelling does not call them back."""
    return await asyncio.shield(asyncio.wrap_future(sent))


class _Steps(Generic[_Item]):
    """An iterator that several threads take turns with; it is closed between two steps."""

    def __init__(self, begin: Callable[[], Iterator[_Item]]) -> None:
        self._begin = begin
        self._iterator: Iterator[_Item] | None = None
        self._turn = threading.Lock()
        self._is_closed = False

    def take(self) -> tuple[()] | tuple[_Item]:
        """The next item, nothing at the end; begins with the first."""
        with self._turn:
            if self._is_closed:
                return ()
            if self._iterator is None:
                self._iterator = self._begin()
            for item in self._iterator:
                return (item,)
            return ()

    def close(self) -> None:
        """Let go of what the iterator holds."""
        with self._turn:
            self._is_closed = True
            close = getattr(self._iterator, "close", None)
            if close is not None:
                close()


@reads_arguments()
async def connect_async(
    bootstrap: str,
    *,
    config: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    env: Env | None = None,
) -> AsyncRemoteDirectory:
    """Topics of a running Kafka for a program with an event loop; see `tidelog.connect`.

    >>> async with await tidelog.connect_async("localhost:9092") as log:  # doctest: +SKIP
    ...     await log.append("flights", [tidelog.NewRecord(value=b"{}")])
    ...     async for batch in log.read("flights", start="-1h"):
    ...         print(batch.num_rows)
    """

    def make() -> RemoteDirectory:
        return connect(bootstrap, config=config, timeout_s=timeout_s, env=env)

    return AsyncRemoteDirectory(await asyncio.get_running_loop().run_in_executor(None, make))
