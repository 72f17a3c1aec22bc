"""Control channel of a running broker: verbs such as attach, swap, erase, flush and tier.

Requests arrive on the event loop. The work of a request can be long (an attach reads every byte of
its segments), so a thread does it. The thread uses proxies, whose calls are executed on the loop
(`threads`). During an attach, swap or erase, appends to the affected topics wait, and reads
continue (`holds`). A fetch that waits for records returns the attached records at once.

Source: docs/control.md.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, cast

from tidelog.control import channel
from tidelog.control.channel import FrameReader, Message, encode_frame
from tidelog.errors import Closed, CorruptMessage, InvalidRequest, TidelogError
from tidelog.server.api import topic_changes
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.runtime.threads import LogDirOnLoop, LoopGate
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import socket

    from tidelog.server.maintenance.log_cleaner import LogCleaner


_Result = Mapping[str, object]
_Verb = Callable[[Mapping[str, object]], Awaitable[_Result]]


class Control:
    """Server of the control channel, from `start` to `stop`.

    Used only in the event loop's thread.
    """

    def __init__(self, node: Node, cleaner: "Callable[[], LogCleaner]") -> None:
        self._node = node
        self._compaction = cleaner
        self._connections: dict[_Connection, None] = {}
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._loop = LoopGate(asyncio.get_running_loop())
        # One thread changes segments, and another thread copies segments to the tier, so that a
        # tier run does not delay changes.
        self._changing = ThreadPoolExecutor(1, thread_name_prefix="tidelog-attach")
        self._tiering = ThreadPoolExecutor(1, thread_name_prefix="tidelog-tier")
        self._is_stopping = False
        # Running requests. A request whose client has disconnected is kept, too, because the
        # request's thread still needs the event loop.
        self._running: set[asyncio.Task[None]] = set()
        self.verbs: Mapping[str, _Verb] = {
            "status": self._status,
            "flush": self._flush,
            "reopen": self._reopen,
            "accept_clock": self._accept_clock,
            "attach": partial(self._change, "attach"),
            "swap": partial(self._change, "swap"),
            "erase": partial(self._change, "erase"),
            "tier": self._tier,
            "compact": self._compact,
            "lend": self._lend,
            "take_back": self._take_back,
        }

    async def start(self) -> None:
        """Start listening.

        Raises:
            InvalidRequest: The directory's path is too long for a socket.
            OSError: The socket can't be created.
        """
        self._listener = channel.listen(self._node.log_dir.path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=self._listener)

    async def stop(self) -> None:
        """Stop listening, end tier copies after the current segment, and wait for all requests."""
        self._is_stopping = True
        if self._server is not None:
            channel.remove_socket(self._node.log_dir.path)
            self._server.close()
        await asyncio.gather(*self._running, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        self._loop.is_closed = True
        self._changing.shutdown()
        self._tiering.shutdown()

    async def answer(self, message: Message) -> bytes:
        """Carry out a request, and return its response as a frame."""
        try:
            verb, arguments = channel.read_request(message)
            carry_out = self.verbs.get(verb)
            if carry_out is None:
                verbs = ", ".join(self.verbs)
                raise InvalidRequest(f"unknown control channel verb {verb!r}; known verbs: {verbs}")
            return encode_frame(channel.response(await carry_out(arguments)))
        except TidelogError as error:
            return encode_frame(channel.refusal(error))

    def begin(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Start a task that `stop` waits for."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def admit(self, connection: "_Connection") -> None:
        """Admit a connection; at the limit, close another connection first.

        The oldest idle connection is closed. If no connection is idle, the oldest connection is
        closed.
        """
        if len(self._connections) >= channel.CONNECTIONS_MAX:
            idle = [each for each in self._connections if each.task is None]
            (idle or list(self._connections))[0].close()
        self._connections[connection] = None

    def dismiss(self, connection: "_Connection") -> None:
        """Remove a closed connection."""
        self._connections.pop(connection, None)

    # -- verbs -------------------------------------------------------------------------------

    async def _status(self, _: Mapping[str, object]) -> _Result:
        address = self._node.address
        return {
            "path": self._node.log_dir.path,
            "pid": os.getpid(),
            "verbs": list(self.verbs),
            "broker": f"{address.host}:{address.port}",
            "topic_defaults": dict(self._node.config.topic_defaults),
        }

    async def _flush(self, _: Mapping[str, object]) -> _Result:
        """Sync all appended records, in threads."""
        partitions = [each for each in self._node.partitions.opened() if each.failure is None]
        ended = await asyncio.gather(
            *(each.flushed() for each in partitions), return_exceptions=True
        )
        for partition, failure in zip(partitions, ended, strict=True):
            if failure is not None and not partition.is_deleted:
                raise failure
        return {}

    async def _accept_clock(self, _: Mapping[str, object]) -> _Result:
        """Accept the wall clock as it is now, so that appends can continue after a clock jump.

        All partitions are opened first, because the latest append time of all logs is stored.
        """
        log_dir = self._node.log_dir
        names = [name for topic in self._node.topics.all() for name in log_dir.partitions(topic)]
        await self._open(names)
        accepted_ms = log_dir.append_time_to_accept()
        keep = partial(log_dir.keep_accepted_clock, accepted_ms)
        await asyncio.get_running_loop().run_in_executor(self._changing, keep)
        log_dir.take_clock(accepted_ms)
        from tidelog.timespec import format_ms  # not needed at a start

        LOGGER.warning("accepted the clock; append times reach up to %s", format_ms(accepted_ms))
        return {"accepted_ms": accepted_ms}

    async def _reopen(self, arguments: Mapping[str, object]) -> _Result:
        """Reopen partitions that are offline after a disk failure."""
        match arguments:
            case {"topic": str(topic), "partition": None | int() as number}:
                partitions = self._node.log_dir.partitions(topic)
                names = [name for name in partitions if number in (None, name.partition)]
            case {"topic": None, "partition": None}:
                names = [partition.name for partition in self._node.partitions.opened()]
            case _:
                raise InvalidRequest(
                    "reopen: `topic` must be a name or null, and `partition` a number or null; a"
                    " partition needs a topic"
                )
        reopened = [f"{name}" for name in names if await self._was_reopened(name)]
        return {"reopened": reopened}

    async def _was_reopened(self, name: TopicPartition) -> bool:
        """Reopen a partition if it is offline, and return whether it was reopened.

        Waits until no topic is being changed and no other partition is being reopened.
        """
        node = self._node
        async with node.topics.changing:
            return await node.partitions.reopen(name.topic, name.partition)

    async def _change(self, verb: str, arguments: Mapping[str, object]) -> _Result:
        """Run the verb attach, swap or erase. Meanwhile appends to the affected topics wait."""
        from tidelog.control import verbs  # large, and not needed to listen

        topics = _topics_of(verb, arguments)
        internal = sorted(filter(self._node.topics.is_internal, topics))
        if internal:
            raise InvalidRequest(
                f"{verb}: {internal[0]} is an internal topic; only the broker changes its segments"
            )
        async with self._node.partitions.holds.hold(topics, stops_appends=True):
            await self._open(self._partitions_of(verb, arguments))
            log_dir = LogDirOnLoop(self._node.log_dir, self._loop)
            try:
                result = await self._in(self._changing, verbs.run, log_dir, verb, arguments)
                for topic in _skipped_topics(result, topics):
                    self._node.metrics.write_skipped(topic)
                return result
            finally:
                self._show(topics)

    async def _tier(self, arguments: Mapping[str, object]) -> _Result:
        """Copy a partition's segments to its tier, and delete segments; see docs/tiers.md."""
        from tidelog.control.verbs import read_tier_arguments, run_tier

        name, options = read_tier_arguments(arguments, self._on_copied)
        if options.url is not None:
            # Store the tier in the topic's settings, so that later runs and readers find it. If no
            # broker is running, `tidelog tier` stores the same settings itself.
            enabled = {"remote.storage.enable": "true", "tidelog.tier.url": options.url}
            await topic_changes.alter(self._node, name.topic, lambda _: enabled)
        async with self._node.partitions.holds.hold([name.topic], stops_appends=False):
            await self._open([name])
            log_dir = LogDirOnLoop(self._node.log_dir, self._loop)
            try:
                return await self._in(self._tiering, run_tier, log_dir, name, options)
            finally:
                self._show([name.topic])

    async def _compact(self, arguments: Mapping[str, object]) -> _Result:
        """Compact one partition now; see docs/compaction.md."""
        from tidelog.control.verbs import encode_report, read_compact_arguments

        request = read_compact_arguments(arguments)
        report = await self._compaction().clean_now(
            request.name, roll=request.roll, is_asked=request.is_asked
        )
        return encode_report(report)

    async def _lend(self, arguments: Mapping[str, object]) -> _Result:
        """Let the client clean a partition instead of the broker; see docs/control.md."""
        from tidelog.control.verbs import encode_lent, read_compact_arguments

        request = read_compact_arguments(arguments)
        lending = self._compaction().lending
        lent = await lending.begin(request.name, roll=request.roll, is_asked=request.is_asked)
        return encode_lent(*lent)

    async def _take_back(self, arguments: Mapping[str, object]) -> _Result:
        """Replace segments by the result of a cleaning that `_lend` has given to the client."""
        from tidelog.control.verbs import read_take_back

        result = read_take_back(arguments)
        try:
            more = await self._compaction().lending.take_back(result)
        finally:
            self._show([result.name.topic])
        return {"more": more}

    def _partitions_of(self, verb: str, arguments: Mapping[str, object]) -> list[TopicPartition]:
        """Return the partitions that an attach, swap or erase affects.

        Invalid entries are left out. The verb itself refuses them later.
        """
        names = []
        for entry in _segment_entries(verb, arguments):
            topic, number = entry.get("topic"), entry.get("partition")
            if isinstance(topic, str) and isinstance(number, int):
                names.append(TopicPartition(topic, number))
            elif isinstance(topic, str) and self._node.topics.find(topic) is not None:
                names += self._node.log_dir.partitions(topic)
        return names

    async def _open(self, names: Iterable[TopicPartition]) -> None:
        """Open partitions in threads, so that the verb does not open them on the event loop."""
        await self._node.partitions.open_beside(names)

    def _on_copied(self, _: int) -> None:
        """Stop the copy if the broker is stopping.

        Called after each segment, in the copying thread.
        """
        if self._is_stopping:
            raise Closed("the broker is stopping; the next run continues the copy")

    async def _in(
        self, pool: ThreadPoolExecutor, function: Callable[..., _Result], *args: object
    ) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)

    def _show(self, topics: Iterable[str]) -> None:
        """Make new records of topics visible to waiting readers.

        Offline partitions are skipped, because they have no new records.
        """
        names = set(topics)
        for partition in self._node.partitions.opened():
            if partition.name.topic in names and partition.failure is None:
                partition.advance()


def _skipped_topics(result: Mapping[str, object], topics: set[str]) -> set[str]:
    """Return the topics to which an attach added nothing, because they already had its version."""
    skipped = result.get("skipped")
    if isinstance(skipped, Mapping) and skipped:
        return set(skipped)
    return topics if result.get("was_done") is True else set()


def _topics_of(verb: str, arguments: Mapping[str, object]) -> set[str]:
    """Return the topics that an attach, swap or erase affects.

    Entries that are not objects are left out. The verb itself refuses them later.
    """
    return {str(segment.get("topic")) for segment in _segment_entries(verb, arguments)}


def _segment_entries(verb: str, arguments: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the parts of the arguments that name a topic and a partition."""
    if verb in ("swap", "erase"):
        return [arguments]
    segments = arguments.get("segments")
    entries = segments if isinstance(segments, list) else []
    return [segment for segment in entries if isinstance(segment, dict)]


class _Connection(asyncio.Protocol):
    """Connection of one client, whose requests are processed one at a time."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._reader = FrameReader()
        self._requests: list[Message] = []
        self._transport: asyncio.Transport | None = None
        self._is_full = False  # whether the client leaves its responses unread
        self._is_paused = False
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._control.admit(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Remove the connection. Its running request is still carried out."""
        self._transport = None
        if self.task is None:
            self._control.dismiss(self)

    def data_received(self, data: bytes) -> None:
        """Process received bytes. A malformed frame closes the connection."""
        try:
            self._requests += self._reader.feed(data)
        except CorruptMessage as error:
            LOGGER.warning("control channel: %s", error)
            self.close()
            return
        self._process()

    def pause_writing(self) -> None:
        """Pause reading and processing, because the client does not read its responses."""
        self._is_full = True
        self._pace()

    def resume_writing(self) -> None:
        """Resume, because the client has read its responses."""
        self._is_full = False
        self._process()

    def _process(self) -> None:
        """Start the next request, unless one is running or the client leaves responses unread."""
        is_free = self.task is None and not self._is_full and self._transport is not None
        if is_free and self._requests:
            self.task = self._control.begin(self._respond(self._requests.pop(0)))
        self._pace()

    def _pace(self) -> None:
        """Pause reading while a request is running or responses are unread; else resume reading.

        This limits the number of requests in memory.
        """
        must_pause = self.task is not None or self._is_full
        if self._transport is None or must_pause == self._is_paused:
            return
        self._is_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def _respond(self, message: Message) -> None:
        try:
            frame = await self._control.answer(message)
        except Exception:  # noqa: BLE001 - the broker continues
            LOGGER.exception("a request on the control channel failed")
            frame = b""
        self.task = None
        if self._transport is None:
            self._control.dismiss(self)
        elif not frame:
            self.close()
        else:
            self._transport.write(frame)
            self._process()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
        self._control.dismiss(self)
