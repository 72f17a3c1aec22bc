"""Log cleaners of the broker for the dirtiest compacted partitions, and cleaning jobs for clients.

Logs are used only in the event loop's thread. The choice of a partition and the swap of its new
segments run in another thread, so they access logs through proxies, which execute each call on the
loop. The cleaning itself is done by a worker, usually another process, which only reads segments
and writes `.cleaned` files (`storage.compaction.worker`). While segments are swapped in, the topic
is locked: retention skips it, and its deletion waits. Retention of the partition waits from the
first read to the last swap (`cleanings`).

If a cleaning fails, the reason is logged, and /metrics shows the partition. The cleaning is retried
without limit: first after `log.cleaner.backoff.ms`, and later after twice the previous delay, at
most an hour.

`LentJobs` lends a job: it lets a client clean a partition instead of the broker. This is for
clients that can't have the directory's lock, for example because their tasks run on other machines.
The client writes the `.cleaned` files. The broker then swaps these files in, and updates the
partition's history and checkpoint.
While a client has the job, no cleaner of the broker cleans the partition. If another request asks
for the same partition, that request gets the job, and the first client's result is dropped; while
this result is being swapped in, the request is refused instead. The job also ends when the broker
restarts, or after `LEND_MS` without a result. If a job ends without a result, the next cleaning
begins again from the checkpoint.

Used only in the event loop's thread. Source: Kafka 4.x LogCleaner, CleanerThread.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tidelog.amounts import plural
from tidelog.env import OsFileSystem
from tidelog.errors import (
    CleaningAborted,
    CleaningFailed,
    Closed,
    CorruptMessage,
    InvalidRequest,
    TidelogError,
    UnknownTopic,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.server.api.node import LOGGER, Node
from tidelog.server.partitions.partition import Partition
from tidelog.server.runtime.threads import LogDirOnLoop, LoopGate
from tidelog.storage import log_files
from tidelog.storage.compaction.cleaner import (
    CleaningReport,
    LogTarget,
    Worker,
    clean_partition,
    drop_cleaned,
)
from tidelog.storage.compaction.cleaning_plan import CleanerOptions, CleaningState, inspect_log
from tidelog.storage.compaction.eligibility import CleaningDecision, waits_since_ms
from tidelog.storage.compaction.job import CleaningJob, CleaningResult
from tidelog.storage.compaction.worker import CleanerProcess, InProcess
from tidelog.storage.segment.roll import RollReason
from tidelog.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from tidelog.control.verbs import TakeBack
    from tidelog.server.partitions.partitions import Cleanings
    from tidelog.storage.directory.topic_registry import TopicInfo
    from tidelog.storage.log.log import Log


# Time in ms after which a lent job without a result is ended.
LEND_MS: Final = 24 * 3_600_000

Hold = Callable[[TopicPartition], AbstractContextManager[object]]
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Lent:
    """A cleaning job that a client does instead of the broker (a lent job).

    While the client's segments are swapped in (`is_swapping`), nothing else ends the job.
    """

    target: LogTarget
    job: CleaningJob
    since_ms: int
    is_swapping: bool = False


def _ensure_compacted(node: "Node", name: TopicPartition) -> None:
    if not node.log_dir.topic(name.topic).config.is_compacted:
        raise InvalidRequest(
            f"{name.topic} is not a compacted topic: its cleanup.policy does not contain compact"
        )


async def _flush(node: "Node", name: TopicPartition, *, roll: bool) -> None:
    """Open a partition, and flush it unless it is offline; `roll` first ends its active segment."""
    await node.partitions.open_beside([name])
    partition = node.partitions.get(name.topic, name.partition)
    if roll and partition.failure is None:
        partition.log.roll()
    if partition.failure is None:
        await partition.flushed()


class LentJobs:
    """Cleaning jobs that clients do instead of the broker (lent jobs)."""

    def __init__(
        self,
        node: "Node",
        gate: LoopGate,
        threads: ThreadPoolExecutor,
        at_work: "Cleanings",
        hold: Hold,
    ) -> None:
        """Create an instance without lent jobs.

        Args:
            node: The broker.
            gate: Access of threads to the event loop.
            threads: Threads that inspect logs.
            at_work: Partitions that are being cleaned. `LentJobs` adds the partitions whose
                cleaning is lent.
            hold: Locks a topic while segments are swapped in.
        """
        self._node = node
        self._gate = gate
        self._threads = threads
        self._at_work = at_work
        self._hold = hold
        self._lent: dict[TopicPartition, _Lent] = {}
        self._ends: set[asyncio.Task[None]] = set()

    async def begin(
        self, name: TopicPartition, *, roll: bool, is_asked: bool
    ) -> tuple[CleaningDecision, CleaningJob | None]:
        """Let a client clean a partition instead of the broker.

        Returns the decision, and the job or None if no cleaning is due.

        Args:
            name: The partition.
            roll: Whether to roll the partition's active segment first.
            is_asked: Whether a cleaning is due even if the settings do not require one yet. If
                there is nothing to clean, no cleaning is due.

        Raises:
            UnknownTopic: No such partition.
            InvalidRequest: A cleaner of the broker is cleaning the partition, or another client's
                result is being swapped in, or the topic is not compacted, or the partition has a
                tier.
            TidelogError: The partition could not be inspected.
        """
        node = self._node
        _ensure_compacted(node, name)
        await self._end(name)
        if name in self._at_work:
            raise InvalidRequest(f"{name} is already being compacted")
        self._at_work.add(name)
        try:
            await _flush(node, name, roll=roll)
            target = self._target(name)
            decision, job = await self._in(partial(target.inspect, is_asked=is_asked))
        except BaseException:
            self._at_work.discard(name)
            raise
        if job is None:
            self._at_work.discard(name)
            return decision, None
        self._lent[name] = _Lent(target, job, node.env.clock.monotonic_ms())
        if not (node.config.log_cleaner_enable and node.config.log_cleaner_threads):
            # Cleaners of the broker end old jobs before they choose a partition. There are none.
            node.timers.after(LEND_MS, self._begin_to_give_up)
        return decision, job

    def _begin_to_give_up(self) -> None:
        end = asyncio.get_running_loop().create_task(self.give_up_old())
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)

    def _target(self, name: TopicPartition) -> LogTarget:
        config = self._node.config
        options = CleanerOptions(
            dedupe_buffer_bytes=config.cleaner_map_bytes,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            hold=self._hold,
        )
        return LogTarget(LogDirOnLoop(self._node.log_dir, self._gate), name, options)

    async def take_back(self, result: "TakeBack") -> bool:
        """Swap in the segments that a client has cleaned; return whether another pass is needed.

        Raises:
            CleaningAborted: The job is no longer lent, its result is being swapped in already, its
                segments have been replaced, or a `.cleaned` file is missing or has another size. No
                further segment is changed, and the cleaning can be started again.
            CorruptMessage: The result can't belong to this job. Nothing was changed.
            StorageFailure: The disk failed.
        """
        name, cleaned = result.name, result.cleaned
        lent = self._lent.get(name)
        if lent is None or lent.is_swapping or lent.job.seed != result.seed:
            raise CleaningAborted(
                f"{name}: this compaction was not started or has ended; start it again"
            )
        lent.is_swapping = True
        try:
            check(lent.job, cleaned)
            await self._in(partial(self._swap_in, lent, cleaned))
        finally:
            lent.is_swapping = False
            if self._lent.get(name) is lent:  # otherwise the topic was deleted
                await self._end(name)
        job = lent.job
        return job.map_from < cleaned.mapped_to < job.map_to

    def _swap_in(self, lent: _Lent, cleaned: CleaningResult) -> None:
        self._check_sizes(lent.job.directory, cleaned)
        lent.target.swap_in(cleaned)

    def _check_sizes(self, directory: str, cleaned: CleaningResult) -> None:
        """Check the files' sizes. A client that had the job before may have changed the files.

        Raises:
            CleaningAborted: A file is missing, or its size differs from the size in `cleaned`.
        """
        fs = self._node.env.files
        for group in cleaned.groups:
            name = log_files.log_file_name(group.base_offset) + log_files.CLEANED_SUFFIX
            path = f"{directory}/{name}"
            if not fs.exists(path) or fs.stat(path).size != group.bytes_after:
                raise CleaningAborted(
                    f"{path}: missing, or its size differs from the announced one; start the"
                    " compaction again"
                )

    async def _end(self, name: TopicPartition) -> None:
        """End a partition's lent job, if there is one, and delete its `.cleaned` files.

        A job whose result is being swapped in is not ended.
        """
        lent = self._lent.get(name)
        if lent is not None and not lent.is_swapping:
            del self._lent[name]
            fs, directory = self._node.env.files, lent.job.directory
            await self._in(partial(drop_cleaned, fs, directory))
            self._at_work.discard(name)

    async def give_up_old(self) -> None:
        """End jobs that were lent at least `LEND_MS` ago and have had no result."""
        before_ms = self._node.env.clock.monotonic_ms() - LEND_MS
        for name in [name for name, lent in self._lent.items() if lent.since_ms <= before_ms]:
            await self._end(name)

    def forget(self, info: "TopicInfo") -> None:
        """Drop the jobs of a deleted topic. The jobs' files are deleted with the topic."""
        for name in [name for name in self._lent if name.topic == info.name]:
            del self._lent[name]
            self._at_work.discard(name)

    async def _in(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def check(job: CleaningJob, cleaned: CleaningResult) -> None:
    """Raise CorruptMessage if the result can't belong to this job."""
    ends = {source.base_offset: source.end_offset for source in job.sources}
    due = [group for group in job.groups if group.bases[0] < cleaned.mapped_to]
    if not job.map_from <= cleaned.mapped_to <= job.map_to or len(due) != len(cleaned.groups):
        raise CorruptMessage(
            f"the result maps keys up to offset {cleaned.mapped_to} with {len(cleaned.groups)}"
            f" groups of segments; the job maps offsets [{job.map_from}, {job.map_to}), with"
            f" {plural(len(due), 'group')} below that offset"
        )
    for group, result in zip(due, cleaned.groups, strict=True):
        is_it = result.bases == group.bases and result.base_offset == group.bases[0]
        if not is_it or result.end_offset != ends[group.bases[-1]]:
            raise CorruptMessage(f"segment at {result.base_offset} does not belong to the job")
        is_named = log_files.LOG_SUFFIX in result.suffixes and len(set(result.suffixes)) == len(
            result.suffixes
        )
        if not is_named or not set(result.suffixes) <= set(log_files.SEGMENT_SUFFIXES):
            raise CorruptMessage(
                f"segment at {result.base_offset} has invalid files {result.suffixes}"
            )


RETRY_MAX_MS: Final = 3_600_000

# Interval in ms at which a partition without newly finished segments is inspected again.
INSPECTION_INTERVAL_MS: Final = 60_000


class StoppableWorker(Worker, Protocol):
    """A worker that can be stopped."""

    def rest(self) -> None:
        """Release resources, because there is no job for now."""
        ...

    def stop(self) -> None:
        """Stop the running job. Any thread may call this."""
        ...


class _InThread(InProcess):
    """Cleans in a thread of the broker. Needed if only this process can access the file system."""

    def rest(self) -> None:
        """Do nothing, because no resources are held."""

    def stop(self) -> None:
        """Do nothing, because the running job is allowed to complete."""


@dataclass(slots=True)
class _Failure:
    """Delay of a failed cleaning's retry, and the monotonic time at which the retry is due."""

    delay_ms: int
    retry_ms: int


@dataclass(frozen=True, slots=True)
class _Inspection:
    """An inspection that found no due cleaning.

    The partition is inspected again at `until_ms` (wall time), or earlier if its active segment is
    rolled.
    """

    active_base: int
    until_ms: int


class LogCleaner:
    """All cleaners of a broker, from `start` to `stop`. Used only in the event loop's thread."""

    def __init__(
        self, node: Node, make_worker: Callable[[], StoppableWorker] | None = None
    ) -> None:
        """Create the cleaners, without starting them.

        Args:
            node: The broker.
            make_worker: Creates a worker. Default: a process, or a thread if only this process can
                access the files.
        """
        self._node = node
        self._make_worker = make_worker or self._worker
        self._gate = LoopGate(asyncio.get_running_loop())
        count = max(node.config.log_cleaner_threads, 1)
        self._threads = ThreadPoolExecutor(count + 1, thread_name_prefix="tidelog-cleaner")
        self._tasks: list[asyncio.Task[None]] = []
        self._requested_tasks: set[asyncio.Task[CleaningReport]] = set()
        self._workers: list[StoppableWorker] = []
        self._at_work = node.cleanings
        self._failures: dict[TopicPartition, _Failure] = {}
        self._inspections: dict[TopicPartition, _Inspection] = {}
        self._pauses: set[asyncio.Future[None]] = set()
        self._choosing = asyncio.Lock()
        self._is_stopping = False
        self.lending = LentJobs(node, self._gate, self._threads, self._at_work, self._locked)
        node.topics.on_deleted += [self._forget, self.lending.forget]

    def start(self) -> None:
        """If `log.cleaner.enable` is true, start the cleaners.

        Each cleaner first waits for `log.initial.task.delay.ms`.
        """
        config = self._node.config
        if config.log_cleaner_enable:
            for _ in range(config.log_cleaner_threads):
                self._tasks.append(asyncio.ensure_future(self._run()))

    async def stop(self) -> None:
        """Stop running cleanings. Segments that a cleaning has already swapped in stay."""
        self._is_stopping = True
        for pause in tuple(self._pauses):
            if not pause.done():
                pause.set_result(None)
        for worker in tuple(self._workers):
            await asyncio.get_running_loop().run_in_executor(None, worker.stop)
        await asyncio.gather(*self._tasks, *self._requested_tasks, return_exceptions=True)
        self._gate.is_closed = True
        self._threads.shutdown()

    def _worker(self) -> StoppableWorker:
        if isinstance(self._node.env.files, OsFileSystem):
            config = self._node.config
            share = config.log_cleaner_io_max_bytes_per_second / max(config.log_cleaner_threads, 1)
            return CleanerProcess(share)
        return _InThread(self._node.env)

    # -- cleaners ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run one cleaner."""
        config = self._node.config
        await self._pause(config.log_initial_task_delay_ms)
        worker = self._make_worker()
        self._workers.append(worker)
        while not self._is_stopping:
            try:
                name = await self._take_next()
            except Exception:  # noqa: BLE001 - nothing would restart the cleaner
                LOGGER.exception("failed to choose a partition to compact")
                name = None
            if name is not None:
                await self._clean(worker, name)
                continue
            await asyncio.get_running_loop().run_in_executor(self._threads, worker.rest)
            await self._pause(self._node.config.log_cleaner_backoff_ms)

    async def _take_next(self) -> TopicPartition | None:
        """Choose a due partition and reserve it for this cleaner; None if no partition is due.

        Only one cleaner chooses at a time.
        """
        async with self._choosing:
            name = await self._choose()
            if name is not None:
                self._at_work.add(name)
            return name

    async def _pause(self, delay_ms: int) -> None:
        if self._is_stopping:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses.add(done)
        timer = self._node.timers.after(delay_ms, lambda: _settle(done))
        try:
            await done
        finally:
            timer.cancel()
            self._pauses.discard(done)

    async def _clean(self, worker: Worker, name: TopicPartition) -> None:
        """Clean a due partition. A failure is logged and remembered."""
        try:
            await self._cleaned(worker, name, is_asked=False)
        except (CleaningAborted, Closed, UnknownTopic) as error:
            LOGGER.info("%s: %s", name, error)
        except TidelogError as error:
            self._fail(name, error)
        except Exception as error:  # noqa: BLE001 - the other partitions are cleaned
            LOGGER.exception("%s: compaction has failed", name)
            self._fail(name, error)
        finally:
            self._at_work.discard(name)

    async def _cleaned(
        self, worker: Worker, name: TopicPartition, *, is_asked: bool
    ) -> CleaningReport:
        tally, clock = self._node.metrics.cleaner, self._node.env.clock
        config = self._node.config
        options = CleanerOptions(
            dedupe_buffer_bytes=config.cleaner_map_bytes,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            is_asked=is_asked,
            hold=self._locked,
        )
        log_dir = LogDirOnLoop(self._node.log_dir, self._gate)
        began_ms = clock.monotonic_ms()
        tally.at_work += 1
        try:
            report = await self._in(partial(clean_partition, log_dir, name, worker, options))
        finally:
            tally.at_work -= 1
            tally.busy_ms += clock.monotonic_ms() - began_ms
        self._failures.pop(name, None)
        self._inspections.pop(name, None)
        tally.cleaned(report, clock.now_ms())
        if report.stopped is not None:
            LOGGER.warning("%s: %s", name, report.stopped)
        return report

    async def _in(self, work: Callable[[], CleaningReport]) -> CleaningReport:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _fail(self, name: TopicPartition, error: Exception) -> None:
        if self._is_stopping:
            return
        last = self._failures.get(name)
        first_ms = max(self._node.config.log_cleaner_backoff_ms, 1)
        delay_ms = first_ms if last is None else min(last.delay_ms * 2, RETRY_MAX_MS)
        retry_ms = self._node.env.clock.monotonic_ms() + delay_ms
        self._failures[name] = _Failure(delay_ms, retry_ms)
        self._node.metrics.cleaner.failed(name, str(error))
        LOGGER.error(
            "failed to compact %s: %s; next attempt in %d s", name, error, delay_ms // 1000
        )

    def _forget(self, info: "TopicInfo") -> None:
        for states in (self._failures, self._inspections):
            for name in [name for name in states if name.topic == info.name]:
                states.pop(name)

    @contextmanager
    def _locked(self, name: TopicPartition) -> Iterator[None]:
        """Lock the topic, on the event loop, during a `with` block in a cleaner's thread."""
        hold = self._node.partitions.holds.hold
        lock = hold([name.topic], stops_appends=False, stops_deletion=True)
        self._gate.wait(lock.__aenter__())
        try:
            yield
        finally:
            self._gate.wait(lock.__aexit__(None, None, None))

    # -- choose ------------------------------------------------------------------------------

    async def _choose(self) -> TopicPartition | None:
        """Return the due partition with the largest dirty ratio, or None."""
        await self.lending.give_up_old()
        best: CleaningState | None = None
        for name in list(self._compacted()):
            if self._is_stopping:
                return None
            state = await self._inspect(name)
            if state is None or state.decision.due is None:
                continue
            if best is None or state.decision.ratio > best.decision.ratio:
                best = state
        return None if best is None else best.name

    def _compacted(self) -> Iterator[TopicPartition]:
        """Iterate over partitions of compacted topics that may be cleaned now."""
        now_ms = self._node.env.clock.monotonic_ms()
        for topic in tuple(self._node.topics.names()):
            info = self._node.topics.find(topic)
            if info is None or not info.config.is_compacted:
                continue
            for name in self._node.log_dir.partitions(topic):
                failure = self._failures.get(name)
                is_waiting = failure is not None and failure.retry_ms > now_ms
                if name not in self._at_work and not is_waiting:
                    yield name

    async def _inspect(self, name: TopicPartition) -> CleaningState | None:
        """Inspect a partition; return None if it has not changed or can't be inspected."""
        node = self._node
        try:
            await node.partitions.open_beside([name])
            if node.partitions.must_open(name) or node.topics.find(name.topic) is None:
                return None
            partition = node.partitions.get(name.topic, name.partition)
            if partition.failure is not None or not self._may_have_changed(name, partition.log):
                return None
            log_dir = LogDirOnLoop(node.log_dir, self._gate)
            loop = asyncio.get_running_loop()
            active_base, synced_end = partition.log.active.base_offset, partition.log.recovery_point
            state = await loop.run_in_executor(self._threads, inspect_log, log_dir, name)
        except (InvalidRequest, Closed, UnknownTopic) as error:
            LOGGER.debug("%s is not compacted: %s", name, error)
            return None
        except TidelogError as error:
            self._fail(name, error)
            return None
        self._note(state, partition, active_base, synced_end)
        return state

    def _may_have_changed(self, name: TopicPartition, log: "Log") -> bool:
        """Whether a new inspection of the partition may differ from the last inspection.

        If records in the active segment are overdue for cleaning, the segment is rolled first.
        """
        config, now_ms = log.context.config, self._node.env.clock.now_ms()
        if waits_since_ms(log.active, config, now_ms) is not None:
            log.roll(RollReason.COMPACTION_LAG)
        if len(log.segments) == 1:
            return False
        last = self._inspections.get(name)
        return last is None or last.active_base != log.active.base_offset or last.until_ms <= now_ms

    def _note(
        self, state: CleaningState, partition: Partition, active_base: int, synced_end: int
    ) -> None:
        """Report the inspection's dirty ratio, and remember the inspection if it found nothing due.

        `active_base` and `synced_end` are from before the inspection, because a sync may have ended
        during the inspection.
        """
        decision, log = state.decision, partition.log
        self._node.metrics.cleaner.inspected(state.name, decision.ratio)
        if synced_end < active_base:
            # Shortly after a roll or a crash, some finished segments are not synced yet, and an
            # inspection ignores them. So this inspection is not remembered, and the partition is
            # inspected again after the sync.
            is_synced = log.recovery_point >= active_base
            if not is_synced and not partition.is_deleted and partition.failure is None:
                partition.flush_later()
        elif decision.due is None:
            horizons = () if state.history is None else state.history.horizons_ms
            later = [time for time in horizons if time > state.now_ms]
            until_ms = min(later, default=INT64_MAX)
            until_ms = min(until_ms, state.now_ms + INSPECTION_INTERVAL_MS)
            self._inspections[state.name] = _Inspection(active_base, until_ms)

    # -- on request --------------------------------------------------------------------------

    async def clean_now(
        self, name: TopicPartition, *, roll: bool = False, is_asked: bool = True
    ) -> CleaningReport:
        """Clean a partition on request.

        Args:
            name: The partition.
            roll: Whether to roll the partition's active segment first.
            is_asked: Whether a cleaning is due even if the settings do not require one yet. If
                there is nothing to clean, no cleaning is due.

        Raises:
            UnknownTopic: No such partition.
            InvalidRequest: The partition is already being cleaned, or the topic is not compacted,
                or the partition has a tier.
            TidelogError: The cleaning failed.
        """
        _ensure_compacted(self._node, name)
        if name in self._at_work:
            raise InvalidRequest(f"{name} is already being compacted")
        self._at_work.add(name)
        task = asyncio.ensure_future(self._clean_now(name, roll=roll, is_asked=is_asked))
        self._requested_tasks.add(task)
        task.add_done_callback(self._requested_tasks.discard)
        return await asyncio.shield(task)

    async def _clean_now(
        self, name: TopicPartition, *, roll: bool, is_asked: bool
    ) -> CleaningReport:
        node, worker = self._node, self._make_worker()
        self._workers.append(worker)
        try:
            if self._is_stopping:
                raise CleaningFailed("the broker is stopping")
            await _flush(node, name, roll=roll)
            return await self._cleaned(worker, name, is_asked=is_asked)
        finally:
            self._workers.remove(worker)
            self._at_work.discard(name)
            await asyncio.get_running_loop().run_in_executor(None, worker.rest)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
