"""`tidelog.connect_async`: `RemoteDirectory` for programs with an event loop.

Calls never block the loop, because each connection runs blocking calls in a few threads. An append
uses a thread only while it queues its records, not while the records are sent. `awaited` and `sent`
copy signatures and documentation from `RemoteDirectory`.

Life cycle: `await connect_async(...)`, calls, `await close()`; best used with `async with`. Any
number of tasks of one event loop may share a connection.
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from tidelog.arguments import reads_arguments
from tidelog.env import Env
from tidelog.errors import Closed
from tidelog.front_door import When
from tidelog.record.record import Record
from tidelog.remote.cluster import TIMEOUT_S
from tidelog.remote.remote_directory import RemoteDirectory, connect
from tidelog.types import ClockName, Isolation, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan import ScanStats


_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_P = ParamSpec("_P")
_Function = TypeVar("_Function", bound=Callable[..., object])

# Number of threads for blocking calls; further calls wait until a thread is free.
_THREADS: Final = 8


def awaited(
    call: Callable[Concatenate[RemoteDirectory, _P], _Result],
) -> Callable[Concatenate["AsyncRemoteDirectory", _P], Coroutine[object, object, _Result]]:
    """Return the awaitable version of a `RemoteDirectory` method, with its signature and docs."""

    async def run(
        self: "AsyncRemoteDirectory", /, *args: _P.args, **keywords: _P.kwargs
    ) -> _Result:
        return await self._run(lambda: call(self._directory, *args, **keywords))

    return _described(run, call)


def sent(
    call: Callable[Concatenate[RemoteDirectory, _P], _Result],
    send: "Callable[Concatenate[RemoteDirectory, _P], Future[_Result]]",
) -> Callable[Concatenate["AsyncRemoteDirectory", _P], Coroutine[object, object, _Result]]:
    """Return the awaitable version of an append; the awaitable version calls `send` in a thread."""

    async def run(
        self: "AsyncRemoteDirectory", /, *args: _P.args, **keywords: _P.kwargs
    ) -> _Result:
        sending = await self._run(lambda: send(self._directory, *args, **keywords))
        # Records that are already queued are sent even if the call is cancelled.
        return await asyncio.shield(asyncio.wrap_future(sending))

    return _described(run, call)


def _described(function: _Function, call: Callable[..., object]) -> _Function:
    """Give a function the name, the signature and the docs of another function."""
    wraps(call)(function)
    del function.__wrapped__  # type: ignore[attr-defined]  # `call` is not a coroutine function
    function.__signature__ = inspect.signature(call)  # type: ignore[attr-defined] # for `inspect`
    function.__qualname__ = f"AsyncRemoteDirectory.{function.__name__}"
    function.__doc__ = inspect.getdoc(call)
    return function


@reads_arguments()
class AsyncRemoteDirectory:
    """Topics of a cluster: methods of `RemoteDirectory` as coroutines and asynchronous iterators.

    Arguments, results and errors are those of `RemoteDirectory`. After an append is cancelled, some
    of its records may be in the log.
    """

    def __init__(self, directory: RemoteDirectory) -> None:
        self._directory = directory
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidelog-connect")
        self._is_closed = False

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers, `host:port[,host:port]`."""
        return self._directory.bootstrap

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        if self._is_closed:
            raise Closed(f"the connection to {self.bootstrap} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    topics = awaited(RemoteDirectory.topics)
    topic = awaited(RemoteDirectory.topic)
    partitions = awaited(RemoteDirectory.partitions)
    create_topic = awaited(RemoteDirectory.create_topic)
    delete_topic = awaited(RemoteDirectory.delete_topic)
    alter_config = awaited(RemoteDirectory.alter_config)
    add_partitions = awaited(RemoteDirectory.add_partitions)
    delete_records = awaited(RemoteDirectory.delete_records)

    append = sent(RemoteDirectory.append, RemoteDirectory.send)
    append_table = sent(RemoteDirectory.append_table, RemoteDirectory.send_table)
    flush = awaited(RemoteDirectory.flush)

    offsets_for_times = awaited(RemoteDirectory.offsets_for_times)
    offsets_at = awaited(RemoteDirectory.offsets_at)
    time_spans = awaited(RemoteDirectory.time_spans)
    beginning_offsets = awaited(RemoteDirectory.beginning_offsets)
    end_offsets = awaited(RemoteDirectory.end_offsets)
    without_append_time = awaited(RemoteDirectory.without_append_time)
    max_timestamps = awaited(RemoteDirectory.max_timestamps)
    count = awaited(RemoteDirectory.count)
    tail = awaited(RemoteDirectory.tail)

    def point(self, when: When) -> int:
        """Return a point in time in ms, like `RemoteDirectory.point`; sends no request."""
        return self._directory.point(when)

    def range(self, text: str) -> tuple[int, int]:
        """Return a range of time in ms, like `RemoteDirectory.range`; sends no request."""
        return self._directory.range(text)

    # -- reading -----------------------------------------------------------------------------

    def records(
        self, topic: str, *, isolation: Isolation = IsolationLevel.READ_UNCOMMITTED
    ) -> AsyncIterator[tuple[TopicPartition, Record]]:
        """See `RemoteDirectory.records`; use it with `async for`."""
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
        """See `RemoteDirectory.read`; use it with `async for`.

        Batches are fetched during the iteration, so errors of brokers are raised by the iteration,
        not by this call.
        """
        scan = self._directory.scan(
            topic,
            start=start,
            end=end,
            clock=clock,
            columns=columns,
            isolation=isolation,
            strict=strict,
        )
        return self._each(lambda: iter(scan.to_arrow(stats=stats)))

    async def table(
        self,
        topic: str | TopicPartition,
        *,
        at: When | None = None,
        clock: str = ClockName.RECORD,
        columns: Sequence[str] | None = None,
        inexact: str = "refuse",
    ) -> "pa.Table":
        """Return the rows of `RemoteDirectory.table`, in memory."""
        table = self._directory.table(topic, at=at, clock=clock, columns=columns, inexact=inexact)
        return await self._run(table.to_table)

    async def _each(self, begin: Callable[[], Iterator[_Item]]) -> AsyncIterator[_Item]:
        """Yield the items of a blocking iterator, which runs in a thread.

        If the caller stops early or is cancelled, a thread closes the iterator as soon as the
        iterator's current step has returned.
        """
        steps = _Steps(begin)
        try:
            while True:
                items = await self._run(steps.take)
                if not items:
                    return
                yield items[0]
        finally:
            # `submit` raises RuntimeError after the thread pool was shut down.
            with suppress(RuntimeError):
                self._threads.submit(steps.close)

    # -- closing -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending appends, then close.

        Calls made after `close` raise Closed. Calls that are pending when the connection is closed
        may also raise Closed, except appends.
        """
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


class _Steps(Generic[_Item]):
    """Iterator that several threads may use, one at a time; `close` waits for the current step."""

    def __init__(self, begin: Callable[[], Iterator[_Item]]) -> None:
        self._begin = begin
        self._iterator: Iterator[_Item] | None = None
        self._turn = threading.Lock()
        self._is_closed = False

    def take(self) -> tuple[()] | tuple[_Item]:
        """Return a tuple with the next item; an empty tuple at the end, and after `close`."""
        with self._turn:
            if self._is_closed:
                return ()
            if self._iterator is None:
                self._iterator = self._begin()
            for item in self._iterator:
                return (item,)
            return ()

    def close(self) -> None:
        """Close the iterator."""
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
    """Open the topics of a running Kafka for a program with an event loop; see `tidelog.connect`.

    >>> async with await tidelog.connect_async("localhost:9092") as log:  # doctest: +SKIP
    ...     await log.append("flights", [tidelog.NewRecord(value=b"{}")])
    ...     async for batch in log.read("flights", start="-1h"):
    ...         print(batch.num_rows)
    """

    def make() -> RemoteDirectory:
        return connect(bootstrap, config=config, timeout_s=timeout_s, env=env)

    return AsyncRemoteDirectory(await asyncio.get_running_loop().run_in_executor(None, make))
